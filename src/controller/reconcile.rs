//! One visit of one relay: dereference (client) -> validate -> decide -> build -> apply (client) -> status (client).

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::controller::Action,
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    Context, Error, RelayKey, apply,
    children::{self, Outcome},
    dereference::{self, Children},
    desired::Owner,
    events::{self, Happened},
    migration::{self, Migration, Version},
    replicas::{self, Source},
    rollout,
    sampler::Observation,
    status::{self, Seen},
    validate::{self, Finding, Validated},
};
use crate::{
    api::{GROUP, Migrations, OutboxRelay, OutboxRelayStatus, VERSION},
    domain::scaling::{self, Backlog, Decision, Inputs, Limits},
    store::{Registered, backlog::BacklogRows, migrate},
};

/// One visit takes no longer; each of its calls has a limit of its own.
const DEADLINE: Duration = Duration::from_secs(90);
/// A visit without a cause, in case a watch lost something.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// Visits one relay.
pub async fn reconcile(relay: Arc<DeserializeGuard<OutboxRelay>>, context: Arc<Context>) -> Result<Action, Error> {
    let started = Instant::now();
    let key = RelayKey::of(relay.meta());
    let visit = async {
        match &relay.0 {
            // Its children go with it by their owner references; nothing here holds a deletion up.
            Ok(relay) if relay.metadata.deletion_timestamp.is_some() => Ok(Action::await_change()),
            Ok(relay) => Box::pin(visit(relay, &key, &context)).await,
            Err(invalid) => Ok(undecodable(&invalid.error, &key, &relay.object_ref(&()), &context).await),
        }
    };
    let result = tokio::time::timeout(DEADLINE, visit).await.unwrap_or(Err(Error::Deadline { limit: DEADLINE }));
    context.metrics.reconciled(started.elapsed(), result.as_ref().err().map(Error::category));
    match &result {
        Ok(_) => context.backoff.reset(&key),
        Err(error) => tracing::warn!(relay = %key, category = error.category(), %error, "reconcile"),
    }
    result
}

/// When a failed visit is repeated.
#[expect(clippy::needless_pass_by_value, reason = "the shape of an error policy")]
pub fn on_error(relay: Arc<DeserializeGuard<OutboxRelay>>, _: &Error, context: Arc<Context>) -> Action {
    Action::requeue(context.backoff.next(&RelayKey::of(relay.meta())))
}

/// One object that cannot be read stops no other: it is told to its user and left alone until it changes.
async fn undecodable(
    error: &str,
    key: &RelayKey,
    reference: &k8s_openapi::api::core::v1::ObjectReference,
    context: &Context,
) -> Action {
    tracing::warn!(relay = %key, error, "the relay cannot be decoded");
    context.metrics.undecodable();
    let note = format!("the object cannot be read: {error}; its pods keep what they have");
    events::publish(&context.recorder, reference, &[Happened { warning: true, reason: "Undecodable", note }]).await;
    Action::await_change()
}

