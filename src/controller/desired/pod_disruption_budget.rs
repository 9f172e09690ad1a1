//! The `PodDisruptionBudget`. A constant `maxUnavailable: 1`: it lets every drain go on, whatever the number of replicas,
//! and is never a reason to write when that number changes.

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{Owner, names};

/// Builds the `PodDisruptionBudget`.
pub fn build(owner: &Owner) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: owner.metadata(names::relay(&owner.name), names::RELAY),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(names::selector(&owner.name)),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
