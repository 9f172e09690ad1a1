//! The `outbox` command.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    outbox_operator::cli::Cli::parse().run().await
}
