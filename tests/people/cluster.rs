//! `--relay`: the table by its relay's custom resource. The API server is a script: what it answers is the case.

use std::{collections::BTreeMap, fs, process::Command};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, Uri},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    help::{Answer, row_in},
    support::World,
};

const RELAY: &str = "/apis/outbox-operator.dev/v1alpha1/namespaces/tenant-a/outboxrelays/billing";
const SECRET: &str = "/api/v1/namespaces/tenant-a/secrets/billing-db";

type Script = BTreeMap<&'static str, (u16, Value)>;

fn status(code: u16, message: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
        "reason": if code == 403 { "Forbidden" } else { "NotFound" }}),
    )
}

async fn answer(State(script): State<Script>, uri: Uri) -> (StatusCode, Json<Value>) {
    let (code, body) = script.get(uri.path()).cloned().unwrap_or_else(|| status(404, "not found"));
    (StatusCode::from_u16(code).unwrap(), Json(body))
}

/// Runs a command against an API server that answers by this script.
async fn run(script: Script, args: &[&str]) -> Answer {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        axum::serve(listener, Router::new().fallback(answer).with_state(script)).await.unwrap();
    });
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(args).env("KUBECONFIG", &kubeconfig);
    // Another database is at hand: the relay's own must be taken all the same.
    command.env("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    server.abort();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn relay() -> (u16, Value) {
    (
        200,
        json!({"apiVersion": "outbox-operator.dev/v1alpha1", "kind": "OutboxRelay",
        "metadata": {"name": "billing", "namespace": "tenant-a"},
        "spec": {"database": {"urlSecretRef": {"name": "billing-db", "key": "uri"}}}}),
    )
}

fn secret(key: &str, value: &str) -> (u16, Value) {
    (
        200,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "billing-db", "namespace": "tenant-a"},
        "data": {key: STANDARD.encode(value)}}),
    )
}

#[tokio::test]
async fn a_relay_of_the_cluster_names_the_database_and_the_table() {
    let world = World::new().await;
    let id = row_in(&world, "dead", "inv-1").await;
    let script: Script = [(RELAY, relay()), (SECRET, secret("uri", &world.url))].into();
    let list = run(script.clone(), &["dead", "list", "--relay", "tenant-a/billing", "-o", "json"]).await;
    assert_eq!((list.code, list.ids()), (0, vec![id]), "{list:?}");
    let migrated = run(script, &["migrate", "--relay", "tenant-a/billing"]).await;
    assert!(migrated.code == 0 && migrated.out.contains("nothing to do"), "{migrated:?}");
}

#[tokio::test]
async fn what_is_missing_or_not_allowed_is_said_by_its_name_and_no_secret_is() {
    let args = ["status", "--relay", "tenant-a/billing"];
    let cases: [(Script, &str); 6] = [
        (
            [(RELAY, status(404, r#"outboxrelays.outbox-operator.dev "billing" not found"#))].into(),
            "there is no OutboxRelay billing in namespace tenant-a",
        ),
        ([(RELAY, status(404, "404 page not found"))].into(), "the cluster does not know OutboxRelays"),
        (
            [(RELAY, status(403, "forbidden"))].into(),
            "ask for the right to get outboxrelays.outbox-operator.dev in namespace tenant-a",
        ),
        (
            [(RELAY, relay()), (SECRET, status(404, "not found"))].into(),
            "from Secret billing-db, and there is none in namespace tenant-a",
        ),
        (
            [(RELAY, relay()), (SECRET, status(403, "forbidden"))].into(),
            "you may not read Secret billing-db in namespace tenant-a",
        ),
        ([(RELAY, relay()), (SECRET, secret("url", "postgres://u:s3cret@h/d"))].into(), "has no key uri; it has: url"),
    ];
    for (script, said) in cases {
        let answer = run(script, &args).await;
        assert!(answer.code == 1 && answer.err.contains(said), "{said}: {answer:?}");
        assert!(!answer.err.contains("s3cret"), "{answer:?}");
    }
    let wrong = run(Script::new(), &["status", "--relay", "billing"]).await;
    assert!(wrong.code == 2 && wrong.err.contains("tenant-a/billing"), "{wrong:?}");
    let both =
        run(Script::new(), &["status", "--relay", "tenant-a/billing", "--database-url", "postgres://other/x"]).await;
    assert!(both.code == 2 && both.err.contains("not both"), "{both:?}");
}
