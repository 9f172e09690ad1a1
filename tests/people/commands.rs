//! Status, enqueue, and how commands end.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use crate::{
    help::{Made, row_in, run, text},
    support::{TENANT, World, outbox},
};

#[tokio::test]
async fn status_counts_each_row_in_one_state_by_destination() {
    let world = World::new().await;
    let due = "next_attempt_at = now() - interval '5 minutes'";
    let oldest = Made { set: due, ..Made::default() }.insert(&world, "due").await;
    for (status, set) in [
        ("pending", ""),
        ("in_flight", ""),
        ("in_flight", "next_attempt_at = now(), locked_until = now()"),
        ("uncertain", ""),
        ("uncertain", "next_attempt_at = now() + interval '1 minute'"),
        ("dead", ""),
        ("dead", "reason = 'unauthorized', last_http_status = 401"),
        ("succeeded", ""),
        ("cancelled", ""),
    ] {
        let key = format!("{status}{set}");
        Made { status, set, ..Made::default() }.insert(&world, &key).await;
    }
    Made { status: "dead", endpoint: "https://y.test/", set: "" }.insert(&world, "elsewhere").await;
    world
        .execute("INSERT INTO agent_outbox_destinations (scope, destination, held_until, reason) VALUES ('a', 'https://y.test', now() + interval '1 hour', 'failing')")
        .await;
    let answer = run(&world, &["status", "-o", "json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let status = answer.json();
    let total = &status["total"];
    for (state, rows) in
        [("due", 2), ("waiting", 1), ("in_flight", 1), ("uncertain_auto", 1), ("uncertain_parked", 1), ("dead", 3)]
    {
        assert_eq!(total[state].as_i64(), Some(rows), "{state}: {status}");
    }
    assert!(total.get("succeeded").is_none());
    assert_eq!(status["destinations"][0]["destination"], "https://billing.example", "{status}");
    assert_eq!(status["destinations"][1]["dead"].as_i64(), Some(1));
    assert_eq!(status["oldest_due"]["id"].as_i64(), Some(oldest));
    assert!(status["oldest_due"]["due_seconds"].as_i64().unwrap() >= 300);
    assert_eq!(status["holds"][0]["destination"], "https://y.test");
    let errors: Vec<_> = status["top_errors"].as_array().unwrap().iter().map(|error| error["rows"].as_i64()).collect();
    assert_eq!(errors, [Some(2), Some(2), Some(1)], "{status}");
    let table = run(&world, &["status"]);
    for part in ["all", "https://billing.example", "oldest due: row", "HELD", "rejected 422", "answered 422"] {
        assert!(table.out.contains(part), "{part}: {table:?}");
    }
}

#[tokio::test]
async fn status_of_one_entity_counts_what_has_ended_too() {
    let world = World::new().await;
    row_in(&world, "succeeded", "inv-1").await;
    row_in(&world, "dead", "inv-2").await;
    let of = |args: &[&str]| run(&world, &[&["status", "-o", "json"], args].concat()).json()["total"].clone();
    let entity = of(&["--entity", "inv-1"]);
    assert_eq!((entity["succeeded"].as_i64(), entity["dead"].as_i64()), (Some(1), Some(0)));
    assert_eq!(of(&["--tenant", TENANT])["dead"].as_i64(), Some(1));
    assert_eq!(of(&["--tenant", "00000000-0000-0000-0000-000000000001"])["dead"].as_i64(), Some(0));
    assert_eq!(of(&["--operation", "other"])["dead"].as_i64(), Some(0));
    assert!(run(&world, &["status", "--entity", "inv-1"]).out.contains("DONE"));
}

fn enqueue<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["enqueue", "--tenant", TENANT, "--operation", "create_invoice", "--entity", "inv-1"], more].concat()
}

#[tokio::test]
async fn enqueue_derives_the_key_as_outbox_key_does_and_a_second_one_is_refused() {
    let world = World::new().await;
    let payload = r#"{"n": 12345678901234567890123, "amount": 1250}"#;
    let args = enqueue(&["--endpoint", "https://x.test/a", "--payload", payload, "-o", "json"]);
    let first = run(&world, &args);
    assert_eq!(first.code, 0, "{first:?}");
    let id = first.json()["id"].as_i64().unwrap();
    let key = run(
        &world,
        &["key", "--tenant", TENANT, "--operation", "create_invoice", "--entity", "inv-1", "--args", payload],
    );
    assert_eq!(first.json()["idempotency_key"].as_str(), Some(key.out.trim()));
    assert_eq!(text(&world, id, "payload::text").await.as_deref(), Some(payload));
    assert_eq!(text(&world, id, "status || attempts || destination").await.as_deref(), Some("pending0https://x.test"));
    let second = run(&world, &args);
    assert_eq!(second.code, 3);
    assert!(second.err.contains(&format!("row {id} has the key")) && second.err.contains("is pending"), "{second:?}");

    let own = run(
        &world,
        &enqueue(&["--endpoint", "https://x.test/{key}", "--payload", "1", "--key", "mine", "--version", "2"]),
    );
    assert_eq!(own.code, 0, "{own:?}");
    assert!(own.out.contains("is queued with the key mine"));
    let args = run(&world, &enqueue(&["--endpoint", "https://x.test/", "--payload", "2", "--args", payload]));
    assert_eq!(args.code, 3, "the key is that of the arguments: {args:?}");
}

