//! What a policy asks: of an answer, of a receiver before a resend, of the application before each request.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, duration::cel_duration};

/// A condition on an answer. All of its parts must hold.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("size(self.statuses) > 0 || has(self.body) || has(self.header)")
    .message("a rule of statusQuery needs a condition: statuses, body or header"))]
pub struct AnswerRule {
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
}

/// How the receiver is asked what became of a key. The query carries the headers and credentials of the request, uses no
/// attempt, and is repeated with the waits of `retry` until `retry.maxAge`; an answer that fits no rule is asked again.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.url.contains('{key}') || self.url.contains('{keyHash}')")
        .message("statusQuery.url must hold {key} or {keyHash}: without it the receiver cannot tell which row is meant"),
    validation = Rule::new("self.url.matches('^[Hh][Tt][Tt][Pp][Ss]?://.')")
        .message("statusQuery.url must begin with http:// or https://"),
    validation = Rule::new(concat!(cel_duration!("self.timeout"), " >= duration('10ms')"))
        .message("statusQuery.timeout must be at least 10ms"),
    validation = Rule::new(concat!(cel_duration!("self.timeout"), " <= duration('1h')"))
        .message("statusQuery.timeout must be at most 1h: a lease waits for it")
)]
pub struct StatusQuery {
    /// The address, with `{key}` or `{keyHash}` where the key goes.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// The HTTP method.
    #[serde(default)]
    pub method: QueryMethod,
    /// Answers that say that the effect took place.
    #[schemars(length(min = 1, max = 16))]
    pub done: Vec<AnswerRule>,
    /// Answers that say that the receiver does not know the key: it is sent again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub unknown: Vec<AnswerRule>,
    /// Answers that say that the request is still worked on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub pending: Vec<AnswerRule>,
    /// How long after the last request an `unknown` is believed: until then that request may still be on its way.
    #[serde(default = "default_settle_delay")]
    pub settle_delay: Duration,
    /// How long one query may take, from connecting to the end of its body. The relay's lease must leave room for it.
    #[serde(default = "default_query_timeout")]
    pub timeout: Duration,
}

fn default_settle_delay() -> Duration {
    Duration::from_secs(60)
}

fn default_query_timeout() -> Duration {
    Duration::from_secs(10)
}

/// The methods of a status query: those that change nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueryMethod {
    /// `GET`
    #[default]
    #[serde(rename = "GET")]
    Get,
    /// `HEAD`
    #[serde(rename = "HEAD")]
    Head,
}

/// What is asked before each request: one of its fields. A no ends the row as dead with reason `revoked`; anything but a
/// clear yes or no is tried again and sends nothing.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.sqlFunction) != has(self.http)")
    .message("set one of preDispatch.sqlFunction and preDispatch.http"))]
pub struct PreDispatch {
    /// A function of the outbox's own database: `(ids bigint[]) returns table (id bigint, allowed boolean, reason text)`,
    /// called with the ids of many rows at once under a statement timeout of 5 s. Names fold to lower case as in SQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 127),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$")
    )]
    pub sql_function: Option<String>,
    /// A service that is asked by `POST` with `id`, `tenant`, `operation`, `entity` and `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<PreDispatchHttp>,
}

/// A service that says whether a row may be sent: 200 with `{"allow": true}` or `{"allow": false, "reason": "..."}`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.url.matches('^[Hh][Tt][Tt][Pp][Ss]?://.')")
        .message("preDispatch.http.url must begin with http:// or https://"),
    validation = Rule::new(concat!(cel_duration!("self.timeout"), " >= duration('10ms')"))
        .message("preDispatch.http.timeout must be at least 10ms"),
    validation = Rule::new(concat!(cel_duration!("self.timeout"), " <= duration('1m')"))
        .message("preDispatch.http.timeout must be at most 1m: every request waits for it")
)]
pub struct PreDispatchHttp {
    /// The address.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// How long one answer may take.
    #[serde(default = "default_check_timeout")]
    pub timeout: Duration,
}

fn default_check_timeout() -> Duration {
    Duration::from_secs(5)
}

/// A condition on a JSON body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BodyRule {
    /// A JSON pointer (RFC 6901).
    #[schemars(length(max = 256), regex(pattern = r"^(/.*)?$"))]
    pub pointer: String,
    /// Whether a value must be there, `null` included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// The text that the value must be: a string, or a number or literal as it is spelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub value: Option<String>,
}

/// A condition on a header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderRule {
    /// Name of the header.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: String,
    /// The value it must have; unset: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub value: Option<String>,
}
