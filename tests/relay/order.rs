//! Order: rows of one entity one at a time, by the order of their ids, whoever claims them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use outbox_operator::{
    domain::{routing::Routing, settings::OnDead},
    store::{self, Caps, ClaimPolicy, ClaimRequest, Claimed, Db, Position},
};
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::{Outbox, PATIENCE, TENANT, World, outbox, table};

const ORDERED: &str = "ordering: {mode: PerEntity}";
/// What ends a row: the words of a command, or one statement.
type Act = &'static dyn Fn(i64) -> Vec<String>;

const SKIPPING: &str = "ordering: {mode: PerEntity, onDead: Skip}";

impl World {
    async fn insert_of(&self, entity: &str, key: &str, script: &str) -> i64 {
        sqlx::query(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             VALUES ($1::uuid, 'change', $2, $3, $4, '{}') RETURNING id",
        )
        .bind(TENANT)
        .bind(entity)
        .bind(key)
        .bind(self.receiver.url(script))
        .fetch_one(&self.pool)
        .await
        .unwrap()
        .get("id")
    }

    /// Waits until a claim has met the row and put it off.
    async fn waits(&self, id: i64, blocker: i64) -> Outbox {
        let reason = format!("waits for row {blocker}");
        self.row_when(id, "put off", |row| row.reason.as_deref() == Some(&reason)).await
    }

    /// When the keys arrived first, in order.
    fn arrivals(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let keys = self.receiver.ledger().requests().into_iter().filter_map(|request| request.key);
        keys.filter(|key| seen.insert(key.clone())).collect()
    }
}

async fn claim(db: &Db, on_dead: OnDead, limit: usize) -> Vec<Claimed> {
    let request = ClaimRequest {
        tenants: &[],
        limit,
        most_in_hand: usize::MAX,
        in_hand: &HashMap::new(),
        policies: &[ClaimPolicy { scope: "test", caps: Caps::default(), ordering: Some(on_dead) }],
        routing: &Routing::default(),
        worker: "test",
        lease: Duration::from_secs(60),
        small_payload: Some(1024),
    };
    store::claim(db, &table(), &request, &mut Position::new(Duration::ZERO)).await.unwrap().rows
}

#[tokio::test]
async fn a_row_put_off_after_its_worker_died_keeps_when_its_request_may_have_left() {
    let world = World::new().await;
    let first = world.insert_of("e", "first", "201").await;
    let second = world.insert_of("e", "second", "201").await;
    world
        .execute(&format!(
            "UPDATE agent_outbox SET status = 'in_flight', claim_token = gen_random_uuid(), attempts = 1, first_dispatch_at = now() - interval '1 hour', \
             locked_until = now() - interval '3 seconds', next_attempt_at = now() - interval '3 seconds' WHERE id = {second}"
        ))
        .await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let claimed: Vec<i64> = claim(&db, OnDead::Block, 10).await.iter().map(|row| row.id).collect();
    assert_eq!(claimed, [first]);
    world.waits(second, first).await;
    let ago = world
        .number(&format!("SELECT coalesce(extract(epoch FROM now() - last_dispatch_at), -1)::bigint FROM agent_outbox WHERE id = {second}"))
        .await;
    assert!((3..60).contains(&ago), "{ago}");
}

#[tokio::test]
async fn four_processes_send_the_rows_of_each_of_many_entities_one_at_a_time_and_in_order() {
    const ENTITIES: usize = 24;
    const ROWS: usize = 8;
    let world = World::new().await;
    let mut relays = Vec::new();
    for _ in 0..4 {
        relays.push(world.relay_with("concurrency: 8", ORDERED).await);
    }
    let sql = format!(
        "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
         SELECT '{TENANT}', 'change', 'entity-' || e, 'key-' || e || '-' || r, $1 || CASE WHEN (e + r) % 7 = 0 THEN '500,' ELSE '' END || 'slow:' || (e * r) % 9, '{{}}' \
         FROM generate_series(1, {ROWS}) AS r, generate_series(1, {ENTITIES}) AS e ORDER BY r, e"
    );
    sqlx::query(AssertSqlSafe(sql)).bind(world.receiver.url("")).execute(&world.pool).await.unwrap();
    world.all_ended().await;
    assert_eq!(
        world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await,
        i64::try_from(ENTITIES * ROWS).unwrap()
    );
    let ids: Vec<(i64, String)> =
        sqlx::query_as("SELECT id, idempotency_key FROM agent_outbox").fetch_all(&world.pool).await.unwrap();
    let ids: HashMap<String, i64> = ids.into_iter().map(|(id, key)| (key, id)).collect();
    let mut of_entity: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for request in world.receiver.ledger().requests() {
        let key = request.key.clone().unwrap();
        let entity = key.rsplit_once('-').unwrap().0.to_owned();
        of_entity.entry(entity).or_default().push((ids[&key], request));
    }
    assert_eq!(of_entity.len(), ENTITIES);
    let mut workers = HashSet::new();
    for (entity, requests) in &of_entity {
        for pair in requests.windows(2) {
            let ((before, first), (after, second)) = (&pair[0], &pair[1]);
            assert!(before <= after, "{entity}: row {after} was sent after row {before}");
            assert!(
                first.ended_at.is_some_and(|answered| answered <= second.at),
                "{entity}: {before} and {after} overlap"
            );
        }
        workers.insert(requests.len());
    }
    drop(relays);
}

