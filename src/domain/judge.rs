//! What an attempt came back with, and what that means: the verdict table.
//!
//! The table speaks of one attempt alone. What follows for the row (an attempt that is given back, a row that may not be
//! called dead) is [`super::transition`]'s.

use std::time::Duration;

use super::{
    row::{Reason, RowFacts},
    settings::{AnswerCondition, BodyCondition, Classified, ClassifyRule, Policy, StatusQuery},
};

/// What one attempt saw.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// The receiver answered.
    Answer(Answer),
    /// Nothing was executed: no byte of the request can have been read.
    NotExecuted {
        /// Which of [`Reason::DNS`], [`Reason::CONNECT`], ...
        reason: Reason,
        /// For people; sanitised and bounded.
        detail: String,
    },
    /// The request may have been executed.
    Unknown {
        /// Which of [`Reason::TIMEOUT`], [`Reason::RESET`], [`Reason::MALFORMED`].
        reason: Reason,
        /// For people; sanitised and bounded.
        detail: String,
    },
    /// No request can be built of the row, or none may be sent: nothing left.
    NotBuilt {
        /// [`Reason::INVALID`] or [`Reason::BLOCKED`].
        reason: Reason,
        /// For people; sanitised and bounded.
        detail: String,
    },
}

/// An answer, as far as verdicts need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The time that `Retry-After` states, already bounded by the policy's cap; `None`: absent, junk or not respected.
    pub retry_after: Option<Duration>,
    /// Headers by lower-case name, those that the policy's rules ask for.
    pub headers: Vec<(String, String)>,
    /// The body as far as it was read, if it is text.
    pub body: Option<String>,
    /// The receiver's name of the effect.
    pub downstream_id: Option<String>,
    /// Host of `Location`, for 3xx.
    pub location_host: Option<String>,
}

/// What the attempt means.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The effect took place.
    Succeeded {
        /// The receiver's name of it.
        downstream_id: Option<String>,
    },
    /// Not executed, or answered so that repeating is right: again, counted.
    Retry {
        /// Why.
        reason: Reason,
        /// The receiver asks for at least this.
        at_least: Option<Duration>,
    },
    /// Under way or throttled with a time to come back: not counted.
    Wait {
        /// Why.
        reason: Reason,
        /// The stated time; `None`: the policy's base.
        stated: Option<Duration>,
    },
    /// It may have been executed.
    Uncertain {
        /// Why nobody knows.
        reason: Reason,
    },
    /// It was not executed and never will be by repeating.
    Dead {
        /// Why.
        reason: Reason,
    },
}

/// Judges one attempt.
pub fn judge(policy: &Policy, row: &RowFacts, seen: &Observation) -> Verdict {
    match seen {
        Observation::Answer(answer) => judge_answer(policy, row, answer),
        Observation::NotExecuted { reason, .. } => Verdict::Retry { reason: reason.clone(), at_least: None },
        Observation::Unknown { reason, .. } => Verdict::Uncertain { reason: reason.clone() },
        Observation::NotBuilt { reason, .. } => Verdict::Dead { reason: reason.clone() },
    }
}

