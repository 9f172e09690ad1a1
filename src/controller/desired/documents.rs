//! The documents that a relay's pods read: the relay and its policies, reduced to what pods read and what differs from the
//! schema's defaults. So a scaling edit, or a newer operator that knows more fields, changes no hash and rolls no pod.

use std::sync::OnceLock;

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::names::short_hash;
use crate::api::{DispatchPolicy, GROUP, OutboxRelay, VERSION};

/// Fields of an `OutboxRelay` that its pods do not read.
const UNREAD: &[&str] = &["scaling", "replicas", "suspend", "image", "template"];
/// Fields of `spec.database` that its pods do not read.
const UNREAD_OF_DATABASE: &[&str] = &["adminUrlSecretRef", "connectionBudget"];
/// Bytes of the hash in the ConfigMap's name.
const HASH_BYTES: usize = 5;

/// YAML text and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayDocuments {
    /// Documents separated by `---`.
    pub text: String,
    /// A hash of what they say; not of the text, so that another way of writing YAML rolls no pod.
    pub hash: String,
}

/// The documents of a relay's pods.
pub fn for_pods(relay: &OutboxRelay, policies: &[DispatchPolicy]) -> serde_json::Result<RelayDocuments> {
    let mut spec = pruned_relay(relay)?;
    remove(&mut spec, UNREAD);
    if let Some(database) = spec.get_mut("database") {
        remove(database, UNREAD_OF_DATABASE);
    }
    // A pod never migrates: its role may have no right to, and the operator's Job does.
    spec["migrations"] = json!("Manual");
    let mut documents =
        vec![document("OutboxRelay", relay.metadata.name.as_deref(), relay.metadata.namespace.as_deref(), &spec)];
    for policy in policies {
        let spec = pruned_policy(policy)?;
        let (name, namespace) = (policy.metadata.name.as_deref(), policy.metadata.namespace.as_deref());
        documents.push(document("DispatchPolicy", name, namespace, &spec));
    }
    Ok(written(&documents))
}

/// The document of a migration Job: where the table is, and nothing else, so that a change of policy makes no new one.
pub fn for_migration(relay: &OutboxRelay) -> serde_json::Result<RelayDocuments> {
    let mut spec = pruned_relay(relay)?;
    if let Value::Object(fields) = &mut spec {
        fields.retain(|field, _| field == "database");
    }
    if let Some(database) = spec.get_mut("database") {
        remove(database, &["connectionBudget", "maxConnections"]);
    }
    Ok(written(&[document("OutboxRelay", relay.metadata.name.as_deref(), relay.metadata.namespace.as_deref(), &spec)]))
}

fn document(kind: &str, name: Option<&str>, namespace: Option<&str>, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind,
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

fn remove(object: &mut Value, fields: &[&str]) {
    if let Value::Object(members) = object {
        members.retain(|name, _| !fields.contains(&name.as_str()));
    }
}

/// JSON is YAML: the text is pretty JSON, one document after another. A reader needs no YAML writer to be trusted with
/// quoting, and the same documents are the same text on every version of any library.
fn written(documents: &[Value]) -> RelayDocuments {
    let canonical: Vec<Value> = documents.iter().map(sorted).collect();
    let text: Vec<String> = canonical.iter().map(|document| format!("{document:#}\n")).collect();
    let mut hashed = Vec::new();
    for document in &canonical {
        hashed.extend(document.to_string().into_bytes());
        hashed.push(b'\n');
    }
    RelayDocuments { text: text.join("---\n"), hash: short_hash(&hashed, HASH_BYTES) }
}

/// Members in order of their names, whatever order the map keeps.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort();
            names.into_iter().map(|name| (name.clone(), sorted(&members[name]))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// The schema of a kind's spec. It never changes while the program runs, and making it costs a thousand times its use.
fn spec_schema<K: CustomResourceExt>(kept: &'static OnceLock<Value>) -> &'static Value {
    kept.get_or_init(|| {
        let schema = K::crd().spec.versions.into_iter().next().and_then(|version| version.schema);
        let schema = schema.and_then(|schema| serde_json::to_value(schema.open_api_v3_schema).ok()).unwrap_or_default();
        schema.pointer("/properties/spec").cloned().unwrap_or_default()
    })
}

/// A relay's spec without the values that its schema gives by default.
fn pruned_relay(relay: &OutboxRelay) -> serde_json::Result<Value> {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let mut spec = serde_json::to_value(&relay.spec)?;
    prune(&mut spec, spec_schema::<OutboxRelay>(&SCHEMA));
    Ok(spec)
}

/// A policy's spec without the values that its schema gives by default.
fn pruned_policy(policy: &DispatchPolicy) -> serde_json::Result<Value> {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let mut spec = serde_json::to_value(&policy.spec)?;
    prune(&mut spec, spec_schema::<DispatchPolicy>(&SCHEMA));
    Ok(spec)
}

fn prune(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(members) => prune_members(members, schema),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    prune(item, schema);
                }
            }
        }
        _ => {}
    }
}