#[tokio::test]
async fn two_hundred_rows_of_one_entity_follow_each_other_without_waiting_for_the_next_poll() {
    let world = World::new().await;
    let rows = 200_u32;
    for number in 0..rows {
        world.insert_of("one", &format!("row-{number:04}"), "201").await;
    }
    let other = world.insert_of("other", "other", "201").await;
    let began = Instant::now();
    let _relay = world.relay_with("pollInterval: 30s", ORDERED).await;
    assert_eq!(world.ended(other).await.status, "succeeded");
    let other_after = began.elapsed();
    world.all_ended().await;
    let took = began.elapsed();
    println!("{rows} rows of one entity took {took:?}; the other entity's row left after {other_after:?}");
    let arrivals: Vec<String> = world.arrivals().into_iter().filter(|key| key != "other").collect();
    assert!(arrivals.is_sorted(), "{arrivals:?}");
    assert_eq!(
        world.number("SELECT count(*) FROM agent_outbox WHERE attempts <> 1").await,
        0,
        "waiting uses no attempt"
    );
}

#[tokio::test]
async fn rows_that_can_still_move_block_and_dead_ones_by_policy() {
    let world = World::new().await;
    let cases = [
        ("pending", "status = 'pending', next_attempt_at = now() + interval '1 hour'", true, true),
        ("uncertain", "status = 'uncertain', next_attempt_at = now() + interval '1 hour'", true, true),
        ("parked", "status = 'uncertain', next_attempt_at = 'infinity', reason = 'timeout'", true, true),
        (
            "held",
            "status = 'in_flight', locked_until = now() + interval '1 hour', next_attempt_at = now() + interval '1 hour', claim_token = gen_random_uuid()",
            true,
            true,
        ),
        ("dead", "status = 'dead', reason = 'rejected'", true, false),
        ("cancelled", "status = 'cancelled'", false, false),
        ("superseded", "status = 'superseded'", false, false),
        ("succeeded", "status = 'succeeded'", false, false),
    ];
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    for (on_dead, column) in [(OnDead::Block, 0), (OnDead::Skip, 1)] {
        world.execute("DELETE FROM agent_outbox").await;
        for (name, set, ..) in cases {
            let first = world.insert_of(name, &format!("first-{name}"), "201").await;
            world.execute(&format!("UPDATE agent_outbox SET {set} WHERE id = {first}")).await;
            world.insert_of(name, &format!("second-{name}"), "201").await;
            world.insert_of(name, &format!("third-{name}"), "201").await;
        }
        // Another tenant's row of the same entity is another entity.
        world.insert_of("tenants", "mine", "hang").await;
        world.execute("UPDATE agent_outbox SET tenant_id = gen_random_uuid() WHERE idempotency_key = 'mine'").await;
        world.insert_of("tenants", "theirs", "201").await;
        let claimed: HashSet<String> = claim(&db, on_dead, 100).await.into_iter().map(|row| row.key).collect();
        for (name, _, block, skip) in cases {
            let blocks = [block, skip][column];
            assert_eq!(claimed.contains(&format!("second-{name}")), !blocks, "{name} under {on_dead:?}");
            assert!(!claimed.contains(&format!("third-{name}")), "{name}: the second is before it");
        }
        assert!(claimed.contains("mine") && claimed.contains("theirs"));
        let put_off = "SELECT count(*) FROM agent_outbox AS t WHERE status = 'pending' AND attempts = 0 AND reason LIKE 'waits for row %' \
                       AND next_attempt_at BETWEEN now() + interval '20 seconds' AND now() + interval '10 minutes' \
                       AND EXISTS (SELECT FROM agent_outbox AS b WHERE b.id = substring(t.reason FROM '[0-9]+')::bigint AND b.entity_id = t.entity_id AND b.id < t.id)";
        let blocked = cases.iter().filter(|case| [case.2, case.3][column]).count() + cases.len();
        assert_eq!(world.number(put_off).await, i64::try_from(blocked).unwrap(), "{on_dead:?}");
    }
}

