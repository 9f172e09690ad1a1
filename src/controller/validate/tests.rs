//! One mutation of a good relay for each finding.

use serde_json::{Value as Json, json};

use super::*;
use crate::controller::dereference::Value;

fn relay(spec: Json) -> OutboxRelay {
    let mut relay = OutboxRelay::new("billing", serde_json::from_value(spec).unwrap());
    relay.metadata.namespace = Some("tenant-a".to_owned());
    relay
}

fn good() -> Json {
    json!({ "database": { "urlSecretRef": { "name": "db", "key": "uri" } }, "policyRef": { "name": "strict" } })
}

fn owner(uid: &str) -> Owner {
    Owner { name: "billing".to_owned(), namespace: "tenant-a".to_owned(), uid: uid.to_owned() }
}

fn policy(spec: Json) -> Policy {
    Policy::Found(Box::new(DispatchPolicy::new("strict", serde_json::from_value(spec).unwrap())))
}

fn put(read: &mut Referenced, policy: Policy) {
    read.policies.insert("strict".to_owned(), policy);
}

/// What was read of good Secrets, and an API key.
fn read() -> Referenced {
    let header = json!({ "request": { "secretHeaders": [{ "name": "X-Key", "secretRef": { "name": "crm", "key": "apiKey" } }] } });
    let entry = |name: &str, key: &str, value: &str| {
        (SecretKeyRef { name: name.to_owned(), key: key.to_owned() }, Ok(Value(value.as_bytes().to_vec())))
    };
    let secrets =
        Secrets::from([entry("db", "uri", "postgres://u:pw@db.test/app\n"), entry("crm", "apiKey", "s3cret")]);
    Referenced { policies: BTreeMap::from([("strict".to_owned(), policy(header))]), secrets }
}

fn set(read: &mut Referenced, name: &str, key: &str, value: Result<&str, MissingSecret>) {
    let reference = SecretKeyRef { name: name.to_owned(), key: key.to_owned() };
    read.secrets.insert(reference, value.map(|value| Value(value.as_bytes().to_vec())));
}

#[test]
fn each_thing_in_the_way_has_its_reason_and_names_itself() {
    type Change = fn(&mut Json, &mut Referenced);
    #[rustfmt::skip]
    let table: &[(&str, &str, Change)] = &[
        ("SecretNotFound", "\"crm\"",     |_, read| set(read, "crm", "apiKey", Err(MissingSecret::NotFound))),
        ("KeyMissing",     "\"apiKey\"",  |_, read| set(read, "crm", "apiKey", Err(MissingSecret::NoKey))),
        ("PolicyNotFound", "strict",      |_, read| put(read, Policy::NotFound)),
        ("PolicyInvalid",  "no duration", |_, read| put(read, Policy::Undecodable("no duration".to_owned()))),
        ("LeaseTooShort",  "leaseDuration", |spec, _| spec["leaseDuration"] = json!("5s")),
        ("MemoryBudgetTooSmall", "memoryBudget", |spec, _| spec["memoryBudget"] = json!("1Mi")),
        ("Invalid",        "X-Key",       |_, read| put(read, policy(json!({ "request": { "headers": { "Host": "X-Key" } } })))),
    ];
    for (reason, names, change) in table {
        let (mut spec, mut read) = (good(), read());
        change(&mut spec, &mut read);
        let validated = validate(&relay(spec), &owner("uid"), &read);
        let findings = validated.pods.expect_err(reason);
        assert_eq!(findings[0].reason, *reason, "{findings:?}");
        let named = findings[0].message.contains(names) || *reason == "Invalid";
        assert!(named && !findings[0].message.contains("s3cret"), "{findings:?}");
        // The rows are looked at all the same: the database's own Secret is there.
        assert!(validated.target.is_ok(), "{reason}");
    }
}

#[test]
fn a_good_relay_is_looked_at_and_has_pods() {
    let validated = validate(&relay(good()), &owner("uid"), &read());
    assert_eq!(validated.target.unwrap().connect.url, "postgres://u:pw@db.test/app", "without its line feed");
    assert_eq!(validated.pods.unwrap().deadline_seconds, 30);
    assert!(validated.policies.is_ok());
}

#[test]
fn a_database_that_cannot_be_named_is_told_without_its_password() {
    for url in ["mysql://u:s3cret@h/d", "postgres://u:s3cret@h:port/d", "s3cret"] {
        let mut read = read();
        set(&mut read, "db", "uri", Ok(url));
        let finding = validate(&relay(good()), &owner("uid"), &read).target.unwrap_err();
        assert_eq!(finding.reason, "DatabaseInvalid");
        assert!(!finding.message.contains("s3cret"), "{}", finding.message);
    }
}

