//! Rows whose receiver can be asked, and rows that need a permission.

use super::*;
use crate::domain::settings::AnswerCondition;

fn query() -> StatusQuery {
    StatusQuery {
        url: "https://receiver.test/{key}".to_owned(),
        method: "GET",
        done: vec![AnswerCondition::default()],
        unknown: Vec::new(),
        pending: Vec::new(),
        settle_delay: MINUTE,
        timeout: SECOND,
    }
}

fn asking(policy: Policy) -> Policy {
    Policy { status_query: Some(query()), ..policy }
}

fn told_unknown(policy: &Policy, row: &RowFacts) -> Plan {
    after_ask(policy, &query(), row, &Told::Unknown, 0.0)
}

fn settled_by(plan: Plan) -> Settlement {
    match plan {
        Plan::Settle(settlement) => settlement,
        plan => panic!("{plan:?}"),
    }
}

/// The last request left so long ago that nothing of it can be on its way.
fn settled_row() -> RowFacts {
    RowFacts { since_last_send: MINUTE, ..doubtful() }
}

#[test]
fn a_row_in_doubt_is_asked_about_before_anything_else() {
    for base in [policy(), none(), windowed()] {
        let asking = asking(base);
        for row in [
            doubtful(),
            lease_expired(),
            RowFacts { expired: true, ..doubtful() },
            RowFacts { dispatch_age: HOUR * 9, ..doubtful() },
            // No attempt is left, and asking uses none.
            RowFacts { attempts: asking.max_attempts + 1, ..doubtful() },
        ] {
            assert_eq!(before_send(&asking, &row), Plan::Ask, "{row:?}");
        }
        // Nothing is unknown, or a person has spoken.
        assert_eq!(before_send(&asking, &row()), Plan::Send);
        assert_eq!(before_send(&asking, &RowFacts { in_doubt: false, ..doubtful() }), Plan::Send);
    }
}

#[test]
fn a_row_that_kills_its_worker_is_not_asked_about_for_ever() {
    for base in [policy(), none()] {
        let asking = asking(base);
        let row = RowFacts { attempts: asking.max_attempts + 2, ..lease_expired() };
        let settlement = settled_by(before_send(&asking, &row));
        assert_eq!(seen(&settlement), (Status::Uncertain, PARKED, Some("exhausted")));
    }
}

#[test]
fn an_unknown_outcome_is_asked_about_where_it_would_have_parked() {
    let used_up = RowFacts { attempts: 14, ..doubtful() };
    for (policy, row) in [(none(), row()), (policy(), used_up.clone()), (none(), used_up)] {
        assert_eq!(after(&policy, &row, &timeout()).due, PARKED);
        let settlement = after(&asking(policy), &row, &timeout());
        assert_eq!((settlement.status, settlement.unknown, settlement.sent), (Status::Uncertain, true, true));
        assert!(matches!(settlement.due, Due::After(_)));
    }
    // Endless asking ends as endless waiting does.
    let old = RowFacts { retry_age: HOUR * 24, ..doubtful() };
    assert_eq!(after(&asking(none()), &old, &timeout()).due, PARKED);
}

#[test]
fn done_there_is_done_and_uses_no_attempt() {
    let told = Told::Done { downstream_id: Some("in_1".to_owned()) };
    // Whatever else stands against the row: it was executed.
    for row in [doubtful(), RowFacts { expired: true, attempts: 99, dispatch_age: HOUR * 99, ..lease_expired() }] {
        let settlement = settled_by(after_ask(&windowed(), &query(), &row, &told, 0.0));
        assert_eq!(seen(&settlement), (Status::Succeeded, ENDED, None));
        assert_eq!(settlement.downstream_id.as_deref(), Some("in_1"));
        assert!(settlement.give_back_attempt && !settlement.unknown && !settlement.sent);
    }
}

#[test]
fn unknown_there_is_believed_only_when_the_last_request_cannot_be_on_its_way() {
    for base in [policy(), none()] {
        let asking = asking(base);
        assert_eq!(told_unknown(&asking, &settled_row()), Plan::Send);
        let early = RowFacts { since_last_send: SECOND * 59, ..doubtful() };
        let settlement = settled_by(told_unknown(&asking, &early));
        assert_eq!(seen(&settlement), (Status::Uncertain, Due::After(SECOND), Some("settling")));
        assert!(settlement.give_back_attempt && settlement.wait && !settlement.unknown);
        // Not before a second, however little is missing, and not later than it takes.
        let barely = RowFacts { since_last_send: Duration::from_millis(59_999), waits: 60, ..doubtful() };
        assert_eq!(settled_by(told_unknown(&asking, &barely)).due, Due::After(SECOND));
    }
}

