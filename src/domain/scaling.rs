//! How many pods a relay should have: a decision about numbers that others have measured.
//!
//! Nothing here reads a clock or a cluster: every span of time is an argument, so that a day of traffic is tested in a
//! millisecond. Replicas follow the rows that can be sent now; what nobody knows never takes a pod away.

use std::time::Duration;

/// Connections of a relay's budget that are the operator's: its sampler and its migration Job.
const OPERATOR_CONNECTIONS: i32 = 2;
/// Without a sample for this long one pod is started from zero: rows may be waiting.
pub const BLIND_START: Duration = Duration::from_secs(60);
/// The number is raised for the age of the oldest row at most this often: two samples of 5 s, so that the pods of the
/// last raise are seen at work before the next.
const AGE_RAISE_PAUSE: Duration = Duration::from_secs(10);
/// The last pod goes when this many sample intervals have passed since a row was last seen moving.
const QUIET_INTERVALS: u32 = 2;

/// What a user allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Pods at least.
    pub min_replicas: i32,
    /// Pods at most.
    pub max_replicas: i32,
    /// Connections per pod.
    pub max_connections: i32,
    /// Connections of the whole relay.
    pub connection_budget: i32,
    /// Requests in flight per pod.
    pub concurrency: i32,
    /// How soon the rows that are due now should be gone.
    pub target_drain: Duration,
    /// Age of the oldest due row above which one more pod is asked for.
    pub max_oldest_due_age: Duration,
    /// How long fewer pods must have been enough before some go.
    pub stabilization: Duration,
    /// Pods that go at once.
    pub step: i32,
}

/// What is known of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backlog {
    /// A good sample.
    Known {
        /// Rows due now, at least.
        due: i64,
        /// Rows that pods hold.
        in_flight: i64,
        /// Age of the oldest due row.
        oldest_due_age: Option<Duration>,
        /// Whether the count of due rows met its bound, so that it reads as "at least".
        saturated: bool,
        /// Rows that one pod finishes a second, if pods have said so.
        drain_per_pod: Option<f64>,
    },
    /// No good sample; for how long.
    Unknown {
        /// Since the last good sample, or since the operator began to ask.
        lasting: Duration,
    },
}

/// Everything the decision rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// What a user allows.
    pub limits: Limits,
    /// Whether the relay is suspended.
    pub suspend: bool,
    /// Pods asked for at present.
    pub current: i32,
    /// Pods that are ready.
    pub ready: i32,
    /// What is known of the rows.
    pub backlog: Backlog,
    /// The most pods that any decision of the last `stabilization` wanted; `None` before that span has passed once.
    pub recent_most: Option<i32>,
    /// Since the number of pods last changed, or since the operator began to watch.
    pub since_change: Duration,
    /// Since a row was last seen due, in flight or finished.
    pub quiet: Duration,
    /// Time between two samples.
    pub sample_interval: Duration,
}

/// A cap that bound the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// `scaling.maxReplicas`.
    MaxReplicas,
    /// `database.connectionBudget`.
    ConnectionBudget,
    /// Nobody knows the backlog.
    BacklogUnknown,
}

impl LimitedBy {
    /// The name that a user reads.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxReplicas => "MaxReplicas",
            Self::ConnectionBudget => "ConnectionBudget",
            Self::BacklogUnknown => "BacklogUnknown",
        }
    }
}

/// Why the number is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The relay is suspended.
    Suspended,
    /// The due rows, over what a pod drains in `targetDrain`.
    Backlog,
    /// The oldest due row is older than `maxOldestDueAge`.
    OldestDueAge,
    /// Rows are in flight, so the last pod stays.
    InFlight,
    /// Nothing to do; `minReplicas`.
    Idle,
    /// Fewer would do, but not for long enough yet.
    Stabilizing,
    /// Fewer have been enough for long enough.
    SteppingDown,
    /// The backlog is not known, so the number stays.
    BacklogUnknown,
}

impl Reason {
    /// The name that a user reads.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Suspended => "Suspended",
            Self::Backlog => "Backlog",
            Self::OldestDueAge => "OldestDueAge",
            Self::InFlight => "InFlight",
            Self::Idle => "Idle",
            Self::Stabilizing => "Stabilizing",
            Self::SteppingDown => "SteppingDown",
            Self::BacklogUnknown => "BacklogUnknown",
        }
    }
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pods to ask for.
    pub desired: i32,
    /// Pods that the rows alone ask for, capped; what the stabilisation window remembers.
    pub wanted: i32,
    /// The cap that bound the number, if one did.
    pub limited_by: Option<LimitedBy>,
    /// Why the number is what it is.
    pub reason: Reason,
}

/// Decides the number of pods.
pub fn decide(inputs: &Inputs) -> Decision {
    if inputs.suspend {
        return Decision { desired: 0, wanted: 0, limited_by: None, reason: Reason::Suspended };
    }
    match inputs.backlog {
        Backlog::Unknown { lasting } => blind(inputs, lasting),
        Backlog::Known { .. } => {
            let (rows_ask, reason) = ask(inputs);
            let (wanted, limited_by) = cap(rows_ask.max(inputs.limits.min_replicas), &inputs.limits);
            settle(inputs, wanted, limited_by, reason)
        }
    }
}

