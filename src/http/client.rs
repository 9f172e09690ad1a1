//! The client of one policy.

use std::{sync::Arc, time::Duration};

use super::resolver::EgressResolver;
use crate::domain::settings::Policy;

/// Idle connections are kept this long, below the shortest idle timeout in common use (60 s), so that the receiver seldom
/// closes one just as it is used again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// Builds the client. Fails only if the platform's certificates cannot be read.
pub fn build(policy: &Policy) -> Result<reqwest::Client, reqwest::Error> {
    // The first one wins; a second call of one process changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("outbox-operator/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .connect_timeout(policy.connect_timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .dns_resolver(Arc::new(EgressResolver::new(policy.egress.clone())));
    // A receiver that does not deduplicate gets a new connection each time: on a reused one a close by the receiver looks
    // just like a request that was read.
    let builder = if policy.receiver_enforces_keys { builder } else { builder.pool_max_idle_per_host(0) };
    builder.build()
}
