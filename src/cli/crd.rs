//! `outbox crd`: the custom resource definitions, as they are committed in `crds/`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::Error;
use crate::api::{DispatchPolicy, OutboxRelay, definition};

/// Print the custom resource definitions.
#[derive(Debug, Args)]
pub struct CrdArgs {
    /// Print only one kind: OutboxRelay or DispatchPolicy.
    #[arg(value_parser = ["OutboxRelay", "DispatchPolicy"])]
    kind: Option<String>,
    /// How they are spelled; JSON is one document after the other.
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Spelling,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spelling {
    Yaml,
    Json,
}

impl CrdArgs {
    /// Prints.
    pub fn run(self) -> Result<ExitCode, Error> {
        for crd in [definition::<OutboxRelay>(), definition::<DispatchPolicy>()] {
            if self.kind.as_ref().is_none_or(|kind| *kind == crd.spec.names.kind) {
                super::print(&match self.output {
                    Spelling::Yaml => format!("---\n{}", serde_yaml::to_string(&crd)?),
                    Spelling::Json => format!("{}\n", serde_json::to_string_pretty(&crd)?),
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
