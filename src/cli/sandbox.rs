//! `outbox sandbox`: a receiver that deduplicates by key, records what it sees, and misbehaves on request.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;

use super::{Error, signal};
use crate::sandbox::{GRAMMAR, Sandbox};

/// Run a receiver that deduplicates by key, records what it sees, and misbehaves on request.
#[derive(Debug, Args)]
#[command(after_long_help = GRAMMAR)]
pub struct SandboxArgs {
    /// Where it listens; several addresses share one memory.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: Vec<SocketAddr>,
}

impl SandboxArgs {
    /// Runs until SIGTERM or SIGINT, and says then what it has seen.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let stop = signal::on_stop()?;
        let mut addresses = self.listen.into_iter();
        // The default stands in for none, so there is a first one.
        let Some(first) = addresses.next() else { return Ok(ExitCode::SUCCESS) };
        let mut sandbox = Sandbox::start(first).await?;
        for address in addresses {
            sandbox.listen(address).await?;
        }
        for address in sandbox.addresses() {
            super::print(&format!("listening on http://{address}\n"));
        }
        eprintln!("POST http://{}/do/500x2,201 fails twice; `outbox sandbox --help` lists the steps", sandbox.addr());
        stop.cancelled().await;
        let counts = sandbox.ledger().counts();
        eprintln!(
            "{} requests, {} keys, {} effects, {} of them beyond one per key",
            counts.requests, counts.keys, counts.effects, counts.duplicate_effects
        );
        sandbox.shutdown().await;
        Ok(ExitCode::SUCCESS)
    }
}
