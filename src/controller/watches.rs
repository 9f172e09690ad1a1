//! What wakes a relay: its own object, its children, the policy and the Secrets that it names, and news of its rows.
//!
//! Each watch but the relays' own is of metadata alone. A watch that fails is repeated with a backoff and makes the operator
//! not ready, naming the resource and the verb.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, TryStreamExt as _, stream::BoxStream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Secret, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Resource, ResourceExt as _,
    core::{DeserializeGuard, NamespaceResourceScope, PartialObjectMeta},
    runtime::{
        Predicate as _, PredicateConfig, WatchStreamExt as _,
        controller::{self, ReconcileReason, ReconcileRequest, trigger_owners, trigger_self, trigger_with},
        predicates,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::{
    Context, RelayKey,
    desired::names,
    health,
    reconcile::{on_error, reconcile},
};
use crate::api::{DispatchPolicy, OutboxRelay};

/// Relays that are visited at the same time. Each waits for the API server most of its time.
const CONCURRENCY: u16 = 16;
/// Wakes of one relay within this time are one visit.
const DEBOUNCE: std::time::Duration = std::time::Duration::from_millis(200);

type Relay = DeserializeGuard<OutboxRelay>;
type Request = ReconcileRequest<Relay>;
type Requests = BoxStream<'static, Result<Request, watcher::Error>>;

/// Visits the relays of one namespace, or of all, until `stop` is done; then the visits under way are finished.
pub async fn run(
    namespace: Option<String>,
    woken: mpsc::UnboundedReceiver<RelayKey>,
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let (store, writer) = reflector::store::<Relay>();
    let scope = Scope { namespace, context: context.clone() };
    let wakes: Vec<Requests> = vec![
        scope.relays(writer, store.clone()),
        scope.owned::<Deployment>(),
        scope.owned::<ConfigMap>(),
        scope.owned::<ServiceAccount>(),
        scope.owned::<PodDisruptionBudget>(),
        scope.owned::<Job>(),
        scope.policies(),
        scope.secrets(),
        news(woken),
    ];
    let queue = futures::stream::select_all(wakes).take_until(stop);
    let config = controller::Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
    let visits = controller::applier(
        |relay, context| Box::pin(reconcile(relay, context)),
        on_error,
        context.clone(),
        store,
        queue,
        config,
    );
    visits
        .for_each(|visit| {
            match visit {
                Err(controller::Error::ObjectNotFound(gone)) => context.forget(&RelayKey {
                    namespace: gone.namespace.clone().unwrap_or_default(),
                    name: gone.name.clone(),
                }),
                // Reconcile errors are logged where they happen, and watch errors by `Health`.
                Err(error) => tracing::debug!(%error, "visit"),
                Ok(_) => {}
            }
            std::future::ready(())
        })
        .await;
}

struct Scope {
    namespace: Option<String>,
    context: Arc<Context>,
}

impl Scope {
    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        let client = self.context.clients.watches.clone();
        match &self.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }

    /// A watch of `K`, noted in the operator's health.
    fn watch<K>(
        &self,
        config: watcher::Config,
    ) -> impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send + use<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug
            + Send
            + 'static,
    {
        let resource = match &self.namespace {
            Some(namespace) => format!("{} in namespace {namespace}", resource::<K>()),
            None => resource::<K>(),
        };
        let events = watcher(self.api::<K>(), config).default_backoff();
        health::noted(events, resource, self.context.health.clone(), health::SILENCE)
    }

    /// The relays themselves. Their status is not a reason for a visit: it is the operator's own word.
    fn relays(&self, writer: reflector::store::Writer<Relay>, store: Store<Relay>) -> Requests {
        let events = self.watch::<Relay>(watcher::Config::default()).modify(|relay| relay.managed_fields_mut().clear());
        let context = self.context.clone();
        let namespace = self.namespace.clone();
        let reflected = reflector::reflector(writer, events).inspect_ok(move |event| {
            if matches!(event, watcher::Event::InitDone) {
                context.forget_all_but(namespace.as_deref(), &store);
            }
        });
        let changed = predicates::generation.combine(predicates::labels).combine(deletion);
        let touched = reflected.touched_objects().predicate_filter(changed, PredicateConfig::default());
        trigger_self::<Relay, _>(touched, ()).boxed()
    }

    /// Children, told by the operator's label.
    fn owned<K>(&self) -> Requests
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + Send + 'static,
    {
        let config = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY.0, names::MANAGED_BY.1));
        let touched = self.watch::<PartialObjectMeta<K>>(config).touched_objects();
        trigger_owners::<Relay, _>(touched, (), ()).boxed()
    }

    fn policies(&self) -> Requests {
        let context = self.context.clone();
        let touched = self.watch::<PartialObjectMeta<DispatchPolicy>>(watcher::Config::default()).touched_objects();
        trigger_with(touched, move |policy: PartialObjectMeta<DispatchPolicy>| {
            let namespace = policy.namespace().unwrap_or_default();
            requests(context.references.of_policy(&namespace, &policy.name_any()), "policy changed")
        })
        .boxed()
    }

    fn secrets(&self) -> Requests {
        let context = self.context.clone();
        let touched = self.watch::<PartialObjectMeta<Secret>>(watcher::Config::default()).touched_objects();
        trigger_with(touched, move |secret: PartialObjectMeta<Secret>| {
            let namespace = secret.namespace().unwrap_or_default();
            requests(context.references.of_secret(&namespace, &secret.name_any()), "secret changed")
        })
        .boxed()
    }
}

/// Relays with news of their rows.
fn news(woken: mpsc::UnboundedReceiver<RelayKey>) -> Requests {
    let woken = futures::stream::unfold(woken, |mut woken| async move { Some((woken.recv().await?, woken)) });
    woken.flat_map(|relay| futures::stream::iter(requests(vec![relay], "rows changed"))).map(Ok).boxed()
}

fn requests(relays: Vec<RelayKey>, why: &str) -> Vec<Request> {
    let reason = || ReconcileReason::Custom { reason: why.to_owned() };
    let reference = |relay: RelayKey| ObjectRef::<Relay>::new(&relay.name).within(&relay.namespace);
    relays.into_iter().map(|relay| ReconcileRequest { obj_ref: reference(relay), reason: reason() }).collect()
}

/// `deployments.apps`, as RBAC and `kubectl` name it.
fn resource<K: Resource<DynamicType = ()>>() -> String {
    let group = K::group(&());
    if group.is_empty() { K::plural(&()).into_owned() } else { format!("{}.{group}", K::plural(&())) }
}

/// Changes when a deletion begins, or another object takes the name.
#[expect(clippy::unnecessary_wraps, reason = "the shape of a predicate")]
fn deletion(relay: &Relay) -> Option<u64> {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    relay.meta().uid.hash(&mut hasher);
    relay.meta().deletion_timestamp.is_some().hash(&mut hasher);
    Some(hasher.finish())
}
