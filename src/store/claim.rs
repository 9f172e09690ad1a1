//! The claim: due rows become this worker's for the length of a lease.

// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use sqlx::{Postgres, Row, Transaction, postgres::PgRow};
use uuid::Uuid;

use super::{
    Db, StoreError, TableName,
    destinations::{self, Caps, Scan},
};
use crate::domain::{
    row::RowFacts,
    share::{Candidate, share},
};

/// The server ends a claim after this time; a claim is a few milliseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest payload as it is stored, in bytes, that a claim looks at. A payload is stored compressed, to a hundredth at best,
/// so looking at one costs the claim at most some 3 MB of text.
const SMALL_STORED_BYTES: i32 = 32 * 1024;

/// What to claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest<'a> {
    /// Tenants whose rows are served; empty: all.
    pub tenants: &'a [Uuid],
    /// Rows at most.
    pub limit: usize,
    /// Rows of one destination in hand at most.
    pub most_in_hand: usize,
    /// Rows in hand, by destination.
    pub in_hand: &'a HashMap<String, usize>,
    /// Whose holds are heeded.
    pub scope: &'a str,
    /// Caps of each destination over all pods.
    pub caps: Caps,
    /// The destination after which to go on; empty: from the start.
    pub after: &'a str,
    /// Who claims, for people.
    pub worker: &'a str,
    /// How long the rows belong to the claim.
    pub lease: Duration,
    /// Largest payload that comes with the claim, in bytes.
    pub small_payload: u64,
}

/// What a claim found.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// The rows, by id.
    pub rows: Vec<Claimed>,
    /// Whether there may be more that could be claimed at once: a share was used up, or not all destinations were visited.
    pub more: bool,
    /// Where the next claim goes on.
    pub next: String,
    /// Destinations with failures, a hold or an allowance: a success there is worth a write.
    pub troubled: HashSet<String>,
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
    /// The origin of its endpoint, as the table keeps it.
    pub destination: Option<String>,
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
    /// `payload::text`, to be sent byte for byte; `None`: too large to come with the claim.
    pub payload: Option<String>,
    /// SHA-256 of the payload at its first attempt; `None`: not known yet, for it was too large to come with a claim.
    pub payload_hash: Option<Vec<u8>>,
    /// Extra request headers as JSON text.
    pub headers: Option<String>,
    /// What decisions need.
    pub facts: RowFacts,
    /// Age of the row at the claim.
    pub age: Duration,
    /// When it was claimed, by the database's clock, in milliseconds of the Unix epoch.
    pub claimed_at_ms: i64,
}

/// Claims due rows. One transaction, committed when this returns.
pub async fn claim(db: &Db, table: &TableName, request: &ClaimRequest<'_>) -> Result<Claim, StoreError> {
    db.bounded("claim due rows", STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let scan = destinations::scan(&mut tx, table, request.scope, request.after).await?;
        let mut claim = claim_scanned(&mut tx, table, request, &scan).await?;
        tx.commit().await.map_err(StoreError::sql("claim due rows"))?;
        claim.more |= scan.next.is_some();
        claim.next = scan.next.unwrap_or_default();
        claim.troubled = scan
            .visited
            .iter()
            .filter(|visited| visited.state != crate::domain::hold::HoldState::default())
            .filter_map(|visited| visited.destination.clone())
            .collect();
        Ok(claim)
    })
    .await
}

async fn claim_scanned(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    request: &ClaimRequest<'_>,
    scan: &Scan,
) -> Result<Claim, StoreError> {
    let due: Vec<_> = scan.visited.iter().filter(|visited| visited.due).collect();
    let over: Vec<String> = due
        .iter()
        .filter(|visited| visited.state.hold.is_some_and(|hold| hold.left.is_zero()))
        .filter_map(|visited| visited.destination.clone())
        .collect();
    let probes = if over.is_empty() {
        Vec::new()
    } else {
        destinations::take_probes(tx, table, request.scope, &over, request.lease).await?
    };
    let mut candidates: Vec<Candidate> = due
        .iter()
        .filter_map(|visited| {
            let destination = visited.destination.clone()?;
            let limit = match visited.state.hold {
                Some(_) => Some(usize::from(probes.contains(&destination))),
                None => visited.state.allowance.map(|allowance| allowance as usize),
            };
            Some(Candidate { destination, limit })
        })
        .collect();
    if request.caps.any() && !candidates.is_empty() {
        let names: Vec<String> = candidates.iter().map(|candidate| candidate.destination.clone()).collect();
        let room = destinations::room(tx, table, request.scope, &names, request.caps).await?;
        for candidate in &mut candidates {
            let room = room.get(&candidate.destination).copied().unwrap_or(0);
            candidate.limit = Some(candidate.limit.map_or(room, |limit| limit.min(room)));
        }
    }
    let shares = share(&candidates, request.limit, request.most_in_hand, request.in_hand);
    let nameless = if due.iter().any(|visited| visited.destination.is_none()) { request.limit } else { 0 };
    if shares.is_empty() && nameless == 0 {
        return Ok(Claim::default());
    }
    let rows = take(tx, table, request, &shares, nameless).await?;
    let mut by_destination: BTreeMap<String, i64> = BTreeMap::new();
    for destination in rows.iter().filter_map(|row| row.destination.clone()) {
        *by_destination.entry(destination).or_default() += 1;
    }
    if request.caps.rate_per_second.is_some() && !by_destination.is_empty() {
        destinations::spend(tx, table, request.scope, &by_destination).await?;
    }
    let unused: Vec<String> = probes.into_iter().filter(|probe| !by_destination.contains_key(probe)).collect();
    if !unused.is_empty() {
        destinations::give_probes_back(tx, table, request.scope, &unused).await?;
    }
    // A share that was used up may have been too small, unless a limit of the destination's own made it so.
    let limited =
        |name: &str| candidates.iter().any(|candidate| candidate.destination == name && candidate.limit.is_some());
    let more = shares.iter().any(|(name, quota)| {
        let taken = by_destination.get(name).copied().unwrap_or(0);
        usize::try_from(taken).is_ok_and(|taken| taken >= *quota) && !limited(name)
    });
    Ok(Claim { more: more || (nameless > 0 && rows.len() >= request.limit), rows, ..Claim::default() })
}

async fn take(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    request: &ClaimRequest<'_>,
    shares: &[(String, usize)],
    nameless: usize,
) -> Result<Vec<Claimed>, StoreError> {
    let act = "claim due rows";
    // Read before the database writes the lease, so that it ends later there than here.
    let claimed = Instant::now();
    let token = Uuid::new_v4();
    let sql = include_str!("claim.sql").replace("{table}", &table.qualified());
    let count = |rows: usize| i64::try_from(rows).unwrap_or(i64::MAX);
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .persistent(false)
        .bind(shares.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())
        .bind(shares.iter().map(|(_, quota)| count(*quota)).collect::<Vec<_>>())
        .bind((!request.tenants.is_empty()).then_some(request.tenants))
        .bind(count(nameless))
        .bind(token)
        .bind(request.worker)
        .bind(micros(request.lease))
        .bind(SMALL_STORED_BYTES)
        .bind(count(usize::try_from(request.small_payload).unwrap_or(usize::MAX)))
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::sql(act))?;
    let mut rows = rows
        .iter()
        .map(|row| decode(row, token, claimed + request.lease))
        .collect::<Result<Vec<_>, _>>()
        .map_err(StoreError::sql(act))?;
    rows.sort_by_key(|row| row.id);
    Ok(rows)
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

/// A span as the microseconds that PostgreSQL's intervals count.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
