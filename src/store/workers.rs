//! What each worker has in hand and gets done, for the operator and for people.

use std::time::Duration;

use super::{Db, StoreError, TableName};

const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// A worker that has not been seen for this long is forgotten.
const FORGET_AFTER: &str = "10 minutes";

/// One worker's report.
#[derive(Clone, Debug)]
pub struct Heartbeat<'a> {
    /// The worker's name, unique among those that live.
    pub worker: &'a str,
    /// Requests that it may have in flight.
    pub slots: usize,
    /// Rows that it holds.
    pub in_hand: usize,
    /// Rows that it has settled since its start.
    pub completed: u64,
    /// Rows a second that it could do at full load, as measured; `None` before the first value.
    pub drain_per_second: Option<f32>,
}

/// Writes the report, and forgets workers that are long gone.
pub async fn beat(db: &Db, table: &TableName, report: &Heartbeat<'_>) -> Result<(), StoreError> {
    let act = "write the worker's report";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let workers = table.workers();
        let sql = format!(
            "WITH gone AS (DELETE FROM {workers} WHERE seen_at < now() - interval '{FORGET_AFTER}' AND worker <> $1) \
             INSERT INTO {workers} AS w (worker, seen_at, slots, in_hand, completed, drain_per_second) \
             VALUES ($1, now(), $2, $3, $4, $5) ON CONFLICT (worker) DO UPDATE SET seen_at = now(), slots = excluded.slots, \
             in_hand = excluded.in_hand, completed = excluded.completed, \
             drain_per_second = coalesce(excluded.drain_per_second, w.drain_per_second)"
        );
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind(report.worker)
            .bind(i32::try_from(report.slots).unwrap_or(i32::MAX))
            .bind(i32::try_from(report.in_hand).unwrap_or(i32::MAX))
            .bind(i64::try_from(report.completed).unwrap_or(i64::MAX))
            .bind(report.drain_per_second)
            .execute(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))
    })
    .await
}

/// Takes the worker's report back at its end.
pub async fn leave(db: &Db, table: &TableName, worker: &str) -> Result<(), StoreError> {
    let act = "take the worker's report back";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let sql = format!("DELETE FROM {} WHERE worker = $1", table.workers());
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind(worker)
            .execute(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))
    })
    .await
}
