//! One relay process or several against a real PostgreSQL and a receiver that misbehaves on request: real sockets, real
//! signals. Tests wait for conditions with a deadline; none sleeps and hopes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs,
    reason = "a test that cannot go on fails"
)]

mod database;
mod delivery;
mod destinations;
mod documents;
mod fencing;
mod metrics;
mod migration;
mod order;
mod overlap;
mod pooler;
mod position;
mod processes;
mod questions;
mod requests;
mod resources;
mod retention;
mod routes;
mod support;
mod verdicts;
