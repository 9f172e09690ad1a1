//! A row's state and what the relay knows of it when it holds it.

use std::{borrow::Cow, fmt, time::Duration};

/// The states of a row, as the `status` column spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Waits for its time.
    Pending,
    /// A pod holds it.
    InFlight,
    /// The effect took place.
    Succeeded,
    /// The effect may have taken place.
    Uncertain,
    /// The effect did not take place and will not by itself.
    Dead,
    /// Taken back before anything was executed.
    Cancelled,
    /// Replaced by a later version before anything was executed.
    Superseded,
}

impl Status {
    /// All states, in the order in which people read them.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::InFlight,
        Self::Succeeded,
        Self::Uncertain,
        Self::Dead,
        Self::Cancelled,
        Self::Superseded,
    ];

    /// The column's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InFlight => "in_flight",
            Self::Succeeded => "succeeded",
            Self::Uncertain => "uncertain",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
        }
    }

    /// Reads the column's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Why a row is where it is: a short name, bounded in length and number, fit for a metric's label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reason(Cow<'static, str>);

impl Reason {
    /// Refused by the receiver.
    pub const REJECTED: Self = Self(Cow::Borrowed("rejected"));
    /// The receiver does not know who we are, or does not let us.
    pub const UNAUTHORIZED: Self = Self(Cow::Borrowed("unauthorized"));
    /// The receiver pointed elsewhere; never followed.
    pub const REDIRECTED: Self = Self(Cow::Borrowed("redirected"));
    /// 409 to the first attempt.
    pub const CONFLICT: Self = Self(Cow::Borrowed("conflict"));
    /// No request can be built of the row.
    pub const INVALID: Self = Self(Cow::Borrowed("invalid"));
    /// The egress rules refuse the address.
    pub const BLOCKED: Self = Self(Cow::Borrowed("blocked"));
    /// The pre-dispatch check said no.
    pub const REVOKED: Self = Self(Cow::Borrowed("revoked"));
    /// The pre-dispatch check said neither yes nor no.
    pub const CHECK_FAILED: Self = Self(Cow::Borrowed("check_failed"));
    /// The receiver was asked and does not know the key, but our last request may still be on its way.
    pub const SETTLING: Self = Self(Cow::Borrowed("settling"));
    /// The receiver was asked what became of the row and gave no clear answer.
    pub const QUERY_UNCLEAR: Self = Self(Cow::Borrowed("query_unclear"));
    /// Past `expires_at`.
    pub const EXPIRED: Self = Self(Cow::Borrowed("expired"));
    /// Attempts or age used up.
    pub const EXHAUSTED: Self = Self(Cow::Borrowed("exhausted"));
    /// The receiver has forgotten the key by now.
    pub const KEY_WINDOW: Self = Self(Cow::Borrowed("key_window"));
    /// An earlier attempt may have been executed, and by now the policy says that the receiver does not deduplicate.
    pub const IN_DOUBT: Self = Self(Cow::Borrowed("in_doubt"));
    /// A worker's lease ran out while it held the row.
    pub const LEASE_EXPIRED: Self = Self(Cow::Borrowed("lease_expired"));
    /// No answer in time, after bytes may have left.
    pub const TIMEOUT: Self = Self(Cow::Borrowed("timeout"));
    /// The connection broke after bytes may have left.
    pub const RESET: Self = Self(Cow::Borrowed("reset"));
    /// The answer is no HTTP.
    pub const MALFORMED: Self = Self(Cow::Borrowed("malformed"));
    /// The name was not resolved.
    pub const DNS: Self = Self(Cow::Borrowed("dns"));
    /// No connection stood.
    pub const CONNECT: Self = Self(Cow::Borrowed("connect"));
    /// No connection stood in time.
    pub const CONNECT_TIMEOUT: Self = Self(Cow::Borrowed("connect_timeout"));
    /// The TLS handshake failed.
    pub const TLS: Self = Self(Cow::Borrowed("tls"));
    /// The proxy was not reached, or did not let the request through.
    pub const PROXY: Self = Self(Cow::Borrowed("proxy"));
    /// No token was to be had for the request.
    pub const TOKEN: Self = Self(Cow::Borrowed("token"));
    /// The receiver turned an HTTP/2 stream away before it read the request.
    pub const REFUSED_STREAM: Self = Self(Cow::Borrowed("refused_stream"));
    /// 429.
    pub const THROTTLED: Self = Self(Cow::Borrowed("throttled"));
    /// 409 with a time to come back: the same key is being processed.
    pub const IN_PROGRESS: Self = Self(Cow::Borrowed("in_progress"));
    /// 5xx.
    pub const SERVER_ERROR: Self = Self(Cow::Borrowed("server_error"));
    /// 408 or 425.
    pub const NOT_READY: Self = Self(Cow::Borrowed("not_ready"));

    /// Every reason that ends a row without a policy's own word: the dead letters that metrics show from the start.
    pub const DEAD: [Self; 9] = [
        Self::REJECTED,
        Self::UNAUTHORIZED,
        Self::REDIRECTED,
        Self::CONFLICT,
        Self::INVALID,
        Self::BLOCKED,
        Self::EXPIRED,
        Self::REVOKED,
        Self::EXHAUSTED,
    ];

    /// A policy's own word; the policy bounds its length and number.
    pub fn custom(name: String) -> Self {
        Self(Cow::Owned(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the claim tells of a row, as far as decisions need it. All spans are by the database's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFacts {
    /// Attempts, this one included.
    pub attempts: u32,
    /// Attempts whose outcome nobody knows, this one not included, an expired lease that this claim found included.
    pub unknown_attempts: u32,
    /// Waits so far: times the row came back without an attempt being used.
    pub waits: u32,
    /// Since the last request of this row may have left; long, if none has.
    pub since_last_send: Duration,
    /// This claim found the row held by a worker whose lease had run out.
    pub lease_expired: bool,
    /// This claim found the row uncertain: an earlier attempt may have been executed, and no person has spoken since.
    pub in_doubt: bool,
    /// An earlier attempt was answered 5xx, so the receiver may have stored that answer under the key.
    pub answered_5xx: bool,
    /// This attempt is the first whose bytes may leave.
    pub first_dispatch: bool,
    /// Since the first attempt since insert or replay.
    pub retry_age: Duration,
    /// Since the first attempt whose bytes may have left.
    pub dispatch_age: Duration,
    /// The authority to perform the effect has ended.
    pub expired: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_read_back_as_they_are_spelled() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
        }
        assert_eq!(Status::parse("done"), None);
    }
}
