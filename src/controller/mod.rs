//! The operator: reconciles relays into Deployments and scales them on the backlog of due rows.
//!
//! A visit is a pipeline of six steps ([`reconcile`]); what is built and what the status says is pure. This module knows
//! nothing of how rows are sent: controller and relay never see each other.

mod apply;
mod backoff;
mod children;
mod client;
mod conditions;
mod dereference;
pub mod desired;
mod error;
mod events;
mod health;
mod lease;
mod memory;
mod migration;
mod reconcile;
mod references;
mod replicas;
mod rollout;
mod sampler;
mod settings;
mod status;
mod validate;
mod watches;

use std::{fmt, sync::Arc, time::Duration};

use futures::future::join_all;
use kube::{
    core::{DeserializeGuard, ObjectMeta},
    runtime::{
        events::{Recorder, Reporter},
        reflector::Store,
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    api::OutboxRelay,
    store::backlog::BacklogRows,
    telemetry::operator_metrics::{OperatorMetrics, RelayLabels},
};
use backoff::Backoff;
pub use client::Clients;
pub use error::Error;
pub use health::{Health, Readiness};
use lease::Election;
use memory::Memories;
use references::References;
use sampler::{SampleSink, Sampler};
pub use settings::{LeaseSettings, Rollout, Settings};

/// Visits under way are finished for this long after the signal to stop; Kubernetes kills a pod after 30 s.
const DRAIN: Duration = Duration::from_secs(15);

/// A relay's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl RelayKey {
    fn of(meta: &ObjectMeta) -> Self {
        Self { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
    }

    fn labels(&self) -> RelayLabels {
        RelayLabels { namespace: self.namespace.clone(), relay: self.name.clone() }
    }
}

impl fmt::Display for RelayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What every visit shares.
struct Context {
    clients: Clients,
    settings: Settings,
    references: References,
    memories: Memories,
    backoff: Backoff,
    sampler: Sampler,
    recorder: Recorder,
    health: Arc<Health>,
    metrics: Metrics,
}

impl Context {
    fn forget(&self, relay: &RelayKey) {
        self.references.forget(relay);
        self.memories.forget(relay);
        self.backoff.reset(relay);
        self.sampler.forget(relay);
        self.metrics.0.forget(&relay.labels());
    }

    /// After a watch was begun anew: a deletion may have been missed.
    fn forget_all_but(&self, namespace: Option<&str>, relays: &Store<DeserializeGuard<OutboxRelay>>) {
        use kube::Resource as _;
        let there: std::collections::BTreeSet<RelayKey> =
            relays.state().iter().map(|relay| RelayKey::of(relay.meta())).collect();
        let known = self.sampler.relays();
        for gone in known.iter().filter(|known| !there.contains(known)) {
            if namespace.is_none_or(|namespace| gone.namespace == namespace) {
                self.forget(gone);
            }
        }
    }
}

/// The operator's metrics, in the controller's terms.
#[derive(Clone)]
struct Metrics(Arc<OperatorMetrics>);

impl Metrics {
    fn reconciled(&self, took: Duration, failure: Option<&'static str>) {
        self.0.reconciled(took, failure);
    }

    fn writes(&self, kind: &str) {
        self.0.writes(kind);
    }

    fn undecodable(&self) {
        self.0.failed("undecodable");
    }

    fn replicas(&self, relay: &RelayKey, desired: i32, ready: i32) {
        self.0.replicas(&relay.labels(), desired, ready);
    }
}

impl SampleSink for Metrics {
    fn sampled(&self, relay: &RelayKey, rows: Option<&BacklogRows>) {
        self.0.sampled(&relay.labels(), rows);
    }
}

/// Runs the operator until `stop` is cancelled: waits for the lease, works while it holds it, and gives it back.
pub async fn run(
    clients: Clients,
    settings: Settings,
    metrics: Arc<OperatorMetrics>,
    health: Arc<Health>,
    stop: CancellationToken,
) {
    let Some(lease) = settings.lease.clone() else {
        work(clients, settings, metrics, health, stop).await;
        return;
    };
    let mut election = Election::new(clients.calls.clone(), &lease.namespace, lease.name, lease.identity);
    while election.win(&stop).await {
        tracing::info!("this operator holds the lease");
        let working = work(clients.clone(), settings.clone(), metrics.clone(), health.clone(), stop.clone());
        tokio::select! {
            () = working => {
                election.release().await;
                return;
            }
            // Dropping the work ends it at its next await: a visit that is cut short is repeated by the next holder.
            () = election.hold() => tracing::warn!("the lease is lost; another operator may hold it now"),
        }
        metrics.clear();
    }
}

/// The work of the one operator that writes.
async fn work(
    clients: Clients,
    settings: Settings,
    metrics: Arc<OperatorMetrics>,
    health: Arc<Health>,
    stop: CancellationToken,
) {
    let (wake, woken) = mpsc::unbounded_channel();
    let metrics = Metrics(metrics);
    let sampler = Sampler::new(settings.sample_interval, wake, Arc::new(metrics.clone()));
    let reporter = Reporter { controller: "outbox-operator".to_owned(), instance: settings.instance.clone() };
    let recorder = Recorder::new(clients.calls.clone(), reporter);
    let namespaces: Vec<Option<String>> = match settings.namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let context = Arc::new(Context {
        clients,
        settings,
        references: References::default(),
        memories: Memories::default(),
        backoff: Backoff::default(),
        sampler: sampler.clone(),
        recorder,
        health,
        metrics,
    });
    let (routes, watches): (Vec<_>, Vec<_>) = namespaces
        .into_iter()
        .map(|namespace| {
            let (route, woken) = mpsc::unbounded_channel();
            let watch = watches::run(namespace.clone(), woken, context.clone(), stop.clone().cancelled_owned());
            ((namespace, route), watch)
        })
        .unzip();
    let drained = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        _ = join_all(watches) => {}
        () = sampler.run() => {}
        () = route(woken, routes) => {}
        () = drained => tracing::warn!("visits under way did not end in time"),
    }
}

/// Sends news of a relay's rows to the watches of its namespace.
async fn route(
    mut woken: mpsc::UnboundedReceiver<RelayKey>,
    routes: Vec<(Option<String>, mpsc::UnboundedSender<RelayKey>)>,
) {
    while let Some(relay) = woken.recv().await {
        let of_namespace = |served: &Option<String>| served.as_ref().is_none_or(|served| *served == relay.namespace);
        if let Some((_, route)) = routes.iter().find(|(served, _)| of_namespace(served)) {
            // The receiver is gone only when the operator ends.
            let _ = route.send(relay);
        }
    }
}
