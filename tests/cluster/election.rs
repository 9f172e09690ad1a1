//! One operator writes at a time.

use k8s_openapi::api::coordination::v1::Lease;
use outbox_operator::api::OutboxRelay;
use serde_json::json;

use crate::support::{World, eventually};

async fn holder(world: &World, name: &str) {
    world
        .object::<Lease>("operator", &format!("{name} holds it"), |lease| {
            lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(name)
        })
        .await;
}

#[tokio::test]
async fn one_works_and_the_other_takes_over_when_it_ends() {
    let world = World::empty().await;
    world.migrate().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let first = world.operator_with(|settings| settings.lease = Some(world.lease("first")));
    holder(&world, "first").await;
    let second = world.operator_with(|settings| settings.lease = Some(world.lease("second")));
    world.relay("billing", |_| {}).await;
    world.deployment("billing-relay", "it is there", |_| true).await;
    assert!(first.visits() > 0);
    assert_eq!(second.visits(), 0);
    // In order: the lease is given back, so the other one need not wait for its end.
    let told = std::time::Instant::now();
    first.stop().await;
    holder(&world, "second").await;
    assert!(told.elapsed().as_secs() < 10, "{:?}", told.elapsed());
    second.has_visited().await;
    second.stop().await;
}

#[tokio::test]
async fn one_that_is_killed_is_followed_after_its_lease() {
    let world = World::empty().await;
    world.migrate().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let first = world.operator_with(|settings| settings.lease = Some(world.lease("first")));
    holder(&world, "first").await;
    let second = world.operator_with(|settings| settings.lease = Some(world.lease("second")));
    first.kill().await;
    holder(&world, "second").await;
    world.relay("billing", |_| {}).await;
    world.deployment("billing-relay", "it is there", |_| true).await;
    second.stop().await;
}

#[tokio::test]
async fn one_that_lost_its_lease_writes_no_more() {
    let world = World::empty().await;
    world.migrate().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let operator = world.operator_with(|settings| settings.lease = Some(world.lease("first")));
    world.relay("billing", |_| {}).await;
    world.deployment("billing-relay", "it is there", |_| true).await;
    let shown = || operator.metrics().iter().any(|line| line.contains("relay=\"billing\""));
    eventually("it shows the relay", || async { shown().then_some(()) }).await;
    let stolen = json!({ "spec": { "holderIdentity": "thief", "leaseDurationSeconds": 3600 } });
    world.merge::<Lease>("operator", stolen).await;
    eventually("it shows the relay no more", || async { (!shown()).then_some(()) }).await;
    let before = operator.visits();
    world.relay("billing", |spec| spec["scaling"] = json!({ "minReplicas": 2 })).await;
    // The thief lets go, and whatever happens after that shows that nothing happened before.
    assert_eq!(operator.visits(), before);
    let given_back = json!({ "spec": { "holderIdentity": null } });
    world.merge::<Lease>("operator", given_back).await;
    holder(&world, "first").await;
    world.replicas("billing-relay", 2).await;
    world.object::<OutboxRelay>("billing", "it is seen", |relay| relay.status.is_some()).await;
    operator.stop().await;
}

#[tokio::test]
async fn rc_28_what_it_may_not_watch_is_named() {
    let world = World::empty().await;
    let operator = world.operator_as("nobody-of-the-outbox-tests", world.settings());
    let why = eventually("it is not ready", || async {
        let why = operator.readiness.borrow().clone().err();
        // The watches fail one after another.
        why.filter(|why| why.contains("secrets") && why.contains("outboxrelays.outbox-operator.dev"))
    })
    .await;
    assert!(why.contains("cannot list outboxrelays.outbox-operator.dev in namespace"), "{why}");
    operator.stop().await;
    let operator = world.operator();
    eventually("it is ready", || async { operator.readiness.borrow().is_ok().then_some(()) }).await;
    operator.stop().await;
}