#[tokio::test]
async fn enqueue_reads_a_payload_from_standard_input() {
    let world = World::new().await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(enqueue(&["--endpoint", "https://x.test/", "--payload", "-", "--key", "piped"]))
        .env("DATABASE_URL", &world.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{\"piped\": true}").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE payload = '{\"piped\": true}'").await, 1);
}

#[tokio::test]
async fn wrong_usage_ends_with_2_and_changes_nothing() {
    let world = World::new().await;
    let id = row_in(&world, "dead", "d").await.to_string();
    let endpoint = ["--endpoint", "https://x.test/"];
    for args in [
        vec!["dead", "replay"],
        vec!["dead", "replay", &id, "--all"],
        vec!["dead", "replay", &id, "--reason", "rejected"],
        vec!["dead", "replay", "--all", "--limit", "0"],
        vec!["dead", "replay", "--all", "--since", "yesterday"],
        vec!["dead", "replay", "--all", "--destination", "x.test"],
        vec!["dead", "replay", "--all", "--spread", "10 minutes"],
        vec!["dead", "replay", "--all", "-f", "/no/such/file"],
        vec!["dead", "replay", "x"],
        vec!["dead", "dismiss", &id],
        vec!["uncertain", "resolve", &id],
        vec!["uncertain", "resolve", &id, "--as", "gone"],
        vec!["cancel"],
        vec!["status", "--tenant", "me"],
        vec!["status", "-o", "xml"],
        enqueue(&["--endpoint", "x.test", "--payload", "{}"]),
        enqueue(&[&endpoint[..], &["--payload", "{"]].concat()),
        enqueue(&[&endpoint[..], &["--payload", r#""\u0000""#, "--key", "k"]].concat()),
        enqueue(&[&endpoint[..], &["--payload", "{}", "--version", "0"]].concat()),
        enqueue(&[&endpoint[..], &["--payload", "{}", "--key", ""]].concat()),
    ] {
        let answer = run(&world, &args);
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{args:?}: {answer:?}");
        assert!(!answer.err.is_empty());
    }
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'dead'").await, 1);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, 1);
    let (code, _, err) = outbox(&["status"], None);
    assert!(code == 2 && err.contains("--database-url"), "{err}");
    let (code, _, err) = outbox(&["status", "--database-url", "mysql://u:s3cret@x/"], None);
    assert!(code == 2 && !err.contains("s3cret"), "{err}");
}

#[tokio::test]
async fn a_table_that_is_not_there_or_not_migrated_ends_with_1_and_the_mend() {
    let world = World::empty().await;
    for args in [&["status"][..], &["dead", "list"], &["dead", "replay", "--all"], &["cancel", "1"]] {
        let answer = run(&world, args);
        assert!(answer.code == 1 && answer.err.contains("outbox migrate"), "{answer:?}");
    }
    world.migrate().await;
    world.execute("CREATE SCHEMA \"Tenant-A\"").await;
    let named = ["--schema", "Tenant-A", "--table", "Outbox Rows"];
    assert_eq!(run(&world, &[&["migrate"], &named[..]].concat()).code, 0);
    for args in [
        &["status"][..],
        &["dead", "list"],
        &["dead", "replay", "--all"],
        &["dead", "dismiss", "--all", "--note", "n"],
        &["uncertain", "list"],
        &["uncertain", "resolve", "--all", "--as", "dead"],
    ] {
        let answer = run(&world, &[args, &named[..]].concat());
        assert_eq!(answer.code, 0, "{args:?}: {answer:?}");
    }
    let row = enqueue(&["--endpoint", "https://x.test/", "--payload", "{}"]);
    assert_eq!(run(&world, &[&row[..], &named[..]].concat()).code, 0);
    assert_eq!(run(&world, &[&["cancel", "1"], &named[..]].concat()).code, 0);
}
