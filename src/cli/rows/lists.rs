//! Lists of rows, and one row with its history, for people.

use std::{fmt::Write as _, process::ExitCode};

use super::{
    super::{Error, REFUSED},
    Output, documents,
    grid::{Grid, age, number, printable},
    outcome,
};
use crate::store::people::{Listing, Record, Row, Shown};

/// Rows that a list shows unless it is told otherwise.
const LISTED: i64 = 100;
/// Rows that a dry run shows to a person.
const PREVIEWED: i64 = 20;
/// Rows that a dry run shows to a program.
const PREVIEWED_BY_PROGRAMS: i64 = 10_000;

/// How many rows a list shows.
pub fn limit(given: Option<i64>, all: bool) -> i64 {
    given.unwrap_or(if all { i64::MAX } else { LISTED })
}

/// Whether an answer shows payloads: tables do not, for they may hold what not everybody at a screen should read.
pub fn with_payload(output: Output) -> bool {
    output != Output::Table
}

/// What a dry run shows.
pub struct Preview {
    output: Output,
}

impl Preview {
    /// For this spelling.
    pub fn of(output: Output) -> Self {
        Self { output }
    }

    /// Rows at most.
    pub fn shown(&self) -> i64 {
        if self.output == Output::Table { PREVIEWED } else { PREVIEWED_BY_PROGRAMS }
    }

    /// Whether payloads are shown.
    pub fn payload(&self) -> bool {
        with_payload(self.output)
    }

