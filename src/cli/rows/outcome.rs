//! What an act has done, for the person who asked for it.

use std::process::ExitCode;

use serde_json::json;

use super::{
    super::{Error, FAILED, REFUSED},
    Output, documents,
    grid::number,
};
use crate::store::people::{Done, Refused, Stopped, Why};

/// Says what an act has done and refused. `only` is the state whose rows it moves, `said` the sentence about so many rows.
pub fn report(
    result: Result<Done, Stopped>,
    output: Output,
    only: &str,
    said: impl Fn(&str) -> String,
) -> Result<ExitCode, Error> {
    let (done, error) = match result {
        Ok(done) => (done, None),
        Err(Stopped { done, source }) => (done, Some(source)),
    };
    for refused in &done.refused {
        eprintln!("outbox: {}", reason(refused, only));
    }
    match output {
        Output::Table if done.moved.is_empty() && error.is_some() => {}
        Output::Table if done.moved.is_empty() => super::super::print("no row moved\n"),
        Output::Table => super::super::print(&format!("{}\n", said(&rows(done.moved.len())))),
        _ => {
            let refused: Vec<_> = done
                .refused
                .iter()
                .map(|refused| json!({"id": refused.id, "status": refused.status, "reason": reason(refused, only)}))
                .collect();
            documents::print(output, &json!({"moved": done.moved, "refused": refused}))?;
        }
    }
    if let Some(error) = error {
        eprintln!("outbox: {error}");
        if !done.moved.is_empty() {
            eprintln!("outbox: what was moved stays moved; the same command goes on with the rest");
        }
        return Ok(ExitCode::from(FAILED));
    }
    Ok(if done.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
}

/// Why a row was not moved, and what to do.
pub fn reason(refused: &Refused, only: &str) -> String {
    let (id, status) = (refused.id, refused.status.as_deref().unwrap_or("gone"));
    match &refused.why {
        Why::NoSuchRow => format!("row {id}: there is no such row"),
        Why::State => format!("row {id} is {status}: only {only} rows move"),
        Why::KeyWindow => {
            format!("row {id} may have been executed, and its key window is over; see --accept-duplicate")
        }
        Why::MayHaveRun => {
            format!("row {id} may have been executed; a new key allows a second effect: see --accept-duplicate")
        }
        Why::Changed => format!("row {id} was changed by somebody else meanwhile: look again"),
        Why::KeyTaken => format!("row {id}: another row has the new key already: was it revised before?"),
        Why::Said(words) if matches!(status, "cancelled" | "superseded") => words.clone(),
        Why::Said(words) => format!("{words}: see --allow-unknown"),
    }
}

/// A number of rows in words.
pub fn rows(count: usize) -> String {
    match count {
        0 => "no row".to_owned(),
        1 => "1 row".to_owned(),
        _ => format!("{} rows", number(i64::try_from(count).unwrap_or(i64::MAX))),
    }
}
