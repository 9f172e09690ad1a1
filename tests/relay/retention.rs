//! What retention removes, and that nobody notices.

use std::time::{Duration, Instant};

use outbox_operator::{
    domain::settings::Removal,
    store::{self, Db, Sweep},
};

use crate::support::{PATIENCE, Relay, TENANT, World, table};

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// Rows that ended 60 days ago, two parked ones, and one that waits.
async fn old_rows(world: &World, succeeded: usize, dead: usize) {
    world
        .execute(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, created_at, completed_at, next_attempt_at) \
             SELECT '{TENANT}', 'o', n::text, status || '-' || n, 'http://127.0.0.1:1/', jsonb_build_object('n', n), status, \
                    now() - interval '61 days', CASE WHEN n % 2 = 0 THEN now() - interval '60 days' END, now() - interval '61 days' \
             FROM (SELECT n, 'succeeded' AS status FROM generate_series(1, {succeeded}) n UNION ALL \
                   SELECT n, 'dead' FROM generate_series(1, {dead}) n) AS ended; \
             INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, created_at, next_attempt_at, unknown_attempts) \
             VALUES ('{TENANT}', 'o', 'e', 'parked', 'http://127.0.0.1:1/', '{{}}', 'uncertain', now() - interval '61 days', 'infinity', 1), \
                    ('{TENANT}', 'o', 'e', 'cancelled', 'http://127.0.0.1:1/', '{{}}', 'cancelled', now() - interval '61 days', 'infinity', 0), \
                    ('{TENANT}', 'o', 'e', 'tomorrow', 'http://127.0.0.1:1/', '{{}}', 'pending', now() - interval '61 days', now() + interval '1 day', 0)",
        ))
        .await;
}

async fn count(world: &World, condition: &str) -> i64 {
    world.number(&format!("SELECT count(*) FROM agent_outbox WHERE {condition}")).await
}

fn sweep<'a>(worker: &'a str, tenants: &'a [uuid::Uuid], removal: Removal) -> Sweep<'a> {
    Sweep { relay: "test", worker, tenants, removal, age: MONTH, dead_blocks: false }
}

/// Batches until nothing is left, and how many rows went.
async fn whole(db: &Db, sweep: &Sweep<'_>) -> u64 {
    let (mut cursor, mut rows) = (None, 0);
    loop {
        let removed = store::remove(db, &table(), sweep, cursor).await.unwrap().expect("nobody else cleans");
        rows += removed.rows;
        let Some(next) = removed.next else { return rows };
        cursor = Some(next);
    }
}

#[tokio::test]
async fn rc_50_only_what_is_asked_for_and_past_its_age_is_removed() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    old_rows(&world, 1200, 7).await;
    world
        .execute(
            "UPDATE agent_outbox SET completed_at = now() - interval '29 days' WHERE idempotency_key = 'succeeded-2'",
        )
        .await;
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Succeeded)).await, 1199);
    assert_eq!(count(&world, "status = 'succeeded'").await, 1, "it is younger");
    assert_eq!(count(&world, "status = 'dead'").await, 7, "nobody asked for these");
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Dead)).await, 7);
    assert_eq!(count(&world, "idempotency_key IN ('parked', 'cancelled', 'tomorrow')").await, 3);
    world
        .execute(&format!(
            "INSERT INTO agent_outbox_history (at, row_id, idempotency_key, tenant_id, operation, entity_id, act) \
         SELECT now() - d * interval '1 day', 1, 'k', '{TENANT}', 'o', 'e', 'attempt' FROM generate_series(1, 60) d"
        ))
        .await;
    assert_eq!(whole(&db, &sweep("a", &[], Removal::History)).await, 31);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, 29);
}

