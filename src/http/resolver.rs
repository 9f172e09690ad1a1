//! Name resolution with the egress rules applied to its result, so that what is checked is what is connected to.

use std::{error::Error, fmt, net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::domain::egress::{Blocked, EgressRules};

/// Resolves names by the system and drops addresses that the rules refuse.
pub struct EgressResolver {
    rules: Arc<EgressRules>,
}

impl EgressResolver {
    /// A resolver under these rules.
    pub fn new(rules: EgressRules) -> Self {
        Self { rules: Arc::new(rules) }
    }
}

/// The name did not resolve.
#[derive(Debug)]
pub struct ResolveFailed(pub String);

impl fmt::Display for ResolveFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resolve the host's name: {}", self.0)
    }
}

impl Error for ResolveFailed {}

/// Every address of the name is refused.
#[derive(Debug)]
pub struct EveryAddressBlocked(pub Blocked);

impl fmt::Display for EveryAddressBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Error for EveryAddressBlocked {}

impl Resolve for EgressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            let found: Vec<SocketAddr> = found.map_err(|error| ResolveFailed(error.to_string()))?.collect();
            let mut refused = None;
            let allowed: Vec<SocketAddr> = found
                .into_iter()
                .filter(|address| match rules.check(address.ip()) {
                    Ok(()) => true,
                    Err(blocked) => {
                        refused = Some(blocked);
                        false
                    }
                })
                .collect();
            match (allowed.is_empty(), refused) {
                (false, _) => Ok(Box::new(allowed.into_iter()) as Addrs),
                (true, Some(blocked)) => Err(EveryAddressBlocked(blocked).into()),
                (true, None) => Err(ResolveFailed("the name has no address".to_owned()).into()),
            }
        })
    }
}
