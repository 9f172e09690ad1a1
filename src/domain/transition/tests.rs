//! The rules of a row's life, one by one.

mod asking;
mod properties;

use super::{
    super::{
        backoff::{Backoff, BackoffKind},
        judge::{Answer, judge},
        samples::{policy, row},
        settings::{AnswerCondition, Classified, ClassifyRule},
    },
    *,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn none() -> Policy {
    Policy { receiver_enforces_keys: false, ..policy() }
}

fn windowed() -> Policy {
    Policy { key_window: Some(HOUR), ..policy() }
}

fn doubtful() -> RowFacts {
    RowFacts { attempts: 2, unknown_attempts: 1, first_dispatch: false, in_doubt: true, ..row() }
}

fn lease_expired() -> RowFacts {
    RowFacts { lease_expired: true, in_doubt: false, ..doubtful() }
}

fn answer(status: u16) -> Observation {
    Observation::Answer(Answer { status, ..Answer::default() })
}

fn answer_after(status: u16, retry_after: Duration) -> Observation {
    Observation::Answer(Answer { status, retry_after: Some(retry_after), ..Answer::default() })
}

fn statuses(first: u16, last: u16) -> AnswerCondition {
    AnswerCondition { statuses: vec![(first, last)], ..AnswerCondition::default() }
}

fn refused_connection() -> Observation {
    Observation::NotExecuted { reason: Reason::CONNECT, detail: String::new() }
}

fn timeout() -> Observation {
    Observation::Unknown { reason: Reason::TIMEOUT, detail: String::new() }
}

fn not_built() -> Observation {
    Observation::NotBuilt { reason: Reason::INVALID, detail: String::new() }
}

fn after(policy: &Policy, row: &RowFacts, seen: &Observation) -> Settlement {
    // No jitter.
    after_attempt(policy, row, seen, &judge(policy, row, seen), 0.0)
}

/// State, time and reason: what a person sees.
fn seen(settlement: &Settlement) -> (Status, Due, Option<&str>) {
    (settlement.status, settlement.due, settlement.reason.as_ref().map(Reason::as_str))
}

fn before(policy: &Policy, row: &RowFacts) -> Option<Settlement> {
    match before_send(policy, row) {
        Plan::Ask | Plan::Send => None,
        Plan::Settle(settlement) => Some(settlement),
    }
}

const ENDED: Due = Due::Ended;
const PARKED: Due = Due::Parked;
const AT_ONCE: Due = Due::After(Duration::ZERO);

#[test]
fn an_attempt_ends_as_its_verdict_says() {
    let enforced = policy();
    for (seen_by, first, later) in [
        (answer(200), (Status::Succeeded, ENDED, None), (Status::Succeeded, ENDED, None)),
        // A row that waits says whether it may have been executed.
        (
            answer_after(409, MINUTE),
            (Status::Pending, Due::After(MINUTE), Some("in_progress")),
            (Status::Uncertain, Due::After(MINUTE), Some("in_progress")),
        ),
        (
            answer_after(429, MINUTE),
            (Status::Pending, Due::After(MINUTE), Some("throttled")),
            (Status::Uncertain, Due::After(MINUTE), Some("throttled")),
        ),
        (
            answer(503),
            (Status::Pending, AT_ONCE, Some("server_error")),
            (Status::Uncertain, AT_ONCE, Some("server_error")),
        ),
        (
            refused_connection(),
            (Status::Pending, AT_ONCE, Some("connect")),
            (Status::Uncertain, AT_ONCE, Some("connect")),
        ),
        (timeout(), (Status::Uncertain, AT_ONCE, Some("timeout")), (Status::Uncertain, AT_ONCE, Some("timeout"))),
        (answer(409), (Status::Dead, ENDED, Some("conflict")), (Status::Uncertain, AT_ONCE, Some("in_progress"))),
        // No dead row may have been executed: it parks with the same reason.
        (answer(401), (Status::Dead, ENDED, Some("unauthorized")), (Status::Uncertain, PARKED, Some("unauthorized"))),
        (answer(302), (Status::Dead, ENDED, Some("redirected")), (Status::Uncertain, PARKED, Some("redirected"))),
        (not_built(), (Status::Dead, ENDED, Some("invalid")), (Status::Uncertain, PARKED, Some("invalid"))),
        // But the receiver's refusal of the same key settles what it was.
        (answer(422), (Status::Dead, ENDED, Some("rejected")), (Status::Dead, ENDED, Some("rejected"))),
    ] {
        assert_eq!(seen(&after(&enforced, &row(), &seen_by)), first, "at first, {seen_by:?}");
        assert_eq!(seen(&after(&enforced, &doubtful(), &seen_by)), later, "after an unknown attempt, {seen_by:?}");
    }
}

#[test]
fn without_keys_at_the_receiver_what_is_unknown_parks() {
    for (seen_by, reason) in [(timeout(), "timeout"), (answer(500), "server_error"), (answer(503), "server_error")] {
        let settlement = after(&none(), &row(), &seen_by);
        assert_eq!(seen(&settlement), (Status::Uncertain, PARKED, Some(reason)));
        assert!(settlement.unknown);
    }
    // What was not executed is repeated all the same.
    assert_eq!(seen(&after(&none(), &row(), &refused_connection())), (Status::Pending, AT_ONCE, Some("connect")));
    // A refusal settles nothing: it says nothing of what an earlier request did.
    assert_eq!(seen(&after(&none(), &doubtful(), &answer(422))), (Status::Uncertain, PARKED, Some("rejected")));
}

#[test]
fn a_row_that_a_person_wants_sent_stays_one_until_its_outcome_is_unknown() {
    // Pending with an unknown attempt, so a person has spoken; without keys at the receiver that is the only way there.
    let wanted = RowFacts { in_doubt: false, ..doubtful() };
    assert_eq!(before(&none(), &wanted), None);
    let refused = after(&none(), &wanted, &refused_connection());
    assert_eq!(seen(&refused), (Status::Pending, AT_ONCE, Some("connect")));
    assert_eq!(seen(&release(&none(), &wanted)), (Status::Pending, AT_ONCE, None));
    assert_eq!(after(&none(), &wanted, &timeout()).due, PARKED);
}

#[test]
fn waits_use_no_attempt_and_all_else_does() {
    for (seen_by, wait) in [
        (answer_after(409, MINUTE), true),
        (answer_after(429, MINUTE), true),
        (answer(429), false),
        (answer_after(503, MINUTE), false),
        (answer_after(408, MINUTE), false),
        (answer(500), false),
        (answer(200), false),
        (answer(422), false),
        (refused_connection(), false),
        (timeout(), false),
        (not_built(), false),
    ] {
        let settlement = after(&policy(), &row(), &seen_by);
        assert_eq!((settlement.give_back_attempt, settlement.wait), (wait, wait), "{seen_by:?}");
    }
}

#[test]
fn only_an_unknown_outcome_counts_as_one() {
    for (seen_by, unknown) in [
        (timeout(), true),
        (answer(999), true),
        (answer(500), false),
        (refused_connection(), false),
        (answer(200), false),
    ] {
        assert_eq!(after(&policy(), &row(), &seen_by).unknown, unknown, "{seen_by:?}");
    }
}

#[test]
fn a_counted_retry_waits_for_the_longer_of_the_stated_time_and_its_own() {
    let backoff =
        Backoff::new(BackoffKind::Schedule { delays: vec![MINUTE], jitter_percent: 0 }, SECOND, HOUR).unwrap();
    let policy = Policy { backoff, ..policy() };
    assert_eq!(after(&policy, &row(), &answer_after(503, SECOND)).due, Due::After(MINUTE));
    assert_eq!(after(&policy, &row(), &answer_after(503, HOUR)).due, Due::After(HOUR));
    assert_eq!(after(&policy, &row(), &answer(503)).due, Due::After(MINUTE));
    // A wait has no backoff of its own.
    assert_eq!(after(&policy, &row(), &answer_after(409, SECOND)).due, Due::After(SECOND));
}

#[test]
fn a_wait_without_a_time_takes_the_policys_base_and_never_loops_hot() {
    let rule = ClassifyRule { when: statuses(409, 409), verdict: Classified::Wait, reason: None };
    let at_once = BackoffKind::Schedule { delays: vec![Duration::ZERO], jitter_percent: 0 };
    for (kind, waited) in
        [(BackoffKind::FullJitter, SECOND * 5), (BackoffKind::EqualJitter, SECOND * 5), (at_once, SECOND)]
    {
        let backoff = Backoff::new(kind, SECOND * 5, HOUR).unwrap();
        let policy = Policy { classify: vec![rule.clone()], backoff, ..policy() };
        let settlement = after(&policy, &row(), &answer(409));
        assert_eq!(seen(&settlement), (Status::Pending, Due::After(waited), Some("in_progress")));
        assert!(settlement.wait && settlement.give_back_attempt);
    }
}

#[test]
fn attempts_and_age_are_used_up() {
    let last = RowFacts { attempts: 14, first_dispatch: false, ..row() };
    let old = RowFacts { attempts: 2, first_dispatch: false, retry_age: policy().max_age, ..row() };
    let dead = (Status::Dead, ENDED, Some("exhausted"));
    let parked = (Status::Uncertain, PARKED, Some("exhausted"));
    for (seen_by, last_attempt, too_old) in [
        (answer(500), dead, dead),
        (answer(429), dead, dead),
        (refused_connection(), dead, dead),
        // Unknown, so not dead.
        (timeout(), parked, parked),
        // A wait uses no attempt, but ends with the row's age.
        (answer_after(409, MINUTE), (Status::Pending, Due::After(MINUTE), Some("in_progress")), dead),
        (answer_after(429, MINUTE), (Status::Pending, Due::After(MINUTE), Some("throttled")), dead),
        // What came in time counts, however late.
        (answer(200), (Status::Succeeded, ENDED, None), (Status::Succeeded, ENDED, None)),
        (answer(422), (Status::Dead, ENDED, Some("rejected")), (Status::Dead, ENDED, Some("rejected"))),
    ] {
        assert_eq!(seen(&after(&policy(), &last, &seen_by)), last_attempt, "{seen_by:?}");
        assert_eq!(seen(&after(&policy(), &old, &seen_by)), too_old, "{seen_by:?}");
    }
    let doubtful = RowFacts { attempts: 14, ..doubtful() };
    assert_eq!(seen(&after(&policy(), &doubtful, &answer(500))), parked);
    let young = RowFacts { attempts: 13, retry_age: HOUR * 23, ..row() };
    assert_eq!(after(&policy(), &young, &answer(500)).status, Status::Pending);
}

#[test]
fn an_attempt_that_is_one_too_many_is_not_made() {
    assert_eq!(before(&policy(), &RowFacts { attempts: 14, ..row() }), None);
    let settlement = before(&policy(), &RowFacts { attempts: 15, ..row() }).unwrap();
    assert_eq!(seen(&settlement), (Status::Dead, ENDED, Some("exhausted")));
    // A row that kills its workers.
    let settlement = before(&policy(), &RowFacts { attempts: 15, ..lease_expired() }).unwrap();
    assert_eq!(seen(&settlement), (Status::Uncertain, PARKED, Some("exhausted")));
    // Age is judged after an answer, never before a request.
    assert_eq!(before(&policy(), &RowFacts { retry_age: HOUR * 1_000, ..row() }), None);
}

#[test]
fn an_expired_lease_is_an_unknown_outcome() {
    assert_eq!(before(&policy(), &lease_expired()), None);
    let settlement = before(&none(), &lease_expired()).unwrap();
    assert_eq!(seen(&settlement), (Status::Uncertain, PARKED, Some("lease_expired")));
    // It was counted by the claim.
    assert!(!settlement.unknown);
}

#[test]
fn a_row_scheduled_under_keys_is_not_sent_once_the_policy_has_none() {
    assert_eq!(before(&policy(), &doubtful()), None);
    let settlement = before(&none(), &doubtful()).unwrap();
    assert_eq!(seen(&settlement), (Status::Uncertain, PARKED, Some("in_doubt")));
    assert_eq!(seen(&release(&none(), &doubtful())), (Status::Uncertain, PARKED, Some("in_doubt")));
}

#[test]
fn past_its_authority_nothing_is_sent() {
    let expired = RowFacts { expired: true, ..row() };
    assert_eq!(seen(&before(&policy(), &expired).unwrap()), (Status::Dead, ENDED, Some("expired")));
    for policy in [policy(), none()] {
        let expired = RowFacts { expired: true, ..lease_expired() };
        assert_eq!(seen(&before(&policy, &expired).unwrap()), (Status::Uncertain, PARKED, Some("expired")));
    }
}

#[test]
fn the_key_window_binds_what_the_receiver_may_have_stored() {
    let ages = [(MINUTE * 59, false), (HOUR, true)];
    for (dispatch_age, over) in ages {
        let fresh = RowFacts { dispatch_age, first_dispatch: false, ..row() };
        // Throttled or refused for a day: nothing was stored, so nothing is forgotten.
        assert_eq!(before(&windowed(), &fresh), None);
        for bound in [RowFacts { dispatch_age, ..doubtful() }, RowFacts { answered_5xx: true, ..fresh }] {
            let parked = before(&windowed(), &bound).map(|settlement| settlement.reason.unwrap());
            assert_eq!(parked, over.then_some(Reason::KEY_WINDOW), "{bound:?}");
            // No window: remembered for ever.
            assert_eq!(before(&policy(), &bound), None);
        }
    }
}

#[test]
fn a_refusal_settles_the_doubt_only_as_the_receivers_word_on_the_key() {
    let settles = |policy: &Policy, row: &RowFacts, status| after(policy, row, &answer(status)).status == Status::Dead;
    assert!(settles(&policy(), &doubtful(), 400));
    assert!(settles(&policy(), &doubtful(), 422));
    // Inside its window alone.
    assert!(settles(&windowed(), &RowFacts { dispatch_age: MINUTE * 59, ..doubtful() }, 422));
    assert!(!settles(&windowed(), &RowFacts { dispatch_age: HOUR, ..doubtful() }, 422));
    // From a receiver that enforces keys alone.
    assert!(!settles(&none(), &doubtful(), 422));
    // A policy that calls everything rejected cannot make a proxy's word the receiver's.
    let rule = |reason| ClassifyRule { when: AnswerCondition::default(), verdict: Classified::Dead, reason };
    let all_rejected = Policy { classify: vec![rule(None)], ..policy() };
    for status in [200, 202, 400, 404, 410, 422] {
        assert!(settles(&all_rejected, &doubtful(), status), "{status}");
    }
    for status in [302, 401, 403, 408, 409, 425, 429, 500, 502, 503, 999] {
        assert!(!settles(&all_rejected, &doubtful(), status), "{status}");
    }
    // Another reason is another statement.
    let named = Policy { classify: vec![rule(Some(Reason::custom("closed".to_owned())))], ..policy() };
    assert!(!settles(&named, &doubtful(), 422));
}

#[test]
fn an_answer_of_5xx_is_remembered() {
    for (seen_by, stored) in [
        (answer(500), true),
        (answer(599), true),
        (answer(429), false),
        (timeout(), false),
        (refused_connection(), false),
    ] {
        assert_eq!(after(&policy(), &row(), &seen_by).answered_5xx, stored, "{seen_by:?}");
    }
}

#[test]
fn clocks_begin_with_what_has_left() {
    let later = RowFacts { attempts: 2, first_dispatch: false, retry_age: MINUTE, ..row() };
    for (seen_by, nothing_left) in [
        (refused_connection(), true),
        (not_built(), true),
        (timeout(), false),
        (answer(429), false),
        (answer(500), false),
    ] {
        let settlement = after(&policy(), &row(), &seen_by);
        assert_eq!(settlement.clear_first_dispatch, nothing_left, "{seen_by:?}");
        // An earlier attempt's bytes are not taken back.
        assert!(!after(&policy(), &later, &seen_by).clear_first_dispatch);
        // An attempt was made, so the row's age has begun.
        assert!(!settlement.clear_retry_since);
    }
}

#[test]
fn a_release_undoes_the_claim() {
    let first = release(&policy(), &row());
    assert_eq!(seen(&first), (Status::Pending, AT_ONCE, None));
    assert!(first.give_back_attempt && !first.wait && !first.unknown);
    assert!(first.clear_first_dispatch && first.clear_retry_since);

    let later = release(&policy(), &RowFacts { attempts: 2, first_dispatch: false, retry_age: MINUTE, ..row() });
    assert!(later.give_back_attempt && !later.clear_first_dispatch && !later.clear_retry_since);

    // After a wait, which gave its attempt back, too: the age goes on.
    let waited = release(&policy(), &RowFacts { first_dispatch: false, retry_age: MINUTE, ..row() });
    assert!(waited.give_back_attempt && !waited.clear_retry_since);
}

#[test]
fn a_row_given_back_after_a_lost_worker_is_not_sent_again_where_nothing_deduplicates() {
    assert_eq!(seen(&release(&none(), &lease_expired())), (Status::Uncertain, PARKED, Some("lease_expired")));
    assert_eq!(seen(&release(&policy(), &lease_expired())), (Status::Uncertain, AT_ONCE, None));
    assert_eq!(seen(&release(&none(), &row())), (Status::Pending, AT_ONCE, None));
}
