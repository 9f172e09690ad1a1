//! Applies the children in the order in which one needs the other, and lets go of what nobody needs any more.

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::ConfigMap};
use kube::ResourceExt as _;

use super::{
    Context, Error,
    apply::{Prepared, Writer, check_ours},
    dereference::Children,
    desired::{Owner, RelayPlan, config_map, deployment, migration_job, names, pod_disruption_budget, service_account},
    events::{self, Happened},
    migration::{self, Migration},
    replicas::{self, Source},
    rollout,
    validate::Validated,
};
use crate::{api::OutboxRelay, controller::settings::Rollout, store::migrate};

/// What is wanted of a relay's children.
pub struct Wanted<'a> {
    /// The relay.
    pub relay: &'a OutboxRelay,
    /// The relay as an owner.
    pub owner: &'a Owner,
    /// What its children are made of, as far as that is known.
    pub validated: &'a Validated,
    /// Where migrations stand.
    pub migration: &'a Migration,
    /// Who decides the number of pods.
    pub source: Source,
}

/// What came of it.
pub struct Outcome {
    /// The Deployment as it is now.
    pub deployment: Option<Deployment>,
    /// What is worth an event.
    pub happened: Vec<Happened>,
}

/// Applies the children.
pub async fn apply(wanted: &Wanted<'_>, there: &Children, context: &Context) -> Result<Outcome, Error> {
    let mut outcome = Outcome { deployment: there.deployment.clone(), happened: Vec::new() };
    let writer = Writer { client: &context.clients.calls, owner: wanted.owner, metrics: &context.metrics };
    if let Some(there) = &there.deployment {
        check_ours(wanted.owner, there)?;
    }
    // The number first: it must follow a suspension or the backlog also while a policy or a Secret is missing, and it must
    // have an owner before the main apply below lets go of it.
    number(wanted, &mut outcome, &writer).await?;
    let rollout = wanted.validated.pods.as_ref().ok();
    let may_create = *wanted.migration == Migration::Ready;
    let starts_job = matches!(wanted.migration, Migration::Start { .. });
    if (rollout.is_some() && (may_create || there.deployment.is_some())) || starts_job {
        account(wanted, there, &writer).await?;
    }
    migrate(wanted, there, &mut outcome, &writer, context).await?;
    if let Some(plan) = rollout
        && (may_create || there.deployment.is_some())
    {
        roll(wanted, plan, there, &mut outcome, &writer, context).await?;
        let budget = Prepared::new(&pod_disruption_budget::build(wanted.owner))?;
        writer.apply(&budget, there.pod_disruption_budget.as_ref(), false).await?;
    }
    sweep(wanted, there, &outcome, &writer).await?;
    Ok(outcome)
}

/// Takes the number of replicas, or hands it over.
async fn number(wanted: &Wanted<'_>, outcome: &mut Outcome, writer: &Writer<'_>) -> Result<(), Error> {
    let Some(there) = &outcome.deployment else { return Ok(()) };
    let steps = replicas::steps(wanted.source, wanted.relay.spec.scaling.min_replicas, there);
    let name = names::relay(&wanted.owner.name);
    if let Some(after) = replicas::write(writer, &name, &steps).await? {
        outcome.deployment = Some(after);
    }
    Ok(())
}

async fn account(wanted: &Wanted<'_>, there: &Children, writer: &Writer<'_>) -> Result<(), Error> {
    if wanted.relay.spec.template.service_account_name.is_some() {
        return Ok(());
    }
    let account = Prepared::new(&service_account::build(wanted.owner))?;
    writer.apply(&account, there.service_account.as_ref(), false).await?;
    Ok(())
}

