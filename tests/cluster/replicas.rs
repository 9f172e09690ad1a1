//! The number of replicas has one owner, and never falls back to 1 on its way from one to another.

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    api::{Patch, PatchParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use outbox_operator::api::OutboxRelay;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{World, replicas};

/// Notes every number that the Deployment ever asks for from now on.
async fn history(world: &World) -> mpsc::UnboundedReceiver<i32> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let api = world.api::<Deployment>();
    let version = api.list(&kube::api::ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default().timeout(290), &version).await.unwrap().boxed();
    tokio::spawn(async move {
        while let Some(Ok(event)) = events.next().await {
            if let WatchEvent::Added(deployment) | WatchEvent::Modified(deployment) = event
                && sender.send(replicas(&deployment)).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// The numbers so far, repeats left out.
fn numbers(history: &mut mpsc::UnboundedReceiver<i32>) -> Vec<i32> {
    let mut numbers: Vec<i32> = std::iter::from_fn(|| history.try_recv().ok()).collect();
    numbers.dedup();
    numbers
}

fn least(number: i32) -> impl Fn(&mut Value) {
    move |spec| spec["scaling"] = json!({ "minReplicas": number })
}

fn external(spec: &mut Value) {
    spec["scaling"] = json!({ "mode": "External", "minReplicas": 3 });
}

async fn seen(world: &World, relay: &OutboxRelay) {
    let generation = relay.metadata.generation;
    world
        .object::<OutboxRelay>("billing", "the edit was seen", |now| {
            now.status.as_ref().and_then(|status| status.observed_generation) == generation
        })
        .await;
}

#[tokio::test]
async fn a_new_deployment_has_its_number_from_the_first_moment() {
    let (world, operator) = World::new().await;
    let mut history = history(&world).await;
    let relay = world.relay("billing", least(3)).await;
    world.replicas("billing-relay", 3).await;
    seen(&world, &relay).await;
    world.visit(&operator, "billing").await;
    assert_eq!(numbers(&mut history), [3]);
    let found = world.replicas("billing-relay", 3).await;
    let owners: Vec<_> = found
        .metadata
        .managed_fields
        .unwrap()
        .into_iter()
        .filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer("/f:spec/f:replicas").is_some()))
        .map(|entry| entry.manager.unwrap())
        .collect();
    assert_eq!(owners, ["outbox-operator-scaling"]);
    operator.stop().await;
}

#[tokio::test]
async fn a_crash_right_after_the_creation_loses_no_number() {
    let world = World::empty().await;
    world.migrate().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let relay = world.relay("billing", least(3)).await;
    // What a first operator leaves that is killed between creating the Deployment and giving the number another owner.
    let left = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "billing-relay",
            "ownerReferences": [{
                "apiVersion": "outbox-operator.dev/v1alpha1", "kind": "OutboxRelay", "name": "billing",
                "uid": relay.metadata.uid, "controller": true,
            }],
        },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": {
                "app.kubernetes.io/name": "outbox-relay", "app.kubernetes.io/instance": "billing", "app.kubernetes.io/component": "relay",
            } },
            "template": {
                "metadata": { "labels": {
                    "app.kubernetes.io/name": "outbox-relay", "app.kubernetes.io/instance": "billing", "app.kubernetes.io/component": "relay",
                } },
                "spec": { "containers": [{ "name": "relay", "image": "outbox.test/relay:1" }] },
            },
        },
    });
    world
        .api::<Deployment>()
        .patch("billing-relay", &PatchParams::apply("outbox-operator"), &Patch::Apply(left))
        .await
        .unwrap();
    let mut history = history(&world).await;
    let operator = world.operator();
    world
        .deployment("billing-relay", "the operator has let go", |found| {
            found
                .metadata
                .managed_fields
                .iter()
                .flatten()
                .any(|entry| entry.manager.as_deref() == Some("outbox-operator-scaling"))
                && found
                    .metadata
                    .annotations
                    .as_ref()
                    .is_some_and(|all| all.contains_key("outbox-operator.dev/applied-hash"))
        })
        .await;
    world.visit(&operator, "billing").await;
    assert_eq!(numbers(&mut history), [3]);
    operator.stop().await;
}

