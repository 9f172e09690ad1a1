//! What must hold in every state, and what must be reached in some so that the rest is not true of nothing.

use outbox_operator::domain::row::{Reason, Status};
use stateright::Property;

use super::{
    setup::Setup,
    state::{Fault, Intent, Request, State, Worker},
    table::Next,
};

pub const LOSER_WRITES_NOTHING: &str = "no row is settled by a worker that lost its lease";
pub const SENT_ONCE: &str = "no second request without an expired lease or a written outcome";
pub const NOT_IN_DOUBT: &str = "without keys at the receiver, no request after an unknown one unless a person says so";
pub const NOT_EXPIRED: &str = "nothing is sent for a row that was claimed past its authority";
pub const GIVEN_BACK: &str = "of begun attempts just the waits are given back";
pub const ONE_EFFECT: &str = "one effect an intent";
pub const DEAD_IS_UNDONE: &str = "no dead row was executed or may still be";
pub const UNTOUCHED: &str = "what supersede and cancel may take was not executed";
pub const SUCCESS_IS_DONE: &str = "no row succeeds without its effect";
pub const NOT_LOST: &str =
    "no row is lost: it has a time to be claimed, or has ended, or waits for a person with a reason";
pub const BOUNDED: &str = "no row is sent more often than the policy allows";

/// Everything that is checked of a setup.
pub fn all(setup: &Setup) -> Vec<Property<Setup>> {
    let mut properties = always();
    properties.extend(sometimes());
    let much_may_happen = setup.policy.max_attempts > 1 && setup.mishaps.is_none();
    if setup.deduplicates && much_may_happen {
        properties
            .push(Property::sometimes("a refusal settles the doubt", |_, state: &State| some(state, settled_doubt)));
        properties.push(Property::sometimes("a row of killed workers parks as exhausted", |_, state: &State| {
            some(state, |intent| intent.row.parked() && intent.row.reason == Some(Reason::EXHAUSTED))
        }));
    }
    if !setup.deduplicates {
        properties.push(Property::sometimes("a row of a killed worker parks", |_, state: &State| {
            some(state, |intent| intent.row.parked() && intent.row.reason == Some(Reason::LEASE_EXPIRED))
        }));
    }
    if setup.window.is_none() && setup.deduplicates && much_may_happen {
        properties.push(Property::sometimes("two requests of one row are under way", |_, state: &State| {
            state.workers.iter().filter(|worker| matches!(worker, Worker::Sending(_, Request::Underway))).count() > 1
        }));
    }
    if setup.expires.is_some() {
        properties.push(Property::sometimes("a row dies past its authority", |_, state: &State| {
            some(state, |intent| intent.row.status == Status::Dead && intent.row.reason == Some(Reason::EXPIRED))
        }));
    }
    if setup.window.is_some() && much_may_happen {
        properties.push(Property::sometimes("a row parks past its key window", |_, state: &State| {
            some(state, |intent| intent.row.parked() && intent.row.reason == Some(Reason::KEY_WINDOW))
        }));
    }
    properties
}

fn always() -> Vec<Property<Setup>> {
    vec![
        Property::always(LOSER_WRITES_NOTHING, |_, state: &State| state.fault != Some(Fault::SettledAfterLoss)),
        Property::always(SENT_ONCE, |_, state: &State| state.fault != Some(Fault::SentTwice)),
        Property::always(NOT_IN_DOUBT, |_, state: &State| state.fault != Some(Fault::SentInDoubt)),
        Property::always(NOT_EXPIRED, |_, state: &State| state.fault != Some(Fault::SentExpired)),
        Property::always(GIVEN_BACK, |_, state: &State| state.fault != Some(Fault::GivenBack)),
        Property::always(ONE_EFFECT, |_, state: &State| state.rows.iter().all(|intent| intent.effects <= 1)),
        Property::always(DEAD_IS_UNDONE, |_, state: &State| every(state, dead_is_undone)),
        Property::always(UNTOUCHED, |_, state: &State| every(state, untouched)),
        Property::always(SUCCESS_IS_DONE, |_, state: &State| {
            state.rows.iter().all(|intent| intent.row.status != Status::Succeeded || intent.effects > 0)
        }),
        Property::always(NOT_LOST, |_, state: &State| state.rows.iter().all(not_lost)),
        Property::always(BOUNDED, |_, state: &State| state.fault != Some(Fault::SentTooOften)),
    ]
}

fn sometimes() -> Vec<Property<Setup>> {
    vec![
        Property::sometimes("a row succeeds", |_, state: &State| {
            some(state, |intent| intent.row.status == Status::Succeeded)
        }),
        Property::sometimes("a row dies", |_, state: &State| some(state, |intent| intent.row.status == Status::Dead)),
        Property::sometimes("a row parks", |_, state: &State| some(state, |intent| intent.row.parked())),
        Property::sometimes("a worker holds a result of a row that is another's", |_, state: &State| {
            state.workers.iter().any(|worker| matches!(worker, Worker::Done(claim, _) if !claim.current))
        }),
    ]
}

fn settled_doubt(intent: &Intent) -> bool {
    intent.row.status == Status::Dead && intent.row.unknown_attempts > 0
}

fn some(state: &State, holds: impl Fn(&Intent) -> bool) -> bool {
    state.rows.iter().any(holds)
}

fn every(state: &State, holds: fn(&State, usize) -> bool) -> bool {
    (0..state.rows.len()).all(|row| holds(state, row))
}

/// A refusal of the same key settles what an earlier request may have done or may still do: the receiver gives every
/// request of that key the same answer.
fn dead_is_undone(state: &State, row: usize) -> bool {
    let intent = &state.rows[row];
    let settled = intent.row.unknown_attempts > 0 && intent.row.reason == Some(Reason::REJECTED);
    intent.row.status != Status::Dead || (intent.effects == 0 && (settled || !state.may_be_executed(row)))
}

fn untouched(state: &State, row: usize) -> bool {
    let intent = &state.rows[row];
    let taken = matches!(intent.row.status, Status::Pending | Status::Dead) && intent.row.unknown_attempts == 0;
    !taken || (intent.effects == 0 && !state.may_be_executed(row))
}

fn not_lost(intent: &Intent) -> bool {
    let row = &intent.row;
    match row.status {
        Status::InFlight => row.token.is_some() && row.locked.is_some() && row.next_attempt != Next::Never,
        Status::Pending => row.next_attempt != Next::Never,
        Status::Uncertain => row.next_attempt != Next::Never || row.reason.is_some(),
        Status::Succeeded | Status::Dead | Status::Cancelled | Status::Superseded => true,
    }
}
