//! `outbox controller`: the composition root of the operator.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};
use prometheus_client::registry::Registry;
use rand::RngExt as _;
use tokio::net::TcpListener;

use super::{Error, signal};
use crate::{
    controller::{self, Clients, Health, LeaseSettings, Rollout, Settings},
    telemetry::{operator_metrics::OperatorMetrics, server},
};

/// Where a pod finds its own namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The shortest interval that is taken: below it the sampler would be a table's heaviest client.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

/// Run the operator: reconcile OutboxRelay and DispatchPolicy resources into Deployments, and scale them on the backlog.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// A namespace to serve; may be repeated. All namespaces without it.
    #[arg(long = "namespace", value_name = "NS", env = "OUTBOX_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// The image of relays that have none of their own, and of migrations.
    #[arg(long, value_name = "IMAGE", env = "OUTBOX_RELAY_IMAGE")]
    relay_image: String,
    /// Whether running relays are moved to --relay-image.
    #[arg(long, value_enum, default_value = "manual", env = "OUTBOX_RELAY_ROLLOUT")]
    relay_rollout: RolloutArg,
    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// The namespace of the leader's lease. Without it the pod's own: POD_NAMESPACE, or the service account's.
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE")]
    lease_namespace: Option<String>,
    /// The name of the leader's lease. Operators that share a namespace and serve others need two.
    #[arg(long, value_name = "NAME", default_value = "outbox-operator")]
    lease_name: String,
    /// Work without a lease: only where no second operator can run.
    #[arg(long)]
    no_leader_election: bool,
    /// Time between two looks at a table.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    sample_interval: crate::api::Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RolloutArg {
    /// A running relay keeps its image until its spec.image says otherwise.
    Manual,
    /// All relays without an image of their own follow.
    Auto,
}

impl ControllerArgs {
    /// Runs the operator until SIGTERM or SIGINT.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let stop = signal::on_stop()?;
        let settings = self.settings()?;
        let clients = Clients::new(kube::Config::infer().await?)?;
        let mut registry = Registry::default();
        let metrics = OperatorMetrics::register(&mut registry);
        let health = Arc::new(Health::default());
        let listener =
            TcpListener::bind(self.listen).await.map_err(|error| format!("listen on {}: {error}", self.listen))?;
        let serving = tokio::spawn(server::serve(listener, Arc::new(registry), health.readiness(), stop.clone()));
        controller::run(clients, settings, metrics, health, stop.clone()).await;
        // Whatever ended the operator ends the server too, and with it the process.
        stop.cancel();
        serving.await??;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(&self) -> Result<Settings, Error> {
        let instance = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).ok();
        Ok(Settings {
            namespaces: self.namespaces.iter().filter(|namespace| !namespace.is_empty()).cloned().collect(),
            relay_image: self.relay_image.clone(),
            rollout: match self.relay_rollout {
                RolloutArg::Manual => Rollout::Manual,
                RolloutArg::Auto => Rollout::Auto,
            },
            sample_interval: self.sample_interval.0.max(SHORTEST_INTERVAL),
            lease: if self.no_leader_election { None } else { Some(self.lease(instance.as_deref())?) },
            instance,
        })
    }

    fn lease(&self, instance: Option<&str>) -> Result<LeaseSettings, Error> {
        let namespace = match &self.lease_namespace {
            Some(namespace) => namespace.clone(),
            None => std::fs::read_to_string(NAMESPACE_FILE)
                .map_err(|_| "say where the leader's lease is: --lease-namespace NS, or --no-leader-election for a single process")?
                .trim()
                .to_owned(),
        };
        // A restarted process is another candidate: its predecessor's lease is not its own.
        let identity = format!("{}-{:08x}", instance.unwrap_or("outbox"), rand::rng().random::<u32>());
        Ok(LeaseSettings { namespace, name: self.lease_name.clone(), identity })
    }
}
