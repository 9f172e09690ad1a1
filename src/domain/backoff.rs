//! Backoff: how long a row waits after its n-th counted failure.
//!
//! Failure n (from 1) waits at most `min(cap, base * 2^(n-1))`, spread by jitter so that rows which failed together do not
//! come back together; or as long as a published list says. Saturating throughout. The random number is an argument.

use std::time::Duration;

/// How the time up to the maximum is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackoffKind {
    /// Uniform between nothing and the maximum.
    FullJitter,
    /// Half of the maximum, plus uniform up to the other half.
    EqualJitter,
    /// A published list: the n-th delay, the last one from there on. `base` and `cap` have no say.
    Schedule {
        /// One delay a failure, not empty.
        delays: Vec<Duration>,
        /// Uniform jitter added to each delay, up to this share of it, in percent: 0 to 100.
        jitter_percent: u8,
    },
}

/// A backoff whose numbers make sense together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    kind: BackoffKind,
    base: Duration,
    cap: Duration,
}

/// Why numbers make no backoff.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackoffError {
    /// Doubling nothing gives nothing: every retry at once.
    #[error("retry.base is 0: give a time above 0, such as 2s")]
    BaseZero,
    /// The first wait would already be above the largest.
    #[error("retry.cap ({cap:?}) is below retry.base ({base:?}): raise the cap or lower the base")]
    CapBelowBase {
        /// The base given.
        base: Duration,
        /// The cap given.
        cap: Duration,
    },
    /// A schedule says nothing.
    #[error("retry.schedule is empty: list at least one delay, or use FullJitter")]
    ScheduleEmpty,
    /// Jitter above 100 %.
    #[error("the schedule's jitter is {percent} %: give 0 to 100")]
    JitterAboveWhole {
        /// The share given.
        percent: u8,
    },
}

/// One wait of [`Backoff::table`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The failure that the wait follows, from 1.
    pub failure: u32,
    /// The longest it can be.
    pub max: Duration,
    /// What it is on average.
    pub mean: Duration,
    /// The longest that this and all waits before it can be together.
    pub cumulative_max: Duration,
    /// What this and all waits before it are together on average.
    pub cumulative_mean: Duration,
}

impl Default for Backoff {
    /// The policy's defaults: full jitter, base 2 s, cap 1 h.
    fn default() -> Self {
        Self { kind: BackoffKind::FullJitter, base: Duration::from_secs(2), cap: Duration::from_hours(1) }
    }
}

impl Backoff {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// [`BackoffError`] for a base of 0, a cap below the base, an empty schedule, jitter above 100 %.
    pub fn new(kind: BackoffKind, base: Duration, cap: Duration) -> Result<Self, BackoffError> {
        if base.is_zero() {
            return Err(BackoffError::BaseZero);
        }
        if cap < base {
            return Err(BackoffError::CapBelowBase { base, cap });
        }
        if let BackoffKind::Schedule { delays, jitter_percent } = &kind {
            if delays.is_empty() {
                return Err(BackoffError::ScheduleEmpty);
            }
            if *jitter_percent > 100 {
                return Err(BackoffError::JitterAboveWhole { percent: *jitter_percent });
            }
        }
        Ok(Self { kind, base, cap })
    }

    /// The longest wait after failure `n`, from 1; 0 is taken as 1.
    #[must_use]
    pub fn max_delay(&self, n: u32) -> Duration {
        let (fixed, range) = self.fixed_and_range(n);
        fixed.saturating_add(range)
    }

    /// The wait after failure `n` for a `random` uniform in [0, 1).
    #[must_use]
    pub fn delay(&self, n: u32, random: f64) -> Duration {
        let (fixed, range) = self.fixed_and_range(n);
        fixed.saturating_add(scaled(range, random))
    }

    /// The average wait after failure `n`.
    #[must_use]
    pub fn mean(&self, n: u32) -> Duration {
        let (fixed, range) = self.fixed_and_range(n);
        fixed.saturating_add(range / 2)
    }

