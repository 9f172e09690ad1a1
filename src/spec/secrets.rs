//! Which keys of which Secrets a relay's pods read.

use std::collections::BTreeSet;

use crate::api::{DispatchPolicySpec, OutboxRelay, SecretKeyRef};

/// The Secret keys that the relay and its policy refer to; those of migrations alone are not among them.
pub fn secret_refs(relay: &OutboxRelay, policy: Option<&DispatchPolicySpec>) -> BTreeSet<SecretKeyRef> {
    let database = &relay.spec.database;
    let mut refs: BTreeSet<SecretKeyRef> =
        [&database.url_secret_ref, &database.password_secret_ref, &database.root_cert_secret_ref]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
    let Some(policy) = policy else { return refs };
    refs.extend(policy.request.secret_headers.iter().map(|header| header.secret_ref.clone()));
    if let Some(authentication) = &policy.request.authentication {
        refs.extend(authentication.bearer.iter().map(|bearer| bearer.secret_ref.clone()));
        if let Some(basic) = &authentication.basic {
            refs.extend([basic.username_secret_ref.clone(), basic.password_secret_ref.clone()]);
        }
    }
    refs
}
