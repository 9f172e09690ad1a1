//! `OutboxRelay`: which table is served, by how many pods, and how.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements, Toleration};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteQuantity, Duration, OutboxRelayStatus, PolicyRef, PolicyRoute, SecretKeyRef, duration::cel_duration};

/// A relay that sends the due rows of one outbox table.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "outbox-operator.dev",
    version = "v1alpha1",
    kind = "OutboxRelay",
    plural = "outboxrelays",
    shortname = "obr",
    category = "outbox",
    namespaced,
    derive = "PartialEq",
    status = "OutboxRelayStatus",
    doc = "A relay that sends the due rows of one outbox table.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.readyReplicas"}"#,
    printcolumn = r#"{"name":"Due","type":"integer","jsonPath":".status.backlog.due"}"#,
    printcolumn = r#"{"name":"Oldest","type":"date","jsonPath":".status.backlog.oldestDueAt"}"#,
    printcolumn = r#"{"name":"Dead","type":"integer","jsonPath":".status.backlog.dead"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.replicas) || self.scaling.mode == 'External'")
        .message("spec.replicas is read only with scaling.mode External: set that mode, or remove replicas and use scaling.minReplicas and maxReplicas"),
    validation = Rule::new("!has(self.claimBatch) || self.claimBatch >= 1")
        .message("spec.claimBatch must be at least 1; leave it out to claim what is free")
)]
pub struct OutboxRelaySpec {
    /// Where the table is.
    pub database: Database,
    /// Tenants whose rows are served; empty: all rows of the table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1000),
        inner(length(equal = 36), regex(pattern = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"))
    )]
    pub tenants: Vec<String>,
    /// The policy of rows that no route matches; unset: the defaults of `DispatchPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_ref: Option<PolicyRef>,
    /// Rows that go by a policy of their own; the first route that matches wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub routes: Vec<PolicyRoute>,
    /// Requests in flight per pod.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: i32,
    /// Rows per claim at most; unset: as many as slots are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub claim_batch: Option<i32>,
    /// Memory for payloads per pod. Those above 128Ki are loaded when their turn comes, as far as they fit in seven eighths of
    /// it, which must hold the policy's `request.maxBodyBytes`.
    #[serde(default = "default_memory_budget")]
    #[x_kube(validation = Rule::new("quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('64Gi')) <= 0")
        .message("memoryBudget must lie between 1Mi and 64Gi"))]
    pub memory_budget: ByteQuantity,
    /// How long a claimed row belongs to its pod. Longer than the policy's `timeouts.total` and a margin of 2s.
    #[serde(default = "default_lease_duration")]
    #[x_kube(validation = Rule::new(concat!(cel_duration!("self"), " >= duration('2s') && ", cel_duration!("self"), " <= duration('24h')"))
        .message("leaseDuration must lie between 2s and 24h"))]
    pub lease_duration: Duration,
    /// How often the table is asked for due rows when it had none.
    #[serde(default = "default_poll_interval")]
    #[x_kube(validation = Rule::new(concat!(cel_duration!("self"), " >= duration('10ms') && ", cel_duration!("self"), " <= duration('1h')"))
        .message("pollInterval must lie between 10ms and 1h"))]
    pub poll_interval: Duration,
    /// Who brings the table to the shape that the relay needs.
    #[serde(default)]
    pub migrations: Migrations,
    /// What is removed from the table, and when. Off but for the history.
    #[serde(default)]
    pub retention: Retention,
    /// Pods, with `scaling.mode: External` only: what `kubectl scale` and a `HorizontalPodAutoscaler` write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// How the number of pods follows the backlog.
    #[serde(default)]
    pub scaling: Scaling,
    /// Whether the relay stops claiming and its pods go, in every mode.
    #[serde(default)]
    pub suspend: bool,
    /// The relay's image; unset: the operator's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Overrides of the pods.
    #[serde(default)]
    pub template: PodOverrides,
}

fn default_concurrency() -> i32 {
    64
}

fn default_memory_budget() -> ByteQuantity {
    ByteQuantity::from_mebibytes(128)
}

fn default_lease_duration() -> Duration {
    Duration::from_secs(60)
}

fn default_poll_interval() -> Duration {
    Duration::from_secs(1)
}

/// Where the table is: a URL in a Secret, or its parts.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.urlSecretRef) != has(self.host)")
        .message("say where the database is once: database.urlSecretRef, or database.host with dbname, user and passwordSecretRef"),
    validation = Rule::new("!has(self.host) || (has(self.dbname) && has(self.user))")
        .message("database.host needs database.dbname and database.user beside it"),
    validation = Rule::new("has(self.host) || !(has(self.port) || has(self.dbname) || has(self.user) || has(self.passwordSecretRef))")
        .message("database.port, dbname, user and passwordSecretRef belong to database.host; a URL carries its own")
)]
pub struct Database {
    /// A connection URL: `postgres://user:password@host:5432/dbname`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_secret_ref: Option<SecretKeyRef>,
    /// A connection URL past the pooler, for migrations; unset: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_url_secret_ref: Option<SecretKeyRef>,
    /// A connection URL of a role that may alter the table, for migrations; unset: `directUrlSecretRef`, or the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_url_secret_ref: Option<SecretKeyRef>,
    /// The server's name or address, instead of a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub host: Option<String>,
    /// The server's port; unset: 5432.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i32>,
    /// The database's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub dbname: Option<String>,
    /// The role's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub user: Option<String>,
    /// The role's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<SecretKeyRef>,
    /// How TLS is used; unset: what the URL says, else `prefer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sslmode: Option<SslMode>,
    /// A root certificate in PEM, for `verify-ca` and `verify-full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_cert_secret_ref: Option<SecretKeyRef>,
    /// The table's schema.
    #[serde(default = "default_schema")]
    #[schemars(length(min = 1, max = 63))]
    pub schema: String,
    /// The table's name.
    #[serde(default = "default_table")]
    #[schemars(length(min = 1, max = 63))]
    pub table: String,
    /// Connections per pod.
    #[serde(default = "default_max_connections")]
    #[schemars(range(min = 2, max = 100))]
    pub max_connections: i32,
    /// Connections of the whole relay: caps its pods. One pod's worth is kept for a rollout, two for the operator.
    #[serde(default = "default_connection_budget")]
    #[schemars(range(min = 1, max = 10_000))]
    pub connection_budget: i32,
}

