//! Rows that are taken back: by cancel and by supersede, also while they are being claimed.

use sqlx::{Postgres, Row as _, Transaction, postgres::PgDatabaseError};

use crate::{
    help::{Made, history, row_in, run, text},
    support::World,
};

/// SQLSTATE, message and detail of a refusal.
fn refusal(error: sqlx::Error) -> (String, String, Option<String>) {
    let error = error.into_database_error().unwrap();
    let detail = error.try_downcast_ref::<PgDatabaseError>().unwrap().detail().map(str::to_owned);
    (error.code().unwrap().into_owned(), error.message().to_owned(), detail)
}

async fn call(world: &World, sql: &'static str, key: &str) -> Result<i64, (String, String, Option<String>)> {
    sqlx::query_scalar(sql).bind(key).fetch_one(&world.pool).await.map_err(refusal)
}

const CANCEL: &str = "SELECT agent_outbox_cancel($1)";
const CANCEL_ANYWAY: &str = "SELECT agent_outbox_cancel($1, allow_unknown => true, note => 'told to')";
const SUPERSEDE: &str = "SELECT agent_outbox_supersede($1, $1 || '-2', '{\"v\": 2}')";
const SUPERSEDE_ANYWAY: &str = "SELECT agent_outbox_supersede($1, $1 || '-2', '{\"v\": 2}', allow_unknown => true)";

#[tokio::test]
async fn only_what_nobody_can_have_executed_is_taken_back() {
    for (function, word) in [(CANCEL, "cancelled"), (SUPERSEDE, "superseded")] {
        let world = World::new().await;
        for status in ["pending", "dead"] {
            let id = row_in(&world, status, status).await;
            let answer = call(&world, function, status).await.unwrap();
            assert_eq!(world.row(id).await.status, word);
            let record = &history(&world, id).await[0];
            assert_eq!((record["status_before"].as_str(), record["outcome"].as_str()), (Some(status), Some(word)));
            assert_eq!(record["forced"].as_bool(), Some(false));
            if function == SUPERSEDE {
                assert_eq!(record["next_row_id"].as_i64(), Some(answer));
            }
            // Once more: it has ended.
            let (code, message, detail) = call(&world, function, status).await.unwrap_err();
            assert_eq!((code.as_str(), detail.as_deref()), ("OB409", Some(word)));
            assert_eq!(message, format!("row {id} is {word} already"));
        }
        let rows = world.number("SELECT count(*) FROM agent_outbox").await;
        for (status, set) in [
            ("in_flight", ""),
            ("uncertain", ""),
            ("succeeded", ""),
            ("pending", "unknown_attempts = 1"),
            ("dead", "unknown_attempts = 1"),
        ] {
            let key = format!("refused-{status}");
            let id = Made { status, set, ..Made::default() }.insert(&world, &key).await;
            let (code, message, detail) = call(&world, function, &key).await.unwrap_err();
            assert_eq!((code.as_str(), detail.as_deref()), ("OB409", Some(status)));
            assert!(message.starts_with(&format!("row {id} is {status}")), "{message}");
            assert_eq!(world.row(id).await.status, status);
        }
        assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, rows + 5, "nothing was inserted");
        let (code, ..) = call(&world, function, "no such key").await.unwrap_err();
        assert_eq!(code, "OB404");
    }
}

#[tokio::test]
async fn allow_unknown_takes_any_row_back_and_says_what_it_was() {
    for (function, word) in [(CANCEL_ANYWAY, "cancelled"), (SUPERSEDE_ANYWAY, "superseded")] {
        let world = World::new().await;
        for (status, unknown) in [("in_flight", 1), ("uncertain", 1), ("succeeded", 0)] {
            let id = row_in(&world, status, status).await;
            call(&world, function, status).await.unwrap();
            let row = world.row(id).await;
            assert_eq!(row.end(), (word, Some(format!("was_{status}").as_str())));
            assert_eq!((row.unknown_attempts, row.claimed_by), (unknown, None));
            assert_eq!(text(&world, id, "claim_token").await, None, "whoever held the row cannot write to it any more");
            let record = &history(&world, id).await[0];
            assert_eq!((record["forced"].as_bool(), record["status_before"].as_str()), (Some(true), Some(status)));
            let maybe = format!("SELECT may_have_executed::int::bigint FROM agent_outbox_intents WHERE id = {id}");
            assert_eq!(world.number(&maybe).await, 1);
        }
    }
}

