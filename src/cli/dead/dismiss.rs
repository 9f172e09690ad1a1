//! `outbox dead dismiss`: dead rows are let go.

use std::process::ExitCode;

use clap::Args;

use super::super::{
    Error,
    rows::{ActorArgs, OutputArgs, TargetArgs, filter::SelectionArgs, lists::Preview, outcome, progress::Bar},
};
use crate::store::people::{self, Signature};

/// Cancel dead rows: the effect shall not happen.
#[derive(Debug, Args)]
pub struct DismissArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Show what would move, and move nothing.
    #[arg(long)]
    dry_run: bool,
    /// Why, for the history.
    #[arg(long, value_name = "TEXT")]
    note: String,
}

impl DismissArgs {
    /// Dismisses.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let (selection, filter) = match self.selection.selection() {
            Ok(selection) => selection,
            Err(code) => return Ok(code),
        };
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let output = self.output.output;
        if self.dry_run {
            let preview = Preview::of(output);
            let listing =
                people::preview_dismiss(&target.db, &target.table, &selection, preview.shown(), preview.payload())
                    .await?;
            return preview.print(&listing, "DIED", "dead", "cancelled");
        }
        let signature = Signature { actor: self.actor.name(), filter, note: Some(self.note) };
        let bar = Bar::new("dismissed");
        let result = people::dismiss(&target.db, &target.table, &selection, &signature, &|done, total| {
            bar.tell(done, total);
        })
        .await;
        drop(bar);
        outcome::report(result, output, "dead", |rows| {
            format!("{rows} dismissed: cancelled, the effect will not happen")
        })
    }
}
