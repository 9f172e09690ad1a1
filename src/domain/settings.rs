//! Validated settings: what a document means once nothing in it can be wrong.

mod request;

use std::time::Duration;

use super::{backoff::Backoff, egress::EgressRules, hold::HoldPolicy, routing::Routing, row::Reason};

pub use request::{Authentication, ClientCertificate, ClientCredentials, RequestPolicy, SecretRef, TlsPolicy};

/// Time kept between an attempt's deadline and the end of its lease: for the claim's own commit and the settle after it.
pub const LEASE_MARGIN: Duration = Duration::from_secs(2);

/// How a relay serves its table.
#[derive(Clone, Debug, PartialEq)]
pub struct RelaySettings {
    /// `namespace/name`, or the name alone.
    pub name: String,
    /// Tenants whose rows are served; empty: all. Canonical UUID text.
    pub tenants: Vec<String>,
    /// Connections per pod.
    pub max_connections: u32,
    /// Connections of the whole relay.
    pub connection_budget: u32,
    /// Requests in flight per pod.
    pub concurrency: usize,
    /// Rows per claim at most; `None`: what is free.
    pub claim_batch: Option<usize>,
    /// Bytes of payloads in memory.
    pub memory_budget: u64,
    /// How long a claimed row belongs to its pod.
    pub lease: Duration,
    /// How often an empty table is asked again.
    pub poll_interval: Duration,
    /// What is removed, and when.
    pub retention: Retention,
    /// Whether a relay run by hand migrates at its start.
    pub migrate: bool,
    /// How rows are sent, judged and repeated.
    pub policies: Policies,
    /// Which row goes by which policy.
    pub routing: Routing,
}

/// A relay's policies by number, as its routes refer to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    /// Number 0: of rows that no route matches.
    pub own: NamedPolicy,
    /// From number 1 on.
    pub others: Vec<NamedPolicy>,
}

/// A policy of a relay.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPolicy {
    /// Whose holds these are, in the table of destinations: relay and policy, for other credentials are another hold.
    pub scope: String,
    /// The policy.
    pub policy: Policy,
}

impl Policies {
    /// The policy of a number.
    pub fn get(&self, number: usize) -> &NamedPolicy {
        number.checked_sub(1).and_then(|other| self.others.get(other)).unwrap_or(&self.own)
    }

    /// All, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &NamedPolicy> {
        std::iter::once(&self.own).chain(&self.others)
    }

    /// The longest time that an attempt may take, with all that is asked before it.
    pub fn longest_deadline(&self) -> Duration {
        self.iter().map(|named| named.policy.time_in_hand()).max().unwrap_or_default()
    }

    /// Whether rows wait for each other under any of them.
    pub fn any_ordered(&self) -> bool {
        self.iter().any(|named| named.policy.ordering.is_some())
    }
}

/// What is removed, and how long after its end; `None`: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Succeeded rows.
    pub succeeded: Option<Duration>,
    /// The payloads of succeeded rows.
    pub payload: Option<Duration>,
    /// Dead rows.
    pub dead: Option<Duration>,
    /// The history of attempts and acts.
    pub history: Option<Duration>,
}

impl Retention {
    /// What is to be removed, with its age.
    pub fn removals(&self) -> impl Iterator<Item = (Removal, Duration)> {
        let ages = [self.succeeded, self.payload, self.dead, self.history];
        Removal::ALL.into_iter().zip(ages).filter_map(|(removal, age)| Some((removal, age?)))
    }
}

/// Something that retention removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Succeeded rows.
    Succeeded,
    /// The payloads of succeeded rows.
    Payload,
    /// Dead rows.
    Dead,
    /// The history of attempts and acts.
    History,
}

impl Removal {
    /// All, in the order in which they are removed.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Payload, Self::Dead, Self::History];

    /// The field's name, and the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Payload => "payload",
            Self::Dead => "dead",
            Self::History => "history",
        }
    }
}

