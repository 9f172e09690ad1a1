//! Lists of dead and uncertain rows.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Row as _, postgres::PgRow};

use super::{
    super::{Db, StoreError, TableName},
    STATEMENT_TIMEOUT,
    act::{Refused, Why},
    batches::{Kind, Place},
    replay::DEAD_WHEN,
    resolve::UNCERTAIN_WHEN,
    selection::{Bound, Filter, PgQuery, Selection, conditions, destination},
};

/// A row as people see it. Endpoint and headers are left out: they may hold secrets. Instants are RFC 3339 in UTC.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The columns by their names; see [`TEXTS`] for which.
    texts: Vec<Option<String>>,
    /// The row.
    pub id: i64,
    /// Its version of the intent.
    pub intent_version: i32,
    /// Attempts since insert or replay.
    pub attempts: i32,
    /// Waits since insert or replay.
    pub waits: i32,
    /// Attempts whose outcome nobody knows.
    pub unknown_attempts: i32,
    /// Whether the receiver may have stored an answer under the key.
    pub answered_5xx: bool,
    /// The status of the last answer.
    pub last_http_status: Option<i32>,
    /// `payload::text`, where it was asked for.
    pub payload: Option<String>,
    /// Bytes of the payload as it is stored: reading it for its size could take longer than anything else here.
    pub payload_bytes: i32,
    /// Since when the row is where it is, in seconds.
    pub age_s: Option<i64>,
}

/// Text columns in the order in which JSON shows them: name, and SQL over the table `t`.
const TEXTS: [(&str, &str); 16] = [
    ("tenant_id", "t.tenant_id::text"),
    ("operation", "t.operation::text"),
    ("entity_id", "t.entity_id::text"),
    ("idempotency_key", "t.idempotency_key::text"),
    ("destination", "{destination}"),
    ("status", "t.status::text"),
    ("reason", "t.reason"),
    ("last_error", "left(t.last_error::text, 500)"),
    ("downstream_id", "t.downstream_id::text"),
    ("claimed_by", "t.claimed_by"),
    ("created_at", "{instant:created_at}"),
    ("first_dispatch_at", "{instant:first_dispatch_at}"),
    ("retry_since", "{instant:retry_since}"),
    ("next_attempt_at", "{instant:next_attempt_at}"),
    ("completed_at", "{instant:completed_at}"),
    ("expires_at", "{instant:expires_at}"),
];

impl Row {
    /// A text column by its name.
    pub fn text(&self, name: &str) -> Option<&str> {
        let place = TEXTS.iter().position(|(column, _)| *column == name)?;
        self.texts.get(place)?.as_deref()
    }

    /// All text columns with their names, in order.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        TEXTS.iter().zip(&self.texts).map(|((name, _), text)| (*name, text.as_deref()))
    }

    pub(super) fn decode(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            texts: TEXTS.iter().map(|(name, _)| row.try_get(*name)).collect::<Result<_, _>>()?,
            id: row.try_get("id")?,
            intent_version: row.try_get("intent_version")?,
            attempts: row.try_get("attempts")?,
            waits: row.try_get("waits")?,
            unknown_attempts: row.try_get("unknown_attempts")?,
            answered_5xx: row.try_get("answered_5xx")?,
            last_http_status: row.try_get("last_http_status")?,
            payload: row.try_get("payload")?,
            payload_bytes: row.try_get("payload_bytes")?,
            age_s: row.try_get("age_s")?,
        })
    }
}

/// An instant as RFC 3339 in UTC, whatever the session's time zone; `infinity` stays a word.
pub(super) fn instant(column: &str) -> String {
    format!(
        "CASE WHEN isfinite({column}) THEN to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') \
         ELSE {column}::text END"
    )
}

/// The columns of [`Row`] over the table `t`; the age counts from `when`.
pub(super) fn columns(table: &TableName, when: &str, payload: bool) -> String {
    let mut columns = String::new();
    for (name, sql) in TEXTS {
        let sql = match sql.strip_prefix("{instant:") {
            Some(column) => instant(&format!("t.{}", column.trim_end_matches('}'))),
            None => sql.replace("{destination}", &destination(table)),
        };
        let _ = write!(columns, "{sql} AS {name}, ");
    }
    let text = if payload { "t.payload::text" } else { "NULL::text" };
    let _ = write!(
        columns,
        "t.id, t.intent_version, t.attempts, t.waits, t.unknown_attempts, t.answered_5xx, t.last_http_status, \
         {text} AS payload, pg_column_size(t.payload) AS payload_bytes, \
         CASE WHEN isfinite({when}) THEN extract(epoch FROM now() - {when})::bigint END AS age_s"
    );
    columns
}

/// Rows, and how many there are in all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// The rows that are shown.
    pub rows: Vec<Row>,
    /// How many match.
    pub total: i64,
    /// Rows that an act would refuse.
    pub refused: Vec<Refused>,
}

/// Dead rows, those that died last first. With `payload`, their payloads are read too.
pub async fn list_dead(
    db: &Db,
    table: &TableName,
    filter: &Filter,
    limit: i64,
    payload: bool,
) -> Result<Listing, StoreError> {
    list(db, table, ("dead", DEAD_WHEN), filter, limit, payload).await
}

