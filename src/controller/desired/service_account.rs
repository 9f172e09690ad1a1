//! The pods' `ServiceAccount`: an identity for admission and audit. No token is mounted, since pods never talk to the API.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{Owner, names};

/// Builds the `ServiceAccount`.
pub fn build(owner: &Owner) -> ServiceAccount {
    ServiceAccount {
        metadata: owner.metadata(names::relay(&owner.name), names::RELAY),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
