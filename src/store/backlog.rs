//! The sample that scaling, status and the operator's metrics rest on: how many rows are in which state, at a bounded cost.
//!
//! Every count stops at a bound: beyond it "at least" is all that scaling needs, and counting a table on each
//! scrape is what makes monitoring the heaviest client of a queue. The statements are written for the two partial indexes
//! of the migration: the claim index over rows that can still move, and the one over dead rows.

mod held;
mod ordered;

use std::{collections::BTreeMap, time::Duration};

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::{Db, Registered, StoreError, TableName, migrate, relays};
use crate::domain::{routing::Routing, settings::OnDead};

/// Due rows counted at most: as many as a few pods drain in half a minute. Larger backlogs read as "at least", and the age
/// of their oldest row says the rest.
pub const DUE_BOUND: i64 = 10_000;
/// Rows of the other states counted at most. With all bounds met a sample takes about 5 ms.
pub const OTHER_BOUND: i64 = 2_000;
/// Dead rows counted at most per reason.
pub const DEAD_BOUND: i64 = 1_000;
/// Reasons of dead rows told apart. The relay's own are below 20, policies may add to them.
const DEAD_REASONS: i64 = 40;
/// The server ends a statement of the sample after this time, so that a sick database is not made sicker.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// What one look at the table showed.
#[derive(Clone, Debug, PartialEq)]
pub struct BacklogSample {
    /// The version of the migrations that the table has; `None`: none at all.
    pub schema_version: Option<i32>,
    /// The rows, where the table is ours to read.
    pub rows: Option<BacklogRows>,
    /// Whether another relay was there first and serves some of the same rows; `None`: it could not be told this time.
    pub registered: Option<Registered>,
}

/// The rows by state, each in one state only, each count bounded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BacklogRows {
    /// Rows that a pod could claim now: pending, uncertain, or in flight with a lease that is over.
    pub due: i64,
    /// Pending rows with a time of their own in the future.
    pub waiting: i64,
    /// Rows whose lease runs.
    pub in_flight: i64,
    /// Uncertain rows that the relay goes on with later.
    pub uncertain_auto: i64,
    /// Uncertain rows that wait for a person.
    pub uncertain_parked: i64,
    /// Whether a count met its bound.
    pub saturated: bool,
    /// Whether the count of due rows did.
    pub due_saturated: bool,
    /// Age of the oldest due row.
    pub oldest_due_age: Option<Duration>,
    /// Since when the oldest due row is due, in microseconds of the Unix epoch.
    pub oldest_due_at_us: Option<i64>,
    /// Until the next row is due by itself.
    pub next_due_in: Option<Duration>,
    /// Dead rows by reason.
    pub dead: BTreeMap<String, i64>,
    /// What the live pods say of themselves.
    pub workers: Workers,
    /// Due rows of the table, of whatever tenant, that no relay serves.
    pub unassigned: i64,
}

/// What the live pods say of themselves, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Workers {
    /// Pods that were seen within 30 s.
    pub live: i64,
    /// Rows that they hold.
    pub in_hand: i64,
    /// Rows that they could hold.
    pub slots: i64,
    /// Rows that they finished since they started.
    pub completed: i64,
    /// Pods among them that know their rate.
    pub measured: i64,
    /// Rows a second of those pods together.
    pub drain_per_second: f64,
}

/// Which rows a relay serves, and what may keep it from sending one that is due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// Whose holds count, by the policies' numbers.
    pub scopes: Vec<String>,
    /// Which policies have an order.
    pub ordering: Vec<Option<OnDead>>,
    /// Which row goes by which policy.
    pub routing: Routing,
    /// The tenants, if the relay serves only some.
    pub tenants: Vec<Uuid>,
}

/// Looks at the table once, within a bounded time, and registers the relay as one that serves it.
pub async fn sample(db: &Db, table: &TableName, relay: &str, served: &Served) -> Result<BacklogSample, StoreError> {
    let mut sample = look(db, table, served).await?;
    if sample.rows.is_some() {
        let own = relays::Registration::of_operator(relay, served);
        // What was counted stands, also while the database is read-only.
        match relays::register(db, table, &own).await {
            Ok(registered) => sample.registered = Some(registered),
            Err(error) => tracing::debug!(relay, %error, "cannot register the relay; trying again"),
        }
    }
    Ok(sample)
}

