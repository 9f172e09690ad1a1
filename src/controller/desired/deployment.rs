//! The relay's Deployment, without its number of replicas: that has an owner of its own ([`crate::controller::replicas`]).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{Container, ContainerPort, HTTPGetAction, PodTemplateSpec, Probe},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::{RelayPlan, names, overridden, pod};

/// Rolls the pods when a referenced Secret's value changes.
pub const SECRETS_HASH: &str = "outbox-operator.dev/secrets-hash";
/// The container's name.
pub const CONTAINER: &str = "relay";
/// Metrics, health and readiness.
const PORT: i32 = 8080;
/// Beyond the policy's deadline: settling what came back, and the pod's own end.
const GRACE_MARGIN_SECONDS: i64 = 20;
/// `ReplicaSet`s that are kept for `kubectl rollout undo`.
const HISTORY: i32 = 3;

/// Builds the Deployment.
pub fn build(plan: &RelayPlan) -> Deployment {
    let owner = &plan.pods.owner;
    Deployment {
        metadata: owner.metadata(names::relay(&owner.name), names::RELAY),
        spec: Some(DeploymentSpec {
            replicas: None,
            revision_history_limit: Some(HISTORY),
            selector: LabelSelector { match_labels: Some(names::selector(&owner.name)), ..LabelSelector::default() },
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: template(plan),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn template(plan: &RelayPlan) -> PodTemplateSpec {
    let (name, overrides) = (&plan.pods.owner.name, &plan.pods.template);
    let hash = BTreeMap::from([(SECRETS_HASH.to_owned(), plan.secrets_hash.clone())]);
    let mut spec = pod::build(&plan.pods, names::RELAY, container());
    spec.termination_grace_period_seconds = Some(plan.deadline_seconds + GRACE_MARGIN_SECONDS);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(overridden(&overrides.labels, names::labels(name, names::RELAY))),
            annotations: Some(overridden(&overrides.annotations, hash)),
            ..ObjectMeta::default()
        }),
        spec: Some(spec),
    }
}

fn container() -> Container {
    let mut args = pod::arguments("relay");
    args.extend(["--listen".to_owned(), format!("0.0.0.0:{PORT}")]);
    Container {
        name: CONTAINER.to_owned(),
        args: Some(args),
        ports: Some(vec![ContainerPort {
            name: Some("metrics".to_owned()),
            container_port: PORT,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        // Liveness asks the process alone: a database that is away restarts no pod.
        liveness_probe: Some(Probe { period_seconds: Some(10), failure_threshold: Some(6), ..probe("/healthz") }),
        readiness_probe: Some(Probe { period_seconds: Some(5), failure_threshold: Some(3), ..probe("/readyz") }),
        ..Container::default()
    }
}

fn probe(path: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            ..HTTPGetAction::default()
        }),
        timeout_seconds: Some(3),
        ..Probe::default()
    }
}