/// Rows that one pod could finish a second: the mean of what pods have measured. They measure how long an attempt takes
/// and not how many end, so a pod that has little to do is not taken for a slow one, nor for a fast one.
#[expect(clippy::cast_precision_loss, reason = "counts of pods are far below 2^52")]
pub fn drain_per_pod(drain_per_second: f64, pods: i64) -> Option<f64> {
    (pods > 0 && drain_per_second.is_finite() && drain_per_second > 0.0).then(|| drain_per_second / pods as f64)
}

/// Pods at most that fit the connection budget: one pod's room is left for a rollout's surge, two connections for the
/// operator. At least 1, although such a relay exceeds its budget during a rollout: a relay that never runs would be
/// the worse surprise, and `limitedBy` says which setting is too small.
pub fn budget_cap(limits: &Limits) -> i32 {
    ((limits.connection_budget - OPERATOR_CONNECTIONS) / limits.max_connections.max(1) - 1).max(1)
}

/// Without a sample the number stays, within the caps; from zero one pod starts after a while, since rows may wait.
fn blind(inputs: &Inputs, lasting: Duration) -> Decision {
    let keep = inputs.current.max(inputs.limits.min_replicas);
    let starts = keep == 0 && lasting >= BLIND_START;
    let desired = if starts { 1 } else { keep };
    let (capped, limited_by) = cap(desired, &inputs.limits);
    // A lowered cap is a user's word and binds at once; not knowing the backlog takes nothing away.
    let limited_by = limited_by.or((starts || inputs.current > 0).then_some(LimitedBy::BacklogUnknown));
    Decision { desired: capped, wanted: capped, limited_by, reason: Reason::BacklogUnknown }
}

/// What the rows ask for, before any cap.
fn ask(inputs: &Inputs) -> (i32, Reason) {
    let Backlog::Known { due, in_flight, oldest_due_age, saturated, drain_per_pod } = inputs.backlog else {
        return (inputs.current, Reason::BacklogUnknown);
    };
    // At zero pods nobody works on what is in flight: it is due by itself when its lease ends, and wakes the relay then.
    let rows = if inputs.current == 0 { due } else { due.saturating_add(in_flight) };
    if rows <= 0 {
        return (0, Reason::Idle);
    }
    let mut want = pods_for(rows, drain_per_pod, &inputs.limits);
    if saturated {
        want = want.max(inputs.current);
    }
    let late = due > 0 && oldest_due_age.is_some_and(|age| age > inputs.limits.max_oldest_due_age);
    let last_raise_at_work = inputs.ready >= inputs.current && inputs.since_change >= AGE_RAISE_PAUSE;
    if late && want <= inputs.current {
        let raised = if last_raise_at_work { inputs.current.saturating_add(1) } else { inputs.current };
        return (raised, Reason::OldestDueAge);
    }
    (want, if due > 0 { Reason::Backlog } else { Reason::InFlight })
}

/// `ceil(rows / (drain rate per pod * targetDrain))`; before the first rate, a slot is taken to finish a row a second.
fn pods_for(rows: i64, drain_per_pod: Option<f64>, limits: &Limits) -> i32 {
    let rate =
        drain_per_pod.filter(|rate| rate.is_finite() && *rate > 0.0).unwrap_or(f64::from(limits.concurrency.max(1)));
    #[expect(clippy::cast_precision_loss, reason = "counts are bounded far below 2^52")]
    let pods = (rows as f64 / (rate * limits.target_drain.as_secs_f64().max(0.001))).ceil();
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the range of i32 before")]
    let pods = pods.clamp(1.0, f64::from(i32::MAX)) as i32;
    pods
}

/// The caps, and which one bound.
fn cap(want: i32, limits: &Limits) -> (i32, Option<LimitedBy>) {
    let budget = budget_cap(limits);
    if want > budget && budget <= limits.max_replicas {
        return (budget, Some(LimitedBy::ConnectionBudget));
    }
    if want > limits.max_replicas {
        return (limits.max_replicas, Some(LimitedBy::MaxReplicas));
    }
    (want, None)
}

/// Up at once, down in steps, to zero only when all is quiet.
fn settle(inputs: &Inputs, wanted: i32, limited_by: Option<LimitedBy>, reason: Reason) -> Decision {
    let (most, _) = cap(i32::MAX, &inputs.limits);
    let decision = |desired, reason| Decision { desired, wanted, limited_by, reason };
    // Above its caps the number goes down at once: they were lowered by a person, or the database would be overrun.
    let current = inputs.current.min(most);
    if wanted >= current {
        return decision(wanted, reason);
    }
    let enough = inputs.recent_most.map_or(current, |most| most.max(wanted));
    if enough >= current || inputs.since_change < inputs.limits.stabilization {
        return decision(current, Reason::Stabilizing);
    }
    let next = (current - inputs.limits.step.max(1)).max(enough);
    if next == 0 && inputs.quiet < inputs.sample_interval.saturating_mul(QUIET_INTERVALS) {
        return decision(1.min(current), Reason::Stabilizing);
    }
    decision(next, Reason::SteppingDown)
}

#[cfg(test)]
mod tests;
