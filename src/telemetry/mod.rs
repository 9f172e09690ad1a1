//! Logs, metrics and health. Nothing here decides anything.

pub mod log_limit;
pub mod logs;
pub mod operator_metrics;
pub mod relay_metrics;
pub mod server;
