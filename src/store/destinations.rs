//! What all pods share of a destination: holds, probes, and the counts behind caps. Always inside a caller's transaction,
//! and always in the order of the destinations' names, so that two pods never wait for each other in a circle.

use std::{collections::BTreeMap, time::Duration};

use sqlx::{Postgres, Row, Transaction, postgres::PgRow};

use super::{StoreError, TableName, claim::micros};
use crate::domain::hold::{self, Hold, HoldPolicy, HoldReason, HoldState, Signal};

type Tx = Transaction<'static, Postgres>;

/// Reads what is recorded of a destination.
pub(super) fn state(row: &PgRow) -> Result<HoldState, sqlx::Error> {
    let count =
        |name: &str| -> Result<u32, sqlx::Error> { Ok(u32::try_from(row.try_get::<i32, _>(name)?).unwrap_or(0)) };
    let reason: Option<String> = row.try_get("reason")?;
    let left = Duration::from_millis(u64::try_from(row.try_get::<i64, _>("left_ms")?).unwrap_or(0));
    let hold = row
        .try_get::<bool, _>("held")?
        .then(|| Hold { reason: reason.as_deref().and_then(HoldReason::parse).unwrap_or(HoldReason::Failing), left });
    let allowance: Option<i32> = row.try_get("allowance")?;
    Ok(HoldState {
        failures: count("failures")?,
        holds: count("holds")?,
        hold,
        allowance: allowance.map(|allowance| u32::try_from(allowance).unwrap_or(1)),
    })
}

/// Takes the probe of destinations whose hold is over. Returns those that are ours: one pod, one row, until its lease ends.
pub(super) async fn take_probes(
    tx: &mut Tx,
    table: &TableName,
    scope: &str,
    over: &[String],
    lease: Duration,
) -> Result<Vec<String>, StoreError> {
    let sql = format!(
        "UPDATE {} SET probe_until = now() + $3 * interval '1 microsecond' WHERE scope = $1 AND destination IN ( \
           SELECT destination FROM {0} WHERE scope = $1 AND destination = ANY ($2) AND held_until <= now() \
             AND coalesce(probe_until <= now(), true) ORDER BY destination FOR UPDATE SKIP LOCKED) RETURNING destination",
        table.destinations()
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(scope)
        .bind(over)
        .bind(micros(lease))
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql("take a probe"))
}

/// Gives probes back that found no row.
pub(super) async fn give_probes_back(
    tx: &mut Tx,
    table: &TableName,
    scope: &str,
    unused: &[String],
) -> Result<(), StoreError> {
    let sql =
        format!("UPDATE {} SET probe_until = NULL WHERE scope = $1 AND destination = ANY ($2)", table.destinations());
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(scope)
        .bind(unused)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::sql("give a probe back"))
}

/// Caps of every destination, over all pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Requests in flight.
    pub max_in_flight: Option<u32>,
    /// Requests a second.
    pub rate_per_second: Option<u32>,
}

impl Caps {
    /// Whether there is any.
    pub fn any(self) -> bool {
        self.max_in_flight.is_some() || self.rate_per_second.is_some()
    }
}

/// Locks the destinations' rows until the transaction ends, and says how many rows each may get under the caps. (Counting
/// without the lock is no cap: two pods would count the same room.) A row whose lease is over takes no room: its worker is
/// gone, and the row itself waits for room. `counted` is a condition on the rows in flight, in SQL.
pub(super) async fn room(
    tx: &mut Tx,
    table: &TableName,
    scope: &str,
    destinations: &[String],
    caps: Caps,
    counted: &str,
) -> Result<BTreeMap<String, usize>, StoreError> {
    let act = "count a destination's room";
    lock(tx, table, scope, destinations).await?;
    // A bucket that is full at first and holds a second's worth; the rest is what has come since it was last read.
    let sql = format!(
        "UPDATE {side} AS d SET tokens_at = now(), \
           tokens = least($3::float8, coalesce(d.tokens + extract(epoch FROM now() - d.tokens_at)::float8 * $3, $3::float8)) \
         WHERE d.scope = $1 AND d.destination = ANY ($2) \
         RETURNING d.destination, floor(d.tokens)::bigint AS tokens, \
           (SELECT count(*) FROM {table} AS t WHERE t.status = 'in_flight' AND t.destination = d.destination \
              AND (t.next_attempt_at > now() OR (t.claim_token IS NULL AND t.locked_until > now())){counted}) AS in_flight",
        side = table.destinations(),
        table = table.qualified(),
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(scope)
        .bind(destinations)
        .bind(f64::from(caps.rate_per_second.unwrap_or(0)))
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql(act))?;
    let read = |row: &PgRow| -> Result<(String, usize), sqlx::Error> {
        let count = |name: &str| -> Result<usize, sqlx::Error> {
            Ok(usize::try_from(row.try_get::<i64, _>(name)?).unwrap_or(0))
        };
        let in_flight = count("in_flight")?;
        let by_flight = caps.max_in_flight.map_or(usize::MAX, |most| (most as usize).saturating_sub(in_flight));
        let by_rate = if caps.rate_per_second.is_some() { count("tokens")? } else { usize::MAX };
        Ok((row.try_get("destination")?, by_flight.min(by_rate)))
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(StoreError::sql(act))
}

/// Takes from the rate's bucket what was claimed. The rows are locked by [`room`].
pub(super) async fn spend(
    tx: &mut Tx,
    table: &TableName,
    scope: &str,
    claimed: &BTreeMap<String, i64>,
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE {} AS d SET tokens = d.tokens - spent.rows FROM unnest($2::text[], $3::bigint[]) AS spent (destination, rows) \
         WHERE d.scope = $1 AND d.destination = spent.destination",
        table.destinations()
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(scope)
        .bind(claimed.keys().cloned().collect::<Vec<_>>())
        .bind(claimed.values().copied().collect::<Vec<_>>())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::sql("spend a destination's rate"))
}

