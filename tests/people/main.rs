//! What people and producers do with rows, through the program and the SQL functions, on a real PostgreSQL. Where two act
//! at one moment, the moment is made: a session of the test's own holds the row until the other one waits for it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs,
    reason = "a test that cannot go on fails"
)]

mod bulk;
mod cancel;
mod cluster;
mod commands;
mod dead;
mod help;
mod holds;
mod producers;
mod replay;
#[allow(dead_code, clippy::pedantic, reason = "the helpers of the relay, of which these tests use a part")]
#[path = "../relay/support.rs"]
mod support;
mod uncertain;
