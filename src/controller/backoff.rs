//! How long a failed visit waits: doubled for each failure in a row, so that one broken relay is no load.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::RelayKey;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// Failures in a row, by relay.
#[derive(Default)]
pub struct Backoff {
    failures: Mutex<BTreeMap<RelayKey, u32>>,
}

impl Backoff {
    /// Counts a failure and returns the pause before the next visit.
    pub fn next(&self, relay: &RelayKey) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(relay.clone()).or_insert(0);
        let pause = FIRST.saturating_mul(1 << (*count).min(16)).min(LONGEST);
        *count = count.saturating_add(1);
        pause
    }

    /// Forgets the failures of a relay: it succeeded, or is gone.
    pub fn reset(&self, relay: &RelayKey) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(relay);
    }
}
