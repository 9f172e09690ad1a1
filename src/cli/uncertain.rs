//! `outbox uncertain`: rows whose effect may have taken place, and nobody knows.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::{
    Error,
    rows::{
        ActorArgs, OutputArgs, TargetArgs,
        filter::{FilterArgs, SelectionArgs},
        lists::{self, Preview},
        outcome,
        progress::Bar,
        refuse,
    },
};
use crate::store::people::{self, Resolution, Signature};

/// Look at rows whose outcome nobody knows, and write down what you found out.
#[derive(Debug, Subcommand)]
pub enum UncertainCommand {
    /// List uncertain rows, those that were first sent longest ago first.
    List(ListArgs),
    /// Write down what became of uncertain rows.
    Resolve(ResolveArgs),
}

impl UncertainCommand {
    /// Runs the command.
    pub async fn run(self) -> Result<ExitCode, Error> {
        match self {
            Self::List(args) => args.run().await,
            Self::Resolve(args) => args.run().await,
        }
    }
}

/// List uncertain rows, those that were first sent longest ago first.
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
        let listing =
            people::list_uncertain(&target.db, &target.table, &filter, limit, lists::with_payload(output)).await?;
        lists::print(output, &listing, "FIRST SENT", "no uncertain row")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum As {
    /// The effect took place.
    Succeeded,
    /// It did not: send the row again, with its key.
    Retry,
    /// It did not, and shall not by itself.
    Dead,
}

/// Write down what became of uncertain rows.
#[derive(Debug, Args)]
pub struct ResolveArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// What became of them.
    #[arg(long = "as", value_enum)]
    resolution: As,
    /// The receiver's name of the effect, for one row that succeeded.
    #[arg(long, value_name = "ID")]
    downstream_id: Option<String>,
    /// Show what would move, and move nothing.
    #[arg(long)]
    dry_run: bool,
    /// How you know, for the history.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl ResolveArgs {
    async fn run(self) -> Result<ExitCode, Error> {
        let (selection, filter) = match self.selection.selection() {
            Ok(selection) => selection,
            Err(code) => return Ok(code),
        };
        if self.downstream_id.is_some() && (self.resolution != As::Succeeded || self.selection.named() != 1) {
            return Ok(refuse("--downstream-id names the effect of one row: give one id and --as succeeded"));
        }
        let (resolution, becomes) = match self.resolution {
            As::Succeeded => (Resolution::Succeeded { downstream_id: self.downstream_id }, "succeeded"),
            As::Retry => (Resolution::Retry, "pending"),
            As::Dead => (Resolution::Dead, "dead"),
        };
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let output = self.output.output;
        if self.dry_run {
            let preview = Preview::of(output);
            let listing = people::preview_resolve(
                &target.db,
                &target.table,
                &selection,
                &resolution,
                preview.shown(),
                preview.payload(),
            )
            .await?;
            return preview.print(&listing, "FIRST SENT", "uncertain", becomes);
        }
        let signature = Signature { actor: self.actor.name(), filter, note: self.note };
        let bar = Bar::new("resolved");
        let result = people::resolve(&target.db, &target.table, &selection, &signature, &resolution, &|done, total| {
            bar.tell(done, total);
        })
        .await;
        drop(bar);
        outcome::report(result, output, "uncertain", |rows| format!("{rows} moved to {becomes}"))
    }
}
