//! Dead rows that are sent again.

use crate::{
    help::{Made, history, row_in, run, text},
    support::World,
};

#[tokio::test]
async fn rc_35_only_the_dead_move_and_each_other_row_is_refused_with_its_state() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for (number, status) in ["succeeded", "in_flight", "pending", "dead", "dead", "dead"].into_iter().enumerate() {
        ids.push(row_in(&world, status, &format!("rc-35-{number}")).await);
    }
    let before = text(&world, ids[1], "agent_outbox").await;
    let named: Vec<String> = ids.iter().map(i64::to_string).collect();
    let mut args = vec!["dead", "replay", "--note", "receiver mended", "--actor", "eve"];
    args.extend(named.iter().map(String::as_str));
    args.push("987654");

    let answer = run(&world, &args);
    assert_eq!(answer.code, 3, "{answer:?}");
    assert_eq!(
        answer.refusals(),
        [
            format!("outbox: row {} is succeeded: only dead rows move", ids[0]),
            format!("outbox: row {} is in_flight: only dead rows move", ids[1]),
            format!("outbox: row {} is pending: only dead rows move", ids[2]),
            "outbox: row 987654: there is no such row".to_owned(),
        ]
    );
    assert!(answer.out.starts_with("3 rows moved to pending; keys and payloads stay"), "{answer:?}");
    assert_eq!(text(&world, ids[1], "agent_outbox").await, before, "a refused row is not touched");
    for id in &ids[3..] {
        let row = world.row(*id).await;
        assert_eq!((row.status.as_str(), row.attempts, row.waits, row.reason), ("pending", 0, 0, None));
        assert!(row.due_in.unwrap() <= 0.0);
        assert_eq!(
            text(&world, *id, "retry_since IS NULL AND completed_at IS NULL AND first_dispatch_at IS NOT NULL")
                .await
                .as_deref(),
            Some("true")
        );
        let record = &history(&world, *id).await[0];
        assert_eq!((record["act"].as_str(), record["actor"].as_str()), (Some("replay"), Some("eve")));
        assert_eq!(record["note"].as_str(), Some("receiver mended"));
        assert_eq!((record["status_before"].as_str(), record["outcome"].as_str()), (Some("dead"), Some("pending")));
        assert_eq!(
            (record["attempt"].as_i64(), record["reason"].as_str(), record["http_status"].as_i64()),
            (Some(3), Some("rejected"), Some(422))
        );
        assert_eq!(record["forced"].as_bool(), Some(false));
    }
    assert_eq!(history(&world, ids[2]).await.len(), 0);
    // A second run finds nothing dead: every row is refused, nothing moves.
    let again = run(&world, &args);
    assert_eq!((again.code, again.refusals().len()), (3, 7), "{again:?}");
    assert!(again.out.starts_with("no row moved"), "{again:?}");
}

#[tokio::test]
async fn rc_32_a_replayed_row_is_sent_with_the_same_key_and_body() {
    let world = World::new().await;
    let id =
        world.insert("rc-32", &world.receiver.url("422,201"), r#"{"n": 12345678901234567890123, "t": 1.10}"#).await;
    let _relay = world.relay().await;
    assert_eq!(world.ended(id).await.end(), ("dead", Some("rejected")));
    let answer = run(&world, &["dead", "replay", &id.to_string()]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let row = world.ended(id).await;
    assert_eq!((row.status.as_str(), row.attempts), ("succeeded", 1));
    let requests = world.receiver.ledger().requests_of("rc-32");
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].body, requests[1].body);
    assert_eq!(requests[1].body.as_deref(), Some(r#"{"n": 12345678901234567890123, "t": 1.10}"#));
}

/// Dead rows with every doubt: first dispatched two hours ago.
async fn doubts(world: &World) -> [i64; 4] {
    let dead = |key: &'static str, set: &'static str| async move {
        Made { status: "dead", set, ..Made::default() }.insert(world, key).await
    };
    [
        dead("no-doubt", "").await,
        dead("unknown", "unknown_attempts = 1").await,
        dead("stored", "answered_5xx = true").await,
        dead("fresh", "unknown_attempts = 2, first_dispatch_at = now() - interval '10 minutes'").await,
    ]
}

#[tokio::test]
async fn rc_32_past_the_key_window_a_row_that_may_have_been_executed_is_refused() {
    let world = World::new().await;
    let [sure, unknown, stored, fresh] = doubts(&world).await;
    let answer = run(&world, &["dead", "replay", "--all", "--key-window", "1h"]);
    assert_eq!(answer.code, 3, "{answer:?}");
    let refusal =
        |id| format!("outbox: row {id} may have been executed, and its key window is over; see --accept-duplicate");
    assert_eq!(answer.refusals(), [refusal(unknown), refusal(stored)]);
    for (id, status) in [(sure, "pending"), (unknown, "dead"), (stored, "dead"), (fresh, "pending")] {
        assert_eq!(world.row(id).await.status, status, "row {id}");
    }
    assert_eq!(world.row(fresh).await.unknown_attempts, 2, "never reset");

    // Accepted, it moves; the receiver has forgotten the key, so its window begins anew. That is on record.
    let accepted = run(&world, &["dead", "replay", "--all", "--key-window", "1h", "--accept-duplicate"]);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    for id in [unknown, stored] {
        assert_eq!(
            text(&world, id, "status || ' ' || (first_dispatch_at IS NULL)").await.as_deref(),
            Some("pending true")
        );
        assert_eq!(history(&world, id).await[0]["forced"].as_bool(), Some(true));
    }
    assert_eq!(world.row(unknown).await.unknown_attempts, 1);
}

#[tokio::test]
async fn without_a_window_nothing_is_refused_and_the_first_dispatch_stays() {
    let world = World::new().await;
    let ids = doubts(&world).await;
    assert_eq!(run(&world, &["dead", "replay", "--all"]).code, 0);
    for id in ids {
        assert_eq!(
            text(&world, id, "status || ' ' || (first_dispatch_at IS NULL)").await.as_deref(),
            Some("pending false")
        );
    }
}

#[tokio::test]
async fn the_window_is_read_from_the_policy_and_a_receiver_that_forgets_at_once_has_none() {
    for (policy, refused) in [
        ("idempotency: {window: 1h}", 2),
        ("idempotency: {window: 5m}", 3),
        ("idempotency: {receiver: None}", 3),
        ("idempotency: {receiver: Enforced}", 0),
    ] {
        let world = World::new().await;
        doubts(&world).await;
        let file = world.documents("", policy);
        let answer = run(&world, &["dead", "replay", "--all", "--dry-run", "-f", file.to_str().unwrap()]);
        assert_eq!(
            (answer.refusals().len(), answer.code),
            (refused, if refused > 0 { 3 } else { 0 }),
            "{policy}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn a_row_whose_duplicate_was_accepted_leaves_though_its_window_is_over() {
    let world = World::new().await;
    let endpoint = world.receiver.url("201");
    let made = Made { status: "dead", endpoint: &endpoint, set: "unknown_attempts = 1, reason = 'rejected'" };
    let id = made.insert(&world, "accepted").await;
    let _relay = world.relay_with("", "idempotency: {window: 1h}").await;
    let answer = run(&world, &["dead", "replay", &id.to_string(), "--accept-duplicate"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(world.ended(id).await.status, "succeeded");
}
