//! The children of a relay as they should be: one pure builder each, and none can fail, since [`super::validate`] made
//! what they are built from. Nothing here knows what is in the cluster.

pub mod config_map;
pub mod deployment;
pub mod documents;
pub mod migration_job;
pub mod names;
pub mod pod;
pub mod pod_disruption_budget;
pub mod service_account;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::api::{ByteQuantity, GROUP, PodOverrides, SecretKeyRef, VERSION};
use documents::RelayDocuments;

/// The relay that the children belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid: a later relay of the same name is another owner.
    pub uid: String,
}

impl Owner {
    /// Metadata of a child that goes with its owner.
    pub fn metadata(&self, name: String, component: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(names::labels(&self.name, component)),
            owner_references: Some(vec![self.reference()]),
            ..ObjectMeta::default()
        }
    }

    /// `blockOwnerDeletion` stays off: setting it asks for a right on the relay's finalizers, and would let a child hold
    /// up the relay's deletion.
    fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "OutboxRelay".to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }
}

/// All that a relay's pods are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlan {
    /// The relay.
    pub owner: Owner,
    /// The container's image.
    pub image: String,
    /// What `outbox` reads.
    pub documents: RelayDocuments,
    /// The keys that are projected into the pod.
    pub secrets: BTreeSet<SecretKeyRef>,
    /// Memory for payloads.
    pub memory_budget: ByteQuantity,
    /// The user's overrides.
    pub template: PodOverrides,
}

/// A relay's Deployment: its pods and what rolls them.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayPlan {
    /// The pods.
    pub pods: PodPlan,
    /// A keyed hash of the values of the projected keys.
    pub secrets_hash: String,
    /// The policy's deadline over one attempt, in whole seconds, rounded up.
    pub deadline_seconds: i64,
}

/// Puts the operator's own entries over a user's.
fn overridden(users: &BTreeMap<String, String>, own: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut merged = users.clone();
    merged.extend(own);
    merged
}

#[cfg(test)]
mod tests;
