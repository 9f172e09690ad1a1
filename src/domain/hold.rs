//! Holds: a destination that fails, throttles or refuses our credentials gets no rows until a time.
//!
//! Rows of a held destination stay where they are and use no attempt. When the hold ends, one probe at a time goes out; an
//! answer that shows the receiver at work lifts the hold, and the allowance grows again from a small number.

use std::time::Duration;

use super::judge::{Answer, Observation, Verdict};

/// Rows per claim after a hold was lifted; doubles with each success.
pub const FIRST_ALLOWANCE: u32 = 2;
/// From here on there is no allowance to count.
const FULL_ALLOWANCE: u32 = 1024;

/// When a destination is held, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldPolicy {
    /// Failures in a row that hold the destination.
    pub after_failures: u32,
    /// The first hold; each further one in a row is twice as long.
    pub base: Duration,
    /// The longest hold that is not stated by the receiver.
    pub cap: Duration,
}

/// Why a destination is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// Failures in a row.
    Failing,
    /// 429, or 503 with a time.
    Throttled,
    /// 401 or 403 in a row.
    Unauthorized,
    /// A person said so.
    Manual,
}

impl HoldReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Failing, Self::Throttled, Self::Unauthorized, Self::Manual];

    /// The column's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Throttled => "throttled",
            Self::Unauthorized => "unauthorized",
            Self::Manual => "manual",
        }
    }

    /// Reads the column's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// What an attempt says of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The receiver is at work: 2xx, or a 4xx that speaks of the request.
    Works,
    /// It is not, or does not let us in.
    Fails(HoldReason),
    /// It asks for a pause, and may say how long.
    Throttles(Option<Duration>),
}

/// Reads the signal of an attempt; `None` where it says nothing of the destination.
pub fn signal(seen: &Observation, verdict: &Verdict) -> Option<Signal> {
    match seen {
        Observation::Answer(answer) => answer_signal(answer, verdict),
        Observation::NotExecuted { .. } | Observation::Unknown { .. } => Some(Signal::Fails(HoldReason::Failing)),
        Observation::NotBuilt { .. } => None,
    }
}

fn answer_signal(answer: &Answer, verdict: &Verdict) -> Option<Signal> {
    if matches!(verdict, Verdict::Succeeded { .. }) {
        return Some(Signal::Works);
    }
    match answer.status {
        429 => Some(Signal::Throttles(answer.retry_after)),
        503 if answer.retry_after.is_some() => Some(Signal::Throttles(answer.retry_after)),
        401 | 403 => Some(Signal::Fails(HoldReason::Unauthorized)),
        408 | 425 | 500..=599 => Some(Signal::Fails(HoldReason::Failing)),
        200..=299 | 400..=499 => Some(Signal::Works),
        _ => None,
    }
}

/// What is known of a destination, shared by all pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldState {
    /// Failures in a row.
    pub failures: u32,
    /// Holds in a row.
    pub holds: u32,
    /// The hold, if there is one.
    pub hold: Option<Hold>,
    /// Rows per claim while trust grows again; `None`: no limit.
    pub allowance: Option<u32>,
}

/// A hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Why.
    pub reason: HoldReason,
    /// What is left of it; zero: it is over and a probe decides.
    pub left: Duration,
}

/// The state after an attempt.
pub fn after(policy: &HoldPolicy, state: HoldState, signal: Signal) -> HoldState {
    match signal {
        Signal::Works => works(state),
        Signal::Throttles(stated) => throttles(policy, state, stated),
        Signal::Fails(reason) => fails(policy, state, reason),
    }
}

fn works(state: HoldState) -> HoldState {
    match state.hold {
        // A request that began before the receiver asked for its pause, or a person held it, says nothing of the pause.
        Some(Hold { reason: HoldReason::Throttled | HoldReason::Manual, left }) if !left.is_zero() => state,
        Some(_) => HoldState { allowance: Some(FIRST_ALLOWANCE), ..HoldState::default() },
        None => {
            let grown = state.allowance.map(|allowance| allowance.saturating_mul(2));
            HoldState { allowance: grown.filter(|allowance| *allowance < FULL_ALLOWANCE), ..HoldState::default() }
        }
    }
}

