//! claim -> send -> judge -> settle, for one relay process.
//!
//! A claimed row is committed as in flight before any byte leaves, and no transaction is open while a request is. The loops
//! share [`Inner`]: the claimer takes rows, one task a row sends it (its payload loaded first where it is large), the settler writes what became of them in batches, the
//! keeper renews the leases of rows that are still in hand, the cleaner removes what is past its retention.

mod attempt;
mod claimer;
mod cleaner;
mod hand;
mod keeper;
mod memory;
mod settler;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    domain::settings::RelaySettings,
    http::Sender,
    store::{Db, TableName},
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
    /// Sends rows.
    pub sender: Sender,
    /// Counts.
    pub metrics: Arc<RelayMetrics>,
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
    /// Destinations where a success is worth a write.
    troubled: Mutex<HashSet<String>>,
}

impl Inner {
    fn troubled(&self) -> MutexGuard<'_, HashSet<String>> {
        self.troubled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the relay until `stop`; returns when every begun attempt is settled.
pub async fn run(relay: Relay, ready: watch::Sender<Result<(), String>>, stop: CancellationToken) {
    let concurrency = relay.settings.concurrency;
    let tenants = relay.settings.tenants.iter().filter_map(|tenant| Uuid::parse_str(tenant).ok()).collect();
    let (results, incoming) = mpsc::channel(concurrency * RESULTS_PER_SLOT);
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
        troubled: Mutex::default(),
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
    let relay = &inner.relay;
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
