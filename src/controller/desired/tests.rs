//! Whole objects, from a relay as a user writes it to its children as the API server gets them, against `tests/golden/`.
//! `UPDATE_GOLDEN=1` writes the files. A change of a Deployment's template there restarts every relay that exists: such a
//! change is for a relay's own version, not for the operator's.

use std::{env, fs, path::Path};

use serde::Serialize;
use serde_json::{Value, json};

use super::{config_map, deployment, migration_job, names, pod_disruption_budget, service_account};
use crate::{
    api::{DispatchPolicy, OutboxRelay},
    controller::{
        dereference::{self, Policy, Referenced, Secrets},
        desired::Owner,
        validate::{self, Validated},
    },
    spec,
};

const IMAGE: &str = "registry.test/outbox:1.2.3";

fn least() -> Value {
    json!({ "database": { "urlSecretRef": { "name": "billing-db", "key": "uri" } } })
}

fn full() -> Value {
    json!({
        "database": {
            "host": "db.test", "dbname": "app", "user": "relay", "passwordSecretRef": { "name": "db", "key": "password" },
            "sslmode": "verify-full", "rootCertSecretRef": { "name": "db", "key": "ca.crt" },
            "adminUrlSecretRef": { "name": "db-admin", "key": "uri" },
            "schema": "Tenant-A", "table": "Outbox Rows", "maxConnections": 4,
        },
        "tenants": ["6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11"],
        "policyRef": { "name": "strict" },
        "concurrency": 16, "claimBatch": 8, "leaseDuration": "2m", "pollInterval": "500ms",
        "scaling": { "minReplicas": 1, "maxReplicas": 3 },
        "template": {
            "labels": { "team": "billing", "app.kubernetes.io/name": "not-for-users-to-say" },
            "annotations": { "prometheus.io/scrape": "true" },
            "env": [{ "name": "OUTBOX_LOG", "value": "debug" }],
            "resources": { "limits": { "memory": "512Mi" } },
            "nodeSelector": { "pool": "relays" },
            "tolerations": [{ "key": "relays", "operator": "Exists" }],
            "serviceAccountName": "tenant", "priorityClassName": "high", "imagePullSecrets": [{ "name": "registry" }],
        },
    })
}

fn strict() -> DispatchPolicy {
    let spec = json!({
        "request": {
            "secretHeaders": [{ "name": "X-Api-Key", "secretRef": { "name": "crm", "key": "apiKey" } }],
            "authentication": { "bearer": { "secretRef": { "name": "crm", "key": "token" } } },
        },
        "timeouts": { "total": "45500ms" },
        "retry": { "maxAttempts": 5, "base": "2s" },
    });
    let mut policy = DispatchPolicy::new("strict", serde_json::from_value(spec).unwrap());
    policy.metadata.namespace = Some("tenant-a".to_owned());
    policy
}

fn owner(name: &str) -> Owner {
    let uid = "11111111-2222-3333-4444-555555555555".to_owned();
    Owner { name: name.to_owned(), namespace: "tenant-a".to_owned(), uid }
}

fn relay(name: &str, spec: Value) -> OutboxRelay {
    let mut relay = OutboxRelay::new(name, serde_json::from_value(spec).unwrap());
    relay.metadata.namespace = Some("tenant-a".to_owned());
    relay
}

/// Validates a relay whose Secrets are all there.
fn validated(relay: &OutboxRelay, policy: Option<DispatchPolicy>) -> Validated {
    let mut refs = spec::secret_refs(relay, policy.iter().map(|policy| &policy.spec));
    refs.extend(relay.spec.database.admin_url_secret_ref.clone());
    let value = |key: &str| dereference::Value(if key == "uri" { "postgres://u@h/d".into() } else { key.into() });
    let secrets: Secrets = refs.into_iter().map(|reference| (reference.clone(), Ok(value(&reference.key)))).collect();
    let found = policy.map(|policy| ("strict".to_owned(), Policy::Found(Box::new(policy))));
    let policies = found.into_iter().collect();
    let name = relay.metadata.name.clone().unwrap();
    validate::validate(relay, &owner(&name), &Referenced { policies, secrets })
}

fn golden<T: Serialize>(name: &str, object: &T) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.yaml"));
    let text = serde_yaml::to_string(object).unwrap();
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{} differs; UPDATE_GOLDEN=1 writes it anew:\n{text}", path.display());
}

#[test]
fn the_children_of_the_least_relay_are_the_golden_ones() {
    let relay = relay("billing", least());
    let validated = validated(&relay, None);
    let mut plan = validated.pods.unwrap();
    plan.pods.image = IMAGE.to_owned();
    golden("least-deployment", &deployment::build(&plan));
    golden("least-config-map", &config_map::build(&plan.pods, names::RELAY));
    golden("least-service-account", &service_account::build(&plan.pods.owner));
    golden("least-pod-disruption-budget", &pod_disruption_budget::build(&plan.pods.owner));
    let mut migration = validated.migration.unwrap().unwrap();
    migration.pods.image = IMAGE.to_owned();
    golden("least-migration-job", &migration_job::build(&migration.pods, 1, 1));
    golden("least-migration-config-map", &config_map::build(&migration.pods, names::MIGRATION));
}

#[test]
fn the_children_of_a_relay_with_everything_are_the_golden_ones() {
    let relay = relay("billing", full());
    let validated = validated(&relay, Some(strict()));
    let mut plan = validated.pods.unwrap();
    plan.pods.image = IMAGE.to_owned();
    golden("full-deployment", &deployment::build(&plan));
    golden("full-config-map", &config_map::build(&plan.pods, names::RELAY));
    let mut migration = validated.migration.unwrap().unwrap();
    migration.pods.image = IMAGE.to_owned();
    golden("full-migration-job", &migration_job::build(&migration.pods, 1, 3));
    golden("full-migration-config-map", &config_map::build(&migration.pods, names::MIGRATION));
}

#[test]
fn a_long_name_makes_a_deployment_whose_selector_matches_its_pods() {
    let relay = relay(&"long.name-".repeat(25), least());
    let plan = validated(&relay, None).pods.unwrap();
    let built = deployment::build(&plan);
    let spec = built.spec.unwrap();
    let labels = spec.template.metadata.unwrap().labels.unwrap();
    let selector = spec.selector.match_labels.unwrap();
    assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value) && value.len() <= 63));
    assert!(built.metadata.name.unwrap().len() <= 63);
}
