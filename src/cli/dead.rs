//! `outbox dead`: rows whose effect did not happen and will not by itself.

mod dismiss;
mod replay;
mod revise;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{
    Error, REFUSED,
    rows::{OutputArgs, TargetArgs, filter::FilterArgs, lists},
};
use crate::store::people;

/// Look at dead rows and send them again, replace them or let them go.
#[derive(Debug, Subcommand)]
pub enum DeadCommand {
    /// List dead rows, those that died last first.
    List(ListArgs),
    /// Show one row with its history, whatever its state.
    Show(ShowArgs),
    /// Send dead rows again, with the same keys; attempts are counted anew.
    Replay(replay::ReplayArgs),
    /// Put a next version in a dead row's place: a new row with a new key. The old one is superseded.
    Revise(revise::ReviseArgs),
    /// Cancel dead rows: the effect shall not happen.
    Dismiss(dismiss::DismissArgs),
}

impl DeadCommand {
    /// Runs the command.
    pub async fn run(self) -> Result<ExitCode, Error> {
        match self {
            Self::List(args) => args.run().await,
            Self::Show(args) => args.run().await,
            Self::Replay(args) => args.run().await,
            Self::Revise(args) => args.run().await,
            Self::Dismiss(args) => args.run().await,
        }
    }
}

/// List dead rows, those that died last first.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// List all rows; unset: 100 at most.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl ListArgs {
    async fn run(self) -> Result<ExitCode, Error> {
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let limit = lists::limit(self.filter.limit, self.all);
        let output = self.output.output;
        let filter = self.filter.filter();
        let listing = people::list_dead(&target.db, &target.table, &filter, limit, lists::with_payload(output)).await?;
        lists::print(output, &listing, "DIED", "no dead row")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Show one row with its history, whatever its state.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The row, by id.
    #[arg(value_name = "ID")]
    id: i64,
}

impl ShowArgs {
    async fn run(self) -> Result<ExitCode, Error> {
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let Some(shown) =
            people::show(&target.db, &target.table, self.id, lists::with_payload(self.output.output)).await?
        else {
            eprintln!("outbox: row {}: there is no such row", self.id);
            return Ok(ExitCode::from(REFUSED));
        };
        lists::print_shown(self.output.output, self.id, &shown)?;
        Ok(ExitCode::SUCCESS)
    }
}
