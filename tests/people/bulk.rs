//! Many dead rows at once: filters, dry runs, spread, and two people at the same time.

use std::time::Duration;

use outbox_operator::store::{
    Db,
    people::{self, Filter, Replay, Selection, Signature},
};

use crate::{
    help::{Made, history, many_dead, row_in, run, run_at},
    support::{World, table},
};

const EVERYTHING: Selection = Selection::Matching {
    filter: Filter { destination: None, reason: None, tenant: None, operation: None, since: None, until: None },
    limit: None,
};

#[tokio::test]
async fn two_bulk_replays_at_once_move_each_row_once() {
    let world = World::new().await;
    let rows = 5_000;
    many_dead(&world, rows).await;
    let replay = || {
        let url = world.url.clone();
        tokio::task::spawn_blocking(move || run_at(&url, &["dead", "replay", "--all", "--output", "json"]))
    };
    let (one, other) = tokio::join!(replay(), replay());
    let moved = |answer: &crate::help::Answer| answer.json()["moved"].as_array().unwrap().len();
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.code, other.code), (0, 0), "{} {}", one.err, other.err);
    assert_eq!(moved(&one) + moved(&other), rows);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'pending'").await, 5_000);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, 5_000);
    assert_eq!(
        world.number("SELECT count(DISTINCT row_id) FROM agent_outbox_history WHERE filter = '--all'").await,
        5_000
    );
}

#[tokio::test]
async fn a_bulk_replay_goes_round_a_row_that_somebody_else_is_moving_and_a_named_row_is_waited_for() {
    let world = World::new().await;
    let ids = [row_in(&world, "dead", "held").await, row_in(&world, "dead", "free").await];
    let mut other = world.pool.begin().await.unwrap();
    sqlx::query("UPDATE agent_outbox SET status = 'pending', attempts = 0 WHERE id = $1")
        .bind(ids[0])
        .execute(&mut *other)
        .await
        .unwrap();
    let bulk = run(&world, &["dead", "replay", "--all", "--output", "json"]);
    assert_eq!(bulk.json()["moved"], serde_json::json!([ids[1]]), "{bulk:?}");
    let (url, id) = (world.url.clone(), ids[0].to_string());
    let named = tokio::task::spawn_blocking(move || run_at(&url, &["dead", "replay", &id]));
    world.wait_for("the named replay waits", WAITS).await;
    other.commit().await.unwrap();
    let named = named.await.unwrap();
    assert_eq!((named.code, named.refusals().len()), (3, 1), "{named:?}");
    assert!(named.err.contains("is pending: only dead rows move"));
    assert_eq!(history(&world, ids[0]).await.len(), 0);
}

const WAITS: &str =
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";

#[tokio::test]
async fn a_dry_run_shows_what_would_move_and_then_just_that_moves() {
    let world = World::new().await;
    let x = Made {
        status: "dead",
        endpoint: "HTTPS://bob:s3cret@X.Test:443/hook?token=t0ken",
        set: "reason = 'unauthorized'",
    };
    let wanted = [x.insert(&world, "a").await, x.insert(&world, "b").await];
    let old = Made { set: "reason = 'unauthorized', completed_at = now() - interval '2 hours'", ..x }
        .insert(&world, "old")
        .await;
    let rejected = Made { set: "reason = 'rejected'", ..x }.insert(&world, "rejected").await;
    let elsewhere =
        Made { status: "dead", endpoint: "https://y.test/", set: "reason = 'unauthorized'" }.insert(&world, "y").await;
    let from_before = Made { set: "reason = 'unauthorized', destination = NULL", ..x }.insert(&world, "before").await;
    let filter = ["--destination", "https://x.test/any?thing", "--reason", "unauthorized", "--since", "1h"];

    let before = world.number("SELECT sum(hashtext(agent_outbox::text)) FROM agent_outbox").await;
    let dry = run(&world, &[&["dead", "replay", "--dry-run", "-o", "json"], &filter[..]].concat());
    assert_eq!((dry.code, dry.ids()), (0, vec![wanted[0], wanted[1], from_before]), "{dry:?}");
    let shown = run(&world, &[&["dead", "replay", "--dry-run"], &filter[..]].concat());
    assert!(shown.out.contains("3 rows would move to pending; nothing was changed"), "{shown:?}");
    assert!(!shown.out.contains("s3cret") && !shown.out.contains("t0ken"), "{shown:?}");
    assert_eq!(world.number("SELECT sum(hashtext(agent_outbox::text)) FROM agent_outbox").await, before);
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, 0);

    let done = run(&world, &[&["dead", "replay"], &filter[..]].concat());
    assert_eq!((done.code, done.out.starts_with("3 rows moved")), (0, true), "{done:?}");
    for id in [old, rejected, elsewhere] {
        assert_eq!(world.row(id).await.status, "dead");
    }
    let record = &history(&world, wanted[0]).await[0];
    assert_eq!(record["filter"].as_str(), Some("--destination https://x.test --reason unauthorized --since 1h"));
    assert!(record["actor"].as_str().is_some_and(|actor| actor.contains('@')), "{record}");
}

