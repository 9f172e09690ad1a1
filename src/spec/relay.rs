//! An `OutboxRelay` and its policy, resolved to settings.

use super::{Problem, policy};
use crate::{
    api::{DispatchPolicy, DispatchPolicySpec, Migrations, OutboxRelay, PolicyRoute},
    domain::{
        memory,
        routing::{EndpointPattern, Route, Routing},
        settings::{LEASE_MARGIN, NamedPolicy, Policies, Policy, PreDispatch, RelaySettings, Retention},
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

/// Whose holds a relay's are: its own, under one policy, for other credentials are another hold.
pub fn scope(relay: &OutboxRelay, policy: Option<&str>) -> String {
    match policy {
        Some(policy) => format!("{}/{policy}", full_name(relay)),
        None => full_name(relay),
    }
}

/// The names of a relay's policies by their numbers, each once; `None`: the defaults.
pub fn policy_names(relay: &OutboxRelay) -> Vec<Option<String>> {
    let mut names = vec![relay.spec.policy_ref.as_ref().map(|policy| policy.name.clone())];
    for route in &relay.spec.routes {
        let name = Some(route.policy_ref.name.clone());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Which row goes by which policy. A pattern that cannot be read matches nothing here; [`resolve`] tells of it.
pub fn routing(relay: &OutboxRelay) -> Routing {
    let names = policy_names(relay);
    let number = |name: &str| names.iter().position(|known| known.as_deref() == Some(name)).unwrap_or(0);
    let route = |route: &PolicyRoute| {
        let endpoints: Vec<_> =
            route.matches.endpoints.iter().filter_map(|text| EndpointPattern::parse(text)).collect();
        let readable = endpoints.len() == route.matches.endpoints.len();
        let operations = route.matches.operations.clone();
        readable.then(|| Route { operations, endpoints, policy: number(&route.policy_ref.name) })
    };
    Routing { routes: relay.spec.routes.iter().filter_map(route).collect() }
}

/// Resolves a relay with the policies that are there. Returns every problem at once.
pub fn resolve(relay: &OutboxRelay, policies: &[DispatchPolicy]) -> Result<RelaySettings, Vec<Problem>> {
    let label = format!("OutboxRelay/{}", relay.metadata.name.clone().unwrap_or_default());
    let spec = &relay.spec;
    let mut problems = patterns(relay, &label);
    let mut resolved = Vec::new();
    for name in policy_names(relay) {
        match named(relay, &label, name.as_deref(), policies) {
            Ok(policy) => resolved.push(NamedPolicy { scope: scope(relay, name.as_deref()), policy }),
            Err(found) => problems.extend(found),
        }
    }
    let mut resolved = resolved.into_iter();
    match resolved.next() {
        Some(own) if problems.is_empty() => Ok(RelaySettings {
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
            policies: Policies { own, others: resolved.collect() },
            routing: routing(relay),
        }),
        _ => Err(problems),
    }
}

/// What is no pattern of endpoints.
fn patterns(relay: &OutboxRelay, label: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, route) in relay.spec.routes.iter().enumerate() {
        for (index, text) in route.matches.endpoints.iter().enumerate() {
            if EndpointPattern::parse(text).is_none() {
                problems.push(Problem::new(
                    format!("{label}: spec.routes[{number}].match.endpoints[{index}]"),
                    "Invalid",
                    format!("{text:?} is no pattern: write scheme, host and path, such as https://api.stripe.com/*, without userinfo and fragment"),
                ));
            }
        }
    }
    problems
}

/// One of a relay's policies, with what relay and policy must agree on.
fn named(
    relay: &OutboxRelay,
    label: &str,
    name: Option<&str>,
    policies: &[DispatchPolicy],
) -> Result<Policy, Vec<Problem>> {
    let spec = &relay.spec;
    let defaults = DispatchPolicySpec::default();
    let (policy_label, policy_spec) = match name {
        None => (format!("{label} (default policy)"), &defaults),
        Some(name) => {
            let Some(found) = policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(name)) else {
                let route = spec.routes.iter().position(|route| route.policy_ref.name == name);
                let own = spec.policy_ref.as_ref().is_some_and(|policy| policy.name == name);
                let path = match route {
                    Some(number) if !own => format!("{label}: spec.routes[{number}].policyRef.name"),
                    _ => format!("{label}: spec.policyRef.name"),
                };
                return Err(vec![Problem::new(
                    path,
                    "PolicyNotFound",
                    format!("there is no DispatchPolicy {name:?}: create it, or correct the name"),
                )]);
            };
            (format!("DispatchPolicy/{name}"), &found.spec)
        }
    };
    let mut problems = Vec::new();
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
    match policy::resolve(policy_spec, &policy_label) {
        Ok(policy) => {
            problems.extend(lease_too_short(label, relay, &policy, &policy_label));
            if problems.is_empty() { Ok(policy) } else { Err(problems) }
        }
        Err(found) => {
            problems.extend(found);
            Err(problems)
        }
    }
}

/// A lease must outlast all that may happen to a row in hand.
fn lease_too_short(label: &str, relay: &OutboxRelay, policy: &Policy, policy_label: &str) -> Option<Problem> {
    let (lease, shortest) = (relay.spec.lease_duration, policy.time_in_hand() + LEASE_MARGIN);
    let mut parts = vec![("timeouts.total", policy.total_timeout)];
    parts.extend(policy.status_query.as_ref().map(|query| ("statusQuery.timeout", query.timeout)));
    parts.extend(policy.pre_dispatch.as_ref().map(|check| match check {
        PreDispatch::SqlFunction(_) => ("preDispatch.sqlFunction", check.timeout()),
        PreDispatch::Http { .. } => ("preDispatch.http.timeout", check.timeout()),
    }));
    let spelled: Vec<String> =
        parts.iter().map(|(name, time)| format!("{name} ({})", crate::api::Duration(*time))).collect();
    (lease.0 < shortest).then(|| {
        Problem::new(
            format!("{label}: spec.leaseDuration"),
            "LeaseTooShort",
            format!(
                "{lease} is shorter than {} of {policy_label} and a margin of {}s: raise leaseDuration to at least {}, or lower {}",
                spelled.join(" plus "),
                LEASE_MARGIN.as_secs(),
                crate::api::Duration(shortest),
                parts[0].0,
            ),
        )
    })
}
