//! What the state holds of keys and of requests under way, and what it is asked and answers.

use jiff::Timestamp;

use super::{
    record::KeyRecord,
    step::{Answer, Step},
};

/// The head of a request.
#[derive(Debug)]
pub(super) struct Arrival {
    pub connection: u64,
    pub at: Timestamp,
    pub method: String,
    pub path: String,
    /// The path alone: it stands in for the key where there is none.
    pub bare_path: String,
    pub key: Option<String>,
    pub headers: Vec<(String, String)>,
}

/// The body of a request that arrived whole.
#[derive(Debug)]
pub(super) struct Body {
    pub text: Option<String>,
    pub bytes: u64,
    pub sha256: String,
}

/// What is to be done with a request.
#[derive(Debug)]
pub(super) enum Decision {
    /// Do this step.
    Do(Step),
    /// Give the stored answer again.
    Replay(Answer, Option<u64>),
    /// There is no memory for one more key.
    Full,
}

/// The answer of an effect, be it made now or before.
#[derive(Debug)]
pub(super) struct Executed {
    pub answer: Answer,
    pub effect: Option<u64>,
    pub replayed: bool,
}

/// What scripts and deduplication go by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    Key(String),
    Path(String),
}

#[derive(Debug, Default)]
pub(super) struct KeyState {
    pub requests: u64,
    pub position: u32,
    pub working: u32,
    pub effects: u64,
    pub changed_bodies: u64,
    pub overlaps: u64,
    pub body_sha256: Option<String>,
    pub stored: Option<(Answer, Option<u64>)>,
}

/// A request that has not ended, or is still worked on.
#[derive(Debug)]
pub(super) struct Open {
    pub identity: Identity,
    pub body_sha256: String,
    pub working: bool,
    pub worked: bool,
    pub ended: bool,
}

impl KeyState {
    /// What is shown of a key; nothing of a path that stands in for one.
    pub fn record(&self, identity: &Identity) -> Option<KeyRecord> {
        let Identity::Key(key) = identity else { return None };
        Some(KeyRecord {
            key: key.clone(),
            requests: self.requests,
            effects: self.effects,
            changed_bodies: self.changed_bodies,
            overlaps: self.overlaps,
            body_sha256: self.body_sha256.clone(),
        })
    }
}

/// The name of an effect in answers.
pub(super) fn effect_id(effect: u64) -> String {
    format!("eff-{effect}")
}
