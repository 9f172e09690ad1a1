//! Secrets and policies that come late, lack something, or go.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, Secret},
};
use kube::api::ListParams;
use outbox_operator::api::{DispatchPolicy, OutboxRelay};
use serde_json::json;

use crate::support::World;

async fn no_deployment(world: &World) {
    let found = world.api::<Deployment>().list(&ListParams::default()).await.unwrap();
    assert!(found.items.is_empty(), "{:?}", found.items);
}

#[tokio::test]
async fn rc_22_the_secret_comes_late_lacks_the_key_and_goes() {
    let world = World::empty().await;
    world.migrate().await;
    let operator = world.operator();
    world.relay("billing", |_| {}).await;
    let missing = world.condition("billing", "Ready", "False", "SecretNotFound").await;
    assert!(missing.message.contains("\"db\""), "{}", missing.message);
    no_deployment(&world).await;
    world.secret("db", &[("other", "x")]).await;
    let missing = world.condition("billing", "Ready", "False", "KeyMissing").await;
    assert!(missing.message.contains("\"uri\"") && missing.message.contains("\"db\""), "{}", missing.message);
    no_deployment(&world).await;
    let arrives = std::time::Instant::now();
    world.secret("db", &[("uri", &world.url)]).await;
    let before = world.deployment("billing-relay", "it is there", |_| true).await;
    assert!(arrives.elapsed().as_secs() < 10, "the Deployment took {:?}", arrives.elapsed());
    world.delete::<Secret>("db").await;
    let gone = world.condition("billing", "Ready", "False", "SecretNotFound").await;
    assert!(gone.message.contains("running pods keep what they have"), "{}", gone.message);
    let after = world.deployment("billing-relay", "it is there", |_| true).await;
    assert_eq!(after.metadata.generation, before.metadata.generation);
    let events = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let told = events.iter().filter(|event| event.reason.as_deref() == Some("KeyMissing")).count();
    assert_eq!(told, 1, "told once");
    operator.stop().await;
}

#[tokio::test]
async fn a_policy_that_is_missing_stops_the_rollout_and_no_pod() {
    let (world, operator) = World::new().await;
    world.relay("billing", |spec| spec["policyRef"] = json!({ "name": "strict" })).await;
    let missing = world.condition("billing", "PoliciesResolved", "False", "PolicyNotFound").await;
    assert!(missing.message.contains("strict"), "{}", missing.message);
    world.condition("billing", "Ready", "False", "PolicyNotFound").await;
    no_deployment(&world).await;
    world.apply::<DispatchPolicy>("strict", json!({})).await.unwrap();
    let before = world.deployment("billing-relay", "it is there", |_| true).await;
    world.condition("billing", "PoliciesResolved", "True", "Resolved").await;
    world.delete::<DispatchPolicy>("strict").await;
    world.condition("billing", "PoliciesResolved", "False", "PolicyNotFound").await;
    let after = world.deployment("billing-relay", "it is there", |_| true).await;
    assert_eq!(after.metadata.generation, before.metadata.generation);
    operator.stop().await;
}

#[tokio::test]
async fn a_lease_shorter_than_its_policys_deadline_rolls_nothing_out() {
    let (world, operator) = World::new().await;
    world.apply::<DispatchPolicy>("slow", json!({ "timeouts": { "total": "10m" } })).await.unwrap();
    world.relay("billing", |spec| spec["policyRef"] = json!({ "name": "slow" })).await;
    let short = world.condition("billing", "Ready", "False", "LeaseTooShort").await;
    assert!(short.message.contains("leaseDuration"), "{}", short.message);
    no_deployment(&world).await;
    world.apply::<DispatchPolicy>("slow", json!({ "timeouts": { "total": "10s" } })).await.unwrap();
    let before = world.deployment("billing-relay", "it is there", |_| true).await;
    world.apply::<DispatchPolicy>("slow", json!({ "timeouts": { "total": "10m" } })).await.unwrap();
    world.condition("billing", "Ready", "False", "LeaseTooShort").await;
    let after = world.deployment("billing-relay", "it is there", |_| true).await;
    assert_eq!(after.metadata.generation, before.metadata.generation);
    // Suspension is heard all the same.
    world
        .relay("billing", |spec| {
            spec["policyRef"] = json!({ "name": "slow" });
            spec["suspend"] = json!(true);
        })
        .await;
    world.replicas("billing-relay", 0).await;
    world
        .object::<OutboxRelay>("billing", "it says so", |relay| {
            relay.status.as_ref().unwrap().conditions.iter().any(|c| c.type_ == "Suspended" && c.status == "True")
        })
        .await;
    operator.stop().await;
}
