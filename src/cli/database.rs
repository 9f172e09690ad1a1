//! Which database and which table a command works on.

use clap::Args;

use super::documents::SecretsArgs;
use crate::{
    api::{Database, SslMode},
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
    let url = match &args.database_url {
        Some(url) => url.clone(),
        None => document_url(database, secrets, role)?,
    };
    let root_cert_pem =
        database.root_cert_secret_ref.as_ref().map(|reference| secrets.read_ref(reference)).transpose()?;
    Ok(ConnectSettings {
        url,
        ssl: SslSettings {
            mode: database.sslmode.map(|mode| sslmode(mode).to_owned()),
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

fn document_url(database: &Database, secrets: &SecretsArgs, role: Role) -> Result<String, String> {
    let special = [&database.admin_url_secret_ref, &database.direct_url_secret_ref].into_iter().flatten().next();
    let reference = match (role, special) {
        (Role::Migration, Some(special)) => Some(special),
        _ => database.url_secret_ref.as_ref(),
    };
    if let Some(reference) = reference {
        return Ok(secrets.read_ref(reference)?.trim().to_owned());
    }
    let password = database.password_secret_ref.as_ref().map(|reference| secrets.read_ref(reference)).transpose()?;
    database_url(database, password.as_deref().map(str::trim_end)).ok_or_else(|| {
        "the document says neither database.urlSecretRef nor database.host with dbname and user; or give --database-url".to_owned()
    })
}

/// The URL of a database that is given in parts.
pub fn database_url(database: &Database, password: Option<&str>) -> Option<String> {
    let (host, dbname, user) = (database.host.as_ref()?, database.dbname.as_ref()?, database.user.as_ref()?);
    let mut url = url::Url::parse("postgres://host").ok()?;
    url.set_host(Some(host)).ok()?;
    url.set_port(Some(u16::try_from(database.port.unwrap_or(5432)).ok()?)).ok()?;
    url.set_username(user).ok()?;
    url.set_password(password).ok()?;
    url.path_segments_mut().ok()?.clear().push(dbname);
    Some(url.to_string())
}

/// libpq's word.
pub fn sslmode(mode: SslMode) -> &'static str {
    match mode {
        SslMode::Disable => "disable",
        SslMode::Prefer => "prefer",
        SslMode::Require => "require",
        SslMode::VerifyCa => "verify-ca",
        SslMode::VerifyFull => "verify-full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_a_url_whatever_they_hold() {
        let database: Database =
            serde_json::from_str(r#"{"host": "db.test", "dbname": "a/b", "user": "o@p"}"#).unwrap();
        let url = database_url(&database, Some("p:w/d?#")).unwrap();
        assert_eq!(url, "postgres://o%40p:p%3Aw%2Fd%3F%23@db.test:5432/a%2Fb");
    }
}
