//! The verdict table, row by row.

use proptest::prelude::*;

use super::{
    super::samples::{policy, row},
    *,
};

const MINUTE: Duration = Duration::from_secs(60);

fn answer(status: u16) -> Answer {
    Answer { status, ..Answer::default() }
}

fn answered(answer: Answer) -> Observation {
    Observation::Answer(answer)
}

fn retry(reason: Reason, at_least: Option<Duration>) -> Verdict {
    Verdict::Retry { reason, at_least }
}

fn wait(reason: Reason, stated: Option<Duration>) -> Verdict {
    Verdict::Wait { reason, stated }
}

fn dead(reason: Reason) -> Verdict {
    Verdict::Dead { reason }
}

fn uncertain(reason: Reason) -> Verdict {
    Verdict::Uncertain { reason }
}

#[test]
fn every_answer_has_its_verdict() {
    let succeeded = || Verdict::Succeeded { downstream_id: None };
    let policy = policy();
    let first = row();
    let doubtful = RowFacts { unknown_attempts: 1, ..row() };
    for (statuses, retry_after, row, expected) in [
        // 2xx succeeds, whatever else is said.
        (&[200, 201, 202, 204, 206, 226, 299][..], None, &first, succeeded()),
        (&[200, 202], Some(MINUTE), &first, succeeded()),
        // The same key is being processed: come back then.
        (&[409], Some(MINUTE), &first, wait(Reason::IN_PROGRESS, Some(MINUTE))),
        (&[409], Some(MINUTE), &doubtful, wait(Reason::IN_PROGRESS, Some(MINUTE))),
        // Without a time it is our own earlier request, or a conflict.
        (&[409], None, &doubtful, retry(Reason::IN_PROGRESS, None)),
        (&[409], None, &first, dead(Reason::CONFLICT)),
        // Throttled: for the stated time, else counted.
        (&[429], Some(MINUTE), &first, wait(Reason::THROTTLED, Some(MINUTE))),
        (&[429], None, &first, retry(Reason::THROTTLED, None)),
        // Not now.
        (&[408, 425], None, &first, retry(Reason::NOT_READY, None)),
        (&[408, 425], Some(MINUTE), &first, retry(Reason::NOT_READY, Some(MINUTE))),
        (&[500, 501, 502, 503, 504, 529, 599], None, &first, retry(Reason::SERVER_ERROR, None)),
        (&[500, 503], Some(MINUTE), &first, retry(Reason::SERVER_ERROR, Some(MINUTE))),
        // For a person.
        (&[401, 403], None, &first, dead(Reason::UNAUTHORIZED)),
        (&[401, 403], Some(MINUTE), &first, dead(Reason::UNAUTHORIZED)),
        (&[300, 301, 302, 303, 304, 307, 308, 399], None, &first, dead(Reason::REDIRECTED)),
        (&[400, 402, 404, 405, 410, 413, 415, 422, 423, 426, 428, 431, 451, 499], None, &first, dead(Reason::REJECTED)),
        (&[404, 422], Some(MINUTE), &doubtful, dead(Reason::REJECTED)),
        // No final status of HTTP.
        (&[0, 99, 100, 101, 103, 199, 600, 999, u16::MAX], None, &first, uncertain(Reason::MALFORMED)),
    ] {
        for &status in statuses {
            let seen = answered(Answer { retry_after, ..answer(status) });
            assert_eq!(judge(&policy, row, &seen), expected, "{status} with Retry-After {retry_after:?}");
        }
    }
}

#[test]
fn what_is_no_answer_has_its_verdict() {
    let detail = String::new;
    for reason in [Reason::DNS, Reason::CONNECT, Reason::CONNECT_TIMEOUT, Reason::TLS] {
        let seen = Observation::NotExecuted { reason: reason.clone(), detail: detail() };
        assert_eq!(judge(&policy(), &row(), &seen), retry(reason, None));
    }
    for reason in [Reason::TIMEOUT, Reason::RESET, Reason::MALFORMED] {
        let seen = Observation::Unknown { reason: reason.clone(), detail: detail() };
        assert_eq!(judge(&policy(), &row(), &seen), uncertain(reason));
    }
    for reason in [Reason::INVALID, Reason::BLOCKED] {
        let seen = Observation::NotBuilt { reason: reason.clone(), detail: detail() };
        assert_eq!(judge(&policy(), &row(), &seen), dead(reason));
    }
}

