//! Clients of the API server with the limits that a controller needs.
//!
//! kube's default client repeats a call on 429, 503 and 504 for up to 15 times and 1000 s a pause, and waits for an answer
//! for ever: one reconcile could hang for hours. Here a failed call fails at once, its reconcile is repeated with a
//! backoff, and a silent server is noticed. Watches are silent by nature, so they have a client without a read timeout;
//! `kube::runtime` ends a watch by itself when even the server's own end of it stays away.

use std::time::Duration;

use kube::{Client, Config};

/// A server that has taken a plain call and stays silent for this long counts as gone.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Until a connection to the API server stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The two clients.
#[derive(Clone)]
pub struct Clients {
    /// For calls that are answered at once.
    pub calls: Client,
    /// For watches.
    pub watches: Client,
}

impl Clients {
    /// Makes both clients of one configuration.
    pub fn new(mut config: Config) -> kube::Result<Self> {
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let watches = Client::try_from(config.clone())?;
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        Ok(Self { calls: Client::try_from(config)?, watches })
    }
}
