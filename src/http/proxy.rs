//! What the egress rules can mean behind a proxy, which resolves names and connects by itself.
//!
//! The proxy's own address is checked as any other that is connected to. Of an endpoint its literal address is checked, and
//! its name as far as this side can resolve it: which of several addresses the proxy takes is its own choice, so all of them
//! must be in order. The last word is the proxy's, whose rules should say the same.

use std::sync::Arc;

use super::{request, resolver::Lookup};
use crate::domain::{
    destination::{Destination, Endpoint},
    judge::Observation,
    row::Reason,
    settings::Policy,
};

/// The proxy of a policy.
pub(super) struct ProxyCheck {
    proxy: Endpoint,
    lookup: Arc<dyn Lookup>,
}

impl ProxyCheck {
    /// A proxy, and how this side resolves names.
    pub fn new(proxy: Endpoint, lookup: Arc<dyn Lookup>) -> Self {
        Self { proxy, lookup }
    }

    /// Whether a request may be given to the proxy for this destination.
    pub async fn admits(&self, policy: &Policy, destination: &Destination) -> Result<(), Observation> {
        request::check_address(policy, self.proxy.destination()).map_err(of_proxy)?;
        if destination.address().is_some() {
            return Ok(());
        }
        // A name that only the proxy can resolve is the proxy's to judge.
        let addresses = self.lookup.lookup(destination.host()).await.unwrap_or_default();
        for address in addresses {
            policy
                .egress
                .check(address)
                .map_err(|blocked| Observation::NotBuilt { reason: Reason::BLOCKED, detail: blocked.to_string() })?;
        }
        Ok(())
    }
}

/// What was seen before the proxy had let anything through: it is no word of the row, nor of the receiver.
pub(super) fn of_proxy(seen: Observation) -> Observation {
    match seen {
        Observation::NotBuilt { reason, detail } if reason == Reason::BLOCKED => not_passed(&detail),
        Observation::NotExecuted { reason, detail } if reason == Reason::DNS || reason == Reason::CONNECT => {
            not_passed(&detail)
        }
        other => other,
    }
}

/// The proxy does not let us through.
pub(super) fn asks_for_credentials() -> Observation {
    not_passed("it answered 407 Proxy Authentication Required")
}

fn not_passed(detail: &str) -> Observation {
    Observation::NotExecuted { reason: Reason::PROXY, detail: format!("proxy: {detail}") }
}
