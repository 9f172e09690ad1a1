//! The count of due rows while destinations are held: their rows are nobody's work, so they raise no count.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction};

use super::{BacklogRows, DUE_BOUND, Served, StoreError, TableName, seconds, tenant_clause};
use crate::store::{routes, table::literal};

/// Destinations that the count visits at most.
const MAX_DESTINATIONS: i64 = 1000;

/// Counts due rows anew without those of held destinations, and returns these with the numbers of the policies that hold
/// them (none: all that rows there can have). Nothing changes where none is held.
pub(super) async fn leave_out(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    served: &Served,
    rows: &mut BacklogRows,
) -> Result<Vec<(String, Vec<usize>)>, StoreError> {
    let act = "leave held destinations out of the count";
    let read = |error| StoreError::sql(act)(error);
    let sql = format!(
        "SELECT destination, scope, extract(epoch FROM least(held_until, now() + interval '1 day') - now())::float8 AS until_due \
         FROM {} WHERE scope = ANY ($1) AND held_until > now() LIMIT {MAX_DESTINATIONS}",
        table.destinations()
    );
    let found = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(served.scopes.clone())
        .fetch_all(&mut **tx)
        .await
        .map_err(read)?;
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut until_due: Option<Duration> = None;
    for row in &found {
        let scope: String = row.try_get("scope").map_err(read)?;
        let numbers = served.scopes.iter().enumerate().filter(|(_, known)| **known == scope).map(|(number, _)| number);
        by_name.entry(row.try_get("destination").map_err(read)?).or_default().extend(numbers);
        until_due = until_due.into_iter().chain(row.try_get("until_due").map(seconds).ok()).min();
    }
    // A hold under a policy that no row of the destination can have holds nothing.
    let mut held = Vec::new();
    for (name, mut by) in by_name {
        let possible = served.routing.policies_of_destination(Some(&name));
        by.retain(|policy| possible.contains(policy));
        if possible.iter().all(|policy| by.contains(policy)) {
            by.clear();
        } else if by.is_empty() {
            continue;
        }
        held.push((name, by));
    }
    if held.is_empty() {
        return Ok(held);
    }
    let sql = due_elsewhere(table, served, &held);
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    if !served.tenants.is_empty() {
        query = query.bind(served.tenants.clone());
    }
    let wholly: Vec<String> = held.iter().filter(|(_, by)| by.is_empty()).map(|(name, _)| name.clone()).collect();
    let row = query.bind(wholly).fetch_one(&mut **tx).await.map_err(read)?;
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
    Ok(held)
}

/// A condition in SQL on a due row `d` with its destination and its policy's number: it is not held.
pub(super) fn elsewhere(held: &[(String, Vec<usize>)]) -> String {
    let mut conditions = String::new();
    for (name, by) in held {
        let by: Vec<String> = by.iter().map(ToString::to_string).collect();
        let policies = if by.is_empty() { String::new() } else { format!(" AND d.policy IN ({})", by.join(", ")) };
        let _ = write!(conditions, " AND NOT (d.destination IS NOT DISTINCT FROM {}{policies})", literal(name));
    }
    conditions
}

/// Steps from destination to destination through the index of due rows, and counts those of each, all bounded.
fn due_elsewhere(table: &TableName, served: &Served, held: &[(String, Vec<usize>)]) -> String {
    let wholly = if served.tenants.is_empty() { "$1" } else { "$2" };
    let movable = format!(
        "FROM {} AS t WHERE status IN ('pending', 'in_flight', 'uncertain') {}",
        table.qualified(),
        tenant_clause(&served.tenants)
    );
    let policy = routes::policy(table, &served.routing).filter(|_| held.iter().any(|(_, by)| !by.is_empty()));
    let policy = policy.unwrap_or_else(|| "0".to_owned());
    let partly: Vec<_> = held.iter().filter(|(_, by)| !by.is_empty()).cloned().collect();
    let elsewhere = elsewhere(&partly);
    format!(
        "WITH RECURSIVE visited AS (
             (SELECT destination, 1 AS visit {movable} AND destination IS NOT NULL ORDER BY destination LIMIT 1)
             UNION ALL
             SELECT next.destination, visited.visit + 1 FROM visited CROSS JOIN LATERAL
                 (SELECT destination {movable} AND destination IS NOT NULL AND destination > visited.destination
                  ORDER BY destination LIMIT 1) AS next
             WHERE visited.visit < {MAX_DESTINATIONS}
         ), met AS MATERIALIZED (
             SELECT found.next_attempt_at, visited.destination, found.policy FROM visited CROSS JOIN LATERAL
                 (SELECT next_attempt_at, {policy} AS policy {movable} AND destination = visited.destination
                      AND next_attempt_at <= now() ORDER BY next_attempt_at LIMIT {DUE_BOUND}) AS found
             WHERE visited.destination <> ALL ({wholly}::text[])
             UNION ALL
             SELECT * FROM (SELECT next_attempt_at, NULL, 0 {movable} AND destination IS NULL AND next_attempt_at <= now()
                            ORDER BY next_attempt_at LIMIT {DUE_BOUND}) AS nameless
             LIMIT {DUE_BOUND}
         ), due AS (
             SELECT next_attempt_at FROM met AS d WHERE true{elsewhere}
         )
         SELECT count(*) AS due, (extract(epoch FROM min(next_attempt_at)) * 1000000)::bigint AS oldest_due_at,
             extract(epoch FROM now() - min(next_attempt_at))::float8 AS oldest_due_age
         FROM due WHERE next_attempt_at > '-infinity'"
    )
}