    /// The waits between `max_attempts` attempts, one fewer than these, with their sums.
    pub fn table(&self, max_attempts: u32) -> impl Iterator<Item = Wait> + '_ {
        let start = (Duration::ZERO, Duration::ZERO);
        (1..max_attempts).scan(start, |(cumulative_max, cumulative_mean), failure| {
            let (max, mean) = (self.max_delay(failure), self.mean(failure));
            *cumulative_max = cumulative_max.saturating_add(max);
            *cumulative_mean = cumulative_mean.saturating_add(mean);
            Some(Wait { failure, max, mean, cumulative_max: *cumulative_max, cumulative_mean: *cumulative_mean })
        })
    }

    /// The part of a wait that is certain, and the range that a random number is spread over.
    fn fixed_and_range(&self, n: u32) -> (Duration, Duration) {
        match &self.kind {
            BackoffKind::FullJitter => (Duration::ZERO, self.exponential(n)),
            BackoffKind::EqualJitter => {
                let max = self.exponential(n);
                let half = max / 2;
                (half, max.saturating_sub(half))
            }
            BackoffKind::Schedule { delays, jitter_percent } => {
                let index = usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX);
                let delay = delays.get(index).or(delays.last()).copied().unwrap_or(self.cap);
                (delay, percent_of(delay, *jitter_percent))
            }
        }
    }

    /// `min(cap, base * 2^(n-1))`. Stops at the cap, so it doubles at most 94 times: a nanosecond doubled that often is
    /// beyond what a `Duration` holds.
    fn exponential(&self, n: u32) -> Duration {
        let mut delay = self.base;
        for _ in 1..n {
            if delay >= self.cap {
                break;
            }
            delay = delay.saturating_mul(2);
        }
        delay.min(self.cap)
    }
}

fn percent_of(delay: Duration, percent: u8) -> Duration {
    // Dividing first cannot overflow and loses less than 100 ns.
    (delay / 100).saturating_mul(u32::from(percent))
}

