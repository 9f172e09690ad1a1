//! Name resolution with the egress rules applied to its result, so that what is checked is what is connected to.

use std::{
    error::Error,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::domain::egress::{Blocked, EgressRules};

/// Where addresses of names come from.
pub trait Lookup: Send + Sync {
    /// Every address of a name.
    fn lookup(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The system's own resolver.
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Resolves names and drops addresses that the rules refuse.
pub struct EgressResolver {
    rules: Arc<EgressRules>,
    lookup: Arc<dyn Lookup>,
}

impl EgressResolver {
    /// A resolver under these rules.
    pub fn new(rules: EgressRules, lookup: Arc<dyn Lookup>) -> Self {
        Self { rules: Arc::new(rules), lookup }
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
        let found = self.lookup.lookup(name.as_str());
        Box::pin(async move {
            let found = found.await.map_err(|error| ResolveFailed(error.to_string()))?;
            let mut refused = None;
            let mut allowed = Vec::new();
            for address in found {
                match rules.check(address) {
                    // The port is the URL's own.
                    Ok(()) => allowed.push(SocketAddr::new(address, 0)),
                    Err(blocked) => refused = Some(blocked),
                }
            }
            match (allowed.is_empty(), refused) {
                (false, _) => Ok(Box::new(allowed.into_iter()) as Addrs),
                (true, Some(blocked)) => Err(EveryAddressBlocked(blocked).into()),
                (true, None) => Err(ResolveFailed("the name has no address".to_owned()).into()),
            }
        })
    }
}
