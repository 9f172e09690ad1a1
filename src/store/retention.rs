//! Retention: what has ended and is past its age goes, in small batches, by one cleaner at a time.

use std::time::Duration;

use sqlx::Row;
use uuid::Uuid;

use super::{Db, StoreError, TableName, claim::micros, order};
use crate::domain::settings::Removal;

/// The server ends a batch after this time; a batch is some ten milliseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows of one batch at most.
const BATCH_ROWS: i64 = 500;
/// How long a cleaner is the only one, from its last batch on. Far longer than a batch and the pause after it.
const HELD_FOR: Duration = Duration::from_secs(60);
/// Where a sweep begins.
const FROM_THE_START: (&str, i64) = ("-infinity", 0);

/// One sweep over what a relay may remove.
#[derive(Clone, Debug)]
pub struct Sweep<'a> {
    /// Whose rows: cleaners of one relay exclude each other.
    pub relay: &'a str,
    /// Who cleans.
    pub worker: &'a str,
    /// Tenants whose rows are the relay's; empty: all.
    pub tenants: &'a [Uuid],
    /// What is removed.
    pub removal: Removal,
    /// Since its end (or, in the history, since it was written).
    pub age: Duration,
    /// Whether a dead row is kept while later rows of its entity wait for it.
    pub dead_blocks: bool,
}

/// Where a sweep goes on.
#[derive(Clone, Debug)]
pub struct Cursor(String, i64);

/// What one batch did.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Rows that are gone, or whose payloads are.
    pub rows: u64,
    /// Where to go on; `None`: nothing is left.
    pub next: Option<Cursor>,
}

/// Removes one batch, from `cursor` on or from where this kind of sweep begins. `None`: another worker cleans.
pub async fn remove(
    db: &Db,
    table: &TableName,
    sweep: &Sweep<'_>,
    cursor: Option<Cursor>,
) -> Result<Option<Removed>, StoreError> {
    let act = "remove what is past its retention";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        // The row stays locked until the batch is committed: a cleaner that was slow can never work beside its successor.
        let lease = format!(
            "INSERT INTO {} AS c (relay, worker, held_until, tenants) VALUES ($1, $2, now() + $3 * interval '1 microsecond', $4) \
             ON CONFLICT (relay) DO UPDATE SET worker = excluded.worker, held_until = excluded.held_until, tenants = excluded.tenants, \
               payloads_until = CASE WHEN c.tenants = excluded.tenants THEN c.payloads_until ELSE '-infinity' END, \
               payloads_until_id = CASE WHEN c.tenants = excluded.tenants THEN c.payloads_until_id ELSE 0 END \
             WHERE c.worker = excluded.worker OR c.held_until <= now() \
             RETURNING payloads_until::text AS ended, payloads_until_id AS id",
            table.cleaners()
        );
        let held = sqlx::query(sqlx::AssertSqlSafe(lease))
            .persistent(false)
            .bind(sweep.relay)
            .bind(sweep.worker)
            .bind(micros(HELD_FOR))
            .bind(sweep.tenants)
            .fetch_optional(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        let Some(held) = held else { return Ok(None) };
        let from = match (cursor, sweep.removal) {
            (Some(cursor), _) => cursor,
            (None, Removal::Payload) => {
                let read = StoreError::sql;
                Cursor(held.try_get("ended").map_err(read(act))?, held.try_get("id").map_err(read(act))?)
            }
            (None, _) => Cursor(FROM_THE_START.0.to_owned(), FROM_THE_START.1),
        };
        let batch = sqlx::query(sqlx::AssertSqlSafe(statement(table, sweep)))
            .persistent(false)
            .bind(micros(sweep.age))
            .bind(&from.0)
            .bind(from.1)
            .bind((!sweep.tenants.is_empty()).then_some(sweep.tenants))
            .bind(BATCH_ROWS)
            .fetch_optional(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        let removed = match batch {
            None => Removed { rows: 0, next: None },
            Some(row) => {
                let read = |name: &str| row.try_get::<i64, _>(name).map_err(StoreError::sql(act));
                let next = Cursor(row.try_get("ended").map_err(StoreError::sql(act))?, read("id")?);
                if sweep.removal == Removal::Payload {
                    remember(&mut tx, table, sweep.relay, &next).await?;
                }
                Removed {
                    rows: u64::try_from(read("removed")?).unwrap_or(0),
                    next: (read("seen")? >= BATCH_ROWS).then_some(next),
                }
            }
        };
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(Some(removed))
    })
    .await
}

/// Rows whose payloads are replaced stay, so that the next sweep has to know where it goes on.
async fn remember(
    tx: &mut sqlx::Transaction<'static, sqlx::Postgres>,
    table: &TableName,
    relay: &str,
    cursor: &Cursor,
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE {} SET payloads_until = $2::timestamptz, payloads_until_id = $3 WHERE relay = $1",
        table.cleaners()
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(relay)
        .bind(&cursor.0)
        .bind(cursor.1)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::sql("remember which payloads are replaced"))
}

fn statement(table: &TableName, sweep: &Sweep<'_>) -> String {
    let ended = "coalesce(completed_at, created_at)";
    let delete = "DELETE FROM {rows} AS r USING free WHERE r.id = free.id";
    // The hash stays, as the proof of what was sent; rows from before the relay have none yet.
    let replace = "UPDATE {rows} AS r SET payload = 'null', \
                   payload_hash = coalesce(r.payload_hash, sha256(convert_to(r.payload::text, 'UTF8'))) \
                   FROM free WHERE r.id = free.id";
    let (rows, ended, which, lock, remove) = match sweep.removal {
        Removal::Succeeded => (table.qualified(), ended, "status = 'succeeded'", true, delete),
        Removal::Dead => (table.qualified(), ended, "status = 'dead'", true, delete),
        Removal::Payload => (table.qualified(), ended, "status = 'succeeded'", true, replace),
        // Nobody changes the history, so there is nobody to keep out.
        Removal::History => (table.history(), "at", "true", false, delete),
    };
    let blocking = sweep.removal == Removal::Dead && sweep.dead_blocks;
    include_str!("retention.sql")
        .replace("{remove}", remove)
        .replace("{kept}", &if blocking { waited_for(table) } else { "false".to_owned() })
        .replace("{lock}", if lock { "FOR UPDATE SKIP LOCKED" } else { "" })
        .replace("{which}", which)
        .replace("{ended}", ended)
        .replace("{rows}", &rows)
}

/// Whether later rows of its entity wait for the row `r`, in SQL. As a value and not as a condition on rows, so that it is one
/// step into the index of the order for each row, whatever the planner expects.
fn waited_for(table: &TableName) -> String {
    format!(
        "(SELECT true FROM {table} AS t WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead') \
           AND {entity} = {entity_of_row} AND {rank} IN (0, 1) AND t.id > r.id LIMIT 1) IS TRUE",
        table = table.qualified(),
        entity = order::ENTITY,
        entity_of_row = order::ENTITY.replace("t.", "r."),
        rank = order::RANK,
    )
}
