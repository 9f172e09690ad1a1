//! Looks at the tables. One task for all databases, one connection a database, whatever the number of relays on it.
//!
//! A sample is a value, an error or stale, and an error is never read as zero: the last good sample is kept with its age,
//! and who asks decides what that is still worth ([`Observation::fresh`]).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use super::{RelayKey, validate::Target};
use crate::store::{
    Db, Registered, StoreError,
    backlog::{self, BacklogRows, BacklogSample},
};

/// A relay is sampled at most this often, also when rows become due one after another.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
/// A sample counts for this many intervals: one that failed in between is a hiccup.
const FRESH_INTERVALS: u32 = 3;
/// Characters of an error that are kept.
const MAX_ERROR_CHARS: usize = 300;

/// What is known of one relay's rows.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The last good sample and when it was taken.
    pub last: Option<(Instant, BacklogSample)>,
    /// Why the last attempt failed, if it did.
    pub error: Option<SampleError>,
    /// Since when the relay is looked at.
    pub since: Instant,
    /// When a row was last seen due, in flight or finished.
    pub moved_at: Instant,
    interval: Duration,
}

/// Why a sample failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleError {
    /// A bounded name.
    pub category: &'static str,
    /// What the database or the driver said.
    pub message: String,
}

impl Observation {
    fn new(now: Instant, interval: Duration) -> Self {
        Self { last: None, error: None, since: now, moved_at: now, interval }
    }

    /// The last good sample, while it still counts.
    pub fn fresh(&self, now: Instant) -> Option<&BacklogSample> {
        let (at, sample) = self.last.as_ref()?;
        (now.saturating_duration_since(*at) <= self.interval * FRESH_INTERVALS).then_some(sample)
    }

    /// How long nothing has been known for.
    pub fn blind_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last.as_ref().map_or(self.since, |(at, _)| *at))
    }
}

struct Entry {
    target: Target,
    next_at: Instant,
    observation: Observation,
    /// What the last reconcile was told, so that only news wake it.
    told: Option<News>,
    waking: bool,
}

/// What a reconcile wants to hear of.
#[derive(Clone, PartialEq)]
struct News {
    sampled: bool,
    version: Option<i32>,
    rows: Option<BacklogRows>,
    registered: Option<Registered>,
    error: Option<SampleError>,
}

#[derive(Default)]
struct State {
    relays: BTreeMap<RelayKey, Entry>,
    /// Databases whose loop runs, with what wakes it.
    databases: BTreeMap<String, Arc<Notify>>,
}

/// Told of each sample; the operator's metrics.
pub trait SampleSink: Send + Sync {
    /// A sample, or that nothing is known any more.
    fn sampled(&self, relay: &RelayKey, rows: Option<&BacklogRows>);
}

struct Inner {
    state: Mutex<State>,
    interval: Duration,
    wake: mpsc::UnboundedSender<RelayKey>,
    new_database: Notify,
    sink: Arc<dyn SampleSink>,
}

/// The sampler's handle. Cheap to clone.
#[derive(Clone)]
pub struct Sampler {
    inner: Arc<Inner>,
}

impl Sampler {
    /// Makes a sampler. Relays with news are sent to `wake`: at most one entry a relay is under way, so the channel is
    /// bounded by the number of relays.
    pub fn new(interval: Duration, wake: mpsc::UnboundedSender<RelayKey>, sink: Arc<dyn SampleSink>) -> Self {
        let (state, new_database) = (Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { state, interval, wake, new_database, sink }) }
    }

    /// Looks at a relay's rows from now on, or looks elsewhere.
    pub fn watch(&self, relay: &RelayKey, target: Target) {
        let now = Instant::now();
        self.inner.with(|state| {
            let fingerprint = target.fingerprint.clone();
            if let Some(entry) = state.relays.get_mut(relay) {
                let moved = entry.target.fingerprint != fingerprint || entry.target.table != target.table;
                if moved || entry.target.served != target.served {
                    entry.next_at = now;
                }
                entry.target = target;
            } else {
                let observation = Observation::new(now, self.inner.interval);
                let entry = Entry { target, next_at: now, observation, told: None, waking: false };
                state.relays.insert(relay.clone(), entry);
            }
            if let Some(notify) = state.databases.get(&fingerprint) {
                notify.notify_one();
            } else {
                state.databases.insert(fingerprint, Arc::new(Notify::new()));
                self.inner.new_database.notify_one();
            }
        });
    }

    /// Looks no more at a relay.
    pub fn forget(&self, relay: &RelayKey) {
        self.inner.with(|state| {
            if let Some(entry) = state.relays.remove(relay)
                && let Some(notify) = state.databases.get(&entry.target.fingerprint)
            {
                notify.notify_one();
            }
        });
    }

    /// Looks at a relay's rows now, as after a migration.
    pub fn hurry(&self, relay: &RelayKey) {
        self.inner.with(|state| {
            if let Some(entry) = state.relays.get_mut(relay) {
                entry.next_at = Instant::now();
                if let Some(notify) = state.databases.get(&entry.target.fingerprint) {
                    notify.notify_one();
                }
            }
        });
    }

    /// What is known of a relay's rows. The caller has heard it: only other news wake it again.
    pub fn observe(&self, relay: &RelayKey) -> Option<Observation> {
        self.inner.with(|state| {
            let entry = state.relays.get_mut(relay)?;
            entry.waking = false;
            entry.told = Some(entry.news());
            Some(entry.observation.clone())
        })
    }

    /// The relays that are looked at.
    pub fn relays(&self) -> Vec<RelayKey> {
        self.inner.with(|state| state.relays.keys().cloned().collect())
    }

    /// Looks at all of them until it is dropped.
    pub async fn run(self) {
        let mut loops = FuturesUnordered::new();
        // A new life of the sampler starts the loops of all databases again.
        let known: Vec<String> = self.inner.with(|state| state.databases.keys().cloned().collect());
        let mut running: std::collections::BTreeSet<String> = known.iter().cloned().collect();
        loops.extend(known.into_iter().map(|fingerprint| self.inner.clone().database(fingerprint).boxed()));
        loop {
            tokio::select! {
                () = self.inner.new_database.notified() => {
                    let known: Vec<String> = self.inner.with(|state| state.databases.keys().cloned().collect());
                    for fingerprint in known {
                        if running.insert(fingerprint.clone()) {
                            loops.push(self.inner.clone().database(fingerprint).boxed());
                        }
                    }
                }
                Some(ended) = loops.next() => {
                    running.remove(&ended);
                    // It may have been asked for again while it ended.
                    self.inner.new_database.notify_one();
                }
            }
        }
    }
}

