//! Producers: what they may do with few rights, and what they read.

use outbox_operator::store::{TableName, migrate};
use sqlx::{Connection, PgConnection};

use crate::{
    help::row_in,
    support::{TENANT, World},
};

/// A session of a role that may insert and read, and call the functions.
async fn producer(world: &World, role: &str) -> PgConnection {
    // Roles belong to the server, which these tests share.
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; \
             GRANT INSERT, SELECT ON agent_outbox TO {role}; GRANT USAGE ON SEQUENCE agent_outbox_id_seq TO {role}; \
             GRANT SELECT ON agent_outbox_intents TO {role}; \
             GRANT EXECUTE ON FUNCTION agent_outbox_cancel, agent_outbox_supersede TO {role}"
        ))
        .await;
    PgConnection::connect(&world.url.replace("postgres@", &format!("{role}@"))).await.unwrap()
}

async fn code(session: &mut PgConnection, sql: &'static str) -> String {
    match sqlx::raw_sql(sql).execute(session).await {
        Ok(_) => "00000".to_owned(),
        Err(error) => error.into_database_error().unwrap().code().unwrap().into_owned(),
    }
}

#[tokio::test]
async fn a_producer_with_insert_select_and_execute_does_all_that_producers_do_and_no_more() {
    let world = World::new().await;
    let mut session = producer(&world, "producer_few_rights").await;
    // Whatever stands first in the caller's search_path has no say in functions with other rights.
    world.execute("CREATE SCHEMA evil; GRANT USAGE, CREATE ON SCHEMA evil TO producer_few_rights").await;
    assert_eq!(
        code(
            &mut session,
            "CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$; \
             CREATE FUNCTION evil.left(text, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$; \
             CREATE FUNCTION evil.format(text, VARIADIC \"any\") RETURNS text LANGUAGE internal AS 'text_format'; ",
        )
        .await,
        "42501",
        "internal functions are for superusers"
    );
    for (expected, sql) in [
        (
            "00000",
            "CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$",
        ),
        (
            "00000",
            "CREATE FUNCTION evil.left(text, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$",
        ),
        ("00000", "SET search_path = evil, public, pg_catalog"),
        (
            "00000",
            "SELECT agent_outbox_enqueue(tenant => '6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11', operation => 'pay', entity => 'e', \
                   key => 'k1', endpoint => 'https://x.test/', payload => '{\"n\": 1.10}')",
        ),
        (
            "23505",
            "SELECT agent_outbox_enqueue('6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11', 'pay', 'e', 'k1', 'https://x.test/', '{}')",
        ),
        ("00000", "SELECT agent_outbox_supersede(key => 'k1', new_key => 'k2', payload => '{}', note => 'new price')"),
        ("00000", "SELECT agent_outbox_cancel(key => 'k2', note => 'order withdrawn')"),
        ("OB409", "SELECT agent_outbox_cancel('k2')"),
        ("OB404", "SELECT agent_outbox_cancel('k3')"),
        ("OB404", "SELECT agent_outbox_cancel(NULL)"),
        ("00000", "SELECT state FROM agent_outbox_intents WHERE idempotency_key = 'k2'"),
        ("42501", "UPDATE agent_outbox SET status = 'succeeded'"),
        ("42501", "DELETE FROM agent_outbox"),
        ("42501", "SELECT agent_outbox_retire('k2', 'succeeded', true)"),
        ("42501", "SELECT * FROM agent_outbox_history"),
        (
            "42501",
            "INSERT INTO agent_outbox_history (row_id, idempotency_key, tenant_id, operation, entity_id, act) \
                   VALUES (1, 'k', gen_random_uuid(), 'o', 'e', 'replay')",
        ),
        ("55000", "UPDATE agent_outbox_intents SET attempts = 0"),
        ("55000", "DELETE FROM agent_outbox_intents"),
    ] {
        assert_eq!(code(&mut session, sql).await, expected, "{sql}");
    }
    let who = "SELECT count(*) FROM agent_outbox_history WHERE worker = 'producer_few_rights' AND actor = 'producer_few_rights'";
    assert_eq!(world.number(who).await, 2);
}