async fn visit(relay: &OutboxRelay, key: &RelayKey, context: &Context) -> Result<Action, Error> {
    let owner = owner(relay, key)?;
    // 1. dereference (client)
    let read = dereference::references(&context.clients.calls, relay, &owner, &context.references).await?;
    let there = dereference::children(&context.clients.calls, &owner).await?;
    // 2. validate (no client)
    let mut validated = validate::validate(relay, &owner, &read);
    // 3. decide (no client)
    let observation = observe(key, &validated, context);
    if let Some(other) = overlap(observation.as_ref()) {
        validated.refuse(overlapping(relay, other));
    }
    let now = Instant::now();
    let version = version(observation.as_ref());
    let automatic = relay.spec.migrations == Migrations::Auto;
    let migration = migration::decide(version, migrate::LATEST, automatic, &there.jobs, Timestamp::now());
    if migration == Migration::Done {
        context.sampler.hurry(key);
    }
    let decision = decide(relay, key, &there, observation.as_ref(), now, context);
    let source = replicas::source(&relay.spec, decision.desired);
    // 4. build (no client) and 5. apply (client)
    let applied = children::apply(
        &children::Wanted { relay, owner: &owner, validated: &validated, migration: &migration, source },
        &there,
        context,
    )
    .await;
    let (outcome, failure) = match applied {
        Ok(outcome) => (outcome, None),
        Err(error) => (Outcome { deployment: there.deployment.clone(), happened: Vec::new() }, Some(error)),
    };
    // 6. status (client)
    let status = status::compute(&Seen {
        relay,
        validated: &validated,
        observation: observation.as_ref(),
        migration: &migration,
        decision: &decision,
        source,
        deployment: outcome.deployment.as_ref(),
        failed: failure.as_ref().map(finding),
        operator_image: &context.settings.relay_image,
        now,
        wall: Timestamp::now(),
    });
    context.metrics.replicas(
        key,
        decided_number(source, outcome.deployment.as_ref()),
        status.ready_replicas.unwrap_or(0),
    );
    let mut happened = outcome.happened;
    // Until the first look at the table, what the operator before this one said stands: a restart is no news.
    let looking = observation.as_ref().is_some_and(|seen| seen.last.is_none() && seen.error.is_none());
    if !(looking && relay.status.is_some() && failure.is_none()) {
        publish_status(relay, key, &status, context).await?;
        happened.extend(events::newly_blocked(relay.status.as_ref(), &status));
    }
    events::publish(&context.recorder, &relay.object_ref(&()), &happened).await;
    match failure {
        Some(error) => Err(error),
        None => Ok(Action::requeue(next_visit(
            &migration,
            &decision,
            observation.as_ref(),
            outcome.deployment.as_ref(),
            context,
        ))),
    }
}

fn owner(relay: &OutboxRelay, key: &RelayKey) -> Result<Owner, Error> {
    let uid =
        relay.metadata.uid.clone().ok_or(Error::Incomplete { what: format!("OutboxRelay {key}"), field: "uid" })?;
    Ok(Owner { name: key.name.clone(), namespace: key.namespace.clone(), uid })
}

fn observe(key: &RelayKey, validated: &Validated, context: &Context) -> Option<Observation> {
    match &validated.target {
        Ok(target) => context.sampler.watch(key, target.clone()),
        // A Secret that is gone leaves the last known connection in use: the database itself may be well.
        Err(finding) => tracing::debug!(relay = %key, reason = finding.reason, "no new way to the database"),
    }
    context.sampler.observe(key)
}

/// The relay that was there first and serves some of the same rows.
fn overlap(observation: Option<&Observation>) -> Option<&str> {
    match observation?.last.as_ref()?.1.registered.as_ref()? {
        Registered::Overlaps { relay } => Some(relay),
        Registered::Alone => None,
    }
}

fn overlapping(relay: &OutboxRelay, other: &str) -> Finding {
    let database = &relay.spec.database;
    let message = format!(
        "relay {other} was there first and serves rows of the same tenants in {:?}.{:?}: give each relay tenants of its own (spec.tenants), or delete one",
        database.schema, database.table
    );
    Finding { reason: "TableOverlap", message }
}

fn version(observation: Option<&Observation>) -> Version {
    observation
        .and_then(|observation| observation.last.as_ref())
        .map_or(Version::Unknown, |(_, sample)| Version::Found(sample.schema_version))
}

