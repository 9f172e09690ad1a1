//! What must hold of a table before it is changed, and what stands in a migration's way.

use sqlx::{PgConnection, Row};

use super::{
    super::{StoreError, TableName},
    script::Index,
};

/// Oldest server that is supported, in `server_version_num`.
const OLDEST_SERVER: i32 = 140_000;

/// The published pattern: column and type as `format_type` spells it.
const PUBLISHED: &[(&str, &str)] = &[
    ("id", "bigint"),
    ("tenant_id", "uuid"),
    ("operation", "text"),
    ("entity_id", "text"),
    ("intent_version", "integer"),
    ("idempotency_key", "text"),
    ("endpoint", "text"),
    ("payload", "jsonb"),
    ("status", "text"),
    ("attempts", "integer"),
    ("next_attempt_at", "timestamp with time zone"),
    ("locked_until", "timestamp with time zone"),
    ("last_error", "text"),
    ("downstream_id", "text"),
    ("created_at", "timestamp with time zone"),
];

/// What the relay writes at most, in characters, where a column may have a length.
const WRITTEN: &[(&str, i32)] = &[("status", 10), ("last_error", 500), ("downstream_id", 255)];

/// Refuses a table that the relay could not serve rightly, naming the mend. A table that is not there passes.
pub async fn check(connection: &mut PgConnection, table: &TableName, first_time: bool) -> Result<(), StoreError> {
    let server: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int")
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::sql("read the server's version"))?;
    if server < OLDEST_SERVER {
        return refuse(format!("PostgreSQL {} is too old: 14 or newer is needed", server / 10_000));
    }
    let sql = "SELECT c.relkind::text, c.relrowsecurity AND NOT (pg_has_role(c.relowner, 'USAGE') AND NOT c.relforcerowsecurity) \
               AND NOT (SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = current_user) AS hidden \
               FROM pg_class c WHERE c.oid = to_regclass($1)";
    let Some(class) = sqlx::query(sql)
        .bind(table.qualified())
        .fetch_optional(&mut *connection)
        .await
        .map_err(StoreError::sql("look at the table"))?
    else {
        return schema_exists(connection, table).await;
    };
    let read = StoreError::sql;
    let kind: String = class.try_get(0).map_err(read("look at the table"))?;
    if kind != "r" {
        let what = match kind.as_str() {
            "v" => "a view",
            "m" => "a materialized view",
            "p" => "a partitioned table",
            "f" => "a foreign table",
            _ => "no table",
        };
        return refuse(format!(
            "{} is {what}: the outbox must be a plain table, name another with --table",
            table.qualified()
        ));
    }
    if class.try_get::<bool, _>(1).map_err(read("look at the table"))? {
        return refuse(format!(
            "row security on {} may hide rows from this role: give it BYPASSRLS, or disable row security on the table",
            table.qualified()
        ));
    }
    columns(connection, table).await?;
    if first_time { statuses(connection, table).await } else { Ok(()) }
}

async fn schema_exists(connection: &mut PgConnection, table: &TableName) -> Result<(), StoreError> {
    let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)")
        .bind(table.schema())
        .fetch_one(&mut *connection)
        .await
        .map_err(StoreError::sql("look for the schema"))?;
    if there {
        Ok(())
    } else {
        refuse(format!("schema {:?} does not exist: create it, or name another with --schema", table.schema()))
    }
}

