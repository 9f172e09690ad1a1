//! What holds of a row whatever comes.

use proptest::prelude::*;

use super::*;

fn any_policy() -> impl Strategy<Value = Policy> {
    let rule = (
        prop::sample::select(vec![
            Classified::Succeeded,
            Classified::Retry,
            Classified::Wait,
            Classified::Uncertain,
            Classified::Dead,
        ]),
        100..600_u16,
    )
        .prop_map(|(verdict, status)| ClassifyRule {
            when: AnswerCondition { statuses: vec![(status, status + 50)], ..AnswerCondition::default() },
            verdict,
            reason: None,
        });
    let window = prop::option::of((1..3_u32).prop_map(|hours| HOUR * hours));
    (any::<bool>(), window, 1..5_u32, 1..4_u32, prop::collection::vec(rule, 0..3), prop::option::of(1..100_u64))
        .prop_map(|(receiver_enforces_keys, key_window, max_attempts, hours, classify, cap)| Policy {
            receiver_enforces_keys,
            key_window,
            max_attempts,
            max_age: HOUR * hours,
            classify,
            retry_after_cap: cap.map(Duration::from_secs),
            ..policy()
        })
}

fn any_row() -> impl Strategy<Value = RowFacts> {
    let flags = any::<(bool, bool, bool, bool, bool)>();
    (1..8_u32, 0..3_u32, flags, 0..5_u32, 0..5_u32).prop_map(
        |(attempts, unknown, (lease_expired, in_doubt, answered_5xx, first_dispatch, expired), retry, dispatch)| {
            RowFacts {
                attempts,
                // A claim that finds a lost worker or an uncertain row knows of an unknown attempt.
                unknown_attempts: unknown.max(u32::from(lease_expired || in_doubt)),
                lease_expired,
                in_doubt: in_doubt && !lease_expired,
                answered_5xx,
                first_dispatch,
                retry_age: HOUR * retry,
                dispatch_age: HOUR * dispatch,
                expired,
                waits: 0,
                since_last_send: HOUR * dispatch,
            }
        },
    )
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let retry_after = prop::option::of(any::<Duration>());
    prop_oneof![
        8 => (0..1_000_u16, retry_after)
            .prop_map(|(status, retry_after)| Observation::Answer(Answer { status, retry_after, ..Answer::default() })),
        1 => Just(refused_connection()),
        1 => Just(timeout()),
        1 => Just(not_built()),
    ]
}

/// A policy that does not respect `Retry-After` does not read it, and one that does bounds it.
fn as_read(policy: &Policy, seen: Observation) -> Observation {
    match seen {
        Observation::Answer(answer) => {
            let stated = answer.retry_after.zip(policy.retry_after_cap).map(|(stated, cap)| stated.min(cap));
            Observation::Answer(Answer { retry_after: stated, ..answer })
        }
        other => other,
    }
}

/// What no settlement may break.
fn well_formed(policy: &Policy, row: &RowFacts, settlement: &Settlement) -> Result<(), TestCaseError> {
    let Settlement { status, due, reason, .. } = settlement;
    let fits = match status {
        Status::Succeeded | Status::Dead => *due == ENDED,
        Status::Pending => matches!(due, Due::After(_)),
        Status::Uncertain => *due != ENDED,
        Status::InFlight | Status::Cancelled | Status::Superseded => false,
    };
    prop_assert!(fits, "{settlement:?}");
    let needs_reason = matches!(status, Status::Dead) || *due == PARKED;
    prop_assert!(!needs_reason || reason.is_some());
    // Without keys an uncertain row is for a person, and nothing else schedules it.
    prop_assert!(policy.receiver_enforces_keys || *status != Status::Uncertain || *due == PARKED);
    // With keys a row that may have been executed says so.
    let doubt = row.unknown_attempts > 0 || settlement.unknown;
    prop_assert!(!policy.receiver_enforces_keys || *status != Status::Pending || !doubt);
    Ok(())
}

proptest! {
    #[test]
    fn whatever_comes_of_an_attempt_keeps_the_rules(
        policy in any_policy(),
        row in any_row(),
        seen in any_observation(),
        random in 0.0..1.0,
    ) {
        let seen = as_read(&policy, seen);
        let verdict = judge(&policy, &row, &seen);
        let settlement = after_attempt(&policy, &row, &seen, &verdict, random);
        well_formed(&policy, &row, &settlement)?;

        let doubt = row.unknown_attempts > 0 || settlement.unknown;
        let refused = settlement.reason == Some(Reason::REJECTED)
            && policy.receiver_enforces_keys
            && policy.key_window.is_none_or(|window| row.dispatch_age < window)
            && matches!(seen, Observation::Answer(_));
        prop_assert!(settlement.status != Status::Dead || !doubt || refused, "{:?}", settlement);

        prop_assert_eq!(settlement.give_back_attempt, settlement.wait);
        let waits = matches!(verdict, Verdict::Wait { .. });
        prop_assert!(!settlement.wait || waits);
        let uncertain = matches!(verdict, Verdict::Uncertain { .. });
        prop_assert_eq!(settlement.unknown, uncertain);
        prop_assert!(!settlement.clear_retry_since);
        if let Due::After(delay) = settlement.due {
            let cap = policy.retry_after_cap.unwrap_or_default().max(SECOND);
            let longest = (cap + SECOND.max(cap / 10)).max(policy.backoff.max_delay(row.attempts));
            prop_assert!(delay <= longest, "{:?} above {:?}", delay, longest);
            prop_assert!(!settlement.wait || delay >= SECOND);
        }
    }

    #[test]
    fn whatever_is_not_sent_gives_its_attempt_back_and_keeps_the_rules(policy in any_policy(), row in any_row()) {
        for settlement in before(&policy, &row).into_iter().chain([release(&policy, &row)]) {
            well_formed(&policy, &row, &settlement)?;
            prop_assert!(settlement.give_back_attempt && !settlement.wait && !settlement.unknown);
            prop_assert!(settlement.status != Status::Dead || row.unknown_attempts == 0);
            prop_assert_eq!(settlement.clear_first_dispatch, row.first_dispatch);
            prop_assert_eq!(settlement.clear_retry_since, row.attempts == 1 && row.retry_age.is_zero());
        }
    }

    #[test]
    fn nothing_is_sent_in_doubt_without_keys_or_past_a_limit(policy in any_policy(), row in any_row()) {
        if before(&policy, &row).is_none() {
            prop_assert!(!row.expired && row.attempts <= policy.max_attempts);
            prop_assert!(policy.receiver_enforces_keys || !(row.lease_expired || row.in_doubt));
            let stored = row.unknown_attempts > 0 || row.answered_5xx;
            prop_assert!(!stored || policy.key_window.is_none_or(|window| row.dispatch_age < window));
        }
    }
}
