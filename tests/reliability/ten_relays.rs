//! Ten relay processes on one table, a pooler and a database that go away under them, and a receiver that answers as it
//! pleases. At the end every row has ended and everything adds up.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use outbox_operator::{
    demo::{PostgresOptions, ThrowawayPostgres},
    sandbox::script_url,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::PgPool;

use crate::{
    census::{self, Census, End, Intent},
    pooler::Pooler,
    report,
    support::{Relay, World},
};

const RELAYS: usize = 10;
/// One request in so many goes wrong.
const FAULTS_IN: u32 = 4;
/// What goes wrong, each as often: with and without an effect behind it.
const FAULTS: [&str; 13] = [
    "409:1",
    "409",
    "429:1",
    "429",
    "500",
    "hang",
    "reset",
    "garbage",
    "close",
    "done-500",
    "done-reset",
    "lost",
    "cut",
];

/// A row's script: faults for as long as the dice say so, then an end.
fn script(dice: &mut StdRng) -> String {
    let mut steps: Vec<&str> = Vec::new();
    while steps.len() < 6 && dice.random_ratio(1, FAULTS_IN) {
        steps.push(FAULTS[dice.random_range(0..FAULTS.len())]);
    }
    steps.push(if dice.random_ratio(1, 50) { "422" } else { "200" });
    steps.join(",")
}

/// Waits until so many rows have ended.
async fn ended(pool: &PgPool, rows: usize, within: Duration) {
    let deadline = Instant::now() + within;
    let sql = "SELECT count(*) FROM agent_outbox WHERE status IN ('succeeded', 'dead') \
               OR (status = 'uncertain' AND next_attempt_at = 'infinity')";
    loop {
        let ended: i64 = sqlx::query_scalar(sql).persistent(false).fetch_one(pool).await.unwrap();
        if usize::try_from(ended).unwrap() >= rows {
            return;
        }
        assert!(Instant::now() < deadline, "{ended} of {rows} rows ended");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_relays_end_every_row_once_while_database_and_receiver_misbehave() {
    let _turn = report::turn().await;
    let (count, destinations, away, patience) = if report::full() {
        (20_000, 40, Duration::from_secs(20), Duration::from_secs(1500))
    } else {
        (1_500, 12, Duration::from_secs(5), Duration::from_secs(180))
    };
    let seed = std::env::var("OUTBOX_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    report::print(&format!("\nTen relays, {count} rows: seed {seed} (again with OUTBOX_TEST_SEED={seed})"));
    let mut dice = StdRng::seed_from_u64(seed);

    // A crash of the server loses nothing that was committed.
    let options = PostgresOptions { synchronous_commit: true, ..PostgresOptions::fast() };
    let mut server = ThrowawayPostgres::start(options).await.unwrap();
    let mut world = World::on(server.create_database("outbox").await.unwrap()).await;
    world.migrate().await;
    for _ in 1..destinations {
        world.receiver.listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    }
    let addresses = world.receiver.addresses().to_vec();
    let intents: Vec<Intent> = (0..count)
        .map(|number| Intent {
            key: format!("row-{number}"),
            endpoint: script_url(addresses[number % addresses.len()], &script(&mut dice)),
            payload: census::payload(number),
            end: End::Any,
        })
        .collect();
    census::insert(&world.pool, &intents).await;
    let inserted = census::rows(&world.pool).await;

    let pooler = Pooler::start(&world, 10).await;
    let file = world.documents(
        "migrations: Manual\nconcurrency: 16\nleaseDuration: 3s",
        "timeouts: {connect: 500ms, total: 1s}\nretry: {base: 50ms, cap: 2s, maxAttempts: 14}\n\
         destination: {hold: {afterFailures: 5, base: 100ms, cap: 1s}}",
    );
    let started = Instant::now();
    let (file, url) = (&file, &pooler.url);
    let relays: Vec<Relay> = (0..RELAYS).map(|_| Relay::start(url, file, &[])).collect();

    ended(&world.pool, count / 5, patience).await;
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    let world = world.reconnected().await;

    ended(&world.pool, count * 2 / 5, patience).await;
    world.execute("ALTER SYSTEM SET default_transaction_read_only = on").await;
    world.execute("SELECT pg_reload_conf()").await;
    world.wait_for("the database is read-only", "SELECT current_setting('transaction_read_only') = 'on'").await;
    let refused = Instant::now();
    while refused.elapsed() < away {
        world.wait_for("time passes", "SELECT pg_sleep(0.5) IS NOT NULL").await;
    }
    world.execute("ALTER SYSTEM RESET default_transaction_read_only").await;
    world.execute("SELECT pg_reload_conf()").await;

    ended(&world.pool, count * 7 / 10, patience).await;
    server.stop().await.unwrap();
    server.restart().await.unwrap();
    let world = world.reconnected().await;

    ended(&world.pool, count, patience).await;
    let took = started.elapsed();
    let mut lease_lost = 0;
    for relay in &relays {
        let (_, metrics) = relay.get("/metrics").await.unwrap();
        let lost = metrics.lines().find_map(|line| line.strip_prefix("outbox_lease_lost_total "));
        lease_lost += lost.and_then(|lost| lost.parse::<u64>().ok()).unwrap_or_default();
    }
    for relay in relays {
        assert_eq!(relay.stop().await.code(), Some(0));
    }

    let after = census::rows(&world.pool).await;
    let census = Census::take(&intents, &inserted, &after, &world.receiver);
    let counts = world.receiver.ledger().counts();
    let unknown = after.values().filter(|row| row.unknown_attempts > 0).count();
    report::print(&format!(
        "{count} rows by {RELAYS} relays in {:.0} s: {}\n{} requests to {destinations} destinations, {} of them repeats, {} effects, \
         {unknown} rows with an attempt whose outcome was unknown, {lease_lost} results dropped since their lease was lost\n\
         lost {}, effects beyond one per key {}, keys or bodies changed {}",
        took.as_secs_f64(),
        census.ends(),
        census.requests,
        counts.repeats,
        census.effects,
        census.lost.len(),
        census.doubled.len(),
        census.changed.len() + usize::try_from(counts.changed_bodies).unwrap(),
    ));
    assert_eq!((counts.duplicate_effects, counts.changed_bodies, counts.keyless), (0, 0, 0));
    census.assert_whole(&format!("seed {seed}"));
}
