//! What is asked before a request: the receiver, what became of a row; the application, whether it may still be sent.

use std::time::Duration;

use outbox_operator::sandbox::step_text;

use crate::support::{Relay, TENANT, World};

/// Asks the sandbox for the effects of a key: one, or an empty list.
fn effects_query(world: &World, more: &str) -> String {
    let address = world.receiver.addr();
    format!(
        "timeouts: {{connect: 1s, total: 1s}}\nidempotency: {{receiver: None}}\n\
         response: {{downstreamId: {{pointer: /0/id}}}}\n\
         statusQuery: {{url: 'http://{address}/effects?key={{key}}', timeout: 1s, settleDelay: 2s, \
         done: [{{statuses: ['200'], body: {{pointer: /0/id, exists: true}}}}], \
         unknown: [{{statuses: ['200'], body: {{pointer: /0/id, exists: false}}}}]{more}}}"
    )
}

/// Asks a scripted path, whatever the key.
fn scripted_query(world: &World, script: &str) -> String {
    format!(
        "timeouts: {{connect: 1s, total: 1s}}\nidempotency: {{receiver: None}}\n\
         statusQuery: {{url: '{}/{{keyHash}}', timeout: 1s, settleDelay: 0s, \
         done: [{{statuses: ['200']}}], unknown: [{{statuses: ['404']}}], pending: [{{statuses: ['202']}}]}}",
        world.receiver.url(script)
    )
}

fn posts(world: &World, key: &str) -> usize {
    world.receiver.ledger().requests_of(key).len()
}

#[tokio::test]
async fn a_receiver_that_knows_the_key_ends_the_doubt_without_a_second_request() {
    let world = World::new().await;
    let id = world.insert_script("lost answer", "lost").await;
    let _relay = world.relay_with("", &effects_query(&world, "")).await;
    let row = world.ended(id).await;
    assert_eq!((row.end(), row.attempts, row.unknown_attempts), (("succeeded", None), 1, 1), "{row:?}");
    assert_eq!(row.downstream_id.as_deref(), Some("eff-1"));
    assert_eq!(posts(&world, "lost answer"), 1);
}

#[tokio::test]
async fn a_receiver_that_does_not_know_the_key_is_believed_after_the_settle_delay_and_gets_it_again() {
    let world = World::new().await;
    let id = world.insert_script("never arrived", "hang,201").await;
    let _relay = world.relay_with("", &effects_query(&world, "")).await;
    let row = world.ended(id).await;
    assert_eq!((row.status.as_str(), row.attempts, row.unknown_attempts), ("succeeded", 2, 1), "{row:?}");
    assert!(row.waits >= 1, "it asked before the delay was over, too: {row:?}");
    let requests = world.receiver.ledger().requests_of("never arrived");
    assert_eq!(requests.len(), 2);
    let between = requests[1].at.duration_since(requests[0].at);
    assert!(between >= jiff::SignedDuration::from_secs(2), "{between:?}");
}

#[tokio::test]
async fn a_request_that_is_still_worked_on_is_asked_about_until_it_is_done() {
    let world = World::new().await;
    let id = world.insert_script("slow work", "reset").await;
    let _relay = world.relay_with("", &scripted_query(&world, "202x2,200")).await;
    let row = world.ended(id).await;
    assert_eq!((row.end(), row.attempts, row.waits), (("succeeded", None), 1, 2), "{row:?}");
    assert_eq!(posts(&world, "slow work"), 1);
}

#[tokio::test]
async fn a_receiver_that_never_says_parks_the_row_when_its_age_is_used_up() {
    let world = World::new().await;
    let id = world.insert_script("no word", "reset").await;
    let _relay =
        world.relay_with("", &format!("{}\nretry: {{base: 50ms, maxAge: 2s}}", scripted_query(&world, "500"))).await;
    let row = world.ended(id).await;
    assert_eq!((row.end(), row.parked, row.attempts), (("uncertain", Some("query_unclear")), true, 1), "{row:?}");
    assert!(row.last_error.unwrap().contains("answered 500"));
    assert_eq!(posts(&world, "no word"), 1);
}

