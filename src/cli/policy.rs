//! `outbox policy`: what a policy document says.

mod explain;

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    Error, INVALID,
    documents::{self, FileArgs},
};
use crate::spec::{self, Documents, Problem};

/// Look into policy documents.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check documents: every error at once, with its path. Exit code 2 if there is one.
    Check(FileArgs),
    /// Print what a policy means: each wait with its sums, the whole span, and every rule in plain words.
    Explain(explain::ExplainArgs),
}

impl PolicyCommand {
    /// Runs the command.
    pub fn run(self) -> Result<ExitCode, Error> {
        let files = match self {
            Self::Check(files) => files,
            Self::Explain(args) => return args.run(),
        };
        if let Err(problems) = files.read().and_then(|documents| check(&documents)) {
            documents::show(&problems);
            return Ok(ExitCode::from(INVALID));
        }
        super::print("the documents are valid\n");
        Ok(ExitCode::SUCCESS)
    }
}

/// Everything that is wrong with documents, each thing once.
fn check(documents: &Documents) -> Result<(), Vec<Problem>> {
    let mut problems: Vec<Problem> = documents
        .relays
        .iter()
        .flat_map(|relay| spec::resolve(relay, &documents.policies).err().unwrap_or_default())
        .chain(documents.policies.iter().flat_map(|policy| spec::check_policy(policy).err().unwrap_or_default()))
        .collect();
    problems.dedup();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}