#[test]
fn a_receiver_without_keys_may_have_done_the_work_before_it_failed() {
    let none = Policy { receiver_enforces_keys: false, ..policy() };
    for status in [500, 502, 503, 504, 599] {
        let seen = answered(Answer { retry_after: Some(MINUTE), ..answer(status) });
        assert_eq!(judge(&none, &row(), &seen), uncertain(Reason::SERVER_ERROR), "{status}");
    }
    // All else is as with keys.
    for status in (100..500).chain(600..700) {
        for retry_after in [None, Some(MINUTE)] {
            let seen = answered(Answer { retry_after, ..answer(status) });
            assert_eq!(judge(&none, &row(), &seen), judge(&policy(), &row(), &seen), "{status}");
        }
    }
}

#[test]
fn success_keeps_what_the_receiver_called_it() {
    let seen = answered(Answer { downstream_id: Some("in_1".to_owned()), ..answer(201) });
    let expected = Verdict::Succeeded { downstream_id: Some("in_1".to_owned()) };
    assert_eq!(judge(&policy(), &row(), &seen), expected);
}

fn rule(statuses: &[(u16, u16)], verdict: Classified) -> ClassifyRule {
    let when = AnswerCondition { statuses: statuses.to_vec(), ..AnswerCondition::default() };
    ClassifyRule { when, verdict, reason: None }
}

fn with(rules: Vec<ClassifyRule>) -> Policy {
    Policy { classify: rules, ..policy() }
}

#[test]
fn a_rule_of_the_policy_comes_before_the_table() {
    let stated = Some(MINUTE);
    for (classified, expected) in [
        (Classified::Succeeded, Verdict::Succeeded { downstream_id: None }),
        (Classified::Retry, retry(Reason::SERVER_ERROR, stated)),
        (Classified::Wait, wait(Reason::IN_PROGRESS, stated)),
        (Classified::Uncertain, uncertain(Reason::SERVER_ERROR)),
        (Classified::Dead, dead(Reason::REJECTED)),
    ] {
        let policy = with(vec![rule(&[(404, 404), (500, 599)], classified)]);
        for status in [404, 500, 599] {
            let seen = answered(Answer { retry_after: stated, ..answer(status) });
            assert_eq!(judge(&policy, &row(), &seen), expected, "{status} {classified:?}");
        }
        // What no rule matches is the table's.
        assert_eq!(judge(&policy, &row(), &answered(answer(403))), dead(Reason::UNAUTHORIZED));
    }
}

#[test]
fn the_first_rule_that_matches_wins_and_names_its_reason() {
    let named =
        ClassifyRule { reason: Some(Reason::custom("gone".to_owned())), ..rule(&[(404, 404)], Classified::Dead) };
    let policy = with(vec![named, rule(&[], Classified::Retry)]);
    assert_eq!(judge(&policy, &row(), &answered(answer(404))), dead(Reason::custom("gone".to_owned())));
    assert_eq!(judge(&policy, &row(), &answered(answer(200))), retry(Reason::SERVER_ERROR, None));
}

#[test]
fn a_rule_is_about_answers_only() {
    let policy = with(vec![rule(&[], Classified::Succeeded)]);
    let seen = Observation::Unknown { reason: Reason::TIMEOUT, detail: String::new() };
    assert_eq!(judge(&policy, &row(), &seen), uncertain(Reason::TIMEOUT));
}

