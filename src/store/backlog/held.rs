//! The count of due rows while destinations are held: their rows are nobody's work, so they raise no count.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::{BacklogRows, DUE_BOUND, StoreError, TableName, seconds, tenant_clause};

/// Destinations that the count visits at most.
const MAX_DESTINATIONS: i64 = 1000;

/// Counts due rows anew without those of held destinations. Nothing changes where none is held.
pub(super) async fn leave_out(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    scope: &str,
    tenants: &[Uuid],
    rows: &mut BacklogRows,
) -> Result<(), StoreError> {
    let act = "leave held destinations out of the count";
    let read = |error| StoreError::sql(act)(error);
    let sql = format!(
        "SELECT array_agg(destination) AS held, extract(epoch FROM min(least(held_until, now() + interval '1 day')) - now())::float8 AS until_due \
         FROM (SELECT * FROM {} WHERE scope = $1 AND held_until > now() LIMIT {MAX_DESTINATIONS}) AS held",
        table.destinations()
    );
    let row = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(scope).fetch_one(&mut **tx).await.map_err(read)?;
    let Some(held) = row.try_get::<Option<Vec<String>>, _>("held").map_err(read)? else { return Ok(()) };
    let until_due = row.try_get::<Option<f64>, _>("until_due").map_err(read)?.map(seconds);
    let sql = due_elsewhere(table, tenants);
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    if !tenants.is_empty() {
        query = query.bind(tenants.to_vec());
    }
    let row = query.bind(held).fetch_one(&mut **tx).await.map_err(read)?;
    let due: i64 = row.try_get("due").map_err(read)?;
    // Rows behind a hold wait for its end.
    rows.waiting += rows.due.saturating_sub(due);
    if rows.due > due {
        rows.next_due_in = rows.next_due_in.into_iter().chain(until_due).min();
    }
    rows.due = due;
    rows.oldest_due_at_us = row.try_get("oldest_due_at").map_err(read)?;
    rows.oldest_due_age = row.try_get::<Option<f64>, _>("oldest_due_age").map_err(read)?.map(seconds);
    rows.oldest_due_age = rows.oldest_due_age.map(|age| age.max(Duration::ZERO));
    Ok(())
}

/// Steps from destination to destination through the index of due rows, and counts those of each, all bounded.
fn due_elsewhere(table: &TableName, tenants: &[Uuid]) -> String {
    let held = if tenants.is_empty() { "$1" } else { "$2" };
    let movable = format!(
        "FROM {} WHERE status IN ('pending', 'in_flight', 'uncertain') {}",
        table.qualified(),
        tenant_clause(tenants)
    );
    format!(
        "WITH RECURSIVE visited AS (
             (SELECT destination, 1 AS visit {movable} AND destination IS NOT NULL ORDER BY destination LIMIT 1)
             UNION ALL
             SELECT next.destination, visited.visit + 1 FROM visited CROSS JOIN LATERAL
                 (SELECT destination {movable} AND destination IS NOT NULL AND destination > visited.destination
                  ORDER BY destination LIMIT 1) AS next
             WHERE visited.visit < {MAX_DESTINATIONS}
         ), due AS MATERIALIZED (
             SELECT found.next_attempt_at FROM visited CROSS JOIN LATERAL
                 (SELECT next_attempt_at {movable} AND destination = visited.destination AND next_attempt_at <= now()
                  ORDER BY next_attempt_at LIMIT {DUE_BOUND}) AS found
             WHERE visited.destination <> ALL ({held}::text[])
             UNION ALL
             SELECT * FROM (SELECT next_attempt_at {movable} AND destination IS NULL AND next_attempt_at <= now()
                            ORDER BY next_attempt_at LIMIT {DUE_BOUND}) AS nameless
             LIMIT {DUE_BOUND}
         )
         SELECT count(*) AS due, (extract(epoch FROM min(next_attempt_at)) * 1000000)::bigint AS oldest_due_at,
             extract(epoch FROM now() - min(next_attempt_at))::float8 AS oldest_due_age
         FROM due WHERE next_attempt_at > '-infinity'"
    )
}
