//! The ConfigMap with the documents. Immutable and named by its content: another content is another ConfigMap, so running
//! pods keep theirs and a rollback finds the old one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::{PodPlan, names};

/// The key, and the file's name in the pod.
pub const FILE: &str = "relay.yaml";

/// The name under which pods of this plan find their documents.
pub fn name(plan: &PodPlan, component: &str) -> String {
    names::config_map(&plan.owner.name, component, &plan.documents.hash)
}

/// Builds the ConfigMap of the pods of one component.
pub fn build(plan: &PodPlan, component: &str) -> ConfigMap {
    ConfigMap {
        metadata: plan.owner.metadata(name(plan, component), component),
        data: Some(BTreeMap::from([(FILE.to_owned(), plan.documents.text.clone())])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}
