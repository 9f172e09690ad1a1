//! What can go wrong at the database, and whether trying again may help.

use std::time::Duration;

/// A failed act at the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The connection settings make no sense.
    #[error("read the database settings: {0}")]
    Settings(String),
    /// No connection, or a connection that broke.
    #[error("{act}: {source}")]
    Sql {
        /// The act, as verb and object.
        act: &'static str,
        /// What the driver said.
        source: sqlx::Error,
    },
    /// The server took the statement and never answered.
    #[error("{act}: no answer from the database within {}s", .limit.as_secs())]
    Silent {
        /// The act, as verb and object.
        act: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// The table is not as the relay needs it.
    #[error("{0}")]
    Preflight(String),
    /// Something of the application's own that a policy names is not there yet.
    #[error("{0}")]
    Unready(String),
    /// A migration could not be applied.
    #[error("migrate {table}: {message}")]
    Migrate {
        /// The table.
        table: String,
        /// What stands in the way, and the mend.
        message: String,
    },
}

impl StoreError {
    /// `query_canceled`, by a statement's own time limit or by a person.
    const CANCELLED: &'static str = "57014";

    /// Attaches the act to a driver's error; made for `map_err`.
    pub fn sql(act: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Sql { act, source }
    }

    /// The SQLSTATE, if the server answered with one.
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Self::Sql { source: sqlx::Error::Database(error), .. } => error.code().map(|code| code.to_string()),
            _ => None,
        }
    }

    /// Whether the same statement may succeed later: everything but an answer that speaks of the statement itself.
    ///
    /// Classes by SQLSTATE: 08 connection, 25006 read-only transaction (a failover), 40 rollback, 53 resources, 55 locks,
    /// 57 intervention (shutdown, cancelled statement), 58 system.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Sql { source, .. } => match source {
                sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                    code == "25006" || ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
                }),
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed => true,
                _ => false,
            },
            Self::Settings(_) | Self::Preflight(_) | Self::Unready(_) | Self::Migrate { .. } => false,
        }
    }

    /// Whether the content of one row may be what makes the statement fail: a value that cannot be written as text, is too
    /// large as text or takes too long to write. SQLSTATE 22 data, 54 limits, XX internal ("invalid memory alloc request
    /// size", a damaged page), 57014 out of time.
    pub fn may_be_a_rows(&self) -> bool {
        self.sqlstate().is_some_and(|code| {
            code == Self::CANCELLED || ["22", "54", "XX"].iter().any(|class| code.starts_with(class))
        })
    }

    /// Whether the server ended the statement because it took too long.
    pub fn is_out_of_time(&self) -> bool {
        self.sqlstate().as_deref() == Some(Self::CANCELLED)
    }

    /// A bounded name for metrics and conditions.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Settings(_) => "settings",
            Self::Silent { .. } => "silent",
            Self::Preflight(_) => "preflight",
            Self::Unready(_) => "unready",
            Self::Migrate { .. } => "migrate",
            Self::Sql { source, .. } => match source {
                sqlx::Error::Database(error) => match error.code().as_deref() {
                    Some("25006") => "read_only",
                    Some("28P01" | "28000") => "authentication",
                    Some("42501") => "permission",
                    Some("42P01" | "3F000" | "42703") => "schema",
                    Some("3D000") => "no_database",
                    Some(code) if code.starts_with("53") => "resources",
                    Some(code) if code.starts_with("57") => "shutdown",
                    _ => "database",
                },
                _ => "connection",
            },
        }
    }
}
