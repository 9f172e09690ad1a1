//! The whole path on real parts: both charts in a real cluster, rows by plain SQL, pods that send them to a receiver
//! outside of the cluster, pods that come and go with the backlog, and an orderly end.
//!
//! Needs `KUBECONFIG`, and the image `OUTBOX_TEST_IMAGE` in that cluster; `hack/test cluster` brings both. Everything that
//! the test makes is gone afterwards, also after a failure.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

mod kubernetes;
mod outside;

use std::{collections::HashMap, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use kubernetes::{Cluster, OPERATOR, TENANT, eventually};
use outside::{Outside, Row};

/// Rows of the backlog.
const ROWS: i32 = 200;
/// Pods of the relay: at rest, and while the backlog is there.
const MIN_PODS: i32 = 1;
const MAX_PODS: i32 = 3;
/// A pod that starts, a row that is sent, an object that goes: seconds each, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// The backlog is gone in some 30 s with three pods and in 70 s with one.
const BACKLOG_PATIENCE: Duration = Duration::from_secs(240);

/// What the backlog's rows meet at the receiver, and how many of ten do. None of them may end dead.
const SCRIPTS: [(usize, &str); 5] =
    [(6, "slow:1500"), (1, "slow:1500:done-500"), (1, "500x2,201"), (1, "429:1,201"), (1, "201")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_become_effects_through_charts_pods_and_scaling() {
    let cluster = Cluster::without_operator().await;
    let Some(outside) = Outside::set().await else { return };
    let story = AssertUnwindSafe(story(&cluster, &outside)).catch_unwind();
    let told = tokio::select! {
        told = story => told,
        _ = tokio::signal::ctrl_c() => Err(Box::new("interrupted") as _),
    };
    if told.is_err() {
        cluster.tell_state().await;
    }
    cluster.clean_up().await;
    outside.clean_up().await;
    if let Err(failure) = told {
        std::panic::resume_unwind(failure);
    }
}

async fn story(cluster: &Cluster, outside: &Outside) {
    install(cluster, outside).await;
    a_refused_row_is_dead_and_counted(cluster, outside).await;
    a_backlog_is_sent_by_more_pods_once_each(cluster, outside).await;
    pods_go_when_the_backlog_is_gone(cluster).await;
    the_releases_go_as_documented(cluster, outside).await;
}

/// Both releases, as docs/install.md has them, and a relay that is Ready.
async fn install(cluster: &Cluster, outside: &Outside) {
    cluster.make_namespaces().await;
    cluster.install_operator().await;
    cluster.kubectl(&["rollout", "status", "deployment/outbox-operator", "-n", OPERATOR, "--timeout=120s"]).await;
    let uri = format!("--from-literal=uri={}", outside.url_for_pods());
    cluster.kubectl(&["create", "secret", "generic", "billing-db", "-n", TENANT, &uri]).await;
    cluster.install_relay(MIN_PODS, MAX_PODS).await;
    cluster.kubectl(&["wait", "--for=condition=Ready", "obr/billing", "-n", TENANT, "--timeout=120s"]).await;
    eventually("the relay's only pod is Ready", PATIENCE, async || cluster.all_ready(TENANT, MIN_PODS).await).await;
    let shown = cluster.kubectl(&["get", "obr", "-n", TENANT]).await;
    let header: Vec<&str> = shown.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "READY", "REPLICAS", "DUE", "OLDEST", "DEAD", "AGE"], "{shown}");
}

