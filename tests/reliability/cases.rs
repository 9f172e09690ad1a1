//! Faults that people have reported of outboxes and webhook senders, as far as no shorter test has them. Those that take
//! minutes run in the long form only.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use outbox_operator::{
    demo::{PostgresOptions, ThrowawayPostgres},
    sandbox::{script_url, step_text},
};

use crate::{
    report,
    support::{PATIENCE, Relay, World},
};

/// Waits for a time that the case itself names; nothing is awaited but its end.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_08_a_409_while_the_own_earlier_request_still_runs_is_waited_out() {
    let _turn = report::turn().await;
    let world = World::new().await;
    let mut rows = Vec::new();
    for (key, busy) in [("bare", "409"), ("at-once", "409:0"), ("in-two", "409:2")] {
        let endpoint = format!("{}?busy={busy}", world.receiver.url("slow:3000:201"));
        rows.push((key, world.insert(key, &endpoint, "{}").await));
    }
    let first = world.insert_script("first", "409").await;
    let _relay = world.relay_with("", "timeouts: {connect: 500ms, total: 1s}\nretry: {base: 500ms, cap: 1s}").await;
    for (key, id) in rows {
        let row = world.ended(id).await;
        assert_eq!((row.status.as_str(), row.unknown_attempts), ("succeeded", 1), "{key}: {row:?}");
        let seen = world.receiver.ledger().key(key).unwrap();
        assert_eq!(seen.effects, 1, "{key}");
        // Three seconds of work, waits of a second or about half a second, and no hot loop.
        assert!((2..=12).contains(&world.receiver.ledger().requests_of(key).len()), "{key}");
    }
    assert_eq!(world.ended(first).await.end(), ("dead", Some("conflict")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_10_a_retry_after_beyond_all_measure_is_the_cap_and_no_worker_falls() {
    let _turn = report::turn().await;
    let mut world = World::new().await;
    let huge =
        ["9223372037", "18446744073709551615", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"].map(step_text);
    let mut rows = Vec::new();
    for status in ["409", "429", "503"] {
        for stated in &huge {
            // A destination each, since two of these statuses hold theirs.
            let at = world.receiver.listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
            let key = format!("{status} {stated}");
            rows.push((key.clone(), world.insert(&key, &script_url(at, &format!("{status}:{stated}")), "{}").await));
        }
    }
    // Not in the grammar: as if nothing were stated.
    let junk = world.insert_script("junk", "503:1e9,201").await;
    let relay = world.relay_with("", "retry: {base: 50ms, cap: 200ms, retryAfter: {cap: 2h}}").await;
    for (key, id) in rows {
        let row = world.row_when(id, "put off", |row| row.due_in.is_some_and(|due| due > 60.0)).await;
        let due = row.due_in.unwrap();
        assert!((7_190.0..=7_200.0 * 1.1).contains(&due), "{key}: {due}");
    }
    assert_eq!(world.ended(junk).await.attempts, 2);
    assert!(relay.log().iter().all(|line| !line.contains("panic") && !line.contains("ERROR")), "{:?}", relay.log());
    assert_eq!(relay.stop().await.code(), Some(0));
}

/// Two workers on a table whose database is minutes away from them in time. `now()` of every session is another function.
async fn clocks_apart(minutes: i32) {
    let world = World::new().await;
    world
        .execute(&format!(
            "CREATE SCHEMA shifted; CREATE FUNCTION shifted.now() RETURNS timestamptz STABLE LANGUAGE sql \
             AS $$ SELECT pg_catalog.now() + interval '{minutes} minutes' $$; \
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = shifted, pg_catalog, public', current_database()); END $$"
        ))
        .await;
    let pool = sqlx::PgPool::connect(&world.url).await.unwrap();
    let world = World { pool, ..world };
    let apart = world.number("SELECT (extract(epoch FROM now() - clock_timestamp()) / 60)::bigint").await;
    assert_eq!(apart, i64::from(minutes));
    for number in 0..12 {
        let id = world.insert_script(&format!("row-{number}"), "slow:300").await;
        // The column's default is the true clock's; the application's clock is the database's.
        world
            .execute(&format!("UPDATE agent_outbox SET created_at = now(), next_attempt_at = now() WHERE id = {id}"))
            .await;
    }
    let policy = "timeouts: {connect: 500ms, total: 1s}";
    let relay = "concurrency: 1\nclaimBatch: 6\nleaseDuration: 3s\nmigrations: Manual";
    let _relays = [world.relay_with(relay, policy).await, world.relay_with(relay, policy).await];
    world.all_ended().await;
    let counts = world.receiver.ledger().counts();
    assert_eq!((counts.requests, counts.effects), (12, 12), "{minutes} minutes: no live lease is taken");
    let untouched =
        "SELECT count(*) FROM agent_outbox WHERE status = 'succeeded' AND attempts = 1 AND unknown_attempts = 0";
    assert_eq!(world.number(untouched).await, 12);
    // Due rows go at once, and a failed one waits for its backoff, not for the clocks to meet.
    let inserted = Instant::now();
    let id = world.insert_script("later", "500,503:1,201").await;
    world.execute(&format!("UPDATE agent_outbox SET next_attempt_at = now() WHERE id = {id}")).await;
    assert_eq!(world.ended(id).await.attempts, 3);
    assert!(inserted.elapsed() < Duration::from_secs(6), "{:?}", inserted.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_34_workers_whose_clocks_are_five_minutes_off_take_no_live_lease_and_keep_no_due_row_waiting() {
    let _turn = report::turn().await;
    tokio::join!(clocks_apart(5), clocks_apart(-5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_43_connections_that_fail_in_their_ways_are_told_apart_and_nothing_is_dead_before_its_time() {
    let _turn = report::turn().await;
    let world = World::new().await;
    let address = world.receiver.addr();
    let cases = [
        ("http://nowhere.invalid/".to_owned(), "dead", "resolve the host's name"),
        ("http://127.0.0.1:1/".to_owned(), "dead", "connect: connection refused"),
        (format!("https://{address}/"), "dead", "TLS"),
        (world.receiver.url("reset"), "uncertain", "reset"),
        (world.receiver.url("hang"), "uncertain", "no answer within"),
        (world.receiver.url("garbage"), "uncertain", "no HTTP"),
    ];
    let mut rows = Vec::new();
    for (number, (endpoint, status, error)) in cases.into_iter().enumerate() {
        rows.push((world.insert(&format!("case-{number}"), &endpoint, "{}").await, status, error));
    }
    // An idle connection that is closed without notice, whenever it would be used again.
    for number in 0..30 {
        world.insert_script(&format!("bye-{number}"), &format!("bye:{}", number % 4)).await;
    }
    let relay = "concurrency: 4";
    let policy = "timeouts: {connect: 500ms, total: 1s}\nretry: {base: 20ms, cap: 50ms, maxAttempts: 3}";
    let _relay = world.relay_with(relay, policy).await;
    for (id, status, error) in rows {
        let row = world.ended(id).await;
        assert_eq!((row.end(), row.attempts), ((status, Some("exhausted")), 3), "{error}: {row:?}");
        assert!(row.last_error.as_ref().unwrap().contains(error), "{error}: {row:?}");
    }
    world.all_ended().await;
    let delivered = "SELECT count(*) FROM agent_outbox WHERE status = 'succeeded' AND idempotency_key LIKE 'bye-%'";
    assert_eq!(world.number(delivered).await, 30);
    assert_eq!(world.receiver.ledger().counts().duplicate_effects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_12_a_row_whose_workers_are_killed_one_after_another_ends_parked_while_others_are_delivered() {
    let _turn = report::turn().await;
    let world = World::new().await;
    let poison = world.insert_script("poison", "hang").await;
    let attempts = if report::full() { 5 } else { 2 };
    let policy = format!("timeouts: {{connect: 500ms, total: 1s}}\nretry: {{maxAttempts: {attempts}}}");
    for attempt in 1..=attempts {
        let other = world.insert_script(&format!("other-{attempt}"), "201").await;
        let relay = world.relay_with("leaseDuration: 3s", &policy).await;
        assert_eq!(world.ended(other).await.status, "succeeded");
        let sent = |ledger: &outbox_operator::sandbox::Ledger| {
            Some(()).filter(|()| ledger.requests_of("poison").len() == attempt)
        };
        world.receiver.ledger().wait_for(PATIENCE, sent).await.unwrap();
        relay.signal("KILL");
        relay.wait(PATIENCE).await;
        assert_eq!(world.row(poison).await.status, "in_flight", "attempt {attempt}");
    }
    let _relay = world.relay_with("leaseDuration: 3s", &policy).await;
    let row = world.ended(poison).await;
    let unknown = i32::try_from(attempts).unwrap();
    assert_eq!(
        (row.end(), row.parked, row.unknown_attempts),
        (("uncertain", Some("exhausted")), true, unknown),
        "{row:?}"
    );
    assert_eq!(world.receiver.ledger().requests_of("poison").len(), attempts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_20_three_pods_send_to_a_dead_endpoint_for_two_minutes_about_what_one_would() {
    if !report::full() {
        return;
    }
    let _turn = report::turn().await;
    let mut sent = Vec::new();
    for pods in [1, 3] {
        let world = World::new().await;
        // Three spellings of one destination.
        let at = world.receiver.addr();
        for number in 0..300 {
            let endpoint = match number % 3 {
                0 => format!("http://localhost:{}/do/500/a", at.port()),
                1 => format!("HTTP://LocalHost:{}/do/500/a", at.port()),
                _ => format!("http://localhost.:{}/do/500/a", at.port()),
            };
            world.insert(&format!("down-{number}"), &endpoint, "{}").await;
        }
        let policy =
            "destination: {maxInFlight: 16, hold: {afterFailures: 5, base: 5s, cap: 10m}}\nretry: {base: 2s, cap: 1h}";
        let mut relays = Vec::new();
        for _ in 0..pods {
            relays.push(world.relay_with("", policy).await);
        }
        pass(Duration::from_secs(120)).await;
        assert_eq!(world.number("SELECT count(*) FROM agent_outbox_destinations").await, 1);
        sent.push(world.receiver.ledger().counts().requests);
    }
    report::print(&format!(
        "\nTo an endpoint that is down, in two minutes: {} requests by one pod, {} by three",
        sent[0], sent[1]
    ));
    assert!(sent[1] <= sent[0] + 2 * 16, "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_21_a_minute_without_database_and_a_minute_of_read_only_cost_no_attempt() {
    if !report::full() {
        return;
    }
    let _turn = report::turn().await;
    let mut server = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    let mut world = World::on(server.create_database("outbox").await.unwrap()).await;
    world.migrate().await;
    let relay = world.relay().await;
    let mut resumed = Vec::new();
    for away in ["stopped", "read-only"] {
        let before = world.insert_script(&format!("before {away}"), "201").await;
        assert_eq!(world.ended(before).await.attempts, 1);
        let logged = relay.log().len();
        if away == "stopped" {
            server.stop().await.unwrap();
            pass(Duration::from_secs(60)).await;
            server.restart().await.unwrap();
        } else {
            world.execute("ALTER SYSTEM SET default_transaction_read_only = on").await;
            world.execute("SELECT pg_reload_conf()").await;
            pass(Duration::from_secs(60)).await;
            world.execute("ALTER SYSTEM RESET default_transaction_read_only").await;
            world.execute("SELECT pg_reload_conf()").await;
        }
        assert_eq!(relay.get("/healthz").await.unwrap().0, 200, "the pod is not restarted");
        assert!(relay.log().len() - logged <= 8, "{away}: {:?}", relay.log());
        let back = Instant::now();
        world = world.reconnected().await;
        let after = world.insert_script(&format!("after {away}"), "201").await;
        assert_eq!(world.ended(after).await.attempts, 1, "{away}");
        resumed.push(back.elapsed());
    }
    report::print(&format!(
        "\nAfter a minute without database delivery resumed in {:.1} s, after a minute of read-only in {:.1} s; {} log lines in all",
        resumed[0].as_secs_f64(),
        resumed[1].as_secs_f64(),
        relay.log().len()
    ));
    assert!(resumed.iter().all(|time| *time < Duration::from_secs(15)), "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_23_two_of_three_pods_are_told_to_stop_amid_requests_of_twenty_seconds() {
    if !report::full() {
        return;
    }
    let _turn = report::turn().await;
    let world = World::new().await;
    for number in 0..60 {
        world.insert_script(&format!("row-{number}"), "slow:20000").await;
    }
    let (relay, policy) = ("concurrency: 5\nclaimBatch: 50\nleaseDuration: 60s", "timeouts: {connect: 1s, total: 30s}");
    let one = world.relay_with(relay, policy).await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 5).await.unwrap();
    let two = world.relay_with(relay, policy).await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 10).await.unwrap();
    let three = world.relay_with("concurrency: 30\nleaseDuration: 60s", policy).await;
    let told = Instant::now();
    for relay in [&one, &two] {
        relay.signal("TERM");
    }
    let stopped: Vec<Relay> = vec![one, two];
    for relay in stopped {
        assert_eq!(relay.wait(Duration::from_secs(30)).await.code(), Some(0));
    }
    let took = told.elapsed();
    tokio::time::timeout(Duration::from_secs(120), async {
        while world.number("SELECT count(*) FROM agent_outbox WHERE status <> 'succeeded'").await > 0 {
            pass(Duration::from_millis(200)).await;
        }
    })
    .await
    .unwrap();
    let counts = world.receiver.ledger().counts();
    report::print(&format!(
        "\nTwo of three pods stopped in {:.1} s amid requests of 20 s: {} requests for 60 rows",
        took.as_secs_f64(),
        counts.requests
    ));
    assert_eq!((counts.requests, counts.effects, counts.repeats), (60, 60, 0));
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE attempts = 1 AND unknown_attempts = 0").await, 60);
    drop(three);
}