#[tokio::test]
async fn a_replaced_payload_leaves_row_key_and_hash() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    old_rows(&world, 1200, 3).await;
    let hashes = "SELECT encode(sha256(string_agg(convert_to(payload::text, 'UTF8'), ''::bytea ORDER BY id)), 'hex') FROM agent_outbox WHERE status = 'dead'";
    let before: String = sqlx::query_scalar(hashes).fetch_one(&world.pool).await.unwrap();
    world.execute("UPDATE agent_outbox SET payload_hash = 'kept' WHERE idempotency_key = 'succeeded-1'").await;
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Payload)).await, 1200);
    assert_eq!(count(&world, "status = 'succeeded' AND payload = 'null' AND payload_hash IS NOT NULL").await, 1200);
    assert_eq!(count(&world, "payload_hash = 'kept'").await, 1);
    assert_eq!(
        count(&world, "idempotency_key = 'succeeded-2' AND payload_hash = sha256(convert_to('{\"n\": 2}', 'UTF8'))")
            .await,
        1
    );
    assert_eq!(sqlx::query_scalar::<_, String>(hashes).fetch_one(&world.pool).await.unwrap(), before);
    let again = sqlx::query("INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) VALUES (gen_random_uuid(), 'o', 'e', 'succeeded-1', 'http://x.test/', '{}')")
        .execute(&world.pool).await.unwrap_err().to_string();
    assert!(again.contains("uq_outbox_key"), "{again}");
    // The next sweep goes on where this one ended.
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Payload)).await, 0);
    world.execute("UPDATE agent_outbox SET status = 'succeeded', completed_at = now() - interval '31 days' WHERE idempotency_key = 'dead-1'").await;
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Payload)).await, 1);
}

#[tokio::test]
async fn one_worker_cleans_until_it_is_gone_and_rows_of_other_tenants_stay() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    old_rows(&world, 600, 0).await;
    world
        .execute("UPDATE agent_outbox SET tenant_id = gen_random_uuid() WHERE id % 3 = 0 AND status = 'succeeded'")
        .await;
    let ours = [uuid::Uuid::parse_str(TENANT).unwrap()];
    let first = store::remove(&db, &table(), &sweep("a", &ours, Removal::Succeeded), None).await.unwrap().unwrap();
    assert!(first.rows < 500 && first.next.is_some());
    assert!(store::remove(&db, &table(), &sweep("b", &ours, Removal::Succeeded), None).await.unwrap().is_none());
    world.execute("UPDATE agent_outbox_cleaners SET held_until = now()").await;
    whole(&db, &sweep("b", &ours, Removal::Succeeded)).await;
    assert!(store::remove(&db, &table(), &sweep("a", &ours, Removal::Succeeded), None).await.unwrap().is_none());
    assert_eq!(count(&world, &format!("status = 'succeeded' AND tenant_id = '{TENANT}'")).await, 0);
    assert_eq!(count(&world, "status = 'succeeded'").await, 200);
}

#[tokio::test]
async fn a_row_that_somebody_works_on_is_left_alone() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    old_rows(&world, 20, 0).await;
    let mut person = world.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM agent_outbox WHERE idempotency_key = 'succeeded-4' FOR UPDATE")
        .execute(&mut *person)
        .await
        .unwrap();
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Succeeded)).await, 19);
    person.commit().await.unwrap();
    assert_eq!(whole(&db, &sweep("a", &[], Removal::Succeeded)).await, 1);
}