async fn migrate(
    wanted: &Wanted<'_>,
    there: &Children,
    outcome: &mut Outcome,
    writer: &Writer<'_>,
    context: &Context,
) -> Result<(), Error> {
    let (Migration::Start { attempt }, Some(Ok(plan))) = (wanted.migration, &wanted.validated.migration) else {
        return Ok(());
    };
    let mut pods = plan.pods.clone();
    // The operator's own version of the migrations is what the table is asked for.
    pods.image.clone_from(&context.settings.relay_image);
    config(there, &config_map::build(&pods, names::MIGRATION), writer).await?;
    let job = migration_job::build(&pods, migrate::LATEST, *attempt);
    if writer.create(&job).await? {
        let note = format!("Job {} brings the table to version {}", job.name_any(), migrate::LATEST);
        outcome.happened.push(Happened::began("MigrationStarted", note));
    }
    for old in migration::superfluous(&there.jobs) {
        writer.delete::<Job>(&old.metadata).await?;
    }
    Ok(())
}

/// Creates a ConfigMap, unless it is there: it is immutable, and its name says what it holds.
async fn config(there: &Children, map: &ConfigMap, writer: &Writer<'_>) -> Result<(), Error> {
    match there.config_maps.iter().find(|found| found.name_any() == map.name_any()) {
        Some(found) => check_ours(writer.owner, found),
        None => writer.create(map).await.map(|_| ()),
    }
}

/// Creates or updates the Deployment. A new one says its number of replicas once; the scaling manager takes it over, and
/// a second apply lets go of it. See [`replicas`].
async fn roll(
    wanted: &Wanted<'_>,
    plan: &RelayPlan,
    there: &Children,
    outcome: &mut Outcome,
    writer: &Writer<'_>,
    context: &Context,
) -> Result<(), Error> {
    let happened_before = outcome.happened.len();
    let mut plan = plan.clone();
    plan.pods.image = image(wanted.relay, outcome.deployment.as_ref(), context);
    config(there, &config_map::build(&plan.pods, names::RELAY), writer).await?;
    let prepared = Prepared::new(&deployment::build(&plan))?;
    if outcome.deployment.is_none() {
        let first = replicas::first(wanted.source, wanted.relay.spec.scaling.min_replicas);
        let created = prepared.clone().with_first_replicas(first);
        outcome.deployment = Some(writer.apply(&created, None, false).await?.object);
        outcome.happened.push(Happened::began(
            "RolloutStarted",
            format!("Deployment {} was created", names::relay(&wanted.owner.name)),
        ));
        number(wanted, outcome, writer).await?;
    }
    let actual = outcome.deployment.clone();
    let lets_go = actual.as_ref().is_some_and(|actual| replicas::owners(actual).main);
    let applied = writer.apply(&prepared, actual.as_ref(), lets_go).await?;
    let before = actual.as_ref().and_then(|actual| actual.metadata.generation);
    if applied.written && before != applied.object.metadata.generation {
        outcome.happened.push(Happened::began("RolloutStarted", "the pods' settings changed"));
    }
    if outcome.happened.len() > happened_before {
        outcome.happened.extend(events::deletes_rows(&wanted.relay.spec.retention));
    }
    outcome.deployment = Some(applied.object);
    Ok(())
}

/// The relay's own image; else what the pods run, unless the operator may move it; else the operator's setting.
fn image(relay: &OutboxRelay, deployment: Option<&Deployment>, context: &Context) -> String {
    let kept = match context.settings.rollout {
        Rollout::Manual => deployment.and_then(rollout::image),
        Rollout::Auto => None,
    };
    relay.spec.image.clone().or(kept).unwrap_or_else(|| context.settings.relay_image.clone())
}

/// Deletes `ConfigMap`s that no pod reads. Only when the rollout is complete: pods of the one before read theirs until then.
async fn sweep(wanted: &Wanted<'_>, there: &Children, outcome: &Outcome, writer: &Writer<'_>) -> Result<(), Error> {
    let Some(deployment) = outcome.deployment.as_ref().filter(|deployment| rollout::is_complete(deployment)) else {
        return Ok(());
    };
    if *wanted.migration != Migration::Ready {
        return Ok(());
    }
    let mut used = rollout::config_maps(deployment);
    if let Ok(plan) = &wanted.validated.pods {
        used.push(config_map::name(&plan.pods, names::RELAY));
    }
    for old in there.config_maps.iter().filter(|found| !used.contains(&found.name_any())) {
        if check_ours(wanted.owner, old).is_ok() {
            writer.delete::<ConfigMap>(&old.metadata).await?;
        }
    }
    Ok(())
}
