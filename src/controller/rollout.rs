//! What a Deployment says of its rollout.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus};

use super::desired::deployment::CONTAINER;

fn spec(deployment: &Deployment) -> Option<&DeploymentSpec> {
    deployment.spec.as_ref()
}

/// The number of pods asked for.
pub fn number(deployment: &Deployment) -> Option<i32> {
    spec(deployment).map(|spec| spec.replicas.unwrap_or(1))
}

/// Pods that are ready.
pub fn ready(deployment: &Deployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
}

/// The image of the relay's container.
pub fn image(deployment: &Deployment) -> Option<String> {
    let pod = spec(deployment)?.template.spec.as_ref()?;
    pod.containers.iter().find(|container| container.name == CONTAINER)?.image.clone()
}

/// Whether every pod that exists has the present template.
pub fn is_complete(deployment: &Deployment) -> bool {
    let none = DeploymentStatus::default();
    let status = deployment.status.as_ref().unwrap_or(&none);
    let seen = status.observed_generation >= deployment.metadata.generation;
    let (all, updated) = (status.replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
    seen && all == updated && updated >= number(deployment).unwrap_or(1).min(1)
}

/// The `ConfigMap`s that its present pods read.
pub fn config_maps(deployment: &Deployment) -> Vec<String> {
    let volumes = spec(deployment).and_then(|spec| spec.template.spec.as_ref()).and_then(|pod| pod.volumes.as_ref());
    volumes.into_iter().flatten().filter_map(|volume| Some(volume.config_map.as_ref()?.name.clone())).collect()
}
