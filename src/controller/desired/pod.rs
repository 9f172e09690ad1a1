//! What the relay's pods and the migration's pods have in common: Pod Security `restricted`, the documents and the Secrets.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapVolumeSource, Container, KeyToPath, PodSecurityContext, PodSpec, ProjectedVolumeSource,
        ResourceRequirements, SeccompProfile, SecretProjection, SecurityContext, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{PodPlan, config_map, names};
use crate::api::ByteQuantity;

/// The user and group that pods run as: nobody's on the usual images, and not root.
const USER: i64 = 65_532;
/// Where the documents are.
const CONFIG_DIR: &str = "/etc/outbox/config";
/// Where Secrets are, as `<name>/<key>`.
const SECRETS_DIR: &str = "/etc/outbox/secrets";
/// Readable by the owner and the pod's group: root projects the files, and the pod does not run as root.
const SECRET_MODE: i32 = 0o440;
/// Memory of a container for everything but payloads: several times what a busy relay was measured to take.
const BESIDE_PAYLOADS: ByteQuantity = ByteQuantity::from_mebibytes(128);

/// The arguments by which `outbox` finds its documents and Secrets. The program is the image's entrypoint: where it lies in
/// there is the image's own business, and containers name no command.
pub fn arguments(command: &str) -> Vec<String> {
    let file = format!("{CONFIG_DIR}/{}", config_map::FILE);
    [command, "-f", &file, "--secrets-dir", SECRETS_DIR].map(str::to_owned).into()
}

/// The pod around one container.
pub fn build(plan: &PodPlan, component: &str, container: Container) -> PodSpec {
    let template = &plan.template;
    let account = template.service_account_name.clone().unwrap_or_else(|| names::relay(&plan.owner.name));
    let or_none = |map: &BTreeMap<String, String>| (!map.is_empty()).then(|| map.clone());
    PodSpec {
        service_account_name: Some(account),
        automount_service_account_token: Some(false),
        // Environment variables of every Service of the namespace would be a change of pods that nobody asked for.
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        containers: vec![hardened(plan, container)],
        volumes: Some(volumes(plan, component)),
        node_selector: or_none(&template.node_selector),
        tolerations: (!template.tolerations.is_empty()).then(|| template.tolerations.clone()),
        priority_class_name: template.priority_class_name.clone(),
        image_pull_secrets: (!template.image_pull_secrets.is_empty()).then(|| template.image_pull_secrets.clone()),
        ..PodSpec::default()
    }
}

fn hardened(plan: &PodPlan, container: Container) -> Container {
    let mut mounts = vec![mount("config", CONFIG_DIR)];
    if !plan.secrets.is_empty() {
        mounts.push(mount("secrets", SECRETS_DIR));
    }
    Container {
        image: Some(plan.image.clone()),
        env: (!plan.template.env.is_empty()).then(|| plan.template.env.clone()),
        resources: Some(plan.template.resources.clone().unwrap_or_else(|| default_resources(plan.memory_budget))),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..container
    }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), read_only: Some(true), ..VolumeMount::default() }
}

fn volumes(plan: &PodPlan, component: &str) -> Vec<Volume> {
    let mut volumes = vec![Volume {
        name: "config".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map::name(plan, component),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }];
    if !plan.secrets.is_empty() {
        volumes.push(Volume { name: "secrets".to_owned(), projected: Some(secrets(plan)), ..Volume::default() });
    }
    volumes
}

/// One source a Secret, with the referenced keys only.
fn secrets(plan: &PodPlan) -> ProjectedVolumeSource {
    let mut items: BTreeMap<&str, Vec<KeyToPath>> = BTreeMap::new();
    for reference in &plan.secrets {
        let path = format!("{}/{}", reference.name, reference.key);
        items.entry(&reference.name).or_default().push(KeyToPath { key: reference.key.clone(), path, mode: None });
    }
    let sources = items.into_iter().map(|(name, items)| VolumeProjection {
        secret: Some(SecretProjection { name: name.to_owned(), items: Some(items), optional: None }),
        ..VolumeProjection::default()
    });
    ProjectedVolumeSource { default_mode: Some(SECRET_MODE), sources: Some(sources.collect()) }
}

/// As documented at `spec.template.resources`.
fn default_resources(budget: ByteQuantity) -> ResourceRequirements {
    let quantities = |entries: &[(&str, &str)]| {
        Some(entries.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect())
    };
    let limit = ByteQuantity(budget.0.saturating_add(BESIDE_PAYLOADS.0)).to_string();
    ResourceRequirements {
        requests: quantities(&[("cpu", "20m"), ("memory", "32Mi")]),
        limits: quantities(&[("memory", &limit)]),
        ..ResourceRequirements::default()
    }
}
