//! The outbox operator: relays that send the rows of an outbox table over HTTP, and the operator that runs them.

pub mod api;
pub mod cli;
pub mod controller;
pub mod demo;
pub mod domain;
pub mod http;
pub mod relay;
pub mod sandbox;
pub mod spec;
pub mod store;
pub mod telemetry;
