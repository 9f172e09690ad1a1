//! `outbox cancel`: rows that shall not be sent.

use std::process::ExitCode;

use clap::Args;

use super::{
    Error,
    rows::{ActorArgs, OutputArgs, TargetArgs, outcome},
};
use crate::store::people::{self, Signature};

/// Cancel rows that nobody can have executed: pending ones, and dead ones. Others are refused with their state.
#[derive(Debug, Args)]
pub struct CancelArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The rows, by id.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<i64>,
    /// Also rows in flight, uncertain or succeeded: the effect may have taken place, and this says that nobody minds.
    #[arg(long)]
    allow_unknown: bool,
    /// Why, for the history.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl CancelArgs {
    /// Cancels.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let signature = Signature { actor: self.actor.name(), filter: None, note: self.note };
        let result = people::cancel(&target.db, &target.table, &self.ids, self.allow_unknown, &signature).await;
        outcome::report(result, self.output.output, "pending and dead", |rows| format!("{rows} cancelled"))
    }
}