fn decide(
    relay: &OutboxRelay,
    key: &RelayKey,
    there: &Children,
    observation: Option<&Observation>,
    now: Instant,
    context: &Context,
) -> Decision {
    let limits = limits(relay);
    let current = there.deployment.as_ref().and_then(rollout::number).unwrap_or(0);
    let fresh = observation.and_then(|observation| observation.fresh(now)).and_then(|sample| sample.rows.as_ref());
    let backlog = match fresh {
        Some(rows) => known(rows),
        None => {
            Backlog::Unknown { lasting: observation.map_or(Duration::ZERO, |observation| observation.blind_for(now)) }
        }
    };
    context.memories.with(key, now, |memory| {
        let inputs = Inputs {
            limits,
            suspend: relay.spec.suspend,
            current,
            ready: there.deployment.as_ref().map_or(0, rollout::ready),
            backlog,
            recent_most: memory.recent_most(now, limits.stabilization),
            since_change: memory.since_change(now, current),
            quiet: observation
                .map_or(Duration::ZERO, |observation| now.saturating_duration_since(observation.moved_at)),
            sample_interval: context.settings.sample_interval,
        };
        let decision = scaling::decide(&inputs);
        memory.note(now, limits.stabilization, decision.wanted);
        decision
    })
}

fn known(rows: &BacklogRows) -> Backlog {
    let workers = &rows.workers;
    Backlog::Known {
        due: rows.due,
        in_flight: rows.in_flight,
        oldest_due_age: rows.oldest_due_age,
        saturated: rows.due_saturated,
        drain_per_pod: scaling::drain_per_pod(workers.drain_per_second, workers.measured),
    }
}

fn limits(relay: &OutboxRelay) -> Limits {
    let (spec, scaling) = (&relay.spec, &relay.spec.scaling);
    Limits {
        min_replicas: scaling.min_replicas,
        max_replicas: scaling.max_replicas,
        max_connections: spec.database.max_connections,
        connection_budget: spec.database.connection_budget,
        concurrency: spec.concurrency,
        target_drain: scaling.target_drain.0,
        max_oldest_due_age: scaling.max_oldest_due_age.0,
        stabilization: scaling.scale_down.stabilization.0,
        step: scaling.scale_down.step,
    }
}

fn decided_number(source: Source, deployment: Option<&Deployment>) -> i32 {
    match source {
        Source::Applied(number) => number,
        Source::LeftToOthers => deployment.and_then(rollout::number).unwrap_or(0),
    }
}

fn finding(error: &Error) -> Finding {
    let reason = match error {
        Error::NameTaken { .. } => "NameTaken",
        _ => "ApplyFailed",
    };
    Finding { reason, message: error.to_string() }
}

/// Writes the status if it says something new.
async fn publish_status(
    relay: &OutboxRelay,
    key: &RelayKey,
    status: &OutboxRelayStatus,
    context: &Context,
) -> Result<(), Error> {
    if relay.status.as_ref() == Some(status) {
        return Ok(());
    }
    let api: Api<OutboxRelay> = Api::namespaced(context.clients.calls.clone(), &key.namespace);
    let body = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "OutboxRelay",
        "metadata": { "name": key.name, "uid": relay.metadata.uid }, "status": status,
    });
    let params = PatchParams::apply(apply::FIELD_MANAGER).force();
    context.metrics.writes("OutboxRelay");
    match api.patch_status(&key.name, &params, &Patch::Apply(body)).await {
        Ok(_) => Ok(()),
        // Deleted meanwhile, or another relay of the same name: there is nobody to tell.
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
        Err(error) => Err(Error::write(format!("status of OutboxRelay {key}"))(error)),
    }
}

/// What changes by itself is looked at again in time; everything else wakes the relay by a watch or by the sampler.
fn next_visit(
    migration: &Migration,
    decision: &Decision,
    observation: Option<&Observation>,
    deployment: Option<&Deployment>,
    context: &Context,
) -> Duration {
    let interval = context.settings.sample_interval;
    let now = Instant::now();
    let fresh = observation.and_then(|observation| observation.fresh(now));
    let current = deployment.and_then(rollout::number).unwrap_or(0);
    let moving = fresh.and_then(|sample| sample.rows.as_ref()).is_none_or(|rows| rows.due > 0);
    match migration {
        Migration::Failed { retry_in, .. } => (*retry_in + Duration::from_secs(1)).min(RESYNC),
        Migration::Done => interval,
        _ if observation.is_some() && (moving || decision.wanted < current) => interval,
        _ => RESYNC,
    }
}
