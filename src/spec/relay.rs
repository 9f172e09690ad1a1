//! An `OutboxRelay` and its policy, resolved to settings.

use super::{Problem, policy};
use crate::{
    api::{DispatchPolicy, DispatchPolicySpec, Migrations, OutboxRelay},
    domain::{
        memory,
        settings::{LEASE_MARGIN, RelaySettings, Retention},
    },
};

/// `namespace/name`, or the name alone.
fn full_name(relay: &OutboxRelay) -> String {
    let name = relay.metadata.name.clone().unwrap_or_default();
    match &relay.metadata.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name,
    }
}

/// Whose holds a relay's are: its own, under its policy, for other credentials are another hold.
pub fn scope(relay: &OutboxRelay) -> String {
    match &relay.spec.policy_ref {
        Some(policy) => format!("{}/{}", full_name(relay), policy.name),
        None => full_name(relay),
    }
}

/// Resolves a relay with the policies that are there. Returns every problem at once.
pub fn resolve(relay: &OutboxRelay, policies: &[DispatchPolicy]) -> Result<RelaySettings, Vec<Problem>> {
    let name = relay.metadata.name.clone().unwrap_or_default();
    let label = format!("OutboxRelay/{name}");
    let spec = &relay.spec;
    let defaults = DispatchPolicySpec::default();
    let (policy_label, policy_spec) = match &spec.policy_ref {
        None => (format!("{label} (default policy)"), &defaults),
        Some(wanted) => {
            let found = policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(&wanted.name));
            match found {
                Some(policy) => (format!("DispatchPolicy/{}", wanted.name), &policy.spec),
                None => {
                    return Err(vec![Problem::new(
                        format!("{label}: spec.policyRef.name"),
                        "PolicyNotFound",
                        format!("there is no DispatchPolicy {:?}: create it, or correct the name", wanted.name),
                    )]);
                }
            }
        }
    };
    let mut problems = Vec::new();
    let shortest = policy_spec.timeouts.total.0 + LEASE_MARGIN;
    if spec.lease_duration.0 < shortest {
        problems.push(Problem::new(
            format!("{label}: spec.leaseDuration"),
            "LeaseTooShort",
            format!(
                "{} is shorter than timeouts.total ({}) of {policy_label} and a margin of {}s: raise leaseDuration to at least {}, or lower timeouts.total",
                spec.lease_duration,
                policy_spec.timeouts.total,
                LEASE_MARGIN.as_secs(),
                crate::api::Duration(shortest),
            ),
        ));
    }
    let largest = policy_spec.request.max_body_bytes.unsigned_abs();
    if memory::large_part(spec.memory_budget.0) < largest {
        problems.push(Problem::new(
            format!("{label}: spec.memoryBudget"),
            "MemoryBudgetTooSmall",
            format!(
                "seven eighths of {} do not hold one payload of request.maxBodyBytes ({largest}) of {policy_label}: raise memoryBudget to at least {}Ki, or lower request.maxBodyBytes",
                spec.memory_budget,
                memory::least_budget(largest).div_ceil(1024),
            ),
        ));
    }
    let policy = match policy::resolve(policy_spec, &policy_label) {
        Ok(policy) => Some(policy),
        Err(found) => {
            problems.extend(found);
            None
        }
    };
    match policy {
        Some(policy) if problems.is_empty() => Ok(RelaySettings {
            scope: scope(relay),
            name: full_name(relay),
            tenants: spec.tenants.iter().map(|tenant| tenant.to_ascii_lowercase()).collect(),
            max_connections: spec.database.max_connections.unsigned_abs(),
            connection_budget: spec.database.connection_budget.unsigned_abs(),
            concurrency: spec.concurrency.unsigned_abs() as usize,
            claim_batch: spec.claim_batch.map(|rows| rows.unsigned_abs() as usize),
            memory_budget: spec.memory_budget.0,
            lease: spec.lease_duration.0,
            poll_interval: spec.poll_interval.0,
            retention: Retention {
                succeeded: spec.retention.succeeded.map(|age| age.0),
                payload: spec.retention.payload.map(|age| age.0),
                dead: spec.retention.dead.map(|age| age.0),
                history: Some(spec.retention.history.0),
            },
            migrate: spec.migrations == Migrations::Auto,
            policy,
        }),
        _ => Err(problems),
    }
}
