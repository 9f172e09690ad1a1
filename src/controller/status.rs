//! The status of a relay: pure, from what was applied and what was sampled, not from what was wished.

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use tokio::time::Instant;

use super::{
    conditions::{Says, Status, TYPES, condition},
    desired::names,
    migration::Migration,
    replicas::Source,
    rollout,
    sampler::{Observation, SampleError},
    validate::{Finding, Validated},
};
use crate::{
    api::{BacklogStatus, OutboxRelay, OutboxRelayStatus, ScalingMode, ScalingStatus},
    domain::scaling::Decision,
    store::{backlog::BacklogRows, migrate},
};

/// Everything that a status is made of.
pub struct Seen<'a> {
    /// The relay, with its previous status.
    pub relay: &'a OutboxRelay,
    /// What validation said.
    pub validated: &'a Validated,
    /// What the sampler knows, if it looks at all.
    pub observation: Option<&'a Observation>,
    /// Where migrations stand.
    pub migration: &'a Migration,
    /// What scaling decided.
    pub decision: &'a Decision,
    /// Who decides the number of pods.
    pub source: Source,
    /// The Deployment, as it is after it was applied.
    pub deployment: Option<&'a Deployment>,
    /// Why a child could not be applied.
    pub failed: Option<Finding>,
    /// The operator's setting of the image.
    pub operator_image: &'a str,
    /// Now, for the age of samples.
    pub now: Instant,
    /// Now, for the conditions' times.
    pub wall: Timestamp,
}

/// Computes the status.
pub fn compute(seen: &Seen<'_>) -> OutboxRelayStatus {
    let previous = seen.relay.status.clone().unwrap_or_default();
    let generation = seen.relay.metadata.generation.unwrap_or(0);
    let name = seen.relay.metadata.name.as_deref().unwrap_or_default();
    let database = database_reachable(seen);
    let schema = schema_ready(seen);
    let says = [
        ready(seen, &database, &schema),
        database.clone(),
        schema,
        policies_resolved(seen),
        backlog_known(seen, &database),
        scaling_limited(seen),
        suspended(seen),
        outdated(seen),
    ];
    let deployment = seen.deployment.and_then(|deployment| deployment.status.as_ref());
    let selector: Vec<String> =
        names::selector(name).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    let rows =
        seen.observation.and_then(|observation| observation.last.as_ref()).and_then(|(_, sample)| sample.rows.as_ref());
    OutboxRelayStatus {
        observed_generation: Some(generation),
        replicas: Some(deployment.and_then(|status| status.replicas).unwrap_or(0)),
        ready_replicas: Some(deployment.and_then(|status| status.ready_replicas).unwrap_or(0)),
        selector: Some(selector.join(",")),
        relay_version: seen.deployment.and_then(rollout::image),
        backlog: rows.map(backlog).or(previous.backlog),
        scaling: Some(scaling(seen)),
        conditions: TYPES
            .into_iter()
            .zip(says)
            .map(|(type_, says)| condition(&previous.conditions, type_, &says, generation, seen.wall))
            .collect(),
    }
}

fn backlog(rows: &BacklogRows) -> BacklogStatus {
    let oldest = rows.oldest_due_at_us.and_then(|us| Timestamp::from_second(us.div_euclid(1_000_000)).ok());
    BacklogStatus {
        due: rows.due,
        waiting: rows.waiting,
        in_flight: rows.in_flight,
        uncertain_auto: rows.uncertain_auto,
        uncertain_parked: rows.uncertain_parked,
        dead: rows.dead.values().sum(),
        oldest_due_at: oldest.map(Time),
        saturated: rows.saturated,
    }
}

fn scaling(seen: &Seen<'_>) -> ScalingStatus {
    let limited_by = seen.decision.limited_by.map(|limit| limit.as_str().to_owned());
    let decided =
        ScalingStatus { desired: seen.decision.desired, limited_by, reason: seen.decision.reason.as_str().to_owned() };
    let external = |desired| ScalingStatus { desired, limited_by: None, reason: "External".to_owned() };
    match (seen.relay.spec.scaling.mode, seen.source) {
        (ScalingMode::External, Source::Applied(number)) if !seen.relay.spec.suspend => external(number),
        (ScalingMode::External, Source::LeftToOthers) => {
            external(seen.deployment.and_then(rollout::number).unwrap_or(0))
        }
        _ => decided,
    }
}