#[tokio::test]
async fn the_next_version_takes_what_it_is_not_given_from_the_old_row() {
    let world = World::new().await;
    let made =
        Made { set: r#"headers = '{"x": "y"}', expires_at = '2100-01-01Z', intent_version = 7"#, ..Made::default() };
    made.insert(&world, "old").await;
    let new = call(&world, SUPERSEDE, "old").await.unwrap();
    let row = sqlx::query(
        "SELECT operation, entity_id, intent_version, idempotency_key, endpoint, payload::text, headers::text, expires_at::text, \
         status, attempts, destination FROM agent_outbox WHERE id = $1",
    )
    .bind(new)
    .fetch_one(&world.pool)
    .await
    .unwrap();
    let text = |place: usize| row.get::<String, _>(place);
    assert_eq!((text(0), text(1), row.get::<i32, _>(2)), ("create_invoice".to_owned(), "old".to_owned(), 8));
    assert_eq!((text(3), text(4)), ("old-2".to_owned(), "https://billing.example/invoices".to_owned()));
    assert_eq!((text(5), text(6)), (r#"{"v": 2}"#.to_owned(), r#"{"x": "y"}"#.to_owned()));
    assert!(text(7).starts_with("2100-01-01"));
    assert_eq!(
        (text(8), row.get::<i32, _>(9), text(10)),
        ("pending".to_owned(), 0, "https://billing.example".to_owned())
    );
}

/// Claims a row in a transaction that stays open, as a relay's claim does for an instant.
async fn claiming(world: &World, id: i64) -> Transaction<'static, Postgres> {
    let mut claim = world.pool.begin().await.unwrap();
    sqlx::query(
        "UPDATE agent_outbox SET status = 'in_flight', attempts = attempts + 1, claim_token = gen_random_uuid(), \
         next_attempt_at = now() + interval '1 minute', locked_until = now() + interval '1 minute' WHERE id = $1",
    )
    .bind(id)
    .execute(&mut *claim)
    .await
    .unwrap();
    claim
}

async fn waits(world: &World) {
    world
        .wait_for(
            "the function waits for the claim",
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
        .await;
}

#[tokio::test]
async fn a_claim_in_progress_is_waited_for_and_what_it_made_of_the_row_is_read() {
    for function in [CANCEL, SUPERSEDE] {
        let world = World::new().await;
        let id = row_in(&world, "pending", "contended").await;
        let claim = claiming(&world, id).await;
        let pool = world.pool.clone();
        let taken =
            tokio::spawn(
                async move { sqlx::query_scalar::<_, i64>(function).bind("contended").fetch_one(&pool).await },
            );
        waits(&world).await;
        claim.commit().await.unwrap();
        let (code, _, detail) = refusal(taken.await.unwrap().unwrap_err());
        assert_eq!((code.as_str(), detail.as_deref()), ("OB409", Some("in_flight")));
        assert_eq!(world.row(id).await.status, "in_flight");
        assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, 1, "nothing retired, nothing inserted");
        assert_eq!(world.number("SELECT count(*) FROM agent_outbox_history").await, 0);
    }
}

#[tokio::test]
async fn a_claim_that_fails_leaves_the_row_to_be_taken_back() {
    for (function, rows) in [(CANCEL, 1), (SUPERSEDE, 2)] {
        let world = World::new().await;
        let id = row_in(&world, "pending", "contended").await;
        let claim = claiming(&world, id).await;
        let pool = world.pool.clone();
        let taken =
            tokio::spawn(
                async move { sqlx::query_scalar::<_, i64>(function).bind("contended").fetch_one(&pool).await },
            );
        waits(&world).await;
        claim.rollback().await.unwrap();
        taken.await.unwrap().unwrap();
        assert!(["cancelled", "superseded"].contains(&world.row(id).await.status.as_str()));
        assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, rows);
    }
}

#[tokio::test]
async fn two_supersedes_of_one_row_make_one_next_version() {
    let world = World::new().await;
    let id = row_in(&world, "pending", "twice").await;
    let mut first = world.pool.begin().await.unwrap();
    sqlx::query("SELECT agent_outbox_supersede('twice', 'twice-2', '{}')").execute(&mut *first).await.unwrap();
    let pool = world.pool.clone();
    let second = tokio::spawn(async move {
        sqlx::query("SELECT agent_outbox_supersede('twice', 'twice-2b', '{}')").execute(&pool).await
    });
    waits(&world).await;
    first.commit().await.unwrap();
    let (code, _, detail) = refusal(second.await.unwrap().unwrap_err());
    assert_eq!((code.as_str(), detail.as_deref()), ("OB409", Some("superseded")));
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, 2);
    assert_eq!(history(&world, id).await.len(), 1);
}

