//! Writes children by server-side apply, and only when something differs. I/O only.
//!
//! An object is written when the operator means something else than it last wrote (a hash of it is kept in an annotation,
//! so that a field which is no longer wanted is noticed), or when the cluster has something else in a field that is meant.
//! In a steady state nothing is sent at all, not even after a restart.

use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Error, Metrics,
    desired::{Owner, names},
};

/// Owns everything of the children but the number of replicas.
pub const FIELD_MANAGER: &str = "outbox-operator";
/// What the operator last wrote, as a hash.
pub const APPLIED_HASH: &str = "outbox-operator.dev/applied-hash";
/// Bytes of that hash.
const HASH_BYTES: usize = 8;

/// A child as it is in the cluster after it was applied.
#[derive(Clone, Debug)]
pub struct Applied<K> {
    /// The object.
    pub object: K,
    /// Whether it was written just now.
    pub written: bool,
}

/// The traits of a child.
pub trait Child:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug
{
}
impl<K> Child for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
{
}

/// A child that is about to be applied, with its hash.
#[derive(Clone, Debug)]
pub struct Prepared<K> {
    name: String,
    body: Value,
    hash: String,
    kind: std::marker::PhantomData<K>,
}

impl<K: Child> Prepared<K> {
    /// Prepares a child.
    pub fn new(object: &K) -> Result<Self, Error> {
        let name = object.meta().name.clone().unwrap_or_default();
        let what = || format!("{} {name}", K::kind(&()));
        let mut body = serde_json::to_value(object).map_err(|source| Error::Serialise { what: what(), source })?;
        let hash = names::short_hash(body.to_string().as_bytes(), HASH_BYTES);
        body["metadata"]["annotations"][APPLIED_HASH] = Value::String(hash.clone());
        Ok(Self { name, body, hash, kind: std::marker::PhantomData })
    }

    /// Whether `actual` is what it should be.
    fn is_applied(&self, actual: &K) -> bool {
        let noted = actual.meta().annotations.as_ref().and_then(|annotations| annotations.get(APPLIED_HASH));
        noted == Some(&self.hash) && serde_json::to_value(actual).is_ok_and(|actual| covers(&actual, &self.body))
    }

    /// Says a number of replicas; for the creation of a Deployment alone.
    pub fn with_first_replicas(mut self, replicas: i32) -> Self {
        self.body["spec"]["replicas"] = replicas.into();
        self
    }
}

/// Writes on behalf of one relay, and counts each write.
pub struct Writer<'a> {
    /// The client.
    pub client: &'a Client,
    /// The relay.
    pub owner: &'a Owner,
    /// Where writes are counted.
    pub metrics: &'a Metrics,
}

impl Writer<'_> {
    /// The children of one kind, for one write, which is counted.
    pub fn counted<K: Child>(&self) -> Api<K> {
        self.metrics.writes(&K::kind(&()));
        Api::namespaced(self.client.clone(), &self.owner.namespace)
    }

    /// `Deployment tenant-a/billing-relay`
    pub fn what<K: Child>(&self, name: &str) -> String {
        format!("{} {}/{name}", K::kind(&()), self.owner.namespace)
    }

    /// Applies a child, unless it is as it should be. `force` writes in any case.
    pub async fn apply<K: Child>(
        &self,
        prepared: &Prepared<K>,
        actual: Option<&K>,
        force: bool,
    ) -> Result<Applied<K>, Error> {
        if let Some(actual) = actual {
            check_ours(self.owner, actual)?;
            if !force && prepared.is_applied(actual) {
                return Ok(Applied { object: actual.clone(), written: false });
            }
        }
        let (name, params) = (&prepared.name, PatchParams::apply(FIELD_MANAGER).force());
        let patched = self.counted::<K>().patch(name, &params, &Patch::Apply(&prepared.body)).await;
        Ok(Applied { object: patched.map_err(Error::write(self.what::<K>(name)))?, written: true })
    }

    /// Creates an object whose content never changes, unless it is there.
    pub async fn create<K: Child>(&self, object: &K) -> Result<bool, Error> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match self.counted::<K>().create(&params, object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(Error::write(self.what::<K>(object.meta().name.as_deref().unwrap_or_default()))(error)),
        }
    }

    /// Deletes an object that nobody uses any more, and its dependents, if it is still the one that was seen.
    pub async fn delete<K: Child>(&self, seen: &ObjectMeta) -> Result<(), Error> {
        let name = seen.name.as_deref().unwrap_or_default();
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions { uid: seen.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.counted::<K>().delete(name, &params).await {
            Ok(_) => Ok(()),
            // Gone, or another object by now: either way this one needs no deletion.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::write(self.what::<K>(name))(error)),
        }
    }
}

