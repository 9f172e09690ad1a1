//! How the server is run, and why there is none.

use std::io;

use super::NoPrograms;

/// How the server is run.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Whether writes are forced to the disk. Off, tests are faster and a crash of the machine loses data.
    pub fsync: bool,
    /// Whether a commit waits for its log record to be written.
    pub synchronous_commit: bool,
    /// Connections at most.
    pub max_connections: u32,
    /// Further settings, as `-c name=value`; they win over the others.
    pub settings: Vec<(String, String)>,
}

impl Default for PostgresOptions {
    /// As safe as a real one.
    fn default() -> Self {
        Self { fsync: true, synchronous_commit: true, max_connections: 100, settings: Vec::new() }
    }
}

impl PostgresOptions {
    /// As fast as can be: nothing survives a crash of the machine, everything survives one of the server.
    pub fn fast() -> Self {
        Self { fsync: false, synchronous_commit: false, ..Self::default() }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// Its programs were not found.
    #[error(transparent)]
    Programs(#[from] NoPrograms),
    /// Something of the system refused.
    #[error("{act}: {source}")]
    System {
        /// What was tried.
        act: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb ended with status {status}:\n{log}")]
    Init {
        /// Its exit status.
        status: i32,
        /// The end of its output.
        log: String,
    },
    /// The server ended instead of answering, or did not answer.
    #[error("the PostgreSQL server does not start:\n{log}")]
    Start {
        /// The end of its log.
        log: String,
    },
    /// A statement failed.
    #[error("{act}: {source}")]
    Sql {
        /// What was tried.
        act: &'static str,
        /// Why it failed.
        source: sqlx::Error,
    },
}

pub(super) fn system(act: &'static str) -> impl FnOnce(io::Error) -> PostgresError {
    move |source| PostgresError::System { act, source }
}
