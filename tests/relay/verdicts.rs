//! What an answer, or none, makes of a row: the table of docs/delivery.md, over real sockets.

use crate::support::World;

type End = (&'static str, Option<&'static str>);

#[tokio::test]
async fn each_answer_has_its_verdict() {
    let world = World::new().await;
    let redirect = format!("302:{}", outbox_operator::sandbox::step_text("http://169.254.169.254/latest"));
    let login = format!("301:{}", outbox_operator::sandbox::step_text(&world.receiver.url("200")));
    let scripts: Vec<(&str, End, i32, u64)> = vec![
        // script, end, attempts, requests
        ("201", ("succeeded", None), 1, 1),
        ("204", ("succeeded", None), 1, 1),
        ("empty", ("succeeded", None), 1, 1),
        ("empty-202:%2Fjobs%2F7", ("succeeded", None), 1, 1),
        ("body:%5B%5D", ("succeeded", None), 1, 1),
        ("body:%7B%22id%22%3Anull%7D", ("succeeded", None), 1, 1),
        ("drip", ("succeeded", None), 1, 1),
        ("big:300000", ("succeeded", None), 1, 1),
        ("cut", ("succeeded", None), 1, 1),
        ("400", ("dead", Some("rejected")), 1, 1),
        ("404", ("dead", Some("rejected")), 1, 1),
        ("422", ("dead", Some("rejected")), 1, 1),
        ("401", ("dead", Some("unauthorized")), 1, 1),
        ("403", ("dead", Some("unauthorized")), 1, 1),
        ("409", ("dead", Some("conflict")), 1, 1),
        ("304", ("dead", Some("redirected")), 1, 1),
        (&redirect, ("dead", Some("redirected")), 1, 1),
        (&login, ("dead", Some("redirected")), 1, 1),
        ("408,201", ("succeeded", None), 2, 2),
        ("425,201", ("succeeded", None), 2, 2),
        ("429,201", ("succeeded", None), 2, 2),
        ("500,201", ("succeeded", None), 2, 2),
        ("503:1,201", ("succeeded", None), 2, 2),
        ("reset,201", ("succeeded", None), 2, 2),
        ("close,201", ("succeeded", None), 2, 2),
        ("garbage,201", ("succeeded", None), 2, 2),
        ("hang,201", ("succeeded", None), 2, 2),
        ("lost", ("succeeded", None), 2, 2),
        ("reset,409,201", ("succeeded", None), 3, 3),
        // Doubt: an attempt may have been executed, so the row parks instead of dying ...
        ("reset,401", ("uncertain", Some("unauthorized")), 2, 2),
        ("reset,301:%2Fx", ("uncertain", Some("redirected")), 2, 2),
        // ... but a refusal of the same key by a receiver that enforces keys settles it.
        ("reset,422", ("dead", Some("rejected")), 2, 2),
        ("500x3", ("dead", Some("exhausted")), 3, 3),
        ("resetx3", ("uncertain", Some("exhausted")), 3, 3),
    ];
    let mut ids = Vec::new();
    for (number, (script, ..)) in scripts.iter().enumerate() {
        ids.push(world.insert_script(&format!("verdict-{number}"), script).await);
    }
    let _relay = world.relay_with("", "retry: {base: 50ms, cap: 100ms, maxAttempts: 3}").await;
    for (number, ((script, end, attempts, requests), id)) in scripts.iter().zip(ids).enumerate() {
        let row = world.ended(id).await;
        assert_eq!((row.end(), row.attempts), (*end, *attempts), "{script}: {row:?}");
        assert_eq!(row.parked, end.0 == "uncertain", "{script}");
        let seen = world.receiver.ledger().key(&format!("verdict-{number}")).unwrap();
        assert_eq!((seen.requests, seen.changed_bodies), (*requests, 0), "{script}");
        assert!(seen.effects <= 1, "{script}");
    }
    let redirected = world
        .number("SELECT count(*) FROM agent_outbox WHERE last_error = 'answered 302 Found to host 169.254.169.254'")
        .await;
    assert_eq!(redirected, 1);
}

