//! The decision as a table: one line a situation.

use super::*;
use LimitedBy as L;
use Reason as R;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// Three ready pods of concurrency 10, nothing to do, and nothing has happened for ten minutes.
fn calm() -> Inputs {
    Inputs {
        limits: Limits {
            min_replicas: 0,
            max_replicas: 10,
            max_connections: 3,
            connection_budget: 100,
            concurrency: 10,
            target_drain: 30 * SECOND,
            max_oldest_due_age: 60 * SECOND,
            stabilization: 120 * SECOND,
            step: 1,
        },
        suspend: false,
        current: 3,
        ready: 3,
        backlog: rows(0, 0),
        recent_most: Some(0),
        since_change: 600 * SECOND,
        quiet: 600 * SECOND,
        sample_interval: 5 * SECOND,
    }
}

fn rows(due: i64, in_flight: i64) -> Backlog {
    Backlog::Known { due, in_flight, oldest_due_age: None, saturated: false, drain_per_pod: None }
}

fn old(due: i64, age: u64) -> Backlog {
    let oldest_due_age = Some(Duration::from_secs(age));
    Backlog::Known { due, in_flight: 0, oldest_due_age, saturated: false, drain_per_pod: None }
}

fn drained(due: i64, rate: f64, saturated: bool) -> Backlog {
    Backlog::Known { due, in_flight: 0, oldest_due_age: None, saturated, drain_per_pod: Some(rate) }
}

fn blind(seconds: u64) -> Backlog {
    Backlog::Unknown { lasting: Duration::from_secs(seconds) }
}

type Change = fn(&mut Inputs);

