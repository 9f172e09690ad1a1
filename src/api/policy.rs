//! `DispatchPolicy`: how requests are made, judged and repeated. Every field has a default; an empty spec is a good policy.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BodyRule, Duration, HeaderRule, Ordering, PreDispatch, Request, StatusQuery, duration::cel_duration};

/// How the rows of a relay are sent, judged and repeated.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "outbox-operator.dev",
    version = "v1alpha1",
    kind = "DispatchPolicy",
    plural = "dispatchpolicies",
    shortname = "obdp",
    category = "outbox",
    namespaced,
    derive = "PartialEq",
    doc = "How the rows of a relay are sent, judged and repeated.",
    printcolumn = r#"{"name":"Receiver","type":"string","jsonPath":".spec.idempotency.receiver"}"#,
    printcolumn = r#"{"name":"Attempts","type":"integer","jsonPath":".spec.retry.maxAttempts"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct DispatchPolicySpec {
    /// What is sent.
    pub request: Request,
    /// How long one attempt may take.
    pub timeouts: Timeouts,
    /// What the receiver does with a repeated key.
    pub idempotency: Idempotency,
    /// When and how often a row is tried again.
    pub retry: Retry,
    /// Verdicts that differ from the built-in table; the first match wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub classify: Vec<Classification>,
    /// How the receiver is asked what became of a row whose outcome is unknown, before it is sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_query: Option<StatusQuery>,
    /// What is asked before each request whether the row may still be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_dispatch: Option<PreDispatch>,
    /// How much of a destination's load is ours, and when it gets none.
    pub destination: Destination,
    /// Whether rows of one entity go one at a time.
    pub ordering: Ordering,
    /// Which addresses may be connected to.
    pub egress: Egress,
    /// What is read from an answer.
    pub response: Response,
    /// Which attempts are recorded in the table's history.
    pub history: History,
}

/// How long one attempt may take. The lease of the relay must be longer (see `leaseDuration`).
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Timeouts::default")]
#[x_kube(
    validation = Rule::new(concat!(cel_duration!("self.total"), " >= ", cel_duration!("self.connect")))
        .message("timeouts.total bounds the whole attempt: make it at least timeouts.connect"),
    validation = Rule::new(concat!(cel_duration!("self.connect"), " >= duration('10ms')"))
        .message("timeouts.connect must be at least 10ms"),
    validation = Rule::new(concat!(cel_duration!("self.total"), " <= duration('1h')"))
        .message("timeouts.total must be at most 1h: no transaction waits for it, but a lease does")
)]
pub struct Timeouts {
    /// Until a connection stands, TLS included.
    pub connect: Duration,
    /// Over connect, headers and body together.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), total: Duration::from_secs(30) }
    }
}

/// What the receiver does with a repeated key, and how the key reaches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Idempotency {
    /// Whether the receiver does a key's work once, however often it is sent.
    pub receiver: Receiver,
    /// The header that carries the key.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub header: String,
    /// How the header spells the key.
    pub format: KeyFormat,
    /// Longest key that the receiver takes, in bytes. A longer one is dead with reason `invalid`.
    #[schemars(range(min = 1, max = 4096))]
    pub max_key_length: i32,
    /// How long the receiver remembers a key; unset: for ever. A row whose outcome is unknown is not sent again past it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self {
            receiver: Receiver::Enforced,
            header: "Idempotency-Key".to_owned(),
            format: KeyFormat::Raw,
            max_key_length: 255,
            window: None,
        }
    }
}

/// Whether the receiver deduplicates by key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Receiver {
    /// One effect a key: a request whose outcome is unknown is repeated with the same key and bytes.
    #[default]
    Enforced,
    /// No promise: a request whose outcome is unknown is never repeated by itself; the row parks for a person.
    None,
}

/// How the key is spelled in its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KeyFormat {
    /// As it is.
    #[default]
    Raw,
    /// As a string of RFC 9651: in double quotes.
    StructuredString,
}

/// When and how often a row is tried again.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Retry::default")]
#[x_kube(
    validation = Rule::new(concat!(cel_duration!("self.cap"), " >= ", cel_duration!("self.base")))
        .message("retry.cap must be at least retry.base: raise cap or lower base"),
    validation = Rule::new(concat!(cel_duration!("self.base"), " > duration('0s')"))
        .message("retry.base must be above 0s: a repeat without a wait is a hot loop"),
    validation = Rule::new("self.backoff != 'Schedule' || (has(self.schedule) && size(self.schedule) > 0)")
        .message("retry.backoff Schedule needs a retry.schedule with at least one delay"),
    validation = Rule::new("self.backoff == 'Schedule' || !has(self.schedule) || size(self.schedule) == 0")
        .message("retry.schedule is read only with retry.backoff Schedule: set that, or remove the schedule"),
    validation = Rule::new(concat!(cel_duration!("self.maxAge"), " > duration('0s')"))
        .message("retry.maxAge must be above 0s: to send each row once, set maxAttempts to 1")
)]
pub struct Retry {
    /// How the wait grows.
    pub backoff: BackoffKind,
    /// Longest first wait; failure n waits at most `base * 2^(n-1)`.
    pub base: Duration,
    /// Longest wait.
    pub cap: Duration,
    /// The waits of backoff `Schedule`; the last one repeats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub schedule: Vec<Duration>,
    /// Attempts in all. A row that used them up is dead with reason `exhausted`.
    #[schemars(range(min = 1, max = 1000))]
    pub max_attempts: i32,
    /// Age since the first attempt past which a row is dead with reason `exhausted`, waits included.
    pub max_age: Duration,
    /// What a receiver's `Retry-After` does.
    pub retry_after: RetryAfter,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            backoff: BackoffKind::FullJitter,
            base: Duration::from_secs(2),
            cap: Duration::from_secs(3600),
            schedule: Vec::new(),
            max_attempts: 14,
            max_age: Duration::from_secs(24 * 3600),
            retry_after: RetryAfter::default(),
        }
    }
}

