//! The backlog as a person asks for it.

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction, postgres::PgRow};
use uuid::Uuid;

use super::{
    super::{Db, StoreError, TableName, relays},
    STATEMENT_TIMEOUT,
    list::instant,
    selection::{PgQuery, destination},
};

/// Rows of one kind (those that move, dead ones) that are counted at most: about two seconds of an index scan.
const COUNT_BOUND: i64 = 1_000_000;
/// Destinations that are listed at most.
const DESTINATIONS: i64 = 100;
/// Errors that are listed at most.
const ERRORS: i64 = 10;

/// Which rows are counted; nothing given counts all.
#[derive(Clone, Debug, Default)]
pub struct StatusFilter {
    /// Whose effects.
    pub tenant: Option<Uuid>,
    /// The operation.
    pub operation: Option<String>,
    /// The business object; with it, rows that have ended are counted too.
    pub entity: Option<String>,
}

/// What a person sees first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusReport {
    /// All destinations together.
    pub total: DestinationBacklog,
    /// One line a destination, those that need a person first.
    pub destinations: Vec<DestinationBacklog>,
    /// Whether there are more destinations than are listed.
    pub more_destinations: bool,
    /// Whether a count met its bound.
    pub saturated: bool,
    /// Due rows of the table, whatever was asked for, that no relay serves: at most 10,000 are counted.
    pub unassigned: i64,
    /// The row that has been due longest.
    pub oldest_due: Option<OldestDue>,
    /// Destinations that are held now.
    pub holds: Vec<HeldDestination>,
    /// What rows suffer from, the most frequent first.
    pub errors: Vec<TopError>,
}

/// Rows of one destination, each in one state only.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DestinationBacklog {
    /// The destination; `None` for the line over all.
    pub destination: Option<String>,
    /// Rows that a pod could claim now.
    pub due: i64,
    /// Pending rows whose time is to come.
    pub waiting: i64,
    /// Rows whose lease runs.
    pub in_flight: i64,
    /// Uncertain rows that the relay goes on with.
    pub uncertain_auto: i64,
    /// Uncertain rows that wait for a person.
    pub uncertain_parked: i64,
    /// Dead rows.
    pub dead: i64,
    /// Rows that succeeded, where an entity was asked for.
    pub succeeded: i64,
    /// Rows that were cancelled, likewise.
    pub cancelled: i64,
    /// Rows that were superseded, likewise.
    pub superseded: i64,
    /// Since when the oldest due row is due, in seconds.
    pub oldest_due_s: Option<i64>,
}

/// The row that has been due longest.
#[derive(Clone, Debug, PartialEq)]
pub struct OldestDue {
    /// The row.
    pub id: i64,
    /// Its operation.
    pub operation: String,
    /// Its business object.
    pub entity: String,
    /// Where to.
    pub destination: String,
    /// Since when, as RFC 3339.
    pub due_at: Option<String>,
    /// For how long, in seconds.
    pub age_s: Option<i64>,
}

/// A destination that is not sent to for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldDestination {
    /// The destination.
    pub destination: String,
    /// Whose hold it is: the relay and its policy.
    pub scope: String,
    /// Why.
    pub reason: Option<String>,
    /// Until when, as RFC 3339.
    pub held_until: Option<String>,
    /// For how long yet, in seconds.
    pub left_s: Option<i64>,
}

/// Rows with one state, reason and answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TopError {
    /// Their state.
    pub status: String,
    /// Their reason.
    pub reason: Option<String>,
    /// The last answer's status.
    pub http_status: Option<i32>,
    /// How many.
    pub rows: i64,
    /// What one of them says.
    pub example: Option<String>,
}

const SCOPE: &str = "($1::uuid IS NULL OR t.tenant_id = $1) AND ($2::text IS NULL OR t.operation = $2) \
                     AND ($3::text IS NULL OR t.entity_id = $3)";

/// Counts the backlog.
pub async fn status(db: &Db, table: &TableName, filter: &StatusFilter) -> Result<StatusReport, StoreError> {
    db.bounded("read the backlog", STATEMENT_TIMEOUT * 3, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let mut report = backlog(&mut tx, table, filter).await?;
        report.oldest_due = oldest_due(&mut tx, table, filter).await?;
        report.holds = holds(&mut tx, table).await?;
        report.errors = errors(&mut tx, table, filter).await?;
        report.unassigned = relays::unassigned(&mut tx, table).await?;
        tx.commit().await.map_err(StoreError::sql("read the backlog"))?;
        Ok(report)
    })
    .await
}

fn query(sql: String, filter: &StatusFilter) -> PgQuery<'static> {
    sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(filter.tenant)
        .bind(filter.operation.clone())
        .bind(filter.entity.clone())
        .bind(COUNT_BOUND)
}

