//! The taking of rows: their state becomes `in_flight`, and the claim's token theirs.

use std::time::{Duration, Instant};

use sqlx::{Postgres, Row, Transaction, postgres::PgRow};
use uuid::Uuid;

use super::{
    super::StoreError, super::TableName, ClaimRequest, Claimed, Open, Place, SMALL_STORED_BYTES, micros,
    visit::place_at,
};
use crate::domain::row::RowFacts;

type Tx = Transaction<'static, Postgres>;

/// Takes due rows of these, whose destinations have one policy without an order.
pub(super) async fn due(
    tx: &mut Tx,
    table: &TableName,
    request: &ClaimRequest<'_>,
    open: &[&Open],
    room: impl Fn(&Open) -> usize,
) -> Result<Vec<Claimed>, StoreError> {
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let named: Vec<&&Open> = open.iter().filter(|open| open.destination.is_some()).collect();
    let nameless = open.iter().find(|open| open.destination.is_none());
    let from = nameless.map_or(Place::START, |open| open.from);
    let due = include_str!("due.sql")
        .replace("{place_at}", &place_at("s.at"))
        .replace("{nameless_at}", &place_at("$7::bigint"));
    let claim = Statement::new(table, &due, 9);
    let query = sqlx::query(claim.sql())
        .bind(named.iter().map(|open| open.destination.clone()).collect::<Vec<_>>())
        .bind(named.iter().map(|open| count(room(open))).collect::<Vec<_>>())
        .bind((!request.tenants.is_empty()).then_some(request.tenants))
        .bind(nameless.map_or(0, |open| count(room(open))))
        .bind(named.iter().map(|open| open.from.at).collect::<Vec<_>>())
        .bind(named.iter().map(|open| open.from.id).collect::<Vec<_>>())
        .bind(from.at)
        .bind(from.id);
    claim.run(tx, request, query).await
}

/// Takes rows that this transaction has locked.
pub(super) async fn locked(
    tx: &mut Tx,
    table: &TableName,
    request: &ClaimRequest<'_>,
    ids: &[i64],
) -> Result<Vec<Claimed>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let claim = Statement::new(table, include_str!("locked.sql"), 2);
    let query = sqlx::query(claim.sql()).bind(ids);
    claim.run(tx, request, query).await
}

/// `claim.sql` over one way of finding rows.
struct Statement {
    sql: String,
    claimed: Instant,
    token: Uuid,
}

impl Statement {
    /// `first` is the number of the first parameter behind those of `due`.
    fn new(table: &TableName, due: &str, first: u8) -> Self {
        let sql = include_str!("claim.sql")
            .replace("{due}", due)
            .replace("{retry_age}", &age("t.retry_since"))
            .replace("{dispatch_age}", &age("t.first_dispatch_at"))
            .replace("{since_last_send}", &age("coalesce(t.last_dispatch_at, t.created_at)"))
            .replace("{age}", &age("t.created_at"))
            .replace("{table}", &table.qualified())
            .replace("{token}", &format!("${first}"))
            .replace("{worker}", &format!("${}", first + 1))
            .replace("{lease}", &format!("${}", first + 2))
            .replace("{stored}", &format!("${}", first + 3))
            .replace("{small}", &format!("${}", first + 4));
        // Read before the database writes the lease, so that it ends later there than here.
        Self { sql, claimed: Instant::now(), token: Uuid::new_v4() }
    }

    fn sql(&self) -> sqlx::AssertSqlSafe<String> {
        sqlx::AssertSqlSafe(self.sql.clone())
    }

    async fn run(
        &self,
        tx: &mut Tx,
        request: &ClaimRequest<'_>,
        query: sqlx::query::Query<'_, Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let act = "claim due rows";
        let rows = query
            .persistent(false)
            .bind(self.token)
            .bind(request.worker)
            .bind(micros(request.lease))
            .bind(request.small_payload.map_or(-1, |_| SMALL_STORED_BYTES))
            .bind(request.small_payload.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
            .fetch_all(&mut **tx)
            .await
            .map_err(StoreError::sql(act))?;
        let decoded = rows.iter().map(|row| decode(row, self.token, self.claimed + request.lease));
        decoded.collect::<Result<_, _>>().map_err(StoreError::sql(act))
    }
}

/// Milliseconds since an instant, in SQL. Whatever stands there, also infinity or a time to come, gives a number: one row's
/// odd instant fails no claim.
fn age(instant: &str) -> String {
    format!(
        "(extract(epoch FROM now() - greatest(least({instant}, now()), now() - interval '1000 years')) * 1000)::bigint"
    )
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
        destination: row.try_get("destination")?,
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
            waits: count("waits")?,
            since_last_send: millis("since_last_send_ms")?,
            lease_expired: row.try_get("lease_expired")?,
            in_doubt: row.try_get("in_doubt")?,
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

/// A number of rows as the database counts them.
pub(super) fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
