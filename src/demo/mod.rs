//! `outbox demo`: the whole relay story on one machine, and the throwaway PostgreSQL that tests use, too.
//!
//! The demo knows the relay as its users do: by commands, documents, the published columns and what a receiver sees. It
//! mentions nothing of `store` or `relay`, so that it can find them wrong.

mod audit;
mod binaries;
mod directory;
mod error;
mod plan;
pub mod postgres;
mod progress;
mod relays;
mod report;
mod rows;
mod stage;
mod story;
mod watchdog;

pub use error::StoryError;
pub use plan::{MAX_ROWS, MIN_ROWS};
pub use postgres::{NoPrograms, PostgresError, PostgresOptions, ThrowawayPostgres};
pub use progress::Progress;
pub use story::{Story, StoryOptions, tell};
