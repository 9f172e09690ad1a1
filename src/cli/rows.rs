//! What the commands about rows have in common: where the rows are, who acts, how answers are spelled.

pub mod documents;
pub mod filter;
pub mod grid;
pub mod lists;
pub mod outcome;
pub mod progress;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{
    Error, INVALID,
    cluster::RelayArg,
    database::{DatabaseArgs, Role},
};
use crate::store::{ConnectSettings, Db, SslSettings, StoreError, TableName, people};

/// Which table a command works on.
#[derive(Clone, Debug, Args)]
pub struct TargetArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    relay: RelayArg,
    /// The table's schema.
    #[arg(long, default_value = "public")]
    schema: String,
    /// The table's name.
    #[arg(long, default_value = "agent_outbox")]
    table: String,
}

/// A table that is there and migrated.
pub struct Target {
    /// The database.
    pub db: Db,
    /// The table.
    pub table: TableName,
}

impl TargetArgs {
    /// Connects, and looks whether the table is migrated. The inner error is the exit code, its reason shown.
    pub async fn open(&self) -> Result<Result<Target, ExitCode>, Error> {
        let (settings, table) = match self.settings().await? {
            Ok(found) => found,
            Err(code) => return Ok(Err(code)),
        };
        let db = match Db::connect_lazy(&settings) {
            Ok(db) => db,
            Err(error @ StoreError::Settings(_)) => return Ok(Err(refuse(&error.to_string()))),
            Err(error) => return Err(error.into()),
        };
        people::ready(&db, &table).await?;
        Ok(Ok(Target { db, table }))
    }

    async fn settings(&self) -> Result<Result<(ConnectSettings, TableName), ExitCode>, Error> {
        let application_name = "outbox".to_owned();
        match self.relay.find(&self.database, Role::Relay).await? {
            Some(Ok((settings, table))) => {
                Ok(Ok((ConnectSettings { max_connections: 1, application_name, ..settings }, table)))
            }
            Some(Err(code)) => Ok(Err(code)),
            None => {
                let Some(url) = self.database.database_url.clone() else {
                    return Ok(Err(refuse(
                        "say which database: --relay NS/NAME, or --database-url URL or DATABASE_URL",
                    )));
                };
                let settings =
                    ConnectSettings { url, ssl: SslSettings::default(), max_connections: 1, application_name };
                Ok(Ok((settings, TableName::new(&self.schema, &self.table))))
            }
        }
    }
}

/// Says what is wrong with how a command was called.
pub fn refuse(message: &str) -> ExitCode {
    eprintln!("outbox: {message}");
    ExitCode::from(INVALID)
}

/// How an answer is spelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs; payloads digit for digit.
    Json,
    /// For people who like it; payloads as strings.
    Yaml,
}

/// `--output` of a command.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// How the answer is spelled.
    #[arg(short = 'o', long, value_enum, default_value_t)]
    pub output: Output,
}

/// Who acts and why.
#[derive(Clone, Debug, Args)]
pub struct ActorArgs {
    /// Who acts, for the history; unset: your user and host.
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
}

impl ActorArgs {
    /// The name for the history.
    pub fn name(&self) -> String {
        self.actor.clone().filter(|actor| !actor.is_empty()).unwrap_or_else(|| {
            let user =
                ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            match host.trim() {
                "" => user.unwrap_or_else(|| "unknown".to_owned()),
                host => format!("{}@{host}", user.as_deref().unwrap_or("unknown")),
            }
        })
    }
}