/// Everything in the way, worst first; a person mends from the top.
fn ready(seen: &Seen<'_>, database: &Says, schema: &Says) -> Says {
    if seen.relay.spec.suspend {
        return Says::no("Suspended", "spec.suspend is set: no pod runs");
    }
    let running = if seen.deployment.is_some() { "; running pods keep what they have" } else { "" };
    let blocked = |finding: &Finding| Says::no(finding.reason, format!("{}{running}", finding.message));
    if let Some(finding) = &seen.failed {
        return blocked(finding);
    }
    if let Err(findings) = &seen.validated.pods
        && let Some(first) = findings.first()
    {
        return blocked(first);
    }
    if let Err(finding) = &seen.validated.target {
        return blocked(finding);
    }
    for says in [database, schema] {
        if says.status != Status::True {
            return Says::no(says.reason, says.message.clone());
        }
    }
    match seen.deployment {
        None => Says::no("Progressing", "the Deployment is being created"),
        Some(deployment) => rolled_out(deployment),
    }
}

fn rolled_out(deployment: &Deployment) -> Says {
    let none = DeploymentStatus::default();
    let status = deployment.status.as_ref().unwrap_or(&none);
    let wanted = rollout::number(deployment).unwrap_or(1);
    let (ready, updated) = (status.ready_replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
    let condition = |type_: &str, is: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.into_iter().find(|condition| condition.type_ == type_ && condition.status == is)
    };
    if let Some(refused) = condition("ReplicaFailure", "True") {
        return Says::no("PodsRefused", refused.message.clone().unwrap_or_default());
    }
    if let Some(stalled) = condition("Progressing", "False") {
        return Says::no("RolloutStalled", stalled.message.clone().unwrap_or_default());
    }
    if !rollout::is_complete(deployment) {
        return Says::no("Progressing", format!("{updated} of {wanted} pods have the present settings, {ready} ready"));
    }
    match (wanted, ready) {
        (0, _) => Says::yes("ScaledToZero", "nothing is due: a pod starts when a row is"),
        (_, 0) => Says::no("Progressing", format!("none of {wanted} pods is ready yet")),
        _ => Says::yes("Running", "pods are ready"),
    }
}

fn database_reachable(seen: &Seen<'_>) -> Says {
    if let Err(finding) = &seen.validated.target {
        return Says::unknown(finding.reason, finding.message.clone());
    }
    let Some(observation) = seen.observation else {
        return Says::unknown("NotSampledYet", "the first look at the table is under way");
    };
    match (observation.fresh(seen.now), &observation.error) {
        (Some(_), _) => Says::yes("Connected", "the database answers"),
        (None, Some(error)) if answered(error) => Says::yes("Connected", "the database answers"),
        (None, Some(error)) => Says::no(unreachable_reason(error), error.message.clone()),
        (None, None) => Says::unknown("NotSampledYet", "the first look at the table is under way"),
    }
}

/// Whether the error is one that only a reachable database gives.
fn answered(error: &SampleError) -> bool {
    matches!(error.category, "permission" | "schema" | "database" | "read_only" | "preflight" | "migrate")
}

fn unreachable_reason(error: &SampleError) -> &'static str {
    match error.category {
        "authentication" => "AuthenticationFailed",
        "settings" => "DatabaseInvalid",
        _ => "DatabaseUnreachable",
    }
}

fn schema_ready(seen: &Seen<'_>) -> Says {
    let needed = migrate::LATEST;
    let job_error = match &seen.validated.migration {
        Some(Err(finding)) => Some(finding),
        _ => None,
    };
    match seen.migration {
        Migration::Ready => Says::yes("UpToDate", "the table has what the relay needs"),
        Migration::Unknown => match seen.observation.and_then(|observation| observation.error.as_ref()) {
            Some(error) if answered(error) => Says::unknown("SampleFailed", error.message.clone()),
            _ => Says::unknown("NotSampledYet", "the table was not looked at yet"),
        },
        Migration::Manual { found: None } => Says::no(
            "SchemaMissing",
            "the table is not there or was never migrated: run `outbox migrate`, or set spec.migrations to Auto",
        ),
        Migration::Manual { found: Some(found) } => Says::no(
            "SchemaOutdated",
            format!("the table has version {found} and {needed} is needed: run `outbox migrate`"),
        ),
        _ if job_error.is_some_and(|finding| !finding.message.is_empty()) => {
            let finding = job_error.cloned().unwrap_or(Finding { reason: "SchemaMissing", message: String::new() });
            Says::no(finding.reason, format!("the migration cannot start: {}", finding.message))
        }
        Migration::Start { .. } => Says::no("Migrating", "a migration Job is being created"),
        Migration::Running { job } => Says::no("Migrating", format!("migration Job {job} runs")),
        Migration::Done => Says::no("Migrating", "the migration is done; the table is looked at again"),
        Migration::Failed { job, attempt, .. } => Says::no(
            "MigrationFailed",
            format!(
                "migration Job {job} failed: see `kubectl logs job/{job}`; attempt {attempt} follows after a pause"
            ),
        ),
    }
}

fn policies_resolved(seen: &Seen<'_>) -> Says {
    match &seen.validated.policies {
        Ok(()) => Says::yes("Resolved", "the policy is there and fits the relay"),
        Err(finding) => Says::no(finding.reason, finding.message.clone()),
    }
}

