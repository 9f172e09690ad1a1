//! What scaling remembers of a relay between two decisions. It lives in the operator's memory: after a restart the
//! stabilisation window begins anew, so a restart never takes pods away sooner.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::RelayKey;

/// What is remembered of one relay.
#[derive(Debug)]
pub struct ScalingMemory {
    since: Instant,
    /// Wants that no later one exceeds, oldest first: the first one within a window is the most of it.
    wants: VecDeque<(Instant, i32)>,
    number: Option<(Instant, i32)>,
}

impl ScalingMemory {
    fn new(now: Instant) -> Self {
        Self { since: now, wants: VecDeque::new(), number: None }
    }

    /// The most pods that were wanted within `window`; `None` before that span was watched once.
    pub fn recent_most(&self, now: Instant, window: Duration) -> Option<i32> {
        let watched = now.saturating_duration_since(self.since) >= window;
        let within = |at: Instant| now.saturating_duration_since(at) < window;
        watched.then(|| self.wants.iter().find(|(at, _)| within(*at)).map_or(0, |(_, want)| *want))
    }

    /// Notes the number of pods, and says for how long it has been this one.
    pub fn since_change(&mut self, now: Instant, number: i32) -> Duration {
        match self.number {
            Some((at, same)) if same == number => now.saturating_duration_since(at),
            _ => {
                // The number that is found after a start is taken as old as the watch itself.
                self.number = Some((now, number));
                Duration::ZERO
            }
        }
    }

    /// Notes what a decision wanted.
    pub fn note(&mut self, now: Instant, window: Duration, want: i32) {
        while self.wants.back().is_some_and(|(_, earlier)| *earlier <= want) {
            self.wants.pop_back();
        }
        self.wants.push_back((now, want));
        while self.wants.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= window)
            && self.wants.len() > 1
        {
            self.wants.pop_front();
        }
    }
}

/// What is remembered of all relays.
#[derive(Default)]
pub struct Memories {
    relays: Mutex<BTreeMap<RelayKey, ScalingMemory>>,
}

impl Memories {
    /// Works on one relay's memory.
    pub fn with<T>(&self, relay: &RelayKey, now: Instant, act: impl FnOnce(&mut ScalingMemory) -> T) -> T {
        let mut relays = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        act(relays.entry(relay.clone()).or_insert_with(|| ScalingMemory::new(now)))
    }

    /// Forgets a relay.
    pub fn forget(&self, relay: &RelayKey) {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner).remove(relay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_remembers_its_most_and_forgets_what_is_older() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let window = Duration::from_secs(60);
        let mut memory = ScalingMemory::new(start);
        memory.note(at(0), window, 5);
        memory.note(at(30), window, 2);
        memory.note(at(40), window, 3);
        assert_eq!(memory.recent_most(at(59), window), None, "not watched for long enough");
        assert_eq!(memory.recent_most(at(60), window), Some(3), "the 5 is out of the window");
        memory.note(at(70), window, 1);
        assert_eq!(memory.recent_most(at(99), window), Some(3));
        assert_eq!(memory.recent_most(at(100), window), Some(1));
        assert_eq!(memory.recent_most(at(500), window), Some(0), "nothing was wanted for a whole window");
    }

    #[test]
    fn a_number_ages_until_it_changes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut memory = ScalingMemory::new(start);
        assert_eq!(memory.since_change(at(0), 3), Duration::ZERO);
        assert_eq!(memory.since_change(at(20), 3), Duration::from_secs(20));
        assert_eq!(memory.since_change(at(30), 2), Duration::ZERO);
    }
}
