//! Brings a table to the shape that the relay needs: creates it, or adopts the application's own.
//!
//! Versions are the files of `migrations/`. Each is a list of steps that may be run again, so an interrupted migration
//! is resumed by running it once more. One migration runs at a time per table (a session's advisory lock); a second one
//! waits and then finds nothing to do. A lock that writers hold is asked for only as long as [`LOCK_TIMEOUT`].

mod adopt;
mod script;

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection, Postgres, Row, Transaction};

use super::{ConnectSettings, StoreError, TableName, table::literal};
pub use script::Script;
use script::Step;

/// The schema version that this program writes and reads.
pub const LATEST: i32 = 9;

/// Longest wait for a lock that would hold up the application's writers.
const LOCK_TIMEOUT: Duration = Duration::from_millis(800);
/// How long a step is tried again while somebody holds the lock it needs, or another migration runs.
const PATIENCE: Duration = Duration::from_secs(600);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells a person what goes on: a step that begins, or who stands in the way.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The version of the table, `None` when it was never migrated (or is not there).
pub async fn version(tx: &mut Transaction<'static, Postgres>, table: &TableName) -> Result<Option<i32>, StoreError> {
    applied(&mut *tx, table).await
}

/// The SQL that [`migrate`] would run on a table that has none of it.
pub fn plan(table: &TableName) -> Vec<Script> {
    script::all(table, &script::key_index(table, true))
}

/// Creates or adopts the table. Returns the versions that were applied, empty when there was nothing to do.
pub async fn migrate(
    settings: &ConnectSettings,
    table: &TableName,
    progress: Progress<'_>,
) -> Result<Vec<i32>, StoreError> {
    use sqlx::ConnectOptions as _;
    let options = settings.options()?;
    let mut connection = options.connect().await.map_err(StoreError::sql("connect for the migration"))?;
    lock(&mut connection, table, progress).await?;
    let result = migrate_locked(&mut connection, table, progress).await;
    // Closing the session gives the lock back, also when the statement before failed.
    let closed = connection.close().await.map_err(StoreError::sql("close the migration's connection"));
    let versions = result?;
    closed.map(|()| versions)
}

async fn migrate_locked(
    connection: &mut PgConnection,
    table: &TableName,
    progress: Progress<'_>,
) -> Result<Vec<i32>, StoreError> {
    let done = applied(connection, table).await?.unwrap_or(0);
    if done >= LATEST {
        return Ok(Vec::new());
    }
    adopt::check(connection, table, done == 0).await?;
    ensure_version_table(connection, table).await?;
    let key_index = script::key_index(table, adopt::name_is_free(connection, table, "uq_outbox_key").await?);
    let mut versions = Vec::new();
    for script in script::all(table, &key_index).into_iter().filter(|script| script.version > done) {
        for step in &script.steps {
            progress(&format!("{:04} {}", script.version, step.title));
            run(connection, table, step, progress).await?;
        }
        let record =
            format!("INSERT INTO {} (version, name) VALUES ($1, $2) ON CONFLICT DO NOTHING", table.migrations());
        sqlx::query(sqlx::AssertSqlSafe(record))
            .bind(script.version)
            .bind(script.name)
            .execute(&mut *connection)
            .await
            .map_err(StoreError::sql("record the migration"))?;
        versions.push(script.version);
    }
    Ok(versions)
}

async fn run(
    connection: &mut PgConnection,
    table: &TableName,
    step: &Step,
    progress: Progress<'_>,
) -> Result<(), StoreError> {
    if let Some(index) = &step.index
        && !adopt::prepare_index(connection, table, index).await?
    {
        return Ok(());
    }
    let started = Instant::now();
    loop {
        // CREATE INDEX CONCURRENTLY cannot run in a transaction and holds nobody up while it waits.
        let sql = if step.index.is_some() {
            step.sql.clone()
        } else {
            format!("BEGIN; SET LOCAL lock_timeout = {}; {}; COMMIT", LOCK_TIMEOUT.as_millis(), step.sql)
        };
        let Err(error) = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *connection).await else {
            return Ok(());
        };
        let error = StoreError::Sql { act: "run a migration step", source: error };
        // A failed step leaves the session in its aborted transaction.
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
        let busy = error.sqlstate().as_deref() == Some("55P03");
        if !busy || started.elapsed() > PATIENCE {
            return Err(StoreError::Migrate {
                table: table.qualified(),
                message: format!("step \"{}\": {error}", step.title),
            });
        }
        let blockers = adopt::blockers(connection, table).await?;
        progress(&format!("waiting for a lock on {} (held by {blockers}); trying again", table.qualified()));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Takes the session's advisory lock. Polls, so that a waiting session holds no snapshot that an index build of the other
/// would have to wait for.
async fn lock(connection: &mut PgConnection, table: &TableName, progress: Progress<'_>) -> Result<(), StoreError> {
    let started = Instant::now();
    let mut told = false;
    loop {
        let taken: bool =
            sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtextextended('outbox migrate ' || $1, 0))")
                .bind(table.qualified())
                .fetch_one(&mut *connection)
                .await
                .map_err(StoreError::sql("take the migration lock"))?;
        if taken {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(StoreError::Migrate {
                table: table.qualified(),
                message:
                    "another migration has been running for ten minutes: look for `outbox migrate` in pg_stat_activity"
                        .to_owned(),
            });
        }
        if !told {
            progress("another migration of this table is running; waiting for it");
            told = true;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ensure_version_table(connection: &mut PgConnection, table: &TableName) -> Result<(), StoreError> {
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS {} (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
        table.migrations()
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut *connection)
        .await
        .map(|_| ())
        .map_err(StoreError::sql("create the table of migrations"))
}

async fn applied(connection: &mut PgConnection, table: &TableName) -> Result<Option<i32>, StoreError> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .persistent(false)
        .bind(table.migrations())
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::sql("look for the table of migrations"))?;
    if !there {
        return Ok(None);
    }
    let sql = format!("SELECT max(version) AS version FROM {}", table.migrations());
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::sql("read the table's version"))?;
    row.try_get("version").map_err(StoreError::sql("read the table's version"))
}

/// A text literal of the table's quoted name, for casts to `regclass`.
fn regclass_literal(table: &TableName) -> String {
    literal(&table.qualified())
}
