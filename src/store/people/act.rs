//! What an act is called, by whom, and what came of it.

use super::super::StoreError;

/// Who acts and why, for the history.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    /// The person.
    pub actor: String,
    /// The filter as it was given; `None` where rows were named.
    pub filter: Option<String>,
    /// Why.
    pub note: Option<String>,
}

/// What an act has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// The rows that were moved.
    pub moved: Vec<i64>,
    /// The rows that were not.
    pub refused: Vec<Refused>,
}

/// A row that was not moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The row.
    pub id: i64,
    /// Its state, where there is such a row.
    pub status: Option<String>,
    /// Why.
    pub why: Why,
}

/// Why a row was not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is no such row.
    NoSuchRow,
    /// It is in another state than those that the act moves.
    State,
    /// An attempt may have been executed or its answer stored, and the receiver has forgotten the key by now.
    KeyWindow,
    /// An attempt may have been executed, and the act would bring about a second effect.
    MayHaveRun,
    /// It changed while the act was under way.
    Changed,
    /// The new key is another row's already.
    KeyTaken,
    /// In the database's own words.
    Said(String),
}

impl Why {
    /// As the statements of this module spell it.
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "state" => Self::State,
            "key_window" => Self::KeyWindow,
            "may_have_run" => Self::MayHaveRun,
            _ => Self::Changed,
        }
    }
}

/// An act that ended early. What it has done until then stays done.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct Stopped {
    /// What was done before.
    pub done: Done,
    /// What went wrong.
    pub source: StoreError,
}

impl From<StoreError> for Stopped {
    fn from(source: StoreError) -> Self {
        Self { done: Done::default(), source }
    }
}
