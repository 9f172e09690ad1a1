//! What a relay takes: memory with large payloads, and next to nothing when idle.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use futures::StreamExt as _;
use sha2::{Digest, Sha256};
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::support::{PATIENCE, World};

/// How long the receiver thinks about a payload, so that requests pile up.
const THINKS: Duration = Duration::from_millis(300);

/// Whether the long forms are asked for.
fn full() -> bool {
    std::env::var_os("OUTBOX_TEST_FULL").is_some()
}

/// A receiver that hashes what it gets and keeps nothing of it: by key, hashes in the order of their coming.
#[derive(Clone, Default)]
struct Hashes(Arc<Mutex<HashMap<String, Vec<Vec<u8>>>>>);

impl Hashes {
    async fn serve(&self) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(Self::take).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }

    async fn take(State(hashes): State<Self>, headers: HeaderMap, body: Body) -> StatusCode {
        let mut hash = Sha256::new();
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let Ok(part) = part else { return StatusCode::BAD_REQUEST };
            hash.update(&part);
        }
        tokio::time::sleep(THINKS).await;
        let hash = hash.finalize().to_vec();
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        hashes.0.lock().unwrap().entry(key).or_default().push(hash);
        StatusCode::CREATED
    }

    /// Every row's payload came, once, byte for byte.
    async fn check(&self, world: &World, rows: usize) {
        let wanted = sqlx::query("SELECT idempotency_key, sha256(convert_to(payload::text, 'UTF8')) AS hash, attempts FROM agent_outbox WHERE status = 'succeeded'")
            .fetch_all(&world.pool)
            .await
            .unwrap();
        assert_eq!(wanted.len(), rows);
        let seen = self.0.lock().unwrap();
        for row in wanted {
            assert_eq!(seen[&row.get::<String, _>("idempotency_key")], [row.get::<Vec<u8>, _>("hash")]);
            assert_eq!(row.get::<i32, _>("attempts"), 1);
        }
    }
}

/// Inserts rows whose payloads have about this many bytes.
async fn insert(world: &World, name: &str, rows: usize, bytes: usize, endpoint: &str) {
    world
        .execute(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             SELECT gen_random_uuid(), 'o', n::text, '{name}-' || n, '{endpoint}', \
                    jsonb_build_object('n', n, 'fill', repeat(md5(n::text), {})) FROM generate_series(1, {rows}) n",
            bytes / 32
        ))
        .await;
}

/// Waits longer than for other things: gigabytes pass, in a build without optimisation.
async fn delivered(world: &World, rows: usize) {
    let deadline = Instant::now() + 5 * PATIENCE;
    while world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await
        < i64::try_from(rows).unwrap()
    {
        assert!(Instant::now() < deadline, "rows are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_hundred_rows_of_20_mb_stay_under_256_mib_with_the_default_budget() {
    // Thirty would take 600 MB at once as well.
    let rows = if full() { 100 } else { 30 };
    let world = World::new().await;
    let hashes = Hashes::default();
    let address = hashes.serve().await;
    insert(&world, "large", rows, 20_000_000, &format!("http://{address}/")).await;
    let started = Instant::now();
    let relay = world
        .relay_with(
            "concurrency: 64\nleaseDuration: 60s",
            "request: {maxBodyBytes: 25000000}\ntimeouts: {connect: 1s, total: 30s}",
        )
        .await;
    delivered(&world, rows).await;
    hashes.check(&world, rows).await;
    let most = relay.memory("VmHWM");
    println!("{rows} rows of 20 MB: {} MiB at most, {:.1} s", most >> 20, started.elapsed().as_secs_f64());
    assert!(most < 256 << 20, "{} MiB", most >> 20);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, 0, "waiting is no failure");
}

#[tokio::test]
async fn small_rows_do_not_wait_behind_large_ones_nor_large_ones_for_ever() {
    let world = World::new().await;
    let hashes = Hashes::default();
    let address = hashes.serve().await;
    let endpoint = format!("http://{address}/");
    // The budget holds one of them at a time, and all are due before the small ones.
    insert(&world, "large", 30, 2_000_000, &endpoint).await;
    insert(&world, "small", 200, 100, &endpoint).await;
    let _relay = world
        .relay_with(
            "concurrency: 16\nmemoryBudget: 3Mi\nleaseDuration: 60s",
            "request: {maxBodyBytes: 2500000}\ntimeouts: {connect: 1s, total: 30s}",
        )
        .await;
    world
        .wait_for(
            "all small rows",
            "SELECT count(*) = 200 FROM agent_outbox WHERE status = 'succeeded' AND idempotency_key LIKE 'small-%'",
        )
        .await;
    let large = world
        .number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded' AND idempotency_key LIKE 'large-%'")
        .await;
    assert!(large < 30, "the small ones came last");
    // A stream of small rows meanwhile.
    while world
        .number("SELECT count(*) FROM agent_outbox WHERE status <> 'succeeded' AND idempotency_key LIKE 'large-%'")
        .await
        > 0
    {
        let id = world.insert(&format!("later-{}", uuid::Uuid::new_v4()), &endpoint, "{}").await;
        assert_eq!(world.ended(id).await.status, "succeeded");
    }
    world.all_ended().await;
    let rows = usize::try_from(world.number("SELECT count(*) FROM agent_outbox").await).unwrap();
    hashes.check(&world, rows).await;
}

#[tokio::test]
async fn a_large_payload_is_judged_as_a_small_one_is() {
    let world = World::new().await;
    let endpoint = world.receiver.url("201");
    let too_large = world.insert("too-large", &endpoint, &format!("\"{}\"", "x".repeat(1_100_000))).await;
    let fits = world.insert("fits", &endpoint, &format!("\"{}\"", "x".repeat(1_000_000))).await;
    let edited =
        world.insert("edited", &world.receiver.url("gate:edit:500,201"), &format!("\"{}\"", "x".repeat(500_000))).await;
    let relay = world.relay().await;
    let row = world.ended(too_large).await;
    assert_eq!(row.end(), ("dead", Some("invalid")));
    assert_eq!(row.last_error.as_deref(), Some("the payload has 1100002 bytes and request.maxBodyBytes is 1048576"));
    assert_eq!(world.ended(fits).await.status, "succeeded");
    // RC-32: edited between two attempts.
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 1).await.unwrap();
    world
        .execute(&format!("UPDATE agent_outbox SET payload = '\"{}\"' WHERE id = {edited}", "y".repeat(500_000)))
        .await;
    world.receiver.ledger().open_gate("edit");
    let row = world.ended(edited).await;
    assert_eq!(row.end(), ("dead", Some("invalid")), "{row:?}");
    assert_eq!(world.receiver.ledger().requests_of("edited").len(), 1);
    assert!(world.receiver.ledger().requests_of("too-large").is_empty());
    assert_eq!(relay.stop().await.code(), Some(0));
}

