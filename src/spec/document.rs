//! YAML files that hold `OutboxRelay` and `DispatchPolicy` documents, as `kubectl apply` takes them.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Problem, rules};
use crate::api::{DispatchPolicy, GROUP, OutboxRelay, VERSION};

/// What the files held.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// All relays.
    pub relays: Vec<OutboxRelay>,
    /// All policies.
    pub policies: Vec<DispatchPolicy>,
}

/// Reads the documents of one or more files, given as name and text. Returns every problem of every document at once.
pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Documents, Vec<Problem>> {
    let mut documents = Documents::default();
    let mut problems = Vec::new();
    for (file, text) in files {
        for (number, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
            let place = format!("{file}, document {}", number + 1);
            match Value::deserialize(document) {
                Ok(Value::Null) => {}
                Ok(value) => {
                    if let Err(found) = one(&mut documents, &value, &place) {
                        problems.extend(found);
                    }
                }
                Err(error) => {
                    problems.push(Problem::new(place, "Invalid", format!("this is not YAML: {error}")));
                    // What follows a syntax error cannot be told apart.
                    break;
                }
            }
        }
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

fn one(documents: &mut Documents, value: &Value, place: &str) -> Result<(), Vec<Problem>> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group_version, kind) = (format!("{GROUP}/{VERSION}"), text("kind"));
    if text("apiVersion") != group_version {
        let found = text("apiVersion");
        return Err(vec![Problem::new(
            format!("{place}: apiVersion"),
            "Invalid",
            format!("{found:?} is unknown: write apiVersion: {group_version}"),
        )]);
    }
    let Some(name) = value.pointer("/metadata/name").and_then(Value::as_str).filter(|name| !name.is_empty()) else {
        return Err(vec![Problem::new(format!("{place}: metadata.name"), "Invalid", "a document needs a name")]);
    };
    let label = format!("{kind}/{name}");
    match kind {
        "OutboxRelay" => documents.relays.push(typed(value, &label)?),
        "DispatchPolicy" => documents.policies.push(typed(value, &label)?),
        other => {
            return Err(vec![Problem::new(
                format!("{place}: kind"),
                "Invalid",
                format!("{other:?} is unknown: write OutboxRelay or DispatchPolicy"),
            )]);
        }
    }
    Ok(())
}

fn typed<K: kube::CustomResourceExt + DeserializeOwned>(value: &Value, label: &str) -> Result<K, Vec<Problem>> {
    let defaulted = rules::check::<K>(value, label)?;
    serde_json::from_value(defaulted).map_err(|error| vec![Problem::new(label, "Invalid", error.to_string())])
}
