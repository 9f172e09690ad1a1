//! Order: rows of one entity go one at a time, by the order of their ids.
//!
//! A claim locks due rows first, and judges them by a second statement, whose snapshot shows what became of their
//! predecessors. Two claims never judge one entity at the same time: each takes the lock of its bucket, and leaves rows whose
//! bucket is taken for the next claim, a moment later. Rows that have to wait are put off, so that no claim reads them again
//! and again. Who ends a row makes the next one of its entity due ([`wake`]; for acts of people a trigger does). Should that
//! be missed, the row is looked at again after a bounded time.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Postgres, Row, Transaction};

use super::{Db, StoreError, TableName, claim::micros};
use crate::domain::settings::OnDead;

/// A hash of the row's tenant and entity. Eight bytes instead of both columns: a small index, which no long entity can
/// make an INSERT fail by. The migration's index has the very same expression.
pub(super) const ENTITY: &str = "hashtextextended(t.entity_id, uuid_hash_extended(t.tenant_id, 0))";
/// Held by a worker, waiting, dead: what a row is to the later ones. The migration's index has the very same expression.
pub(super) const RANK: &str = "(CASE t.status WHEN 'in_flight' THEN 0 WHEN 'dead' THEN 2 ELSE 1 END)";
/// Locks of entities: rows share them by their hash, so that claims of any size take a bounded number from the server's
/// lock table (64 for each connection it allows, by default).
const BUCKETS: u32 = 1024;
/// After this time a row whose turn is next is looked at again, in case that nobody made it due.
const RECHECK_NEXT: Duration = Duration::from_secs(30);
/// The same for rows further back: with a million blocked rows, some 1,700 of them a second fall due and are put off again.
const RECHECK_FURTHER: Duration = Duration::from_mins(10);
/// A wake waits no longer for a row that somebody holds; the row's own time comes.
const WAKE_LOCK_TIMEOUT: Duration = Duration::from_millis(250);
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

type Tx = Transaction<'static, Postgres>;

/// Fills in the names of `order.sql` and `wake.sql`.
fn filled(sql: &str, table: &TableName) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql.replace("{table}", &table.qualified()).replace("{entity}", ENTITY).replace("{rank}", RANK))
}

/// Takes the lock of a row's bucket for the transaction, in SQL over a row `t`: true, unless somebody else has it.
pub(super) fn try_lock(table: &TableName) -> String {
    let class = super::table::literal(&format!("outbox order {}", table.qualified()));
    format!("pg_try_advisory_xact_lock(hashtext({class}), mod({ENTITY}, {BUCKETS})::integer)")
}

/// A row that has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits {
    pub id: i64,
    pub blocker: i64,
    near: bool,
    dead_blocks: bool,
}

/// Puts off those of the locked rows that have to wait, and returns them.
pub(super) async fn put_off(tx: &mut Tx, table: &TableName, met: &[(i64, OnDead)]) -> Result<Vec<Waits>, StoreError> {
    let act = "judge the order of rows";
    let rows = sqlx::query(filled(include_str!("order.sql"), table))
        .persistent(false)
        .bind(met.iter().map(|(id, _)| *id).collect::<Vec<_>>())
        .bind(met.iter().map(|(_, on_dead)| *on_dead == OnDead::Block).collect::<Vec<_>>())
        .bind(micros(RECHECK_NEXT))
        .bind(micros(RECHECK_FURTHER))
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql(act))?;
    let read = |row: &sqlx::postgres::PgRow| -> Result<Option<Waits>, sqlx::Error> {
        let Some(blocker) = row.try_get("blocker")? else { return Ok(None) };
        Ok(Some(Waits {
            id: row.try_get("id")?,
            blocker,
            near: row.try_get("near")?,
            dead_blocks: row.try_get("dead_blocks")?,
        }))
    };
    rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<_, _>>().map_err(StoreError::sql(act))
}

/// A second look after the claim's commit: whoever ended a row between our look and our commit could not see that another
/// waits for it. Returns whether a row was made due.
pub(super) async fn look_again(db: &Db, table: &TableName, waiting: &[Waits]) -> Result<bool, StoreError> {
    let near: Vec<&Waits> = waiting.iter().filter(|row| row.near).collect();
    if near.is_empty() {
        return Ok(false);
    }
    let act = "look again at rows that wait";
    let sql = format!(
        "WITH waiting AS MATERIALIZED ( \
           SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::boolean[]) AS w (id, blocker, dead_blocks)), \
         freed AS MATERIALIZED ( \
           SELECT t.id FROM {table} AS t JOIN waiting AS w ON w.id = t.id \
           WHERE t.reason = 'waits for row ' || w.blocker AND t.status IN ('pending', 'uncertain') \
             AND NOT EXISTS (SELECT FROM {table} AS b WHERE b.id = w.blocker \
               AND (b.status IN ('pending', 'in_flight', 'uncertain') OR (w.dead_blocks AND b.status = 'dead'))) \
           ORDER BY t.id FOR UPDATE OF t SKIP LOCKED) \
         UPDATE {table} AS t SET next_attempt_at = least(t.next_attempt_at, now()) FROM freed WHERE t.id = freed.id RETURNING t.id",
        table = table.qualified()
    );
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let freed = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(near.iter().map(|row| row.id).collect::<Vec<_>>())
            .bind(near.iter().map(|row| row.blocker).collect::<Vec<_>>())
            .bind(near.iter().map(|row| row.dead_blocks).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(!freed.is_empty())
    })
    .await
}

/// Makes the rows due that waited for these, after these were settled and committed: only then does every later claim see
/// it. Returns whether there was one.
pub async fn wake(db: &Db, table: &TableName, settled: &[i64]) -> Result<bool, StoreError> {
    let act = "make the next rows of entities due";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let timeout = format!("SET LOCAL lock_timeout = {}", WAKE_LOCK_TIMEOUT.as_millis());
        sqlx::raw_sql(AssertSqlSafe(timeout)).execute(&mut *tx).await.map_err(StoreError::sql(act))?;
        let woken = sqlx::query(filled(include_str!("wake.sql"), table))
            .persistent(false)
            .bind(settled.to_vec())
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(!woken.is_empty())
    })
    .await
}
