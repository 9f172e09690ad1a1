//! A CRD's schema and CEL rules, applied to a document without an API server.

use std::fmt::Write as _;

use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::Problem;
use crate::api::definition;

/// Checks `object` against the schema of `K`, unknown fields included, then against its CEL rules with defaults filled in.
/// Returns the object with defaults, or every problem at once.
pub fn check<K: CustomResourceExt>(object: &Value, label: &str) -> Result<Value, Vec<Problem>> {
    let schema = schema::<K>();
    let object = without_nulls(object);
    let mut problems = structure(&schema, &object, label);
    if problems.is_empty() {
        let defaulted = kube_cel::apply_defaults(&schema, &object);
        if let Err(errors) = kube_cel::Validator::new().validate(&schema, &defaulted, None) {
            problems.extend(
                errors.iter().map(|error| {
                    Problem::new(format!("{label}: {}", error.field_path), "Invalid", error.message.clone())
                }),
            );
        }
        if problems.is_empty() {
            return Ok(defaulted);
        }
    }
    Err(problems)
}

/// A `null` member means unset, to the API server as well.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

fn schema<K: CustomResourceExt>() -> Value {
    let crd = definition::<K>();
    let version = crd.spec.versions.into_iter().next().and_then(|version| version.schema);
    let mut schema = version
        .and_then(|schema| schema.open_api_v3_schema)
        .and_then(|schema| serde_json::to_value(schema).ok())
        .unwrap_or_else(|| json!({}));
    // The API server checks these three itself.
    for field in ["apiVersion", "kind", "metadata"] {
        schema["properties"][field] = json!({});
    }
    schema
}

fn structure(schema: &Value, object: &Value, label: &str) -> Vec<Problem> {
    let strict = strict(schema);
    let validator = match jsonschema::validator_for(&strict) {
        Ok(validator) => validator,
        Err(error) => return vec![Problem::new(label, "Invalid", format!("the built-in schema is broken: {error}"))],
    };
    validator
        .iter_errors(object)
        .map(|error| {
            let path = error.instance_path().to_string();
            Problem::new(format!("{label}: {}", dotted(&path)), "Invalid", bounded(&error.to_string()))
        })
        .collect()
}

/// A JSON pointer as people write paths: `spec.classify[0].verdict`.
fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for token in pointer.split('/').filter(|token| !token.is_empty()) {
        if token.bytes().all(|b| b.is_ascii_digit()) {
            let _ = write!(path, "[{token}]");
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&token.replace("~1", "/").replace("~0", "~"));
        }
    }
    if path.is_empty() { "the document".to_owned() } else { path }
}

/// A document may hold anything; a message about it stays short.
fn bounded(message: &str) -> String {
    const MAX_CHARS: usize = 300;
    if message.chars().count() <= MAX_CHARS {
        return message.to_owned();
    }
    message.chars().take(MAX_CHARS).chain("...".chars()).collect()
}

/// The schema in plain JSON Schema: what a CRD leaves to the API server (unknown fields, integers or strings)
/// is said in the words that a validator knows.
fn strict(schema: &Value) -> Value {
    let Value::Object(members) = schema else { return schema.clone() };
    let mut out = serde_json::Map::new();
    for (name, value) in members {
        match name.as_str() {
            "properties" => {
                let inner = value.as_object().into_iter().flatten();
                out.insert(name.clone(), inner.map(|(key, sub)| (key.clone(), strict(sub))).collect());
            }
            "items" | "additionalProperties" => {
                out.insert(name.clone(), strict(value));
            }
            "x-kubernetes-validations" | "format" | "default" => {}
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    let open = members.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if members.contains_key("properties") && !members.contains_key("additionalProperties") && !open {
        out.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    if members.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        out.insert("type".to_owned(), json!(["integer", "string"]));
    }
    Value::Object(out)
}
