//! Pods follow the rows that are due in a real table.

use k8s_openapi::api::apps::v1::Deployment;
use outbox_operator::{
    api::OutboxRelay,
    demo::{PostgresOptions, ThrowawayPostgres},
};
use serde_json::{Value, json};

use crate::support::{World, eventually, replicas};

/// One pod a row, and quick to go.
fn eager(spec: &mut Value) {
    spec["concurrency"] = json!(1);
    spec["scaling"] = json!({
        "maxReplicas": 4, "targetDrain": "1s", "maxOldestDueAge": "1h",
        "scaleDown": { "stabilization": "1s", "step": 2 },
    });
}

fn scaling(relay: &OutboxRelay) -> (i32, Option<String>, String) {
    let scaling = relay.status.clone().unwrap_or_default().scaling.unwrap_or_default();
    (scaling.desired, scaling.limited_by, scaling.reason)
}

#[tokio::test]
async fn pods_follow_the_due_rows_up_to_the_cap_and_back_to_none() {
    let (world, operator) = World::new().await;
    world.relay("billing", eager).await;
    world.replicas("billing-relay", 0).await;
    world.condition("billing", "Ready", "True", "ScaledToZero").await;
    world.rows(3, "pending", "0").await;
    world.replicas("billing-relay", 3).await;
    world.rows(100, "pending", "0").await;
    world.replicas("billing-relay", 4).await;
    let limited = |relay: &OutboxRelay| scaling(relay) == (4, Some("MaxReplicas".to_owned()), "Backlog".to_owned());
    world.object::<OutboxRelay>("billing", "it says what binds", limited).await;
    world.condition("billing", "ScalingLimited", "True", "MaxReplicas").await;
    world.sql("UPDATE agent_outbox SET status = 'succeeded'").await;
    world.replicas("billing-relay", 2).await;
    world.replicas("billing-relay", 0).await;
    world.condition("billing", "ScalingLimited", "False", "NotLimited").await;
    operator.stop().await;
}

#[tokio::test]
async fn the_connection_budget_binds_before_max_replicas() {
    let (world, operator) = World::new().await;
    world.rows(100, "pending", "0").await;
    world
        .relay("billing", |spec| {
            eager(spec);
            // 14 connections: 2 for the operator, 4 pods of 3, one of them for the surge.
            spec["database"]["connectionBudget"] = json!(14);
        })
        .await;
    world.replicas("billing-relay", 3).await;
    world.condition("billing", "ScalingLimited", "True", "ConnectionBudget").await;
    operator.stop().await;
}

#[tokio::test]
async fn rc_17_rows_that_nobody_can_send_now_ask_for_no_pod() {
    let (world, operator) = World::new().await;
    world.rows(1000, "pending", "1 day").await;
    world.rows(50, "dead", "0").await;
    world.rows(7, "succeeded", "0").await;
    world.sql("INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, next_attempt_at)
               VALUES (gen_random_uuid(), 'op', 'e', 'parked', 'http://receiver.test/', '{}', 'uncertain', 'infinity')").await;
    world.relay("billing", eager).await;
    let counted = |relay: &OutboxRelay| {
        let backlog = relay.status.clone().unwrap_or_default().backlog.unwrap_or_default();
        (backlog.due, backlog.waiting, backlog.dead, backlog.uncertain_parked) == (0, 1000, 50, 1)
    };
    world.object::<OutboxRelay>("billing", "the rows are counted", counted).await;
    world.replicas("billing-relay", 0).await;
    // 0 due and 5 in flight: the last pod stays.
    world.rows(1, "pending", "0").await;
    world.replicas("billing-relay", 1).await;
    world.sql("UPDATE agent_outbox SET status = 'in_flight', next_attempt_at = now() + interval '1 hour' WHERE status = 'pending' AND next_attempt_at <= now()").await;
    let in_flight = |relay: &OutboxRelay| relay.status.as_ref().unwrap().backlog.as_ref().unwrap().in_flight == 1;
    world.object::<OutboxRelay>("billing", "it is counted", in_flight).await;
    world.object::<OutboxRelay>("billing", "the last pod stays for it", |relay| scaling(relay).2 == "InFlight").await;
    // Longer than the stabilisation of a second and two sample intervals.
    let since = std::time::Instant::now();
    while since.elapsed().as_secs() < 3 {
        world.visit(&operator, "billing").await;
        assert_eq!(replicas(&world.deployment("billing-relay", "it is there", |_| true).await), 1);
    }
    operator.stop().await;
}

#[tokio::test]
async fn a_row_that_falls_due_wakes_a_relay_from_zero() {
    let world = World::empty().await;
    world.migrate().await;
    world.secret("db", &[("uri", &world.url)]).await;
    // An interval far longer than the test's patience: only the row's own time can wake the relay.
    let operator = world.operator_with(|settings| settings.sample_interval = std::time::Duration::from_secs(600));
    world.rows(1, "pending", "5 seconds").await;
    world.relay("billing", eager).await;
    world.replicas("billing-relay", 0).await;
    world.replicas("billing-relay", 1).await;
    operator.stop().await;
}

#[tokio::test]
async fn rc_31_blindness_is_not_zero() {
    let mut database = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    let mut own = World::empty().await;
    own.url = database.url();
    own.migrate().await;
    own.secret("db", &[("uri", &own.url)]).await;
    let operator = own.operator();
    own.rows(3, "pending", "0").await;
    own.relay("billing", eager).await;
    own.replicas("billing-relay", 3).await;
    let gauges = || operator.metrics().iter().any(|line| line.starts_with("outbox_backlog_rows{"));
    eventually("the gauges are there", || async { gauges().then_some(()) }).await;
    database.stop().await.unwrap();
    own.condition("billing", "BacklogKnown", "False", "DatabaseUnreachable").await;
    own.condition("billing", "Ready", "False", "DatabaseUnreachable").await;
    eventually("the gauges are absent", || async { (!gauges()).then_some(()) }).await;
    own.visit(&operator, "billing").await;
    assert_eq!(replicas(&own.api::<Deployment>().get("billing-relay").await.unwrap()), 3);
    own.object::<OutboxRelay>("billing", "it says why", |relay| scaling(relay).1.as_deref() == Some("BacklogUnknown"))
        .await;
    database.restart().await.unwrap();
    own.condition("billing", "BacklogKnown", "True", "Sampled").await;
    operator.stop().await;
}
