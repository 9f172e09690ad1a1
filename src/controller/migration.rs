//! When a migration Job is made: a decision about the table's version and the Jobs that are there.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;

use super::desired::{migration_job::ATTEMPT, names};

/// Pause before the second attempt; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// Longest pause between two attempts: a right that is granted at last is used within the hour.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Finished Jobs that are kept for their logs.
const KEPT_JOBS: usize = 2;

/// What the table and the Jobs say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Migration {
    /// The table has the version that is needed.
    Ready,
    /// Nobody knows yet which version the table has.
    Unknown,
    /// A person is to migrate.
    Manual {
        /// The table's version.
        found: Option<i32>,
    },
    /// A Job is to be made.
    Start {
        /// Its attempt, from 1.
        attempt: i32,
    },
    /// A Job runs.
    Running {
        /// Its name.
        job: String,
    },
    /// A Job is done; the next sample is to show it.
    Done,
    /// The last Job failed.
    Failed {
        /// Its name.
        job: String,
        /// Until the next attempt.
        retry_in: Duration,
        /// The next attempt.
        attempt: i32,
    },
}

/// The version that the table has, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// No sample yet.
    Unknown,
    /// The sample's answer; `None`: never migrated, or not there.
    Found(Option<i32>),
}

/// Decides.
pub fn decide(version: Version, needed: i32, automatic: bool, jobs: &[Job], now: Timestamp) -> Migration {
    let found = match version {
        Version::Unknown => return Migration::Unknown,
        Version::Found(Some(found)) if found >= needed => return Migration::Ready,
        Version::Found(found) => found,
    };
    if !automatic {
        return Migration::Manual { found };
    }
    let Some((attempt, job)) = ours(jobs).into_iter().max_by_key(|(attempt, _)| *attempt) else {
        return Migration::Start { attempt: 1 };
    };
    let name = job.metadata.name.clone().unwrap_or_default();
    match (finished(job, "Complete"), finished(job, "Failed")) {
        (Some(at), _) => {
            // The table was taken away again after a Job had made it: begin anew, but not in a hot loop.
            let pause = FIRST_PAUSE.saturating_sub(since(at, now));
            if pause.is_zero() { Migration::Start { attempt: attempt.saturating_add(1) } } else { Migration::Done }
        }
        (None, Some(at)) => {
            let retry_in = pause_after(attempt).saturating_sub(since(at, now));
            let attempt = attempt.saturating_add(1);
            if retry_in.is_zero() {
                Migration::Start { attempt }
            } else {
                Migration::Failed { job: name, retry_in, attempt }
            }
        }
        (None, None) => Migration::Running { job: name },
    }
}

/// Finished Jobs beyond those that are kept, oldest attempts first.
pub fn superfluous(jobs: &[Job]) -> Vec<&Job> {
    let mut finished: Vec<(i32, &Job)> = ours(jobs)
        .into_iter()
        .filter(|(_, job)| finished(job, "Complete").is_some() || finished(job, "Failed").is_some())
        .collect();
    finished.sort_by_key(|(attempt, _)| *attempt);
    let excess = finished.len().saturating_sub(KEPT_JOBS);
    finished.into_iter().take(excess).map(|(_, job)| job).collect()
}

/// The migration Jobs with their attempts.
fn ours(jobs: &[Job]) -> Vec<(i32, &Job)> {
    let component = |job: &Job| job.metadata.labels.as_ref().and_then(|labels| labels.get(names::COMPONENT)).cloned();
    let attempt = |job: &Job| {
        let annotations = job.metadata.annotations.as_ref()?;
        annotations.get(ATTEMPT)?.parse().ok()
    };
    let migrations = jobs.iter().filter(|job| component(job).as_deref() == Some(names::MIGRATION));
    migrations
        .filter(|job| job.metadata.deletion_timestamp.is_none())
        .map(|job| (attempt(job).unwrap_or(1), job))
        .collect()
}

fn finished(job: &Job, condition: &str) -> Option<Timestamp> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|found| found.type_ == condition && found.status == "True")?;
    Some(condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

fn since(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or(Duration::ZERO)
}

/// 1, 2, 4 ... minutes, an hour at most.
fn pause_after(attempt: i32) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(0).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(attempt: i32, condition: Option<&str>, at: &str) -> Job {
        let conditions: Vec<_> = condition
            .map(|name| json!({ "type": name, "status": "True", "lastTransitionTime": at }))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("billing-migrate-1-{attempt}"),
                "labels": { names::COMPONENT: names::MIGRATION },
                "annotations": { ATTEMPT: attempt.to_string() },
            },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn a_job_is_made_when_the_table_lacks_something_and_again_after_a_growing_pause() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let (missing, name) = (Version::Found(None), |attempt: i32| format!("billing-migrate-1-{attempt}"));
        let failed = |attempt, retry_in| Migration::Failed {
            job: name(attempt),
            retry_in: Duration::from_secs(retry_in),
            attempt: attempt + 1,
        };
        #[rustfmt::skip]
        let table: &[(&str, Version, bool, Vec<Job>, Migration)] = &[
            ("no sample",           Version::Unknown,        true,  vec![], Migration::Unknown),
            ("as needed",           Version::Found(Some(1)), true,  vec![], Migration::Ready),
            ("newer",               Version::Found(Some(2)), true,  vec![], Migration::Ready),
            ("by hand",             missing,                 false, vec![], Migration::Manual { found: None }),
            ("first attempt",       missing,                 true,  vec![], Migration::Start { attempt: 1 }),
            ("under way",           missing,                 true,  vec![job(1, None, "")], Migration::Running { job: name(1) }),
            ("just done",           missing,                 true,  vec![job(1, Some("Complete"), "2026-01-01T00:59:30Z")], Migration::Done),
            ("done, table gone",    missing,                 true,  vec![job(1, Some("Complete"), "2026-01-01T00:30:00Z")], Migration::Start { attempt: 2 }),
            ("just failed",         missing,                 true,  vec![job(1, Some("Failed"), "2026-01-01T00:59:30Z")], failed(1, 30)),
            ("failed a while ago",  missing,                 true,  vec![job(1, Some("Failed"), "2026-01-01T00:59:00Z")], Migration::Start { attempt: 2 }),
            ("failed often",        missing,                 true,  vec![job(9, Some("Failed"), "2026-01-01T00:30:00Z"), job(8, Some("Failed"), "2026-01-01T00:00:00Z")], failed(9, 1800)),
        ];
        for (situation, version, automatic, jobs, expected) in table {
            assert_eq!(decide(*version, 1, *automatic, jobs, now), *expected, "{situation}");
        }
    }

    #[test]
    fn the_last_two_finished_jobs_are_kept_for_their_logs() {
        let at = "2026-01-01T00:00:00Z";
        let jobs =
            [job(3, Some("Failed"), at), job(1, Some("Failed"), at), job(4, None, at), job(2, Some("Failed"), at)];
        let names: Vec<_> = superfluous(&jobs).iter().map(|job| job.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, ["billing-migrate-1-1"]);
    }
}