/// How rows are sent, judged and repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The request.
    pub request: RequestPolicy,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// Over the whole attempt.
    pub total_timeout: Duration,
    /// Whether the receiver does a key's work once.
    pub receiver_enforces_keys: bool,
    /// How long the receiver remembers a key; `None`: for ever.
    pub key_window: Option<Duration>,
    /// How the wait grows.
    pub backoff: Backoff,
    /// Attempts in all.
    pub max_attempts: u32,
    /// Age past which a row is exhausted.
    pub max_age: Duration,
    /// Longest `Retry-After` that is believed; `None`: it is not read.
    pub retry_after_cap: Option<Duration>,
    /// Overrides of the built-in verdicts, first match wins.
    pub classify: Vec<ClassifyRule>,
    /// How the receiver is asked what became of a row.
    pub status_query: Option<StatusQuery>,
    /// What is asked before each request.
    pub pre_dispatch: Option<PreDispatch>,
    /// When a destination is held.
    pub hold: HoldPolicy,
    /// Requests in flight to one destination, over all pods.
    pub max_in_flight: Option<u32>,
    /// Requests a second to one destination, over all pods.
    pub rate_per_second: Option<u32>,
    /// Whether rows of one entity go one at a time; `None`: they do not.
    pub ordering: Option<OnDead>,
    /// Which addresses may be connected to.
    pub egress: EgressRules,
    /// Bytes of an answer's body that are read.
    pub max_response_bytes: usize,
    /// Where the receiver's own name of the effect is.
    pub downstream_id: DownstreamIdSource,
    /// Which attempts are recorded.
    pub history: History,
}

/// What a dead row is to the later rows of its entity, where these go in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// They wait until a person has dealt with it.
    Block,
    /// They go on without it.
    Skip,
}

impl Policy {
    /// How long one claimed row may be in hand once its turn has come: everything that is asked before the request, and the
    /// request. A lease must outlast it.
    pub fn time_in_hand(&self) -> Duration {
        let query = self.status_query.as_ref().map_or(Duration::ZERO, |query| query.timeout);
        let check = self.pre_dispatch.as_ref().map_or(Duration::ZERO, PreDispatch::timeout);
        self.total_timeout + query + check
    }
}

/// How the receiver is asked what became of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusQuery {
    /// The address, with placeholders for the key.
    pub url: String,
    /// `GET` or `HEAD`.
    pub method: &'static str,
    /// The effect took place.
    pub done: Vec<AnswerCondition>,
    /// The receiver does not know the key.
    pub unknown: Vec<AnswerCondition>,
    /// The request is still worked on.
    pub pending: Vec<AnswerCondition>,
    /// How long after the last request an `unknown` is believed.
    pub settle_delay: Duration,
    /// How long one query may take.
    pub timeout: Duration,
}

/// Longest answer of a pre-dispatch function: the server ends its statement after this time.
pub const SQL_CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// What is asked before each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreDispatch {
    /// A function of the database.
    SqlFunction(FunctionName),
    /// A service.
    Http {
        /// The address.
        url: String,
        /// How long one answer may take.
        timeout: Duration,
    },
}

impl PreDispatch {
    /// How long one answer may take.
    pub fn timeout(&self) -> Duration {
        match self {
            Self::SqlFunction(_) => SQL_CHECK_TIMEOUT,
            Self::Http { timeout, .. } => *timeout,
        }
    }
}

/// A function of the database, as SQL folds an unquoted name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionName {
    /// The schema; `None`: the first of the search path that has it.
    pub schema: Option<String>,
    /// The name.
    pub name: String,
}

/// Which attempts are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// None.
    None,
    /// Those that did not succeed.
    Failures,
    /// All.
    All,
}

/// Where the receiver's own name of the effect is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownstreamIdSource {
    /// A JSON pointer into the body.
    Pointer(String),
    /// A response header, lower case.
    Header(String),
}

/// A condition on an answer. All of its parts must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerCondition {
    /// Inclusive ranges of statuses; empty: any.
    pub statuses: Vec<(u16, u16)>,
    /// A condition on the body.
    pub body: Option<BodyCondition>,
    /// A condition on a header, its name in lower case; no value: any.
    pub header: Option<(String, Option<String>)>,
}

/// An override of the built-in verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifyRule {
    /// Which answers are meant.
    pub when: AnswerCondition,
    /// What the answer means.
    pub verdict: Classified,
    /// The reason that is kept.
    pub reason: Option<Reason>,
}

/// A condition on a JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyCondition {
    /// A JSON pointer.
    pub pointer: String,
    /// Whether a value must be there.
    pub exists: Option<bool>,
    /// The text that the value must be.
    pub value: Option<String>,
}

/// What a policy's rule says of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classified {
    /// The effect took place.
    Succeeded,
    /// It did not: again, counted.
    Retry,
    /// It is under way: come back, not counted.
    Wait,
    /// Nobody knows.
    Uncertain,
    /// It never will.
    Dead,
}
