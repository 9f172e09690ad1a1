//! Which relays serve a table, and whose rows: two relays may share one if their tenants are disjoint.
//!
//! Every process of a relay, and the operator for it, writes a row of its own and renews it. The relay that was there first
//! stays; one that overlaps with it is refused, and writes nothing. One lock a table, held for the length of this
//! transaction, lets exactly one of two win that begin at once.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::{Db, StoreError, TableName, backlog::Served};
use crate::domain::settings::OnDead;

/// The server ends a statement after this time.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// A row that was not renewed for this long counts no more: three of the beats of a process.
const LAPSES_AFTER: &str = "30 seconds";
/// A row that was not renewed for this long is deleted.
const FORGET_AFTER: &str = "1 day";
/// Due rows, the oldest first, among which those that nobody serves are counted: a row that nobody serves grows old.
const UNASSIGNED_BOUND: i64 = 10_000;
/// Registrations that are read at most.
const MAX_REGISTRATIONS: i64 = 10_000;

/// Who registers.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// The relay: `namespace/name`, or the name alone.
    pub relay: &'a str,
    /// The process; the operator is one, too.
    pub holder: &'a str,
    /// Whose rows it serves; empty: all.
    pub tenants: &'a [Uuid],
    /// Whether later rows of an entity go on without one that is dead.
    pub skips_dead: bool,
}

impl<'a> Registration<'a> {
    /// The operator's, for a relay whose rows it counts.
    pub fn of_operator(relay: &'a str, served: &'a Served) -> Self {
        let skips_dead = served.ordering.contains(&Some(OnDead::Skip));
        Self { relay, holder: "operator", tenants: &served.tenants, skips_dead }
    }
}

/// Whether a relay may serve its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It may; nobody else serves them.
    Alone,
    /// This relay, which was there first, serves some of them.
    Overlaps {
        /// Its name.
        relay: String,
    },
}

/// Registers a process of a relay, or renews it.
pub async fn register(db: &Db, table: &TableName, own: &Registration<'_>) -> Result<Registered, StoreError> {
    let act = "register the relay";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        // A statement of its own: the next one sees what was committed before the lock was ours.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('outbox relays ' || $1, 0))")
            .persistent(false)
            .bind(table.qualified())
            .execute(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        let older = older(&mut tx, table, own).await?;
        if older.is_none() {
            write(&mut tx, table, own).await?;
        }
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(older.map_or(Registered::Alone, |relay| Registered::Overlaps { relay }))
    })
    .await
}

/// The relay that was there before this one and serves some of its rows. A relay that changes its tenants is new.
async fn older(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    own: &Registration<'_>,
) -> Result<Option<String>, StoreError> {
    let sql = format!(
        "WITH live AS MATERIALIZED (SELECT * FROM {} WHERE seen_at > now() - interval '{LAPSES_AFTER}'), \
         mine AS (SELECT min(first_seen) AS since FROM live WHERE relay = $1 AND tenants = $2::uuid[]) \
         SELECT other.relay FROM live AS other CROSS JOIN mine \
         WHERE other.relay <> $1 AND (other.tenants = '{{}}' OR $2 = '{{}}' OR other.tenants && $2) \
           AND (mine.since IS NULL OR (other.first_seen, other.relay) < (mine.since, $1)) \
         ORDER BY other.first_seen, other.relay LIMIT 1",
        table.relays()
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(own.relay)
        .bind(sorted(own.tenants))
        .fetch_optional(&mut **tx)
        .await
        .map_err(StoreError::sql("look for other relays of the table"))
}

async fn write(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    own: &Registration<'_>,
) -> Result<(), StoreError> {
    let relays = table.relays();
    let sql = format!(
        "WITH gone AS (DELETE FROM {relays} WHERE seen_at < now() - interval '{FORGET_AFTER}' AND (relay, holder) <> ($1, $2)), \
         since AS (SELECT coalesce(min(first_seen), now()) AS at FROM {relays} \
           WHERE relay = $1 AND tenants = $3::uuid[] AND seen_at > now() - interval '{LAPSES_AFTER}') \
         INSERT INTO {relays} (relay, holder, tenants, skips_dead, first_seen, seen_at) \
         SELECT $1, $2, $3, $4, since.at, now() FROM since \
         ON CONFLICT (relay, holder) DO UPDATE SET tenants = excluded.tenants, skips_dead = excluded.skips_dead, \
           first_seen = excluded.first_seen, seen_at = excluded.seen_at"
    );
    sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(own.relay)
        .bind(own.holder)
        .bind(sorted(own.tenants))
        .bind(own.skips_dead)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::sql("register the relay"))
}

/// One spelling of a set.
fn sorted(tenants: &[Uuid]) -> Vec<Uuid> {
    let mut tenants = tenants.to_vec();
    tenants.sort_unstable();
    tenants.dedup();
    tenants
}

/// Takes a process's registration back at its end.
pub async fn unregister(db: &Db, table: &TableName, relay: &str, holder: &str) -> Result<(), StoreError> {
    let act = "take the relay's registration back";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let sql = format!("DELETE FROM {} WHERE relay = $1 AND holder = $2", table.relays());
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(relay)
            .bind(holder)
            .execute(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))
    })
    .await
}

/// Due rows of tenants that no registered relay serves, as far as they are among the first due ones.
pub(super) async fn unassigned(tx: &mut Transaction<'static, Postgres>, table: &TableName) -> Result<i64, StoreError> {
    let sql = format!(
        "WITH live AS MATERIALIZED (SELECT tenants FROM {relays} WHERE seen_at > now() - interval '{LAPSES_AFTER}' LIMIT {MAX_REGISTRATIONS}), \
         served AS MATERIALIZED (SELECT DISTINCT tenant FROM live CROSS JOIN LATERAL unnest(live.tenants) AS tenant) \
         SELECT count(*) AS unassigned FROM ( \
           SELECT tenant_id FROM {table} WHERE status IN ('pending', 'in_flight', 'uncertain') AND next_attempt_at <= now() \
           ORDER BY next_attempt_at, id LIMIT {UNASSIGNED_BOUND}) AS due \
         WHERE NOT EXISTS (SELECT FROM live WHERE live.tenants = '{{}}') \
           AND NOT EXISTS (SELECT FROM served WHERE served.tenant = due.tenant_id)",
        relays = table.relays(),
        table = table.qualified(),
    );
    let act = "count due rows that no relay serves";
    let row =
        sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_one(&mut **tx).await.map_err(StoreError::sql(act))?;
    row.try_get("unassigned").map_err(StoreError::sql(act))
}