#[test]
fn each_situation_has_its_number_its_cap_and_its_reason() {
    // Without a measured rate one pod drains 10 rows/s * 30 s = 300 rows in time.
    #[rustfmt::skip]
    let table: &[(&str, Change, i32, Option<L>, R)] = &[
        ("calm: one pod goes",                         |_| {},                                                                   2, None, R::SteppingDown),
        ("900 rows keep three",                        |i| i.backlog = rows(900, 0),                                              3, None, R::Backlog),
        ("901 rows ask for four",                      |i| i.backlog = rows(901, 0),                                              4, None, R::Backlog),
        ("rows in flight count",                       |i| i.backlog = rows(899, 2),                                              4, None, R::Backlog),
        ("a measured rate counts",                     |i| i.backlog = drained(900, 5.0, false),                                  6, None, R::Backlog),
        ("a rate of zero is none",                     |i| i.backlog = drained(900, 0.0, false),                                  3, None, R::Backlog),
        ("a fast receiver needs fewer",                |i| i.backlog = drained(900, 1000.0, false),                               2, None, R::SteppingDown),
        ("saturated reads as at least",                |i| i.backlog = drained(900, 1000.0, true),                                3, None, R::Backlog),
        ("an old row asks for one more",               |i| i.backlog = old(1, 61),                                                4, None, R::OldestDueAge),
        ("an old row waits for the last raise",        |i| { i.backlog = old(1, 61); i.ready = 2 },                               3, None, R::OldestDueAge),
        ("an old row waits between raises",            |i| { i.backlog = old(1, 61); i.since_change = 9 * SECOND },               3, None, R::OldestDueAge),
        ("an old row adds nothing to a larger want",   |i| i.backlog = old(1500, 61),                                             5, None, R::Backlog),
        ("maxReplicas binds",                          |i| i.backlog = rows(1_000_000, 0),                                       10, Some(L::MaxReplicas), R::Backlog),
        ("the budget binds below it",                  |i| { i.backlog = rows(1_000_000, 0); i.limits.connection_budget = 30 },   8, Some(L::ConnectionBudget), R::Backlog),
        ("the budget binds minReplicas too",           |i| { i.limits.min_replicas = 9; i.limits.connection_budget = 17 },        4, Some(L::ConnectionBudget), R::Idle),
        ("a budget for none still runs one",           |i| { i.backlog = rows(301, 0); i.limits.connection_budget = 4 },          1, Some(L::ConnectionBudget), R::Backlog),
        ("a lowered cap binds at once",                |i| { i.backlog = rows(9000, 0); i.limits.max_replicas = 2 },              2, Some(L::MaxReplicas), R::Backlog),
        ("minReplicas holds",                          |i| i.limits.min_replicas = 3,                                             3, None, R::Idle),
        ("raised minReplicas comes at once",           |i| i.limits.min_replicas = 5,                                             5, None, R::Idle),
        ("fewer, but a decision lately wanted three",  |i| i.recent_most = Some(3),                                               3, None, R::Stabilizing),
        ("fewer, but not watched for long enough",     |i| i.recent_most = None,                                                  3, None, R::Stabilizing),
        ("fewer, but the number changed lately",       |i| i.since_change = 119 * SECOND,                                         3, None, R::Stabilizing),
        ("steps as large as allowed",                  |i| { i.current = 9; i.limits.step = 4 },                                  5, None, R::SteppingDown),
        ("steps stop at what was lately wanted",       |i| { i.current = 9; i.limits.step = 4; i.recent_most = Some(7) },         7, None, R::SteppingDown),
        ("the last pod goes",                          |i| i.current = 1,                                                         0, None, R::SteppingDown),
        ("the last pod stays for rows in flight",      |i| { i.current = 1; i.backlog = rows(0, 5) },                             1, None, R::InFlight),
        ("the last pod stays for two quiet intervals", |i| { i.current = 1; i.quiet = 9 * SECOND },                               1, None, R::Stabilizing),
        ("a large step leaves the last pod as well",   |i| { i.limits.step = 9; i.quiet = 9 * SECOND },                           1, None, R::Stabilizing),
        ("one due row wakes a relay",                  |i| { i.current = 0; i.ready = 0; i.backlog = rows(1, 0) },                1, None, R::Backlog),
        ("nothing to do at zero",                      |i| { i.current = 0; i.ready = 0 },                                        0, None, R::Idle),
        ("leases that run do not wake one",            |i| { i.current = 0; i.ready = 0; i.backlog = rows(0, 5) },                0, None, R::Idle),
        ("an old row alone wakes one pod",             |i| { i.current = 0; i.ready = 0; i.backlog = old(1, 3600) },              1, None, R::Backlog),
        ("RC-31 blind: the number stays",              |i| i.backlog = blind(300),                                                3, Some(L::BacklogUnknown), R::BacklogUnknown),
        ("RC-31 blind at zero: not at once",           |i| { i.current = 0; i.backlog = blind(59) },                              0, None, R::BacklogUnknown),
        ("RC-31 blind at zero: one pod after 60 s",    |i| { i.current = 0; i.backlog = blind(60) },                              1, Some(L::BacklogUnknown), R::BacklogUnknown),
        ("blind: minReplicas holds",                   |i| { i.current = 0; i.backlog = blind(1); i.limits.min_replicas = 2 },    2, None, R::BacklogUnknown),
        ("blind: a lowered cap binds",                 |i| { i.backlog = blind(1); i.limits.max_replicas = 2 },                   2, Some(L::MaxReplicas), R::BacklogUnknown),
        ("suspended",                                  |i| { i.suspend = true; i.backlog = rows(900, 9) },                        0, None, R::Suspended),
        ("suspended and blind",                        |i| { i.suspend = true; i.backlog = blind(600) },                          0, None, R::Suspended),
    ];
    for (situation, change, desired, limited_by, reason) in table {
        let mut inputs = calm();
        change(&mut inputs);
        let decision = decide(&inputs);
        assert_eq!(
            (decision.desired, decision.limited_by, decision.reason),
            (*desired, *limited_by, *reason),
            "{situation}: {inputs:?}"
        );
    }
}

