//! What becomes of a claimed row: the one place that decides a row's next state.
//!
//! ```text
//!             claim                       2xx
//! pending ------------> in_flight ------------------> succeeded
//!    ^                   |  |  |
//!    | retry / wait      |  |  +-- permanent, exhausted, expired --> dead
//!    +-------------------+  +----- may have been executed ---------> uncertain (again, or parked for a person)
//! ```
//!
//! Two rules hold throughout. A row is never called dead while an attempt of it may have been executed: it parks, uncertain,
//! with the same reason (one answer settles the doubt: a refusal of the same key by a receiver that enforces keys, inside
//! its window). And nothing is repeated by itself towards a receiver that does not deduplicate once an outcome is unknown.

use std::time::Duration;

use super::{
    authority::Authority,
    judge::{Observation, Told, Verdict},
    retry_after,
    row::{Reason, RowFacts, Status},
    settings::{Policy, StatusQuery},
};

/// What is written to the row when its claim ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The next state.
    pub status: Status,
    /// When it is due again.
    pub due: Due,
    /// Why; `None` clears it.
    pub reason: Option<Reason>,
    /// The attempt is given back: it was a wait, or nothing was begun.
    pub give_back_attempt: bool,
    /// Added to `waits`.
    pub wait: bool,
    /// Added to `unknown_attempts`.
    pub unknown: bool,
    /// No byte of this row has left yet, so its key window has not begun.
    pub clear_first_dispatch: bool,
    /// No attempt was begun yet, so the row's age has not begun.
    pub clear_retry_since: bool,
    /// The answer was 5xx.
    pub answered_5xx: bool,
    /// Bytes of a request may have left.
    pub sent: bool,
    /// The receiver's name of the effect.
    pub downstream_id: Option<String>,
}

/// When a settled row is due again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Never: it has ended.
    Ended,
    /// After this delay, by the database's clock.
    After(Duration),
    /// When a person says so.
    Parked,
}

/// What to do with a row that was just claimed.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Ask the receiver what became of it; [`after_ask`] goes on.
    Ask,
    /// Send it.
    Send,
    /// Do not send it; write this.
    Settle(Settlement),
}

/// Decides before any byte leaves. An expired lease is an unknown outcome that the claim has already counted.
pub fn before_send(policy: &Policy, row: &RowFacts) -> Plan {
    // Asking uses no attempt, so a row with none left is asked about too; one that kills its worker meanwhile is not, for ever.
    if policy.status_query.is_some() && open_doubt(row) && row.attempts <= policy.max_attempts.saturating_add(1) {
        return Plan::Ask;
    }
    if row.expired {
        return Plan::Settle(end(policy, row, Reason::EXPIRED, Doubt::Stays).unsent(row));
    }
    if let Some(reason) = may_not_be_repeated(policy, row) {
        return Plan::Settle(park(reason).unsent(row));
    }
    within_limits(policy, row)
}

/// Decides once the receiver has been asked. `random` is uniform in `[0, 1)`.
pub fn after_ask(policy: &Policy, query: &StatusQuery, row: &RowFacts, told: &Told, random: f64) -> Plan {
    let settling = query.settle_delay.saturating_sub(row.since_last_send);
    let next = match told {
        Told::Done { downstream_id } => {
            let succeeded = settle(Status::Succeeded, Due::Ended, None);
            Settlement { downstream_id: downstream_id.clone(), ..succeeded }
        }
        Told::Unknown if !settling.is_zero() => ask_again(policy, row, Reason::SETTLING, Some(settling), random),
        Told::Unknown if row.expired => end(policy, row, Reason::EXPIRED, Doubt::Stays),
        Told::Unknown => return within_limits(policy, row),
        Told::Pending => ask_again(policy, row, Reason::IN_PROGRESS, None, random),
        Told::Unclear => ask_again(policy, row, Reason::QUERY_UNCLEAR, None, random),
    };
    Plan::Settle(next.unsent(row))
}

/// An attempt of the row may have been executed, and no person has spoken since.
fn open_doubt(row: &RowFacts) -> bool {
    row.lease_expired || row.in_doubt
}

fn ask_again(policy: &Policy, row: &RowFacts, reason: Reason, at_most: Option<Duration>, random: f64) -> Settlement {
    if row.retry_age >= policy.max_age {
        return park(reason);
    }
    let delay = asking_delay(policy, row, random);
    let delay = at_most.map_or(delay, |most| delay.min(most.max(retry_after::MIN_WAIT)));
    Settlement { wait: true, ..settle(Status::Uncertain, Due::After(delay), Some(reason)) }
}

/// Questions, to a receiver or to a check, have waits of their own, which grow with their number: half of the longest wait,
/// and a random half.
fn asking_delay(policy: &Policy, row: &RowFacts, random: f64) -> Duration {
    let longest = policy.backoff.max_delay(row.waits.saturating_add(1));
    (longest / 2 + (longest / 2).mul_f64(random)).max(retry_after::MIN_WAIT)
}

