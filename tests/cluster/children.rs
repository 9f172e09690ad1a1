//! What is made for a relay, and what is left alone.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Event, Pod, Secret, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use outbox_operator::api::{DispatchPolicy, OutboxRelay};
use serde_json::json;

use crate::support::{IMAGE, World, eventually};

#[tokio::test]
async fn a_relay_has_its_children_and_all_conditions() {
    let (world, operator) = World::new().await;
    let relay = world.relay("billing", |spec| spec["scaling"] = json!({ "minReplicas": 1 })).await;
    let deployment = world.deployment("billing-relay", "it is there", |_| true).await;
    let account: ServiceAccount = world.object("billing-relay", "it is there", |_| true).await;
    let budget: PodDisruptionBudget = world.object("billing-relay", "it is there", |_| true).await;
    let maps = world
        .api::<ConfigMap>()
        .list(&ListParams::default().labels("app.kubernetes.io/instance=billing"))
        .await
        .unwrap();
    let [map] = maps.items.as_slice() else { panic!("one ConfigMap, not {:?}", maps.items) };
    for owners in
        [deployment.owner_references(), account.owner_references(), budget.owner_references(), map.owner_references()]
    {
        let [owner] = owners else { panic!("one owner: {owners:?}") };
        assert_eq!(
            (owner.kind.as_str(), Some(&owner.uid), owner.controller),
            ("OutboxRelay", relay.metadata.uid.as_ref(), Some(true))
        );
    }
    assert_eq!(map.immutable, Some(true));
    assert_eq!(account.automount_service_account_token, Some(false));
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers[0].image.as_deref(), Some(IMAGE));
    assert_eq!(pod.volumes.unwrap()[0].config_map.as_ref().unwrap().name, map.name_any());
    // The namespace enforces Pod Security `restricted`: a pod that exists has passed it.
    world.pods_are_ready(1).await;
    world.condition("billing", "Ready", "True", "Running").await;
    let status = world
        .object::<OutboxRelay>("billing", "one pod is ready", |relay| {
            relay.status.as_ref().is_some_and(|status| status.ready_replicas == Some(1))
        })
        .await
        .status
        .unwrap();
    let shown: Vec<_> =
        status.conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str())).collect();
    assert_eq!(
        shown,
        [
            ("Ready", "True", "Running"),
            ("DatabaseReachable", "True", "Connected"),
            ("SchemaReady", "True", "UpToDate"),
            ("PoliciesResolved", "True", "Resolved"),
            ("BacklogKnown", "True", "Sampled"),
            ("ScalingLimited", "False", "NotLimited"),
            ("Suspended", "False", "NotSuspended"),
            ("Outdated", "False", "UpToDate"),
        ]
    );
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == relay.metadata.generation));
    assert_eq!(status.relay_version.as_deref(), Some(IMAGE));
    operator.stop().await;
}

#[tokio::test]
async fn rc_29_a_steady_state_is_steady_also_after_a_restart() {
    let (world, operator) = World::new().await;
    world.apply::<DispatchPolicy>("default", json!({ "retry": { "base": "3s" } })).await.unwrap();
    world
        .relay("billing", |spec| {
            spec["policyRef"] = json!({ "name": "default" });
            spec["scaling"] = json!({ "minReplicas": 2 });
        })
        .await;
    world.pods_are_ready(2).await;
    world.condition("billing", "Ready", "True", "Running").await;
    world
        .object::<OutboxRelay>("billing", "both are ready", |relay| {
            relay.status.as_ref().unwrap().ready_replicas == Some(2)
        })
        .await;
    // Anything still under way ends: two visits without a write, one after another.
    eventually("nothing is written any more", || async {
        let before = operator.counter("outbox_writes_total");
        world.visit(&operator, "billing").await;
        let after = operator.counter("outbox_writes_total");
        if after != before {
            eprintln!("{:#?}", operator.metrics().iter().filter(|l| l.contains("writes")).collect::<Vec<_>>());
        }
        (after == before).then_some(())
    })
    .await;
    let template = |deployment: &Deployment| deployment.metadata.generation;
    let generation = template(&world.replicas("billing-relay", 2).await);
    operator.stop().await;
    let restarted = world.operator();
    restarted.has_visited().await;
    world.visit(&restarted, "billing").await;
    assert_eq!(restarted.counter("outbox_writes_total"), 0, "{:#?}", restarted.metrics());
    assert_eq!(template(&world.replicas("billing-relay", 2).await), generation);
    restarted.stop().await;
}