#[test]
fn the_hash_changes_with_a_value_a_name_or_the_relay_and_with_nothing_else() {
    let hash = |uid: &str, read: &Referenced| validate(&relay(good()), &owner(uid), read).pods.unwrap().secrets_hash;
    let plain = hash("uid", &read());
    assert_eq!(hash("uid", &read()), plain);
    assert_ne!(hash("another", &read()), plain);
    let mut rotated = read();
    set(&mut rotated, "crm", "apiKey", Ok("n3w"));
    assert_ne!(hash("uid", &rotated), plain);
    let mut unread = read();
    set(&mut unread, "other", "key", Ok("x"));
    assert_eq!(hash("uid", &unread), plain);
}

#[test]
fn migrations_connect_as_admin_else_directly_else_as_the_relay() {
    let reference = |name: &str| json!({ "name": name, "key": "uri" });
    for (fields, expected) in [
        (json!({}), "db"),
        (json!({ "directUrlSecretRef": reference("direct") }), "direct"),
        (json!({ "directUrlSecretRef": reference("direct"), "adminUrlSecretRef": reference("admin") }), "admin"),
    ] {
        let (mut spec, mut read) = (good(), read());
        for (field, value) in fields.as_object().unwrap() {
            spec["database"][field] = value.clone();
        }
        for name in ["direct", "admin"] {
            set(&mut read, name, "uri", Ok("postgres://a@h/d"));
        }
        let plan = validate(&relay(spec), &owner("uid"), &read).migration.unwrap().unwrap();
        let names: Vec<_> = plan.pods.secrets.iter().map(|reference| reference.name.as_str()).collect();
        assert_eq!(names, [expected]);
    }
}

#[test]
fn parts_of_a_database_make_a_url() {
    let (mut spec, mut read) = (good(), read());
    spec["database"] = json!({
        "host": "db.test", "port": 6432, "dbname": "a/b", "user": "o@p", "passwordSecretRef": { "name": "db", "key": "password" },
    });
    set(&mut read, "db", "password", Ok("p:w/d?#\n"));
    let target = validate(&relay(spec), &owner("uid"), &read).target.unwrap();
    assert_eq!(target.connect.url, "postgres://o%40p:p%3Aw%2Fd%3F%23@db.test:6432/a%2Fb");
}

#[test]
fn every_route_has_its_policy_and_the_pods_get_all_of_them() {
    let mut spec = good();
    spec["routes"] = json!([
        { "match": { "operations": ["pay"] }, "policyRef": { "name": "payments" } },
        { "match": { "endpoints": ["https://x.test/*"] }, "policyRef": { "name": "strict" } },
    ]);
    let mut read = read();
    read.policies.insert("payments".to_owned(), Policy::NotFound);
    let validated = validate(&relay(spec.clone()), &owner("uid"), &read);
    let finding = validated.policies.unwrap_err();
    assert_eq!(finding.reason, "PolicyNotFound");
    assert!(
        finding.message.contains("spec.routes[0].policyRef.name") && finding.message.contains("payments"),
        "{finding:?}"
    );
    assert_eq!(validated.target.unwrap().served.scopes, ["tenant-a/billing/strict", "tenant-a/billing/payments"]);

    let bearer = json!({ "timeouts": { "total": "50s" }, "request": { "authentication": { "bearer": { "secretRef": { "name": "pay", "key": "token" } } } } });
    let found = Policy::Found(Box::new(DispatchPolicy::new("payments", serde_json::from_value(bearer).unwrap())));
    read.policies.insert("payments".to_owned(), found);
    let validated = validate(&relay(spec.clone()), &owner("uid"), &read);
    assert_eq!(validated.pods.unwrap_err()[0].reason, "SecretNotFound");
    set(&mut read, "pay", "token", Ok("t"));
    let plan = validate(&relay(spec.clone()), &owner("uid"), &read).pods.unwrap();
    assert_eq!(plan.deadline_seconds, 50, "the longest");
    assert!(plan.pods.documents.text.contains("payments") && plan.pods.documents.text.contains("strict"));
    assert!(plan.pods.secrets.iter().any(|reference| reference.name == "pay"));
    spec["leaseDuration"] = json!("40s");
    let findings = validate(&relay(spec), &owner("uid"), &read).pods.unwrap_err();
    assert_eq!(findings[0].reason, "LeaseTooShort");
    assert!(findings[0].message.contains("DispatchPolicy/payments"), "{findings:?}");
}
