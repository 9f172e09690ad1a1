//! A cluster for all tests, and for each test a namespace, a database and an operator.

use std::{
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Pod, Secret},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, NamespaceResourceScope},
};
use outbox_operator::{
    api::{DispatchPolicy, OutboxRelay, definition},
    controller::{self, Clients, Health, LeaseSettings, Readiness, Rollout, Settings},
    demo::{PostgresOptions, ThrowawayPostgres},
    store::{ConnectSettings, SslSettings, TableName, migrate},
    telemetry::operator_metrics::OperatorMetrics,
};
use prometheus_client::registry::Registry;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::{sync::OnceCell, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Longest wait for anything: far more than any of it takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// The account that the operator under test runs as; see `rbac.yaml`.
const OPERATOR: &str = "outbox-operator-test";
/// No registry has it, and no node is asked to run it.
pub const IMAGE: &str = "outbox.test/relay:1";
const TENANT: &str = "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11";

/// The cluster's configuration, as its admin; the definitions and the operator's account are there.
async fn cluster() -> Config {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    let path = ["KUBECONFIG", "OUTBOX_TEST_CLUSTER"].into_iter().find_map(|name| std::env::var(name).ok());
    let path = path.filter(|path| !path.is_empty()).expect(
        "these tests need a Kubernetes API server: run `export KUBECONFIG=$(hack/cluster/cluster up --no-node)` first, or `make test`",
    );
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(path).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    PREPARED.get_or_init(|| async { prepare(Client::try_from(config.clone()).unwrap()).await }).await;
    config
}

async fn prepare(client: Client) {
    let force = PatchParams::apply("outbox-test").force();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in [definition::<OutboxRelay>(), definition::<DispatchPolicy>()] {
        let name = crd.metadata.name.clone().unwrap();
        crds.patch(&name, &force, &Patch::Apply(&crd)).await.unwrap();
        eventually("the definition is established", || async {
            let crd = crds.get(&name).await.unwrap();
            let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
                .then_some(())
        })
        .await;
    }
    for document in serde_yaml::Deserializer::from_str(include_str!("rbac.yaml")) {
        let object: DynamicObject = serde::Deserialize::deserialize(document).unwrap();
        let types = object.types.clone().unwrap();
        let plural = format!("{}s", types.kind.to_lowercase());
        let resource = ApiResource {
            group: "rbac.authorization.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: types.api_version,
            kind: types.kind,
            plural,
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        api.patch(object.metadata.name.as_deref().unwrap(), &force, &Patch::Apply(&object)).await.unwrap();
    }
}

/// One PostgreSQL for all tests; it ends with this process.
fn postgres() -> &'static ThrowawayPostgres {
    static SERVER: OnceLock<ThrowawayPostgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let server = runtime.block_on(ThrowawayPostgres::start(PostgresOptions::fast())).unwrap();
            // The server's watch belongs to this runtime, which lives as long as the process.
            std::mem::forget(runtime);
            server
        })
        .join()
        .unwrap()
    })
}

/// Looks until there is something to return.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// A running operator.
pub struct Operator {
    stop: CancellationToken,
    task: JoinHandle<()>,
    registry: Registry,
    /// What `/readyz` answers.
    pub readiness: Readiness,
}

impl Operator {
    fn start(config: Config, settings: Settings) -> Self {
        let mut registry = Registry::default();
        let metrics = OperatorMetrics::register(&mut registry);
        let health = Arc::new(Health::default());
        let readiness = health.readiness();
        let stop = CancellationToken::new();
        let clients = Clients::new(config).unwrap();
        let task = tokio::spawn(controller::run(clients, settings, metrics, health, stop.clone()));
        Self { stop, task, registry, readiness }
    }

