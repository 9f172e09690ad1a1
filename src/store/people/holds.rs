//! Holds of destinations, for people: look at them, lift them, set them.
//!
//! A hold belongs to a scope, which is a relay and its policy. An act is about one destination, in the scopes that know it
//! unless they are narrowed down, and is written into the history once a scope.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction, postgres::PgRow};

use super::{
    super::{Db, StoreError, TableName},
    STATEMENT_TIMEOUT,
    act::Signature,
    list::instant,
    selection::DestinationFilter,
};
use crate::{domain::hold, store::claim::micros};

/// Holds that a list shows at most.
const LISTED: i64 = 1_000;
/// Rows behind one hold that are counted at most: the count of a destination with millions costs no more.
const COUNTED: i64 = 10_000;
/// The farthest end of a hold: 10 years. What is meant for ever is to be looked at again by then.
const FARTHEST: Duration = Duration::from_secs(10 * 365 * 86_400);

type Tx = Transaction<'static, Postgres>;

/// A destination that is held, or whose hold is over and waits for its probe.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldHere {
    /// Whose hold it is: the relay and its policy.
    pub scope: String,
    /// The destination.
    pub destination: String,
    /// Why.
    pub reason: Option<String>,
    /// Until when, as RFC 3339.
    pub held_until: Option<String>,
    /// For how long yet, in seconds; zero: the hold is over and a probe decides.
    pub left_s: Option<i64>,
    /// Failures in a row.
    pub failures: i32,
    /// Holds in a row.
    pub holds: i32,
    /// Who set it, where a person did.
    pub held_by: Option<String>,
    /// Why they did.
    pub note: Option<String>,
    /// Rows that wait behind it, counted up to a bound.
    pub rows: i64,
    /// Whether there are more than were counted.
    pub more_rows: bool,
}

/// All holds, those that last longest first, and whether there are more than are shown.
pub async fn list_holds(db: &Db, table: &TableName) -> Result<(Vec<HeldHere>, bool), StoreError> {
    let act = "list the holds";
    let sql = format!(
        "SELECT h.scope, h.destination, h.reason, {} AS held_until, h.failures, h.holds, \
           CASE WHEN isfinite(h.held_until) THEN extract(epoch FROM greatest(h.held_until - now(), interval '0'))::bigint END AS left_s, \
           CASE WHEN h.reason = 'manual' THEN h.held_by END AS held_by, CASE WHEN h.reason = 'manual' THEN h.note END AS note, \
           (SELECT count(*) FROM (SELECT FROM {} AS t WHERE t.status IN ('pending', 'in_flight', 'uncertain') \
              AND t.destination = h.destination LIMIT $2 + 1) AS counted) AS rows \
         FROM {} AS h WHERE h.held_until IS NOT NULL ORDER BY h.held_until DESC, h.destination, h.scope LIMIT $1 + 1",
        instant("h.held_until"),
        table.qualified(),
        table.destinations()
    );
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let rows = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(LISTED)
            .bind(COUNTED)
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        let mut held = rows.iter().map(held).collect::<Result<Vec<_>, _>>().map_err(StoreError::sql(act))?;
        let shown = usize::try_from(LISTED).unwrap_or(usize::MAX);
        let more = held.len() > shown;
        held.truncate(shown);
        Ok((held, more))
    })
    .await
}

fn held(row: &PgRow) -> Result<HeldHere, sqlx::Error> {
    let rows: i64 = row.try_get("rows")?;
    Ok(HeldHere {
        scope: row.try_get("scope")?,
        destination: row.try_get("destination")?,
        reason: row.try_get("reason")?,
        held_until: row.try_get("held_until")?,
        left_s: row.try_get("left_s")?,
        failures: row.try_get("failures")?,
        holds: row.try_get("holds")?,
        held_by: row.try_get("held_by")?,
        note: row.try_get("note")?,
        rows: rows.min(COUNTED),
        more_rows: rows > COUNTED,
    })
}

/// What becomes of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldAct {
    /// It gets rows again, a few at first, as after a probe that was answered.
    Release,
    /// It gets none before this moment. Then a probe decides.
    Set(Until),
}

/// When a hold ends, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// So long from now.
    In(Duration),
    /// Microseconds of the Unix epoch.
    At(i64),
}

/// A destination and a scope that an act has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldChanged {
    /// The destination, as the table spells it.
    pub destination: String,
    /// The relay and its policy.
    pub scope: String,
    /// Until when it is held now, as RFC 3339; `None`: released.
    pub held_until: Option<String>,
}

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldRefusal {
    /// No relay has met the destination, and no row that is under way goes there.
    Unknown,
    /// It is known, and not held.
    NotHeld,
    /// No relay has had trouble on this table yet, so none has written its name, and whose hold it would be is not known.
    NoScope,
    /// The moment has passed by the database's clock.
    Past,
    /// The moment is farther away than a hold may last.
    TooFar,
}