/// The row may be sent as far as its doubt goes; its attempts and its key's window have their say.
fn within_limits(policy: &Policy, row: &RowFacts) -> Plan {
    if row.attempts > policy.max_attempts {
        return Plan::Settle(end(policy, row, Reason::EXHAUSTED, Doubt::Stays).unsent(row));
    }
    if (row.unknown_attempts > 0 || row.answered_5xx) && window_is_over(policy, row) {
        return Plan::Settle(park(Reason::KEY_WINDOW).unsent(row));
    }
    Plan::Send
}

/// Decides on a row that a pre-dispatch check did not let pass: nothing was sent. `random` is uniform in `[0, 1)`.
pub fn not_allowed(policy: &Policy, row: &RowFacts, authority: &Authority, random: f64) -> Settlement {
    match authority {
        Authority::Denied { .. } => end(policy, row, Reason::REVOKED, Doubt::Stays).unsent(row),
        Authority::Unasked { .. } if row.retry_age >= policy.max_age => {
            end(policy, row, Reason::EXHAUSTED, Doubt::Stays).unsent(row)
        }
        Authority::Unasked { .. } => {
            let next = settle(
                waiting_status(policy, row),
                Due::After(asking_delay(policy, row, random)),
                Some(Reason::CHECK_FAILED),
            );
            // Its age has begun, or a check that stays down would keep the row for ever.
            Settlement { wait: true, clear_retry_since: false, ..next.unsent(row) }
        }
        // A check that never says yes or no ends the row as a receiver would.
        Authority::Unclear { .. } | Authority::Allowed => {
            let next = retry(policy, row, &Reason::CHECK_FAILED, None, random);
            Settlement { clear_first_dispatch: row.first_dispatch, ..next }
        }
    }
}

/// Decides after an attempt. `random` is uniform in `[0, 1)`.
pub fn after_attempt(
    policy: &Policy,
    row: &RowFacts,
    seen: &Observation,
    verdict: &Verdict,
    random: f64,
) -> Settlement {
    let mut settlement = match verdict {
        Verdict::Succeeded { downstream_id } => {
            Settlement { downstream_id: downstream_id.clone(), ..settle(Status::Succeeded, Due::Ended, None) }
        }
        Verdict::Wait { reason, stated } => wait(policy, row, reason, *stated, random),
        Verdict::Retry { reason, at_least } => retry(policy, row, reason, *at_least, random),
        Verdict::Uncertain { reason } => uncertain(policy, row, reason, random),
        Verdict::Dead { reason } => {
            let doubt = if *reason == Reason::REJECTED && refuses_key(seen) { Doubt::Settled } else { Doubt::Stays };
            end(policy, row, reason.clone(), doubt)
        }
    };
    settlement.answered_5xx = matches!(seen, Observation::Answer(answer) if (500..=599).contains(&answer.status));
    let nothing_left = matches!(seen, Observation::NotExecuted { .. } | Observation::NotBuilt { .. });
    settlement.sent = !nothing_left;
    settlement.clear_first_dispatch = nothing_left && row.first_dispatch;
    settlement
}

/// Gives back a row whose attempt was not begun. A claim that found an open doubt is the only one to know of it: where the
/// receiver does not deduplicate, the next one would take the row for one that a person wants sent.
pub fn release(policy: &Policy, row: &RowFacts) -> Settlement {
    if let Some(reason) = may_not_be_repeated(policy, row) {
        return park(reason).unsent(row);
    }
    // A person's word that such a row be sent outlives a pod that did not get to it.
    let spoken = !policy.receiver_enforces_keys && !open_doubt(row);
    let status = if spoken { Status::Pending } else { waiting_status(policy, row) };
    settle(status, Due::After(Duration::ZERO), None).unsent(row)
}

/// Gives back a row for which there is no room yet, to be claimed anew after `delay`.
pub fn put_off(policy: &Policy, row: &RowFacts, delay: Duration) -> Settlement {
    let released = release(policy, row);
    match released.due {
        Due::After(_) => Settlement { due: Due::After(delay), ..released },
        Due::Ended | Due::Parked => released,
    }
}

/// Why a row is not sent to a receiver that does not deduplicate unless a person wants it (which makes it pending): the
/// outcome of an attempt is unknown. An uncertain row was scheduled while the policy still said otherwise.
fn may_not_be_repeated(policy: &Policy, row: &RowFacts) -> Option<Reason> {
    // Where the receiver can be asked, the next claim asks it.
    match (policy.receiver_enforces_keys || policy.status_query.is_some(), row.lease_expired, row.in_doubt) {
        (true, _, _) | (false, false, false) => None,
        (false, true, _) => Some(Reason::LEASE_EXPIRED),
        (false, false, true) => Some(Reason::IN_DOUBT),
    }
}

