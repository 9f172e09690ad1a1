//! The end of the story, as tables that a person reads. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Write as _},
    time::Duration,
};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::{
    audit::{Audit, Problem},
    plan::{Intent, KINDS},
    relays::RELAY_HEADER,
    rows::{RowEnd, Tally},
    story::Kill,
};
use crate::sandbox::{Answered, RequestRecord};

/// Widest table, on a terminal that has the room.
const WIDTH: u16 = 100;
/// Problems that are listed; more of them say nothing more.
const LISTED_PROBLEMS: usize = 20;

/// What there is to tell.
#[derive(Debug)]
pub(super) struct Told<'a> {
    pub intents: &'a [Intent],
    pub rows: &'a HashMap<String, RowEnd>,
    pub requests: &'a [RequestRecord],
    pub audit: &'a Audit,
    pub tally: &'a Tally,
    pub kill: &'a Kill,
}

/// The whole report.
pub(super) fn report(told: &Told<'_>, took: Duration) -> String {
    let mut text = String::new();
    section(&mut text, "Rows: what the receiver did, and how they ended", &by_kind(told));
    section(&mut text, "Requests beyond the first of their key, and why", &repeats(told));
    section(&mut text, "Dead rows: nothing was done for them, and each says why", &dead(told));
    section(&mut text, "Relay processes", &by_relay(told));
    verdict(&mut text, told, took);
    text
}

fn section(text: &mut String, title: &str, table: &Table) {
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "\n{title}\n{table}");
}

fn table(header: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    let width = table.width().map_or(WIDTH, |terminal| terminal.min(WIDTH));
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn by_kind(told: &Told<'_>) -> Table {
    let mut table = table(&["the receiver answered", "rows", "ended", "requests", "effects"], &[1, 3, 4]);
    let mut total = [0; 3];
    for kind in KINDS {
        let keys: Vec<&str> = told
            .intents
            .iter()
            .filter(|intent| std::ptr::eq(intent.kind, kind))
            .map(|intent| intent.key.as_str())
            .collect();
        let mut ends: BTreeMap<String, usize> = BTreeMap::new();
        for row in keys.iter().filter_map(|key| told.rows.get(*key)) {
            *ends.entry(end_of(row)).or_default() += 1;
        }
        let ended: Vec<String> = match ends.len() {
            1 => ends.into_keys().collect(),
            _ => ends.into_iter().map(|(end, rows)| format!("{rows} {end}")).collect(),
        };
        let of_kind = || told.requests.iter().filter(|one| one.key.as_deref().is_some_and(|key| keys.contains(&key)));
        let numbers = [keys.len(), of_kind().count(), of_kind().filter(|one| one.effect.is_some()).count()];
        for (sum, number) in total.iter_mut().zip(numbers) {
            *sum += number;
        }
        let [rows, requests, effects] = numbers.map(|number| number.to_string());
        table.add_row([kind.label, &rows, &ended.join(", "), &requests, &effects]);
    }
    let [rows, requests, effects] = total.map(|number| number.to_string());
    table.add_row(["in all", &rows, "", &requests, &effects]);
    table
}

fn end_of(row: &RowEnd) -> String {
    match (row.status.as_str(), row.parked, &row.reason) {
        ("dead", _, Some(reason)) => format!("dead: {reason}"),
        ("uncertain", true, Some(reason)) => format!("parked: {reason}"),
        (status, ..) => status.to_owned(),
    }
}

fn repeats(told: &Told<'_>) -> Table {
    let mut before: HashMap<&str, &RequestRecord> = HashMap::new();
    let mut why: BTreeMap<Before, [usize; 3]> = BTreeMap::new();
    for request in told.requests {
        let Some(key) = request.key.as_deref() else { continue };
        if let Some(before) = before.insert(key, request) {
            let numbers = why.entry(Before::of(before, told.kill)).or_default();
            numbers[0] += 1;
            numbers[1] += usize::from(request.effect.is_some());
            numbers[2] += usize::from(request.replayed);
        }
    }
    let mut table = table(&["the request before it", "sent again", "effect made now", "made before"], &[1, 2, 3]);
    let mut total = [0; 3];
    for (why, numbers) in why {
        for (sum, number) in total.iter_mut().zip(numbers) {
            *sum += number;
        }
        table.add_row(std::iter::once(why.to_string()).chain(numbers.map(|number| number.to_string())));
    }
    table.add_row(std::iter::once("in all".to_owned()).chain(total.map(|number| number.to_string())));
    table
}

/// What became of the request before a repeat, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Before {
    ToldToWait(u16),
    Answered(u16),
    Broken,
    Unanswered,
    CutOffByKill,
    Unrecorded,
}

