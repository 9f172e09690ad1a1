//! What the API server itself refuses, and what `kubectl get` shows.

use std::process::Command;

use outbox_operator::api::{DispatchPolicy, OutboxRelay};
use serde_json::{Value, json};

use crate::support::World;

#[tokio::test]
async fn what_one_object_can_know_is_refused_with_the_mend() {
    let world = World::empty().await;
    let relay = |change: Value| {
        let mut spec = json!({ "database": { "urlSecretRef": { "name": "db", "key": "uri" } } });
        for (field, value) in change.as_object().unwrap() {
            spec[field] = value.clone();
        }
        spec
    };
    for (spec, message) in [
        (
            relay(json!({ "scaling": { "minReplicas": 5, "maxReplicas": 3 } })),
            "scaling.minReplicas must be at most scaling.maxReplicas",
        ),
        (relay(json!({ "replicas": 2 })), "spec.replicas is read only with scaling.mode External"),
        (relay(json!({ "concurency": 3 })), "concurency"),
        (relay(json!({ "leaseDuration": "2d" })), "leaseDuration must lie between 2s and 24h"),
        (relay(json!({ "leaseDuration": "soon" })), "leaseDuration"),
        (relay(json!({ "database": { "host": "db.test" } })), "database.host needs database.dbname and database.user"),
        (json!({ "database": {} }), "say where the database is once"),
    ] {
        let refused =
            world.apply::<OutboxRelay>("billing", spec.clone()).await.expect_err(&spec.to_string()).to_string();
        assert!(refused.contains(message), "{spec}: {refused}");
    }
    for (spec, message) in [
        (json!({ "retry": { "base": "1h", "cap": "5m" } }), "retry.cap must be at least retry.base"),
        (json!({ "retry": { "backoff": "Schedule" } }), "needs a retry.schedule"),
        (json!({ "timeouts": { "connect": "40s" } }), "make it at least timeouts.connect"),
        (json!({ "retries": {} }), "retries"),
        (
            json!({ "statusQuery": { "url": "https://x.test/", "done": [{ "statuses": ["200"] }] } }),
            "must hold {key} or {keyHash}",
        ),
        (json!({ "preDispatch": {} }), "set one of preDispatch.sqlFunction and preDispatch.http"),
    ] {
        let refused =
            world.apply::<DispatchPolicy>("strict", spec.clone()).await.expect_err(&spec.to_string()).to_string();
        assert!(refused.contains(message), "{spec}: {refused}");
    }
    world
        .apply::<DispatchPolicy>("days", json!({ "retry": { "base": "1h", "cap": "1d", "maxAge": "7d" } }))
        .await
        .unwrap();
}

#[tokio::test]
async fn kubectl_get_obr_tells_the_state() {
    let (world, operator) = World::new().await;
    world.rows(2, "dead", "0").await;
    world.rows(3, "pending", "-1 hour").await;
    world.relay("billing", |_| {}).await;
    world
        .object::<OutboxRelay>("billing", "the rows are counted", |relay| {
            relay.status.as_ref().and_then(|status| status.backlog.as_ref()).is_some_and(|backlog| backlog.due == 3)
        })
        .await;
    let output =
        Command::new("kubectl").args(["-n", &world.namespace, "get", "obr"]).output().expect("kubectl is on the PATH");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "READY", "REPLICAS", "DUE", "OLDEST", "DEAD", "AGE"], "{text}");
    assert_eq!(lines[1][..6], ["billing", "False", "0", "3", "60m", "2"], "{text}");
    operator.stop().await;
}
