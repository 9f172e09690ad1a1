//! Who owns the Deployment's number of replicas, and how it changes hands without ever falling back to 1.
//!
//! A field of server-side apply that its last owner drops goes back to its default, which is 1 here. So the manager that
//! creates the Deployment says a number once, another manager takes the field over right after, and only then does the
//! first one let go; and where somebody else is to scale, the number is handed over through the `scale` subresource before
//! the operator lets go. Each step leaves an owner behind, so a crash between two steps loses nothing: the next reconcile
//! reads the owners off `managedFields` and goes on.

use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{
    Error,
    apply::{FIELD_MANAGER, Writer},
};
use crate::api::{OutboxRelaySpec, ScalingMode};

/// Owns `spec.replicas` and nothing else.
pub const SCALING_MANAGER: &str = "outbox-operator-scaling";
/// Holds the number from the moment the operator lets go until somebody else sets it.
pub const HANDOVER_MANAGER: &str = "outbox-operator-handover";

/// Who decides the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This number is applied.
    Applied(i32),
    /// It is left to whoever scales the Deployment.
    LeftToOthers,
}

/// Who decides, by the relay's spec and what scaling decided.
pub fn source(spec: &OutboxRelaySpec, decided: i32) -> Source {
    match (spec.suspend, spec.scaling.mode, spec.replicas) {
        (true, _, _) => Source::Applied(0),
        (false, ScalingMode::Auto, _) => Source::Applied(decided),
        (false, ScalingMode::External, Some(replicas)) => Source::Applied(replicas),
        (false, ScalingMode::External | ScalingMode::Recommend, _) => Source::LeftToOthers,
    }
}

/// The number that a new Deployment is created with. Where others scale it is at least 1: a HorizontalPodAutoscaler takes
/// 0 for "switched off".
pub fn first(source: Source, min_replicas: i32) -> i32 {
    match source {
        Source::Applied(number) => number,
        Source::LeftToOthers => min_replicas.max(1),
    }
}

/// A write to the number or to its owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The scaling manager takes the field with this number.
    Take(i32),
    /// The hand-over manager takes it through `scale`.
    HandOver(i32),
    /// The scaling manager drops it.
    LetGo,
}

/// Who owns `spec.replicas`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The manager of the whole Deployment, which is to let go.
    pub main: bool,
    /// The scaling manager.
    pub scaling: bool,
    /// Anybody else, the hand-over manager among them.
    pub others: bool,
}

/// Reads the owners off an object.
pub fn owners(deployment: &Deployment) -> Owners {
    let mut owners = Owners::default();
    for entry in deployment.metadata.managed_fields.iter().flatten().filter(|entry| owns_replicas(entry)) {
        match entry.manager.as_deref() {
            Some(FIELD_MANAGER) => owners.main = true,
            Some(SCALING_MANAGER) => owners.scaling = true,
            _ => owners.others = true,
        }
    }
    owners
}

fn owns_replicas(entry: &ManagedFieldsEntry) -> bool {
    entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer("/f:spec/f:replicas").is_some())
}

/// The steps from what is there to what should be, in an order in which the field always has an owner.
pub fn steps(source: Source, min_replicas: i32, deployment: &Deployment) -> Vec<Step> {
    let number = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let owners = owners(deployment);
    match source {
        Source::Applied(wanted) if owners.scaling && number == Some(wanted) => Vec::new(),
        Source::Applied(wanted) => vec![Step::Take(wanted)],
        Source::LeftToOthers if !owners.main && !owners.scaling => Vec::new(),
        Source::LeftToOthers => {
            // A relay that was suspended comes back with pods: nobody else would raise a number of 0.
            let handed = match number {
                Some(0) if owners.scaling => min_replicas.max(1),
                Some(number) => number,
                None => 1,
            };
            let mut steps = Vec::new();
            if !owners.others || number != Some(handed) {
                steps.push(Step::HandOver(handed));
            }
            if owners.scaling {
                steps.push(Step::LetGo);
            }
            steps
        }
    }
}