/// Changes the holds of one destination. `scope` narrows it down to a relay's, or to one policy's of it.
pub async fn change_hold(
    db: &Db,
    table: &TableName,
    destination: &DestinationFilter,
    scope: Option<&str>,
    act: HoldAct,
    signature: &Signature,
) -> Result<Result<Vec<HoldChanged>, HoldRefusal>, StoreError> {
    let name = match act {
        HoldAct::Release => "release the destination",
        HoldAct::Set(_) => "hold the destination",
    };
    db.bounded(name, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let changed = match act {
            HoldAct::Release => release(&mut tx, table, destination, scope, signature).await?,
            HoldAct::Set(until) => set(&mut tx, table, destination, scope, until, signature).await?,
        };
        tx.commit().await.map_err(StoreError::sql(name))?;
        Ok(changed)
    })
    .await
}

type Changed = Result<Vec<HoldChanged>, HoldRefusal>;

/// Parameters 1 to 3: the destination in both spellings, and the scope or the relay that it begins with.
fn which(table: &TableName) -> String {
    format!(
        "d.destination IN ($1, {}($2)) AND ($3::text IS NULL OR d.scope = $3 OR starts_with(d.scope, $3 || '/'))",
        table.beside("origin")
    )
}

/// Records the act once a scope. Parameters 4 to 6 are the signature.
fn recorded(table: &TableName, act: &str, outcome: &str) -> String {
    format!(
        "INSERT INTO {} (act, worker, status_before, outcome, reason, destination, scope, actor, filter, note) \
         SELECT '{act}', current_user, c.before, '{outcome}', c.reason, c.destination, c.scope, \
           left($4, 200), left($5, 1000), left($6, 1000) FROM changed AS c",
        table.history()
    )
}

async fn release(
    tx: &mut Tx,
    table: &TableName,
    destination: &DestinationFilter,
    scope: Option<&str>,
    signature: &Signature,
) -> Result<Changed, StoreError> {
    let (side, which) = (table.destinations(), which(table));
    let record = recorded(table, "release", "released");
    let sql = format!(
        "WITH chosen AS MATERIALIZED ( \
           SELECT d.scope, d.destination, d.reason FROM {side} AS d WHERE {which} AND d.held_until IS NOT NULL \
           ORDER BY d.scope, d.destination FOR UPDATE), \
         changed AS ( \
           UPDATE {side} AS d SET failures = 0, holds = 0, held_until = NULL, reason = NULL, probe_until = NULL, \
             allowance = $7, changed_at = now(), held_by = NULL, note = NULL \
           FROM chosen WHERE d.scope = chosen.scope AND d.destination = chosen.destination \
           RETURNING d.scope, d.destination, chosen.reason, 'held' AS before), \
         recorded AS ({record}) \
         SELECT scope, destination, NULL::text AS held_until FROM changed ORDER BY destination, scope"
    );
    let allowance = i32::try_from(hold::FIRST_ALLOWANCE).unwrap_or(1);
    let rows = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(destination.canonical.clone())
        .bind(destination.given.clone())
        .bind(scope.map(str::to_owned))
        .bind(signature.actor.clone())
        .bind(signature.filter.clone())
        .bind(signature.note.clone())
        .bind(allowance)
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql("release the destination"))?;
    if rows.is_empty() {
        let known = known(tx, table, destination).await?;
        return Ok(Err(if known { HoldRefusal::NotHeld } else { HoldRefusal::Unknown }));
    }
    changed(&rows).map(Ok)
}