#[tokio::test]
async fn whoever_ends_a_row_makes_the_next_one_of_its_entity_due_at_once() {
    let world = World::new().await;
    let _relay = world.relay_with("", ORDERED).await;
    let url = world.url.as_str();
    let parked = "SET status = 'uncertain', next_attempt_at = 'infinity', reason = 'timeout', unknown_attempts = 1";
    let dead = "SET status = 'dead', reason = 'rejected', completed_at = now()";
    let pending = "SET next_attempt_at = now() + interval '1 hour'";
    let cases: [(&str, &str, Act); 9] = [
        ("resolve-succeeded", parked, &|id| words(&format!("uncertain resolve {id} --as succeeded --note ok"))),
        ("resolve-retry", parked, &|id| words(&format!("uncertain resolve {id} --as retry --note ok"))),
        ("dismiss", dead, &|id| words(&format!("dead dismiss {id} --note ok"))),
        ("replay", dead, &|id| words(&format!("dead replay {id}"))),
        ("revise", dead, &|id| words(&format!("dead revise {id} --payload {{}} --key revised"))),
        ("cancel", pending, &|id| words(&format!("cancel {id}"))),
        ("supersede", pending, &|_| vec!["SELECT agent_outbox_supersede('first-supersede', 'heir', '{}')".to_owned()]),
        ("by-hand", pending, &|id| vec![format!("UPDATE agent_outbox SET status = 'cancelled' WHERE id = {id}")]),
        ("resolve-dead", parked, &|id| words(&format!("uncertain resolve {id} --as dead --note ok"))),
    ];
    for (name, set, act) in cases {
        // One transaction: no claim sees the row before it is where it shall be.
        world
            .execute(&format!(
                "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
                 VALUES ('{TENANT}', 'change', '{name}', 'first-{name}', '{}', '{{}}'); \
                 UPDATE agent_outbox {set} WHERE idempotency_key = 'first-{name}'",
                world.receiver.url("201")
            ))
            .await;
        let first = world.number(&format!("SELECT id FROM agent_outbox WHERE idempotency_key = 'first-{name}'")).await;
        let second = world.insert_of(name, &format!("second-{name}"), "201").await;
        world.waits(second, first).await;
        let began = Instant::now();
        let act = act(first);
        if act.len() == 1 {
            world.execute(&act[0]).await;
        } else {
            let act: Vec<&str> = act.iter().map(String::as_str).collect();
            let (code, _, error) = outbox(&act, Some(url));
            assert_eq!(code, 0, "{name}: {error}");
        }
        if name == "resolve-dead" {
            // Dead rows block here: the row is met again, and waits on.
            let row = world.row(second).await;
            assert_eq!((row.status.as_str(), row.attempts), ("pending", 0), "{row:?}");
            continue;
        }
        assert_eq!(world.ended(second).await.status, "succeeded", "{name}");
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{name}: {:?}; the next look by itself is 30 s away",
            began.elapsed()
        );
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_dead_row_is_skipped_or_blocks_and_a_replayed_one_waits_for_who_is_under_way() {
    let world = World::new().await;
    let relay = world.relay_with("", SKIPPING).await;
    let first = world.insert_of("e", "first", "422,201").await;
    let second = world.insert_of("e", "second", "gate:go:201").await;
    let third = world.insert_of("e", "third", "201").await;
    assert_eq!(world.ended(first).await.status, "dead");
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 1).await.unwrap();
    world.waits(third, second).await;
    let (code, out, error) = outbox(&["dead", "replay", &first.to_string()], Some(&world.url));
    assert_eq!(code, 0, "{error}");
    println!("{out}{error}");
    world.waits(first, second).await;
    world.receiver.ledger().open_gate("go");
    world.all_ended().await;
    assert_eq!(
        world.receiver.ledger().requests().into_iter().filter_map(|r| r.key).collect::<Vec<_>>(),
        ["first", "second", "first", "third"]
    );
    drop(relay);
}

#[tokio::test]
async fn a_row_that_commits_late_waits_for_the_one_that_was_sent_meanwhile() {
    let world = World::new().await;
    let mut late = world.pool.begin().await.unwrap();
    let insert = format!(
        "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) VALUES ('{TENANT}', 'o', 'e', 'late', '{}', '{{}}') RETURNING id",
        world.receiver.url("201")
    );
    let early_id: i64 = sqlx::query_scalar(AssertSqlSafe(insert)).fetch_one(&mut *late).await.unwrap();
    let second = world.insert_of("e", "second", "201").await;
    assert!(early_id < second);
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let claimed = claim(&db, OnDead::Block, 10).await;
    assert_eq!(claimed.iter().map(|row| row.id).collect::<Vec<_>>(), [second]);
    late.commit().await.unwrap();
    assert!(claim(&db, OnDead::Block, 10).await.is_empty(), "one at a time");
    assert_eq!(world.row(early_id).await.reason.unwrap(), format!("waits for row {second}"));
    // The worker dies: the earlier row goes first, and the later one's outcome is unknown.
    world.execute("UPDATE agent_outbox SET locked_until = now(), next_attempt_at = now()").await;
    let claimed = claim(&db, OnDead::Block, 10).await;
    assert_eq!(claimed.iter().map(|row| row.id).collect::<Vec<_>>(), [early_id]);
    let row = world.row(second).await;
    assert_eq!((row.status.as_str(), row.unknown_attempts, row.attempts), ("uncertain", 1, 1));
    assert_eq!(row.reason.unwrap(), format!("waits for row {early_id}"));
}
