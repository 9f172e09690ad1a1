//! Creating and adopting the table.

use outbox_operator::store::{TableName, migrate};

use crate::support::{World, outbox, table};

/// The table as the published pattern has it.
const PUBLISHED: &str = "CREATE TABLE agent_outbox (
    id bigserial PRIMARY KEY, tenant_id uuid NOT NULL, operation text NOT NULL, entity_id text NOT NULL,
    intent_version integer NOT NULL DEFAULT 1, idempotency_key text NOT NULL CONSTRAINT uq_outbox_key UNIQUE,
    endpoint text NOT NULL, payload jsonb NOT NULL, status text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0, next_attempt_at timestamptz NOT NULL DEFAULT now(), locked_until timestamptz,
    last_error text, downstream_id text, created_at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX ix_outbox_due ON agent_outbox (next_attempt_at) WHERE status = 'pending';";

#[tokio::test]
async fn the_published_table_is_adopted_with_its_rows_and_its_index() {
    let world = World::empty().await;
    world.execute(PUBLISHED).await;
    let id = world.insert_script("old", "201").await;
    assert_eq!(world.migrate().await.last(), Some(&migrate::LATEST));
    assert_eq!(world.migrate().await, Vec::<i32>::new());
    assert_eq!(world.number("SELECT count(*) FROM pg_indexes WHERE indexname = 'ix_outbox_due'").await, 1);
    let _relay = world.relay().await;
    assert_eq!(world.ended(id).await.status, "succeeded");
}

#[tokio::test]
async fn ten_migrations_at_once_make_one_table() {
    let world = World::empty().await;
    let settings = world.connect_settings();
    let all = (0..10).map(|_| {
        let settings = settings.clone();
        async move { migrate::migrate(&settings, &table(), &|_| {}).await }
    });
    let results = futures::future::join_all(all).await;
    let applied = results.into_iter().map(Result::unwrap).filter(|versions| !versions.is_empty()).count();
    assert_eq!(applied, 1);
}

#[tokio::test]
async fn a_table_that_cannot_be_served_is_refused_by_name_and_left_alone() {
    for (change, mend) in [
        (
            "ALTER TABLE agent_outbox ALTER next_attempt_at TYPE timestamp",
            "column next_attempt_at is timestamp without time zone",
        ),
        (
            "ALTER TABLE agent_outbox ALTER last_error TYPE varchar(499), ALTER downstream_id TYPE varchar(255)",
            "no outbox table: column last_error is character varying(499) and must be text, or hold 500 characters. Change",
        ),
        (
            "ALTER TABLE agent_outbox DROP COLUMN locked_until",
            "column locked_until (timestamp with time zone) is missing",
        ),
        (
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status) VALUES (gen_random_uuid(), 'o', 'e', 'k', 'x', '{}', 'done')",
            "status \"done\"",
        ),
        ("ALTER TABLE agent_outbox RENAME TO x; CREATE VIEW agent_outbox AS SELECT * FROM x", "is a view"),
    ] {
        let world = World::empty().await;
        world.execute(PUBLISHED).await;
        world.execute(change).await;
        let refused = migrate::migrate(&world.connect_settings(), &table(), &|_| {}).await.unwrap_err().to_string();
        assert!(refused.contains(mend), "{change}: {refused}");
        assert_eq!(
            world
                .number("SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'agent_outbox\\_%'")
                .await,
            0
        );
    }
}

#[tokio::test]
async fn an_invalid_index_of_an_interrupted_build_is_built_anew() {
    let world = World::new().await;
    world.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'agent_outbox_claim'::regclass; DELETE FROM agent_outbox_migrations").await;
    assert_eq!(world.migrate().await.last(), Some(&migrate::LATEST));
    assert_eq!(
        world
            .number("SELECT count(*) FROM pg_index WHERE indexrelid = 'agent_outbox_claim'::regclass AND indisvalid")
            .await,
        1
    );
}

