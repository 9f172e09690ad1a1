//! The claim: due rows become this worker's for the length of a lease.

// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox

mod limits;
mod take;
mod wide;

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::{
    Db, StoreError, TableName,
    destinations::{self, Caps, Scan},
    order::{self, Waits},
};
use crate::domain::{hold::HoldState, routing::Routing, row::RowFacts, settings::OnDead};

/// The server ends a claim after this time; a claim is a few milliseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest payload as it is stored, in bytes, that a claim looks at. Compressed text comes to some 3 MB then. A number such as
/// `1e131071` takes eight bytes where it is stored and 128 KiB as text: a claim that fails by such a payload is made again
/// without payloads.
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
    /// The policies, by their numbers.
    pub policies: &'a [ClaimPolicy<'a>],
    /// Which row goes by which.
    pub routing: &'a Routing,
    /// The destination after which to go on; empty: from the start.
    pub after: &'a str,
    /// Who claims, for people.
    pub worker: &'a str,
    /// How long the rows belong to the claim.
    pub lease: Duration,
    /// Largest payload that comes with the claim, in bytes; `None`: none comes, each is loaded when its turn comes.
    pub small_payload: Option<u64>,
}

/// What a claim heeds of a policy.
#[derive(Clone, Copy, Debug)]
pub struct ClaimPolicy<'a> {
    /// Whose holds are heeded.
    pub scope: &'a str,
    /// Caps of each destination over all pods.
    pub caps: Caps,
    /// Whether rows of one entity go one at a time.
    pub ordering: Option<OnDead>,
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
    /// Destinations, by the policy's number, with failures, a hold or an allowance: a success there is worth a write.
    pub troubled: HashSet<(usize, String)>,
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
    let (mut claim, waiting) = db
        .bounded("claim due rows", STATEMENT_TIMEOUT, async {
            let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
            let scopes: Vec<&str> = request.policies.iter().map(|policy| policy.scope).collect();
            let scan = destinations::scan(&mut tx, table, &scopes, request.after).await?;
            let (mut claim, waiting) = claim_scanned(&mut tx, table, request, &scan).await?;
            tx.commit().await.map_err(StoreError::sql("claim due rows"))?;
            claim.more |= scan.next.is_some();
            claim.troubled = troubled(&scan, request);
            claim.next = scan.next.unwrap_or_default();
            Ok((claim, waiting))
        })
        .await?;
    if !waiting.is_empty() {
        // The claim stands, whatever comes of this: a row that is not woken here is looked at again in its time.
        claim.more |= order::look_again(db, table, &waiting).await.unwrap_or(false);
    }
    Ok(claim)
}

fn troubled(scan: &Scan, request: &ClaimRequest<'_>) -> HashSet<(usize, String)> {
    let mut troubled = HashSet::new();
    for visited in &scan.visited {
        for (policy, state) in visited.states.iter().take(request.policies.len()).enumerate() {
            if let Some(destination) = visited.destination.clone().filter(|_| *state != HoldState::default()) {
                troubled.insert((policy, destination));
            }
        }
    }
    troubled
}

/// A destination and one of the policies that its rows may have.
struct Open {
    /// `None`: rows whose destination is not kept; they share one bucket that is never held.
    destination: Option<String>,
    policy: usize,
    /// Whether no other policy has rows there.
    alone: bool,
    /// Rows at most, by allowance, cap or probe; `None`: no limit of its own.
    limit: Option<usize>,
}

async fn claim_scanned(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    request: &ClaimRequest<'_>,
    scan: &Scan,
) -> Result<(Claim, Vec<Waits>), StoreError> {
    let due: Vec<_> = scan.visited.iter().filter(|visited| visited.due).collect();
    let mut open: Vec<Open> = due
        .iter()
        .flat_map(|visited| {
            let policies = request.routing.policies_of_destination(visited.destination.as_deref());
            let alone = policies.len() == 1;
            policies.into_iter().map(move |policy| Open {
                destination: visited.destination.clone(),
                policy,
                alone,
                limit: None,
            })
        })
        .collect();
    // Caps first, whose locks are waited for: nothing is held by then that somebody else may wait for.
    limits::by_caps(tx, table, request, &mut open).await?;
    let probes = limits::by_holds(tx, table, request, &due, &mut open).await?;
    let shares = limits::shares(request, &open);
    let rooms: HashMap<Option<&str>, usize> = shares.iter().map(|(name, quota)| (name.as_deref(), *quota)).collect();
    open.retain(|open| rooms.contains_key(&open.destination.as_deref()) && open.limit != Some(0));
    if open.is_empty() {
        return Ok((Claim::default(), Vec::new()));
    }
    let room = |open: &Open| rooms.get(&open.destination.as_deref()).copied().unwrap_or(0);
    let ordered = |open: &Open| request.policies.get(open.policy).is_some_and(|policy| policy.ordering.is_some());
    let (plain, wide): (Vec<&Open>, Vec<&Open>) = open.iter().partition(|open| open.alone && !ordered(open));
    let mut found = wide::Found::default();
    if !wide.is_empty() {
        found = wide::find(tx, table, request, &wide, &rooms).await?;
    }
    let mut rows = take::locked(tx, table, request, &found.free).await?;
    rows.extend(take::due(tx, table, request, &plain, room).await?);
    rows.sort_by_key(|row| row.id);

    let mut taken: HashMap<(usize, Option<&str>), usize> = HashMap::new();
    let mut of_destination: HashMap<Option<&str>, usize> = HashMap::new();
    for row in &rows {
        let destination = row.destination.as_deref();
        *taken.entry((request.routing.policy_of(&row.operation, &row.endpoint), destination)).or_default() += 1;
        *of_destination.entry(destination).or_default() += 1;
    }
    limits::account(tx, table, request, &taken, &probes).await?;
    // A share that was used up may have been too small, unless a limit of the destination's own made it so.
    let used_up = |open: &&Open| {
        let taken = of_destination.get(&open.destination.as_deref()).copied().unwrap_or(0);
        open.limit.is_none() && taken >= room(open)
    };
    let more = found.more || open.iter().any(|open| used_up(&open));
    Ok((Claim { rows, more, ..Claim::default() }, found.waiting))
}

/// A span as the microseconds that PostgreSQL's intervals count.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
