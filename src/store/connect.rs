//! Connections: a pool that opens when first used, and transactions with a statement timeout.

use std::{str::FromStr, time::Duration};

use sqlx::{
    Postgres, Transaction,
    postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode},
};

use super::StoreError;

/// How long a connection may take to stand, or a free one to turn up.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections are closed after this time, so that a quiet relay holds few.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Grace beyond the server's own statement timeout before a connection counts as silent.
pub(super) const SILENCE_GRACE: Duration = Duration::from_secs(2);

/// How to reach a database.
#[derive(Clone)]
pub struct ConnectSettings {
    /// `postgres://user:password@host:port/dbname?sslmode=..`; libpq's other parameters as far as the driver knows them.
    pub url: String,
    /// TLS beside what the URL says.
    pub ssl: SslSettings,
    /// Connections at most.
    pub max_connections: u32,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
}

/// TLS towards PostgreSQL.
#[derive(Clone, Default)]
pub struct SslSettings {
    /// libpq's word (`disable`, `prefer`, `require`, `verify-ca`, `verify-full`); `None`: what the URL says.
    pub mode: Option<String>,
    /// A root certificate in PEM.
    pub root_cert_pem: Option<Vec<u8>>,
}

impl std::fmt::Debug for ConnectSettings {
    /// Leaves the URL out: it holds a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectSettings").field("max_connections", &self.max_connections).finish_non_exhaustive()
    }
}

impl ConnectSettings {
    /// The driver's options. Never shows the URL in an error, for it holds a password.
    pub fn options(&self) -> Result<PgConnectOptions, StoreError> {
        if !(self.url.starts_with("postgres://") || self.url.starts_with("postgresql://")) {
            return Err(StoreError::Settings(
                "the database URL must begin with postgres:// or postgresql://".to_owned(),
            ));
        }
        let mut options = PgConnectOptions::from_str(self.url.trim_end()).map_err(|error| {
            StoreError::Settings(format!("the database URL is malformed ({}): write postgres://user:password@host:5432/dbname with special characters percent-encoded", kind_of(&error)))
        })?;
        if let Some(mode) = &self.ssl.mode {
            let mode = PgSslMode::from_str(mode).map_err(|_| {
                StoreError::Settings(format!(
                    "sslmode {mode:?} is unknown: use disable, prefer, require, verify-ca or verify-full"
                ))
            })?;
            options = options.ssl_mode(mode);
        }
        if let Some(pem) = &self.ssl.root_cert_pem {
            options = options.ssl_root_cert_from_pem(pem.clone());
        }
        // A pooler refuses start-up parameters that it does not know; no statement of ours reads a float.
        Ok(options.extra_float_digits(None).application_name(&self.application_name).statement_cache_capacity(0))
    }
}

/// The kind of a parse error without its text, which may quote parts of the URL.
fn kind_of(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::Configuration(_) => "it cannot be parsed",
        _ => "it is not accepted",
    }
}

/// A pool of connections to one database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Db {
    pool: PgPool,
}

impl Db {
    /// A pool that opens its first connection when it is first used.
    pub fn connect_lazy(settings: &ConnectSettings) -> Result<Self, StoreError> {
        let options = settings.options()?;
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections)
            .min_connections(0)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .idle_timeout(IDLE_TIMEOUT)
            .connect_lazy_with(options);
        Ok(Self { pool })
    }

    /// Begins a transaction whose statements the server ends after `statement_timeout`.
    pub async fn begin(&self, statement_timeout: Duration) -> Result<Transaction<'static, Postgres>, StoreError> {
        // One simple query: a pooler in transaction mode keeps `SET LOCAL` with the transaction.
        let begin = format!("BEGIN; SET LOCAL statement_timeout = {}", statement_timeout.as_millis());
        self.pool.begin_with(sqlx::AssertSqlSafe(begin)).await.map_err(StoreError::sql("begin a transaction"))
    }

    /// Runs one act against the database and gives up when the server stays silent past its own timeout.
    pub async fn bounded<T>(
        &self,
        act: &'static str,
        statement_timeout: Duration,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = ACQUIRE_TIMEOUT + statement_timeout + SILENCE_GRACE;
        tokio::time::timeout(limit, work).await.unwrap_or(Err(StoreError::Silent { act, limit }))
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
