//! One request of one row over real sockets and real TLS, without a database: what a policy's `request` makes of it, and what
//! each way to fail says of the row.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test that cannot go on fails"
)]

mod certificates;
mod failures;
mod proxy;
mod receiver;
mod sender;
mod shape;
mod signing;
mod tls;
mod tokens;
