//! Documents in, validated settings out. Pure but for reading the text it is given.
//!
//! The CRD's own schema and CEL rules judge a document read from a file just as the API server judges one that is applied
//! ([`document`]); what needs two documents, or more than a schema can say, is judged here for both ([`resolve`]).

pub mod database;
mod document;
mod policy;
mod relay;
mod request;
mod rules;
mod secrets;

pub use document::{Documents, read};
pub use policy::ordering;
pub use relay::{policy_names, resolve, routing, scope};
pub use rules::check as check_against_schema;
pub use secrets::secret_refs;

use crate::{api::DispatchPolicy, domain::settings::Policy};

/// Something in a document that must change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: `OutboxRelay/billing: spec.scaling.minReplicas`.
    pub path: String,
    /// A stable `PascalCase` name of the kind: `Invalid`, `PolicyNotFound`, `LeaseTooShort`, `MemoryBudgetTooSmall`.
    pub code: &'static str,
    /// What is wrong and the mend.
    pub message: String,
}

impl Problem {
    fn new(path: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.into(), code, message: message.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Checks a policy for itself. Returns every problem at once.
pub fn check_policy(policy: &DispatchPolicy) -> Result<(), Vec<Problem>> {
    policy_settings(policy).map(|_| ())
}

/// What a policy means by itself. Returns every problem at once.
pub fn policy_settings(policy: &DispatchPolicy) -> Result<Policy, Vec<Problem>> {
    let name = policy.metadata.name.clone().unwrap_or_default();
    policy::resolve(&policy.spec, &format!("DispatchPolicy/{name}"))
}