#[tokio::test]
async fn the_row_of_a_killed_worker_is_asked_about_where_nothing_deduplicates() {
    let world = World::new().await;
    let done = world.insert_script("was done", "slow:3000").await;
    let file = world.documents("leaseDuration: 5s", &effects_query(&world, ""));
    let relay = Relay::start(&world.url, &file, &[]);
    world.row_when(done, "in flight", |row| row.status == "in_flight").await;
    while posts(&world, "was done") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.signal("KILL");
    let _second = Relay::start(&world.url, &file, &[]);
    let row = world.ended(done).await;
    // The claim that found the lost lease was given back: asking used no attempt.
    assert_eq!((row.end(), row.attempts, row.unknown_attempts), (("succeeded", None), 1, 1), "{row:?}");
    assert_eq!(posts(&world, "was done"), 1);
}

#[tokio::test]
async fn a_query_carries_the_policys_credentials_and_no_key() {
    let world = World::new().await;
    let folder = world.folder.path().join("secrets");
    std::fs::create_dir_all(folder.join("crm")).unwrap();
    std::fs::write(folder.join("crm/token"), "t0ken\n").unwrap();
    let id = world.insert_script("asked about", "reset").await;
    let policy = format!(
        "{}\nrequest: {{headers: {{X-Source: billing}}, authentication: {{bearer: {{secretRef: {{name: crm, key: token}}}}}}}}",
        scripted_query(&world, "200")
    );
    let file = world.documents("", &policy);
    let _relay = Relay::start(&world.url, &file, &["--secrets-dir", folder.to_str().unwrap()]);
    assert_eq!(world.ended(id).await.status, "succeeded");
    let requests = world.receiver.ledger().requests();
    let query = requests.iter().find(|request| request.method == "GET").unwrap();
    assert_eq!(query.header("authorization"), Some("Bearer t0ken"));
    assert_eq!(query.header("x-source"), Some("billing"));
    assert_eq!((query.header("idempotency-key"), query.body_bytes), (None, 0));
    // SHA-256 of the key, its first 40 digits.
    let hash = &outbox_operator::sandbox::sha256_hex(b"asked about")[..40];
    assert!(query.path.ends_with(hash), "{}", query.path);
}

async fn with_permissions(world: &World) {
    world
        .execute(
            "CREATE SCHEMA app; CREATE TABLE app.permissions (id bigint, allowed boolean, reason text, fails boolean NOT NULL DEFAULT false); \
             CREATE TABLE app.calls (ids bigint[]); \
             CREATE FUNCTION app.may_send(ids bigint[]) RETURNS TABLE (id bigint, allowed boolean, reason text) LANGUAGE plpgsql AS $$ \
             BEGIN \
               INSERT INTO app.calls VALUES (ids); \
               IF EXISTS (SELECT FROM app.permissions p WHERE p.id = ANY (ids) AND p.fails) THEN RAISE EXCEPTION 's3cret'; END IF; \
               RETURN QUERY SELECT p.id, p.allowed, p.reason FROM app.permissions p WHERE p.id = ANY (ids); \
             END $$",
        )
        .await;
}

async fn permit(world: &World, id: i64, allowed: &str, reason: &str) {
    world.execute(&format!("INSERT INTO app.permissions VALUES ({id}, {allowed}, '{reason}')")).await;
}

