//! `outbox policy`: what a policy document says.

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    INVALID,
    documents::{self, FileArgs},
};
use crate::spec;

/// Look into policy documents.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check documents: every error at once, with its path. Exit code 2 if there is one.
    Check(FileArgs),
}

impl PolicyCommand {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let Self::Check(files) = self;
        let problems = match files.read() {
            Ok(documents) => documents
                .relays
                .iter()
                .flat_map(|relay| spec::resolve(relay, &documents.policies).err().unwrap_or_default())
                .chain(
                    documents.policies.iter().flat_map(|policy| spec::check_policy(policy).err().unwrap_or_default()),
                )
                .collect(),
            Err(problems) => problems,
        };
        let mut problems: Vec<spec::Problem> = problems;
        problems.dedup();
        if problems.is_empty() {
            super::print("the documents are valid\n");
            return ExitCode::SUCCESS;
        }
        documents::show(&problems);
        ExitCode::from(INVALID)
    }
}