/// How the wait between attempts grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackoffKind {
    /// Uniform between 0 and the longest wait.
    #[default]
    FullJitter,
    /// Half the longest wait, plus a uniform half.
    EqualJitter,
    /// The waits of `schedule`.
    Schedule,
}

/// What a receiver's `Retry-After` does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryAfter {
    /// Whether it is read at all.
    pub respect: bool,
    /// Longest stated time that is believed.
    pub cap: Duration,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { respect: true, cap: Duration::from_secs(24 * 3600) }
    }
}

/// A rule that overrides the built-in verdict of an answer. All of its conditions must hold.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("size(self.statuses) > 0 || has(self.body) || has(self.header)")
    .message("a rule of classify needs a condition: statuses, body or header"))]
pub struct Classification {
    /// Statuses: `404`, or a class as `5xx`. Empty: any.
    #[serde(default)]
    #[schemars(length(max = 32), inner(regex(pattern = r"^[1-5]([0-9][0-9]|xx)$"), length(max = 3)))]
    pub statuses: Vec<String>,
    /// A condition on the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyRule>,
    /// A condition on a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderRule>,
    /// What the answer means.
    pub verdict: ClassifiedVerdict,
    /// The reason that is kept with the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z][a-z0-9_]*$"))]
    pub reason: Option<String>,
}

/// What a matching answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClassifiedVerdict {
    /// The effect took place.
    Succeeded,
    /// It did not: try again, counted.
    Retry,
    /// It is under way: come back, not counted.
    Wait,
    /// Nobody knows.
    Uncertain,
    /// It never will.
    Dead,
}

/// How much of a destination's load is ours, and when it gets none. A destination is an endpoint's origin; its state is in
/// the database, so that all pods act as one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Destination {
    /// Requests in flight to one destination, over all pods; unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_in_flight: Option<i32>,
    /// Requests a second to one destination, over all pods; unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub rate_per_second: Option<i32>,
    /// When a destination gets no rows.
    pub hold: Hold,
}

/// When a destination gets no rows, and for how long. 429, and 503 with `Retry-After`, hold it at once.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Hold::default")]
#[x_kube(
    validation = Rule::new(concat!(cel_duration!("self.cap"), " >= ", cel_duration!("self.base")))
        .message("destination.hold.cap must be at least destination.hold.base: raise cap or lower base"),
    validation = Rule::new(concat!(cel_duration!("self.base"), " > duration('0s')"))
        .message("destination.hold.base must be above 0s")
)]
pub struct Hold {
    /// Failures in a row that hold the destination: 5xx, 401, 403, timeouts, broken and refused connections.
    #[schemars(range(min = 1, max = 10_000))]
    pub after_failures: i32,
    /// The first hold; each further one in a row is twice as long.
    pub base: Duration,
    /// The longest hold that the receiver did not state.
    pub cap: Duration,
}

impl Default for Hold {
    fn default() -> Self {
        Self { after_failures: 5, base: Duration::from_secs(5), cap: Duration::from_secs(600) }
    }
}

/// Which addresses may be connected to. `denyCidrs` wins over `allowCidrs`, which wins over the built-in refusals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Egress {
    /// Whether private ranges may be reached; receivers inside the cluster need it.
    pub allow_private: bool,
    /// Ranges that may be reached although a built-in rule refuses them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 49), regex(pattern = r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$")))]
    pub allow_cidrs: Vec<String>,
    /// Ranges that are never reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 49), regex(pattern = r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$")))]
    pub deny_cidrs: Vec<String>,
}

impl Default for Egress {
    fn default() -> Self {
        Self { allow_private: true, allow_cidrs: Vec::new(), deny_cidrs: Vec::new() }
    }
}

/// Which attempts are recorded in the table's history. What people do is always recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum History {
    /// None.
    None,
    /// Those that did not succeed.
    #[default]
    Failures,
    /// All.
    All,
}

/// What is read from an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Response {
    /// Bytes of the body that are read; the rest is dropped.
    #[schemars(range(min = 0, max = 10_485_760))]
    pub max_body_bytes: i64,
    /// Where the receiver's own name of the effect is.
    pub downstream_id: DownstreamId,
}

impl Default for Response {
    fn default() -> Self {
        Self { max_body_bytes: 65_536, downstream_id: DownstreamId::default() }
    }
}

/// Where the receiver's own name of the effect is: one of its fields.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.pointer) != has(self.header)")
    .message("set one of downstreamId.pointer and downstreamId.header"))]
pub struct DownstreamId {
    /// A JSON pointer into the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), regex(pattern = r"^(/.*)?$"))]
    pub pointer: Option<String>,
    /// A response header, such as `Location`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub header: Option<String>,
}

impl Default for DownstreamId {
    fn default() -> Self {
        Self { pointer: Some("/id".to_owned()), header: None }
    }
}