async fn backlog(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    filter: &StatusFilter,
) -> Result<StatusReport, StoreError> {
    let sql = include_str!("status.sql")
        .replace("{table}", &table.qualified())
        .replace("{destination}", &destination(table))
        .replace("{scope}", SCOPE);
    let read = |error| StoreError::sql("count the rows by destination")(error);
    let rows = query(sql, filter).bind(DESTINATIONS + 1).fetch_all(&mut **tx).await.map_err(read)?;
    let mut lines = rows.iter().map(line).collect::<Result<Vec<_>, _>>().map_err(read)?.into_iter();
    let total = lines.next().unwrap_or_default();
    let mut destinations: Vec<_> = lines.collect();
    let shown = usize::try_from(DESTINATIONS).unwrap_or(usize::MAX);
    let more_destinations = destinations.len() > shown;
    destinations.truncate(shown);
    let moving = total.due + total.waiting + total.in_flight + total.uncertain_auto + total.uncertain_parked;
    let saturated = [moving, total.dead, total.succeeded + total.cancelled + total.superseded]
        .iter()
        .any(|count| *count >= COUNT_BOUND);
    Ok(StatusReport { total, destinations, more_destinations, saturated, ..StatusReport::default() })
}

fn line(row: &PgRow) -> Result<DestinationBacklog, sqlx::Error> {
    Ok(DestinationBacklog {
        destination: row.try_get("destination")?,
        due: row.try_get("due")?,
        waiting: row.try_get("waiting")?,
        in_flight: row.try_get("in_flight")?,
        uncertain_auto: row.try_get("uncertain_auto")?,
        uncertain_parked: row.try_get("uncertain_parked")?,
        dead: row.try_get("dead")?,
        succeeded: row.try_get("succeeded")?,
        cancelled: row.try_get("cancelled")?,
        superseded: row.try_get("superseded")?,
        oldest_due_s: row.try_get("oldest_due_s")?,
    })
}

async fn oldest_due(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    filter: &StatusFilter,
) -> Result<Option<OldestDue>, StoreError> {
    let sql = format!(
        "SELECT t.id, t.operation::text, t.entity_id::text, {} AS destination, {} AS due_at, \
         CASE WHEN isfinite(t.next_attempt_at) THEN extract(epoch FROM now() - t.next_attempt_at)::bigint END AS age_s \
         FROM {} AS t WHERE t.status IN ('pending', 'in_flight', 'uncertain') AND t.next_attempt_at <= now() AND {SCOPE} \
         ORDER BY t.next_attempt_at, t.id LIMIT least($4, 1)",
        destination(table),
        instant("t.next_attempt_at"),
        table.qualified()
    );
    let read = |error| StoreError::sql("look for the oldest due row")(error);
    let row = query(sql, filter).fetch_optional(&mut **tx).await.map_err(read)?;
    row.map(|row| {
        Ok(OldestDue {
            id: row.try_get("id")?,
            operation: row.try_get("operation")?,
            entity: row.try_get("entity_id")?,
            destination: row.try_get("destination")?,
            due_at: row.try_get("due_at")?,
            age_s: row.try_get("age_s")?,
        })
    })
    .transpose()
    .map_err(read)
}

async fn holds(tx: &mut Transaction<'static, Postgres>, table: &TableName) -> Result<Vec<HeldDestination>, StoreError> {
    let sql = format!(
        "SELECT h.destination, h.scope, h.reason, {} AS held_until, \
         CASE WHEN isfinite(h.held_until) THEN extract(epoch FROM h.held_until - now())::bigint END AS left_s \
         FROM {} AS h WHERE h.held_until > now() ORDER BY h.held_until DESC, h.destination LIMIT $1",
        instant("h.held_until"),
        table.destinations()
    );
    let read = |error| StoreError::sql("read the holds")(error);
    let rows = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(DESTINATIONS)
        .fetch_all(&mut **tx)
        .await
        .map_err(read)?;
    rows.iter()
        .map(|row| {
            Ok(HeldDestination {
                destination: row.try_get("destination")?,
                scope: row.try_get("scope")?,
                reason: row.try_get("reason")?,
                held_until: row.try_get("held_until")?,
                left_s: row.try_get("left_s")?,
            })
        })
        .collect::<Result<_, _>>()
        .map_err(read)
}

async fn errors(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    filter: &StatusFilter,
) -> Result<Vec<TopError>, StoreError> {
    let source = |condition: &str| {
        format!(
            "(SELECT status::text AS status, regexp_replace(reason, '^(waits for row) [0-9]+$', '\\1 before it') AS reason, last_http_status, last_error FROM {} AS t WHERE {condition} AND {SCOPE} LIMIT $4)",
            table.qualified()
        )
    };
    let sql = format!(
        "SELECT status, left(reason, 64) AS reason, last_http_status, count(*) AS rows, max(left(last_error::text, 200)) AS example \
         FROM ({} UNION ALL {}) AS seen GROUP BY 1, 2, 3 ORDER BY count(*) DESC, 1, 2, 3 LIMIT $5",
        source("t.status = 'dead'"),
        source("t.status IN ('pending', 'in_flight', 'uncertain') AND t.reason IS NOT NULL"),
    );
    let read = |error| StoreError::sql("count the errors")(error);
    let rows = query(sql, filter).bind(ERRORS).fetch_all(&mut **tx).await.map_err(read)?;
    rows.iter()
        .map(|row| {
            Ok(TopError {
                status: row.try_get("status")?,
                reason: row.try_get("reason")?,
                http_status: row.try_get("last_http_status")?,
                rows: row.try_get("rows")?,
                example: row.try_get("example")?,
            })
        })
        .collect::<Result<_, _>>()
        .map_err(read)
}