/// Delivers rows one after another until `done`; milliseconds from insert to success, sorted.
async fn latencies(world: &World, name: &str, rows: usize) -> Vec<f64> {
    let mut ids = Vec::new();
    for number in 0..rows {
        ids.push(world.insert_script(&format!("{name}-{number}"), "201").await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut all = Vec::new();
    for id in ids {
        world.ended(id).await;
        let sql =
            "SELECT (extract(epoch FROM completed_at - created_at) * 1000)::float8 FROM agent_outbox WHERE id = $1";
        all.push(sqlx::query_scalar::<_, f64>(sql).bind(id).fetch_one(&world.pool).await.unwrap());
    }
    all.sort_by(f64::total_cmp);
    all
}

#[tokio::test]
async fn rc_50_five_pods_under_load_clean_one_at_a_time_and_deliveries_go_on() {
    let world = World::new().await;
    let old = if std::env::var_os("OUTBOX_TEST_FULL").is_some() { 2_000_000 } else { 20_000 };
    old_rows(&world, old, 50).await;
    world.execute("ANALYZE agent_outbox").await;
    let quiet = {
        let _relay = world.relay().await;
        latencies(&world, "quiet", 100).await
    };
    // The one that is gone looked for old history, and would be waited for.
    world.execute("DELETE FROM agent_outbox_cleaners").await;
    let file = world.documents("retention: {succeeded: 30d}", "");
    let relays: Vec<Relay> = (0..5).map(|_| Relay::start(&world.url, &file, &[])).collect();
    for relay in &relays {
        relay.ready().await;
    }
    world
        .wait_for(
            "the cleaner has begun",
            &format!("SELECT count(*) < {old} FROM agent_outbox WHERE idempotency_key LIKE 'succeeded-%'"),
        )
        .await;
    let started = Instant::now();
    let busy = latencies(&world, "busy", 200).await;
    let left = count(&world, "idempotency_key LIKE 'succeeded-%'").await;
    let deadline = Instant::now() + PATIENCE * if old > 100_000 { 60 } else { 2 };
    while count(&world, "idempotency_key LIKE 'succeeded-%'").await > 0 {
        assert!(Instant::now() < deadline, "never done");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let took = started.elapsed();
    let mut cleaners = 0;
    for relay in &relays {
        let text = relay.get("/metrics").await.unwrap().1;
        let line = text.lines().find(|line| line.starts_with("outbox_removed_rows_total{what=\"succeeded\"}")).unwrap();
        let removed: usize = line.split_whitespace().last().unwrap().parse().unwrap();
        assert!(removed == 0 || removed == old, "{line}");
        cleaners += usize::from(removed > 0);
        assert!(relay.log().iter().any(|line| line.contains("unique key")), "it says what is given up");
    }
    assert_eq!(cleaners, 1);
    assert_eq!(count(&world, "status = 'dead'").await, 50);
    assert_eq!(count(&world, "idempotency_key IN ('parked', 'cancelled', 'tomorrow')").await, 3);
    let at = |all: &[f64], percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
    println!(
        "{old} rows removed in {:.0} s; insert to success, median and 95 %: {:.0} and {:.0} ms before, {:.0} and {:.0} ms while ({left} rows were left)",
        took.as_secs_f64(),
        at(&quiet, 50),
        at(&quiet, 95),
        at(&busy, 50),
        at(&busy, 95)
    );
    // Half a second of it is other processes of a busy machine.
    assert!(at(&busy, 95) < 3.0 * at(&quiet, 95) + 500.0);
}

#[tokio::test]
async fn a_dead_row_that_others_wait_for_is_kept_until_a_person_decides() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    for (entity, key, status) in [
        ("a", "a1", "dead"),
        ("a", "a2", "pending"),
        ("b", "b1", "dead"),
        ("b", "b2", "succeeded"),
        ("c", "c1", "pending"),
        ("c", "c2", "dead"),
    ] {
        world
            .execute(&format!(
                "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, completed_at) \
                 VALUES ('{TENANT}', 'o', '{entity}', '{key}', 'http://127.0.0.1:1/', '{{}}', '{status}', now() - interval '60 days')"
            ))
            .await;
    }
    let sweep = Sweep { dead_blocks: true, ..sweep("a", &[], Removal::Dead) };
    assert_eq!(whole(&db, &sweep).await, 2);
    assert_eq!(count(&world, "status = 'dead' AND idempotency_key = 'a1'").await, 1);
    // Taken back, the row that waited waits for nobody.
    world.execute("UPDATE agent_outbox SET status = 'cancelled' WHERE idempotency_key = 'a2'").await;
    assert_eq!(whole(&db, &sweep).await, 1);
}

#[tokio::test]
async fn payloads_of_a_tenant_that_came_later_are_replaced_too() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    old_rows(&world, 10, 0).await;
    let (other, tenant) = (uuid::Uuid::nil(), TENANT.parse().unwrap());
    assert_eq!(whole(&db, &sweep("a", &[other], Removal::Payload)).await, 0);
    assert_eq!(whole(&db, &sweep("a", &[other, tenant], Removal::Payload)).await, 10);
    assert_eq!(whole(&db, &sweep("a", &[other, tenant], Removal::Payload)).await, 0);
}