async fn set(
    tx: &mut Tx,
    table: &TableName,
    destination: &DestinationFilter,
    scope: Option<&str>,
    until: Until,
    signature: &Signature,
) -> Result<Changed, StoreError> {
    let now_us: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
        .persistent(false)
        .fetch_one(&mut **tx)
        .await
        .map_err(StoreError::sql("read the database's clock"))?;
    let until_us = match until {
        Until::In(span) => now_us.saturating_add(micros(span)),
        Until::At(instant) => instant,
    };
    if until_us <= now_us {
        return Ok(Err(HoldRefusal::Past));
    }
    if until_us > now_us.saturating_add(micros(FARTHEST)) {
        return Ok(Err(HoldRefusal::TooFar));
    }
    if scope.is_none() && !known(tx, table, destination).await? {
        return Ok(Err(HoldRefusal::Unknown));
    }
    let scopes = scopes(tx, table, destination, scope).await?;
    if scopes.is_empty() {
        return Ok(Err(HoldRefusal::NoScope));
    }
    let side = table.destinations();
    let record = recorded(table, "hold", "held");
    // A hold that there is already is replaced, whoever set it: the last word is the person's.
    let sql = format!(
        "WITH before AS MATERIALIZED ( \
           SELECT d.scope, d.destination, d.reason, d.held_until FROM {side} AS d \
           WHERE d.destination IN ($1, {origin}($2)) AND d.scope = ANY ($3) ORDER BY d.scope, d.destination FOR UPDATE), \
         wanted AS ( \
           SELECT scope, destination FROM before UNION \
           SELECT s.scope, {origin}($2) FROM unnest($3::text[]) AS s (scope) \
           WHERE NOT EXISTS (SELECT FROM before AS b WHERE b.scope = s.scope)), \
         made AS ( \
           INSERT INTO {side} AS d (scope, destination, held_until, reason, held_by, note) \
           SELECT scope, destination, timestamptz 'epoch' + $7 * interval '1 microsecond', 'manual', left($4, 200), left($6, 1000) \
           FROM wanted ORDER BY destination, scope \
           ON CONFLICT (scope, destination) DO UPDATE SET held_until = EXCLUDED.held_until, reason = EXCLUDED.reason, \
             held_by = EXCLUDED.held_by, note = EXCLUDED.note, probe_until = NULL, changed_at = now() \
           RETURNING d.scope, d.destination, d.held_until), \
         changed AS ( \
           SELECT m.scope, m.destination, b.reason, CASE WHEN b.held_until IS NULL THEN 'free' ELSE 'held' END AS before, m.held_until \
           FROM made AS m LEFT JOIN before AS b USING (scope, destination)), \
         recorded AS ({record}) \
         SELECT scope, destination, {instant} AS held_until FROM changed AS c ORDER BY destination, scope",
        origin = table.beside("origin"),
        instant = instant("c.held_until"),
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(destination.canonical.clone())
        .bind(destination.given.clone())
        .bind(scopes)
        .bind(signature.actor.clone())
        .bind(signature.filter.clone())
        .bind(signature.note.clone())
        .bind(until_us)
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql("hold the destination"))?;
    changed(&rows).map(Ok)
}

/// Whether a relay has met the destination, or a row that is under way goes there.
async fn known(tx: &mut Tx, table: &TableName, destination: &DestinationFilter) -> Result<bool, StoreError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {} AS d WHERE d.destination IN ($1, {origin}($2))) \
         OR EXISTS (SELECT FROM {} AS t WHERE t.status IN ('pending', 'in_flight', 'uncertain') \
              AND t.destination IN ($1, {origin}($2)))",
        table.destinations(),
        table.qualified(),
        origin = table.beside("origin"),
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(destination.canonical.clone())
        .bind(destination.given.clone())
        .fetch_one(&mut **tx)
        .await
        .map_err(StoreError::sql("look for the destination"))
}

/// Whose holds a new one is: those that know the destination, else all of this table's. A whole scope that is given and
/// that nobody has used yet is taken at its word.
async fn scopes(
    tx: &mut Tx,
    table: &TableName,
    destination: &DestinationFilter,
    scope: Option<&str>,
) -> Result<Vec<String>, StoreError> {
    let (side, which) = (table.destinations(), which(table));
    let sql = format!(
        "WITH here AS (SELECT DISTINCT d.scope FROM {side} AS d WHERE {which}), \
         everywhere AS (SELECT DISTINCT d.scope FROM {side} AS d \
           WHERE $3::text IS NULL OR d.scope = $3 OR starts_with(d.scope, $3 || '/')) \
         SELECT scope FROM here UNION SELECT scope FROM everywhere WHERE NOT EXISTS (SELECT FROM here) ORDER BY scope"
    );
    let mut scopes: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(destination.canonical.clone())
        .bind(destination.given.clone())
        .bind(scope.map(str::to_owned))
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql("look for whose hold it is"))?;
    if let (true, Some(scope)) = (scopes.is_empty(), scope) {
        scopes.push(scope.to_owned());
    }
    Ok(scopes)
}

fn changed(rows: &[PgRow]) -> Result<Vec<HoldChanged>, StoreError> {
    rows.iter()
        .map(|row| {
            Ok(HoldChanged {
                destination: row.try_get("destination")?,
                scope: row.try_get("scope")?,
                held_until: row.try_get("held_until")?,
            })
        })
        .collect::<Result<_, _>>()
        .map_err(StoreError::sql("read what was changed"))
}
