//! The migration Job, and the Deployment that waits for it.

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Event};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use outbox_operator::store::migrate;
use serde_json::json;

use crate::support::{World, eventually};

/// The Job of the first attempt.
fn first_job() -> String {
    format!("billing-migrate-{}-1", migrate::LATEST)
}

#[tokio::test]
async fn a_missing_table_is_migrated_by_a_job_and_pods_come_after_it() {
    let world = World::empty().await;
    world.secret("db", &[("uri", "postgres://nobody@127.0.0.1:1/none")]).await;
    world.secret("admin", &[("uri", &world.url)]).await;
    let operator = world.operator();
    let with_admin = |spec: &mut serde_json::Value| {
        spec["database"]["adminUrlSecretRef"] = json!({ "name": "admin", "key": "uri" });
    };
    world.relay("billing", with_admin).await;
    // Nothing is started before the database was seen.
    world.condition("billing", "Ready", "False", "DatabaseUnreachable").await;
    world.condition("billing", "SchemaReady", "Unknown", "NotSampledYet").await;
    world.secret("db", &[("uri", &world.url)]).await;
    let job: Job = world.object(&first_job(), "it is there", |_| true).await;
    let pod = job.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers[0].args.as_ref().unwrap()[0], "migrate");
    let projected = serde_json::to_string(&pod.volumes).unwrap();
    assert!(projected.contains("admin/uri") && !projected.contains("db/uri"), "{projected}");
    world.condition("billing", "SchemaReady", "False", "Migrating").await;
    assert!(world.api::<Deployment>().get_opt("billing-relay").await.unwrap().is_none());
    // No pod runs here: the test does the Job's work.
    world.migrate().await;
    world.condition("billing", "SchemaReady", "True", "UpToDate").await;
    let deployment = world.deployment("billing-relay", "it is there", |_| true).await;
    let projected = serde_json::to_string(&deployment.spec.unwrap().template.spec.unwrap().volumes).unwrap();
    assert!(
        projected.contains("db/uri") && !projected.contains("admin"),
        "pods never see the admin's URL: {projected}"
    );
    operator.stop().await;
}

#[tokio::test]
async fn a_failed_job_is_told_with_the_place_of_its_log() {
    let world = World::empty().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let operator = world.operator();
    world.relay("billing", |_| {}).await;
    world.object::<Job>(&first_job(), "it is there", |_| true).await;
    // No pod of the Job can run here; its controller would end it so after some time. It may write at the same time.
    let at = k8s_openapi::jiff::Timestamp::now().to_string();
    let condition = |type_: &str| json!({ "type": type_, "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": at });
    let failed = json!({ "status": {
        "active": null, "ready": null, "failed": 3, "conditions": [condition("FailureTarget"), condition("Failed")],
    } });
    eventually("the Job has failed", || async {
        let patched =
            world.api::<Job>().patch_status(&first_job(), &PatchParams::default(), &Patch::Merge(&failed)).await;
        patched.ok().map(|_| ())
    })
    .await;
    let told = world.condition("billing", "SchemaReady", "False", "MigrationFailed").await;
    assert!(told.message.contains(&format!("kubectl logs job/{}", first_job())), "{}", told.message);
    world.condition("billing", "Ready", "False", "MigrationFailed").await;
    for reason in ["MigrationStarted", "MigrationFailed"] {
        eventually(reason, || async {
            let events = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
            events.iter().any(|event| event.reason.as_deref() == Some(reason)).then_some(())
        })
        .await;
    }
    operator.stop().await;
}

#[tokio::test]
async fn with_migrations_by_hand_no_job_is_made() {
    let world = World::empty().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let operator = world.operator();
    world.relay("billing", |spec| spec["migrations"] = json!("Manual")).await;
    let told = world.condition("billing", "SchemaReady", "False", "SchemaMissing").await;
    assert!(told.message.contains("outbox migrate"), "{}", told.message);
    assert!(world.api::<Job>().list(&ListParams::default()).await.unwrap().items.is_empty());
    world.migrate().await;
    world.deployment("billing-relay", "it is there", |_| true).await;
    operator.stop().await;
}

#[tokio::test]
async fn of_many_failed_jobs_the_last_two_are_kept() {
    let world = World::empty().await;
    world.secret("db", &[("uri", &world.url)]).await;
    let at = "2026-01-01T00:00:00Z";
    for attempt in 1..=3 {
        // What an operator left long ago: suspended, so that its own controller leaves it alone.
        let name = format!("old-{attempt}");
        let job = json!({
            "metadata": {
                "name": name, "annotations": { "outbox-operator.dev/attempt": attempt.to_string() },
                "labels": {
                    "app.kubernetes.io/managed-by": "outbox-operator", "app.kubernetes.io/instance": "billing",
                    "app.kubernetes.io/component": "migration",
                },
            },
            "spec": { "suspend": true, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "migrate", "image": "outbox.test/relay:1" }],
            } } },
        });
        world.api::<Job>().create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
        let condition =
            |type_: &str| json!({ "type": type_, "status": "True", "reason": "Old", "lastTransitionTime": at });
        let failed =
            json!({ "status": { "startTime": at, "conditions": [condition("FailureTarget"), condition("Failed")] } });
        eventually("the Job has failed", || async {
            let patched = world.api::<Job>().patch_status(&name, &PatchParams::default(), &Patch::Merge(&failed)).await;
            patched.ok().map(|_| ())
        })
        .await;
    }
    let operator = world.operator();
    world.relay("billing", |_| {}).await;
    let next = format!("billing-migrate-{}-4", migrate::LATEST);
    world.object::<Job>(&next, "the next attempt is made", |_| true).await;
    eventually("the oldest is gone", || async {
        let left = world.api::<Job>().list(&ListParams::default()).await.unwrap().items;
        let mut names: Vec<_> = left.into_iter().filter_map(|job| job.metadata.name).collect();
        names.sort();
        (names == [next.as_str(), "old-2", "old-3"]).then_some(())
    })
    .await;
    operator.stop().await;
}
