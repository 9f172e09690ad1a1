//! The claim: due rows become this worker's for the length of a lease.

// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox

use std::time::{Duration, Instant};

use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use super::{Db, StoreError, TableName};
use crate::domain::row::RowFacts;

/// The server ends a claim after this time; a claim is a few milliseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// What to claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest<'a> {
    /// Tenants whose rows are served; empty: all.
    pub tenants: &'a [Uuid],
    /// Rows at most.
    pub limit: usize,
    /// Who claims, for people.
    pub worker: &'a str,
    /// How long the rows belong to the claim.
    pub lease: Duration,
}

/// A claimed row.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The row.
    pub id: i64,
    /// The claim's fencing token: every later write to the row carries it.
    pub token: Uuid,
    /// The lease holds at least until then, by this process's monotonic clock.
    pub held_until: Instant,
    /// The tenant, as canonical UUID text.
    pub tenant: String,
    /// The operation.
    pub operation: String,
    /// The business object.
    pub entity: String,
    /// The idempotency key.
    pub key: String,
    /// Where to.
    pub endpoint: String,
    /// `payload::text`, to be sent byte for byte.
    pub payload: String,
    /// SHA-256 of the payload at its first claim.
    pub payload_hash: Vec<u8>,
    /// Extra request headers as JSON text.
    pub headers: Option<String>,
    /// What decisions need.
    pub facts: RowFacts,
    /// Age of the row at the claim.
    pub age: Duration,
    /// When it was claimed, by the database's clock, in milliseconds of the Unix epoch.
    pub claimed_at_ms: i64,
}

/// Claims due rows. One statement, one transaction, committed when this returns.
pub async fn claim(db: &Db, table: &TableName, request: &ClaimRequest<'_>) -> Result<Vec<Claimed>, StoreError> {
    let act = "claim due rows";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        // Read before the database does anything, so that the lease ends later there than here.
        let claimed = Instant::now();
        let token = Uuid::new_v4();
        let sql = include_str!("claim.sql").replace("{table}", &table.qualified());
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind((!request.tenants.is_empty()).then_some(request.tenants))
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .bind(token)
            .bind(request.worker)
            .bind(micros(request.lease))
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        let mut rows = rows
            .iter()
            .map(|row| decode(row, token, claimed + request.lease))
            .collect::<Result<Vec<_>, _>>()
            .map_err(StoreError::sql(act))?;
        rows.sort_by_key(|row| row.id);
        Ok(rows)
    })
    .await
}

fn decode(row: &PgRow, token: Uuid, held_until: Instant) -> Result<Claimed, sqlx::Error> {
    let millis = |name: &str| -> Result<Duration, sqlx::Error> {
        Ok(Duration::from_millis(u64::try_from(row.try_get::<i64, _>(name)?).unwrap_or(0)))
    };
    let count =
        |name: &str| -> Result<u32, sqlx::Error> { Ok(u32::try_from(row.try_get::<i32, _>(name)?).unwrap_or(0)) };
    Ok(Claimed {
        id: row.try_get("id")?,
        token,
        held_until,
        tenant: row.try_get("tenant")?,
        operation: row.try_get("operation")?,
        entity: row.try_get("entity_id")?,
        key: row.try_get("idempotency_key")?,
        endpoint: row.try_get("endpoint")?,
        payload: row.try_get("payload")?,
        payload_hash: row.try_get("payload_hash")?,
        headers: row.try_get("headers")?,
        facts: RowFacts {
            attempts: count("attempts")?,
            unknown_attempts: count("unknown_attempts")?,
            lease_expired: row.try_get("lease_expired")?,
            answered_5xx: row.try_get("answered_5xx")?,
            first_dispatch: row.try_get("first_dispatch")?,
            retry_age: millis("retry_age_ms")?,
            dispatch_age: millis("dispatch_age_ms")?,
            expired: row.try_get("expired")?,
        },
        age: millis("age_ms")?,
        claimed_at_ms: row.try_get("claimed_at_ms")?,
    })
}

/// A span as the microseconds that PostgreSQL's intervals count.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