#[tokio::test]
async fn a_worker_whose_row_was_taken_away_changes_nothing() {
    let world = World::new().await;
    let id = world.insert_script("taken", "gate:answer:201").await;
    let _relay = world.relay().await;
    world.row_when(id, "in flight", |row| row.status == "in_flight").await;
    while world.receiver.ledger().requests_of("taken").is_empty() {
        tokio::task::yield_now().await;
    }
    let refused = run(&world, &["cancel", &id.to_string()]);
    assert_eq!(
        (refused.code, refused.refusals()),
        (3, vec![format!("outbox: row {id} is in_flight: see --allow-unknown").as_str()])
    );
    let forced = run(&world, &["cancel", &id.to_string(), "--allow-unknown", "--note", "fraud", "--actor", "eve"]);
    assert_eq!((forced.code, forced.out.as_str()), (0, "1 row cancelled\n"));
    world.receiver.ledger().open_gate("answer");
    world
        .execute("SELECT agent_outbox_enqueue(gen_random_uuid(), 'o', 'e', 'after', 'http://127.0.0.1:1/', '{}')")
        .await;
    // The next row has been through the same settler, so the first one's result has been dropped by then.
    let after: i64 = world.number("SELECT id FROM agent_outbox WHERE idempotency_key = 'after'").await;
    world.row_when(after, "tried", |row| row.reason.as_deref() == Some("connect")).await;
    assert_eq!(world.row(id).await.end(), ("cancelled", Some("was_in_flight")));
    let record = &history(&world, id).await[0];
    assert_eq!(
        (record["actor"].as_str(), record["note"].as_str(), record["forced"].as_bool()),
        (Some("eve"), Some("fraud"), Some(true))
    );
}

#[tokio::test]
async fn cancel_goes_over_its_ids_and_reports_each_refusal() {
    let world = World::new().await;
    let (pending, done) = (row_in(&world, "pending", "p").await, row_in(&world, "succeeded", "s").await);
    let answer = run(&world, &["cancel", &pending.to_string(), &done.to_string(), "987654", "-o", "json"]);
    assert_eq!(answer.code, 3);
    assert_eq!(answer.json()["moved"], serde_json::json!([pending]));
    assert_eq!(answer.json()["refused"][0]["status"], "succeeded");
    assert_eq!(
        answer.refusals(),
        [
            format!("outbox: row {done} is succeeded: see --allow-unknown"),
            "outbox: row 987654: there is no such row".to_owned()
        ]
    );
}