#[test]
fn a_row_that_the_receiver_does_not_know_is_still_bound_by_its_limits() {
    for (row, reason) in [
        (RowFacts { expired: true, ..settled_row() }, "expired"),
        (RowFacts { attempts: 15, ..settled_row() }, "exhausted"),
        (RowFacts { dispatch_age: HOUR, ..settled_row() }, "key_window"),
    ] {
        let settlement = settled_by(told_unknown(&asking(windowed()), &row));
        assert_eq!(seen(&settlement), (Status::Uncertain, PARKED, Some(reason)));
    }
}

#[test]
fn no_clear_answer_is_asked_again_later_and_later_and_parks_in_the_end() {
    let policy = asking(none());
    for (told, reason) in [(Told::Pending, "in_progress"), (Told::Unclear, "query_unclear")] {
        let again = |row: &RowFacts, random| settled_by(after_ask(&policy, &query(), row, &told, random));
        let first = again(&settled_row(), 0.0);
        assert_eq!(seen(&first), (Status::Uncertain, Due::After(SECOND), Some(reason)));
        assert!(first.give_back_attempt && first.wait && !first.unknown && !first.sent);
        let tenth = RowFacts { waits: 9, ..settled_row() };
        assert_eq!(again(&tenth, 0.0).due, Due::After(SECOND * 512));
        assert_eq!(again(&tenth, 0.5).due, Due::After(SECOND * 768));
        let many = RowFacts { waits: u32::MAX, ..settled_row() };
        assert_eq!(again(&many, 0.0).due, Due::After(HOUR / 2));
        let old = RowFacts { retry_age: HOUR * 24, ..settled_row() };
        assert_eq!(seen(&again(&old, 0.0)), (Status::Uncertain, PARKED, Some(reason)));
    }
}

#[test]
fn a_row_that_waits_after_an_unknown_attempt_is_asked_about_again() {
    // Sent again, and nothing was executed this time: the doubt of the attempt before stays.
    for base in [policy(), none()] {
        let settlement = after(&asking(base), &doubtful(), &refused_connection());
        assert_eq!(settlement.status, Status::Uncertain);
        assert!(!settlement.sent);
    }
}

#[test]
fn a_row_given_back_keeps_its_doubt_and_a_persons_word() {
    let policy = asking(none());
    assert_eq!(release(&policy, &doubtful()).status, Status::Uncertain);
    assert_eq!(release(&policy, &lease_expired()).status, Status::Uncertain);
    assert_eq!(release(&policy, &RowFacts { in_doubt: false, ..doubtful() }).status, Status::Pending);
    assert_eq!(release(&policy, &row()).status, Status::Pending);
}

#[test]
fn a_row_that_may_not_be_sent_is_revoked_and_nothing_else_is_a_pass() {
    let denied = Authority::Denied { why: String::new() };
    let settlement = not_allowed(&policy(), &row(), &denied, 0.0);
    assert_eq!(seen(&settlement), (Status::Dead, ENDED, Some("revoked")));
    assert!(settlement.give_back_attempt && settlement.clear_first_dispatch && !settlement.sent);
    // What may have been executed is never called dead.
    assert_eq!(seen(&not_allowed(&policy(), &doubtful(), &denied, 0.0)), (Status::Uncertain, PARKED, Some("revoked")));

    let unclear = Authority::Unclear { detail: String::new() };
    let settlement = not_allowed(&policy(), &row(), &unclear, 0.5);
    assert_eq!(seen(&settlement), (Status::Pending, Due::After(SECOND), Some("check_failed")));
    assert!(!settlement.give_back_attempt && settlement.clear_first_dispatch && !settlement.clear_retry_since);
    let last = RowFacts { attempts: 14, first_dispatch: false, ..row() };
    assert_eq!(seen(&not_allowed(&policy(), &last, &unclear, 0.5)), (Status::Dead, ENDED, Some("exhausted")));

    let unasked = Authority::Unasked { detail: String::new() };
    let settlement = not_allowed(&policy(), &last, &unasked, 0.5);
    assert_eq!(seen(&settlement), (Status::Pending, Due::After(SECOND * 3 / 2), Some("check_failed")));
    assert!(settlement.give_back_attempt && settlement.wait && !settlement.clear_retry_since);
    // A check that stays down is asked less and less, and the row's age ends it.
    let later = not_allowed(&policy(), &RowFacts { waits: 4, ..row() }, &unasked, 0.5);
    assert_eq!(seen(&later), (Status::Pending, Due::After(SECOND * 24), Some("check_failed")));
    let old = RowFacts { retry_age: policy().max_age, ..row() };
    assert_eq!(seen(&not_allowed(&policy(), &old, &unasked, 0.5)), (Status::Dead, ENDED, Some("exhausted")));
}
