//! Rows that reach their receiver: bytes, retries, waits.

use crate::support::{PATIENCE, World};

#[tokio::test]
async fn rc_01_the_body_is_the_payload_as_postgresql_prints_it() {
    let world = World::new().await;
    let payloads = [
        r#"{"n": 12345678901234567890123, "u": 18446744073709551616, "f": 0.1000000000000000055511151231257827, "t": 1.10}"#,
        r#"{"b":1,  "a":1, "a":2, "n":1e2, "z":-0}"#,
        r#""ok""#,
        "null",
        "[]",
        r#"{"n": 1e400}"#,
    ];
    let mut ids = Vec::new();
    for (number, payload) in payloads.iter().enumerate() {
        ids.push(world.insert(&format!("rc-01-{number}"), &world.receiver.url("201"), payload).await);
    }
    let _relay = world.relay().await;
    for (number, id) in ids.into_iter().enumerate() {
        let row = world.ended(id).await;
        assert_eq!(row.status, "succeeded");
        let requests = world.receiver.ledger().requests_of(&format!("rc-01-{number}"));
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].body.as_deref(), Some(row.payload.as_str()));
        assert_eq!(requests[0].header("content-type"), Some("application/json"));
        assert_eq!(requests[0].header("accept-encoding"), Some("identity"));
        assert_eq!(requests[0].header("outbox-attempt"), Some("1"));
    }
}

#[tokio::test]
async fn five_failures_then_success_take_six_attempts_with_growing_waits() {
    let world = World::new().await;
    let id = world.insert_script("flaky", "500x5,200").await;
    // Equal jitter waits at least half of its longest wait, so that growth can be told apart from chance.
    let _relay = world.relay_with("", "retry: {backoff: EqualJitter, base: 200ms, cap: 10s}").await;
    let mut waits = Vec::new();
    for attempt in 1..=5 {
        let row = world.row_when(id, "waiting", |row| row.attempts == attempt && row.status == "pending").await;
        assert_eq!((row.http_status, row.reason.as_deref()), (Some(500), Some("server_error")));
        waits.push(row.due_in.unwrap());
    }
    let row = world.ended(id).await;
    assert_eq!((row.status.as_str(), row.attempts, row.http_status), ("succeeded", 6, Some(200)));
    assert_eq!(row.downstream_id.as_deref(), Some("eff-1"));
    assert_eq!((row.reason, row.last_error), (None, None));
    // Failure 5 waits at least 1.6 s and failure 3 at most 0.8 s; what the test saw of each is a little less.
    assert!(waits[4] > waits[2] && waits[4] > 1.0, "{waits:?}");
    assert_eq!(world.receiver.ledger().counts().changed_bodies, 0);
}

#[tokio::test]
async fn a_permanent_refusal_is_dead_after_one_request() {
    let world = World::new().await;
    let id = world.insert_script("refused", "400").await;
    let _relay = world.relay().await;
    let row = world.ended(id).await;
    assert_eq!((row.end(), row.attempts), (("dead", Some("rejected")), 1));
    assert_eq!(row.last_error.as_deref(), Some("answered 400 Bad Request"));
    assert_eq!(world.receiver.ledger().requests_of("refused").len(), 1);
}

#[tokio::test]
async fn the_second_of_two_transactions_with_one_key_fails_and_names_the_constraint() {
    let world = World::new().await;
    let insert = "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
                  VALUES (gen_random_uuid(), 'o', 'e', 'one-key', 'https://x.test/', '{}')";
    let mut first = world.pool.begin().await.unwrap();
    sqlx::query(insert).execute(&mut *first).await.unwrap();
    let pool = world.pool.clone();
    let second = tokio::spawn(async move { sqlx::query(insert).execute(&pool).await });
    world
        .wait_for(
            "the second insert waits for the first",
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
        .await;
    first.commit().await.unwrap();
    let refused = second.await.unwrap().unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().constraint(), Some("uq_outbox_key"));
}

#[tokio::test]
async fn rc_09_waits_use_no_attempts() {
    let world = World::new().await;
    let busy = world.insert_script("busy", "409:1x3,201").await;
    let throttled = world.insert_script("throttled", "429:1x3,201").await;
    let _relay = world.relay_with("", "retry: {base: 50ms, cap: 200ms, maxAttempts: 2}").await;
    for id in [busy, throttled] {
        let row = world.ended(id).await;
        assert_eq!((row.status.as_str(), row.attempts, row.waits), ("succeeded", 1, 3));
    }
}

#[tokio::test]
async fn rc_09_max_age_ends_endless_waiting() {
    let world = World::new().await;
    let id = world.insert_script("for-ever", "429:1").await;
    let _relay = world.relay_with("", "retry: {base: 50ms, cap: 200ms, maxAge: 2s}").await;
    assert_eq!(world.ended(id).await.end(), ("dead", Some("exhausted")));
}