#[tokio::test]
async fn a_child_that_was_changed_by_hand_is_mended_and_what_others_added_stays() {
    let (world, operator) = World::new().await;
    world.relay("billing", |_| {}).await;
    world.deployment("billing-relay", "it is there", |_| true).await;
    let edit = json!({ "spec": { "template": { "metadata": { "annotations": { "other": "kept" } }, "spec": { "enableServiceLinks": true } } } });
    world.merge::<Deployment>("billing-relay", edit).await;
    let mended = world
        .deployment("billing-relay", "it is mended", |deployment| {
            let pod = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
            pod.enable_service_links == Some(false)
        })
        .await;
    let template = mended.spec.unwrap().template.metadata.unwrap();
    assert_eq!(template.annotations.unwrap().get("other").map(String::as_str), Some("kept"));
    operator.stop().await;
}

#[tokio::test]
async fn a_scaling_edit_rolls_nothing_and_a_policy_edit_does_and_the_old_config_map_goes_after_it() {
    let (world, operator) = World::new().await;
    world.apply::<DispatchPolicy>("default", json!({})).await.unwrap();
    let with = |max: i32| {
        move |spec: &mut serde_json::Value| {
            spec["policyRef"] = json!({ "name": "default" });
            spec["scaling"] = json!({ "minReplicas": 1, "maxReplicas": max });
        }
    };
    world.relay("billing", with(5)).await;
    world.pods_are_ready(1).await;
    world.condition("billing", "Ready", "True", "Running").await;
    let before = world.replicas("billing-relay", 1).await;
    let relay = world.relay("billing", with(6)).await;
    let seen = |relay: &OutboxRelay| relay.status.as_ref().and_then(|status| status.observed_generation);
    world.object::<OutboxRelay>("billing", "the edit was seen", |now| seen(now) == relay.metadata.generation).await;
    let after = world.replicas("billing-relay", 1).await;
    assert_eq!(after.metadata.generation, before.metadata.generation);
    let map = |deployment: &Deployment| {
        deployment.spec.clone().unwrap().template.spec.unwrap().volumes.unwrap()[0].config_map.clone().unwrap().name
    };
    world.apply::<DispatchPolicy>("default", json!({ "retry": { "base": "3s" } })).await.unwrap();
    let rolled = world.deployment("billing-relay", "it rolls", |now| map(now) != map(&before)).await;
    world.condition("billing", "Ready", "False", "Progressing").await;
    // The old pod reads the old ConfigMap until the new one is ready.
    assert!(world.api::<ConfigMap>().get_opt(&map(&before)).await.unwrap().is_some());
    let pods = world.api::<Pod>();
    eventually("the rollout is complete", || async {
        world.pods_are_ready(1).await;
        let live = pods.list(&ListParams::default()).await.unwrap().items;
        // Nobody else ends a pod where there is no kubelet.
        for gone in live.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let now = kube::api::DeleteParams::default().grace_period(0);
            let _ = pods.delete(&gone.name_any(), &now).await;
        }
        world.api::<ConfigMap>().get_opt(&map(&before)).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(world.api::<ConfigMap>().get_opt(&map(&rolled)).await.unwrap().is_some());
    operator.stop().await;
}

#[tokio::test]
async fn rc_28_one_bad_object_stops_no_other() {
    let (world, operator) = World::new().await;
    // The schema admits it and no duration is as long.
    let bad = json!({
        "database": { "urlSecretRef": { "name": "db", "key": "uri" } },
        "scaling": { "scaleDown": { "stabilization": "99999999999999999h" } },
    });
    world.apply::<PartialObjectMeta<OutboxRelay>>("bad", bad).await.unwrap();
    // Relays of one table serve tenants of their own.
    let (one, other) = ("6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11", "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a12");
    world.relay("good", |spec| spec["tenants"] = json!([one])).await;
    world.deployment("good-relay", "it is there", |_| true).await;
    assert!(world.api::<Deployment>().get_opt("bad-relay").await.unwrap().is_none());
    eventually("an event tells of the bad one", || async {
        let events = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        events
            .iter()
            .any(|event| {
                event.reason.as_deref() == Some("Undecodable") && event.involved_object.name.as_deref() == Some("bad")
            })
            .then_some(())
    })
    .await;
    // Mended, it is served like any other.
    world.relay("bad", |spec| spec["tenants"] = json!([other])).await;
    world.deployment("bad-relay", "it is there", |_| true).await;
    operator.stop().await;
}

#[tokio::test]
async fn of_two_relays_with_the_same_tenants_the_younger_gets_no_pods_until_they_are_its_own() {
    let (world, operator) = World::new().await;
    world.relay("older", |_| {}).await;
    world.deployment("older-relay", "it is there", |_| true).await;
    world.relay("younger", |_| {}).await;
    let refused = world.condition("younger", "Ready", "False", "TableOverlap").await;
    assert!(refused.message.contains("/older"), "{}", refused.message);
    assert!(world.api::<Deployment>().get_opt("younger-relay").await.unwrap().is_none());
    let (one, other) = ("6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11", "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a12");
    world.relay("older", |spec| spec["tenants"] = json!([one])).await;
    world.relay("younger", |spec| spec["tenants"] = json!([other])).await;
    world.deployment("younger-relay", "it is there", |_| true).await;
    operator.stop().await;
}

#[tokio::test]
async fn rc_22_rotation_rolls_the_pods_and_an_annotation_does_not() {
    let (world, operator) = World::new().await;
    world.relay("billing", |_| {}).await;
    let hash = |deployment: &Deployment| {
        let template = deployment.spec.clone().unwrap().template.metadata.unwrap();
        template.annotations.unwrap()["outbox-operator.dev/secrets-hash"].clone()
    };
    let before = world.deployment("billing-relay", "it is there", |_| true).await;
    let annotation = json!({ "metadata": { "annotations": { "touched": "yes" } }, "stringData": { "unread": "x" } });
    world.merge::<Secret>("db", annotation).await;
    world.visit(&operator, "billing").await;
    let same = world.deployment("billing-relay", "it is there", |_| true).await;
    assert_eq!(hash(&same), hash(&before));
    let other = world.url.replace("postgres@", "postgres:rotated@");
    assert_ne!(other, world.url, "the URL names its user: {}", world.url);
    world.secret("db", &[("uri", &other)]).await;
    let rolled = world.deployment("billing-relay", "it rolls", |now| hash(now) != hash(&before)).await;
    assert_eq!(hash(&rolled).len(), 8, "cut short: {}", hash(&rolled));
    operator.stop().await;
}

#[tokio::test]
async fn a_deployment_of_somebody_else_is_left_alone() {
    let (world, operator) = World::new().await;
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "billing-relay" },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": { "app": "theirs" } },
            "template": {
                "metadata": { "labels": { "app": "theirs" } },
                "spec": { "containers": [{ "name": "theirs", "image": "theirs:1" }] },
            },
        },
    });
    let params = PatchParams::apply("tenant");
    world.api::<Deployment>().patch("billing-relay", &params, &Patch::Apply(theirs)).await.unwrap();
    world.relay("billing", |spec| spec["scaling"] = json!({ "minReplicas": 3 })).await;
    world.condition("billing", "Ready", "False", "NameTaken").await;
    let found = world.replicas("billing-relay", 0).await;
    assert!(found.owner_references().is_empty());
    operator.stop().await;
}

#[tokio::test]
async fn a_deleted_relay_takes_its_children_and_its_series_with_it() {
    let (world, operator) = World::new().await;
    world.relay("billing", |_| {}).await;
    world.deployment("billing-relay", "it is there", |_| true).await;
    let shown = || operator.metrics().iter().any(|line| line.contains("relay=\"billing\""));
    eventually("its series are there", || async { shown().then_some(()) }).await;
    world.delete::<OutboxRelay>("billing").await;
    eventually("its series are gone", || async { (!shown()).then_some(()) }).await;
    eventually("its children are gone", || async {
        let deployment = world.api::<Deployment>().get_opt("billing-relay").await.unwrap();
        let maps = world
            .api::<ConfigMap>()
            .list(&ListParams::default().labels("app.kubernetes.io/instance=billing"))
            .await
            .unwrap();
        (deployment.is_none() && maps.items.is_empty()).then_some(())
    })
    .await;
    operator.stop().await;
}
