//! The commands: one file a subcommand, each the composition root of what it runs.
#![allow(clippy::doc_markdown, rustdoc::bare_urls, reason = "doc comments here are help texts, shown as they are")]

mod cancel;
mod cluster;
mod controller;
mod crd;
mod database;
mod dead;
mod demo;
mod documents;
mod enqueue;
mod hold;
mod input;
mod key;
mod migrate;
mod policy;
mod relay;
mod rows;
mod sandbox;
mod signal;
mod status;
mod uncertain;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::telemetry::logs::{self, LogFormat};

/// Any error of a command, shown to the person who called it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The command did what it was asked.
pub const DONE: u8 = 0;
/// The command failed.
pub const FAILED: u8 = 1;
/// Wrong usage, or an invalid document.
pub const INVALID: u8 = 2;
/// Done in part, or refused: the reason per row is on standard error.
pub const REFUSED: u8 = 3;

/// Outbox relays: rows of a PostgreSQL table in, HTTP effects out, once each.
#[derive(Debug, Parser)]
#[command(name = "outbox", version)]
pub struct Cli {
    /// What is logged, in the syntax of RUST_LOG (such as info, or outbox_operator=debug).
    #[arg(long, global = true, env = "OUTBOX_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// How log lines are spelled.
    #[arg(long, global = true, env = "OUTBOX_LOG_FORMAT", default_value = "text", value_enum)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator.
    Controller(controller::ControllerArgs),
    /// Run one relay.
    Relay(relay::RelayArgs),
    /// Create or adopt the outbox table.
    Migrate(migrate::MigrateArgs),
    /// Show the backlog by state and destination, the oldest due row, holds and the top errors.
    Status(status::StatusArgs),
    /// Look at dead rows and send them again, replace them or let them go.
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Look at rows whose outcome nobody knows, and write down what you found out.
    #[command(subcommand)]
    Uncertain(uncertain::UncertainCommand),
    /// Look at destinations that get no rows for a while, let them have rows again, or hold one yourself.
    #[command(subcommand)]
    Hold(hold::HoldCommand),
    /// Cancel rows that nobody can have executed.
    Cancel(cancel::CancelArgs),
    /// Insert a row, as an application does.
    Enqueue(enqueue::EnqueueArgs),
    /// Print the idempotency key of an intent.
    Key(key::KeyArgs),
    /// Look into policy documents.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Print the custom resource definitions.
    Crd(crd::CrdArgs),
    /// Run a receiver that deduplicates by key and misbehaves on request.
    Sandbox(sandbox::SandboxArgs),
    /// Tell the whole relay story in a minute, on a throwaway PostgreSQL.
    Demo(demo::DemoArgs),
}

impl Cli {
    /// Runs the command. Errors are on standard error when this returns.
    pub async fn run(self) -> ExitCode {
        logs::init(&self.log, self.log_format);
        let result = match self.command {
            Command::Controller(args) => args.run().await,
            Command::Relay(args) => Box::pin(args.run()).await,
            Command::Migrate(args) => args.run().await,
            Command::Status(args) => args.run().await,
            Command::Dead(command) => command.run().await,
            Command::Uncertain(command) => command.run().await,
            Command::Hold(command) => command.run().await,
            Command::Cancel(args) => args.run().await,
            Command::Enqueue(args) => args.run().await,
            Command::Key(args) => args.run(),
            Command::Policy(command) => command.run(),
            Command::Crd(args) => args.run(),
            Command::Sandbox(args) => args.run().await,
            Command::Demo(args) => args.run().await,
        };
        result.unwrap_or_else(|error| {
            eprintln!("outbox: {error}");
            ExitCode::from(FAILED)
        })
    }
}

/// Prints to standard output. A reader that went away (`| head`) is no failure.
pub fn print(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
