//! Proof of reliability: relay processes that are killed, databases that go away, receivers that misbehave, and a count of
//! every row, request and effect at the end. The figures go to standard output, past the test harness, and stand in
//! `docs/reliability.md`. `OUTBOX_TEST_FULL=1` runs the long forms.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs,
    reason = "a test that cannot go on fails"
)]

mod adoption;
mod cases;
mod census;
mod database_wire;
mod http_wire;
mod kill_sweep;
mod neighbours;
#[path = "../relay/pooler.rs"]
mod pooler;
mod report;
mod secrets;
#[allow(dead_code, clippy::pedantic, reason = "the helpers of the relay, of which these tests use a part")]
#[path = "../relay/support.rs"]
mod support;
mod ten_relays;
mod trap;