#[tokio::test]
async fn an_idle_relay_takes_little_memory_and_asks_little() {
    let world = World::new().await;
    let relay = world.relay_with("pollInterval: 1s", "").await;
    let id = world.insert_script("warm", "201").await;
    world.ended(id).await;
    // Counted from another database, so that the counting is not counted.
    let mut elsewhere = url::Url::parse(&world.url).unwrap();
    let database = elsewhere.path().trim_start_matches('/').to_owned();
    elsewhere.set_path("/postgres");
    let mut counter = PgConnection::connect(elsewhere.as_str()).await.unwrap();
    let mut transactions = async || -> i64 {
        sqlx::query_scalar("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1")
            .bind(&database)
            .fetch_one(&mut counter)
            .await
            .unwrap()
    };
    world.pool.close().await;
    let (before, started) = (transactions().await, Instant::now());
    let watched = Duration::from_secs(if full() { 60 } else { 12 });
    tokio::time::sleep(watched).await;
    let a_second = f64::from(i32::try_from(transactions().await - before).unwrap()) / started.elapsed().as_secs_f64();
    let resident = relay.memory("VmRSS");
    let private = relay.memory("RssAnon");
    println!(
        "idle: {} MiB resident, {} MiB of it private, {a_second:.2} transactions a second",
        resident >> 20,
        private >> 20
    );
    assert!(resident < 64 << 20, "{} MiB", resident >> 20);
    // A poll a second, and a report every ten.
    assert!(a_second <= 2.0, "{a_second}");
}

#[tokio::test]
async fn a_payload_that_no_text_can_hold_stops_no_other_row() {
    let world = World::new().await;
    let endpoint = world.receiver.url("201");
    // A few bytes a number where it is stored, 128 KiB as text: more than 1 GiB in all, which the server refuses to write.
    world
        .execute(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             SELECT gen_random_uuid(), 'o', 'huge', 'huge', '{endpoint}', ('[' || string_agg('1e131071', ',') || ']')::jsonb \
             FROM generate_series(1, 9000)"
        ))
        .await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE pg_column_size(payload) < 32768").await, 1);
    let other = world.insert("other", &endpoint, "{}").await;
    let _relay = world.relay().await;
    assert_eq!(world.ended(other).await.status, "succeeded");
    world
        .wait_for("the huge one is dead", "SELECT status = 'dead' FROM agent_outbox WHERE idempotency_key = 'huge'")
        .await;
    let said: (String, String) =
        sqlx::query_as("SELECT reason, last_error FROM agent_outbox WHERE idempotency_key = 'huge'")
            .fetch_one(&world.pool)
            .await
            .unwrap();
    assert_eq!(said.0, "invalid");
    let (code, shown, _) = crate::support::outbox(&["dead", "list"], Some(&world.url));
    assert!(code == 0 && shown.contains("huge"), "{shown}");
    assert!(said.1.starts_with("the database cannot write the payload as text (SQLSTATE "), "{}", said.1);
}

#[tokio::test]
async fn odd_instants_of_one_row_stop_no_other_row() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for (number, odd) in [
        "created_at = 'infinity'",
        "created_at = '-infinity'",
        "next_attempt_at = '-infinity'",
        "next_attempt_at = '4713-01-01 BC', created_at = '294276-12-31', first_dispatch_at = '-infinity'",
        "last_dispatch_at = 'infinity', retry_since = '294276-12-31', expires_at = 'infinity'",
    ]
    .into_iter()
    .enumerate()
    {
        let id = world.insert_script(&format!("odd-{number}"), "201").await;
        world.execute(&format!("UPDATE agent_outbox SET {odd} WHERE id = {id}")).await;
        ids.push(id);
    }
    for command in [&["status"][..], &["status", "-o", "json"], &["dead", "list"]] {
        let (code, _, said) = crate::support::outbox(command, Some(&world.url));
        assert_eq!(code, 0, "{command:?}: {said}");
    }
    let _relay = world.relay().await;
    ids.push(world.insert_script("even", "201").await);
    for id in ids {
        let row = world.ended(id).await;
        assert!(row.status == "succeeded" || row.reason.as_deref() == Some("window_expired"), "{row:?}");
    }
}
