//! The cluster, as people use it: by helm and kubectl.

use std::{collections::HashMap, ffi::OsString, path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{process::Command, time::Instant};

/// The operator's namespace.
pub const OPERATOR: &str = "whole-path-operator";
/// The tenant's namespace.
pub const TENANT: &str = "whole-path-tenant";
/// The custom resource definitions.
const DEFINITIONS: [&str; 2] = ["outboxrelays.outbox-operator.dev", "dispatchpolicies.outbox-operator.dev"];
/// Between two looks: neither kubectl nor PostgreSQL can tell us that a condition has come true.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Lines of a pod's log that a failure shows.
const LOG_LINES: &str = "--tail=40";

/// Looks until there is an answer, and says after how long; panics after `limit` with what was seen last.
pub async fn eventually<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let started = Instant::now();
    loop {
        match look().await {
            Ok(found) => {
                eprintln!("{:>5.1} s until {what}", started.elapsed().as_secs_f64());
                return found;
            }
            Err(seen) => assert!(started.elapsed() < limit, "{what}: not within {limit:?}. Last seen:\n{seen}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A cluster with two namespaces of ours.
pub struct Cluster {
    path: OsString,
    image: String,
}

impl Cluster {
    /// The cluster of `KUBECONFIG`, which must not have the operator: the test removes the definitions.
    pub async fn without_operator() -> Self {
        assert!(
            std::env::var_os("KUBECONFIG").is_some(),
            "set KUBECONFIG to a cluster that has the image of OUTBOX_TEST_IMAGE, or run `hack/test cluster`, which brings both"
        );
        let image = std::env::var("OUTBOX_TEST_IMAGE").unwrap_or_else(|_| "outbox.local/outbox:test".to_owned());
        let cluster = Self { path: path_with_tools().await, image };
        assert_eq!(
            cluster.definitions().await,
            0,
            "the cluster has the operator's definitions; this test would remove them"
        );
        cluster
    }

    /// Makes the namespaces, both with Pod Security `restricted`.
    pub async fn make_namespaces(&self) {
        for namespace in [OPERATOR, TENANT] {
            self.kubectl(&["create", "namespace", namespace]).await;
            let enforce = "pod-security.kubernetes.io/enforce=restricted";
            self.kubectl(&["label", "namespace", namespace, enforce]).await;
        }
    }

    /// Installs the operator's chart. The relays' image is the operator's own.
    pub async fn install_operator(&self) {
        let (repository, tag) = self.image.rsplit_once(':').unwrap();
        let (repository, tag) = (format!("image.repository={repository}"), format!("image.tag={tag}"));
        let chart = ["install", "outbox-operator", "charts/outbox-operator", "-n", OPERATOR];
        self.helm(&[&chart[..], &["--set", &repository, "--set", &tag]].concat()).await;
    }

    /// Installs the relay's chart. The numbers are small so that 200 rows are a backlog and nobody waits for minutes.
    pub async fn install_relay(&self, min_pods: i32, max_pods: i32) {
        let relay = serde_json::json!({
            "concurrency": 4,
            "leaseDuration": "10s",
            "pollInterval": "200ms",
            "scaling": {
                "minReplicas": min_pods, "maxReplicas": max_pods, "targetDrain": "5s",
                "scaleDown": { "stabilization": "5s", "step": 1 },
            },
        });
        let policy = serde_json::json!({
            "timeouts": { "connect": "1s", "total": "5s" },
            "retry": { "base": "200ms", "cap": "1s" },
            // There is one destination for all rows, and its failures are not what this is about.
            "destination": { "hold": { "afterFailures": 1000 } },
        });
        let (relay, policy) = (format!("relay={relay}"), format!("policies.default={policy}"));
        let chart = ["install", "billing", "charts/outbox-relay", "-n", TENANT];
        let database = "database.existingSecret.name=billing-db";
        self.helm(&[&chart[..], &["--set", database, "--set-json", &relay, "--set-json", &policy]].concat()).await;
    }

    /// Runs kubectl, which has to succeed.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs kubectl.
    pub async fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.run("kubectl", args).await
    }

    /// Runs helm, which has to succeed.
    pub async fn helm(&self, args: &[&str]) -> String {
        self.run("helm", args).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The relay's pods that are not about to go.
    pub async fn relay_pods(&self) -> Vec<String> {
        let pods = self.pods(TENANT).await.unwrap();
        pods.iter()
            .filter(|pod| is_relay(pod))
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The operator's only pod.
    pub async fn operator_pod(&self) -> String {
        let pods = self.pods(OPERATOR).await.unwrap();
        assert_eq!(pods.len(), 1, "{pods:?}");
        pods[0]["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Whether the relay has exactly so many pods, all of them Ready, and its Deployment asks for no other number.
    pub async fn all_ready(&self, namespace: &str, wanted: i32) -> Result<(), String> {
        let number = ["get", "deployment", "billing-relay", "-n", namespace, "-o", "jsonpath={.spec.replicas}"];
        let number = self.try_kubectl(&number).await?;
        let pods = self.pods(namespace).await?;
        let ready: Vec<bool> = pods.iter().filter(|pod| is_relay(pod)).map(is_ready).collect();
        let there = i32::try_from(ready.len()).unwrap();
        if number == wanted.to_string() && there == wanted && ready.iter().all(|ready| *ready) {
            return Ok(());
        }
        Err(format!("{number} pods are asked for, {there} are there, Ready: {ready:?}"))
    }

    /// Whether no pod of any kind is left.
    pub async fn no_pods(&self, namespace: &str) -> Result<(), String> {
        let left = self.try_kubectl(&["get", "pods", "-n", namespace, "-o", "name"]).await?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    }

    /// What a pod shows on `/metrics`.
    pub async fn metrics(&self, namespace: &str, pod: &str) -> Result<String, String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/metrics");
        self.try_kubectl(&["get", "--raw", &path]).await
    }

    /// The relay's line of `kubectl get obr`, by column.
    pub async fn columns(&self) -> Result<HashMap<String, String>, String> {
        let shown = self.try_kubectl(&["get", "obr", "billing", "-n", TENANT]).await?;
        match shown.lines().collect::<Vec<_>>()[..] {
            [header, line] => Ok(columns(header, line)),
            _ => Err(shown),
        }
    }

    /// How many of the definitions are there.
    pub async fn definitions(&self) -> usize {
        let arguments = [&["get", "crd", "-o", "name", "--ignore-not-found"], &DEFINITIONS[..]].concat();
        self.kubectl(&arguments).await.lines().count()
    }

    /// Prints what a person would look at after a failure.
    pub async fn tell_state(&self) {
        for namespace in [OPERATOR, TENANT] {
            for look in [
                &["get", "pods,deployments,jobs", "-o", "wide"][..],
                &["get", "events", "--sort-by=.lastTimestamp"],
                &["logs", "-l", "app.kubernetes.io/part-of=outbox-operator", "--all-containers", "--prefix", LOG_LINES],
            ] {
                self.print(&[look, &["-n", namespace]].concat()).await;
            }
        }
        self.print(&["describe", "obr,obdp", "-n", TENANT]).await;
    }

    /// Removes releases, definitions and namespaces, as far as they are there.
    pub async fn clean_up(&self) {
        for (release, namespace) in [("billing", TENANT), ("outbox-operator", OPERATOR)] {
            self.quietly("helm", &["uninstall", release, "-n", namespace, "--ignore-not-found"]).await;
        }
        let delete = ["delete", "crd", "--ignore-not-found", "--timeout=60s"];
        self.quietly("kubectl", &[&delete, &DEFINITIONS[..]].concat()).await;
        let namespaces = [OPERATOR, TENANT, "--ignore-not-found", "--timeout=120s"];
        self.quietly("kubectl", &[&["delete", "namespace"], &namespaces[..]].concat()).await;
    }

    async fn pods(&self, namespace: &str) -> Result<Vec<Value>, String> {
        let pods = self.try_kubectl(&["get", "pods", "-n", namespace, "-o", "json"]).await?;
        let mut pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
        Ok(std::mem::take(pods["items"].as_array_mut().unwrap()))
    }

    async fn print(&self, args: &[&str]) {
        let shown = self.try_kubectl(args).await.unwrap_or_else(|error| error);
        eprintln!("--- kubectl {}\n{shown}", args.join(" "));
    }

    /// A step of the clean-up: the next one is tried whatever comes of it.
    async fn quietly(&self, program: &str, args: &[&str]) {
        if let Err(error) = self.run(program, args).await {
            eprintln!("clean-up: {error}");
        }
    }

    async fn run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let output = Command::new(program)
            .args(args)
            .env("PATH", &self.path)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)))
    }
}

/// PATH, and after it the tools of the project's own cluster.
async fn path_with_tools() -> OsString {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/cluster/cluster");
    let bin = Command::new(script).arg("bin").output().await.unwrap();
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(String::from_utf8_lossy(&bin.stdout).trim_end());
    path
}

/// A pod that sends rows: no migration, and not about to go.
fn is_relay(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app.kubernetes.io/component"] == "relay"
        && pod["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// What stands under each word of the header; a cell may be empty.
fn columns(header: &str, line: &str) -> HashMap<String, String> {
    let begins = |at: &usize| !header[*at..].starts_with(' ') && (*at == 0 || header[..*at].ends_with(' '));
    let starts: Vec<usize> = (0..header.len()).filter(begins).chain([header.len().max(line.len())]).collect();
    let cell =
        |text: &str, from: usize, to: usize| text.get(from..to.min(text.len())).unwrap_or_default().trim().to_owned();
    starts.windows(2).map(|ends| (cell(header, ends[0], ends[1]), cell(line, ends[0], ends[1]))).collect()
}
