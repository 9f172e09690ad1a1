//! `outbox key`: the idempotency key of an intent.

use std::process::ExitCode;

use clap::Args;

use super::{Error, INVALID, input};
use crate::domain::key::derive_key;

/// Print the idempotency key of an intent.
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The tenant, as it is written into the row.
    #[arg(long)]
    tenant: String,
    /// The operation, such as create_invoice.
    #[arg(long)]
    operation: String,
    /// The business object.
    #[arg(long)]
    entity: String,
    /// The version of the intent, from 1.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    version: i64,
    /// The approved arguments as JSON; - reads standard input.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    args: String,
}

impl KeyArgs {
    /// Prints the key. Exit code 2 when there is none.
    pub fn run(self) -> Result<ExitCode, Error> {
        let args = match input::text_or_stdin("--args", self.args)? {
            Ok(args) => args,
            Err(code) => return Ok(code),
        };
        match derive_key(&self.tenant, &self.operation, &self.entity, self.version, &args) {
            Ok(key) => {
                super::print(&format!("{key}\n"));
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                eprintln!("outbox: {error}");
                Ok(ExitCode::from(INVALID))
            }
        }
    }
}
