//! Which intents the story has, and how each has to end. Pure.

use std::{fmt, net::SocketAddr};

use crate::{
    domain::key::{KeyError, derive_key},
    sandbox::script_url,
};

/// The two tenants of the story.
pub(super) const TENANTS: [&str; 2] = ["5d0d7a52-6f0c-4d0e-9a53-2f2f64a8b0a1", "c1f7c6de-1c3b-4b7e-8b39-90d0f7b7e3b2"];
/// Fewest rows that leave one for each kind and enough to keep two relays busy.
pub const MIN_ROWS: usize = 100;
/// Most rows: the records of all their requests stay within the sandbox's memory.
pub const MAX_ROWS: usize = 10_000;
/// The rows that the shares of [`KINDS`] add up to, with the plain ones.
const SHARES_OF: usize = 300;

/// Most rows of a kind that holds a relay's slot for a second or two: more of them would only take longer.
const MAX_SLOW_ROWS: usize = 40;

/// When a row is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wave {
    /// At first, with both relays running. All that dies is here, so that the kill cannot leave a doubt about it.
    Quiet,
    /// Before the kill: these keep requests on the wire.
    Kill,
    /// After the kill, while one relay is down: the application goes on.
    Aftermath,
}

/// How a row has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With one effect.
    Succeeded,
    /// With no effect, and this reason.
    Dead(&'static str),
}

