//! Keys: the first four lines are tenant, operation, entity and version, the rest the arguments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outbox_operator::domain::key::{canonical_intent, derive_key, key_hash};

fuzz_target!(|data: &str| {
    assert_eq!(key_hash(data).len(), 40);
    let mut lines = data.splitn(5, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (tenant, operation, entity, version, arguments) = (next(), next(), next(), next(), next());
    let version = version.parse().unwrap_or(1);
    let key = derive_key(tenant, operation, entity, version, arguments);
    let Ok(canonical) = canonical_intent(tenant, operation, entity, version, arguments) else {
        assert!(key.is_err());
        return;
    };
    let key = key.unwrap();
    assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));
    // A key of our own form lends its digest.
    assert_eq!(key_hash(&key), key[key.len() - 40..]);
    // What is canonical is its own canonical form: arguments written so give the same key.
    let end = canonical.len() - canonical_intent(tenant, operation, entity, version, "0").unwrap().len() + 1;
    let arguments = &canonical["{\"args\":".len()..][..end];
    assert_eq!(canonical_intent(tenant, operation, entity, version, arguments).as_ref(), Ok(&canonical));
    assert_eq!(derive_key(tenant, operation, entity, version, arguments), Ok(key));
});