#[tokio::test]
async fn without_the_grant_nobody_cancels() {
    let world = World::new().await;
    row_in(&world, "pending", "k").await;
    let mut session = producer(&world, "producer_without").await;
    world.execute("REVOKE EXECUTE ON FUNCTION agent_outbox_cancel, agent_outbox_supersede FROM producer_without").await;
    assert_eq!(code(&mut session, "SELECT agent_outbox_cancel('k')").await, "42501");
    assert_eq!(code(&mut session, "SELECT agent_outbox_supersede('k', 'l', '{}')").await, "42501");
    // A migration that runs again keeps what was granted.
    world
        .execute(
            "GRANT EXECUTE ON FUNCTION agent_outbox_cancel TO producer_without; DELETE FROM agent_outbox_migrations",
        )
        .await;
    world.migrate().await;
    assert_eq!(code(&mut session, "SELECT agent_outbox_supersede('k', 'l', '{}')").await, "42501");
    assert_eq!(code(&mut session, "SELECT agent_outbox_cancel('k')").await, "00000");
}

#[tokio::test]
async fn the_view_speaks_the_words_of_agents() {
    let world = World::new().await;
    for (status, word, maybe) in [
        ("pending", "queued", 0),
        ("in_flight", "delivering", 1),
        ("succeeded", "delivered", 1),
        ("dead", "failed", 0),
        ("uncertain", "uncertain", 1),
        ("cancelled", "cancelled", 0),
        ("superseded", "superseded", 0),
    ] {
        row_in(&world, status, status).await;
        let sql = format!(
            "SELECT may_have_executed::int::bigint FROM agent_outbox_intents WHERE idempotency_key = '{status}' AND state = '{word}' \
             AND tenant_id = '{TENANT}' AND intent_version = 1"
        );
        assert_eq!(world.number(&sql).await, maybe, "{status}");
    }
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns WHERE table_name = 'agent_outbox_intents' ORDER BY ordinal_position",
    )
    .fetch_all(&world.pool)
    .await
    .unwrap();
    for secret in ["payload", "endpoint", "headers"] {
        assert!(!columns.iter().any(|column| column == secret), "{columns:?}");
    }
    // A question by key is answered by the index, however many rows there are.
    world
        .execute("SET enable_seqscan = off; EXPLAIN SELECT state FROM agent_outbox_intents WHERE idempotency_key = 'k'")
        .await;
    let plan: Vec<String> =
        sqlx::query_scalar("EXPLAIN SELECT state FROM agent_outbox_intents WHERE idempotency_key = 'k'")
            .fetch_all(&world.pool)
            .await
            .unwrap();
    assert!(
        plan.iter().any(|line| line.contains("uq_outbox_key") || line.contains("Filter: (idempotency_key")),
        "{plan:?}"
    );
}

#[tokio::test]
async fn row_security_of_the_table_holds_for_the_view() {
    let world = World::new().await;
    let version = world.number("SELECT current_setting('server_version_num')::bigint").await;
    row_in(&world, "pending", "mine").await;
    row_in(&world, "pending", "theirs").await;
    let mut session = producer(&world, "producer_of_one_tenant").await;
    world
        .execute("ALTER TABLE agent_outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON agent_outbox TO producer_of_one_tenant USING (idempotency_key = 'mine')")
        .await;
    let seen: Vec<String> =
        sqlx::query_scalar("SELECT idempotency_key FROM agent_outbox_intents").fetch_all(&mut session).await.unwrap();
    if version >= 150_000 {
        assert_eq!(seen, ["mine"]);
    }
}

#[tokio::test]
async fn two_tables_in_one_schema_have_each_their_own() {
    let world = World::new().await;
    for name in ["second", "Outbox \"Rows\""] {
        let table = TableName::new("public", name);
        migrate::migrate(&world.connect_settings(), &table, &|_| {}).await.unwrap();
        let call = |function: &str, args: &str| format!("SELECT {}({args})", table.beside(function));
        world.number(&call("enqueue", "gen_random_uuid(), 'o', 'e', 'same key', 'https://x.test/', '{}'")).await;
        world.number(&call("supersede", "'same key', 'next key', '{}'")).await;
        world.number(&call("cancel", "'next key'")).await;
        assert_eq!(world.number(&format!("SELECT count(*) FROM {}", table.history())).await, 2);
        assert_eq!(
            world
                .number(&format!(
                    "SELECT count(*) FROM {} WHERE state IN ('cancelled', 'superseded')",
                    table.beside("intents")
                ))
                .await,
            2
        );
    }
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, 0);
}
