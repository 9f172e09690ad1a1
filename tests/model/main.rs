//! The protocol, checked exhaustively: see docs/protocol.md. `cargo test --test model -- --nocapture` prints the figures.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test, with figures")]

mod action;
mod agreement;
mod liveness;
mod properties;
mod protocol;
mod setup;
mod state;
mod table;

use std::{fmt::Write as _, time::Instant};

use action::Action;
use properties as p;
use setup::{Does, Mutation, Setup};
use state::State;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

/// Whether the long forms are asked for.
fn full() -> bool {
    std::env::var_os("OUTBOX_TEST_FULL").is_some_and(|value| value == "1")
}

/// Checks every property in every state.
fn explore(setup: &Setup) {
    let started = Instant::now();
    let checker = setup.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let mut failed = String::new();
    for property in setup.properties() {
        match (&property.expectation, checker.discovery(property.name)) {
            (Expectation::Sometimes, None) => writeln!(failed, "never reached: {}", property.name).unwrap(),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => writeln!(failed, "violated: {}\n{}", property.name, story(path)).unwrap(),
        }
    }
    assert!(failed.is_empty(), "{setup}: {failed}");
    println!(
        "{setup}: {} states, {} steps, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        started.elapsed().as_secs_f64()
    );
}

/// The steps to a state, and the state.
fn story(path: Path<State, Action>) -> String {
    let mut story = format!("  leads to {:?}", path.last_state());
    for action in path.into_actions().iter().rev() {
        story.insert_str(0, &format!("  {action:?}\n"));
    }
    story
}

/// Checks that every run ends.
fn ends(setup: &Setup) {
    let started = Instant::now();
    let outcome = liveness::check(setup).unwrap_or_else(|problem| panic!("{setup}: {problem}"));
    println!(
        "{setup}: every run ends; {} states, the longest run has {} steps, {:.1} s",
        outcome.states,
        outcome.longest,
        started.elapsed().as_secs_f64()
    );
}

#[test]
fn a_receiver_that_enforces_keys() {
    explore(&Setup::enforced().attempts(if full() { 4 } else { 3 }));
    explore(&Setup::enforced().attempts(if full() { 2 } else { 1 }).acts(1));
    explore(&Setup { expires: Some(1), ..Setup::enforced().attempts(1) });
}

#[test]
fn a_receiver_that_forgets_keys() {
    explore(&Setup::window().attempts(if full() { 4 } else { 2 }));
    explore(&Setup::window().attempts(if full() { 2 } else { 1 }).acts(1));
}

#[test]
fn a_receiver_without_keys() {
    explore(&Setup::none().attempts(if full() { 4 } else { 2 }));
    explore(&Setup::none().attempts(if full() { 3 } else { 2 }).acts(if full() { 2 } else { 1 }));
}

#[test]
fn two_rows_do_not_get_in_each_others_way() {
    let setups = [Setup::enforced(), Setup::none(), Setup::window()];
    for setup in setups.into_iter().take(if full() { 3 } else { 2 }) {
        let does = vec![Does::Execute, Does::Busy, Does::Refuse];
        let attempts = if full() { 2 } else { 1 };
        explore(&Setup { rows: 2, does, mishaps: Some(attempts), ..setup }.attempts(attempts));
    }
}

#[test]
fn three_workers_are_no_worse_than_two() {
    for setup in [Setup::enforced(), Setup::window(), Setup::none()] {
        explore(&Setup { workers: 3, mishaps: (!full()).then_some(1), ..setup });
    }
}

#[test]
fn every_row_ends_or_parks() {
    for setup in [Setup::enforced(), Setup::window(), Setup::none()] {
        ends(&setup.attempts(if full() { 3 } else { 2 }));
    }
    if full() {
        ends(&Setup::none().acts(1));
    }
}

/// Each mutation, and the property that it must break.
#[test]
fn every_check_can_fail() {
    use Mutation as M;
    let (enforced, window, none) = (Setup::enforced, Setup::window, Setup::none);
    for (setup, mutation, property) in vec![
        (enforced(), M::SettleWithoutToken, p::LOSER_WRITES_NOTHING),
        (enforced(), M::ClaimIgnoresLease, p::SENT_ONCE),
        (enforced(), M::ExpiredLeaseNotCounted, p::DEAD_IS_UNDONE),
        (enforced(), M::ExpiredLeaseNotCounted, p::UNTOUCHED),
        (enforced(), M::LeaseNotDue, p::NOT_LOST),
        (enforced(), M::DeadInDoubt, p::DEAD_IS_UNDONE),
        (none(), M::DeadInDoubt, p::DEAD_IS_UNDONE),
        (enforced(), M::UnknownIsSuccess, p::SUCCESS_IS_DONE),
        (none(), M::BelievesInKeys, p::NOT_IN_DOUBT),
        (none(), M::BelievesInKeys, p::ONE_EFFECT),
        (none(), M::ReleaseForgetsExpiredLease, p::NOT_IN_DOUBT),
        (none(), M::ReleaseForgetsExpiredLease, p::ONE_EFFECT),
        (window(), M::WindowAtClaim, p::ONE_EFFECT),
        (window(), M::NoWindow, p::ONE_EFFECT),
        (enforced(), M::RetryGivesBack, p::GIVEN_BACK),
        (Setup { expires: Some(1), ..enforced() }, M::NeverExpires, p::NOT_EXPIRED),
        (enforced(), M::NoLimit, p::BOUNDED),
    ] {
        let setup = setup.with(mutation);
        let checker = setup.clone().checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
        let path = checker.discovery(property).unwrap_or_else(|| panic!("{mutation:?} does not break: {property}"));
        println!("{mutation:?} breaks {property:?} in {} steps", path.into_actions().len());
    }
}

#[test]
fn a_run_without_end_is_found() {
    for mutation in [Mutation::WaitIsYoung, Mutation::LeaseNotDue] {
        let problem = liveness::check(&Setup::enforced().with(mutation)).expect_err("nothing found");
        println!("{mutation:?}: {}", problem.split(':').next().unwrap());
    }
}