#[tokio::test]
async fn rc_16_a_number_set_by_hand_survives_and_the_way_back_never_dips() {
    let (world, operator) = World::new().await;
    world.relay("billing", external).await;
    world.replicas("billing-relay", 3).await;
    let scale = json!({ "spec": { "replicas": 7 } });
    world
        .api::<Deployment>()
        .patch_scale("billing-relay", &PatchParams::default(), &Patch::Merge(scale))
        .await
        .unwrap();
    let mut history = history(&world).await;
    for _ in 0..20 {
        world.visit(&operator, "billing").await;
    }
    operator.stop().await;
    let restarted = world.operator();
    world.visit(&restarted, "billing").await;
    world.replicas("billing-relay", 7).await;
    assert!(numbers(&mut history).iter().all(|number| *number == 7));
    let relay = world
        .relay("billing", |spec| {
            spec["scaling"] = json!({ "minReplicas": 3, "scaleDown": { "stabilization": "1s", "step": 9 } });
        })
        .await;
    seen(&world, &relay).await;
    world.replicas("billing-relay", 3).await;
    world.visit(&restarted, "billing").await;
    let numbers = numbers(&mut history);
    assert!(numbers.iter().all(|number| *number >= 3), "{numbers:?}");
    restarted.stop().await;
}

#[tokio::test]
async fn from_auto_to_external_the_number_is_handed_over() {
    let (world, operator) = World::new().await;
    world.relay("billing", least(4)).await;
    world.replicas("billing-relay", 4).await;
    let mut history = history(&world).await;
    let relay = world.relay("billing", external).await;
    seen(&world, &relay).await;
    world.visit(&operator, "billing").await;
    let found = world.replicas("billing-relay", 4).await;
    let managers: Vec<_> =
        found.metadata.managed_fields.unwrap().into_iter().filter_map(|entry| entry.manager).collect();
    assert!(!managers.contains(&"outbox-operator-scaling".to_owned()), "{managers:?}");
    assert!(numbers(&mut history).iter().all(|number| *number == 4));
    // With spec.replicas, that number is applied; through the relay's own `scale`, as an autoscaler does.
    let scale = json!({ "spec": { "replicas": 2 } });
    world.api::<OutboxRelay>().patch_scale("billing", &PatchParams::default(), &Patch::Merge(scale)).await.unwrap();
    world.replicas("billing-relay", 2).await;
    operator.stop().await;
}

#[tokio::test]
async fn suspended_there_is_no_pod_in_any_mode_and_afterwards_there_are_some_again() {
    let (world, operator) = World::new().await;
    world.relay("billing", external).await;
    world.replicas("billing-relay", 3).await;
    world
        .relay("billing", |spec| {
            external(spec);
            spec["suspend"] = json!(true);
        })
        .await;
    world.replicas("billing-relay", 0).await;
    world.condition("billing", "Suspended", "True", "Suspended").await;
    world.condition("billing", "Ready", "False", "Suspended").await;
    // Another scaler is overruled.
    let scale = json!({ "spec": { "replicas": 5 } });
    world
        .api::<Deployment>()
        .patch_scale("billing-relay", &PatchParams::default(), &Patch::Merge(scale))
        .await
        .unwrap();
    world.replicas("billing-relay", 0).await;
    world.relay("billing", external).await;
    world.replicas("billing-relay", 3).await;
    operator.stop().await;
}

#[tokio::test]
async fn watchers_see_no_write_to_the_number_at_rest() {
    let (world, operator) = World::new().await;
    world.relay("billing", least(2)).await;
    world.replicas("billing-relay", 2).await;
    world.pods_are_ready(2).await;
    world.condition("billing", "Ready", "True", "Running").await;
    let mut events = watcher(world.api::<Deployment>(), watcher::Config::default()).applied_objects().boxed();
    let first = events.next().await.unwrap().unwrap().metadata.generation;
    for _ in 0..3 {
        world.visit(&operator, "billing").await;
    }
    assert_eq!(world.replicas("billing-relay", 2).await.metadata.generation, first);
    operator.stop().await;
}
