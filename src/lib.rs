//! The outbox operator: relays that send the rows of an outbox table over HTTP, and the operator that runs them.

pub mod api;
