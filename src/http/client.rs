//! The client of one policy.

use std::{sync::Arc, time::Duration};

use super::{
    credentials::TlsCredentials,
    resolver::{EgressResolver, Lookup},
};
use crate::domain::settings::Policy;

/// Idle connections are kept this long, below the shortest idle timeout in common use (60 s), so that the receiver seldom
/// closes one just as it is used again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// Builds the client. Fails only if the system's certificates cannot be read.
pub fn build(
    policy: &Policy,
    tls: &TlsCredentials,
    lookup: Arc<dyn Lookup>,
) -> Result<reqwest::Client, reqwest::Error> {
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
        .dns_resolver(Arc::new(EgressResolver::new(policy.egress.clone(), lookup)));
    // A receiver that does not deduplicate gets a new connection each time: on a reused one a close by the receiver looks
    // just like a request that was read.
    let builder = if policy.receiver_enforces_keys { builder } else { builder.pool_max_idle_per_host(0) };
    // A private authority is named so that nobody else is believed: it takes the place of the system's.
    let builder = match &tls.authorities {
        Some(authorities) => builder.tls_certs_only(authorities.iter().cloned()),
        None => builder,
    };
    let builder = match &tls.identity {
        Some(identity) => builder.identity(identity.clone()),
        None => builder,
    };
    let builder = match &policy.request.proxy {
        Some(proxy) => builder.proxy(reqwest::Proxy::all(proxy.url().as_str())?),
        None => builder,
    };
    builder.build()
}
