//! Why a story cannot be told to its end.

use std::io;

use super::postgres::PostgresError;
use crate::{domain::key::KeyError, sandbox::ListenError};

/// Why there is no story.
#[derive(Debug, thiserror::Error)]
pub enum StoryError {
    /// Told to stop.
    #[error("interrupted")]
    Interrupted,
    /// No PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// No receiver.
    #[error("start the receiver: {0}")]
    Receiver(#[from] ListenError),
    /// Something of the system refused.
    #[error("{act}: {source}\n{log}")]
    System {
        /// What was tried.
        act: String,
        /// Why it failed.
        source: io::Error,
        /// The end of a log that may say more.
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
    /// The library refused a key of the demo.
    #[error("derive a key: {0}")]
    Key(#[from] KeyError),
    /// It took longer than it may.
    #[error("the story did not hold: it was not over after {limit:?}")]
    TooLong {
        /// How long it may take.
        limit: std::time::Duration,
    },
    /// Something that had to happen did not.
    #[error("the story did not hold: {what}\n{log}")]
    DidNotHold {
        /// What did not happen.
        what: String,
        /// The end of the relays' logs.
        log: String,
    },
}

pub(super) fn sql(act: &'static str) -> impl FnOnce(sqlx::Error) -> StoryError {
    move |source| StoryError::Sql { act, source }
}

pub(super) fn system(act: impl Into<String>, log: String) -> impl FnOnce(io::Error) -> StoryError {
    move |source| StoryError::System { act: act.into(), source, log }
}
