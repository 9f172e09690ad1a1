//! YAML files that hold `OutboxRelay` and `DispatchPolicy` documents, as `kubectl apply` takes them.

use std::collections::BTreeSet;

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
    /// Names of policies that do not say whether their receiver deduplicates: with the defaults filled in, nobody could tell.
    pub receiver_unsaid: BTreeSet<String>,
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
        "DispatchPolicy" => {
            documents.policies.push(typed(value, &label)?);
            if value.pointer("/spec/idempotency/receiver").is_none_or(Value::is_null) {
                documents.receiver_unsaid.insert(name.to_owned());
            }
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spec::{check_policy, resolve};

    const VALID: &str = include_str!("../../fuzz/seeds/documents/relay");

    /// Reads documents as the commands do. Whoever wrote them is told what to mend.
    fn judge(text: &str) -> Result<(), Vec<Problem>> {
        let documents = read([("a.yaml", text)])?;
        for policy in &documents.policies {
            check_policy(policy)?;
        }
        for relay in &documents.relays {
            resolve(relay, &documents.policies)?;
        }
        Ok(())
    }

    #[test]
    fn the_document_that_the_properties_break_is_valid() {
        assert_eq!(judge(VALID), Ok(()));
    }

    proptest! {
        // Each case compiles the schema and its rules, which takes a while without optimization.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_panics_and_every_problem_says_something(
            text in prop_oneof![
                any::<String>(),
                "[a-z:{}\\[\\]&*!|>'\"#%@ \n-]{0,80}",
                "apiVersion: outbox-operator.dev/v1alpha1\nkind: (OutboxRelay|DispatchPolicy)\nmetadata: \\{name: a\\}\nspec: [ -~]{0,40}",
            ],
        ) {
            if let Err(problems) = judge(&text) {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|problem| !problem.message.is_empty() && !problem.path.is_empty()));
            }
        }

        #[test]
        fn a_document_with_one_word_changed_is_valid_or_told_where_it_is_not(
            place in any::<prop::sample::Index>(),
            word in prop_oneof![
                Just("-1".to_owned()), Just("9223372036854775807".to_owned()), Just("1e400".to_owned()),
                Just("0s".to_owned()), Just("36500d".to_owned()), Just("null".to_owned()), Just("[]".to_owned()),
                Just("{}".to_owned()), Just("/~".to_owned()), "[0-9a-zA-Z/.:-]{1,24}",
            ],
        ) {
            let words: Vec<_> = VALID.match_indices(|c: char| c.is_ascii_alphanumeric()).map(|(at, _)| at).collect();
            let at = words[place.index(words.len())];
            let start = VALID[..at].rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).map_or(0, |place| place + 1);
            let end = VALID[at..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).map_or(VALID.len(), |length| at + length);
            let text = format!("{}{word}{}", &VALID[..start], &VALID[end..]);
            if let Err(problems) = judge(&text) {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|problem| !problem.message.is_empty() && !problem.path.is_empty()));
            }
        }
    }
}
