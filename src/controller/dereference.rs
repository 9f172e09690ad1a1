//! Reads everything that a reconcile rests on: the policies and Secret keys that the relay names, and the children that
//! are there. I/O only; what it all means is decided in [`super::validate`] and after.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{ConfigMap, Secret, ServiceAccount},
        policy::v1::PodDisruptionBudget,
    },
};
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{DeserializeGuard, NamespaceResourceScope, PartialObjectMeta},
};
use serde::de::DeserializeOwned;

use super::{
    Error,
    desired::{Owner, names},
    references::References,
};
use crate::{
    api::{DispatchPolicy, OutboxRelay, SecretKeyRef},
    spec,
};

/// Children listed at most. A relay has one ConfigMap and one Job at rest, and a few more during a change.
const LIST_LIMIT: u32 = 100;

/// A policy that the relay names.
#[derive(Clone, Debug)]
pub enum Policy {
    /// It is there.
    Found(Box<DispatchPolicy>),
    /// It is not.
    NotFound,
    /// It cannot be decoded; why.
    Undecodable(String),
}

/// A Secret key that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingSecret {
    /// There is no such Secret.
    NotFound,
    /// The Secret lacks the key.
    NoKey,
}

/// A secret value. Never shown.
#[derive(Clone)]
pub struct Value(pub Vec<u8>);

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Value(..)")
    }
}

/// The values of Secret keys, or why there is none.
pub type Secrets = BTreeMap<SecretKeyRef, Result<Value, MissingSecret>>;

/// What the relay names.
#[derive(Clone, Debug)]
pub struct Referenced {
    /// The policies, by name.
    pub policies: BTreeMap<String, Policy>,
    /// The Secret keys of pods, migrations and the operator's own connection.
    pub secrets: Secrets,
}

/// The children that are there.
#[derive(Clone, Debug)]
pub struct Children {
    /// The Deployment.
    pub deployment: Option<Deployment>,
    /// The `ServiceAccount`.
    pub service_account: Option<ServiceAccount>,
    /// The `PodDisruptionBudget`.
    pub pod_disruption_budget: Option<PodDisruptionBudget>,
    /// `ConfigMap`s, without their content.
    pub config_maps: Vec<PartialObjectMeta<ConfigMap>>,
    /// Migration Jobs.
    pub jobs: Vec<Job>,
}

/// Reads the policy and the Secret keys. What the relay names is noted first, so that an object which arrives during the
/// reads triggers another reconcile.
pub async fn references(
    client: &Client,
    relay: &OutboxRelay,
    owner: &Owner,
    noted: &References,
) -> Result<Referenced, Error> {
    let names: BTreeSet<String> = spec::policy_names(relay).into_iter().flatten().collect();
    noted.note_policies(owner, names.clone());
    let mut policies = BTreeMap::new();
    for name in names {
        let policy = policy(client, &owner.namespace, &name).await?;
        policies.insert(name, policy);
    }
    let refs = secret_refs(relay, &policies);
    noted.note_secrets(owner, refs.iter().map(|reference| reference.name.clone()).collect());
    Ok(Referenced { policies, secrets: secrets(client, &owner.namespace, refs).await? })
}

/// The keys that pods, migrations and the operator's own connection read.
fn secret_refs(relay: &OutboxRelay, policies: &BTreeMap<String, Policy>) -> BTreeSet<SecretKeyRef> {
    let found = policies.values().filter_map(|policy| match policy {
        Policy::Found(policy) => Some(&policy.spec),
        _ => None,
    });
    let mut refs = spec::secret_refs(relay, found);
    let database = &relay.spec.database;
    refs.extend([&database.admin_url_secret_ref, &database.direct_url_secret_ref].into_iter().flatten().cloned());
    refs
}

async fn policy(client: &Client, namespace: &str, name: &str) -> Result<Policy, Error> {
    let api: Api<DeserializeGuard<DispatchPolicy>> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(Error::read(format!("DispatchPolicy {namespace}/{name}")))?;
    Ok(match found {
        None => Policy::NotFound,
        Some(DeserializeGuard(Ok(policy))) => Policy::Found(Box::new(policy)),
        Some(DeserializeGuard(Err(invalid))) => Policy::Undecodable(invalid.error),
    })
}

/// Reads each Secret once and keeps the referenced keys alone.
async fn secrets(client: &Client, namespace: &str, refs: BTreeSet<SecretKeyRef>) -> Result<Secrets, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut read: BTreeMap<String, Option<BTreeMap<String, ByteString>>> = BTreeMap::new();
    let mut values = Secrets::new();
    for reference in refs {
        if !read.contains_key(&reference.name) {
            let name = &reference.name;
            let secret = api.get_opt(name).await.map_err(Error::read(format!("Secret {namespace}/{name}")))?;
            read.insert(name.clone(), secret.map(|secret| secret.data.unwrap_or_default()));
        }
        let value = match read.get(&reference.name).and_then(Option::as_ref) {
            None => Err(MissingSecret::NotFound),
            Some(data) => data.get(&reference.key).map(|value| Value(value.0.clone())).ok_or(MissingSecret::NoKey),
        };
        values.insert(reference, value);
    }
    Ok(values)
}

/// Reads the children by their names, and those with many names by the relay's label.
pub async fn children(client: &Client, owner: &Owner) -> Result<Children, Error> {
    let name = names::relay(&owner.name);
    let listed = ListParams::default().labels(&names::children_selector(&owner.name)).limit(LIST_LIMIT);
    let config_maps: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), &owner.namespace);
    let jobs: Api<Job> = Api::namespaced(client.clone(), &owner.namespace);
    Ok(Children {
        deployment: child(client, &owner.namespace, &name).await?,
        service_account: child(client, &owner.namespace, &name).await?,
        pod_disruption_budget: child(client, &owner.namespace, &name).await?,
        config_maps: config_maps.list(&listed).await.map_err(Error::read("ConfigMaps of the relay"))?.items,
        jobs: jobs.list(&listed).await.map_err(Error::read("Jobs of the relay"))?.items,
    })
}

async fn child<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.get_opt(name).await.map_err(Error::read(format!("{} {namespace}/{name}", K::kind(&()))))
}
