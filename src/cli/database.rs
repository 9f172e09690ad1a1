//! Which database and which table a command works on.

use clap::Args;

use super::documents::SecretsArgs;
use crate::{
    api::{Database, SecretKeyRef},
    spec::database,
    store::{ConnectSettings, SslSettings, TableName},
};

/// `--database-url` stands for the document's Secret.
#[derive(Clone, Args)]
pub struct DatabaseArgs {
    /// The database: postgres://user:password@host:5432/dbname. Stands for the Secret that a document names.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
}

impl std::fmt::Debug for DatabaseArgs {
    /// Leaves the URL out: it holds a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseArgs").finish_non_exhaustive()
    }
}

/// Which connection of a document is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Claims and settles: the Secret's URL, which may lead through a pooler.
    Relay,
    /// Alters the table: the admin's URL, else the direct one, else the same.
    Migration,
}

/// The connection settings of a document, with secrets read.
pub fn settings(
    database: &Database,
    args: &DatabaseArgs,
    secrets: &SecretsArgs,
    role: Role,
) -> Result<ConnectSettings, String> {
    let read = |reference: &SecretKeyRef| secrets.read_ref(reference);
    let url = match &args.database_url {
        Some(url) => url.clone(),
        None => document_url(database, &read, role)?,
    };
    with_url(database, url, &read, role)
}

/// The connection settings of a document whose Secrets are read by `read`.
pub fn settings_from(
    database: &Database,
    read: impl Fn(&SecretKeyRef) -> Result<String, String>,
    role: Role,
) -> Result<ConnectSettings, String> {
    let url = document_url(database, &read, role)?;
    with_url(database, url, &read, role)
}

/// The Secrets that [`settings_from`] reads.
pub fn references(database: &Database, role: Role) -> impl Iterator<Item = &SecretKeyRef> {
    let url = url_ref(database, role).or(database.password_secret_ref.as_ref());
    url.into_iter().chain(&database.root_cert_secret_ref)
}

fn with_url(
    database: &Database,
    url: String,
    read: &impl Fn(&SecretKeyRef) -> Result<String, String>,
    role: Role,
) -> Result<ConnectSettings, String> {
    let root_cert_pem = database.root_cert_secret_ref.as_ref().map(read).transpose()?;
    Ok(ConnectSettings {
        url,
        ssl: SslSettings {
            mode: database.sslmode.map(|mode| database::ssl_mode(mode).to_owned()),
            root_cert_pem: root_cert_pem.map(String::into_bytes),
        },
        max_connections: database.max_connections.unsigned_abs(),
        application_name: match role {
            Role::Relay => "outbox relay".to_owned(),
            Role::Migration => "outbox migrate".to_owned(),
        },
    })
}

/// The table of a document.
pub fn table(database: &Database) -> TableName {
    TableName::new(&database.schema, &database.table)
}

fn url_ref(database: &Database, role: Role) -> Option<&SecretKeyRef> {
    match role {
        Role::Relay => database.url_secret_ref.as_ref(),
        Role::Migration => database::migration_url_ref(database),
    }
}

fn document_url(
    database: &Database,
    read: &impl Fn(&SecretKeyRef) -> Result<String, String>,
    role: Role,
) -> Result<String, String> {
    if let Some(reference) = url_ref(database, role) {
        return Ok(read(reference)?.trim().to_owned());
    }
    let password = database.password_secret_ref.as_ref().map(read).transpose()?;
    database::url_of_parts(database, password.as_deref().map(str::trim_end)).ok_or_else(|| {
        "the document says neither database.urlSecretRef nor database.host with dbname and user; or give --database-url"
            .to_owned()
    })
}
