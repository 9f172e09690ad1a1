//! The demo's view of the outbox table: what an application and an engineer on call can do with SQL, and no more.
//!
//! Only published columns are mentioned.

use std::collections::HashMap;

use sqlx::{PgPool, Row, postgres::PgRow};

use super::plan::Intent;

const INSERT: &str = "\
INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload)
SELECT tenant::uuid, operation, entity, key, endpoint, payload::jsonb
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
     AS intent (tenant, operation, entity, key, endpoint, payload)";

const COUNTS: &str = "\
SELECT status, next_attempt_at = 'infinity' AS parked, count(*) AS rows FROM agent_outbox GROUP BY 1, 2";

const ENDS: &str = "\
SELECT id, idempotency_key, status, next_attempt_at = 'infinity' AS parked, reason, last_error, attempts,
       unknown_attempts, downstream_id, payload::text AS body
FROM agent_outbox ORDER BY id";

/// How many rows are in which state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub pending: u64,
    pub in_flight: u64,
    pub succeeded: u64,
    pub dead: u64,
    /// Uncertain, and sent again by the relays themselves.
    pub uncertain: u64,
    /// Uncertain, and left to a person.
    pub parked: u64,
}

impl Tally {
    /// Rows that nothing more happens to by itself.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.dead + self.parked
    }
}

/// A row as it ended.
#[derive(Clone, Debug)]
pub(super) struct RowEnd {
    pub id: i64,
    pub key: String,
    pub status: String,
    pub parked: bool,
    pub reason: Option<String>,
    pub last_error: Option<String>,
    pub attempts: i32,
    pub unknown_attempts: i32,
    pub downstream_id: Option<String>,
    /// `payload::text`, which is what has to be sent.
    pub body: String,
}

/// Inserts intents in one transaction, as an application would beside its own change.
///
/// # Errors
///
/// What the database says.
pub(super) async fn insert(pool: &PgPool, intents: &[&Intent]) -> Result<(), sqlx::Error> {
    let column = |of: fn(&Intent) -> &str| intents.iter().map(|intent| of(intent).to_owned()).collect::<Vec<String>>();
    sqlx::query(INSERT)
        .bind(column(|intent| intent.tenant))
        .bind(column(|intent| intent.operation))
        .bind(column(|intent| &intent.entity))
        .bind(column(|intent| &intent.key))
        .bind(column(|intent| &intent.endpoint))
        .bind(column(|intent| &intent.payload))
        .execute(pool)
        .await
        .map(|_| ())
}

/// Counts rows by state.
///
/// # Errors
///
/// What the database says.
pub(super) async fn tally(pool: &PgPool) -> Result<Tally, sqlx::Error> {
    let mut tally = Tally::default();
    for row in sqlx::query(COUNTS).fetch_all(pool).await? {
        let (status, parked): (String, bool) = (row.try_get("status")?, row.try_get("parked")?);
        let rows = u64::try_from(row.try_get::<i64, _>("rows")?).unwrap_or_default();
        let place = match (status.as_str(), parked) {
            ("in_flight", _) => &mut tally.in_flight,
            ("succeeded", _) => &mut tally.succeeded,
            ("dead", _) => &mut tally.dead,
            ("uncertain", false) => &mut tally.uncertain,
            ("uncertain", true) => &mut tally.parked,
            _ => &mut tally.pending,
        };
        *place += rows;
    }
    Ok(tally)
}

/// Reads all rows, by their key.
///
/// # Errors
///
/// What the database says.
pub(super) async fn ends(pool: &PgPool) -> Result<HashMap<String, RowEnd>, sqlx::Error> {
    let rows = sqlx::query(ENDS).fetch_all(pool).await?;
    rows.iter().map(|row| end(row).map(|end| (end.key.clone(), end))).collect()
}

fn end(row: &PgRow) -> Result<RowEnd, sqlx::Error> {
    Ok(RowEnd {
        id: row.try_get("id")?,
        key: row.try_get("idempotency_key")?,
        status: row.try_get("status")?,
        parked: row.try_get("parked")?,
        reason: row.try_get("reason")?,
        last_error: row.try_get("last_error")?,
        attempts: row.try_get("attempts")?,
        unknown_attempts: row.try_get("unknown_attempts")?,
        downstream_id: row.try_get("downstream_id")?,
        body: row.try_get("body")?,
    })
}