async fn columns(connection: &mut PgConnection, table: &TableName) -> Result<(), StoreError> {
    let rows = sqlx::query(
        "SELECT attname::text, format_type(atttypid, NULL), CASE WHEN atttypmod > 4 THEN atttypmod - 4 END FROM pg_attribute \
         WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
    )
    .bind(table.qualified())
    .fetch_all(&mut *connection)
    .await
    .map_err(StoreError::sql("read the table's columns"))?;
    let mut wrong = Vec::new();
    for &(column, wanted) in PUBLISHED {
        let found = rows.iter().find_map(|row| {
            let found = || Some((row.try_get::<String, _>(1).ok()?, row.try_get::<Option<i32>, _>(2).ok()?));
            (row.try_get::<String, _>(0).ok()? == column).then(found).flatten()
        });
        let written = WRITTEN.iter().find(|(written, _)| *written == column).map_or(0, |(_, longest)| *longest);
        match found {
            None => wrong.push(format!("column {column} ({wanted}) is missing")),
            Some((found, _)) if found == wanted => {}
            Some((found, Some(length))) if wanted == "text" && found == "character varying" && length < written => {
                wrong.push(format!(
                    "column {column} is {found}({length}) and must be {wanted}, or hold {written} characters"
                ));
            }
            Some((found, _)) if wanted == "text" && found == "character varying" => {}
            Some((found, _)) => wrong.push(format!("column {column} is {found} and must be {wanted}")),
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    refuse(format!(
        "{} is no outbox table: {}. Change it with ALTER TABLE, or name another table",
        table.qualified(),
        wrong.join("; ")
    ))
}

async fn statuses(connection: &mut PgConnection, table: &TableName) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT status FROM {} WHERE status NOT IN \
         ('pending', 'in_flight', 'succeeded', 'uncertain', 'dead', 'cancelled', 'superseded') LIMIT 1",
        table.qualified()
    );
    let unknown: Option<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .fetch_optional(&mut *connection)
        .await
        .map_err(StoreError::sql("look for unknown states"))?;
    match unknown {
        None => Ok(()),
        Some(status) => refuse(format!(
            "{} has rows of status {:?}, which the relay does not know: UPDATE them to pending, in_flight, succeeded, uncertain, dead, cancelled or superseded first",
            table.qualified(),
            status.chars().take(40).collect::<String>()
        )),
    }
}

/// Whether no relation of the schema has this name, or the one that has it is an index of this very table.
pub async fn name_is_free(connection: &mut PgConnection, table: &TableName, name: &str) -> Result<bool, StoreError> {
    sqlx::query_scalar(
        "SELECT NOT EXISTS (SELECT FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid \
         WHERE c.oid = to_regclass($1) AND i.indrelid IS DISTINCT FROM to_regclass($2)::oid)",
    )
    .bind(table.in_schema(name))
    .bind(table.qualified())
    .fetch_one(&mut *connection)
    .await
    .map_err(StoreError::sql("look for the index's name"))
}

/// Whether the index is still to be built. An invalid leftover of an interrupted build is dropped first.
pub async fn prepare_index(
    connection: &mut PgConnection,
    table: &TableName,
    index: &Index,
) -> Result<bool, StoreError> {
    let valid: Option<bool> = sqlx::query_scalar(
        "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
         WHERE i.indrelid = to_regclass($1) AND (c.relname = $2 OR ($3 AND i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 1 \
           AND i.indkey[0] = (SELECT attnum FROM pg_attribute WHERE attrelid = i.indrelid AND attname = 'idempotency_key'))) \
         ORDER BY i.indisvalid DESC LIMIT 1",
    )
    .bind(table.qualified())
    .bind(&index.name)
    .bind(index.unique_key)
    .fetch_optional(&mut *connection)
    .await
    .map_err(StoreError::sql("look for the index"))?;
    if valid == Some(false) {
        let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {}", table.in_schema(&index.name));
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop))
            .execute(&mut *connection)
            .await
            .map_err(StoreError::sql("drop an invalid index"))?;
    }
    Ok(valid != Some(true))
}

/// Who holds locks on the table, as a person would look them up.
pub async fn blockers(connection: &mut PgConnection, table: &TableName) -> Result<String, StoreError> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT format('pid %s (%s, %s)', l.pid, coalesce(nullif(a.application_name, ''), a.usename, 'unknown'), a.state) \
         FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
         WHERE l.relation = to_regclass($1) AND l.granted AND l.pid <> pg_backend_pid() LIMIT 5",
    )
    .bind(table.qualified())
    .fetch_all(&mut *connection)
    .await
    .map_err(StoreError::sql("look for who holds the lock"))?;
    Ok(if rows.is_empty() { "a session that is gone by now".to_owned() } else { rows.join(", ") })
}

fn refuse(message: String) -> Result<(), StoreError> {
    Err(StoreError::Preflight(message))
}