fn throttles(policy: &HoldPolicy, state: HoldState, stated: Option<Duration>) -> HoldState {
    let (length, holds) = match stated {
        Some(stated) => (stated.max(super::retry_after::MIN_WAIT), state.holds),
        None => (length(policy, state.holds), state.holds.saturating_add(1)),
    };
    let left = state.hold.map_or(length, |hold| hold.left.max(length));
    HoldState { holds, hold: Some(Hold { reason: HoldReason::Throttled, left }), ..state }
}

fn fails(policy: &HoldPolicy, state: HoldState, reason: HoldReason) -> HoldState {
    let failures = state.failures.saturating_add(1);
    let begin = match state.hold {
        // The probe failed.
        Some(hold) => hold.left.is_zero(),
        None => failures >= policy.after_failures,
    };
    if !begin {
        return HoldState { failures, ..state };
    }
    let hold = Some(Hold { reason, left: length(policy, state.holds) });
    HoldState { failures, holds: state.holds.saturating_add(1), hold, allowance: state.allowance }
}

fn length(policy: &HoldPolicy, holds: u32) -> Duration {
    let factor = 2_u32.saturating_pow(holds.min(31));
    policy.base.checked_mul(factor).map_or(policy.cap, |length| length.min(policy.cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: HoldPolicy =
        HoldPolicy { after_failures: 3, base: Duration::from_secs(5), cap: Duration::from_secs(60) };
    const FAILS: Signal = Signal::Fails(HoldReason::Failing);

    fn run(mut state: HoldState, signals: &[Signal]) -> HoldState {
        for signal in signals {
            state = after(&POLICY, state, *signal);
        }
        state
    }

    fn over(state: HoldState) -> HoldState {
        HoldState { hold: state.hold.map(|hold| Hold { left: Duration::ZERO, ..hold }), ..state }
    }

    fn left(state: HoldState) -> Option<u64> {
        state.hold.map(|hold| hold.left.as_secs())
    }

    #[test]
    fn failures_in_a_row_hold_and_each_failed_probe_holds_twice_as_long() {
        assert_eq!(left(run(HoldState::default(), &[FAILS, FAILS])), None);
        assert_eq!(left(run(HoldState::default(), &[FAILS, FAILS, Signal::Works, FAILS, FAILS])), None);
        let mut state = run(HoldState::default(), &[FAILS, FAILS, FAILS]);
        for seconds in [5, 10, 20, 40, 60, 60] {
            assert_eq!(left(state), Some(seconds));
            // What was on the wire when the hold began changes nothing.
            assert_eq!(left(run(state, &[FAILS, FAILS])), Some(seconds));
            state = run(over(state), &[FAILS]);
        }
        let many = HoldState { holds: u32::MAX, ..over(state) };
        assert_eq!(left(run(many, &[FAILS])), Some(60));
    }

    #[test]
    fn one_answer_of_a_working_receiver_lifts_the_hold_and_trust_grows_again() {
        let held = run(HoldState::default(), &[FAILS, FAILS, FAILS]);
        let mut state = run(over(held), &[Signal::Works]);
        for allowance in [2, 4, 8, 16, 32, 64, 128, 256, 512] {
            assert_eq!(state, HoldState { allowance: Some(allowance), ..HoldState::default() });
            state = run(state, &[Signal::Works]);
        }
        assert_eq!(state, HoldState::default());
    }

    #[test]
    fn a_stated_pause_holds_for_its_time_and_a_late_success_does_not_lift_it() {
        let pause = Signal::Throttles(Some(Duration::from_secs(30)));
        let state = run(HoldState::default(), &[pause, Signal::Works, Signal::Throttles(Some(Duration::from_secs(2)))]);
        assert_eq!((left(state), state.holds), (Some(30), 0));
        assert_eq!(left(run(HoldState::default(), &[Signal::Throttles(Some(Duration::ZERO))])), Some(1));
        let unstated = run(HoldState::default(), &[Signal::Throttles(None)]);
        assert_eq!((left(unstated), unstated.holds), (Some(5), 1));
        assert_eq!(left(run(over(state), &[Signal::Works])), None);
    }
}