fn prune_members(members: &mut Map<String, Value>, schema: &Value) {
    let Some(properties) = schema.get("properties") else { return };
    members.retain(|name, value| {
        let Some(property) = properties.get(name) else { return true };
        let Some(default) = property.get("default") else {
            prune(value, property);
            return !value.is_null();
        };
        // Both are compared without their own defaults: a default may leave out what its fields default to.
        let mut default = default.clone();
        prune(value, property);
        prune(&mut default, property);
        *value != default
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::DispatchPolicySpec;

    fn relay(spec: Value) -> OutboxRelay {
        let mut relay = OutboxRelay::new("billing", serde_json::from_value(spec).unwrap());
        relay.metadata.namespace = Some("tenant-a".to_owned());
        relay
    }

    fn least() -> Value {
        json!({ "database": { "urlSecretRef": { "name": "db", "key": "uri" } } })
    }

    fn hash_with(change: impl FnOnce(&mut Value)) -> String {
        let mut spec = least();
        change(&mut spec);
        for_pods(&relay(spec), &[]).unwrap().hash
    }

    #[test]
    fn defaults_and_what_pods_do_not_read_are_left_out() {
        let mut spec = least();
        spec["scaling"] = json!({ "minReplicas": 2 });
        spec["concurrency"] = json!(64);
        spec["leaseDuration"] = json!("1m");
        spec["database"]["table"] = json!("agent_outbox");
        spec["database"]["adminUrlSecretRef"] = json!({ "name": "admin", "key": "uri" });
        let policy =
            DispatchPolicy::new("default", serde_json::from_value(json!({ "retry": { "base": "5s" } })).unwrap());
        let documents = for_pods(&relay(spec), &[policy]).unwrap();
        let read: Vec<Value> = documents.text.split("---\n").map(|one| serde_json::from_str(one).unwrap()).collect();
        assert_eq!(
            read[0]["spec"],
            json!({ "database": { "urlSecretRef": { "name": "db", "key": "uri" } }, "migrations": "Manual" })
        );
        assert_eq!(read[1]["spec"], json!({ "retry": { "base": "5s" } }));
    }

    #[test]
    fn what_pods_do_not_read_changes_no_hash_and_what_they_read_does() {
        let plain = hash_with(|_| {});
        for (field, value) in [
            ("scaling", json!({ "mode": "External", "maxReplicas": 3 })),
            ("suspend", json!(true)),
            ("image", json!("other:1")),
            ("template", json!({ "labels": { "a": "b" } })),
            ("migrations", json!("Manual")),
            ("concurrency", json!(64)),
        ] {
            assert_eq!(hash_with(|spec| spec[field] = value), plain, "{field}");
        }
        assert_eq!(hash_with(|spec| spec["database"]["connectionBudget"] = json!(99)), plain);
        assert_ne!(hash_with(|spec| spec["concurrency"] = json!(65)), plain);
        assert_ne!(hash_with(|spec| spec["database"]["maxConnections"] = json!(5)), plain);
    }

    #[test]
    fn the_text_is_yaml_that_says_the_same() {
        let documents = for_pods(&relay(least()), &[DispatchPolicy::new("p", DispatchPolicySpec::default())]).unwrap();
        let kinds: Vec<String> = serde_yaml::Deserializer::from_str(&documents.text)
            .map(|document| {
                use serde::Deserialize as _;
                Value::deserialize(document).unwrap()["kind"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(kinds, ["OutboxRelay", "DispatchPolicy"]);
    }

    #[test]
    fn a_migration_reads_where_the_table_is_and_nothing_else() {
        let mut spec = least();
        spec["policyRef"] = json!({ "name": "default" });
        spec["database"]["adminUrlSecretRef"] = json!({ "name": "admin", "key": "uri" });
        let read: Value = serde_json::from_str(&for_migration(&relay(spec)).unwrap().text).unwrap();
        assert_eq!(
            read["spec"],
            json!({ "database": {
                "urlSecretRef": { "name": "db", "key": "uri" },
                "adminUrlSecretRef": { "name": "admin", "key": "uri" },
            } })
        );
    }
}