#[test]
fn all_conditions_of_a_rule_must_hold() {
    let conditions = |body: Option<(&str, Option<bool>, Option<&str>)>, header: Option<(&str, Option<&str>)>| {
        let body = body.map(|(pointer, exists, value)| BodyCondition {
            pointer: pointer.to_owned(),
            exists,
            value: value.map(str::to_owned),
        });
        let header = header.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        let when = AnswerCondition { statuses: vec![(200, 299)], body, header };
        with(vec![ClassifyRule { when, ..rule(&[], Classified::Dead) }])
    };
    let seen = answered(Answer {
        headers: vec![("idempotent-replayed".to_owned(), "true".to_owned())],
        body: Some(r#"{"errors": [], "code": 7, "state": "failed", "none": null}"#.to_owned()),
        ..answer(200)
    });
    let empty = answered(answer(200));
    for (body, header, matches_full, matches_empty) in [
        (Some(("/errors", None, None)), None, true, false),
        (Some(("/errors", Some(true), None)), None, true, false),
        (Some(("/errors", Some(false), None)), None, false, true),
        (Some(("/missing", Some(false), None)), None, true, true),
        (Some(("/missing", None, None)), None, false, false),
        (Some(("/none", Some(true), None)), None, true, false),
        (Some(("/code", None, Some("7"))), None, true, false),
        (Some(("/code", None, Some("7.0"))), None, false, false),
        (Some(("/state", None, Some("failed"))), None, true, false),
        (Some(("/state", Some(true), Some("done"))), None, false, false),
        (None, Some(("idempotent-replayed", None)), true, false),
        (None, Some(("idempotent-replayed", Some("true"))), true, false),
        (None, Some(("idempotent-replayed", Some("false"))), false, false),
        (Some(("/code", None, Some("7"))), Some(("idempotent-replayed", Some("true"))), true, false),
        (Some(("/code", None, Some("8"))), Some(("idempotent-replayed", Some("true"))), false, false),
    ] {
        let policy = conditions(body, header);
        let succeeds = Verdict::Succeeded { downstream_id: None };
        for (seen, matches) in [(&seen, matches_full), (&empty, matches_empty)] {
            let expected = if matches { dead(Reason::REJECTED) } else { succeeds.clone() };
            assert_eq!(judge(&policy, &row(), seen), expected, "{body:?} {header:?} of {seen:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_answer_panics_and_only_2xx_succeeds(
        status in any::<u16>(),
        retry_after in any::<Option<Duration>>(),
        body in any::<Option<String>>(),
        enforced in any::<bool>(),
        unknown_attempts in 0..3_u32,
    ) {
        let policy = Policy { receiver_enforces_keys: enforced, ..policy() };
        let row = RowFacts { unknown_attempts, ..row() };
        let verdict = judge(&policy, &row, &answered(Answer { retry_after, body, ..answer(status) }));
        let succeeded = matches!(verdict, Verdict::Succeeded { .. });
        prop_assert_eq!(succeeded, (200..300).contains(&status));
        // What says nothing final of the row is never called dead.
        let dead = matches!(verdict, Verdict::Dead { .. });
        prop_assert!(!dead || (300..500).contains(&status));
    }
}

fn query() -> StatusQuery {
    let statuses = |first, last| AnswerCondition { statuses: vec![(first, last)], ..AnswerCondition::default() };
    StatusQuery {
        url: "https://receiver.test/{key}".to_owned(),
        method: "GET",
        done: vec![statuses(200, 200)],
        unknown: vec![statuses(404, 404), statuses(200, 202)],
        pending: vec![statuses(202, 202)],
        settle_delay: MINUTE,
        timeout: Duration::from_secs(5),
    }
}

#[test]
fn a_query_is_told_what_its_rules_say_and_overlapping_rules_send_nothing() {
    for (status, expected) in [
        (200, Told::Done { downstream_id: None }),
        (201, Told::Unknown),
        (202, Told::Pending),
        (404, Told::Unknown),
        (401, Told::Unclear),
        (500, Told::Unclear),
    ] {
        assert_eq!(told(&query(), &answered(answer(status))), expected, "{status}");
    }
    for seen in [
        Observation::Unknown { reason: Reason::TIMEOUT, detail: String::new() },
        Observation::NotExecuted { reason: Reason::CONNECT, detail: String::new() },
        Observation::NotBuilt { reason: Reason::BLOCKED, detail: String::new() },
    ] {
        assert_eq!(told(&query(), &seen), Told::Unclear, "{seen:?}");
    }
}