fn judge_answer(policy: &Policy, row: &RowFacts, answer: &Answer) -> Verdict {
    if let Some(rule) = policy.classify.iter().find(|rule| matches(&rule.when, answer)) {
        return classified(rule, answer);
    }
    match answer.status {
        200..=299 => Verdict::Succeeded { downstream_id: answer.downstream_id.clone() },
        300..=399 => Verdict::Dead { reason: Reason::REDIRECTED },
        401 | 403 => Verdict::Dead { reason: Reason::UNAUTHORIZED },
        408 | 425 => Verdict::Retry { reason: Reason::NOT_READY, at_least: answer.retry_after },
        409 if answer.retry_after.is_some() => {
            Verdict::Wait { reason: Reason::IN_PROGRESS, stated: answer.retry_after }
        }
        // Our own earlier request may still be running under this key.
        409 if row.unknown_attempts > 0 => Verdict::Retry { reason: Reason::IN_PROGRESS, at_least: None },
        409 => Verdict::Dead { reason: Reason::CONFLICT },
        429 if answer.retry_after.is_some() => Verdict::Wait { reason: Reason::THROTTLED, stated: answer.retry_after },
        429 => Verdict::Retry { reason: Reason::THROTTLED, at_least: None },
        400..=499 => Verdict::Dead { reason: Reason::REJECTED },
        // A receiver that does not deduplicate may have done the work before it failed.
        500..=599 if !policy.receiver_enforces_keys => Verdict::Uncertain { reason: Reason::SERVER_ERROR },
        500..=599 => Verdict::Retry { reason: Reason::SERVER_ERROR, at_least: answer.retry_after },
        // Not a final status of HTTP at all.
        _ => Verdict::Uncertain { reason: Reason::MALFORMED },
    }
}

/// What a receiver said of a key when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The effect took place.
    Done {
        /// The receiver's name of it.
        downstream_id: Option<String>,
    },
    /// It does not know the key.
    Unknown,
    /// It still works on it.
    Pending,
    /// No answer, or one that fits no rule.
    Unclear,
}

impl Told {
    /// A name for metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done { .. } => "done",
            Self::Unknown => "unknown",
            Self::Pending => "pending",
            Self::Unclear => "unclear",
        }
    }
}

/// Reads the answer to a status query. Where rules overlap, the one that sends nothing wins.
pub fn told(query: &StatusQuery, seen: &Observation) -> Told {
    let Observation::Answer(answer) = seen else { return Told::Unclear };
    let any = |rules: &[AnswerCondition]| rules.iter().any(|rule| matches(rule, answer));
    if any(&query.done) {
        Told::Done { downstream_id: answer.downstream_id.clone() }
    } else if any(&query.pending) {
        Told::Pending
    } else if any(&query.unknown) {
        Told::Unknown
    } else {
        Told::Unclear
    }
}

fn matches(rule: &AnswerCondition, answer: &Answer) -> bool {
    let status =
        rule.statuses.is_empty() || rule.statuses.iter().any(|&(first, last)| (first..=last).contains(&answer.status));
    let header = rule.header.as_ref().is_none_or(|(name, value)| {
        answer
            .headers
            .iter()
            .any(|(seen, content)| seen == name && value.as_ref().is_none_or(|wanted| wanted == content))
    });
    status && header && rule.body.as_ref().is_none_or(|condition| body_matches(condition, answer.body.as_deref()))
}

fn body_matches(condition: &BodyCondition, body: Option<&str>) -> bool {
    let found = body.and_then(|body| super::json_pointer::find(body, &condition.pointer));
    let exists = condition.exists.is_none_or(|wanted| wanted == found.is_some());
    let value = condition.value.as_ref().is_none_or(|wanted| {
        found.is_some_and(|raw| raw == wanted || super::json_pointer::text(raw).as_ref() == Some(wanted))
    });
    // A pointer alone asks that the value is there.
    let implied = condition.exists.is_some() || condition.value.is_some() || found.is_some();
    exists && value && implied
}

fn classified(rule: &ClassifyRule, answer: &Answer) -> Verdict {
    let reason = |default: Reason| rule.reason.clone().unwrap_or(default);
    match rule.verdict {
        Classified::Succeeded => Verdict::Succeeded { downstream_id: answer.downstream_id.clone() },
        Classified::Retry => Verdict::Retry { reason: reason(Reason::SERVER_ERROR), at_least: answer.retry_after },
        Classified::Wait => Verdict::Wait { reason: reason(Reason::IN_PROGRESS), stated: answer.retry_after },
        Classified::Uncertain => Verdict::Uncertain { reason: reason(Reason::SERVER_ERROR) },
        Classified::Dead => Verdict::Dead { reason: reason(Reason::REJECTED) },
    }
}

#[cfg(test)]
mod tests;
