//! One relay process or several against a real PostgreSQL and a receiver that misbehaves on request: real sockets, real
//! signals. Tests wait for conditions with a deadline; none sleeps and hopes.

mod database;
mod delivery;
mod destinations;
mod documents;
mod fencing;
mod metrics;
mod migration;
mod processes;
mod support;
mod verdicts;
