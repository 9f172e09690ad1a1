//! `outbox crd`: the custom resource definitions, as they are committed in `crds/`.

use std::process::ExitCode;

use clap::Args;
use kube::CustomResourceExt;

use super::Error;
use crate::api::{DispatchPolicy, OutboxRelay};

/// Print the custom resource definitions as YAML.
#[derive(Debug, Args)]
pub struct CrdArgs {
    /// Print only one kind: OutboxRelay or DispatchPolicy.
    #[arg(value_parser = ["OutboxRelay", "DispatchPolicy"])]
    kind: Option<String>,
}

impl CrdArgs {
    /// Prints.
    pub fn run(self) -> Result<ExitCode, Error> {
        for crd in [OutboxRelay::crd(), DispatchPolicy::crd()] {
            if self.kind.as_ref().is_none_or(|kind| *kind == crd.spec.names.kind) {
                super::print(&format!("---\n{}", serde_yaml::to_string(&crd)?));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
