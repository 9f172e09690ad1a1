//! Which relay names which policy and Secrets: the index by which a change of one finds the relays that it concerns.
//!
//! It holds what the last reconcile of each relay read. A relay that was not reconciled yet is reconciled anyway.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use super::{RelayKey, desired::Owner};

#[derive(Default)]
struct Named {
    policies: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

/// The index.
#[derive(Default)]
pub struct References {
    relays: Mutex<BTreeMap<RelayKey, Named>>,
}

impl References {
    /// Notes the policies that a relay names.
    pub fn note_policies(&self, owner: &Owner, policies: BTreeSet<String>) {
        self.with(|relays| relays.entry(key(owner)).or_default().policies = policies);
    }

    /// Notes the Secrets that a relay and its policies name.
    pub fn note_secrets(&self, owner: &Owner, secrets: BTreeSet<String>) {
        self.with(|relays| relays.entry(key(owner)).or_default().secrets = secrets);
    }

    /// Forgets a relay.
    pub fn forget(&self, relay: &RelayKey) {
        self.with(|relays| relays.remove(relay));
    }

    /// The relays that name a policy.
    pub fn of_policy(&self, namespace: &str, name: &str) -> Vec<RelayKey> {
        self.matching(namespace, |named| named.policies.contains(name))
    }

    /// The relays that name a Secret.
    pub fn of_secret(&self, namespace: &str, name: &str) -> Vec<RelayKey> {
        self.matching(namespace, |named| named.secrets.contains(name))
    }

    fn matching(&self, namespace: &str, names: impl Fn(&Named) -> bool) -> Vec<RelayKey> {
        self.with(|relays| {
            let of_namespace = relays.iter().filter(|(relay, _)| relay.namespace == namespace);
            of_namespace.filter(|(_, named)| names(named)).map(|(relay, _)| relay.clone()).collect()
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<RelayKey, Named>) -> T) -> T {
        act(&mut self.relays.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn key(owner: &Owner) -> RelayKey {
    RelayKey { namespace: owner.namespace.clone(), name: owner.name.clone() }
}