#[tokio::test]
async fn a_sql_function_says_which_rows_may_still_be_sent() {
    let world = World::new().await;
    with_permissions(&world).await;
    let allowed = world.insert_script("allowed", "201").await;
    let denied = world.insert_script("denied", "201").await;
    let null = world.insert_script("neither", "201").await;
    let silent = world.insert_script("no word", "201").await;
    let twice = world.insert_script("both", "201").await;
    permit(&world, allowed, "true", "").await;
    permit(&world, denied, "false", "the plan was withdrawn").await;
    permit(&world, null, "NULL", "").await;
    permit(&world, twice, "true", "").await;
    permit(&world, twice, "false", "").await;
    let _relay = world
        .relay_with(
            "leaseDuration: 10s",
            "preDispatch: {sqlFunction: App.May_Send}\nretry: {base: 50ms, cap: 100ms, maxAttempts: 3}",
        )
        .await;
    assert_eq!(world.ended(allowed).await.status, "succeeded");
    let row = world.ended(denied).await;
    assert_eq!((row.end(), row.attempts), (("dead", Some("revoked")), 0));
    assert_eq!(row.last_error.as_deref(), Some("not sent: revoked: the plan was withdrawn"));
    for (id, said) in
        [(null, "neither true nor false"), (silent, "said nothing of the row"), (twice, "said two things of one row")]
    {
        let row = world.ended(id).await;
        assert_eq!((row.end(), row.attempts), (("dead", Some("exhausted")), 3), "{said}");
        assert!(row.last_error.as_ref().unwrap().contains(said), "{row:?}");
    }
    assert_eq!(world.receiver.ledger().counts().requests, 1);
}

#[tokio::test]
async fn rows_that_are_asked_about_at_one_time_share_a_statement_and_one_bad_row_stops_no_other() {
    let world = World::new().await;
    with_permissions(&world).await;
    let mut ids = Vec::new();
    for number in 0..100 {
        ids.push(world.insert_script(&format!("shared-{number}"), "201").await);
    }
    world.execute("INSERT INTO app.permissions SELECT id, true, '' FROM agent_outbox").await;
    let _relay = world
        .relay_with(
            "leaseDuration: 10s\nconcurrency: 100",
            "preDispatch: {sqlFunction: app.may_send}\nretry: {base: 50ms, cap: 100ms, maxAttempts: 2}",
        )
        .await;
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await, 100);
    let calls = world.number("SELECT count(*) FROM app.calls").await;
    assert!(calls <= 50, "100 rows took {calls} statements");

    let bad = world.insert_script("bad", "201").await;
    world.execute(&format!("INSERT INTO app.permissions VALUES ({bad}, true, '', true)")).await;
    let mut good = Vec::new();
    for number in 0..10 {
        let id = world.insert_script(&format!("good-{number}"), "201").await;
        permit(&world, id, "true", "").await;
        good.push(id);
    }
    let row = world.ended(bad).await;
    assert_eq!(row.end(), ("dead", Some("exhausted")));
    // The function's own words may quote what nobody should read here.
    assert_eq!(row.last_error.as_deref(), Some("not sent: the pre-dispatch function failed with SQLSTATE P0001"));
    for id in good {
        assert_eq!(world.ended(id).await.status, "succeeded");
    }
}