/// Where a kind's rows are sent.
#[derive(Clone, Copy, Debug)]
enum Endpoint {
    /// To a script of the receiver.
    Script(&'static str),
    /// To where no receiver is.
    Url(&'static str),
}

/// Rows that meet the same.
#[derive(Debug)]
pub(super) struct Kind {
    /// What the receiver does, or what else the rows meet.
    pub label: &'static str,
    /// The index of the operation and of its receiver.
    operation: usize,
    endpoint: Endpoint,
    /// How the rows end.
    pub end: End,
    wave: Wave,
    share: usize,
}

impl Kind {
    fn is_slow(&self) -> bool {
        matches!(self.endpoint, Endpoint::Script(script) if script.starts_with("slow") || script == "lost")
    }
}

/// The operations. Each has a receiver of its own, which to a relay is a destination of its own.
pub(super) const OPERATIONS: [&str; 3] = ["create_invoice", "create_payment", "open_ticket"];
const INVOICE: usize = 0;
const PAYMENT: usize = 1;
const TICKET: usize = 2;

const fn kind(label: &'static str, operation: usize, endpoint: Endpoint, end: End, wave: Wave, share: usize) -> Kind {
    Kind { label, operation, endpoint, end, wave, share }
}

/// What the rows meet, in the order of the report. The first takes the rows that are left over.
#[rustfmt::skip]
pub(super) static KINDS: &[Kind] = {
    use {End::{Dead, Succeeded}, Endpoint::{Script, Url}, Wave::{Aftermath, Kill, Quiet}};
    &[
        kind("201 at once", TICKET, Script("201"), Succeeded, Quiet, 60),
        kind("500 twice, then 201", INVOICE, Script("500x2,201"), Succeeded, Quiet, 24),
        kind("408, then 201", INVOICE, Script("408,201"), Succeeded, Quiet, 6),
        kind("409 with Retry-After: 1, then 201", PAYMENT, Script("409:1,201"), Succeeded, Quiet, 12),
        kind("429 with Retry-After: 1, then 201", TICKET, Script("429:1,201"), Succeeded, Quiet, 8),
        kind("connection reset, then 201", INVOICE, Script("reset,201"), Succeeded, Quiet, 8),
        kind("effect made, 500 answered", INVOICE, Script("done-500"), Succeeded, Quiet, 6),
        kind("effect made, answer lost by a reset", PAYMENT, Script("done-reset"), Succeeded, Quiet, 6),
        kind("400", INVOICE, Script("400"), Dead("rejected"), Quiet, 8),
        kind("401", TICKET, Script("401"), Dead("unauthorized"), Quiet, 4),
        kind("301 to a login page", PAYMENT, Script("301:https%3A%2F%2Flogin.example%2F"), Dead("redirected"), Quiet, 2),
        kind("500 for ever", INVOICE, Script("500"), Dead("exhausted"), Quiet, 4),
        kind("nothing: the URL is ftp://", PAYMENT, Url("ftp://files.example/payments"), Dead("invalid"), Quiet, 3),
        kind("nothing: the URL is no URL", INVOICE, Url("https://exa mple.example/"), Dead("invalid"), Quiet, 1),
        kind("nothing: the address is the cloud's own", TICKET, Url("http://169.254.169.254/latest/meta-data"), Dead("blocked"), Quiet, 2),
        kind("201 at once, around the kill", INVOICE, Script("201"), Succeeded, Kill, 50),
        kind("201 after 1.2 seconds", PAYMENT, Script("slow:1200"), Succeeded, Kill, 30),
        kind("effect made, never answered", PAYMENT, Script("lost"), Succeeded, Kill, 10),
        kind("201 at once, one relay down", TICKET, Script("201"), Succeeded, Aftermath, 40),
        kind("500 twice, then 201, one relay down", INVOICE, Script("500x2,201"), Succeeded, Aftermath, 16),
    ]
};

/// An intent of the application: what it inserts.
#[derive(Clone, Debug)]
pub(super) struct Intent {
    pub kind: &'static Kind,
    pub tenant: &'static str,
    pub operation: &'static str,
    pub entity: String,
    pub key: String,
    pub endpoint: String,
    pub payload: String,
}

impl Intent {
    /// When it is inserted.
    pub fn wave(&self) -> Wave {
        self.kind.wave
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::Dead(reason) => write!(f, "dead: {reason}"),
        }
    }
}

/// The intents of a story of so many rows; `receivers` in the order of [`OPERATIONS`].
///
/// # Errors
///
/// [`KeyError`] if the library refuses its own demo's arguments.
pub(super) fn intents(rows: usize, receivers: [SocketAddr; 3]) -> Result<Vec<Intent>, KeyError> {
    let shares: usize = KINDS.iter().map(|kind| kind.share).sum();
    debug_assert_eq!(shares, SHARES_OF, "the shares of the kinds");
    let most = |kind: &Kind| if kind.is_slow() { MAX_SLOW_ROWS } else { rows };
    let mut counts: Vec<usize> =
        KINDS.iter().map(|kind| (kind.share * rows / SHARES_OF).clamp(1, most(kind))).collect();
    let given: usize = counts.iter().sum();
    counts[0] = (counts[0] + rows).saturating_sub(given).max(1);
    let mut intents = Vec::with_capacity(rows);
    for (kind, count) in KINDS.iter().zip(counts) {
        for _ in 0..count {
            intents.push(intent(intents.len(), kind, receivers)?);
        }
    }
    Ok(mixed(intents))
}

fn intent(number: usize, kind: &'static Kind, receivers: [SocketAddr; 3]) -> Result<Intent, KeyError> {
    let tenant = TENANTS[number % TENANTS.len()];
    let operation = OPERATIONS[kind.operation];
    let entity = format!("{}-{}", ["inv", "pay", "tick"][kind.operation], 1001 + number);
    let (units, cents) = (19 + number % 480, number % 100);
    // An integer beyond 64 bits and a trailing zero: both have to arrive digit for digit.
    let payload = match kind.operation {
        INVOICE => format!(
            r#"{{"invoice": "{entity}", "amount": {units}.{cents:02}, "currency": "EUR", "ledger": 12345678901234567890{number}}}"#
        ),
        PAYMENT => format!(r#"{{"payment": "{entity}", "amount": "{units}.{cents:02}", "to": "DE0012{number:016}"}}"#),
        _ => {
            format!(
                r#"{{"ticket": "{entity}", "title": "Größe {number} is missing", "urgent": {}}}"#,
                number.is_multiple_of(7)
            )
        }
    };
    let key = derive_key(tenant, operation, &entity, 1, &payload)?;
    let endpoint = match kind.endpoint {
        Endpoint::Script(script) => format!("{}/{entity}", script_url(receivers[kind.operation], script)),
        Endpoint::Url(url) => url.to_owned(),
    };
    Ok(Intent { kind, tenant, operation, entity, key, endpoint, payload })
}

/// Spreads the kinds over the order of insertion, the same way every time.
fn mixed(intents: Vec<Intent>) -> Vec<Intent> {
    let mut placed: Vec<(usize, Intent)> = intents.into_iter().enumerate().collect();
    // Multiplying by an odd number reorders the numbers below a power of two and repeats none.
    placed.sort_by_key(|(number, _)| number.wrapping_mul(0x9E37_79B1) % (1 << 16));
    placed.into_iter().map(|(_, intent)| intent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn plan(rows: usize) -> Vec<Intent> {
        intents(rows, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"].map(|addr| addr.parse().unwrap())).unwrap()
    }

    #[test]
    fn every_number_of_rows_has_all_kinds_and_no_key_twice() {
        for rows in [MIN_ROWS, 101, 299, 300, 1234, MAX_ROWS] {
            let intents = plan(rows);
            assert_eq!(intents.len(), rows);
            let labels: HashSet<_> = intents.iter().map(|intent| intent.kind.label).collect();
            assert_eq!(labels.len(), KINDS.len());
            let keys: HashSet<_> = intents.iter().map(|intent| intent.key.clone()).collect();
            assert_eq!(keys.len(), rows);
        }
    }

    #[test]
    fn payloads_are_json_and_scripts_are_read() {
        for intent in plan(MIN_ROWS) {
            serde_json::from_str::<serde_json::Value>(&intent.payload).unwrap();
            if let Endpoint::Script(script) = intent.kind.endpoint {
                script.parse::<crate::sandbox::Script>().unwrap();
            }
        }
    }

    #[test]
    fn what_dies_is_inserted_before_the_kill() {
        assert!(KINDS.iter().all(|kind| kind.end == End::Succeeded || kind.wave == Wave::Quiet));
    }
}
