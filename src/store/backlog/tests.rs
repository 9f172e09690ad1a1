//! The sample against a real table.

use sqlx::{PgPool, Row as _};

use super::*;
use crate::{
    demo::{PostgresOptions, ThrowawayPostgres},
    store::{ConnectSettings, SslSettings},
};

const TENANT: &str = "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11";
const OTHER: &str = "11111111-8f6b-4a53-9b0e-3a3c0d9f1a11";

struct World {
    server: ThrowawayPostgres,
    db: Db,
    pool: PgPool,
    table: TableName,
}

async fn world(table: TableName) -> World {
    let server = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    let settings = ConnectSettings {
        url: server.url(),
        ssl: SslSettings::default(),
        max_connections: 1,
        application_name: "outbox test".to_owned(),
    };
    let pool = PgPool::connect(&server.url()).await.unwrap();
    sqlx::raw_sql(r#"CREATE SCHEMA "Tenant-A""#).execute(&pool).await.unwrap();
    World { db: Db::connect_lazy(&settings).unwrap(), server, pool, table }
}

impl World {
    async fn migrate(&self) {
        let settings = ConnectSettings {
            url: self.server.url(),
            ssl: SslSettings::default(),
            max_connections: 1,
            application_name: "outbox test".to_owned(),
        };
        migrate::migrate(&settings, &self.table, &|_| {}).await.unwrap();
    }

    /// Rows of a tenant in a state; `due` is SQL.
    async fn insert(&self, tenant: &str, count: i32, status: &str, due: &str, reason: &str) {
        let sql = format!(
            "INSERT INTO {} (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, next_attempt_at, reason)
             SELECT '{tenant}', 'op', n::text, gen_random_uuid()::text, 'http://r.test/', '{{}}', '{status}', {due}, nullif('{reason}', '')
             FROM generate_series(1, {count}) AS n",
            self.table.qualified()
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    async fn sample(&self, tenants: &[&str]) -> BacklogSample {
        let tenants: Vec<Uuid> = tenants.iter().map(|tenant| tenant.parse().unwrap()).collect();
        let served = Served { scopes: vec!["test".to_owned()], tenants, ..Served::default() };
        super::look(&self.db, &self.table, &served).await.unwrap()
    }
}

#[tokio::test]
async fn rows_are_counted_in_one_state_each() {
    let world = world(TableName::new("Tenant-A", "Outbox Rows")).await;
    assert_eq!(
        world.sample(&[]).await,
        BacklogSample { schema_version: None, rows: None, registered: None },
        "no table yet"
    );
    world.migrate().await;
    let empty = world.sample(&[]).await;
    assert_eq!(empty.schema_version, Some(migrate::LATEST));
    assert_eq!(empty.rows, Some(BacklogRows::default()), "RC-31: an empty table is 0, and has no age");
    for (count, status, due, reason) in [
        (3, "pending", "now() - interval '90 seconds'", ""),
        (2, "in_flight", "now() - interval '1 second'", ""),
        (1, "uncertain", "now()", ""),
        (4, "pending", "now() + interval '20 seconds'", ""),
        (5, "in_flight", "now() + interval '40 seconds'", ""),
        (6, "uncertain", "now() + interval '1 day'", ""),
        (7, "uncertain", "'infinity'", "timeout"),
        (8, "dead", "now()", "rejected"),
        (1, "dead", "now()", ""),
        (9, "succeeded", "now() - interval '1 day'", ""),
        (1, "cancelled", "now()", ""),
    ] {
        world.insert(TENANT, count, status, due, reason).await;
    }
    world.insert(OTHER, 11, "pending", "now() - interval '1 hour'", "").await;
    let beat = format!(
        "INSERT INTO {} (worker, seen_at, slots, in_hand, completed, drain_per_second) VALUES
         ('a', now(), 64, 10, 100, 5), ('b', now(), 64, 0, 50, NULL), ('gone', now() - interval '31 seconds', 64, 64, 9, 9)",
        world.table.workers()
    );
    sqlx::raw_sql(AssertSqlSafe(beat)).execute(&world.pool).await.unwrap();
    let rows = world.sample(&[TENANT]).await.rows.unwrap();
    let age = rows.oldest_due_age.unwrap().as_secs();
    assert!((90..120).contains(&age), "{age}");
    assert!(rows.next_due_in.unwrap() <= Duration::from_secs(20));
    let counted = BacklogRows {
        due: 6,
        waiting: 4,
        in_flight: 5,
        uncertain_auto: 6,
        uncertain_parked: 7,
        dead: BTreeMap::from([("rejected".to_owned(), 8), ("unknown".to_owned(), 1)]),
        workers: Workers { live: 2, in_hand: 10, slots: 128, completed: 150, measured: 1, drain_per_second: 5.0 },
        oldest_due_age: rows.oldest_due_age,
        oldest_due_at_us: rows.oldest_due_at_us,
        next_due_in: rows.next_due_in,
        saturated: false,
        due_saturated: false,
        unassigned: 17,
    };
    assert_eq!(rows, counted);
    assert_eq!(world.sample(&[]).await.rows.unwrap().due, 17, "all tenants");
}

#[tokio::test]
async fn counts_end_at_their_bound_and_read_the_claim_index_only() {
    let world = world(TableName::new("public", "agent_outbox")).await;
    world.migrate().await;
    world.insert(TENANT, 30_000, "succeeded", "now() - interval '1 day'", "").await;
    world.insert(TENANT, 20_000, "pending", "now() - interval '1 minute'", "").await;
    world.insert(TENANT, 20_000, "pending", "now() + interval '1 day'", "").await;
    world.insert(TENANT, 20_000, "dead", "now()", "rejected").await;
    world.insert(TENANT, 1, "dead", "now()", "zealous").await;
    // No ANALYZE: the planner knows nothing of these rows, as after a burst.
    let rows = world.sample(&[]).await.rows.unwrap();
    assert!(rows.saturated && rows.due_saturated);
    assert_eq!((rows.due, rows.waiting, rows.dead["rejected"]), (DUE_BOUND, OTHER_BOUND, DEAD_BOUND));
    assert_eq!(rows.dead["zealous"], 1, "one reason does not hide another");
    let mut tx = world.db.begin(STATEMENT_TIMEOUT).await.unwrap();
    plan_by_index(&mut tx).await.unwrap();
    for condition in [
        "next_attempt_at <= now()",
        "next_attempt_at > now() AND next_attempt_at < 'infinity' ORDER BY next_attempt_at",
    ] {
        let sql = format!(
            "EXPLAIN SELECT status FROM agent_outbox WHERE status IN ('pending', 'in_flight', 'uncertain') AND {condition} LIMIT 100"
        );
        let plan = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_all(&mut *tx).await.unwrap();
        let plan: String = plan.iter().map(|row| row.get::<String, _>(0) + "\n").collect();
        let by_claim_index = plan.contains("agent_outbox_claim") || plan.contains("ix_outbox_claim");
        assert!(by_claim_index && !plan.contains("Bitmap") && !plan.contains("Sort"), "{plan}");
    }
}

#[tokio::test]
async fn a_database_that_is_away_is_an_error_and_never_zero() {
    let mut world = world(TableName::new("public", "agent_outbox")).await;
    world.migrate().await;
    world.sample(&[]).await;
    world.server.stop().await.unwrap();
    let error = super::look(&world.db, &world.table, &Served::default()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    world.server.restart().await.unwrap();
    assert_eq!(world.sample(&[]).await.rows, Some(BacklogRows::default()), "it comes back by itself");
}

#[tokio::test]
async fn rc_17_rows_of_a_held_destination_are_not_due_until_its_hold_ends() {
    let world = world(TableName::new("public", "agent_outbox")).await;
    world.migrate().await;
    world.insert(TENANT, 300, "pending", "now() - interval '1 minute'", "").await;
    assert_eq!(world.sample(&[]).await.rows.unwrap().due, 300);
    let hold = "INSERT INTO agent_outbox_destinations (scope, destination, held_until, reason) \
                VALUES ('test', 'http://r.test', now() + interval '30 seconds', 'failing'), ('other', 'http://q.test', 'infinity', 'manual')";
    sqlx::raw_sql(hold).execute(&world.pool).await.unwrap();
    let rows = world.sample(&[TENANT]).await.rows.unwrap();
    assert_eq!((rows.due, rows.waiting, rows.oldest_due_at_us, rows.oldest_due_age), (0, 300, None, None));
    assert!(
        rows.next_due_in.is_some_and(|due| due <= Duration::from_secs(30) && due > Duration::from_secs(20)),
        "{rows:?}"
    );
    sqlx::raw_sql("UPDATE agent_outbox SET endpoint = 'http://q.test/' WHERE entity_id = '7'")
        .execute(&world.pool)
        .await
        .unwrap();
    let rows = world.sample(&[]).await.rows.unwrap();
    assert_eq!((rows.due, rows.waiting), (1, 299), "another relay's hold is not ours");
    // A hold that is over lets a probe out: there is work.
    sqlx::raw_sql("UPDATE agent_outbox_destinations SET held_until = now()").execute(&world.pool).await.unwrap();
    assert_eq!(world.sample(&[]).await.rows.unwrap().due, 300);
}

#[tokio::test]
async fn rows_that_wait_for_an_earlier_one_of_their_entity_are_not_due() {
    let world = world(TableName::new("public", "agent_outbox")).await;
    world.migrate().await;
    // Entities 1 to 5: two rows each, the second one due. Dead, parked and waiting ones block their second.
    world.insert(TENANT, 5, "pending", "now()", "").await;
    world.insert(TENANT, 5, "pending", "now()", "").await;
    world.insert(OTHER, 2, "pending", "now()", "").await;
    let set = "UPDATE agent_outbox SET status = 'dead' WHERE id = 1; \
               UPDATE agent_outbox SET status = 'uncertain', next_attempt_at = 'infinity' WHERE id = 2; \
               UPDATE agent_outbox SET next_attempt_at = now() + interval '1 hour' WHERE id = 3; \
               UPDATE agent_outbox SET status = 'succeeded' WHERE id = 4";
    sqlx::raw_sql(set).execute(&world.pool).await.unwrap();
    let due = async |ordering: Option<OnDead>, tenants: &[&str]| {
        let tenants = tenants.iter().map(|tenant| tenant.parse().unwrap()).collect();
        let served = Served { scopes: vec!["test".to_owned()], ordering: vec![ordering], tenants, ..Served::default() };
        let rows = super::look(&world.db, &world.table, &served).await.unwrap().rows.unwrap();
        (rows.due, rows.waiting)
    };
    assert_eq!(due(None, &[TENANT]).await, (6, 1));
    assert_eq!(due(Some(OnDead::Block), &[TENANT]).await, (2, 5), "the second of 4, the first of 5");
    assert_eq!(due(Some(OnDead::Skip), &[TENANT]).await, (3, 4), "and the second of 1");
    assert_eq!(due(Some(OnDead::Block), &[]).await, (4, 5));
    sqlx::raw_sql("UPDATE agent_outbox SET status = 'cancelled' WHERE id IN (1, 2, 3)")
        .execute(&world.pool)
        .await
        .unwrap();
    assert_eq!(due(Some(OnDead::Block), &[TENANT]).await, (5, 1));
}
