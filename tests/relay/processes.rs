//! Processes that die or are told to stop, with requests on the wire.

use std::time::Duration;

use crate::support::{PATIENCE, World};

#[tokio::test]
async fn a_relay_killed_before_it_read_the_answer_repeats_the_same_request_once() {
    let world = World::new().await;
    // The effect is made and the answer never sent; a repeat gets the stored answer.
    let lost = world.insert_script("lost", "lost").await;
    // Nothing is made at all; a repeat makes the effect.
    let never = world.insert_script("never", "hang,201").await;
    let first = world.relay().await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 2).await.unwrap();
    first.signal("KILL");
    first.wait(PATIENCE).await;
    for id in [lost, never] {
        assert_eq!(world.row(id).await.status, "in_flight");
    }
    let _second = world.relay().await;
    for (id, key) in [(lost, "lost"), (never, "never")] {
        let row = world.ended(id).await;
        assert_eq!((row.status.as_str(), row.attempts, row.unknown_attempts), ("succeeded", 2, 1), "{key}");
        assert!(row.downstream_id.is_some());
        let requests = world.receiver.ledger().requests_of(key);
        assert_eq!(requests.len(), 2, "{key}");
        assert_eq!(requests[0].body, requests[1].body);
        assert_eq!(requests[0].key, requests[1].key);
        assert_eq!(world.receiver.ledger().key(key).unwrap().effects, 1);
    }
}

#[tokio::test]
async fn a_killed_relay_of_a_receiver_that_does_not_deduplicate_parks_its_rows() {
    let world = World::new().await;
    let id = world.insert_script("once", "lost").await;
    let none = "idempotency: {receiver: None}";
    let first = world.relay_with("", none).await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 1).await.unwrap();
    first.signal("KILL");
    first.wait(PATIENCE).await;
    let _second = world.relay_with("", none).await;
    let row = world.ended(id).await;
    assert_eq!((row.end(), row.parked, row.unknown_attempts), (("uncertain", Some("lease_expired")), true, 1));
    assert_eq!(world.receiver.ledger().requests_of("once").len(), 1);
}

#[tokio::test]
async fn rc_12_a_row_that_kills_its_worker_ends_parked() {
    let world = World::new().await;
    let poison = world.insert_script("poison", "201").await;
    // Each lease that ran out is what a worker that died leaves behind.
    world.execute("UPDATE agent_outbox SET status = 'in_flight', attempts = 3, unknown_attempts = 2, claim_token = gen_random_uuid(), next_attempt_at = now()").await;
    let other = world.insert_script("other", "201").await;
    let _relay = world.relay_with("", "retry: {base: 50ms, cap: 100ms, maxAttempts: 3}").await;
    assert_eq!(world.ended(other).await.status, "succeeded");
    let row = world.ended(poison).await;
    assert_eq!(
        (row.end(), row.parked, row.attempts, row.unknown_attempts),
        (("uncertain", Some("exhausted")), true, 3, 3)
    );
    assert!(world.receiver.ledger().requests_of("poison").is_empty());
}

#[tokio::test]
async fn rc_23_sigterm_under_load_sends_nothing_twice_and_gives_unbegun_rows_back() {
    let world = World::new().await;
    for number in 0..50 {
        world.insert_script(&format!("load-{number}"), "gate:go:201").await;
    }
    let relay = world
        .relay_with("concurrency: 5\nclaimBatch: 50\nleaseDuration: 60s", "timeouts: {connect: 1s, total: 30s}")
        .await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 5).await.unwrap();
    relay.signal("TERM");
    // The unbegun go back at once, with their attempts, while the begun are still on the wire.
    world.wait_for("45 rows are given back", "SELECT count(*) = 45 FROM agent_outbox WHERE status = 'pending' AND attempts = 0 AND claim_token IS NULL AND first_dispatch_at IS NULL").await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'in_flight'").await, 5);
    world.receiver.ledger().open_gate("go");
    assert_eq!(relay.wait(Duration::from_secs(30)).await.code(), Some(0));
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded' AND attempts = 1").await, 5);
    let counts = world.receiver.ledger().counts();
    assert_eq!((counts.requests, counts.repeats), (5, 0));
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_workers").await, 0);

    let _next = world.relay().await;
    world.all_ended().await;
    let counts = world.receiver.ledger().counts();
    assert_eq!((counts.requests, counts.effects, counts.repeats), (50, 50, 0));
}

#[tokio::test]
async fn rc_02_rows_that_wait_for_a_slot_keep_their_lease() {
    let world = World::new().await;
    for number in 0..20 {
        world.insert_script(&format!("slow-{number}"), "slow:400").await;
    }
    // Twenty rows of 0.4 s, one at a time, under a lease of 3 s: most wait longer than their first lease.
    let policy = "timeouts: {connect: 500ms, total: 1s}";
    let _first = world.relay_with("concurrency: 1\nclaimBatch: 20\nleaseDuration: 3s", policy).await;
    let _second = world.relay_with("concurrency: 1\nclaimBatch: 20\nleaseDuration: 3s", policy).await;
    world.all_ended().await;
    let counts = world.receiver.ledger().counts();
    assert_eq!((counts.requests, counts.effects), (20, 20));
    assert_eq!(
        world
            .number(
                "SELECT count(*) FROM agent_outbox WHERE status = 'succeeded' AND attempts = 1 AND unknown_attempts = 0"
            )
            .await,
        20
    );
}

#[tokio::test]
async fn rc_11_a_result_is_written_again_and_the_request_is_not() {
    let world = World::new().await;
    let id = world.insert_script("recorded", "gate:answer:201").await;
    let relay = world.relay().await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 1).await.unwrap();
    // Somebody locks the row while the answer comes, and the relay's connections are terminated on top.
    let mut lock = world.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM agent_outbox WHERE id = $1 FOR UPDATE").bind(id).execute(&mut *lock).await.unwrap();
    world.receiver.ledger().open_gate("answer");
    world.wait_for("the settle waits for the lock", "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'outbox relay' AND wait_event_type = 'Lock'").await;
    world.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox relay' AND datname = current_database()").await;
    lock.commit().await.unwrap();
    let row = world.ended(id).await;
    assert_eq!((row.status.as_str(), row.attempts, row.unknown_attempts), ("succeeded", 1, 0));
    assert_eq!(world.receiver.ledger().counts().requests, 1);
    assert_eq!(relay.stop().await.code(), Some(0));
}
