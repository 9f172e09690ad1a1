//! Looking at dead rows, replacing them, letting them go.

use serde_json::{Value, value::RawValue};

use crate::{
    help::{Made, history, row_in, run, text},
    support::{TENANT, World},
};

const NUMBERS: &str = r#"{"n": 12345678901234567890123, "u": 18446744073709551616, "f": 0.1000000000000000055511151231257827, "t": 1.10}"#;

#[tokio::test]
async fn rc_01_json_holds_the_payload_digit_for_digit_and_yaml_as_a_string() {
    let world = World::new().await;
    for (number, payload) in
        [NUMBERS, r#"{"n": 1e400, "s": "\"\\"}"#, "null", r#""a: b\n""#, "[]"].into_iter().enumerate()
    {
        let id = world.insert(&format!("rc-01-{number}"), "https://x.test/", payload).await;
        world.execute(&format!("UPDATE agent_outbox SET status = 'dead', completed_at = now() WHERE id = {id}")).await;
        let stored = world.row(id).await.payload;
        for args in [vec!["dead", "list", "--limit", "1"], vec!["dead", "show"]] {
            let id = id.to_string();
            let args: Vec<&str> = if args.contains(&"show") { [&args[..], &[&id]].concat() } else { args };
            let json = run(&world, &[&args[..], &["--output", "json"]].concat());
            assert!(json.out.contains(&format!("\"payload\": {stored}")), "{stored}: {json:?}");
            serde_json::from_str::<&RawValue>(&json.out).unwrap();
            let yaml = run(&world, &[&args[..], &["--output", "yaml"]].concat());
            let document: Value = serde_yaml::from_str(&yaml.out).unwrap();
            let row = document.get(0).unwrap_or(&document);
            assert_eq!(row["payload"].as_str(), Some(stored.as_str()), "{yaml:?}");
        }
    }
}

#[tokio::test]
async fn a_list_names_columns_as_the_table_does_and_shows_no_endpoint_headers_or_payload_to_people() {
    let world = World::new().await;
    let made = Made {
        status: "dead",
        endpoint: "https://bob:s3cret@x.test/T0/p4th?token=t0ken",
        set: r#"headers = '{"authorization": "h3ader"}', payload = '{"card": "p4yload"}'"#,
    };
    let id = made.insert(&world, "secret").await.to_string();
    for args in [&["dead", "list"][..], &["dead", "show", &id], &["status"], &["dead", "replay", "--all", "--dry-run"]]
    {
        let people = run(&world, args);
        assert_eq!(people.code, 0, "{people:?}");
        for secret in ["s3cret", "t0ken", "p4th", "h3ader", "p4yload"] {
            assert!(!people.out.contains(secret) && !people.err.contains(secret), "{args:?}: {people:?}");
        }
        let programs = run(&world, &[args, &["-o", "json"]].concat());
        for secret in ["s3cret", "t0ken", "p4th", "h3ader"] {
            assert!(!programs.out.contains(secret), "{args:?}: {programs:?}");
        }
    }
    let json = run(&world, &["dead", "list", "-o", "json"]).json();
    let names: Vec<&str> = json[0].as_object().unwrap().keys().map(String::as_str).collect();
    let known = format!(
        "SELECT count(*) FROM information_schema.columns WHERE table_name = 'agent_outbox' AND column_name IN ('{}')",
        names.join("', '")
    );
    assert_eq!(world.number(&known).await, i64::try_from(names.len()).unwrap(), "{names:?}");
    assert_eq!(json[0]["destination"], "https://x.test");
    assert_eq!((json[0]["tenant_id"].as_str(), json[0]["intent_version"].as_i64()), (Some(TENANT), Some(1)));
    assert!(json[0]["completed_at"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn a_list_that_is_cut_says_so_and_an_empty_one_too() {
    let world = World::new().await;
    assert_eq!(run(&world, &["dead", "list"]).out, "no dead row\n");
    assert_eq!(run(&world, &["dead", "list", "-o", "json"]).out, "[]\n");
    crate::help::many_dead(&world, 130).await;
    let list = run(&world, &["dead", "list", "-o", "json"]);
    assert_eq!((list.ids().len(), list.err.trim()), (100, "outbox: 100 of 130 rows shown"));
    let all = run(&world, &["dead", "list", "--all", "-o", "json"]);
    assert_eq!((all.ids().len(), all.err.as_str()), (130, ""));
}

#[tokio::test]
async fn a_terminal_cannot_be_moved_by_what_a_row_holds() {
    let world = World::new().await;
    let made =
        Made { status: "dead", set: "entity_id = E'x\\x1b[2Jy\\nz', last_error = E'a\\x07b'", ..Made::default() };
    let id = made.insert(&world, "escape").await.to_string();
    for args in
        [&["dead", "list"][..], &["dead", "show", &id], &["status"], &["status", "--operation", "create_invoice"]]
    {
        let answer = run(&world, args);
        assert!(answer.code == 0 && !answer.out.contains(['\u{1b}', '\u{7}']), "{answer:?}");
    }
}

#[tokio::test]
async fn a_row_is_shown_with_what_happened_to_it_even_when_it_is_gone() {
    let world = World::new().await;
    let id = row_in(&world, "dead", "shown").await;
    run(&world, &["dead", "replay", &id.to_string(), "--note", "mended", "--actor", "eve"]);
    let shown = run(&world, &["dead", "show", &id.to_string()]);
    for part in
        [&format!("row {id}: pending"), "create_invoice shown, version 1", "replay", "rejected 422", "eve", "mended"]
    {
        assert!(shown.out.contains(part), "{part}: {shown:?}");
    }
    world.execute(&format!("DELETE FROM agent_outbox WHERE id = {id}")).await;
    let gone = run(&world, &["dead", "show", &id.to_string()]);
    assert!(gone.code == 0 && gone.out.contains("is gone") && gone.out.contains("mended"), "{gone:?}");
    let json = run(&world, &["dead", "show", &id.to_string(), "-o", "json"]).json();
    assert_eq!(json["history"][0]["act"], "replay");
    let never = run(&world, &["dead", "show", "987654"]);
    assert_eq!((never.code, never.err.as_str()), (3, "outbox: row 987654: there is no such row\n"));
}

#[tokio::test]
async fn dismissing_needs_a_note_and_takes_dead_rows_only() {
    let world = World::new().await;
    let (dead, pending) = (row_in(&world, "dead", "d").await, row_in(&world, "pending", "p").await);
    let (dead_id, pending_id) = (dead.to_string(), pending.to_string());
    assert_eq!(run(&world, &["dead", "dismiss", &dead_id]).code, 2);
    let dry = run(&world, &["dead", "dismiss", "--all", "--note", "test data", "--dry-run"]);
    assert!(dry.code == 0 && dry.out.contains("1 row would move to cancelled"), "{dry:?}");
    let answer = run(&world, &["dead", "dismiss", &dead_id, &pending_id, "--note", "test data"]);
    assert_eq!(answer.code, 3, "{answer:?}");
    assert_eq!(answer.refusals(), [format!("outbox: row {pending} is pending: only dead rows move")]);
    assert_eq!(
        (world.row(dead).await.status.as_str(), world.row(pending).await.status.as_str()),
        ("cancelled", "pending")
    );
    let record = &history(&world, dead).await[0];
    assert_eq!((record["act"].as_str(), record["note"].as_str()), (Some("dismiss"), Some("test data")));
}

#[tokio::test]
async fn a_revised_row_is_a_new_version_with_the_derived_key_and_is_delivered() {
    let world = World::new().await;
    let old = world.insert_script("wrong", "422").await;
    let relay = world.relay().await;
    assert_eq!(world.ended(old).await.status, "dead");
    relay.stop().await;
    let payload = r#"{"n": 12345678901234567890123, "amount": 1250.00}"#;
    let endpoint = world.receiver.url("201");
    let args = [
        "dead",
        "revise",
        &old.to_string(),
        "--payload",
        payload,
        "--endpoint",
        &endpoint,
        "--note",
        "amount",
        "-o",
        "json",
    ];
    let answer = run(&world, &args);
    assert_eq!(answer.code, 0, "{answer:?}");
    let new = answer.json()["id"].as_i64().unwrap();
    let key = run(
        &world,
        &[
            "key",
            "--tenant",
            TENANT,
            "--operation",
            "create_invoice",
            "--entity",
            "wrong",
            "--version",
            "2",
            "--args",
            payload,
        ],
    );
    assert_eq!(answer.json()["idempotency_key"].as_str(), Some(key.out.trim()));
    assert_eq!(
        text(&world, new, "intent_version || ' ' || entity_id || ' ' || payload::text").await.unwrap(),
        format!("2 wrong {payload}")
    );
    assert_eq!(world.row(old).await.status, "superseded");
    let record = &history(&world, old).await[0];
    assert_eq!((record["act"].as_str(), record["next_row_id"].as_i64()), (Some("revise"), Some(new)));
    let _relay = world.relay().await;
    assert_eq!(world.ended(new).await.status, "succeeded");
    // What is superseded is not dead any more.
    let again = run(&world, &args);
    assert_eq!(
        (again.code, again.refusals()),
        (3, vec![format!("outbox: row {old} is superseded: only dead rows move").as_str()])
    );
}

#[tokio::test]
async fn revising_refuses_what_may_have_run_a_taken_key_and_no_json() {
    let world = World::new().await;
    let made = Made { status: "dead", set: "unknown_attempts = 1", ..Made::default() };
    let (doubtful, sure) = (made.insert(&world, "doubtful").await, row_in(&world, "dead", "sure").await);
    let (doubtful_id, sure_id) = (doubtful.to_string(), sure.to_string());
    let rows = world.number("SELECT count(*) FROM agent_outbox").await;
    let refused = run(&world, &["dead", "revise", &doubtful_id]);
    assert!(refused.code == 3 && refused.err.contains("a new key allows a second effect"), "{refused:?}");
    let taken = run(&world, &["dead", "revise", &sure_id, "--key", "doubtful"]);
    assert!(taken.code == 3 && taken.err.contains("another row has the new key already"), "{taken:?}");
    for payload in ["{", r#""\u0000""#, "NaN"] {
        let invalid = run(&world, &["dead", "revise", &sure_id, "--payload", payload, "--key", "new"]);
        assert_eq!(invalid.code, 2, "{payload}: {invalid:?}");
    }
    assert_eq!(run(&world, &["dead", "revise", &sure_id, "--endpoint", "ftp://x.test/"]).code, 2);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, rows);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, 0);
    let accepted = run(&world, &["dead", "revise", &doubtful_id, "--accept-duplicate"]);
    assert_eq!(accepted.code, 0, "{accepted:?}");
    assert_eq!(history(&world, doubtful).await[0]["forced"].as_bool(), Some(true));
}
