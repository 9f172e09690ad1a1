//! Names and labels of a relay's children. Selector labels are made here alone and never change: a Deployment's selector
//! is immutable, so another one would mean another Deployment.

use std::{collections::BTreeMap, fmt::Write as _};

use sha2::{Digest, Sha256};

/// The longest label value, and the longest name of a child: a pod's host name holds no more.
const MAX_BYTES: usize = 63;
/// Bytes of a hash in a name: 40 bits, so that two names of one namespace do not meet by chance.
const HASH_BYTES: usize = 5;
/// Bytes that a `ReplicaSet` and its pods append to a Deployment's name: `-` and 10, `-` and 5.
const POD_SUFFIX_BYTES: usize = 17;

/// The label of what the operator made.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "outbox-operator");
/// The label that names the relay on all of its children.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// The label that tells a relay's pods from its Jobs.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The component of the relay's pods.
pub const RELAY: &str = "relay";
/// The component of the migration Jobs.
pub const MIGRATION: &str = "migration";

/// Hexadecimal digits of the first `bytes` bytes of SHA-256.
pub fn short_hash(text: &[u8], bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).fold(String::new(), |mut hash, byte| {
        let _ = write!(hash, "{byte:02x}");
        hash
    })
}

/// `<relay>-<suffix>` as a DNS label of at most `max` bytes; where that loses something of the relay's name, a hash of
/// the whole name keeps two relays apart.
fn child(relay: &str, suffix: &str, max: usize) -> String {
    let plain = relay.replace('.', "-");
    let whole = format!("{plain}-{suffix}");
    if plain == relay && whole.len() <= max {
        return whole;
    }
    let hash = short_hash(relay.as_bytes(), HASH_BYTES);
    let room = max.saturating_sub(hash.len() + suffix.len() + 2);
    let kept: String = plain.chars().take(room).collect();
    format!("{}-{hash}-{suffix}", kept.trim_end_matches('-'))
}

/// The Deployment, its `ServiceAccount` and its `PodDisruptionBudget`.
pub fn relay(relay_name: &str) -> String {
    child(relay_name, "relay", MAX_BYTES - POD_SUFFIX_BYTES)
}

/// The ConfigMap with this content.
pub fn config_map(relay_name: &str, component: &str, content_hash: &str) -> String {
    child(relay_name, &format!("{component}-{content_hash}"), MAX_BYTES)
}

/// The migration Job of one attempt.
pub fn migration_job(relay_name: &str, version: i32, attempt: i32) -> String {
    child(relay_name, &format!("migrate-{version}-{attempt}"), MAX_BYTES - POD_SUFFIX_BYTES)
}

/// A label's value for the relay's name, which may be longer than a label's value.
pub fn instance(relay_name: &str) -> String {
    if relay_name.len() <= MAX_BYTES {
        return relay_name.to_owned();
    }
    let hash = short_hash(relay_name.as_bytes(), HASH_BYTES);
    let kept: String = relay_name.chars().take(MAX_BYTES - hash.len() - 1).collect();
    format!("{}-{hash}", kept.trim_end_matches(['-', '.']))
}

/// The labels that select the relay's pods. They never change.
pub fn selector(relay_name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), "outbox-relay".to_owned()),
        (INSTANCE.to_owned(), instance(relay_name)),
        (COMPONENT.to_owned(), RELAY.to_owned()),
    ])
}

/// The labels of a child.
pub fn labels(relay_name: &str, component: &str) -> BTreeMap<String, String> {
    let mut labels = selector(relay_name);
    labels.insert(COMPONENT.to_owned(), component.to_owned());
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    labels.insert("app.kubernetes.io/part-of".to_owned(), "outbox-operator".to_owned());
    labels
}

/// A selector of all children of one relay, for list calls.
pub fn children_selector(relay_name: &str) -> String {
    format!("{}={},{INSTANCE}={}", MANAGED_BY.0, MANAGED_BY.1, instance(relay_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_plain() {
        assert_eq!(relay("billing"), "billing-relay");
        assert_eq!(config_map("billing", RELAY, "0123456789"), "billing-relay-0123456789");
        assert_eq!(migration_job("billing", 1, 2), "billing-migrate-1-2");
        assert_eq!(instance("billing"), "billing");
    }

    #[test]
    fn long_and_dotted_names_fit_and_stay_apart() {
        let long = "a".repeat(253);
        let other = format!("{}b", "a".repeat(252));
        for name in [long.as_str(), "tenant.billing", &"a-".repeat(30)] {
            assert!(relay(name).len() <= MAX_BYTES - POD_SUFFIX_BYTES, "{}", relay(name));
            assert!(config_map(name, MIGRATION, "0123456789").len() <= MAX_BYTES);
            assert!(migration_job(name, i32::MAX, 1000).len() <= MAX_BYTES - POD_SUFFIX_BYTES);
            assert!(instance(name).len() <= MAX_BYTES);
            assert!(!relay(name).contains('.'));
        }
        assert_ne!(relay(&long), relay(&other));
        assert_ne!(instance(&long), instance(&other));
        assert_ne!(relay("tenant.billing"), relay("tenant-billing"));
    }
}