#[tokio::test]
async fn rc_05_ids_of_the_receiver_are_kept_exactly_or_not_at_all() {
    let world = World::new().await;
    let long = "9".repeat(10_000);
    let cases = [
        (r#"{"id":2868860079149422351}"#, Some("2868860079149422351")),
        (r#"{"id":"abc"}"#, Some("abc")),
        (r#"{"id":null}"#, None),
        (r#"{"id":{"a":1}}"#, None),
        (r#"{"name":1}"#, None),
    ];
    let mut ids = Vec::new();
    for (number, (body, _)) in cases.iter().enumerate() {
        let script = format!("body:{}", outbox_operator::sandbox::step_text(body));
        ids.push(world.insert_script(&format!("id-{number}"), &script).await);
    }
    let script = format!("body:{}", outbox_operator::sandbox::step_text(&format!(r#"{{"id":"{long}"}}"#)));
    let cut = world.insert_script("id-long", &script).await;
    let _relay = world.relay().await;
    for ((body, expected), id) in cases.iter().zip(ids) {
        let row = world.ended(id).await;
        assert_eq!((row.status.as_str(), row.downstream_id.as_deref()), ("succeeded", *expected), "{body}");
    }
    let row = world.ended(cut).await;
    assert!(row.status != "succeeded" || row.downstream_id.unwrap().len() <= 255);
}

#[tokio::test]
async fn rc_25_rows_of_which_no_request_can_be_built_are_dead_at_once() {
    let world = World::new().await;
    let endpoints = [
        "x.test/hook",
        "",
        "ftp://x.test/",
        "http://",
        "https://exa mple.test/",
        "file:///etc/passwd",
        "http://x.test:99999/",
    ];
    let mut ids = Vec::new();
    for (number, endpoint) in endpoints.iter().enumerate() {
        ids.push(world.insert(&format!("endpoint-{number}"), endpoint, "{}").await);
    }
    let keys = ["line\nfeed".to_owned(), "ключ".to_owned(), String::new(), "k".repeat(300)];
    for key in &keys {
        ids.push(world.insert(key, &world.receiver.url("201"), "{}").await);
    }
    let _relay = world.relay().await;
    for id in ids {
        let row = world.ended(id).await;
        assert_eq!((row.end(), row.attempts), (("dead", Some("invalid")), 1), "{row:?}");
        assert!(row.last_error.is_some());
    }
    assert_eq!(world.receiver.ledger().counts().connections, 0);
}

#[tokio::test]
async fn rc_37_endpoints_that_point_inside_are_blocked_before_a_connection() {
    let world = World::new().await;
    let port = world.receiver.addr().port();
    let hosts = [
        "[::1]",
        "[::ffff:169.254.169.254]",
        "2130706433",
        "0x7f.1",
        "localhost.",
        "localhost",
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
    ];
    let mut ids = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        ids.push(world.insert(&format!("inside-{number}"), &format!("http://{host}:{port}/"), "{}").await);
    }
    let _relay = world.relay_with("", "egress: {}").await;
    for (host, id) in hosts.iter().zip(ids) {
        let row = world.ended(id).await;
        assert_eq!(row.end(), ("dead", Some("blocked")), "{host}: {row:?}");
    }
    assert_eq!(world.receiver.ledger().counts().connections, 0);
}

#[tokio::test]
async fn a_receiver_that_does_not_deduplicate_gets_no_second_request() {
    let world = World::new().await;
    let scripts = ["reset", "close", "garbage", "hang", "500", "lost"];
    let mut ids = Vec::new();
    for (number, script) in scripts.iter().enumerate() {
        ids.push(world.insert_script(&format!("once-{number}"), script).await);
    }
    // Nothing was executed where no connection stood, so that is tried again.
    let refused = world.insert("refused", "http://127.0.0.1:1/", "{}").await;
    let _relay = world.relay_with("", "idempotency: {receiver: None}").await;
    for (number, id) in ids.into_iter().enumerate() {
        let row = world.ended(id).await;
        assert_eq!(
            (row.status.as_str(), row.parked, row.unknown_attempts),
            ("uncertain", true, 1),
            "{}",
            scripts[number]
        );
        assert_eq!(world.receiver.ledger().requests_of(&format!("once-{number}")).len(), 1);
    }
    world.row_when(refused, "tried again", |row| row.attempts > 1 && row.unknown_attempts == 0).await;
}

#[tokio::test]
async fn a_policy_may_judge_by_status_body_and_header() {
    let world = World::new().await;
    let errors = format!("body:{}", outbox_operator::sandbox::step_text(r#"{"errors": [{"message": "no"}]}"#));
    let gone = world.insert_script("gone", "404x2,201").await;
    let monday = world.insert_script("monday", &errors).await;
    let replayed = world.insert_script("replayed", "kept-500").await;
    let _relay = world
        .relay_with(
            "",
            "classify: [{statuses: ['404'], verdict: Retry}, {body: {pointer: /errors, exists: true}, verdict: Dead, reason: answered_errors}, \
             {statuses: [5xx], header: {name: Idempotent-Replayed, value: 'true'}, verdict: Dead, reason: replayed_error}]",
        )
        .await;
    let row = world.ended(gone).await;
    assert_eq!((row.status.as_str(), row.attempts), ("succeeded", 3));
    assert_eq!(world.ended(monday).await.end(), ("dead", Some("answered_errors")));
    let row = world.ended(replayed).await;
    assert_eq!((row.end(), row.attempts), (("dead", Some("replayed_error")), 2));
}

#[tokio::test]
async fn rc_32_a_payload_that_was_edited_is_not_sent_under_the_old_key() {
    let world = World::new().await;
    let never = world.insert_script("edited", "500x100").await;
    let doubt = world.insert_script("edited-in-doubt", "hang,500x100").await;
    let _relay = world.relay_with("", "retry: {backoff: EqualJitter, base: 1s, cap: 1s}").await;
    world.row_when(never, "tried", |row| row.attempts >= 1 && row.status == "pending").await;
    world.row_when(doubt, "in doubt", |row| row.unknown_attempts == 1 && row.status == "uncertain").await;
    world.execute(r#"UPDATE agent_outbox SET payload = '{"n": 2}'"#).await;
    assert_eq!(world.ended(never).await.end(), ("dead", Some("invalid")));
    let row = world.ended(doubt).await;
    assert_eq!((row.end(), row.parked), (("uncertain", Some("invalid")), true));
    assert_eq!(world.receiver.ledger().counts().changed_bodies, 0);
}
