//! The rows that this process holds, and how fast it works.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use uuid::Uuid;

/// A row in hand.
#[derive(Clone, Debug)]
pub struct Held {
    /// The claim's token.
    pub token: Uuid,
    /// The lease holds at least until then.
    pub until: Instant,
    /// Where the row goes.
    pub destination: Option<Arc<str>>,
}

/// The rows in hand, by id.
#[derive(Debug, Default)]
pub struct Hand(Mutex<HashMap<i64, Held>>);

impl Hand {
    fn rows(&self) -> MutexGuard<'_, HashMap<i64, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a row in hand.
    pub fn take(&self, id: i64, held: Held) {
        self.rows().insert(id, held);
    }

    /// Lets a row go, unless it was claimed anew under another token meanwhile.
    pub fn let_go(&self, id: i64, token: Uuid) {
        let mut rows = self.rows();
        if rows.get(&id).is_some_and(|held| held.token == token) {
            rows.remove(&id);
        }
    }

    /// Until when the lease of this claim holds; `None` when it was lost.
    pub fn until(&self, id: i64, token: Uuid) -> Option<Instant> {
        self.rows().get(&id).filter(|held| held.token == token).map(|held| held.until)
    }

    /// The lease of this claim holds until then.
    pub fn renewed(&self, id: i64, token: Uuid, until: Instant) {
        if let Some(held) = self.rows().get_mut(&id).filter(|held| held.token == token) {
            held.until = until;
        }
    }

    /// The rows whose lease ends before `instant`.
    pub fn ending_before(&self, instant: Instant) -> Vec<(i64, Uuid)> {
        self.rows().iter().filter(|(_, held)| held.until < instant).map(|(id, held)| (*id, held.token)).collect()
    }

    /// How many rows are in hand, by destination.
    pub fn by_destination(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for destination in self.rows().values().filter_map(|held| held.destination.as_deref()) {
            match counts.get_mut(destination) {
                Some(count) => *count += 1,
                None => _ = counts.insert(destination.to_owned(), 1),
            }
        }
        counts
    }

    /// How many rows are in hand.
    pub fn len(&self) -> usize {
        self.rows().len()
    }
}

/// Time spent in attempts, for the rate that this process could do at full load.
#[derive(Debug, Default)]
pub struct WorkMeter {
    attempts: AtomicU64,
    busy_micros: AtomicU64,
}

impl WorkMeter {
    /// Counts an attempt that took `busy`.
    pub fn attempt(&self, busy: Duration) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.busy_micros.fetch_add(u64::try_from(busy.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Rows a second at full load since the last call: slots over the mean time of an attempt. `None` without attempts.
    pub fn take_drain_per_second(&self, slots: usize) -> Option<f32> {
        let attempts = self.attempts.swap(0, Ordering::Relaxed);
        let busy = self.busy_micros.swap(0, Ordering::Relaxed);
        drain_per_second(attempts, busy, slots)
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a rate for scaling, not a count")]
fn drain_per_second(attempts: u64, busy_micros: u64, slots: usize) -> Option<f32> {
    // An attempt of no measurable time would give an infinite rate.
    (attempts > 0).then(|| (slots as f64 * attempts as f64 * 1e6 / busy_micros.max(attempts) as f64) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_was_replaced_is_not_let_go_by_the_old_one() {
        let (hand, old, new, now) = (Hand::default(), Uuid::new_v4(), Uuid::new_v4(), Instant::now());
        hand.take(1, Held { token: old, until: now, destination: None });
        hand.take(1, Held { token: new, until: now, destination: None });
        hand.let_go(1, old);
        assert_eq!(hand.until(1, new), Some(now));
        assert_eq!(hand.until(1, old), None);
    }

    #[test]
    fn the_rate_is_slots_over_the_mean_time() {
        assert_eq!(drain_per_second(0, 0, 64), None);
        assert_eq!(drain_per_second(10, 10_000_000, 64), Some(64.0));
        assert_eq!(drain_per_second(10, 1_000_000, 5), Some(50.0));
    }
}
