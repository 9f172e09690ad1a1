//! Compares what the database says with what the receiver saw. Pure, and written to find us wrong.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use super::{
    plan::{End, Intent},
    rows::RowEnd,
};
use crate::sandbox::{Effect, RequestRecord, sha256_hex};

/// What there is to compare.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub intents: &'a [Intent],
    pub rows: &'a HashMap<String, RowEnd>,
    /// All requests, in the order of arrival.
    pub requests: &'a [RequestRecord],
    pub effects: &'a [Effect],
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// A key has more than one effect.
    Doubled { key: String, effects: usize },
    /// A row succeeded and the receiver has done nothing for it.
    Lost { row: i64 },
    /// The receiver has done something for a row that did not succeed.
    Unrecorded { row: i64, status: String },
    /// A request did not carry the row's payload.
    BodyChanged { row: i64, request: u64 },
    /// A request carried a key that no row has, or none.
    UnknownKey { key: Option<String>, request: u64 },
    /// A row names another effect than its own.
    WrongName { row: i64, named: Option<String>, effect: String },
    /// A row did not end as it had to.
    WrongEnd { row: Option<i64>, meets: &'static str, expected: End, was: String },
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Audit {
    /// All that must not be.
    pub problems: Vec<Problem>,
    /// Rows left to a person, since an unknown attempt forbids to call them dead. Not wrong, but told.
    pub parked: Vec<i64>,
}

/// Compares database and receiver.
pub(super) fn audit(evidence: &Evidence<'_>) -> Audit {
    let mut effects: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
    for effect in evidence.effects {
        effects.entry(effect.key.as_deref().unwrap_or_default()).or_default().push(effect);
    }
    let mut audit = Audit::default();
    for intent in evidence.intents {
        match evidence.rows.get(&intent.key) {
            Some(row) => audit.row(intent, row, effects.get(intent.key.as_str()).map_or(&[], Vec::as_slice)),
            None => audit.problems.push(Problem::WrongEnd {
                row: None,
                meets: intent.kind.label,
                expected: intent.kind.end,
                was: "not in the table".to_owned(),
            }),
        }
    }
    let bodies: HashMap<&str, (i64, String)> =
        evidence.rows.values().map(|row| (row.key.as_str(), (row.id, sha256_hex(row.body.as_bytes())))).collect();
    for request in evidence.requests {
        match request.key.as_deref().and_then(|key| bodies.get(key)) {
            None => audit.problems.push(Problem::UnknownKey { key: request.key.clone(), request: request.number }),
            // A request that broke off has no whole body; then it has made no effect either.
            Some((row, body)) if request.body_sha256.as_ref().is_some_and(|sent| sent != body) => {
                audit.problems.push(Problem::BodyChanged { row: *row, request: request.number });
            }
            Some(_) => {}
        }
    }
    audit
}

impl Audit {
    fn row(&mut self, intent: &Intent, row: &RowEnd, effects: &[&Effect]) {
        let succeeded = row.status == "succeeded";
        match effects {
            [] if succeeded => self.problems.push(Problem::Lost { row: row.id }),
            [_] if !succeeded => {
                self.problems.push(Problem::Unrecorded { row: row.id, status: row.status.clone() });
            }
            [effect] if row.downstream_id.as_ref() != Some(&effect.id) => self.problems.push(Problem::WrongName {
                row: row.id,
                named: row.downstream_id.clone(),
                effect: effect.id.clone(),
            }),
            [] | [_] => {}
            more => self.problems.push(Problem::Doubled { key: row.key.clone(), effects: more.len() }),
        }
        let as_expected = match intent.kind.end {
            End::Succeeded => succeeded,
            End::Dead(reason) => {
                let reason_holds = row.reason.as_deref() == Some(reason);
                let parked = row.status == "uncertain" && row.parked && row.unknown_attempts > 0;
                if parked && reason_holds {
                    self.parked.push(row.id);
                }
                reason_holds && (row.status == "dead" || parked)
            }
        };
        if !as_expected {
            self.problems.push(Problem::WrongEnd {
                row: Some(row.id),
                meets: intent.kind.label,
                expected: intent.kind.end,
                was: described(row),
            });
        }
    }

    /// Problems of one sort.
    pub fn count(&self, sort: impl Fn(&Problem) -> bool) -> usize {
        self.problems.iter().filter(|problem| sort(problem)).count()
    }
}

fn described(row: &RowEnd) -> String {
    let reason = row.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let parked = if row.status == "uncertain" && row.parked { ", parked" } else { "" };
    let error = row.last_error.as_deref().map(|error| format!(" ({error})")).unwrap_or_default();
    format!("{}{parked}{reason}{error}, {} attempts", row.status, row.attempts)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Doubled { key, effects } => write!(f, "doubled: {effects} effects for key {key}"),
            Self::Lost { row } => write!(f, "lost: row {row} succeeded, and the receiver has no effect of it"),
            Self::Unrecorded { row, status } => {
                write!(f, "lost: row {row} is {status}, and the receiver has its effect")
            }
            Self::BodyChanged { row, request } => {
                write!(f, "changed: request {request} did not carry the payload of row {row}")
            }
            Self::UnknownKey { key: Some(key), request } => {
                write!(f, "changed: request {request} carried {key:?}, which is the key of no row")
            }
            Self::UnknownKey { key: None, request } => write!(f, "changed: request {request} carried no key"),
            Self::WrongName { row, named, effect } => {
                let named = named.as_deref().unwrap_or("nothing");
                write!(f, "changed: row {row} names {named} as its effect, which is {effect}")
            }
            Self::WrongEnd { row, meets, expected, was } => {
                let row = row.map_or_else(|| "a row".to_owned(), |row| format!("row {row}"));
                write!(f, "{row} ({meets}) had to end {expected}; it is {was}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