impl Entry {
    fn news(&self) -> News {
        let sample = self.observation.last.as_ref().map(|(_, sample)| sample);
        let rows = sample.and_then(|sample| sample.rows.clone()).map(|mut rows| {
            // Ages and rates are always new; scaling asks for them by itself while there is something to scale.
            rows.oldest_due_age = None;
            rows.next_due_in = None;
            rows.workers = backlog::Workers::default();
            rows
        });
        News {
            sampled: sample.is_some(),
            version: sample.and_then(|sample| sample.schema_version),
            rows,
            registered: sample.and_then(|sample| sample.registered.clone()),
            error: self.observation.error.clone(),
        }
    }
}

impl Inner {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Samples the relays of one database, one after another, while there is one. Returns its fingerprint at the end.
    async fn database(self: Arc<Self>, fingerprint: String) -> String {
        let mut db: Option<Db> = None;
        loop {
            let notify = self.with(|state| state.databases.get(&fingerprint).cloned());
            let (Some(notify), Some((next_at, relay))) = (notify, self.next(&fingerprint)) else { break };
            tokio::select! {
                () = tokio::time::sleep_until(next_at) => {}
                () = notify.notified() => continue,
            }
            let Some(target) = self.target(&relay, &fingerprint) else { continue };
            let result = match &db {
                Some(db) => backlog::sample(db, &target.table, &relay.to_string(), &target.served).await,
                None => match Db::connect_lazy(&target.connect) {
                    Ok(new) => backlog::sample(db.insert(new), &target.table, &relay.to_string(), &target.served).await,
                    Err(error) => Err(error),
                },
            };
            self.record(&relay, &fingerprint, result);
        }
        if let Some(db) = db {
            // Only idle connections are left; one that hangs is not waited for.
            let _ = tokio::time::timeout(Duration::from_secs(1), db.close()).await;
        }
        fingerprint
    }

    /// The next sample on a database. Without one, the database is dropped under the same lock.
    fn next(&self, fingerprint: &str) -> Option<(Instant, RelayKey)> {
        self.with(|state| {
            let on_it = state.relays.iter().filter(|(_, entry)| entry.target.fingerprint == fingerprint);
            let next =
                on_it.min_by_key(|(_, entry)| entry.next_at).map(|(relay, entry)| (entry.next_at, relay.clone()));
            if next.is_none() {
                state.databases.remove(fingerprint);
            }
            next
        })
    }

    fn target(&self, relay: &RelayKey, fingerprint: &str) -> Option<Target> {
        let target = self.with(|state| state.relays.get(relay).map(|entry| entry.target.clone()))?;
        (target.fingerprint == fingerprint).then_some(target)
    }

    fn record(&self, relay: &RelayKey, fingerprint: &str, result: Result<BacklogSample, StoreError>) {
        let now = Instant::now();
        let rows = self.with(|state| {
            let entry = state.relays.get_mut(relay).filter(|entry| entry.target.fingerprint == fingerprint)?;
            entry.record(now, self.interval, result);
            let news = entry.news();
            if entry.told.as_ref() != Some(&news) && !entry.waking {
                entry.waking = true;
                // The receiver is gone only when the operator ends.
                let _ = self.wake.send(relay.clone());
            }
            Some(entry.observation.fresh(now).and_then(|sample| sample.rows.clone()))
        });
        if let Some(rows) = rows {
            self.sink.sampled(relay, rows.as_ref());
        }
    }
}

impl Entry {
    fn record(&mut self, now: Instant, interval: Duration, result: Result<BacklogSample, StoreError>) {
        let mut pause = interval;
        match result {
            Ok(mut sample) => {
                if sample.registered.is_none() {
                    sample.registered = self.observation.last.as_ref().and_then(|(_, last)| last.registered.clone());
                }
                if let Some(rows) = &sample.rows {
                    let before = self.observation.last.as_ref().and_then(|(_, sample)| sample.rows.as_ref());
                    let finished = before.is_some_and(|before| before.workers.completed != rows.workers.completed);
                    if rows.due > 0 || rows.in_flight > 0 || finished {
                        self.observation.moved_at = now;
                    }
                    // A row that becomes due before the next regular sample wakes an idle relay on time.
                    if rows.due == 0 && rows.in_flight == 0 {
                        pause = rows.next_due_in.map_or(interval, |due| due.clamp(LEAST_PAUSE, interval));
                    }
                }
                self.observation.last = Some((now, sample));
                self.observation.error = None;
            }
            Err(error) => {
                let message: String = error.to_string().chars().take(MAX_ERROR_CHARS).collect();
                let error = SampleError { category: error.category(), message };
                if self.observation.error.as_ref().map(|before| before.category) != Some(error.category) {
                    tracing::warn!(category = error.category, error = %error.message, "sample the backlog");
                }
                self.observation.error = Some(error);
            }
        }
        self.next_at = now + pause;
    }
}