    /// Stops it as SIGTERM does, and waits for its end.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the operator ends").unwrap();
    }

    /// Ends it as SIGKILL does.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// The lines of its metrics.
    pub fn metrics(&self) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::prometheus_text::encode(&mut text, &self.registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// The sum of a counter's series.
    pub fn counter(&self, name: &str) -> u64 {
        let lines = self.metrics().into_iter();
        lines
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// How many visits it has made.
    pub fn visits(&self) -> u64 {
        self.counter("outbox_reconciles_total")
    }

    /// Waits until it has made its first visit.
    pub async fn has_visited(&self) {
        eventually("the operator made a visit", || async { (self.visits() > 0).then_some(()) }).await;
    }
}

/// A namespace and a database.
pub struct World {
    pub namespace: String,
    pub client: Client,
    pub url: String,
    config: Config,
}

impl World {
    /// An empty namespace, which enforces Pod Security `restricted`, and an empty database.
    pub async fn empty() -> Self {
        let config = cluster().await;
        let client = Client::try_from(config.clone()).unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let body = json!({ "metadata": {
            "generateName": "outbox-test-",
            "labels": { "pod-security.kubernetes.io/enforce": "restricted", "outbox.test/ours": "true" },
        } });
        let made = namespaces.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await.unwrap();
        let namespace = made.metadata.name.unwrap();
        let url = postgres().create_database(&namespace.replace('-', "_")).await.unwrap();
        Self { namespace, client, url, config }
    }

    /// The same with the table, the Secret `db` and a running operator.
    pub async fn new() -> (Self, Operator) {
        let world = Self::empty().await;
        world.migrate().await;
        world.secret("db", &[("uri", &world.url)]).await;
        let operator = world.operator();
        (world, operator)
    }

    /// Starts an operator of this namespace alone, without an election.
    pub fn operator(&self) -> Operator {
        self.operator_with(|_| {})
    }

    /// Starts an operator with other settings.
    pub fn operator_with(&self, change: impl FnOnce(&mut Settings)) -> Operator {
        let mut settings = self.settings();
        change(&mut settings);
        self.operator_as(OPERATOR, settings)
    }

    /// Starts an operator as another account.
    pub fn operator_as(&self, user: &str, settings: Settings) -> Operator {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(user.to_owned());
        Operator::start(config, settings)
    }

    /// The settings of an operator of this namespace alone, without an election.
    pub fn settings(&self) -> Settings {
        Settings {
            namespaces: vec![self.namespace.clone()],
            relay_image: IMAGE.to_owned(),
            rollout: Rollout::Manual,
            sample_interval: Duration::from_millis(300),
            lease: None,
            instance: None,
        }
    }

    /// A lease in this namespace.
    pub fn lease(&self, identity: &str) -> LeaseSettings {
        LeaseSettings { namespace: self.namespace.clone(), name: "operator".to_owned(), identity: identity.to_owned() }
    }

    pub async fn migrate(&self) {
        let settings = ConnectSettings {
            url: self.url.clone(),
            ssl: SslSettings::default(),
            max_connections: 1,
            application_name: "outbox test".to_owned(),
        };
        migrate::migrate(&settings, &TableName::new("public", "agent_outbox"), &|_| {}).await.unwrap();
    }

    pub async fn sql(&self, statement: &str) {
        let pool = PgPool::connect(&self.url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&pool).await.unwrap();
        pool.close().await;
    }

    /// Inserts rows in a state, as far from now as `due` says.
    pub async fn rows(&self, count: u32, status: &str, due: &str) {
        self.sql(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, next_attempt_at, reason)
             SELECT '{TENANT}', 'op', n::text, gen_random_uuid()::text, 'http://receiver.test/', '{{}}', '{status}', now() + interval '{due}', 'rejected'
             FROM generate_series(1, {count}) AS n"
        ))
        .await;
    }

    pub fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn secret(&self, name: &str, entries: &[(&str, &str)]) {
        let data: serde_json::Map<String, Value> =
            entries.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        let body = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data });
        let params = PatchParams::apply("tenant").force();
        self.api::<Secret>().patch(name, &params, &Patch::Apply(body)).await.unwrap();
    }

    /// Applies a relay as a tenant does. Its pods fit no node, so that none of them runs anywhere.
    pub async fn relay(&self, name: &str, change: impl FnOnce(&mut Value)) -> OutboxRelay {
        let mut spec = json!({
            "database": { "urlSecretRef": { "name": "db", "key": "uri" } },
            "template": { "nodeSelector": { "outbox.test/no-such-node": "true" } },
        });
        change(&mut spec);
        self.apply::<OutboxRelay>(name, spec).await.unwrap()
    }

    /// Applies a custom resource, strictly: unknown fields are refused.
    pub async fn apply<K>(&self, name: &str, spec: Value) -> kube::Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let body = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": { "name": name }, "spec": spec,
        });
        let params = PatchParams::apply("tenant").force().validation_strict();
        self.api::<K>().patch(name, &params, &Patch::Apply(body)).await
    }

    pub async fn merge<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Serialize,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// Has the operator visit the relay for no reason, and waits until a visit that began after this call has ended.
    pub async fn visit(&self, operator: &Operator, relay: &str) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // One visit may be under way; the one after it has seen everything.
        for _ in 0..2 {
            let before = operator.visits();
            let label = format!("{}", NUMBER.fetch_add(1, Ordering::Relaxed));
            let patch = json!({ "metadata": { "labels": { "outbox.test/visit": label } } });
            self.merge::<OutboxRelay>(relay, patch).await;
            eventually("the operator made its visit", || async { (operator.visits() > before).then_some(()) }).await;
        }
    }

    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits for an object that is as asked.
    pub async fn object<K>(&self, name: &str, what: &str, fits: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = self.api::<K>();
        let last = std::sync::Mutex::new(None);
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let object = api.get_opt(name).await.unwrap();
                if let Some(object) = object.as_ref().filter(|object| fits(object)) {
                    return object.clone();
                }
                *last.lock().unwrap() = object;
                tokio::time::sleep(LOOK).await;
            }
        });
        let Ok(found) = found.await else {
            panic!("{name} never was so that {what}; it is {:#?}", last.lock().unwrap())
        };
        found
    }

    /// Waits for a condition with this status and reason, and returns it.
    pub async fn condition(&self, relay: &str, type_: &str, status: &str, reason: &str) -> Condition {
        let is = |condition: &&Condition| {
            condition.type_ == type_ && condition.status == status && condition.reason == reason
        };
        let conditions = |relay: &OutboxRelay| relay.status.clone().unwrap_or_default().conditions;
        let what = format!("{type_} is {status}/{reason}");
        let found =
            self.object::<OutboxRelay>(relay, &what, |relay| conditions(relay).iter().any(|one| is(&one))).await;
        let condition = conditions(&found).iter().find(is).cloned();
        condition.unwrap()
    }

    pub async fn deployment(&self, name: &str, what: &str, fits: impl Fn(&Deployment) -> bool) -> Deployment {
        self.object::<Deployment>(name, what, fits).await
    }

    /// Waits until the Deployment asks for this number of pods.
    pub async fn replicas(&self, name: &str, number: i32) -> Deployment {
        let what = format!("{number} replicas are asked for");
        self.deployment(name, &what, |found| replicas(found) == number).await
    }

    /// Says of the namespace's pods that they are ready, as a kubelet would.
    pub async fn pods_are_ready(&self, count: usize) {
        let pods = self.api::<Pod>();
        let selector = ListParams::default().labels("app.kubernetes.io/component=relay");
        let found = eventually("the pods are there", || async {
            let live = pods.list(&selector).await.unwrap().items.into_iter();
            let live: Vec<Pod> = live.filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
            (live.len() >= count).then_some(live)
        })
        .await;
        let now = "2026-01-01T00:00:00Z";
        let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": now });
        let status = json!({ "status": { "phase": "Running", "conditions": [condition("Ready"), condition("ContainersReady")] } });
        for pod in found {
            let name = pod.metadata.name.unwrap();
            match pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status.clone())).await {
                Ok(_) => {}
                // It went meanwhile, as pods of a rollout do.
                Err(kube::Error::Api(answer)) if answer.is_not_found() => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Drop for World {
    /// Takes the namespace away, without waiting for its end.
    fn drop(&mut self) {
        let (config, namespace) = (self.config.clone(), self.namespace.clone());
        let gone = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let api: Api<Namespace> = Api::all(Client::try_from(config).unwrap());
                let _ = api.delete(&namespace, &DeleteParams::background()).await;
            });
        });
        let _ = gone.join();
    }
}

/// The number of pods that a Deployment asks for.
pub fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap()
}
