//! Holds, shares and caps of destinations, over all processes of a relay.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, World};

#[tokio::test]
async fn rc_20_a_destination_that_is_down_gets_about_what_one_process_would_send() {
    let world = World::new().await;
    for number in 0..300 {
        world.insert_script(&format!("down-{number}"), "500").await;
    }
    let policy = "destination: {maxInFlight: 16, hold: {afterFailures: 5, base: 400ms, cap: 400ms}}\nretry: {base: 100ms, cap: 200ms, maxAttempts: 100}";
    let _relays =
        [world.relay_with("", policy).await, world.relay_with("", policy).await, world.relay_with("", policy).await];
    world.wait_for("three holds", "SELECT count(*) = 1 FROM agent_outbox_destinations WHERE holds >= 3").await;
    let requests = world.receiver.ledger().counts().requests;
    let holds = u64::try_from(world.number("SELECT holds::bigint FROM agent_outbox_destinations").await).unwrap();
    // Before the first hold at most two rounds of the cap are on the wire, after it one probe a hold.
    assert!(requests <= 2 * 16 + holds, "{requests} requests, {holds} holds");
    // It is back: within one hold everything flows.
    let good = world.receiver.url("201");
    world.execute(&format!("UPDATE agent_outbox SET endpoint = '{good}' WHERE status = 'pending'")).await;
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await, 300);
}

#[tokio::test]
async fn a_held_destination_gets_one_probe_at_a_time_and_its_rows_use_no_attempts() {
    let world = World::new().await;
    for number in 0..40 {
        world.insert_script(&format!("held-{number}"), "500").await;
    }
    let policy = "destination: {maxInFlight: 8, hold: {afterFailures: 3, base: 300ms, cap: 300ms}}\nretry: {base: 10ms, cap: 20ms}";
    let _relays = [world.relay_with("", policy).await, world.relay_with("", policy).await];
    world
        .wait_for(
            "the destination is held",
            "SELECT count(*) > 0 FROM agent_outbox_destinations WHERE held_until > now()",
        )
        .await;
    // What was on the wire when the hold began comes back; from then on a hold's end lets one request out.
    world.wait_for("nothing is on the wire", "SELECT count(*) = 0 FROM agent_outbox WHERE status = 'in_flight'").await;
    let (before, holds) = (
        world.receiver.ledger().counts().requests,
        world.number("SELECT holds::bigint FROM agent_outbox_destinations").await,
    );
    world.wait_for("five more holds", &format!("SELECT holds >= {} FROM agent_outbox_destinations", holds + 5)).await;
    let (after, later) = (
        world.receiver.ledger().counts().requests,
        world.number("SELECT holds::bigint FROM agent_outbox_destinations").await,
    );
    assert!(after - before <= u64::try_from(later - holds).unwrap() + 1, "{before} {after} {holds} {later}");
}

#[tokio::test]
async fn a_429_with_a_time_holds_the_whole_destination() {
    let world = World::new().await;
    let first = world.insert_script("first", "429:2,201").await;
    let _relay = world.relay().await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.requests == 1).await.unwrap();
    world
        .wait_for(
            "held",
            "SELECT count(*) = 1 FROM agent_outbox_destinations WHERE held_until > now() AND reason = 'throttled'",
        )
        .await;
    let behind = world.insert_script("behind", "201").await;
    for id in [first, behind] {
        assert_eq!(world.ended(id).await.attempts, 1);
    }
    let requests = world.receiver.ledger().requests();
    let pause = requests[1].at.duration_since(requests[0].at);
    assert!(pause.as_secs_f64() >= 1.9, "{pause}");
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_destinations WHERE held_until IS NULL").await, 1);
}

#[tokio::test]
async fn rc_26_credentials_that_are_refused_do_not_empty_the_outbox() {
    let world = World::new().await;
    for number in 0..200 {
        world.insert_script(&format!("row-{number}"), "gate:open:401").await;
    }
    world.receiver.ledger().open_gate("open");
    let policy = "destination: {maxInFlight: 4, hold: {afterFailures: 3, base: 10m, cap: 10m}}";
    let relay = world.relay_with("", policy).await;
    world
        .wait_for(
            "held",
            "SELECT count(*) = 1 FROM agent_outbox_destinations WHERE held_until > now() AND reason = 'unauthorized'",
        )
        .await;
    world.wait_for("nothing is on the wire", "SELECT count(*) = 0 FROM agent_outbox WHERE status = 'in_flight'").await;
    let dead =
        world.number("SELECT count(*) FROM agent_outbox WHERE status = 'dead' AND reason = 'unauthorized'").await;
    assert!((3..=12).contains(&dead), "{dead}");
    assert_eq!(
        world.number("SELECT count(*) FROM agent_outbox WHERE status = 'pending' AND attempts = 0").await,
        200 - dead
    );
    // The credentials are mended and the hold's end comes: the rest is delivered.
    let good = world.receiver.url("201");
    world.execute(&format!("UPDATE agent_outbox SET endpoint = '{good}' WHERE status = 'pending'; UPDATE agent_outbox_destinations SET held_until = now()")).await;
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await, 200 - dead);
    drop(relay);
}

