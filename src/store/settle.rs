//! The settle: what became of claimed rows, in batches.

use std::{collections::HashSet, time::Duration};

use sqlx::Row;
use uuid::Uuid;

use super::{
    Db, StoreError, TableName,
    claim::micros,
    destinations::{self, Signals},
};
use crate::domain::transition::{Due, Settlement};

/// The server ends a settle after this time; longer than most locks that a person's statement holds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// One row's end of claim.
#[derive(Clone, Debug)]
pub struct SettleRow {
    /// The row.
    pub id: i64,
    /// The claim's fencing token.
    pub token: Uuid,
    /// What becomes of it.
    pub settlement: Settlement,
    /// For people: sanitised and bounded.
    pub last_error: Option<String>,
    /// The answer's status.
    pub http_status: Option<u16>,
    /// What is recorded of the attempt in the history; `None`: nothing.
    pub record: Option<AttemptRecord>,
}

/// An attempt, for the history.
#[derive(Clone, Debug)]
pub struct AttemptRecord {
    /// How it was judged.
    pub outcome: &'static str,
    /// Which attempt it was.
    pub attempt: u32,
    /// How long it took.
    pub duration: Duration,
}

/// Settles rows, and writes what their attempts said of destinations in the same transaction. Returns the ids that were
/// still this claim's; the others belong to somebody else by now, and nothing of them was changed.
pub async fn settle(
    db: &Db,
    table: &TableName,
    worker: &str,
    rows: &[SettleRow],
    signals: &[Signals<'_>],
) -> Result<HashSet<i64>, StoreError> {
    let act = "settle rows";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let column =
            |read: fn(&Settlement) -> bool| rows.iter().map(|row| read(&row.settlement)).collect::<Vec<bool>>();
        let sql =
            include_str!("settle.sql").replace("{table}", &table.qualified()).replace("{history}", &table.history());
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let settled = sqlx::query(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind(rows.iter().map(|row| row.id).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.token).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.settlement.status.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| delay(row.settlement.due)).collect::<Vec<_>>())
            .bind(column(|settlement| settlement.due == Due::Parked))
            .bind(
                rows.iter()
                    .map(|row| row.settlement.reason.as_ref().map(|r| r.as_str().to_owned()))
                    .collect::<Vec<_>>(),
            )
            .bind(rows.iter().map(|row| row.last_error.clone()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.http_status.map(i32::from)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.settlement.downstream_id.clone()).collect::<Vec<_>>())
            .bind(column(|settlement| settlement.give_back_attempt))
            .bind(column(|settlement| settlement.wait))
            .bind(column(|settlement| settlement.unknown))
            .bind(column(|settlement| settlement.clear_first_dispatch))
            .bind(column(|settlement| settlement.clear_retry_since))
            .bind(column(|settlement| settlement.answered_5xx))
            .bind(column(|settlement| settlement.sent))
            .bind(rows.iter().map(|row| row.record.as_ref().map(|record| record.outcome)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.record.as_ref().map(|record| int(record.attempt))).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.record.as_ref().map(|record| millis(record.duration))).collect::<Vec<_>>())
            .bind(worker)
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        // In the order of their scopes, which is that of every lock on destinations.
        let mut signals: Vec<&Signals<'_>> = signals.iter().collect();
        signals.sort_by_key(|signals| signals.scope);
        for signals in signals {
            destinations::record(&mut tx, table, signals).await?;
        }
        tx.commit().await.map_err(StoreError::sql(act))?;
        settled.iter().map(|row| row.try_get("id").map_err(StoreError::sql(act))).collect()
    })
    .await
}

fn int(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn delay(due: Due) -> Option<i64> {
    match due {
        Due::After(delay) => Some(micros(delay)),
        Due::Ended | Due::Parked => None,
    }
}