async fn look(db: &Db, table: &TableName, served: &Served) -> Result<BacklogSample, StoreError> {
    db.bounded("sample the backlog", STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let schema_version = migrate::version(&mut tx, table).await?;
        let rows = match schema_version {
            // An older table lacks what is counted here; its migration comes first.
            Some(version) if version >= migrate::LATEST => Some(rows(&mut tx, table, served).await?),
            _ => None,
        };
        tx.commit().await.map_err(StoreError::sql("end the sample of the backlog"))?;
        Ok(BacklogSample { schema_version, rows, registered: None })
    })
    .await
}

async fn rows(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    served: &Served,
) -> Result<BacklogRows, StoreError> {
    plan_by_index(tx).await?;
    let tenants = &served.tenants;
    let mut rows = live(tx, table, tenants).await?;
    let held = held::leave_out(tx, table, served, &mut rows).await?;
    ordered::leave_out(tx, table, served, &held, &mut rows).await?;
    rows.dead = dead(tx, table, tenants).await?;
    rows.workers = workers(tx, table).await?;
    rows.unassigned = relays::unassigned(tx, table).await?;
    let others = [rows.uncertain_parked, rows.waiting + rows.in_flight + rows.uncertain_auto];
    rows.due_saturated = rows.due >= DUE_BOUND;
    rows.saturated = rows.due_saturated
        || others.into_iter().any(|count| count >= OTHER_BOUND)
        || rows.dead.values().any(|count| *count >= DEAD_BOUND);
    Ok(rows)
}

/// Keeps the planner to plans whose cost the bounds limit. On a table without fresh statistics it takes a bitmap and a sort
/// for cheaper, and those read every due row before the first one is counted (measured: 17 ms instead of 0.7 ms with
/// 50,000 rows, growing with the table).
async fn plan_by_index(tx: &mut Transaction<'static, Postgres>) -> Result<(), StoreError> {
    // A plan that is forced looks dear, and what looks dear is compiled first, for 90 ms: hence `jit`.
    const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
                            SET LOCAL enable_sort = off; SET LOCAL jit = off";
    let set = sqlx::raw_sql(BY_INDEX).execute(&mut **tx).await;
    set.map(|_| ()).map_err(StoreError::sql("plan the counts by index"))
}

/// A condition on the tenants, if the relay serves only some.
fn tenant_clause(tenants: &[Uuid]) -> &'static str {
    if tenants.is_empty() { "" } else { "AND tenant_id = ANY($1)" }
}

/// Rows that can still move. The scan of future rows is one over the soonest of them, since in-flight rows lie there:
/// a filter by state without it would read past millions of rows that wait.
async fn live(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    tenants: &[Uuid],
) -> Result<BacklogRows, StoreError> {
    let (name, tenant) = (table.qualified(), tenant_clause(tenants));
    let (due_bound, bound) = (DUE_BOUND, OTHER_BOUND);
    let movable = format!("FROM {name} WHERE status IN ('pending', 'in_flight', 'uncertain') {tenant}");
    let sql = format!(
        "WITH future AS MATERIALIZED (
             SELECT status, next_attempt_at {movable} AND next_attempt_at > now() AND next_attempt_at < 'infinity'
             ORDER BY next_attempt_at LIMIT {bound}
         ), oldest AS MATERIALIZED (
             SELECT next_attempt_at {movable} AND next_attempt_at <= now() ORDER BY next_attempt_at LIMIT 1
         )
         SELECT
             (SELECT count(*) FROM (SELECT 1 {movable} AND next_attempt_at <= now() LIMIT {due_bound}) AS due) AS due,
             (SELECT count(*) FROM (SELECT 1 {movable} AND next_attempt_at = 'infinity' AND status = 'uncertain' LIMIT {bound})
                 AS parked) AS parked,
             (SELECT count(*) FROM future WHERE status = 'pending') AS waiting,
             (SELECT count(*) FROM future WHERE status = 'in_flight') AS in_flight,
             (SELECT count(*) FROM future WHERE status = 'uncertain') AS uncertain_auto,
             (SELECT (extract(epoch FROM next_attempt_at) * 1000000)::bigint FROM oldest
                 WHERE next_attempt_at > '-infinity') AS oldest_due_at,
             (SELECT extract(epoch FROM now() - next_attempt_at)::float8 FROM oldest
                 WHERE next_attempt_at > '-infinity') AS oldest_due_age,
             (SELECT extract(epoch FROM min(next_attempt_at) - now())::float8 FROM future) AS next_due_in"
    );
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    if !tenants.is_empty() {
        query = query.bind(tenants.to_vec());
    }
    let read = |error| StoreError::sql("count the rows that can move")(error);
    let row = query.fetch_one(&mut **tx).await.map_err(read)?;
    Ok(BacklogRows {
        due: row.try_get("due").map_err(read)?,
        waiting: row.try_get("waiting").map_err(read)?,
        in_flight: row.try_get("in_flight").map_err(read)?,
        uncertain_auto: row.try_get("uncertain_auto").map_err(read)?,
        uncertain_parked: row.try_get("parked").map_err(read)?,
        oldest_due_at_us: row.try_get("oldest_due_at").map_err(read)?,
        oldest_due_age: row.try_get::<Option<f64>, _>("oldest_due_age").map_err(read)?.map(seconds),
        next_due_in: row.try_get::<Option<f64>, _>("next_due_in").map_err(read)?.map(seconds),
        ..BacklogRows::default()
    })
}