impl Before {
    fn of(request: &RequestRecord, kill: &Kill) -> Self {
        match request.answered {
            Answered::Status(status @ (409 | 429)) => Self::ToldToWait(status),
            Answered::Status(status) if status < 300 => Self::Unrecorded,
            Answered::Status(status) => Self::Answered(status),
            Answered::ClientLeft | Answered::RequestCut if kill.cut_off(request) => Self::CutOffByKill,
            Answered::ClientLeft | Answered::RequestCut | Answered::Open => Self::Unanswered,
            Answered::Reset | Answered::Closed | Answered::Garbage | Answered::Cut => Self::Broken,
        }
    }
}

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToldToWait(status) => write!(f, "was told to wait ({status})"),
            Self::Answered(status) => write!(f, "was answered {status}"),
            Self::Broken => f.write_str("ended with a broken connection"),
            Self::Unanswered => f.write_str("had no answer within the deadline"),
            Self::CutOffByKill => f.write_str("was on the wire when its relay was killed"),
            Self::Unrecorded => f.write_str("was answered, its relay killed before the record"),
        }
    }
}

fn dead(told: &Told<'_>) -> Table {
    let mut reasons: BTreeMap<&str, (usize, &RowEnd)> = BTreeMap::new();
    let mut rows: Vec<&RowEnd> = told.rows.values().filter(|row| row.status == "dead").collect();
    rows.sort_by_key(|row| row.id);
    for row in rows {
        reasons.entry(row.reason.as_deref().unwrap_or("none")).or_insert((0, row)).0 += 1;
    }
    let mut table = table(&["reason", "rows", "last_error of one of them", "its attempts"], &[1, 3]);
    for (reason, (rows, example)) in reasons {
        let error = example.last_error.as_deref().unwrap_or("none");
        table.add_row([reason, &rows.to_string(), error, &example.attempts.to_string()]);
    }
    table
}

fn by_relay(told: &Told<'_>) -> Table {
    let mut relays: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for request in told.requests {
        let numbers = relays.entry(request.header(RELAY_HEADER).unwrap_or("unknown")).or_default();
        numbers[0] += 1;
        numbers[1] += usize::from(told.kill.cut_off(request));
    }
    let mut table = table(&["process", "requests", "on the wire at its SIGKILL"], &[1, 2]);
    for (relay, [requests, cut_off]) in relays {
        let cut_off = if relay == told.kill.relay { cut_off.to_string() } else { String::new() };
        table.add_row([Cell::new(relay), Cell::new(requests), Cell::new(cut_off)]);
    }
    table
}

fn verdict(text: &mut String, told: &Told<'_>, took: Duration) {
    let (audit, tally) = (told.audit, told.tally);
    let effects = told.requests.iter().filter(|request| request.effect.is_some()).count();
    let replayed = told.requests.iter().filter(|request| request.replayed).count();
    let doubled = audit.count(|problem| matches!(problem, Problem::Doubled { .. }));
    let lost = audit.count(|problem| matches!(problem, Problem::Lost { .. } | Problem::Unrecorded { .. }));
    let wrong_end = audit.count(|problem| matches!(problem, Problem::WrongEnd { .. }));
    let changed = audit.problems.len() - doubled - lost - wrong_end;
    let _ = writeln!(
        text,
        "\nDatabase  {} rows: {} succeeded, {} dead, {} parked for a person\n\
         Receiver  {effects} effects: {doubled} doubled, {lost} lost, {changed} keys, bodies or names changed\n\
         Repeats   {replayed} requests came again after their effect was made, and made no other\n\
         Kill      {} by SIGKILL with {} requests on the wire\n\
         Time      {:.1} s\n",
        told.intents.len(),
        tally.succeeded,
        tally.dead,
        tally.parked,
        told.kill.relay,
        told.kill.on_the_wire,
        took.as_secs_f64(),
    );
    if !audit.parked.is_empty() {
        let rows = &audit.parked;
        let _ = writeln!(text, "Parked, since an attempt of theirs may have been executed: rows {rows:?}\n");
    }
    if audit.problems.is_empty() {
        let _ = writeln!(text, "Every intent took effect once, or is dead with its reason and took none.");
        return;
    }
    let broken = doubled + lost + changed;
    let _ = writeln!(text, "THE STORY DID NOT HOLD: {broken} broken promises, {wrong_end} rows that ended otherwise.");
    for problem in audit.problems.iter().take(LISTED_PROBLEMS) {
        let _ = writeln!(text, "  {problem}");
    }
    if audit.problems.len() > LISTED_PROBLEMS {
        let _ = writeln!(text, "  ... and {} more", audit.problems.len() - LISTED_PROBLEMS);
    }
}
