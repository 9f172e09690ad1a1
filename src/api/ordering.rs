//! Order of a `DispatchPolicy`: whether rows of one entity wait for each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether rows of one tenant and entity go one at a time, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ordering {
    /// How rows wait for each other.
    pub mode: OrderingMode,
    /// What a dead row is to the later rows of its entity; read with `PerEntity` only.
    pub on_dead: OnDead,
}

/// How rows wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OrderingMode {
    /// They do not.
    #[default]
    None,
    /// A row waits for every earlier row of its tenant and entity that can still move, whatever the policy of that one.
    PerEntity,
}

/// What a dead row is to the later rows of its entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDead {
    /// They wait until a person has replayed, revised or dismissed it.
    #[default]
    Block,
    /// They go on without it. A row that is replayed then is out of order.
    Skip,
}