#[test]
fn the_budget_leaves_room_for_a_surge_and_the_operator() {
    let cap = |connection_budget, max_connections| {
        budget_cap(&Limits { max_connections, connection_budget, ..calm().limits })
    };
    // 30 connections: 2 for the operator, 9 pods of 3 fit the rest, one of them is the surge.
    assert_eq!(cap(30, 3), 8);
    assert_eq!(cap(8, 3), 1);
    assert_eq!(cap(1, 3), 1, "never none: the relay would not run at all");
}

#[test]
fn the_rate_of_a_pod_is_the_mean_of_those_that_know_theirs() {
    assert_eq!(drain_per_pod(20.0, 2), Some(10.0));
    assert_eq!(drain_per_pod(0.0, 2), None);
    assert_eq!(drain_per_pod(20.0, 0), None);
    assert_eq!(drain_per_pod(f64::INFINITY, 2), None);
}

fn any_inputs() -> impl Strategy<Value = Inputs> {
    let backlog = prop_oneof![
        (0_u64..1000).prop_map(blind),
        (
            0_i64..2_000_000,
            0_i64..10_000,
            proptest::option::of(0_u64..10_000),
            any::<bool>(),
            proptest::option::of(0.0..1e6)
        )
            .prop_map(|(due, in_flight, age, saturated, drain_per_pod)| Backlog::Known {
                due,
                in_flight,
                oldest_due_age: age.map(Duration::from_secs),
                saturated,
                drain_per_pod
            }),
    ];
    let limits = (0_i32..20, 1_i32..1000, 2_i32..100, 1_i32..10_000, 1_i32..4096, 1_i32..50);
    (
        limits,
        backlog,
        0_i32..1000,
        0_i32..1000,
        proptest::option::of(0_i32..1000),
        0_u64..1000,
        0_u64..1000,
        any::<bool>(),
    )
        .prop_map(|(l, backlog, current, ready, recent_most, since_change, quiet, suspend)| {
            let (min_replicas, max, max_connections, connection_budget, concurrency, step) = l;
            let limits = Limits {
                min_replicas,
                max_replicas: max.max(min_replicas),
                max_connections,
                connection_budget,
                concurrency,
                step,
                ..calm().limits
            };
            let (since_change, quiet) = (Duration::from_secs(since_change), Duration::from_secs(quiet));
            Inputs { limits, suspend, current, ready, backlog, recent_most, since_change, quiet, ..calm() }
        })
}

proptest! {
    #[test]
    fn the_number_stays_within_its_caps(inputs in any_inputs()) {
        let decision = decide(&inputs);
        let most = inputs.limits.max_replicas.min(budget_cap(&inputs.limits));
        prop_assert!((0..=most).contains(&decision.desired), "{decision:?}");
        let least = if inputs.suspend { 0 } else { inputs.limits.min_replicas.min(most) };
        prop_assert!(decision.desired >= least, "{decision:?}");
    }

    #[test]
    fn blindness_never_takes_a_pod_away(mut inputs in any_inputs(), seconds in 0_u64..100_000) {
        inputs.suspend = false;
        inputs.backlog = blind(seconds);
        let most = inputs.limits.max_replicas.min(budget_cap(&inputs.limits));
        prop_assert!(decide(&inputs).desired >= inputs.current.min(most));
    }

    #[test]
    fn pods_go_in_steps_and_the_last_one_only_when_nothing_is_left(mut inputs in any_inputs()) {
        inputs.suspend = false;
        let most = inputs.limits.max_replicas.min(budget_cap(&inputs.limits));
        let decision = decide(&inputs);
        prop_assert!(decision.desired >= inputs.current.min(most) - inputs.limits.step);
        if decision.desired == 0 && inputs.current > 0 {
            let nothing_left = matches!(inputs.backlog, Backlog::Known { due: 0, in_flight: 0, .. });
            prop_assert!(nothing_left);
        }
    }
}
