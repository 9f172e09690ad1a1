//! Holds as people see and change them.

use serde_json::Value;

use crate::{
    help::{Answer, run},
    support::World,
};

async fn held(world: &World, scope: &str, destination: &str, reason: &str) {
    world
        .execute(&format!(
            "INSERT INTO agent_outbox_destinations (scope, destination, failures, holds, held_until, reason) \
             VALUES ('{scope}', '{destination}', 7, 2, now() + interval '5 minutes', '{reason}')"
        ))
        .await;
}

/// The records of acts on destinations, the last one first.
async fn acts(world: &World) -> Vec<Value> {
    let sql =
        "SELECT to_jsonb(h)::text FROM agent_outbox_history AS h WHERE destination IS NOT NULL ORDER BY h.id DESC";
    let records: Vec<String> = sqlx::query_scalar(sql).fetch_all(&world.pool).await.unwrap();
    records.iter().map(|record| serde_json::from_str(record).unwrap()).collect()
}

fn names(answer: &Answer) -> Vec<String> {
    answer.json().as_array().unwrap().iter().map(|hold| hold["destination"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_list_shows_who_is_held_why_for_how_long_and_how_many_rows_wait() {
    let world = World::new().await;
    assert_eq!(run(&world, &["hold", "list"]).out, "no destination is held\n");
    assert_eq!(run(&world, &["hold", "list", "-o", "json"]).json(), serde_json::json!([]));
    held(&world, "tenant-a/billing/default", "https://billing.example", "throttled").await;
    held(&world, "tenant-a/billing/default", "https://over.example", "failing").await;
    world
        .execute("UPDATE agent_outbox_destinations SET held_until = now() - interval '1 s' WHERE destination = 'https://over.example'")
        .await;
    for number in 0..3 {
        world.insert(&format!("row-{number}"), "https://billing.example/invoices", "{}").await;
    }
    let json = run(&world, &["hold", "list", "-o", "json"]);
    assert_eq!(names(&json), ["https://billing.example", "https://over.example"]);
    let first = &json.json()[0];
    assert_eq!((first["reason"].as_str(), first["rows"].as_i64()), (Some("throttled"), Some(3)), "{first}");
    assert_eq!(first["scope"], "tenant-a/billing/default");
    assert!((290..=300).contains(&first["left_seconds"].as_i64().unwrap()), "{first}");
    let table = run(&world, &["hold", "list"]).out;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("DESTINATION") && lines[0].ends_with("SET BY  NOTE"), "{table}");
    assert!(lines[1].contains("https://billing.example") && lines[1].contains("throttled     3"), "{table}");
    assert!(lines[2].contains("probing"), "{table}");
    assert!(run(&world, &["hold", "list", "-o", "yaml"]).out.contains("destination: https://over.example"));
}

#[tokio::test]
async fn a_release_takes_any_spelling_gives_the_small_allowance_and_is_recorded() {
    let world = World::new().await;
    held(&world, "tenant-a/billing/default", "https://billing.example", "failing").await;
    held(&world, "tenant-a/other", "https://billing.example", "failing").await;
    held(&world, "tenant-a/billing/default", "https://else.example", "failing").await;
    let spelling = "HTTPS://bob:s3cret@Billing.Example.:443/invoices?token=s3cret";
    let args =
        ["hold", "release", spelling, "--scope", "tenant-a/billing", "--actor", "ada", "--note", "they are back"];
    let answer = run(&world, &args);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.out.starts_with("https://billing.example is released for tenant-a/billing/default"), "{answer:?}");
    let state = "SELECT to_jsonb(d)::text FROM agent_outbox_destinations AS d WHERE held_until IS NULL";
    let rows: Vec<String> = sqlx::query_scalar(state).fetch_all(&world.pool).await.unwrap();
    assert_eq!(rows.len(), 1, "only the scope that was named: {rows:?}");
    let row: Value = serde_json::from_str(&rows[0]).unwrap();
    assert_eq!(
        (row["allowance"].as_i64(), row["failures"].as_i64(), row["holds"].as_i64()),
        (Some(2), Some(0), Some(0))
    );
    let records = acts(&world).await;
    let [record] = records.as_slice() else { panic!("{records:?}") };
    for (column, value) in [
        ("act", "release"),
        ("status_before", "held"),
        ("outcome", "released"),
        ("reason", "failing"),
        ("destination", "https://billing.example"),
        ("scope", "tenant-a/billing/default"),
        ("actor", "ada"),
        ("filter", "--scope tenant-a/billing"),
        ("note", "they are back"),
    ] {
        assert_eq!(record[column].as_str(), Some(value), "{record}");
    }
    assert!(!record.to_string().contains("s3cret"));
    // The others by one word.
    let all = run(&world, &["hold", "release", "--all", "-o", "json"]);
    assert_eq!((all.code, all.json()["changed"].as_array().unwrap().len()), (0, 2), "{all:?}");
    assert_eq!(run(&world, &["hold", "list"]).out, "no destination is held\n");
}

#[tokio::test]
async fn what_is_unknown_or_not_held_is_refused_by_name() {
    let world = World::new().await;
    world.insert("row", "https://billing.example/invoices", "{}").await;
    let answer = run(&world, &["hold", "release", "https://billing.example", "https://biling.example/", "-o", "json"]);
    assert_eq!(answer.code, 3, "{answer:?}");
    assert!(answer.err.contains("https://billing.example is not held"), "{answer:?}");
    assert!(
        answer.err.contains("https://biling.example is unknown: no relay has met it and no row goes there"),
        "{answer:?}"
    );
    assert_eq!(answer.json()["refused"].as_array().unwrap().len(), 2);
    let set = |dest: &str, until: &str| run(&world, &["hold", "set", dest, "--until", until]);
    let unknown = set("https://biling.example", "1h");
    assert!(unknown.code == 3 && unknown.err.contains("is unknown"), "{unknown:?}");
    let nobody = set("https://billing.example", "1h");
    assert!(nobody.code == 3 && nobody.err.contains("no relay has had trouble"), "{nobody:?}");
    for (until, word) in [("2020-01-01T00:00:00Z", "has passed"), ("0s", "has passed"), ("36500d", "ten years")] {
        let refused = set("https://billing.example", until);
        assert!(refused.code == 3 && refused.err.contains(word), "{until}: {refused:?}");
    }
    let wrong = set("https://billing.example", "tomorrow");
    assert!(wrong.code == 2 && wrong.err.contains("30m, 1h or 7d"), "{wrong:?}");
    assert_eq!(run(&world, &["hold", "release", "billing.example"]).code, 2);
    assert_eq!(run(&world, &["hold", "release"]).code, 2);
    assert!(acts(&world).await.is_empty());
}

#[tokio::test]
async fn a_hold_that_is_set_says_who_and_why_and_replaces_what_there_was() {
    let world = World::new().await;
    held(&world, "tenant-a/billing/default", "https://billing.example", "failing").await;
    held(&world, "tenant-a/other", "https://else.example", "failing").await;
    let args =
        ["hold", "set", "https://billing.example/", "--until", "2h", "--actor", "ada", "--note", "their release"];
    let answer = run(&world, &args);
    assert_eq!(answer.code, 0, "{answer:?}");
    let list = run(&world, &["hold", "list", "-o", "json"]).json();
    let hold = &list[0];
    assert_eq!(hold["scope"], "tenant-a/billing/default", "only who knows the destination: {list}");
    assert_eq!((hold["reason"].as_str(), hold["held_by"].as_str()), (Some("manual"), Some("ada")), "{hold}");
    assert_eq!(hold["note"], "their release");
    assert!((7_190..=7_200).contains(&hold["left_seconds"].as_i64().unwrap()), "{hold}");
    let records = acts(&world).await;
    assert_eq!(records.len(), 1);
    for (column, value) in [("act", "hold"), ("status_before", "held"), ("reason", "failing"), ("filter", "--until 2h")]
    {
        assert_eq!(records[0][column].as_str(), Some(value), "{}", records[0]);
    }
    // A destination that only rows know of is held for every relay of the table.
    world.insert("row", "https://new.example/a", "{}").await;
    let answer = run(&world, &["hold", "set", "https://new.example", "--until", "2099-01-01T00:00:00Z"]);
    assert_eq!(answer.code, 3, "ten years are the most: {answer:?}");
    let answer = run(&world, &["hold", "set", "https://new.example", "--until", "30m", "-o", "json"]);
    assert_eq!((answer.code, answer.json()["changed"].as_array().unwrap().len()), (0, 2), "{answer:?}");
    // And one that nobody knows, for a scope that is named.
    let answer = run(&world, &["hold", "set", "https://later.example", "--until", "30m", "--scope", "tenant-b/new"]);
    assert!(answer.code == 0 && answer.out.contains("for tenant-b/new"), "{answer:?}");
}

#[tokio::test]
async fn rows_stay_while_a_person_holds_their_destination_and_leave_when_it_is_released() {
    let mut world = World::new().await;
    let other = world.receiver.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    let held_url = world.receiver.url("201");
    let _relay = world.relay().await;
    let first = world.insert_script("first", "201").await;
    assert_eq!(world.ended(first).await.status, "succeeded");
    assert_eq!(run(&world, &["hold", "set", &held_url, "--until", "1h", "--scope", "test/quick"]).code, 0);
    let behind = world.insert_script("behind", "201").await;
    // A row for another destination overtakes it, so the relay has looked at both.
    let overtakes = world.insert("overtakes", &format!("http://{other}/do/201"), "{}").await;
    assert_eq!(world.ended(overtakes).await.status, "succeeded");
    let row = world.row(behind).await;
    assert_eq!((row.status.as_str(), row.attempts), ("pending", 0));
    assert_eq!(run(&world, &["hold", "release", &held_url]).code, 0);
    assert_eq!(world.ended(behind).await.status, "succeeded");
}