    /// Prints what would move from `only` to `becomes`, and on standard error what would be refused.
    pub fn print(&self, listing: &Listing, when: &'static str, only: &str, becomes: &str) -> Result<ExitCode, Error> {
        for refused in &listing.refused {
            eprintln!("outbox: {}", outcome::reason(refused, only));
        }
        print(self.output, listing, when, &format!("no {only} row would move"))?;
        if self.output == Output::Table && listing.total > 0 {
            let rows = outcome::rows(usize::try_from(listing.total).unwrap_or(usize::MAX));
            super::super::print(&format!("\n{rows} would move to {becomes}; nothing was changed\n"));
        }
        Ok(if listing.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }
}

/// Prints a list. What does not fit the limit is said on standard error, so that no program takes a part for the whole.
pub fn print(output: Output, listing: &Listing, when: &'static str, none: &str) -> Result<(), Error> {
    if output != Output::Table {
        documents::print_rows(output, &listing.rows)?;
    } else if listing.rows.is_empty() {
        super::super::print(&format!("{none}\n"));
    } else {
        super::super::print(&table(&listing.rows, when));
    }
    let shown = i64::try_from(listing.rows.len()).unwrap_or(i64::MAX);
    if shown < listing.total {
        eprintln!("outbox: {} of {} rows shown", number(shown), number(listing.total));
    }
    Ok(())
}

fn table(rows: &[Row], when: &'static str) -> String {
    let mut grid = Grid::new(&["ID", when, "WHY", "TRIES", "DONE?", "OPERATION", "ENTITY", "DESTINATION"], &[0, 1, 3]);
    for row in rows {
        let text = |name: &str| row.text(name).unwrap_or("-").to_owned();
        grid.row([
            row.id.to_string(),
            age(row.age_s),
            why(row.text("reason"), row.last_http_status),
            row.attempts.to_string(),
            if row.unknown_attempts > 0 { "maybe".to_owned() } else { "no".to_owned() },
            text("operation"),
            text("entity_id"),
            text("destination"),
        ]);
    }
    grid.render()
}

/// Reason and answer in one: `rejected 422`.
pub fn why(reason: Option<&str>, http_status: Option<i32>) -> String {
    let status = http_status.map(|status| status.to_string());
    match (reason, status) {
        (Some(reason), Some(status)) => format!("{reason} {status}"),
        (Some(reason), None) => reason.to_owned(),
        (None, Some(status)) => status,
        (None, None) => "-".to_owned(),
    }
}

/// Prints a row and its history.
pub fn print_shown(output: Output, id: i64, shown: &Shown) -> Result<(), Error> {
    if output != Output::Table {
        return documents::print_shown(output, shown);
    }
    let mut text = match &shown.row {
        Some(row) => about(row),
        None => format!("row {id} is gone; its history is left\n"),
    };
    if !shown.history.is_empty() {
        text.push_str(if shown.cut { "\nhistory (earlier records left out)\n" } else { "\nhistory\n" });
        text.push_str(&history(&shown.history));
    }
    if let Some(hint) = shown.row.as_ref().and_then(hint) {
        let _ = write!(text, "\n{hint}\n");
    }
    super::super::print(&text);
    Ok(())
}

fn about(row: &Row) -> String {
    let text = |name: &str| row.text(name).unwrap_or("-").to_owned();
    let mut head = format!("row {}: {}", row.id, text("status"));
    if let Some(reason) = row.text("reason") {
        let _ = write!(head, ", {}", printable(reason));
    }
    let mut grid = Grid::new(&["", ""], &[]);
    let mut say = |name: &str, value: String| grid.row([format!("  {name}"), value]);
    say("intent", format!("{} {}, version {}", text("operation"), text("entity_id"), row.intent_version));
    say("tenant", text("tenant_id"));
    say("key", text("idempotency_key"));
    say("destination", text("destination"));
    say("attempts", format!("{}, waits {}, with unknown outcome {}", row.attempts, row.waits, row.unknown_attempts));
    if let Some(status) = row.last_http_status {
        say("last answer", format!("HTTP {status}"));
    }
    for (name, column) in [
        ("last error", "last_error"),
        ("downstream id", "downstream_id"),
        ("held by", "claimed_by"),
        ("created", "created_at"),
        ("first sent", "first_dispatch_at"),
        ("next attempt", "next_attempt_at"),
        ("ended", "completed_at"),
        ("expires", "expires_at"),
    ] {
        // An ended row has no next attempt; the column still says when the last one was due.
        let ended = !matches!(row.text("status"), Some("pending" | "in_flight" | "uncertain"));
        match row.text(column) {
            Some(_) if column == "next_attempt_at" && ended => {}
            Some("infinity") if column == "next_attempt_at" => say(name, "parked: when a person says so".to_owned()),
            Some(value) => say(name, short(value)),
            None => {}
        }
    }
    let bytes = number(row.payload_bytes.into());
    say("payload", format!("{bytes} bytes as it is stored; shown by --output json"));
    format!("{head}\n{}", grid.render())
}

/// An instant to the second; anything else as it is.
fn short(text: &str) -> String {
    match text.split_once('.') {
        Some((instant, fraction)) if fraction.len() == 7 && fraction.ends_with('Z') && instant.contains('T') => {
            format!("{}Z", instant.replace('T', " "))
        }
        _ => text.to_owned(),
    }
}

fn history(records: &[Record]) -> String {
    let mut grid = Grid::new(&["  AT", "WHAT", "BECAME", "WHY", "BY", "NOTE"], &[]);
    for record in records {
        let text = |name: &str| record.text(name).unwrap_or_default().to_owned();
        let act = text("act");
        let what = match record.attempt {
            Some(attempt) if act == "attempt" => format!("attempt {attempt}"),
            _ => act,
        };
        let by = record.text("actor").or(record.text("worker")).unwrap_or_default().to_owned();
        let became = match record.next_row_id {
            Some(next) => format!("{} by {next}", text("outcome")),
            None => text("outcome"),
        };
        let note = match (record.forced, record.text("note")) {
            (true, note) => ["forced", note.unwrap_or_default()].join(" ").trim_end().to_owned(),
            (false, Some(note)) => note.to_owned(),
            (false, None) => text("error"),
        };
        let at = format!("  {}", short(&text("at")));
        grid.row([at, what, became, why(record.text("reason"), record.http_status), by, note]);
    }
    grid.render()
}

/// What a person may do about the row.
fn hint(row: &Row) -> Option<String> {
    let id = row.id;
    match row.text("status")? {
        "dead" => Some(format!(
            "next: outbox dead replay {id} (send again), revise {id} (a new version), or dismiss {id} --note WHY"
        )),
        "uncertain" => Some(format!(
            "next: ask the receiver by the key, then outbox uncertain resolve {id} --as succeeded|retry|dead"
        )),
        _ => None,
    }
}
