//! A receiver that deduplicates by key, records what it sees, and misbehaves on request.
//!
//! It is the other end in `outbox demo`, in the tests of the relay and, as `outbox sandbox`, in clusters. It speaks
//! HTTP/1.1 over plain TCP and knows nothing of the relay: no domain type, no database.
//!
//! ```text
#![doc = include_str!("grammar.txt")]
//! ```

mod answer;
mod ask;
mod connection;
mod entry;
mod ledger;
mod perform;
mod questions;
mod record;
mod script;
mod state;
mod step;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use ledger::{Ledger, NotSeen};
pub use record::{Answered, Counts, Effect, KeyRecord, RequestRecord};
pub use step::{Answer, Breakage, Content, Script, ScriptError, Step};

/// What can be asked of a sandbox, for people: the text of the command's help.
pub const GRAMMAR: &str = include_str!("grammar.txt");

/// How long the listener rests when the process has no file descriptor left for one more connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running receiver. It stops when it is dropped.
#[derive(Debug)]
pub struct Sandbox {
    addresses: Vec<SocketAddr>,
    shared: connection::Shared,
}

/// Why a sandbox does not listen.
#[derive(Debug, thiserror::Error)]
#[error("listen on {addr}: {source}")]
pub struct ListenError {
    addr: SocketAddr,
    source: io::Error,
}

impl Sandbox {
    /// Listens on an address; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// [`ListenError`] if the address is taken or not ours.
    pub async fn start(addr: SocketAddr) -> Result<Self, ListenError> {
        let shared =
            connection::Shared { ledger: Ledger::default(), tasks: TaskTracker::new(), stop: CancellationToken::new() };
        let mut sandbox = Self { addresses: Vec::new(), shared };
        sandbox.listen(addr).await?;
        Ok(sandbox)
    }

    /// Listens on a free port of the loopback interface.
    ///
    /// # Errors
    ///
    /// [`ListenError`] if there is none.
    pub async fn start_local() -> Result<Self, ListenError> {
        Self::start((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Listens on one more address, with the same ledger: to a relay it is another destination.
    ///
    /// # Errors
    ///
    /// [`ListenError`] if the address is taken or not ours.
    pub async fn listen(&mut self, addr: SocketAddr) -> Result<SocketAddr, ListenError> {
        let refused = |source| ListenError { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(refused)?;
        let local = listener.local_addr().map_err(refused)?;
        self.addresses.push(local);
        self.shared.tasks.spawn(accept(listener, self.shared.clone()));
        Ok(local)
    }

    /// The address of the first listener.
    pub fn addr(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// The addresses of all listeners, in the order of their start.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The endpoint of a script at the first listener: `http://127.0.0.1:4000/do/500x5,201`.
    pub fn url(&self, script: &str) -> String {
        script_url(self.addr(), script)
    }

    /// What was seen, shared with the sandbox: it can be kept past its end.
    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Stops: no listener, connection or work is left afterwards.
    pub async fn shutdown(self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

/// The endpoint of a script at an address.
pub fn script_url(addr: SocketAddr, script: &str) -> String {
    format!("http://{addr}/do/{script}")
}

/// Percent-encodes text for a step: `format!("301:{}", step_text("http://x.test/"))`.
pub fn step_text(text: &str) -> String {
    script::encode(text)
}

/// SHA-256 as the records show it, to compare a payload with what arrived.
pub fn sha256_hex(bytes: &[u8]) -> String {
    connection::hex(&Sha256::digest(bytes))
}

async fn accept(listener: TcpListener, shared: connection::Shared) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                shared.tasks.spawn(connection::serve(stream, shared.clone()));
            }
            // Either the client went before it was accepted, or descriptors ran out: neither is the listener's end.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}