/// A child of this name must be ours: controlled by this relay, or left behind by one of its name (deleted with
/// `--cascade=orphan`), which is adopted.
pub fn check_ours<K: Resource<DynamicType = ()>>(owner: &Owner, actual: &K) -> Result<(), Error> {
    let meta: &ObjectMeta = actual.meta();
    let controller = meta.owner_references.iter().flatten().find(|reference| reference.controller == Some(true));
    let labels = names::labels(&owner.name, names::RELAY);
    let ours = match controller {
        Some(controller) => controller.uid == owner.uid,
        None => [names::MANAGED_BY.0, names::INSTANCE]
            .iter()
            .all(|label| meta.labels.as_ref().and_then(|found| found.get(*label)) == labels.get(*label)),
    };
    let name = meta.name.clone().unwrap_or_default();
    if ours { Ok(()) } else { Err(Error::NameTaken { kind: K::kind(&()).into_owned(), name }) }
}

/// Whether everything that `wanted` says is so in `actual`. Lists of named things may hold more than is wanted (another
/// manager's), in any order; other lists are compared item by item.
fn covers(actual: &Value, wanted: &Value) -> bool {
    match (actual, wanted) {
        (_, Value::Null) => true,
        (Value::Object(actual), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| match actual.get(name) {
            Some(actual) => covers(actual, wanted),
            None => is_empty(wanted),
        }),
        (Value::Array(actual), Value::Array(wanted)) => covers_list(actual, wanted),
        _ => actual == wanted,
    }
}

fn covers_list(actual: &[Value], wanted: &[Value]) -> bool {
    let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    if !wanted.is_empty() && wanted.iter().all(|item| name(item).is_some()) {
        return wanted.iter().all(|wanted| {
            let same_name = actual.iter().filter(|actual| name(actual) == name(wanted));
            same_name.into_iter().any(|actual| covers(actual, wanted))
        });
    }
    actual.len() == wanted.len() && actual.iter().zip(wanted).all(|(actual, wanted)| covers(actual, wanted))
}

/// The API server stores no empty maps and lists.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_meant_is_compared_and_what_others_added_is_not() {
        let wanted = json!({ "a": 1, "empty": {}, "env": [{ "name": "A", "value": "1" }], "args": ["x", "y"] });
        for (actual, covered) in [
            (
                json!({ "a": 1, "b": 2, "env": [{ "name": "B" }, { "name": "A", "value": "1" }], "args": ["x", "y"] }),
                true,
            ),
            (json!({ "a": 2, "env": [{ "name": "A", "value": "1" }], "args": ["x", "y"] }), false),
            (json!({ "a": 1, "env": [{ "name": "A", "value": "2" }], "args": ["x", "y"] }), false),
            (json!({ "a": 1, "env": [], "args": ["x", "y"] }), false),
            (json!({ "a": 1, "env": [{ "name": "A", "value": "1" }], "args": ["x", "y", "z"] }), false),
        ] {
            assert_eq!(covers(&actual, &wanted), covered, "{actual}");
        }
    }
}
