//! Databases that fail over, fall silent, end their sessions, or sit behind a pooler.

use std::time::Instant;

use outbox_operator::demo::{PostgresOptions, ThrowawayPostgres};

use crate::{
    pooler::Pooler,
    support::{PATIENCE, Relay, World},
};

/// A world on a server of its own, to be stopped and frozen.
async fn alone() -> (World, ThrowawayPostgres) {
    let server = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    let url = server.create_database("outbox").await.unwrap();
    let world = World::on(url).await;
    world.migrate().await;
    (world, server)
}

/// Waits until the relay says that it cannot claim.
async fn noticed(relay: &Relay) {
    let deadline = Instant::now() + PATIENCE;
    while relay.get("/readyz").await.is_none_or(|(status, _)| status == 200) {
        assert!(Instant::now() < deadline, "the relay never noticed: {:?}", relay.log());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(relay.get("/healthz").await.unwrap().0, 200, "liveness does not depend on the database");
}

fn warnings(relay: &Relay) -> usize {
    relay.log().iter().filter(|line| line.contains("WARN")).count()
}

#[tokio::test]
async fn rc_21_a_stopped_database_costs_no_attempt_and_delivery_resumes_by_itself() {
    let (world, mut server) = alone().await;
    let relay = world.relay().await;
    let before = world.insert_script("before", "201").await;
    assert_eq!(world.ended(before).await.status, "succeeded");
    server.stop().await.unwrap();
    noticed(&relay).await;
    server.restart().await.unwrap();
    relay.ready().await;
    let world = world.reconnected().await;
    let after = world.insert_script("after", "201").await;
    let row = world.ended(after).await;
    assert_eq!((row.status.as_str(), row.attempts), ("succeeded", 1));
    assert!(warnings(&relay) <= 4, "{:?}", relay.log());
    assert_eq!(relay.stop().await.code(), Some(0));
}

#[tokio::test]
async fn rc_21_a_silent_database_is_given_up_and_reached_again() {
    let (world, mut server) = alone().await;
    let relay = world.relay().await;
    server.freeze().unwrap();
    // Sessions that stand go on; new ones are accepted and never answered.
    world
        .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox relay'")
        .await;
    noticed(&relay).await;
    server.thaw().unwrap();
    relay.ready().await;
    let world = world.reconnected().await;
    let id = world.insert_script("after", "201").await;
    assert_eq!(world.ended(id).await.attempts, 1);
}

#[tokio::test]
async fn rc_21_a_read_only_database_costs_no_attempt() {
    let (world, _server) = alone().await;
    let relay = world.relay().await;
    let away = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    world.execute(&format!("ALTER DATABASE outbox SET default_transaction_read_only = on; {away}")).await;
    let world = world.reconnected().await;
    world.execute("BEGIN READ WRITE; INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) VALUES (gen_random_uuid(), 'o', 'e', 'k', 'http://127.0.0.1:1/', '{}'); COMMIT").await;
    noticed(&relay).await;
    assert_eq!(world.number("SELECT attempts::bigint FROM agent_outbox").await, 0);
    let good = world.receiver.url("201");
    world.execute(&format!("BEGIN READ WRITE; UPDATE agent_outbox SET endpoint = '{good}'; ALTER DATABASE outbox RESET default_transaction_read_only; COMMIT; {away}")).await;
    relay.ready().await;
    let world = world.reconnected().await;
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded' AND attempts = 1").await, 1);
    assert!(warnings(&relay) <= 4, "{:?}", relay.log());
}

#[tokio::test]
async fn rc_21_terminated_sessions_lose_and_double_nothing() {
    let world = World::new().await;
    for number in 0..200 {
        world.insert_script(&format!("row-{number}"), "slow:20").await;
    }
    let _relay = world.relay_with("concurrency: 8", "").await;
    for share in [20, 60, 100, 140] {
        world
            .wait_for("progress", &format!("SELECT count(*) >= {share} FROM agent_outbox WHERE status = 'succeeded'"))
            .await;
        world.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox relay'").await;
    }
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await, 200);
    let counts = world.receiver.ledger().counts();
    assert_eq!((counts.effects, counts.duplicate_effects), (200, 0));
}

#[tokio::test]
async fn rc_45_no_session_is_idle_in_a_transaction_while_requests_run_and_connections_are_few() {
    let world = World::new().await;
    for number in 0..50 {
        world.insert_script(&format!("row-{number}"), "gate:go:201").await;
    }
    let _relay = world.relay_with("concurrency: 64\nleaseDuration: 60s", "timeouts: {connect: 1s, total: 30s}").await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 50).await.unwrap();
    world.wait_for("the results of the claim are in", "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox relay' AND state = 'idle in transaction'").await;
    for _ in 0..50 {
        let sessions = world.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox relay'").await;
        assert!(sessions <= 3, "{sessions}");
        let stuck = world.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox relay' AND state LIKE 'idle in transaction%' AND state_change < now() - interval '1 second'").await;
        assert_eq!(stuck, 0);
    }
    world.receiver.ledger().open_gate("go");
    world.all_ended().await;
}

#[tokio::test]
async fn rc_14_two_relays_deliver_through_pgbouncer_in_transaction_mode() {
    let world = World::new().await;
    let pooler = Pooler::start(&world, 2).await;
    for number in 0..500 {
        world.insert_script(&format!("row-{number}"), if number % 5 == 0 { "500,201" } else { "201" }).await;
    }
    let file = world.documents("migrations: Manual", "");
    let relays = [Relay::start(&pooler.url, &file, &[]), Relay::start(&pooler.url, &file, &[])];
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await, 500);
    assert_eq!(world.receiver.ledger().counts().duplicate_effects, 0);
    for relay in relays {
        assert!(!relay.log().iter().any(|line| line.contains("WARN") || line.contains("ERROR")), "{:?}", relay.log());
        assert_eq!(relay.stop().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_result_that_the_database_refuses_is_written_with_less_and_at_last_lets_the_row_go() {
    let world = World::new().await;
    world
        .execute(
            "ALTER TABLE agent_outbox ADD CONSTRAINT short CHECK (char_length(last_error) <= 5); \
             ALTER TABLE agent_outbox ADD CONSTRAINT never CHECK (idempotency_key <> 'never' OR status <> 'succeeded')",
        )
        .await;
    let relay = world.relay_with("concurrency: 2", "").await;
    let short = world.insert_script("short", "400").await;
    let row = world.ended(short).await;
    assert_eq!((row.status.as_str(), row.http_status, row.last_error), ("dead", Some(400), None));
    // The other row's write is not held up, and the refused one comes back when its lease is over.
    let never = world.insert_script("never", "201").await;
    let next = world.insert_script("next", "201").await;
    assert_eq!(world.ended(next).await.status, "succeeded");
    world.row_when(never, "claimed again", |row| row.attempts >= 2).await;
    assert!(relay.log().iter().any(|line| line.contains("the database refuses the row's result")), "{:?}", relay.log());
    world.execute("ALTER TABLE agent_outbox DROP CONSTRAINT never").await;
    assert_eq!(world.ended(never).await.status, "succeeded");
    assert_eq!(world.receiver.ledger().counts().effects, 2);
}
