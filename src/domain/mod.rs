//! Decisions, as pure functions: no I/O, no clock, no random source of their own (`now` and randomness are arguments),
//! and nothing of Kubernetes, SQL or the HTTP client.

pub mod authority;
pub mod backoff;
pub mod destination;
pub mod egress;
pub mod hold;
pub mod json_pointer;
pub mod judge;
pub mod key;
pub mod memory;
pub mod retry_after;
pub mod routing;
pub mod row;
#[cfg(test)]
mod samples;
pub mod scaling;
pub mod settings;
pub mod share;
pub mod transition;
