//! The sandbox's memory: requests, effects, keys, gates. Bounded; counts go on where records were dropped.
//!
//! No I/O here. A ledger is shared by all listeners of a sandbox, and by whoever asks it in the same process.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{
    ask::Ask,
    entry::{Arrival, Body, Decision, Executed},
    record::{Answered, Counts, Effect, KeyRecord, RequestRecord},
    state::State,
    step::Answer,
};

/// Gates that are open at once; the oldest is not closed for a new one: it is refused.
const MAX_OPEN_GATES: usize = 1_000;

/// A handle to what a sandbox has seen. Clones share it.
#[derive(Clone, Debug)]
pub struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told after every change, so that nobody has to sleep and look again.
    changed: watch::Sender<()>,
    gates: watch::Sender<BTreeSet<String>>,
}

/// A condition did not come true in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox did not see it within {limit:?}")]
pub struct NotSeen {
    limit: Duration,
}

impl Default for Ledger {
    fn default() -> Self {
        let shared = Shared {
            state: Mutex::new(State::default()),
            changed: watch::Sender::new(()),
            gates: watch::Sender::new(BTreeSet::new()),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Ledger {
    /// Everything in numbers.
    pub fn counts(&self) -> Counts {
        self.state().counts()
    }

    /// The requests that are still remembered, the oldest first.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.state().requests().cloned().collect()
    }

    /// The remembered requests of one key, the oldest first.
    pub fn requests_of(&self, key: &str) -> Vec<RequestRecord> {
        self.select_requests(|record| record.key.as_deref() == Some(key), usize::MAX)
    }

    /// The newest `limit` remembered requests that fit, the oldest first.
    pub fn select_requests(&self, fits: impl Fn(&RequestRecord) -> bool, limit: usize) -> Vec<RequestRecord> {
        newest_fitting(self.state().requests(), fits, limit)
    }

    /// The effects that are still remembered, the oldest first.
    pub fn effects(&self) -> Vec<Effect> {
        self.state().effects().cloned().collect()
    }

    /// The newest `limit` remembered effects that fit, the oldest first.
    pub fn select_effects(&self, fits: impl Fn(&Effect) -> bool, limit: usize) -> Vec<Effect> {
        newest_fitting(self.state().effects(), fits, limit)
    }

    /// What was seen of each key, at most `limit` of them in no order.
    pub fn keys(&self, limit: usize) -> Vec<KeyRecord> {
        self.state().keys(limit)
    }

    /// What was seen of one key.
    pub fn key(&self, key: &str) -> Option<KeyRecord> {
        self.state().key(key)
    }

    /// Forgets everything and closes the gates. Requests that are under way are forgotten, too.
    pub fn reset(&self) {
        self.state().reset();
        self.shared.gates.send_modify(BTreeSet::clear);
        self.shared.changed.send_replace(());
    }

    /// Opens a gate until the next reset. Returns false if too many are open.
    pub fn open_gate(&self, name: &str) -> bool {
        let mut accepted = true;
        self.shared.gates.send_modify(|gates| {
            accepted = gates.len() < MAX_OPEN_GATES || gates.contains(name);
            if accepted {
                gates.insert(name.to_owned());
            }
        });
        accepted
    }

    /// Waits until `look` finds something, looking again after each change.
    ///
    /// # Errors
    ///
    /// [`NotSeen`] after `limit`.
    pub async fn wait_for<T>(&self, limit: Duration, mut look: impl FnMut(&Self) -> Option<T>) -> Result<T, NotSeen> {
        let mut changed = self.shared.changed.subscribe();
        let search = async {
            loop {
                changed.mark_unchanged();
                if let Some(found) = look(self) {
                    return found;
                }
                // The sender lives in `self`, so this cannot fail for as long as we look.
                let _ = changed.changed().await;
            }
        };
        tokio::time::timeout(limit, search).await.map_err(|_| NotSeen { limit })
    }

    /// Waits until the counts are as `condition` wants them.
    ///
    /// # Errors
    ///
    /// [`NotSeen`] after `limit`.
    pub async fn wait_until(&self, limit: Duration, condition: impl Fn(&Counts) -> bool) -> Result<Counts, NotSeen> {
        self.wait_for(limit, |ledger| Some(ledger.counts()).filter(&condition)).await
    }

    pub(super) async fn gate_opened(&self, name: &str) {
        let mut gates = self.shared.gates.subscribe();
        // As above: the sender lives in `self`.
        let _ = gates.wait_for(|gates| gates.contains(name)).await;
    }

    pub(super) fn connected(&self) -> u64 {
        self.change(State::connected)
    }

    pub(super) fn arrived(&self, arrival: Arrival) -> u64 {
        self.change(|state| state.arrived(arrival))
    }

    pub(super) fn decide(&self, number: u64, ask: &Ask, body: Body) -> Decision {
        self.change(|state| state.decide(number, ask, body))
    }

    pub(super) fn execute(&self, number: u64, ask: &Ask, answer: &Answer) -> Executed {
        self.change(|state| state.execute(number, ask, answer))
    }

    pub(super) fn keep(&self, number: u64, answer: &Answer) {
        self.change(|state| state.keep(number, answer));
    }

    pub(super) fn worked(&self, number: u64) {
        self.change(|state| state.worked(number));
    }

    pub(super) fn ended(&self, number: u64, answered: Answered) {
        self.change(|state| state.ended(number, answered));
    }

    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let outcome = act(&mut self.state());
        self.shared.changed.send_replace(());
        outcome
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not make the numbers wrong: each change is whole before it is left.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn newest_fitting<'a, T: Clone + 'a>(
    all: impl DoubleEndedIterator<Item = &'a T>,
    fits: impl Fn(&T) -> bool,
    limit: usize,
) -> Vec<T> {
    let mut found: Vec<T> = all.rev().filter(|one| fits(one)).take(limit).cloned().collect();
    found.reverse();
    found
}