#[tokio::test]
async fn a_relay_waits_for_its_pre_dispatch_function_and_says_what_is_missing() {
    let world = World::new().await;
    let id = world.insert_script("early", "201").await;
    let file = world.documents("leaseDuration: 10s", "preDispatch: {sqlFunction: app.may_send}");
    let relay = Relay::start(&world.url, &file, &[]);
    let said = loop {
        if let Some((503, text)) = relay.get("/readyz").await
            && text.contains("sqlFunction")
        {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(said.contains(r#"finds no function "app"."may_send"(ids bigint[])"#), "{said}");
    assert_eq!(world.row(id).await.status, "pending");
    with_permissions(&world).await;
    permit(&world, id, "true", "").await;
    assert_eq!(world.ended(id).await.status, "succeeded");
}

#[tokio::test]
async fn a_row_that_waits_for_a_slow_function_is_not_sent_without_its_word() {
    let world = World::new().await;
    let id = world.insert_script("slow check", "201").await;
    world
        .execute(
            "CREATE FUNCTION slow(ids bigint[]) RETURNS TABLE (id bigint, allowed boolean, reason text) LANGUAGE sql AS \
             $$ SELECT unnest(ids), true, pg_sleep(60)::text $$",
        )
        .await;
    let _relay =
        world.relay_with("leaseDuration: 10s", "preDispatch: {sqlFunction: slow}\nretry: {maxAttempts: 1}").await;
    let row = world.ended(id).await;
    assert_eq!(row.end(), ("dead", Some("exhausted")));
    assert!(row.last_error.unwrap().contains("did not answer in time"));
    assert_eq!(world.receiver.ledger().counts().requests, 0);
}

#[tokio::test]
async fn a_function_that_is_slow_for_many_is_asked_about_fewer_and_costs_no_row_an_attempt() {
    let world = World::new().await;
    for number in 0..400 {
        world.insert_script(&format!("many-{number}"), "201").await;
    }
    world
        .execute(
            "CREATE FUNCTION slow_each(ids bigint[]) RETURNS TABLE (id bigint, allowed boolean, reason text) LANGUAGE sql AS \
             $$ SELECT i, true, pg_sleep(0.02)::text FROM unnest(ids) AS i $$",
        )
        .await;
    let _relay = world
        .relay_with(
            "leaseDuration: 10s\nconcurrency: 400",
            "preDispatch: {sqlFunction: slow_each}\nretry: {base: 50ms, cap: 100ms, maxAttempts: 1}",
        )
        .await;
    world.all_ended().await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE status = 'succeeded'").await, 400);
    assert!(
        world.number("SELECT count(*) FROM agent_outbox WHERE waits > 0").await > 0,
        "none was asked about too many"
    );
}

#[tokio::test]
async fn a_service_says_which_rows_may_still_be_sent() {
    let world = World::new().await;
    let yes = step_text(r#"{"allow": true}"#);
    let url = world.receiver.url(&format!("500,body-200:{yes}"));
    let id = world.insert_script("asked", "201").await;
    let relay =
        world.relay_with("leaseDuration: 10s", &format!("preDispatch: {{http: {{url: '{url}', timeout: 1s}}}}")).await;
    let row = world.ended(id).await;
    assert_eq!((row.status.as_str(), row.attempts, row.waits, row.unknown_attempts), ("succeeded", 1, 1, 0));
    let requests = world.receiver.ledger().requests();
    let asked: serde_json::Value = serde_json::from_str(requests[0].body.as_ref().unwrap()).unwrap();
    assert_eq!(
        asked,
        serde_json::json!({"id": id, "tenant": TENANT, "operation": "create_invoice", "entity": "asked", "key": "asked"})
    );
    assert_eq!(relay.stop().await.code(), Some(0));

    let world = World::new().await;
    let no = step_text(r#"{"allow": false, "reason": "over budget"}"#);
    let url = world.receiver.url(&format!("body-200:{no}"));
    let id = world.insert_script("refused", "201").await;
    let _relay =
        world.relay_with("leaseDuration: 10s", &format!("preDispatch: {{http: {{url: '{url}', timeout: 1s}}}}")).await;
    let row = world.ended(id).await;
    assert_eq!((row.end(), row.attempts), (("dead", Some("revoked")), 0));
    assert_eq!(row.last_error.as_deref(), Some("not sent: revoked: over budget"));
    assert_eq!(posts(&world, "refused"), 0);
}

#[tokio::test]
async fn questions_obey_the_egress_rules() {
    let world = World::new().await;
    let id = world.insert_script("checked", "201").await;
    let doubt = world.insert_script("asked", "reset").await;
    let port = world.receiver.addr().port();
    let _relay = world
        .relay_with(
            "leaseDuration: 10s",
            &format!(
                "retry: {{base: 50ms, cap: 100ms, maxAttempts: 2, maxAge: 2s}}\nidempotency: {{receiver: None}}\n\
                 egress: {{allowCidrs: ['127.0.0.1/32']}}\n\
                 statusQuery: {{url: 'http://127.0.0.2:{port}/{{key}}', timeout: 1s, done: [{{statuses: ['2xx']}}]}}"
            ),
        )
        .await;
    assert_eq!(world.ended(id).await.status, "succeeded");
    let row = world.ended(doubt).await;
    assert_eq!(row.end(), ("uncertain", Some("query_unclear")));
    assert!(row.last_error.unwrap().contains("127.0.0.2"));
    assert_eq!(world.receiver.ledger().counts().requests, 2);
}