/// What attempts said of destinations, to be written with their settles.
#[derive(Clone, Debug)]
pub struct Signals<'a> {
    /// Whose holds these are.
    pub scope: &'a str,
    /// When a destination is held.
    pub policy: HoldPolicy,
    /// By destination, in the order of the attempts' ends.
    pub seen: BTreeMap<String, Vec<Signal>>,
}

/// Writes signals.
pub(super) async fn record(tx: &mut Tx, table: &TableName, signals: &Signals<'_>) -> Result<(), StoreError> {
    if signals.seen.is_empty() {
        return Ok(());
    }
    let act = "write what is known of destinations";
    let names: Vec<String> = signals.seen.keys().cloned().collect();
    for row in lock(tx, table, signals.scope, &names).await? {
        let name: String = row.try_get("destination").map_err(StoreError::sql(act))?;
        let before = state(&row).map_err(StoreError::sql(act))?;
        let seen = signals.seen.get(&name).map(Vec::as_slice).unwrap_or_default();
        let after = seen.iter().fold(before, |state, signal| hold::after(&signals.policy, state, *signal));
        if after != before {
            write(tx, table, signals.scope, &name, before, after).await?;
        }
    }
    Ok(())
}

/// Locks the destinations' rows, making those that are not there, in the order of their names.
async fn lock(tx: &mut Tx, table: &TableName, scope: &str, names: &[String]) -> Result<Vec<PgRow>, StoreError> {
    let side = table.destinations();
    let make = format!(
        "INSERT INTO {side} (scope, destination) SELECT $1, name FROM unnest($2::text[]) AS name ORDER BY name ON CONFLICT DO NOTHING"
    );
    let read = format!(
        "SELECT destination, failures, holds, reason, held_until IS NOT NULL AS held, allowance, \
           (extract(epoch FROM greatest(least(held_until, now() + interval '10 years') - now(), interval '0')) * 1000)::bigint AS left_ms \
         FROM {side} WHERE scope = $1 AND destination = ANY ($2) ORDER BY destination FOR UPDATE"
    );
    let act = "lock destinations";
    sqlx::query(sqlx::AssertSqlSafe(make))
        .persistent(false)
        .bind(scope)
        .bind(names)
        .execute(&mut **tx)
        .await
        .map_err(StoreError::sql(act))?;
    sqlx::query(sqlx::AssertSqlSafe(read))
        .persistent(false)
        .bind(scope)
        .bind(names)
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql(act))
}

async fn write(
    tx: &mut Tx,
    table: &TableName,
    scope: &str,
    name: &str,
    before: HoldState,
    after: HoldState,
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE {} SET failures = $3, holds = $4, reason = $5, allowance = $6, changed_at = now(), \
           held_until = CASE WHEN NOT $7 THEN NULL WHEN $8::bigint IS NULL THEN held_until ELSE now() + $8 * interval '1 microsecond' END, \
           probe_until = CASE WHEN $9 THEN NULL ELSE probe_until END \
         WHERE scope = $1 AND destination = $2",
        table.destinations()
    );
    // A hold that goes on keeps its instant: what is left of it was only read to decide.
    let begun = after.hold.filter(|hold| Some(*hold) != before.hold).map(|hold| micros(hold.left));
    let int = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(scope)
        .bind(name)
        .bind(int(after.failures))
        .bind(int(after.holds))
        .bind(after.hold.map(|hold| hold.reason.as_str()))
        .bind(after.allowance.map(int))
        .bind(after.hold.is_some())
        .bind(begun)
        .bind(after.hold != before.hold)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::sql("write what is known of a destination"))
}
