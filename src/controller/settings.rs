//! The operator's own settings.

use std::time::Duration;

/// Whether the operator moves running relays to its own image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollout {
    /// A Deployment keeps its image until the relay's `image` says otherwise.
    #[default]
    Manual,
    /// The operator's setting is applied to all relays without an `image` of their own.
    Auto,
}

/// Where the leader's lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Its namespace.
    pub namespace: String,
    /// Its name: operators that share a namespace and serve others need two.
    pub name: String,
    /// Who asks; unlike any other candidate's.
    pub identity: String,
}

/// The operator's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespaces that are served; empty: all.
    pub namespaces: Vec<String>,
    /// The image of relays and migrations.
    pub relay_image: String,
    /// Whether running relays are moved to it.
    pub rollout: Rollout,
    /// Time between two samples of a table.
    pub sample_interval: Duration,
    /// The leader's lease; `None`: no election, for a single process.
    pub lease: Option<LeaseSettings>,
    /// Name of the operator in events.
    pub instance: Option<String>,
}
