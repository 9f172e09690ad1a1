//! Which keys of which Secrets a relay's pods read.

use std::collections::BTreeSet;

use crate::api::{DispatchPolicySpec, OutboxRelay, SecretKeyRef};

/// The Secret keys that the relay and its policies refer to; those of migrations alone are not among them.
pub fn secret_refs<'a>(
    relay: &OutboxRelay,
    policies: impl IntoIterator<Item = &'a DispatchPolicySpec>,
) -> BTreeSet<SecretKeyRef> {
    let database = &relay.spec.database;
    let mut refs: BTreeSet<SecretKeyRef> =
        [&database.url_secret_ref, &database.password_secret_ref, &database.root_cert_secret_ref]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
    for policy in policies {
        refs.extend(policy.request.secret_headers.iter().map(|header| header.secret_ref.clone()));
        if let Some(authentication) = &policy.request.authentication {
            refs.extend(authentication.bearer.iter().map(|bearer| bearer.secret_ref.clone()));
            if let Some(basic) = &authentication.basic {
                refs.extend([basic.username_secret_ref.clone(), basic.password_secret_ref.clone()]);
            }
            if let Some(client) = &authentication.oauth2_client_credentials {
                refs.extend([client.client_id_secret_ref.clone(), client.client_secret_ref.clone()]);
            }
        }
        if let Some(tls) = &policy.request.tls {
            let tls = [&tls.ca_secret_ref, &tls.client_certificate_secret_ref, &tls.client_key_secret_ref];
            refs.extend(tls.into_iter().flatten().cloned());
        }
        let webhooks = policy.request.signing.iter().filter_map(|signing| signing.standard_webhooks.as_ref());
        refs.extend(webhooks.flat_map(|webhooks| webhooks.secret_refs.clone()));
    }
    refs
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A policy with every reference to a Secret that its kind has.
    fn everything() -> Value {
        let secret = |key: &str| json!({ "name": "s", "key": key });
        json!({
            "request": {
                "secretHeaders": [{ "name": "X-Api-Key", "secretRef": secret("header") }],
                "authentication": {
                    "bearer": { "secretRef": secret("bearer") },
                    "basic": { "usernameSecretRef": secret("user"), "passwordSecretRef": secret("password") },
                    "oauth2ClientCredentials": {
                        "tokenUrl": "https://login.test/token",
                        "clientIdSecretRef": secret("client"), "clientSecretRef": secret("client-secret"),
                    },
                },
                "tls": {
                    "caSecretRef": secret("ca"),
                    "clientCertificateSecretRef": secret("certificate"),
                    "clientKeySecretRef": secret("certificate-key"),
                },
                "signing": { "standardWebhooks": { "secretRefs": [secret("signing")] } },
            },
        })
    }

    /// The paths of a schema at which a Secret is named.
    fn references(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            if let Some(items) = schema.get("items") {
                references(items, &format!("{path}[]"), found);
            }
            return;
        };
        if properties.keys().eq(["key", "name"]) {
            found.insert(path.to_owned());
        }
        for (name, property) in properties {
            references(property, &format!("{path}.{name}"), found);
        }
    }

    /// The paths of a document at which a Secret is named.
    fn named(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) if members.contains_key("key") && members.len() == 2 => {
                found.insert(path.to_owned());
            }
            Value::Object(members) => {
                members.iter().for_each(|(name, value)| named(value, &format!("{path}.{name}"), found));
            }
            Value::Array(items) => items.iter().for_each(|item| named(item, &format!("{path}[]"), found)),
            _ => {}
        }
    }

    #[test]
    fn every_secret_that_a_policy_can_name_is_read_by_its_pods() {
        let crd = serde_json::to_value(crate::api::definition::<crate::api::DispatchPolicy>()).unwrap();
        let schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
        let (mut possible, mut given) = (BTreeSet::new(), BTreeSet::new());
        references(schema, "", &mut possible);
        named(&everything(), "", &mut given);
        assert_eq!(given, possible, "the policy of this test names every Secret that the schema knows");

        let relay: OutboxRelay = serde_json::from_value(json!({
            "apiVersion": "outbox-operator.dev/v1alpha1", "kind": "OutboxRelay", "metadata": { "name": "r" },
            "spec": { "database": { "urlSecretRef": { "name": "db", "key": "uri" } } },
        }))
        .unwrap();
        let policy = serde_json::from_value(everything()).unwrap();
        let refs = secret_refs(&relay, Some(&policy));
        assert_eq!(refs.len(), possible.len() + 1, "{refs:?}");
    }
}
