//! A few lines a minute, however often something fails.

use std::time::{Duration, Instant};

/// Lets the first line pass, then one per interval, and says how many were held back.
#[derive(Debug)]
pub struct LogLimit {
    every: Duration,
    last: Option<Instant>,
    held_back: u64,
}

impl LogLimit {
    /// One line per `every`.
    pub fn new(every: Duration) -> Self {
        Self { every, last: None, held_back: 0 }
    }

    /// `Some(held back since the last line)` when a line may be written at `now`.
    pub fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < self.every) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }

    /// The trouble is over: the next line passes at once. `true` if there was trouble.
    pub fn reset(&mut self) -> bool {
        self.held_back = 0;
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_an_interval_and_the_rest_is_counted() {
        let (mut limit, start) = (LogLimit::new(Duration::from_secs(30)), Instant::now());
        assert_eq!(limit.pass(start), Some(0));
        assert_eq!(limit.pass(start + Duration::from_secs(1)), None);
        assert_eq!(limit.pass(start + Duration::from_secs(29)), None);
        assert_eq!(limit.pass(start + Duration::from_secs(31)), Some(2));
        assert!(limit.reset());
        assert!(!limit.reset());
        assert_eq!(limit.pass(start + Duration::from_secs(32)), Some(0));
    }
}
