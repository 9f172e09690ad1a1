//! The conditions of a relay, as values before they have a time.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Characters of a message. The API server takes 32,768; nobody reads that.
const MAX_MESSAGE_CHARS: usize = 1000;

/// The types, in the order in which they are shown.
pub const TYPES: [&str; 8] = [
    "Ready",
    "DatabaseReachable",
    "SchemaReady",
    "PoliciesResolved",
    "BacklogKnown",
    "ScalingLimited",
    "Suspended",
    "Outdated",
];

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows yet.
    Unknown,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Says {
    /// Whether it holds.
    pub status: Status,
    /// Why, as one word in `PascalCase`.
    pub reason: &'static str,
    /// Why, for a person, with the mend.
    pub message: String,
}

impl Says {
    /// It holds.
    pub fn yes(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: Status::True, reason, message: message.into() }
    }

    /// It does not.
    pub fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: Status::False, reason, message: message.into() }
    }

    /// Nobody knows yet.
    pub fn unknown(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: Status::Unknown, reason, message: message.into() }
    }
}

/// The condition of a type that says this. The time of the last transition is kept while the status stays.
pub fn condition(previous: &[Condition], type_: &str, says: &Says, generation: i64, now: Timestamp) -> Condition {
    let before = previous.iter().find(|condition| condition.type_ == type_);
    let same = before.filter(|before| before.status == says.status.as_str());
    // A status holds whole seconds: with fractions, what is read back would differ from what was written.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        type_: type_.to_owned(),
        status: says.status.as_str().to_owned(),
        reason: says.reason.to_owned(),
        message: says.message.chars().take(MAX_MESSAGE_CHARS).collect(),
        observed_generation: Some(generation),
        last_transition_time: same.map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}
