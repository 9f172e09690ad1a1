//! What the sandbox remembers, as it shows it.

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A request, from its arrival to its end.
#[derive(Clone, Debug, Serialize)]
pub struct RequestRecord {
    /// Counted from 1, in the order of arrival.
    pub number: u64,
    /// The connection it came on, counted from 1 in the order of acceptance.
    pub connection: u64,
    /// When its head had arrived.
    pub at: Timestamp,
    /// The method.
    pub method: String,
    /// Path and query as they were sent.
    pub path: String,
    /// The idempotency key; bytes outside ASCII are escaped.
    pub key: Option<String>,
    /// All headers in their order, names in lower case; bytes outside ASCII are escaped.
    pub headers: Vec<(String, String)>,
    /// The body, if it is UTF-8 of at most 1 MiB.
    pub body: Option<String>,
    /// Bytes of the body that arrived.
    pub body_bytes: u64,
    /// SHA-256 of the body in hex; nothing if the body did not arrive whole.
    pub body_sha256: Option<String>,
    /// Whether the key was seen before.
    pub repeat: bool,
    /// Whether an earlier request of the key was still worked on.
    pub overlap: bool,
    /// What was answered.
    pub answered: Answered,
    /// The effect that this request made.
    pub effect: Option<u64>,
    /// Whether the answer was a stored one.
    pub replayed: bool,
    /// When it was answered, broken off or abandoned.
    pub ended_at: Option<Timestamp>,
}

impl RequestRecord {
    /// The first value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Bytes of text that this record keeps in memory.
    pub(super) fn kept_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 48).sum();
        headers + self.path.len() + self.key.as_ref().map_or(0, String::len) + self.body.as_ref().map_or(0, String::len)
    }
}

/// How a request ended. In JSON: the status as text, or one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answered {
    /// It has not: it is on the wire, or being worked on.
    Open,
    /// With this status.
    Status(u16),
    /// The connection was reset on purpose.
    Reset,
    /// The connection was closed on purpose, without an answer.
    Closed,
    /// With bytes that are no HTTP.
    Garbage,
    /// With a 201 whose body broke off.
    Cut,
    /// The client went before the answer.
    ClientLeft,
    /// The request itself broke off.
    RequestCut,
}

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Status(status) => write!(f, "{status}"),
            Self::Reset => f.write_str("reset"),
            Self::Closed => f.write_str("closed"),
            Self::Garbage => f.write_str("garbage"),
            Self::Cut => f.write_str("cut"),
            Self::ClientLeft => f.write_str("client_left"),
            Self::RequestCut => f.write_str("request_cut"),
        }
    }
}

impl Serialize for Answered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Something that the receiver did.
#[derive(Clone, Debug, Serialize)]
pub struct Effect {
    /// Counted from 1; its name in answers is `eff-<number>`.
    pub number: u64,
    /// The name in answers.
    pub id: String,
    /// The key it was done for.
    pub key: Option<String>,
    /// The request that made it.
    pub request: u64,
    /// When it was done.
    pub at: Timestamp,
    /// SHA-256 of the body in hex.
    pub body_sha256: String,
}

/// What was seen of one key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyRecord {
    /// The key.
    pub key: String,
    /// Requests that carried it.
    pub requests: u64,
    /// Effects made for it.
    pub effects: u64,
    /// Requests whose body was another than the first one.
    pub changed_bodies: u64,
    /// Requests that came while an earlier one was worked on.
    pub overlaps: u64,
    /// SHA-256 of the first body in hex.
    pub body_sha256: Option<String>,
}

/// Everything in numbers. They count what the bounded records have dropped, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Requests whose head arrived.
    pub requests: u64,
    /// Requests that are on the wire or being worked on.
    pub open: u64,
    /// Effects made.
    pub effects: u64,
    /// Keys seen.
    pub keys: u64,
    /// Effects beyond the first one of their key.
    pub duplicate_effects: u64,
    /// Requests beyond the first one of their key.
    pub repeats: u64,
    /// Stored answers given again.
    pub replays: u64,
    /// Requests whose body was another than their key's first one.
    pub changed_bodies: u64,
    /// Requests that came while an earlier one of their key was worked on.
    pub overlaps: u64,
    /// Requests without a key.
    pub keyless: u64,
    /// Request records dropped, the oldest first, to bound memory.
    pub dropped_requests: u64,
    /// Effect records dropped, the oldest first, to bound memory.
    pub dropped_effects: u64,
}
