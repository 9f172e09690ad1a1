//! The Job that brings the table to the operator's version. One attempt a Job; the next attempt is another Job.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{Container, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{PodPlan, names, overridden, pod};

/// Which attempt a Job is; failed attempts are counted by it.
pub const ATTEMPT: &str = "outbox-operator.dev/attempt";
/// A pod of the Job is started again this often: enough for a database that is just coming up.
const POD_RETRIES: i32 = 2;
/// An index over a large table takes its time; a Job that takes longer hangs.
const DEADLINE_SECONDS: i64 = 6 * 3600;
/// A finished Job is kept this long, so that its log can be read after a weekend.
const KEPT_SECONDS: i32 = 4 * 24 * 3600;

/// Builds the Job of one attempt at `version`.
pub fn build(plan: &PodPlan, version: i32, attempt: i32) -> Job {
    let name = &plan.owner.name;
    let mut metadata = plan.owner.metadata(names::migration_job(name, version, attempt), names::MIGRATION);
    metadata.annotations = Some(BTreeMap::from([(ATTEMPT.to_owned(), attempt.to_string())]));
    let container =
        Container { name: "migrate".to_owned(), args: Some(pod::arguments("migrate")), ..Container::default() };
    let mut spec = pod::build(plan, names::MIGRATION, container);
    spec.restart_policy = Some("Never".to_owned());
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(overridden(&plan.template.labels, names::labels(name, names::MIGRATION))),
            annotations: (!plan.template.annotations.is_empty()).then(|| plan.template.annotations.clone()),
            ..ObjectMeta::default()
        }),
        spec: Some(spec),
    };
    Job {
        metadata,
        spec: Some(JobSpec {
            backoff_limit: Some(POD_RETRIES),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            ttl_seconds_after_finished: Some(KEPT_SECONDS),
            template,
            ..JobSpec::default()
        }),
        status: None,
    }
}
