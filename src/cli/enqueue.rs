//! `outbox enqueue`: a row by hand.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use super::{
    Error, INVALID, REFUSED, input,
    rows::{self, Output, OutputArgs, TargetArgs, documents, filter},
};
use crate::{
    domain::{destination::Endpoint, key::derive_key},
    store::people::{self, Enqueued, NewRow},
};

/// Insert a row, as an application does. The key is derived from the arguments unless it is given.
#[derive(Debug, Args)]
pub struct EnqueueArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The tenant, a UUID.
    #[arg(long, value_name = "UUID")]
    tenant: String,
    /// The operation, such as create_invoice.
    #[arg(long)]
    operation: String,
    /// The business object.
    #[arg(long)]
    entity: String,
    /// The version of the intent, from 1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    version: i32,
    /// Where to: an http or https URL.
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// The payload as JSON; - reads standard input.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: String,
    /// The idempotency key; unset: as `outbox key` derives it.
    #[arg(long)]
    key: Option<String>,
    /// The approved arguments that the key is derived from; unset: the payload.
    #[arg(long, value_name = "JSON", conflicts_with = "key")]
    args: Option<String>,
    /// When the authority to perform the effect ends, such as 2026-05-01T12:00:00Z.
    #[arg(long, value_name = "INSTANT", value_parser = filter::instant)]
    expires_at: Option<i64>,
}

impl EnqueueArgs {
    /// Inserts the row.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let payload = match input::text_or_stdin("--payload", self.payload)? {
            Ok(payload) => payload,
            Err(code) => return Ok(code),
        };
        let Ok(tenant) = Uuid::parse_str(&self.tenant) else {
            return Ok(rows::refuse("--tenant: write a UUID"));
        };
        let key = match self.key {
            Some(key) if key.is_empty() => return Ok(rows::refuse("--key: the key is empty")),
            Some(key) => key,
            None => {
                let args = self.args.as_ref().unwrap_or(&payload);
                match derive_key(&self.tenant, &self.operation, &self.entity, self.version.into(), args) {
                    Ok(key) => key,
                    Err(error) => return Ok(rows::refuse(&error.to_string())),
                }
            }
        };
        if let Err(error) = Endpoint::parse(&self.endpoint) {
            return Ok(rows::refuse(&format!("--endpoint: {error}")));
        }
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let row = NewRow {
            tenant,
            operation: self.operation,
            entity: self.entity,
            version: self.version,
            key,
            endpoint: self.endpoint,
            payload,
            expires_at_us: self.expires_at,
        };
        let output = self.output.output;
        match people::enqueue(&target.db, &target.table, &row).await {
            Ok(Enqueued::New(id)) => {
                if output == Output::Table {
                    super::print(&format!("row {id} is queued with the key {}\n", row.key));
                } else {
                    documents::print(output, &json!({"id": id, "idempotency_key": row.key, "status": "pending"}))?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Ok(Enqueued::There { id, status }) => {
                eprintln!("outbox: row {id} has the key {} already and is {status}: nothing was inserted", row.key);
                Ok(ExitCode::from(REFUSED))
            }
            // Class 22: the text is no JSON, or JSON that PostgreSQL cannot store, such as \u0000.
            Err(error) if error.sqlstate().is_some_and(|code| code.starts_with("22")) => {
                eprintln!("outbox: --payload: {error}");
                Ok(ExitCode::from(INVALID))
            }
            Err(error) => Err(error.into()),
        }
    }
}