#[tokio::test]
async fn each_filter_selects_and_the_limit_bounds() {
    let world = World::new().await;
    for (key, set) in [
        ("a", "operation = 'pay'"),
        ("b", "tenant_id = '00000000-0000-0000-0000-000000000001'"),
        ("c", "completed_at = now() - interval '3 hours'"),
        ("d", "endpoint = 'no url at all'"),
    ] {
        Made { status: "dead", set, ..Made::default() }.insert(&world, key).await;
    }
    let keys = |filter: &[&str]| {
        let answer = run(&world, &[&["dead", "list", "-o", "json"], filter].concat());
        assert_eq!(answer.code, 0, "{answer:?}");
        let rows = answer.json();
        let mut keys: Vec<String> =
            rows.as_array().unwrap().iter().map(|row| row["idempotency_key"].as_str().unwrap().to_owned()).collect();
        keys.sort();
        keys.concat()
    };
    assert_eq!(keys(&[]), "abcd");
    assert_eq!(keys(&["--operation", "pay"]), "a");
    assert_eq!(keys(&["--tenant", "00000000-0000-0000-0000-000000000001"]), "b");
    assert_eq!(keys(&["--until", "1h"]), "c");
    assert_eq!(keys(&["--since", "1h"]), "abd");
    assert_eq!(keys(&["--since", "4h", "--until", "2h"]), "c");
    assert_eq!(keys(&["--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02T00:00:00Z"]), "");
    assert_eq!(keys(&["--destination", "invalid"]), "d");
    assert_eq!(keys(&["--destination", "https://billing.example:443"]), "abc");
    assert_eq!(keys(&["--reason", "exhausted"]), "");
    assert_eq!(keys(&["--limit", "2"]).len(), 2);
    let moved = run(&world, &["dead", "replay", "--all", "--limit", "3", "-o", "json"]);
    assert_eq!(moved.json()["moved"].as_array().unwrap().len(), 3);
    assert_eq!(keys(&[]), "d");
}

#[tokio::test]
async fn a_spread_lets_rows_become_due_evenly_over_batches() {
    let world = World::new().await;
    let rows = 2_500;
    many_dead(&world, rows).await;
    let answer = run(&world, &["dead", "replay", "--all", "--spread", "10m"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    // 600 s over 2,500 rows: 0.24 s from row to row, in the rows' order, from now until just before the end.
    let gaps = "SELECT count(*) FROM (SELECT next_attempt_at - lag(next_attempt_at) OVER (ORDER BY id) AS gap FROM agent_outbox) AS g \
                WHERE gap NOT BETWEEN interval '0.239 s' AND interval '0.241 s'";
    assert_eq!(world.number(gaps).await, 0);
    let span = "SELECT extract(epoch FROM max(next_attempt_at) - min(next_attempt_at))::bigint FROM agent_outbox";
    assert_eq!(world.number(span).await, 600);
    assert_eq!(
        world.number("SELECT count(*) FROM agent_outbox WHERE next_attempt_at > now() + interval '10 minutes'").await,
        0
    );
}

#[tokio::test]
async fn an_act_that_ends_early_says_what_it_has_done_and_goes_on_when_called_again() {
    let world = World::new().await;
    many_dead(&world, 2_100).await;
    // The third batch meets a row that cannot be written.
    world
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$; \
             CREATE TRIGGER refuse BEFORE UPDATE ON agent_outbox FOR EACH ROW WHEN (OLD.entity_id = 'e2050') EXECUTE FUNCTION refuse()",
        )
        .await;
    let answer = run(&world, &["dead", "replay", "--all"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.out.starts_with("2,000 rows moved"), "{answer:?}");
    assert!(answer.err.contains("not this one") && answer.err.contains("goes on with the rest"), "{answer:?}");
    world.execute("DROP TRIGGER refuse ON agent_outbox").await;
    let rest = run(&world, &["dead", "replay", "--all"]);
    assert!(rest.code == 0 && rest.out.starts_with("100 rows moved"), "{rest:?}");
}

#[tokio::test]
async fn the_library_tells_progress_by_batches() {
    let world = World::new().await;
    many_dead(&world, 1_500).await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let told = std::sync::Mutex::new(Vec::new());
    let how = Replay { spread: Duration::ZERO, ..Replay::default() };
    let done = people::replay(&db, &table(), &EVERYTHING, &Signature::default(), &how, &|done, total| {
        told.lock().unwrap().push((done, total));
    })
    .await
    .unwrap();
    assert_eq!(done.moved.len(), 1_500);
    assert_eq!(*told.lock().unwrap(), [(0, 1_500), (1_000, 1_500), (1_500, 1_500)]);
}
