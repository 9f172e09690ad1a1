//! Routes of an `OutboxRelay`: which rows go by a policy of their own.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PolicyRef;

/// Rows that go by a policy of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRoute {
    /// Which rows.
    #[serde(rename = "match")]
    pub matches: RouteMatch,
    /// Their policy.
    pub policy_ref: PolicyRef,
}

/// Which rows a route is for: those with one of the operations and one of the endpoints; a list that is empty asks nothing.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "RouteMatch::default")]
#[x_kube(validation = Rule::new("(has(self.operations) && size(self.operations) > 0) || (has(self.endpoints) && size(self.endpoints) > 0)")
    .message("a route needs match.operations or match.endpoints; rows that no route matches go by spec.policyRef"))]
pub struct RouteMatch {
    /// Operations, letter for letter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 200)))]
    pub operations: Vec<String>,
    /// Endpoints: an origin and a path, such as `https://api.stripe.com/*`. A star stands for any run of characters, in the
    /// origin for none that would leave it. The origin is compared in its one spelling (lower case, no default port), the
    /// path and query letter for letter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024), regex(pattern = r"^[hH][tT][tT][pP][sS]?://[!-~]+$")))]
    pub endpoints: Vec<String>,
}
