//! The status of an `OutboxRelay`. It holds instants and no ages, so that nothing is written while nothing changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator last saw and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OutboxRelayStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// The pods' label selector, for the `scale` subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The image that the pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_version: Option<String>,
    /// The rows by state at the last good sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogStatus>,
    /// What scaling decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
    /// All conditions, present from the first visit.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The rows by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BacklogStatus {
    /// Rows due now.
    pub due: i64,
    /// Rows waiting out a backoff or a time of their own.
    pub waiting: i64,
    /// Rows that a pod holds.
    pub in_flight: i64,
    /// Uncertain rows that the relay goes on with by itself.
    pub uncertain_auto: i64,
    /// Uncertain rows that wait for a person.
    pub uncertain_parked: i64,
    /// Dead rows.
    pub dead: i64,
    /// Since when the oldest due row is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_at: Option<Time>,
    /// Whether a count met its bound, so that it reads as "at least".
    pub saturated: bool,
}

/// What scaling decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingStatus {
    /// Pods that are asked for.
    pub desired: i32,
    /// The cap that bound the number, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// Why the number is what it is.
    pub reason: String,
}