fn default_schema() -> String {
    "public".to_owned()
}

fn default_table() -> String {
    "agent_outbox".to_owned()
}

fn default_max_connections() -> i32 {
    3
}

fn default_connection_budget() -> i32 {
    30
}

/// How TLS is used towards PostgreSQL, in libpq's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it.
    Prefer,
    /// TLS, whoever the server is.
    Require,
    /// TLS with a certificate of a trusted authority.
    VerifyCa,
    /// The same, and the certificate names the host.
    VerifyFull,
}

/// Who brings the table to the shape that the relay needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Migrations {
    /// The operator, by a Job; a relay run by hand does it at its start.
    #[default]
    Auto,
    /// A person, by `outbox migrate`.
    Manual,
}

/// What is removed from the table, and how long after its end. Rows that wait, are in flight or are parked are never removed.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Retention::default")]
#[x_kube(
    validation = Rule::new(concat!("!has(self.succeeded) || !has(self.payload) || ", cel_duration!("self.payload"), " < ", cel_duration!("self.succeeded")))
        .message("retention.payload must be shorter than retention.succeeded, which removes the whole row: shorten or remove it")
)]
pub struct Retention {
    /// Age since their success after which succeeded rows are deleted, at least 1h; unset: never. With a row goes its unique
    /// key: the same intent inserted again is performed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(concat!(cel_duration!("self"), " >= duration('1h')"))
        .message("retention.succeeded must be at least 1h"))]
    pub succeeded: Option<Duration>,
    /// Age since their success after which the payloads of succeeded rows are replaced by `null`, at least 1h; unset: never.
    /// Row, key and the payload's hash stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(concat!(cel_duration!("self"), " >= duration('1h')"))
        .message("retention.payload must be at least 1h"))]
    pub payload: Option<Duration>,
    /// Age since their death after which dead rows are deleted, at least 1h; unset: never. With a row goes its unique key, and
    /// the chance to replay it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(concat!(cel_duration!("self"), " >= duration('1h')"))
        .message("retention.dead must be at least 1h"))]
    pub dead: Option<Duration>,
    /// Age after which the history of attempts and of what people did is deleted, at least 1h.
    #[x_kube(validation = Rule::new(concat!(cel_duration!("self"), " >= duration('1h')"))
        .message("retention.history must be at least 1h"))]
    pub history: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { succeeded: None, payload: None, dead: None, history: Duration::from_secs(30 * 24 * 3600) }
    }
}

/// How the number of pods follows the backlog.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Scaling::default")]
#[x_kube(
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("scaling.minReplicas must be at most scaling.maxReplicas: lower minReplicas or raise maxReplicas"),
    validation = Rule::new(concat!(cel_duration!("self.targetDrain"), " >= duration('1s')"))
        .message("scaling.targetDrain must be at least 1s")
)]
pub struct Scaling {
    /// Who decides the number of pods.
    pub mode: ScalingMode,
    /// Pods at least.
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: i32,
    /// Pods at most.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// How soon the rows that are due now should be gone.
    pub target_drain: Duration,
    /// Age of the oldest due row above which one more pod is asked for.
    pub max_oldest_due_age: Duration,
    /// How fast pods go.
    pub scale_down: ScaleDown,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            mode: ScalingMode::Auto,
            min_replicas: 0,
            max_replicas: 10,
            target_drain: Duration::from_secs(30),
            max_oldest_due_age: Duration::from_secs(60),
            scale_down: ScaleDown::default(),
        }
    }
}

/// Who decides the number of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScalingMode {
    /// The operator, from the backlog.
    #[default]
    Auto,
    /// Somebody else: `spec.replicas` if it is set, else whoever scales the Deployment.
    External,
    /// Somebody else; the operator computes and shows what it would do.
    Recommend,
}

/// How fast pods go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaleDown {
    /// How long fewer pods must have been enough before one goes.
    pub stabilization: Duration,
    /// Pods that go at once.
    #[schemars(range(min = 1, max = 1000))]
    pub step: i32,
}

impl Default for ScaleDown {
    fn default() -> Self {
        Self { stabilization: Duration::from_secs(120), step: 1 }
    }
}

/// Overrides of the relay's pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodOverrides {
    /// Labels beside the operator's own, which win.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations beside the operator's own, which win.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Environment of the container beside the operator's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVar>,
    /// Requests and limits of the container; unset: requests of 20m CPU and 32Mi, a limit of `memoryBudget` and 128Mi of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Labels that a node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods bear.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// A `ServiceAccount` of the namespace instead of the operator's own child.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// The pods' `PriorityClass`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Secrets with registry credentials.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}