fn wait(policy: &Policy, row: &RowFacts, reason: &Reason, stated: Option<Duration>, random: f64) -> Settlement {
    if row.retry_age >= policy.max_age {
        return end(policy, row, Reason::EXHAUSTED, Doubt::Stays);
    }
    let cap = policy.retry_after_cap.unwrap_or(Duration::ZERO);
    let delay = match stated {
        Some(stated) => retry_after::wait(stated, cap, random),
        // A schedule may begin with no time at all, and nothing counts how often.
        None => policy.backoff.max_delay(1).max(retry_after::MIN_WAIT),
    };
    let next = settle(waiting_status(policy, row), Due::After(delay), Some(reason.clone()));
    Settlement { give_back_attempt: true, wait: true, ..next }
}

fn retry(policy: &Policy, row: &RowFacts, reason: &Reason, at_least: Option<Duration>, random: f64) -> Settlement {
    if used_up(policy, row) {
        return end(policy, row, Reason::EXHAUSTED, Doubt::Stays);
    }
    let own = policy.backoff.delay(row.attempts, random);
    let stated = at_least.map(|stated| retry_after::wait(stated, policy.retry_after_cap.unwrap_or(stated), random));
    let delay = stated.map_or(own, |stated| stated.max(own));
    settle(waiting_status(policy, row), Due::After(delay), Some(reason.clone()))
}

fn uncertain(policy: &Policy, row: &RowFacts, reason: &Reason, random: f64) -> Settlement {
    let next = if policy.status_query.is_some() && row.retry_age < policy.max_age {
        settle(Status::Uncertain, Due::After(asking_delay(policy, row, random)), Some(reason.clone()))
    } else if !policy.receiver_enforces_keys {
        park(reason.clone())
    } else if used_up(policy, row) {
        park(Reason::EXHAUSTED)
    } else {
        let delay = policy.backoff.delay(row.attempts, random);
        settle(Status::Uncertain, Due::After(delay), Some(reason.clone()))
    };
    Settlement { unknown: true, ..next }
}

fn used_up(policy: &Policy, row: &RowFacts) -> bool {
    row.attempts >= policy.max_attempts || row.retry_age >= policy.max_age
}

/// Whether the answer is the receiver's word on the key itself: by 4xx or, where the policy's rules read it so, by 2xx. What
/// stands before the receiver (a login, a limit, a broken proxy) knows nothing of an earlier attempt.
fn refuses_key(seen: &Observation) -> bool {
    matches!(seen, Observation::Answer(answer)
        if matches!(answer.status, 200..=299 | 400..=499) && !matches!(answer.status, 401 | 403 | 408 | 409 | 425 | 429))
}

fn window_is_over(policy: &Policy, row: &RowFacts) -> bool {
    policy.key_window.is_some_and(|window| row.dispatch_age >= window)
}

/// Whether the verdict itself says that no earlier attempt was executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Stays,
    Settled,
}

/// Dead, unless an attempt may have been executed: then the row parks with the same reason.
fn end(policy: &Policy, row: &RowFacts, reason: Reason, doubt: Doubt) -> Settlement {
    let settled = doubt == Doubt::Settled && policy.receiver_enforces_keys && !window_is_over(policy, row);
    if row.unknown_attempts > 0 && !settled {
        return park(reason);
    }
    settle(Status::Dead, Due::Ended, Some(reason))
}

fn park(reason: Reason) -> Settlement {
    settle(Status::Uncertain, Due::Parked, Some(reason))
}

/// A row that waits says so, and says whether an attempt of it may have been executed. Where the receiver neither
/// deduplicates nor can be asked, such a row waits only because a person had it sent again, so the doubt is not left to the
/// next claim.
fn waiting_status(policy: &Policy, row: &RowFacts) -> Status {
    let judged_again = policy.receiver_enforces_keys || policy.status_query.is_some();
    if row.unknown_attempts > 0 && judged_again { Status::Uncertain } else { Status::Pending }
}

fn settle(status: Status, due: Due, reason: Option<Reason>) -> Settlement {
    Settlement {
        status,
        due,
        reason,
        give_back_attempt: false,
        wait: false,
        unknown: false,
        clear_first_dispatch: false,
        clear_retry_since: false,
        answered_5xx: false,
        sent: false,
        downstream_id: None,
    }
}

impl Settlement {
    /// Nothing was begun: the attempt is given back, and no clock has begun with it.
    fn unsent(self, row: &RowFacts) -> Self {
        // An attempt that was a wait was given back too, but the row's age began with it.
        let clear_retry_since = row.attempts <= 1 && row.retry_age.is_zero();
        Self { give_back_attempt: true, clear_first_dispatch: row.first_dispatch, clear_retry_since, ..self }
    }
}

#[cfg(test)]
mod tests;
