//! claim -> send -> judge -> settle, for one relay process.
//!
//! A claimed row is committed as in flight before any byte leaves, and no transaction is open while a request is. The loops
//! share [`Inner`]: the claimer takes rows, one task a row sends it (its payload loaded first where it is large), the settler writes what became of them in batches, the
//! keeper renews the leases of rows that are still in hand, the cleaner removes what is past its retention.

mod attempt;
mod authority;
mod before;
mod claimer;
mod cleaner;
mod hand;
mod keeper;
mod memory;
mod settler;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    domain::settings::{OnDead, RelaySettings},
    http::Sender,
    store::{Db, Registration, TableName},
    telemetry::relay_metrics::RelayMetrics,
};
use hand::Hand;
use memory::Memory;

/// Results that may wait for the settler, beyond which attempts wait with theirs: a bound on memory, not on speed.
const RESULTS_PER_SLOT: usize = 4;

/// What a relay works with.
pub struct Relay {
    /// Connections to the database.
    pub db: Db,
    /// The table.
    pub table: TableName,
    /// Settings.
    pub settings: RelaySettings,
    /// Who we are, for people: the pod's name, or host and process.
    pub worker: String,
    /// Sends rows, one for each policy in the order of their numbers.
    pub senders: Senders,
    /// Counts.
    pub metrics: Arc<RelayMetrics>,
}

/// One sender for each policy: with a client, connections and credentials of its own.
pub struct Senders {
    /// Of the relay's own policy.
    pub own: Sender,
    /// Of the routes' policies, from number 1 on.
    pub others: Vec<Sender>,
}

impl Senders {
    /// The sender of a policy's number.
    fn get(&self, number: usize) -> &Sender {
        number.checked_sub(1).and_then(|other| self.others.get(other)).unwrap_or(&self.own)
    }
}

impl Relay {
    /// How this process registers itself as one that serves the table.
    pub fn registration<'a>(&'a self, tenants: &'a [Uuid]) -> Registration<'a> {
        let skips_dead = self.settings.policies.iter().any(|named| named.policy.ordering == Some(OnDead::Skip));
        Registration { relay: &self.settings.name, holder: &self.worker, tenants, skips_dead }
    }
}

/// What the loops share.
struct Inner {
    relay: Relay,
    tenants: Vec<Uuid>,
    slots: Arc<Semaphore>,
    memory: Memory,
    hand: Hand,
    tasks: TaskTracker,
    /// Cancelled first: no new claim, rows that are not begun go back.
    stop: CancellationToken,
    results: mpsc::Sender<settler::Result>,
    ready: watch::Sender<Result<(), String>>,
    work: hand::WorkMeter,
    /// To the pre-dispatch function.
    questions: mpsc::Sender<authority::Question>,
    /// Whether another relay that was there first serves our rows: then we claim none.
    refused: AtomicBool,
    /// Destinations, by the policy's number, where a success is worth a write.
    troubled: Mutex<HashSet<(usize, String)>>,
    /// Rings when a row was made due by the end of the one before it: the claimer need not wait for its next look.
    woken: Notify,
}

impl Inner {
    fn troubled(&self) -> MutexGuard<'_, HashSet<(usize, String)>> {
        self.troubled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the relay until `stop`; returns when every begun attempt is settled.
pub async fn run(relay: Relay, ready: watch::Sender<Result<(), String>>, stop: CancellationToken) {
    let concurrency = relay.settings.concurrency;
    let tenants = relay.settings.tenants.iter().filter_map(|tenant| Uuid::parse_str(tenant).ok()).collect();
    let (results, incoming) = mpsc::channel(concurrency * RESULTS_PER_SLOT);
    let (questions, asked) = mpsc::channel(concurrency);
    let checker = tokio::spawn(authority::run(relay.db.clone(), asked));
    let inner = Arc::new(Inner {
        tenants,
        slots: Arc::new(Semaphore::new(concurrency)),
        memory: Memory::new(&relay.settings),
        hand: Hand::default(),
        tasks: TaskTracker::new(),
        stop,
        results,
        ready,
        work: hand::WorkMeter::default(),
        questions,
        troubled: Mutex::default(),
        woken: Notify::new(),
        refused: AtomicBool::new(false),
        relay,
    });
    let settler = tokio::spawn(settler::run(Arc::clone(&inner), incoming));
    let keeper_stop = CancellationToken::new();
    let keeper = tokio::spawn(keeper::run(Arc::clone(&inner), keeper_stop.clone()));

    let cleaner = tokio::spawn(cleaner::run(Arc::clone(&inner)));

    claimer::run(&inner).await;
    tracing::info!(in_hand = inner.hand.len(), "stopping: no new claims; begun requests finish, the others go back");
    inner.tasks.close();
    inner.tasks.wait().await;
    // The last result is in the channel by now; the settler ends when it has written it.
    let _ = inner.results.send(settler::Result::End).await;
    for (name, task) in [("settler", settler), ("keeper", keeper), ("cleaner", cleaner)] {
        keeper_stop.cancel();
        if let Err(error) = task.await {
            tracing::error!(task = name, %error, "a task of the relay ended badly");
        }
    }
    // No attempt is left that could ask.
    checker.abort();
    let relay = &inner.relay;
    if let Err(error) = crate::store::unregister(&relay.db, &relay.table, &relay.settings.name, &relay.worker).await {
        tracing::debug!(%error, "the registration stays behind; it lapses in 30 s");
    }
    if let Err(error) = crate::store::leave(&relay.db, &relay.table, &relay.worker).await {
        tracing::warn!(%error, "the worker's report stays behind; it is forgotten in ten minutes");
    }
    relay.db.close().await;
}

/// The database's clock at `then`, from an instant that both clocks know.
fn database_time(claimed_at_ms: i64, claimed: Instant, then: Instant) -> std::time::SystemTime {
    let base = std::time::UNIX_EPOCH + Duration::from_millis(u64::try_from(claimed_at_ms).unwrap_or(0));
    base + then.saturating_duration_since(claimed)
}
