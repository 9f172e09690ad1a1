//! `outbox migrate`: create or adopt the table.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    Error, INVALID,
    cluster::RelayArg,
    database::{self, DatabaseArgs, Role},
    documents::{self, FileArgs, SecretsArgs},
};
use crate::store::{ConnectSettings, SslSettings, TableName, migrate};

/// Create the outbox table, or adopt one that is there. Safe to run again, and from two places at once.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    relay: RelayArg,
    #[command(flatten)]
    secrets: SecretsArgs,
    /// Take database and table from the OutboxRelay of this file.
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["schema", "table", "relay"])]
    files: Vec<PathBuf>,
    /// The table's schema.
    #[arg(long, default_value = "public")]
    schema: String,
    /// The table's name.
    #[arg(long, default_value = "agent_outbox")]
    table: String,
    /// Print the SQL and run none of it.
    #[arg(long)]
    dry_run: bool,
}

impl MigrateArgs {
    /// Migrates.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let (settings, table) = match self.relay.find(&self.database, Role::Migration).await? {
            Some(Ok((settings, table))) => (Some(settings), table),
            Some(Err(code)) => return Ok(code),
            None => match self.target() {
                Ok(target) => target,
                Err(code) => return Ok(code),
            },
        };
        if self.dry_run {
            for script in migrate::plan(&table) {
                super::print(&format!("-- version {} ({})\n", script.version, script.name));
                for step in script.steps {
                    super::print(&format!("\n-- {}\n{};\n", step.title, step.sql));
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        let Some(settings) = settings else {
            eprintln!(
                "outbox: say which database: --relay NS/NAME, --database-url URL, DATABASE_URL, or -f FILE with --secrets-dir DIR"
            );
            return Ok(ExitCode::from(INVALID));
        };
        let versions = migrate::migrate(&settings, &table, &|line| tracing::info!("{line}")).await?;
        let name = table.qualified();
        if versions.is_empty() {
            super::print(&format!("{name} is at version {}: nothing to do\n", migrate::LATEST));
        } else {
            super::print(&format!("{name} is at version {} now\n", migrate::LATEST));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn target(&self) -> Result<(Option<ConnectSettings>, TableName), ExitCode> {
        if self.files.is_empty() {
            let settings = self.database.database_url.as_ref().map(|url| ConnectSettings {
                url: url.clone(),
                ssl: SslSettings::default(),
                max_connections: 1,
                application_name: "outbox migrate".to_owned(),
            });
            return Ok((settings, TableName::new(&self.schema, &self.table)));
        }
        let invalid = ExitCode::from(INVALID);
        let documents = FileArgs { files: self.files.clone() }.read().map_err(|problems| {
            documents::show(&problems);
            invalid
        })?;
        let [relay] = documents.relays.as_slice() else {
            eprintln!("outbox: -f must hold one OutboxRelay; it holds {}", documents.relays.len());
            return Err(invalid);
        };
        let database = &relay.spec.database;
        let settings =
            database::settings(database, &self.database, &self.secrets, Role::Migration).map_err(|message| {
                eprintln!("outbox: {message}");
                invalid
            })?;
        Ok((Some(settings), database::table(database)))
    }
}
