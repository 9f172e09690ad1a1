//! Rows whose outcome a person has found out.

use crate::{
    help::{Made, history, row_in, run, text},
    support::World,
};

#[tokio::test]
async fn a_parked_row_is_resolved_in_three_ways_each_on_record() {
    let world = World::new().await;
    let ids = [
        row_in(&world, "uncertain", "s").await,
        row_in(&world, "uncertain", "r").await,
        row_in(&world, "uncertain", "d").await,
    ];
    let [succeeded, retry, dead] = ids.map(|id| id.to_string());
    let resolve = |args: &[&str]| {
        let answer = run(&world, &[&["uncertain", "resolve", "--note", "asked them", "--actor", "eve"], args].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        answer.out
    };
    assert_eq!(resolve(&[&succeeded, "--as", "succeeded", "--downstream-id", "inv_77"]), "1 row moved to succeeded\n");
    assert_eq!(resolve(&[&retry, "--as", "retry"]), "1 row moved to pending\n");
    assert_eq!(resolve(&[&dead, "--as", "dead"]), "1 row moved to dead\n");

    let row = world.row(ids[0]).await;
    assert_eq!((row.status.as_str(), row.downstream_id.as_deref(), row.reason), ("succeeded", Some("inv_77"), None));
    assert_eq!(text(&world, ids[0], "completed_at IS NOT NULL").await.as_deref(), Some("true"));
    let row = world.row(ids[1]).await;
    assert_eq!(
        (row.status.as_str(), row.attempts, row.unknown_attempts),
        ("pending", 0, 1),
        "unknown attempts are never reset"
    );
    assert!(!row.parked && row.due_in.unwrap() <= 0.0);
    let row = world.row(ids[2]).await;
    assert_eq!(row.end(), ("dead", Some("timeout")));
    for (id, outcome) in ids.into_iter().zip(["succeeded", "pending", "dead"]) {
        let record = &history(&world, id).await[0];
        assert_eq!((record["act"].as_str(), record["outcome"].as_str()), (Some("resolve"), Some(outcome)));
        assert_eq!((record["status_before"].as_str(), record["actor"].as_str()), (Some("uncertain"), Some("eve")));
        assert_eq!(record["note"].as_str(), Some("asked them"));
    }
}

#[tokio::test]
async fn a_row_that_parked_past_its_window_is_sent_again_once_a_person_says_retry() {
    let world = World::new().await;
    let endpoint = world.receiver.url("201");
    let made = Made { status: "uncertain", endpoint: &endpoint, set: "reason = 'key_window', attempts = 20" };
    let id = made.insert(&world, "parked").await;
    let _relay = world.relay_with("", "idempotency: {window: 1h}").await;
    assert!(world.row(id).await.parked);
    assert_eq!(run(&world, &["uncertain", "resolve", &id.to_string(), "--as", "retry"]).code, 0);
    assert_eq!(world.ended(id).await.status, "succeeded");
    assert_eq!(world.receiver.ledger().requests_of("parked").len(), 1);
}

#[tokio::test]
async fn only_uncertain_rows_are_resolved() {
    let world = World::new().await;
    for status in ["pending", "in_flight", "succeeded", "dead"] {
        let id = row_in(&world, status, status).await;
        let answer = run(&world, &["uncertain", "resolve", &id.to_string(), "--as", "succeeded"]);
        assert_eq!(
            (answer.code, answer.refusals()),
            (3, vec![format!("outbox: row {id} is {status}: only uncertain rows move").as_str()])
        );
        assert_eq!(world.row(id).await.status, status);
    }
}

#[tokio::test]
async fn lists_and_bulk_resolutions_take_the_filters() {
    let world = World::new().await;
    let one = row_in(&world, "uncertain", "one").await;
    let other = Made { status: "uncertain", endpoint: "https://y.test/", set: "first_dispatch_at = now()" }
        .insert(&world, "other")
        .await;
    let list = run(&world, &["uncertain", "list", "-o", "json"]);
    assert_eq!(list.ids(), [one, other], "longest uncertain first");
    assert_eq!(list.json()[0]["next_attempt_at"], "infinity");
    assert_eq!(run(&world, &["uncertain", "list", "--since", "1h", "-o", "json"]).ids(), [other]);
    let table = run(&world, &["uncertain", "list"]);
    assert!(
        table.out.contains("FIRST SENT") && table.out.contains("timeout") && table.out.contains("maybe"),
        "{table:?}"
    );
    let named_too_many = run(&world, &["uncertain", "resolve", "--all", "--as", "succeeded", "--downstream-id", "x"]);
    assert_eq!(named_too_many.code, 2, "{named_too_many:?}");
    let dry = run(&world, &["uncertain", "resolve", "--all", "--as", "dead", "--dry-run"]);
    assert!(dry.out.contains("2 rows would move to dead"), "{dry:?}");
    let done = run(&world, &["uncertain", "resolve", "--destination", "https://y.test", "--as", "succeeded"]);
    assert_eq!(done.out, "1 row moved to succeeded\n");
    assert_eq!(history(&world, other).await[0]["filter"].as_str(), Some("--destination https://y.test"));
    assert_eq!(world.row(one).await.status, "uncertain");
}