#[tokio::test]
async fn rc_19_a_hanging_host_does_not_delay_another_hosts_row() {
    let mut world = World::new().await;
    let other = world.receiver.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    for number in 0..100 {
        world.insert_script(&format!("hangs-{number}"), "hang").await;
    }
    let policy = "timeouts: {connect: 1s, total: 30s}";
    let _relay = world.relay_with("concurrency: 10\nleaseDuration: 60s", policy).await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open >= 9).await.unwrap();
    let inserted = Instant::now();
    let id = world.insert("good", &format!("http://{other}/do/201"), "{}").await;
    assert_eq!(world.ended(id).await.status, "succeeded");
    assert!(inserted.elapsed() < Duration::from_secs(10), "the stated limit of 2 s, times five");
    assert_eq!(world.receiver.ledger().counts().open, 9, "one slot in eight is kept for others");
}

#[tokio::test]
async fn a_held_destinations_rows_do_not_delay_another_destinations_row() {
    let mut world = World::new().await;
    let other = world.receiver.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    world
        .execute("INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             SELECT gen_random_uuid(), 'o', 'e', 'held-' || n, 'http://held.test/', '{}' FROM generate_series(1, 20000) n; \
             INSERT INTO agent_outbox_destinations (scope, destination, held_until, reason) VALUES ('test/quick', 'http://held.test', now() + interval '1 hour', 'manual')")
        .await;
    let _relay = world.relay().await;
    let id = world.insert("good", &format!("http://{other}/do/201"), "{}").await;
    assert_eq!(world.ended(id).await.status, "succeeded");
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE idempotency_key LIKE 'held-%' AND (status <> 'pending' OR attempts > 0)").await, 0);
}

#[tokio::test]
async fn caps_hold_over_all_processes() {
    let world = World::new().await;
    for number in 0..40 {
        world.insert_script(&format!("capped-{number}"), "slow:100").await;
    }
    let policy = "destination: {maxInFlight: 3}";
    let _relays =
        [world.relay_with("", policy).await, world.relay_with("", policy).await, world.relay_with("", policy).await];
    let mut most = 0;
    let deadline = Instant::now() + PATIENCE;
    while world.receiver.ledger().counts().effects < 40 {
        assert!(Instant::now() < deadline);
        most = most.max(world.receiver.ledger().counts().open);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((1..=3).contains(&most), "{most}");
}

#[tokio::test]
async fn a_worker_that_died_keeps_no_room_under_a_cap() {
    let world = World::new().await;
    let row = world.insert_script("first", "hang,201").await;
    let relay = world.relay_with("", "destination: {maxInFlight: 1}").await;
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 1).await.unwrap();
    relay.signal("KILL");
    relay.wait(PATIENCE).await;
    let behind = world.insert_script("behind", "201").await;
    let _relay = world.relay_with("", "destination: {maxInFlight: 1}").await;
    for id in [row, behind] {
        assert_eq!(world.ended(id).await.status, "succeeded");
    }
}

#[tokio::test]
async fn a_rate_is_kept_over_all_processes() {
    let world = World::new().await;
    for number in 0..40 {
        world.insert_script(&format!("rated-{number}"), "201").await;
    }
    let policy = "destination: {ratePerSecond: 10}";
    let _relays = [world.relay_with("", policy).await, world.relay_with("", policy).await];
    world.all_ended().await;
    let requests = world.receiver.ledger().requests();
    let span = requests.last().unwrap().at.duration_since(requests[0].at);
    // A full bucket of ten, then ten a second: thirty more take three seconds.
    assert!(span.as_secs_f64() >= 2.8, "{span}");
}

#[tokio::test]
async fn rows_from_before_the_trigger_are_claimed_without_a_backfill() {
    let world = World::new().await;
    let id = world.insert_script("old", "201").await;
    world.execute("UPDATE agent_outbox SET destination = NULL").await;
    let _relay = world.relay().await;
    assert_eq!(world.ended(id).await.status, "succeeded");
}

#[tokio::test]
async fn the_databases_bucket_is_the_judges_destination() {
    let world = World::new().await;
    let mut wrong = Vec::new();
    for endpoint in [
        "https://x.test/a",
        "HTTPS://X.Test:443/a",
        "https://x.test./a",
        "http://u:p@x.test/",
        "http://u:p%40@X.test:8080?q",
        "http://[::1]:80/",
        "http://[FE80::1]:8080/x",
        "https://x.test:0443/",
        "http://x.test:00080",
        "http://x.test#f",
        "https://a.b.c.test:8443/p?q=http://y/",
    ] {
        let bucket: String =
            sqlx::query_scalar("SELECT agent_outbox_origin($1)").bind(endpoint).fetch_one(&world.pool).await.unwrap();
        let judge = outbox_operator::domain::destination::Endpoint::parse(endpoint).unwrap().destination().to_string();
        if bucket != judge {
            wrong.push(format!("{endpoint}: {bucket} is not {judge}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for endpoint in ["", "x", "ftp://x.test/", "http://", &"http://".repeat(100_000)] {
        world.insert(&format!("never-fails-{}", endpoint.len()), endpoint, "{}").await;
    }
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE octet_length(destination) > 300").await, 0);
}
