//! `outbox demo`: the whole relay story on one machine, and the throwaway PostgreSQL that tests use, too.
//!
//! The demo knows the relay as its users do: by commands, documents, the published columns and what a receiver sees. It
//! mentions nothing of `store` or `relay`, so that it can find them wrong.

mod binaries;
mod directory;
pub mod postgres;
mod watchdog;

pub use postgres::{NoPrograms, PostgresError, PostgresOptions, ThrowawayPostgres};
