//! `outbox dead revise`: a next version in a dead row's place.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::{
    Error, INVALID, REFUSED, input,
    rows::{ActorArgs, Output, OutputArgs, TargetArgs, documents, filter, outcome, refuse},
};
use crate::{
    domain::destination::Endpoint,
    store::people::{self, Revised, Revision, Signature},
};

/// Put a next version in a dead row's place: a new row with a new key. The old one is superseded.
#[derive(Debug, Args)]
pub struct ReviseArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The row, by id.
    #[arg(value_name = "ID")]
    id: i64,
    /// The payload as JSON, - reads standard input; unset: the row's own.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Where to; unset: the row's own.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The new idempotency key; unset: derived as `outbox key` does.
    #[arg(long)]
    key: Option<String>,
    /// The approved arguments that the key is derived from; unset: the payload.
    #[arg(long, value_name = "JSON", conflicts_with = "key")]
    args: Option<String>,
    /// When the authority to perform the effect ends; unset: the row's own.
    #[arg(long, value_name = "INSTANT", value_parser = filter::instant)]
    expires_at: Option<i64>,
    /// Revise a row even if an attempt of it may have been executed: a second effect is possible.
    #[arg(long)]
    accept_duplicate: bool,
    /// Why, for the history.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl ReviseArgs {
    /// Revises.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let payload = match self.payload.map(|payload| input::text_or_stdin("--payload", payload)).transpose()? {
            None => None,
            Some(Ok(payload)) => Some(payload),
            Some(Err(code)) => return Ok(code),
        };
        if let Some(Err(error)) = self.endpoint.as_deref().map(Endpoint::parse) {
            return Ok(refuse(&format!("--endpoint: {error}")));
        }
        if self.key.as_deref() == Some("") {
            return Ok(refuse("--key: the key is empty"));
        }
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let revision = Revision {
            payload,
            endpoint: self.endpoint,
            key: self.key,
            args: self.args,
            expires_at_us: self.expires_at,
            accept_duplicate: self.accept_duplicate,
        };
        let signature = Signature { actor: self.actor.name(), filter: None, note: self.note };
        match people::revise(&target.db, &target.table, self.id, &revision, &signature).await {
            Ok(Revised::Done { id, version, key }) => {
                if self.output.output == Output::Table {
                    let old = self.id;
                    super::super::print(&format!(
                        "row {id} takes the place of row {old}: version {version}, key {key}\n"
                    ));
                } else {
                    let document =
                        json!({"id": id, "intent_version": version, "idempotency_key": key, "status": "pending"});
                    documents::print(self.output.output, &document)?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Ok(Revised::Refused(refused)) => {
                eprintln!("outbox: {}", outcome::reason(&refused, "dead"));
                Ok(ExitCode::from(REFUSED))
            }
            Ok(Revised::NoKey(error)) => Ok(refuse(&error.to_string())),
            // Class 22: the text is no JSON, or JSON that PostgreSQL cannot store, such as \u0000.
            Err(error) if error.sqlstate().is_some_and(|code| code.starts_with("22")) => {
                eprintln!("outbox: --payload: {error}");
                Ok(ExitCode::from(INVALID))
            }
            Err(error) => Err(error.into()),
        }
    }
}