#[tokio::test]
async fn names_that_need_quoting_and_two_tables_in_one_schema_work() {
    let world = World::new().await;
    world.execute("CREATE SCHEMA \"Tenant-A\"").await;
    for name in [
        TableName::new("Tenant-A", "Outbox Rows"),
        TableName::new("public", "second"),
        TableName::new("public", "long".repeat(15)),
    ] {
        assert_eq!(
            migrate::migrate(&world.connect_settings(), &name, &|_| {}).await.unwrap().last(),
            Some(&migrate::LATEST)
        );
        assert_eq!(migrate::migrate(&world.connect_settings(), &name, &|_| {}).await.unwrap(), Vec::<i32>::new());
    }
    let (code, out, _) = outbox(&["migrate", "--schema", "Tenant-A", "--table", "Outbox Rows"], Some(&world.url));
    assert_eq!(code, 0);
    assert!(out.contains("nothing to do"), "{out}");
}

#[tokio::test]
async fn a_lock_that_a_writer_holds_is_waited_for_by_name() {
    let world = World::empty().await;
    world.execute(PUBLISHED).await;
    let mut writer = world.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE agent_outbox IN ROW EXCLUSIVE MODE").execute(&mut *writer).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *writer).await.unwrap();
    let (told, mut waits) = tokio::sync::mpsc::unbounded_channel();
    let settings = world.connect_settings();
    let migration = tokio::spawn(async move {
        migrate::migrate(&settings, &table(), &|line: &str| _ = told.send(line.to_owned())).await
    });
    let wanted = format!("held by pid {pid}");
    while !waits.recv().await.unwrap().contains(&wanted) {}
    writer.rollback().await.unwrap();
    assert_eq!(migration.await.unwrap().unwrap().last(), Some(&migrate::LATEST));
}

#[test]
fn a_dry_run_prints_the_sql_and_needs_no_database() {
    let (code, out, _) = outbox(&["migrate", "--dry-run", "--schema", "app"], None);
    assert_eq!(code, 0);
    assert!(
        out.contains("CREATE TABLE IF NOT EXISTS \"app\".\"agent_outbox\"")
            && out.contains("CREATE INDEX CONCURRENTLY"),
        "{out}"
    );
}

/// Roles are the server's, so the name is this database's own.
async fn role(world: &World) -> String {
    let database: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&world.pool).await.unwrap();
    let role = format!("relay_{database}");
    world.execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'relay'")).await;
    let mut url = url::Url::parse(&world.url).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(Some("relay")).unwrap();
    url.into()
}

#[tokio::test]
async fn a_role_that_does_not_own_the_table_works_with_it_before_and_after_an_upgrade() {
    let world = World::new().await;
    let url = role(&world).await;
    let file = world.documents("", "");
    // What is missing is named so that it can be run as it is.
    let (code, _, said) = outbox(&["relay", "--listen", "127.0.0.1:0", "-f", file.to_str().unwrap()], Some(&url));
    assert_ne!(code, 0, "{said}");
    let grants: Vec<&str> = said.split("can give: ").nth(1).unwrap().lines().next().unwrap().split("; ").collect();
    assert_eq!(grants.len(), 7, "{said}");
    for grant in grants {
        world.execute(grant.trim_end_matches('"')).await;
    }
    let id = world.insert_script("first", "201").await;
    let relay = crate::support::Relay::start(&url, &file, &[]);
    relay.ready().await;
    assert_eq!(world.ended(id).await.status, "succeeded");
    relay.stop().await;
    // The newer tables come anew, as by an upgrade from before them.
    world
        .execute("DROP TABLE agent_outbox_cleaners, agent_outbox_relays; DELETE FROM agent_outbox_migrations WHERE version >= 5")
        .await;
    world.migrate().await;
    let id = world.insert_script("second", "201").await;
    let relay = crate::support::Relay::start(&url, &file, &[]);
    relay.ready().await;
    assert_eq!(world.ended(id).await.status, "succeeded");
}
