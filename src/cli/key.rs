//! `outbox key`: the idempotency key of an intent.

use std::{io::Read, process::ExitCode};

use clap::Args;

use super::{Error, INVALID};
use crate::domain::key::derive_key;

/// Longest arguments that are read from standard input, in bytes: far above any payload a receiver takes.
const MAX_ARGS_BYTES: u64 = 256 * 1024 * 1024;

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
        let args = if self.args == "-" {
            let mut bytes = Vec::new();
            std::io::stdin().take(MAX_ARGS_BYTES).read_to_end(&mut bytes)?;
            let Ok(text) = String::from_utf8(bytes) else {
                eprintln!("outbox: --args: standard input is not UTF-8");
                return Ok(ExitCode::from(INVALID));
            };
            text
        } else {
            self.args
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
