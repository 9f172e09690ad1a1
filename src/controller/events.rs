//! Events of a relay: what began, and what newly stands in its way. Nothing is said twice while nothing changes, since
//! what was said before is read off the previous status.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};

use crate::api::{OutboxRelayStatus, Retention};

/// Something that happened to a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// Whether somebody should look.
    pub warning: bool,
    /// One word in `PascalCase`.
    pub reason: &'static str,
    /// What happened.
    pub note: String,
}

impl Happened {
    /// Something that began.
    pub fn began(reason: &'static str, note: impl Into<String>) -> Self {
        Self { warning: false, reason, note: note.into() }
    }
}

/// What the pods that are rolled out will delete, and what goes with it. Said with each rollout, not with each visit.
pub fn deletes_rows(retention: &Retention) -> Option<Happened> {
    let ages = [("succeeded", retention.succeeded), ("dead", retention.dead)];
    let deleted: Vec<String> =
        ages.iter().filter_map(|(rows, age)| Some(format!("{rows} rows after {}", (*age)?))).collect();
    let note = format!(
        "retention deletes {}, and with each its unique key: the same intent inserted again would be performed again",
        deleted.join(" and ")
    );
    (!deleted.is_empty()).then_some(Happened { warning: true, reason: "RetentionDeletesRows", note })
}

/// Reasons of `Ready` that are worth an event when they appear.
const WORTH_AN_EVENT: &[&str] = &[
    "SecretNotFound",
    "KeyMissing",
    "PolicyNotFound",
    "PolicyInvalid",
    "LeaseTooShort",
    "MemoryBudgetTooSmall",
    "Invalid",
    "DatabaseInvalid",
    "DatabaseUnreachable",
    "AuthenticationFailed",
    "SchemaMissing",
    "SchemaOutdated",
    "MigrationFailed",
    "NameTaken",
    "ApplyFailed",
    "PodsRefused",
    "RolloutStalled",
];

/// What newly stands in the relay's way.
pub fn newly_blocked(before: Option<&OutboxRelayStatus>, now: &OutboxRelayStatus) -> Option<Happened> {
    let ready =
        |status: &OutboxRelayStatus| status.conditions.iter().find(|condition| condition.type_ == "Ready").cloned();
    let (before, now) = (before.and_then(ready), ready(now)?);
    let is_new = before.is_none_or(|before| before.reason != now.reason);
    let reason = WORTH_AN_EVENT.iter().find(|reason| **reason == now.reason)?;
    (is_new && now.status != "True").then(|| Happened { warning: true, reason, note: now.message.clone() })
}

/// Publishes events. A lost event is logged and nothing more: an event decides nothing.
pub async fn publish(recorder: &Recorder, relay: &ObjectReference, happened: &[Happened]) {
    for one in happened {
        let event = Event {
            type_: if one.warning { EventType::Warning } else { EventType::Normal },
            reason: one.reason.to_owned(),
            note: Some(one.note.chars().take(1000).collect()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, relay).await {
            tracing::warn!(reason = one.reason, %error, "publish an event");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_that_deletes_rows_says_what_it_gives_up() {
        let day = Some(crate::api::Duration::from_secs(7 * 24 * 3600));
        assert_eq!(deletes_rows(&Retention { payload: day, ..Retention::default() }), None);
        let happened = deletes_rows(&Retention { succeeded: day, dead: day, ..Retention::default() }).unwrap();
        assert!(happened.warning);
        assert!(happened.note.starts_with(
            "retention deletes succeeded rows after 7d and dead rows after 7d, and with each its unique key"
        ));
    }

    fn status(ready: &str, reason: &str) -> OutboxRelayStatus {
        let condition = serde_json::json!({
            "type": "Ready", "status": ready, "reason": reason, "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        OutboxRelayStatus {
            conditions: vec![serde_json::from_value(condition).unwrap()],
            ..OutboxRelayStatus::default()
        }
    }

    #[test]
    fn what_newly_stands_in_the_way_is_told_once() {
        let told = |before: Option<OutboxRelayStatus>, now: OutboxRelayStatus| {
            newly_blocked(before.as_ref(), &now).map(|happened| happened.reason)
        };
        let (missing, key) = (status("False", "SecretNotFound"), status("False", "KeyMissing"));
        assert_eq!(told(None, missing.clone()), Some("SecretNotFound"));
        assert_eq!(told(Some(status("True", "Running")), missing.clone()), Some("SecretNotFound"));
        assert_eq!(told(Some(missing.clone()), missing.clone()), None, "not again");
        assert_eq!(told(Some(missing.clone()), key), Some("KeyMissing"));
        assert_eq!(told(Some(missing), status("False", "Progressing")), None, "nothing that passes by itself");
        assert_eq!(told(None, status("True", "Running")), None);
    }
}