#[tokio::test]
async fn rc_03_one_bad_row_does_not_stop_the_batch() {
    let world = World::new().await;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let huge = format!("{}/{}", world.receiver.url("201"), "x".repeat(1024 * 1024));
    let good = [
        world.insert("big-number", &world.receiver.url("201"), r#"{"n": 1e400}"#).await,
        world.insert("deep", &world.receiver.url("201"), &deep).await,
        world.insert_script("plain", "201").await,
    ];
    let bad = world.insert("huge", &huge, "{}").await;
    let _relay = world.relay().await;
    for id in good {
        assert_eq!(world.ended(id).await.status, "succeeded");
    }
    assert_eq!(world.ended(bad).await.end(), ("dead", Some("invalid")));
}

#[tokio::test]
async fn a_row_is_not_sent_before_its_time_or_past_its_authority() {
    let world = World::new().await;
    let later = world.insert_script("later", "201").await;
    let late = world.insert_script("late", "201").await;
    world
        .execute(&format!("UPDATE agent_outbox SET next_attempt_at = now() + interval '1 hour' WHERE id = {later}"))
        .await;
    world.execute(&format!("UPDATE agent_outbox SET expires_at = now() - interval '1 second' WHERE id = {late}")).await;
    let _relay = world.relay().await;
    let row = world.ended(late).await;
    assert_eq!((row.end(), row.attempts), (("dead", Some("expired")), 0));
    let witness = world.insert_script("witness", "201").await;
    world.ended(witness).await;
    assert_eq!(world.row(later).await.status, "pending");
    assert_eq!(world.receiver.ledger().counts().requests, 1);
}

#[tokio::test]
async fn secrets_become_headers_and_the_key_can_travel_as_a_structured_string() {
    let world = World::new().await;
    let secrets = world.folder.path().join("secrets");
    std::fs::create_dir_all(secrets.join("crm")).unwrap();
    std::fs::write(secrets.join("crm/token"), "t0ken\n").unwrap();
    std::fs::write(secrets.join("crm/apiKey"), "k3y").unwrap();
    let id = world.insert_script(r#"a"b"#, "201").await;
    world.execute(r#"UPDATE agent_outbox SET headers = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'"#).await;
    let file = world.documents(
        "",
        "request: {method: PUT, headers: {X-Source: billing}, secretHeaders: [{name: X-Api-Key, secretRef: {name: crm, key: apiKey}}], \
         authentication: {bearer: {secretRef: {name: crm, key: token}}}}\nidempotency: {format: StructuredString}",
    );
    let _relay = crate::support::Relay::start(&world.url, &file, &["--secrets-dir", secrets.to_str().unwrap()]);
    // The receiver does not answer PUT with an effect; what it saw is what counts.
    let requests = world
        .receiver
        .ledger()
        .wait_for(PATIENCE, |ledger| Some(ledger.requests()).filter(|requests| !requests.is_empty()))
        .await
        .unwrap();
    let header = |name: &str| requests[0].header(name);
    assert_eq!(requests[0].method, "PUT");
    assert_eq!(header("idempotency-key"), Some(r#""a\"b""#));
    assert_eq!(header("authorization"), Some("Bearer t0ken"));
    assert_eq!(header("x-api-key"), Some("k3y"));
    assert_eq!(header("x-source"), Some("billing"));
    assert_eq!(header("traceparent"), Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    assert!(world.ended(id).await.has_ended());
}

#[tokio::test]
async fn the_history_says_which_attempt_when_by_whom_and_what_came_back() {
    let world = World::new().await;
    let id = world.insert_script("audited", "500,429:1,reset,201").await;
    let _relay = world.relay().await;
    world.ended(id).await;
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT concat_ws(' ', attempt, outcome, reason, http_status, error, duration_ms >= 0, at > now() - interval '1 hour', worker <> '', idempotency_key) \
         FROM agent_outbox_history WHERE row_id = $1 AND act = 'attempt' ORDER BY id",
    )
    .bind(id)
    .fetch_all(&world.pool)
    .await
    .unwrap();
    assert_eq!(
        rows,
        [
            "1 retry server_error 500 answered 500 Internal Server Error t t t audited",
            "2 wait throttled 429 answered 429 Too Many Requests t t t audited",
            "2 uncertain reset the connection broke before the answer: connection reset t t t audited",
        ]
    );
}

#[tokio::test]
async fn the_policy_says_which_attempts_the_history_keeps() {
    for (history, kept) in [("None", 0), ("Failures", 1), ("All", 2)] {
        let world = World::new().await;
        let id = world.insert_script("row", "500,201").await;
        let _relay = world.relay_with("", &format!("history: {history}")).await;
        world.ended(id).await;
        assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, kept, "{history}");
    }
}