/// The part `random` of a duration, for a `random` in [0, 1); the whole duration for what is no such number, since waiting
/// too long does less harm than not waiting.
pub(super) fn scaled(duration: Duration, random: f64) -> Duration {
    if !(0.0..1.0).contains(&random) {
        return duration;
    }
    Duration::try_from_secs_f64(duration.as_secs_f64() * random).unwrap_or(duration).min(duration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_hours(1);

    fn backoff(kind: BackoffKind, base: Duration, cap: Duration) -> Backoff {
        Backoff::new(kind, base, cap).unwrap()
    }

    fn schedule(seconds: &[u64], jitter_percent: u8) -> Backoff {
        let delays = seconds.iter().copied().map(Duration::from_secs).collect();
        backoff(BackoffKind::Schedule { delays, jitter_percent }, SECOND, SECOND)
    }

    #[test]
    fn rc_40_the_maximum_doubles_up_to_the_cap_and_stays_there() {
        let default = Backoff::default();
        for (n, max_seconds) in [
            (0, 2),
            (1, 2),
            (2, 4),
            (5, 32),
            (10, 1024),
            (11, 2048),
            (12, 3600),
            (31, 3600),
            (32, 3600),
            (63, 3600),
            (64, 3600),
            (100, 3600),
            (2_147_483_647, 3600),
            (2_147_483_648, 3600),
            (u32::MAX, 3600),
        ] {
            assert_eq!(default.max_delay(n), Duration::from_secs(max_seconds), "n = {n}");
            assert_eq!(default.mean(n), Duration::from_secs(max_seconds) / 2, "n = {n}");
        }
    }

    #[test]
    fn rc_40_nonsense_is_refused() {
        let new = |kind, base, cap| Backoff::new(kind, base, cap).unwrap_err();
        assert_eq!(new(BackoffKind::FullJitter, Duration::ZERO, HOUR), BackoffError::BaseZero);
        let refused = new(BackoffKind::EqualJitter, HOUR, SECOND);
        assert_eq!(refused.to_string(), "retry.cap (1s) is below retry.base (3600s): raise the cap or lower the base");
        let empty = BackoffKind::Schedule { delays: Vec::new(), jitter_percent: 0 };
        assert_eq!(new(empty, SECOND, HOUR), BackoffError::ScheduleEmpty);
        let wild = BackoffKind::Schedule { delays: vec![SECOND], jitter_percent: 101 };
        assert_eq!(new(wild, SECOND, HOUR), BackoffError::JitterAboveWhole { percent: 101 });
        assert!(Backoff::new(BackoffKind::FullJitter, SECOND, SECOND).is_ok());
    }

    #[test]
    fn the_largest_numbers_saturate() {
        let largest = backoff(BackoffKind::EqualJitter, Duration::from_nanos(1), Duration::MAX);
        assert_eq!(largest.max_delay(u32::MAX), Duration::MAX);
        assert!(largest.delay(u32::MAX, 0.999) <= Duration::MAX);
        assert!(largest.table(200).all(|wait| wait.max <= wait.cumulative_max));
    }

    #[test]
    fn jitter_spreads_as_its_kind_says() {
        let full = backoff(BackoffKind::FullJitter, SECOND * 8, HOUR);
        let equal = backoff(BackoffKind::EqualJitter, SECOND * 8, HOUR);
        assert_eq!((full.delay(1, 0.0), full.delay(1, 0.5)), (Duration::ZERO, SECOND * 4));
        assert_eq!((equal.delay(1, 0.0), equal.delay(1, 0.5)), (SECOND * 4, SECOND * 6));
        assert_eq!((full.mean(1), equal.mean(1)), (SECOND * 4, SECOND * 6));
    }

    #[test]
    fn a_schedule_is_followed_and_its_last_delay_repeats() {
        let plain = schedule(&[5, 300, 1800], 0);
        for (n, seconds) in [(0, 5), (1, 5), (2, 300), (3, 1800), (4, 1800), (u32::MAX, 1800)] {
            assert_eq!(plain.delay(n, 0.9), Duration::from_secs(seconds), "n = {n}");
        }
        let jittered = schedule(&[100], 20);
        assert_eq!(jittered.delay(1, 0.0), SECOND * 100, "jitter only adds");
        assert_eq!(jittered.delay(1, 0.5), SECOND * 110);
        assert_eq!((jittered.mean(1), jittered.max_delay(1)), (SECOND * 110, SECOND * 120));
    }

    #[test]
    fn the_table_shows_the_spans_in_circulation() {
        let default = Backoff::default();
        let ten: Vec<_> = default.table(10).collect();
        assert_eq!(ten.len(), 9, "ten attempts have nine waits");
        let last = ten.last().unwrap();
        assert_eq!(last.cumulative_max, Duration::from_secs(1022), "17 minutes");
        assert_eq!(last.cumulative_mean, Duration::from_secs(511));
        let fourteen = default.table(14).last().unwrap();
        assert_eq!(fourteen.failure, 13);
        assert_eq!(fourteen.cumulative_max, Duration::from_secs(11_294), "3.1 hours");
        assert_eq!(default.table(1).count(), 0);
        assert_eq!(default.table(0).count(), 0);
        assert_eq!(default.table(u32::MAX).nth(99).unwrap().failure, 100);
    }

    #[test]
    fn rc_40_a_thousand_rows_that_failed_together_spread_over_the_window() {
        let default = Backoff::default();
        let mut per_second = [0_u32; 64];
        // The golden ratio's multiples are spread as evenly as random numbers can be hoped to be.
        for row in 0..1_000_u32 {
            let random = (f64::from(row) * 0.618_033_988_749_895).fract();
            let second = default.delay(6, random).as_secs();
            per_second[usize::try_from(second).unwrap()] += 1;
        }
        assert!(per_second.iter().all(|rows| (10..=21).contains(rows)), "{per_second:?}");
    }

    proptest! {
        #[test]
        fn every_delay_is_within_its_maximum(
            n in any::<u32>(),
            base in 1..u64::MAX,
            factor in 1..u32::MAX,
            random in any::<f64>(),
            percent in 0..=100_u8,
        ) {
            let base = Duration::from_nanos(base);
            let cap = base.saturating_mul(factor);
            let delays = vec![base, cap];
            for kind in [
                BackoffKind::FullJitter,
                BackoffKind::EqualJitter,
                BackoffKind::Schedule { delays, jitter_percent: percent },
            ] {
                let backoff = backoff(kind, base, cap);
                prop_assert!(backoff.delay(n, random) <= backoff.max_delay(n));
                prop_assert!(backoff.delay(n, 0.0) <= backoff.mean(n));
                prop_assert!(backoff.mean(n) <= backoff.max_delay(n));
                prop_assert!(backoff.max_delay(n) <= backoff.max_delay(n.saturating_add(1)));
            }
        }

        #[test]
        fn the_maximum_is_the_formula_where_the_formula_fits(n in 1..=60_u32, base_ms in 1..=10_000_u64) {
            let cap = Duration::from_hours(24);
            let backoff = backoff(BackoffKind::FullJitter, Duration::from_millis(base_ms), cap);
            let exact_ms = (u128::from(base_ms) << (n - 1)).min(cap.as_millis());
            prop_assert_eq!(backoff.max_delay(n).as_millis(), exact_ms);
        }
    }
}