/// A span of the database's clock; what does not fit a duration is as good as none.
fn seconds(span: f64) -> Duration {
    Duration::try_from_secs_f64(span).unwrap_or(Duration::ZERO)
}

/// Dead rows by reason, each reason bounded by itself: the reasons are found by steps through the index, so that a
/// thousand rows of one do not hide another.
async fn dead(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    tenants: &[Uuid],
) -> Result<BTreeMap<String, i64>, StoreError> {
    let (reasons, bound) = (DEAD_REASONS, DEAD_BOUND);
    let dead = format!("FROM {} WHERE status = 'dead' {}", table.qualified(), tenant_clause(tenants));
    let sql = format!(
        "WITH RECURSIVE reasons AS (
             (SELECT reason, 1 AS number {dead} AND reason IS NOT NULL ORDER BY reason LIMIT 1)
             UNION ALL
             SELECT next.reason, reasons.number + 1 FROM reasons CROSS JOIN LATERAL
                 (SELECT reason {dead} AND reason > reasons.reason ORDER BY reason LIMIT 1) AS next
             WHERE reasons.number < {reasons}
         )
         SELECT left(reason, 64), (SELECT count(*) FROM (SELECT 1 {dead} AND reason = reasons.reason LIMIT {bound}) AS bounded)
         FROM reasons
         UNION ALL
         SELECT 'unknown', count(*) FROM (SELECT 1 {dead} AND reason IS NULL LIMIT {bound}) AS bounded HAVING count(*) > 0"
    );
    let mut query = sqlx::query_as::<_, (String, i64)>(AssertSqlSafe(sql)).persistent(false);
    if !tenants.is_empty() {
        query = query.bind(tenants.to_vec());
    }
    let counts = query.fetch_all(&mut **tx).await.map_err(StoreError::sql("count the dead rows"))?;
    Ok(counts.into_iter().collect())
}

/// The pods that were seen within 30 s: three of their beats.
async fn workers(tx: &mut Transaction<'static, Postgres>, table: &TableName) -> Result<Workers, StoreError> {
    let (name, bound) = (table.workers(), OTHER_BOUND);
    let sql = format!(
        "SELECT count(*) AS live, coalesce(sum(in_hand), 0)::bigint AS in_hand, coalesce(sum(slots), 0)::bigint AS slots,
                coalesce(sum(completed), 0)::bigint AS completed, count(drain_per_second) AS measured,
                coalesce(sum(drain_per_second), 0)::float8 AS drain_per_second
         FROM (SELECT * FROM {name} WHERE seen_at > now() - interval '30 seconds' LIMIT {bound}) AS live"
    );
    let read = |error| StoreError::sql("read what the pods say of themselves")(error);
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    let row = query.fetch_one(&mut **tx).await.map_err(read)?;
    Ok(Workers {
        live: row.try_get("live").map_err(read)?,
        in_hand: row.try_get("in_hand").map_err(read)?,
        slots: row.try_get("slots").map_err(read)?,
        completed: row.try_get("completed").map_err(read)?,
        measured: row.try_get("measured").map_err(read)?,
        drain_per_second: row.try_get("drain_per_second").map_err(read)?,
    })
}

#[cfg(test)]
mod tests;