/// Uncertain rows, those that have been uncertain longest first. With `payload`, their payloads are read too.
pub async fn list_uncertain(
    db: &Db,
    table: &TableName,
    filter: &Filter,
    limit: i64,
    payload: bool,
) -> Result<Listing, StoreError> {
    list(db, table, ("uncertain", UNCERTAIN_WHEN), filter, limit, payload).await
}

async fn list(
    db: &Db,
    table: &TableName,
    (status, when): (&str, &str),
    filter: &Filter,
    limit: i64,
    payload: bool,
) -> Result<Listing, StoreError> {
    let act = "list rows";
    let direction = if status == "dead" { "DESC" } else { "ASC" };
    let of = format!("FROM {} AS t WHERE t.status = '{status}' AND {}", table.qualified(), conditions(table, when));
    let page =
        format!("SELECT {} {of} ORDER BY {when} {direction}, t.id {direction} LIMIT $9", columns(table, when, payload));
    let selection = Selection::Matching { filter: filter.clone(), limit: Some(limit) };
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let bound = Bound::read(&mut tx, &selection).await?;
        let query = |sql: String| bound.bind(sqlx::query(AssertSqlSafe(sql)).persistent(false), None);
        let rows = query(page).bind(limit).fetch_all(&mut *tx).await.map_err(StoreError::sql(act))?;
        let count = query(format!("SELECT count(*) {of}")).fetch_one(&mut *tx).await.map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(Listing {
            rows: rows.iter().map(Row::decode).collect::<Result<_, _>>().map_err(StoreError::sql(act))?,
            total: count.try_get(0).map_err(StoreError::sql(act))?,
            refused: Vec::new(),
        })
    })
    .await
}

/// What an act would do: the rows that would move, at most `shown` of them, and those that would be refused.
pub(super) async fn preview(
    db: &Db,
    table: &TableName,
    kind: &Kind,
    selection: &Selection,
    shown: i64,
    payload: bool,
    own: impl for<'q> Fn(PgQuery<'q>, Place) -> PgQuery<'q>,
) -> Result<Listing, StoreError> {
    let act = "look at what would move";
    let limit = match selection {
        Selection::Ids(_) => None,
        Selection::Matching { limit, .. } => *limit,
    };
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let bound = Bound::read(&mut tx, selection).await?;
        let place = Place { began_us: bound.now_us, moved: 0, total: 0 };
        let query = |sql: String, limit: Option<i64>| {
            let none: Option<String> = None;
            let query = bound.bind(sqlx::query(AssertSqlSafe(sql)).persistent(false), bound.ids.as_deref());
            own(query.bind(i64::MIN).bind(limit).bind(none.clone()).bind(none.clone()).bind(none), place)
        };
        let (name, of, from) = (table.qualified(), kind.conditions(table, &bound), kind.from);
        let refusal = format!("CASE WHEN t.status <> '{from}' THEN 'state' {} END", kind.refusal);
        let movable = format!("FROM {name} AS t WHERE {of} AND {refusal} IS NULL");
        let read = |error| StoreError::sql(act)(error);
        let page = format!("SELECT {} {movable} ORDER BY t.id LIMIT $10", columns(table, kind.when, payload));
        let first = shown.min(limit.unwrap_or(i64::MAX));
        let rows = query(page, Some(first)).fetch_all(&mut *tx).await.map_err(read)?;
        let count = format!("SELECT count(*) FROM (SELECT {movable} LIMIT $10) AS counted");
        let count = query(count, limit).fetch_one(&mut *tx).await.map_err(read)?;
        // With a limit the act ends at the last row that it moves, and meets no row beyond.
        let refusals = format!(
            "SELECT t.id, t.status, {refusal} AS refusal FROM {name} AS t WHERE {of} AND {refusal} IS NOT NULL \
             AND ($10::bigint IS NULL OR t.id < coalesce( \
                 (SELECT t.id {movable} ORDER BY t.id OFFSET greatest($10 - 1, 0) LIMIT 1), 9223372036854775807)) \
             ORDER BY t.id"
        );
        let refusals = query(refusals, limit).fetch_all(&mut *tx).await.map_err(read)?;
        let mut refused = Vec::new();
        for row in &refusals {
            let why: String = row.try_get("refusal").map_err(read)?;
            refused.push(Refused {
                id: row.try_get("id").map_err(read)?,
                status: Some(row.try_get("status").map_err(read)?),
                why: Why::parse(&why),
            });
        }
        if let Some(ids) = &bound.ids {
            let sql = format!("SELECT id FROM unnest($1::bigint[]) AS w (id) WHERE NOT EXISTS (SELECT FROM {name} AS t WHERE t.id = w.id)");
            let absent: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(sql))
                .persistent(false)
                .bind(ids.clone())
                .fetch_all(&mut *tx)
                .await
                .map_err(read)?;
            refused.extend(absent.into_iter().map(|id| Refused { id, status: None, why: Why::NoSuchRow }));
        }
        refused.sort_by_key(|row| row.id);
        tx.commit().await.map_err(read)?;
        Ok(Listing {
            rows: rows.iter().map(Row::decode).collect::<Result<_, _>>().map_err(read)?,
            total: count.try_get(0).map_err(read)?,
            refused,
        })
    })
    .await
}