/// Writes the steps. Returns the Deployment after the last of them, if there was one.
pub async fn write(writer: &Writer<'_>, name: &str, steps: &[Step]) -> Result<Option<Deployment>, Error> {
    let mut last = None;
    for step in steps {
        match step {
            Step::Take(number) => last = Some(apply(writer, name, Some(*number)).await?),
            Step::LetGo => last = Some(apply(writer, name, None).await?),
            Step::HandOver(number) => last = Some(hand_over(writer, name, *number).await?),
        }
    }
    Ok(last)
}

/// Owns the number, or nothing at all: an empty `spec` would be owned too.
async fn apply(writer: &Writer<'_>, name: &str, number: Option<i32>) -> Result<Deployment, Error> {
    let mut body = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name } });
    if let Some(number) = number {
        body["spec"] = json!({ "replicas": number });
    }
    let params = PatchParams::apply(SCALING_MANAGER).force();
    let patched = writer.counted::<Deployment>().patch(name, &params, &Patch::Apply(body)).await;
    patched.map_err(Error::write(format!("replicas of {}", writer.what::<Deployment>(name))))
}

async fn hand_over(writer: &Writer<'_>, name: &str, number: i32) -> Result<Deployment, Error> {
    let what = format!("scale of {}", writer.what::<Deployment>(name));
    let scale = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": { "name": name, "namespace": writer.owner.namespace },
        "spec": { "replicas": number },
    });
    let params = PatchParams::apply(HANDOVER_MANAGER).force();
    let api = writer.counted::<Deployment>();
    api.patch_scale(name, &params, &Patch::Apply(scale)).await.map_err(Error::write(what.clone()))?;
    api.get(name).await.map_err(Error::read(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: Option<i32>, managers: &[&str]) -> Deployment {
        let fields: Vec<_> = managers
            .iter()
            .map(|manager| json!({ "manager": manager, "fieldsV1": { "f:spec": { "f:replicas": {} } } }))
            .chain([json!({ "manager": "kubelet", "fieldsV1": { "f:status": {} } })])
            .collect();
        serde_json::from_value(json!({
            "metadata": { "managedFields": fields },
            "spec": { "replicas": replicas, "selector": {}, "template": {} },
        }))
        .unwrap()
    }

    /// A situation, who decides, the number that is there, its owners, and the steps.
    type Line<'a> = (&'a str, Source, Option<i32>, &'a [&'a str], &'a [Step]);

    #[test]
    fn the_field_always_has_an_owner() {
        let (main, scaling, other) = (FIELD_MANAGER, SCALING_MANAGER, "kube-controller-manager");
        let applied = Source::Applied(3);
        let left = Source::LeftToOthers;
        #[rustfmt::skip]
        let table: &[Line] = &[
            ("just created: taken over before the creator lets go", applied, Some(3), &[main],           &[Step::Take(3)]),
            ("a crash after that: nothing more to take",            applied, Some(3), &[main, scaling],  &[]),
            ("at rest",                                             applied, Some(3), &[scaling],        &[]),
            ("another number",                                      applied, Some(1), &[scaling],        &[Step::Take(3)]),
            ("somebody else set it",                                applied, Some(7), &[other],          &[Step::Take(3)]),
            ("the same number, but somebody else's",                applied, Some(3), &[other],          &[Step::Take(3)]),
            ("just created, others scale",                          left,    Some(2), &[main],           &[Step::HandOver(2)]),
            ("from Auto to External",                               left,    Some(4), &[scaling],        &[Step::HandOver(4), Step::LetGo]),
            ("a crash in between",                                  left,    Some(4), &[scaling, HANDOVER_MANAGER], &[Step::LetGo]),
            ("others own it",                                       left,    Some(7), &[other],          &[]),
            ("others own it, at 0",                                 left,    Some(0), &[other],          &[]),
            ("no longer suspended",                                 left,    Some(0), &[scaling],        &[Step::HandOver(2), Step::LetGo]),
        ];
        for (situation, source, number, managers, expected) in table {
            assert_eq!(steps(*source, 2, &deployment(*number, managers)), *expected, "{situation}");
        }
    }
}
