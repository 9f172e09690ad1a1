//! The count of due rows where rows of one entity go one at a time: those that wait for an earlier one are nobody's work.

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction};

use super::{BacklogRows, DUE_BOUND, Served, StoreError, TableName, tenant_clause};
use crate::{
    domain::settings::OnDead,
    store::{
        order::{ENTITY, RANK},
        routes,
    },
};

/// Entities whose first due row is looked at; those beyond count one row each.
const MAX_ENTITIES: i64 = 2_000;

/// Takes rows that wait for an earlier one of their entity from the due ones to the waiting ones. Nothing changes where no
/// policy has an order. `held` are destinations whose rows are not among the due ones.
pub(super) async fn leave_out(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    served: &Served,
    held: &[(String, Vec<usize>)],
    rows: &mut BacklogRows,
) -> Result<(), StoreError> {
    let numbers = |fits: fn(OnDead) -> bool| -> Vec<i32> {
        let ordering = served.ordering.iter().enumerate().filter(|(_, ordering)| ordering.is_some_and(fits));
        ordering.filter_map(|(number, _)| i32::try_from(number).ok()).collect()
    };
    let ordered = numbers(|_| true);
    if ordered.is_empty() || rows.due == 0 {
        return Ok(());
    }
    let act = "leave rows that wait for others out of the count";
    let read = |error| StoreError::sql(act)(error);
    let sql = sql(table, served, held);
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    if !served.tenants.is_empty() {
        query = query.bind(served.tenants.clone());
    }
    let row = query
        .bind(ordered)
        .bind(numbers(|on_dead| on_dead == OnDead::Block))
        .fetch_one(&mut **tx)
        .await
        .map_err(read)?;
    let blocked: i64 = row.try_get::<i64, _>("blocked").map_err(read)?.clamp(0, rows.due);
    rows.due -= blocked;
    rows.waiting += blocked;
    if rows.due == 0 {
        rows.oldest_due_age = None;
        rows.oldest_due_at_us = None;
    }
    Ok(())
}

fn sql(table: &TableName, served: &Served, held: &[(String, Vec<usize>)]) -> String {
    let (ordered, blocking) = if served.tenants.is_empty() { ("$1", "$2") } else { ("$2", "$3") };
    let policy = routes::policy(table, &served.routing).unwrap_or_else(|| "0".to_owned());
    let elsewhere = super::held::elsewhere(held);
    let table = table.qualified();
    let tenant = tenant_clause(&served.tenants);
    format!(
        "WITH due AS MATERIALIZED (
             SELECT t.id, {ENTITY} AS entity, t.destination, {policy} AS policy FROM {table} AS t
             WHERE t.status IN ('pending', 'in_flight', 'uncertain') {tenant} AND t.next_attempt_at <= now()
             LIMIT {DUE_BOUND}
         ), heads AS MATERIALIZED (
             SELECT d.entity, min(d.id) AS id, count(*) AS rows, bool_and(d.policy = ANY ({blocking}::integer[])) AS dead_blocks
             FROM due AS d WHERE d.policy = ANY ({ordered}::integer[]) {elsewhere} GROUP BY d.entity
         ), looked_at AS MATERIALIZED (
             SELECT * FROM heads LIMIT {MAX_ENTITIES}
         )
         SELECT coalesce((SELECT sum(rows) - count(*) FROM heads), 0)::bigint + (
             SELECT count(*) FROM looked_at AS h
             WHERE EXISTS (SELECT FROM {table} AS t WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
                     AND {ENTITY} = h.entity AND {RANK} = 1 AND t.id < h.id)
                OR EXISTS (SELECT FROM {table} AS t WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
                     AND {ENTITY} = h.entity AND {RANK} = 0 AND (t.id < h.id OR (t.id > h.id AND t.locked_until > now())))
                OR (h.dead_blocks AND EXISTS (SELECT FROM {table} AS t
                     WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
                     AND {ENTITY} = h.entity AND {RANK} = 2 AND t.id < h.id))
         ) AS blocked"
    )
}