/// A refused row is dead at its first request, and both `/metrics` say so.
async fn a_refused_row_is_dead_and_counted(cluster: &Cluster, outside: &Outside) {
    let dead = |count: u64| format!("outbox_dead_letters_total{{reason=\"rejected\"}} {count}");
    let pod = cluster.relay_pods().await.remove(0);
    let before = cluster.metrics(TENANT, &pod).await.unwrap();
    assert!(before.lines().any(|line| line == dead(0)), "{before}");
    outside.insert("refused", 1, &[(1, "422")]).await;
    eventually("the pod counts the dead row", PATIENCE, async || {
        let shown = cluster.metrics(TENANT, &pod).await?;
        if shown.lines().any(|line| line == dead(1)) { Ok(()) } else { Err(shown) }
    })
    .await;
    let row = outside.rows("refused").await.remove(0);
    assert_eq!((row.status.as_str(), row.reason.as_deref(), row.attempts), ("dead", Some("rejected"), 1), "{row:?}");
    assert_eq!(outside.requests_of(&row.key).len(), 1);
    let operator = cluster.operator_pod().await;
    let total = format!("outbox_dead_rows_total{{namespace=\"{TENANT}\",relay=\"billing\",reason=\"rejected\"}} 1");
    eventually("the operator counts the dead row", PATIENCE, async || {
        let shown = cluster.metrics(OPERATOR, &operator).await?;
        if shown.lines().any(|line| line == total) { Ok(()) } else { Err(shown) }
    })
    .await;
    eventually("`kubectl get obr` shows the dead row", PATIENCE, async || {
        let shown = cluster.columns().await?;
        if shown["DEAD"] == "1" { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}

/// More rows than one pod can send in time: the operator adds pods, all rows are sent, each key takes effect once.
async fn a_backlog_is_sent_by_more_pods_once_each(cluster: &Cluster, outside: &Outside) {
    outside.insert("backlog", ROWS, &SCRIPTS).await;
    eventually("`kubectl get obr` shows the backlog and its age", PATIENCE, async || {
        let shown = cluster.columns().await?;
        let due: i64 = shown["DUE"].parse().map_err(|_| format!("{shown:?}"))?;
        if due > 0 && shown["OLDEST"].ends_with('s') { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    let ready = async || cluster.all_ready(TENANT, MAX_PODS).await;
    eventually("the operator adds pods and all are Ready", PATIENCE, ready).await;
    for pod in cluster.relay_pods().await {
        eventually("each pod sends", PATIENCE, async || {
            let shown = cluster.metrics(TENANT, &pod).await?;
            let sent = "outbox_dispatches_total{destination=\"http://";
            let sent = shown.lines().any(|line| line.starts_with(sent) && line.contains("outcome=\"succeeded\""));
            if sent { Ok(()) } else { Err(format!("{pod}: {shown}")) }
        })
        .await;
    }
    let rows = eventually("every row of the backlog has ended", BACKLOG_PATIENCE, async || {
        let rows = outside.rows("backlog").await;
        let open = rows.iter().filter(|row| !row.has_ended()).count();
        if open == 0 { Ok(rows) } else { Err(format!("{open} rows are open")) }
    })
    .await;
    assert_eq!(rows.len(), usize::try_from(ROWS).unwrap());
    one_effect_each(&rows, outside);
}

/// Every row succeeded with one effect, whose name it has, and every request carried its payload.
fn one_effect_each(rows: &[Row], outside: &Outside) {
    let mut effects: HashMap<String, Vec<String>> = HashMap::new();
    for effect in outside.receiver.ledger().effects() {
        effects.entry(effect.key.unwrap()).or_default().push(effect.id);
    }
    for row in rows {
        assert_eq!(row.status, "succeeded", "{row:?}");
        assert_eq!(effects.get(&row.key), Some(&vec![row.downstream_id.clone().unwrap()]), "{row:?}");
        for request in outside.requests_of(&row.key) {
            assert_eq!(request.body.as_ref(), Some(&row.payload), "{row:?} {request:?}");
        }
    }
    assert_eq!(effects.len(), rows.len(), "no effect but theirs");
    assert_eq!(outside.receiver.ledger().counts().duplicate_effects, 0);
}

async fn pods_go_when_the_backlog_is_gone(cluster: &Cluster) {
    eventually("the operator takes the pods away again", PATIENCE, async || cluster.all_ready(TENANT, MIN_PODS).await)
        .await;
    eventually("`kubectl get obr` shows a relay that is Ready", PATIENCE, async || {
        let shown = cluster.columns().await?;
        let at_rest = shown["READY"] == "True" && shown["REPLICAS"] == MIN_PODS.to_string() && shown["DUE"] == "0";
        if at_rest { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}

/// Without the operator relays go on; without its release a relay goes; the definitions stay.
async fn the_releases_go_as_documented(cluster: &Cluster, outside: &Outside) {
    cluster.helm(&["uninstall", "outbox-operator", "-n", OPERATOR, "--wait", "--timeout=120s"]).await;
    eventually("the operator's pod is gone", PATIENCE, async || cluster.no_pods(OPERATOR).await).await;
    assert_eq!(cluster.definitions().await, 2, "the definitions stay");
    let relays = cluster.kubectl(&["get", "obr,obdp", "-n", TENANT, "-o", "name"]).await;
    assert_eq!(relays.lines().count(), 2, "relay and policy stay: {relays}");
    outside.insert("orphan", 1, &[(1, "201")]).await;
    eventually("the relay sends without the operator", PATIENCE, async || {
        let row = outside.rows("orphan").await.remove(0);
        if row.status == "succeeded" { Ok(()) } else { Err(format!("{row:?}")) }
    })
    .await;

    cluster.helm(&["uninstall", "billing", "-n", TENANT, "--wait", "--timeout=120s"]).await;
    eventually("no pod of the relay is left", PATIENCE, async || cluster.no_pods(TENANT).await).await;
    let left = ["get", "obr,obdp,deployments,jobs,configmaps,serviceaccounts", "-n", TENANT, "-o", "name"];
    eventually("what the operator made goes with the relay", PATIENCE, async || {
        let left = cluster.try_kubectl(&left).await?;
        let left: Vec<&str> = left
            .lines()
            // Every namespace has these two.
            .filter(|name| !["configmap/kube-root-ca.crt", "serviceaccount/default"].contains(name))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert_eq!(cluster.definitions().await, 2, "the definitions stay");
    assert_eq!(outside.rows("").await.len(), usize::try_from(ROWS).unwrap() + 2, "the rows stay");
}