fn backlog_known(seen: &Seen<'_>, database: &Says) -> Says {
    let fresh = seen.observation.and_then(|observation| observation.fresh(seen.now));
    match fresh {
        Some(sample) if sample.rows.is_some() => Says::yes("Sampled", "the rows are counted every few seconds"),
        Some(_) => Says::no("SchemaMissing", "there is no table to count yet"),
        None if database.status == Status::True => {
            let error = seen.observation.and_then(|observation| observation.error.clone());
            Says::no("SampleFailed", error.map(|error| error.message).unwrap_or_default())
        }
        None => Says {
            status: if database.status == Status::False { Status::False } else { Status::Unknown },
            ..database.clone()
        },
    }
}

fn scaling_limited(seen: &Seen<'_>) -> Says {
    let limits = &seen.relay.spec;
    match seen.decision.limited_by {
        _ if seen.source == Source::LeftToOthers || limits.scaling.mode != ScalingMode::Auto => {
            Says::no("NotScaling", "the number of pods is not the operator's to decide")
        }
        None => Says::no("NotLimited", "the number of pods is what the rows ask for"),
        Some(limit) => Says::yes(
            limit.as_str(),
            match limit {
                crate::domain::scaling::LimitedBy::MaxReplicas => {
                    format!("the rows ask for more pods than scaling.maxReplicas ({})", limits.scaling.max_replicas)
                }
                crate::domain::scaling::LimitedBy::ConnectionBudget => format!(
                    "database.connectionBudget ({}) has room for {} pods of maxConnections {} beside a rollout's surge and the operator's two",
                    limits.database.connection_budget, seen.decision.desired, limits.database.max_connections,
                ),
                crate::domain::scaling::LimitedBy::BacklogUnknown => {
                    "the backlog is not known, so no pod is added or taken away for it".to_owned()
                }
            },
        ),
    }
}

fn suspended(seen: &Seen<'_>) -> Says {
    if seen.relay.spec.suspend {
        Says::yes("Suspended", "spec.suspend is set")
    } else {
        Says::no("NotSuspended", "spec.suspend is not set")
    }
}

fn outdated(seen: &Seen<'_>) -> Says {
    let image = seen.deployment.and_then(rollout::image);
    match image {
        Some(image) if seen.relay.spec.image.is_none() && image != seen.operator_image => Says::yes(
            "ImageDiffers",
            format!("pods run {image}, the operator's setting is {}: set spec.image to move", seen.operator_image),
        ),
        _ => Says::no("UpToDate", "pods run the image that is set"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_deployment_says_whether_the_relay_is_ready() {
        let deployment = |replicas: i32, status: Value| -> Deployment {
            let spec = json!({ "replicas": replicas, "selector": {}, "template": {} });
            serde_json::from_value(json!({ "metadata": { "generation": 2 }, "spec": spec, "status": status })).unwrap()
        };
        let refused = json!([{ "type": "ReplicaFailure", "status": "True", "message": "exceeded quota" }]);
        let stalled = json!([{ "type": "Progressing", "status": "False", "message": "deadline exceeded" }]);
        #[rustfmt::skip]
        let table = [
            ("all pods are there", 2, json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2 }), "Running"),
            ("more are on their way", 3, json!({ "observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 1 }), "Running"),
            ("none is ready", 2, json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2 }), "Progressing"),
            ("old pods are left", 2, json!({ "observedGeneration": 2, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 3 }), "Progressing"),
            ("the change was not seen yet", 2, json!({ "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2 }), "Progressing"),
            ("just created", 1, json!({}), "Progressing"),
            ("none is wanted", 0, json!({ "observedGeneration": 2 }), "ScaledToZero"),
            ("a quota refuses pods", 1, json!({ "observedGeneration": 2, "conditions": refused }), "PodsRefused"),
            ("the rollout hangs", 1, json!({ "observedGeneration": 2, "conditions": stalled }), "RolloutStalled"),
        ];
        for (situation, replicas, status, reason) in table {
            let says = rolled_out(&deployment(replicas, status));
            assert_eq!(says.reason, reason, "{situation}");
            assert_eq!(says.status == Status::True, matches!(reason, "Running" | "ScaledToZero"), "{situation}");
        }
    }

    #[test]
    fn what_only_a_reachable_database_says_is_not_taken_for_an_absence() {
        let error = |category| SampleError { category, message: String::new() };
        for category in ["connection", "silent", "shutdown", "resources", "no_database"] {
            assert!(!answered(&error(category)));
            assert_eq!(unreachable_reason(&error(category)), "DatabaseUnreachable");
        }
        assert_eq!(unreachable_reason(&error("authentication")), "AuthenticationFailed");
        assert!(answered(&error("permission")));
    }
}
