//! The claim: due rows become this worker's for the length of a lease.

// Based on the Agent Wranglers data playbook: https://agentwranglers.se/playbook/data/transactions-and-concurrency/outbox

mod limits;
mod position;
mod take;
mod visit;
mod wide;

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

pub use self::position::{Again, Position};
use self::{
    position::{Place, Windows},
    visit::{MAX_VISITED, Scan, Visited},
};
use super::{
    Db, StoreError, TableName,
    destinations::Caps,
    order::{self, Waits},
};
use crate::domain::{hold::HoldState, routing::Routing, row::RowFacts, settings::OnDead};

/// The server ends a claim after this time; a claim is a few milliseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// And after this one where the usual time was too short: nothing is locked while destinations are looked for.
const PATIENT_TIMEOUT: Duration = Duration::from_mins(1);

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
    /// When to claim again.
    pub again: Again,
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

/// Claims due rows, going on from a position. One transaction, committed when this returns.
pub async fn claim(
    db: &Db,
    table: &TableName,
    request: &ClaimRequest<'_>,
    position: &mut Position,
) -> Result<Claim, StoreError> {
    let started = Instant::now();
    position.begin(started);
    let patience = if position.is_slow() { PATIENT_TIMEOUT } else { STATEMENT_TIMEOUT };
    let work = transaction(db, table, request, position, patience);
    let done = match db.bounded("claim due rows", patience, work).await {
        Ok(done) => done,
        Err(error) => {
            if error.is_out_of_time() {
                position.ran_out_of_time(Instant::now(), started.elapsed());
            }
            return Err(error);
        }
    };
    let Done { rows, scan, searched, waiting, windows, mut again } = done;
    let troubled = troubled(&scan, request);
    // The claim stands, whatever comes of this: a row that is not woken here is looked at again in its time.
    if !waiting.is_empty() && order::look_again(db, table, &waiting).await.unwrap_or(false) {
        again = Again::AtOnce;
    }
    let again = position.advance(&scan, windows, again, searched, started.elapsed());
    Ok(Claim { rows, again, troubled })
}

/// What a claim's transaction did.
struct Done {
    rows: Vec<Claimed>,
    scan: Scan,
    searched: Duration,
    waiting: Vec<Waits>,
    windows: Windows,
    again: Again,
}

async fn transaction(
    db: &Db,
    table: &TableName,
    request: &ClaimRequest<'_>,
    position: &Position,
    timeout: Duration,
) -> Result<Done, StoreError> {
    let mut tx = db.begin(timeout).await?;
    let scopes: Vec<&str> = request.policies.iter().map(|policy| policy.scope).collect();
    let started = Instant::now();
    let scan = visit::visit(&mut tx, table, &scopes, &position.visit(MAX_VISITED)).await?;
    let searched = started.elapsed();
    let (rows, found) = claim_scanned(&mut tx, table, request, &scan, position.windows()).await?;
    tx.commit().await.map_err(StoreError::sql("claim due rows"))?;
    Ok(Done { rows, scan, searched, waiting: found.waiting, windows: found.windows, again: found.again })
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
    /// Before which no row has to be looked for.
    from: Place,
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
    windows: &Windows,
) -> Result<(Vec<Claimed>, wide::Found), StoreError> {
    let due: Vec<&Visited> = scan.visited.iter().filter(|visited| visited.due).collect();
    let mut open: Vec<Open> = due
        .iter()
        .flat_map(|visited| {
            let policies = request.routing.policies_of_destination(visited.destination.as_deref());
            let alone = policies.len() == 1;
            policies.into_iter().map(move |policy| Open {
                from: windows.get(&(visited.destination.clone(), policy)).copied().unwrap_or(visited.place),
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
        return Ok(Default::default());
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
    if open.iter().any(|open| used_up(&open)) {
        found.again = Again::AtOnce;
    }
    Ok((rows, found))
}

/// A span as the microseconds that PostgreSQL's intervals count.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
