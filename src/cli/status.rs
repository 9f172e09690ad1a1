//! `outbox status`: the backlog.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Error,
    rows::{
        Output, OutputArgs, Target, TargetArgs, documents,
        grid::{Grid, age, number, printable},
        lists::why,
    },
};
use crate::store::people::{self, DestinationBacklog, StatusFilter, StatusReport};

/// Show the backlog by state and destination, the oldest due row, holds and the top errors.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Rows of this tenant.
    #[arg(long, value_name = "UUID")]
    tenant: Option<Uuid>,
    /// Rows of this operation.
    #[arg(long)]
    operation: Option<String>,
    /// Rows of this business object, ended ones too.
    #[arg(long)]
    entity: Option<String>,
}

impl StatusArgs {
    /// Shows the backlog.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let ended = self.entity.is_some();
        let filter = StatusFilter { tenant: self.tenant, operation: self.operation, entity: self.entity };
        let report = people::status(&target.db, &target.table, &filter).await?;
        match self.output.output {
            Output::Table => super::print(&text(&target, &report, ended)),
            output => documents::print(output, &document(&report, ended))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(target: &Target, report: &StatusReport, ended: bool) -> String {
    let mut text = format!("{}\n\n", target.table.qualified());
    text.push_str(&backlog(report, ended));
    if report.saturated {
        text.push_str("counting stopped at 1,000,000 rows: there are more\n");
    }
    if report.unassigned > 0 {
        let rows = number(report.unassigned);
        let _ = writeln!(text, "{rows} of the due rows are served by no running relay: see the tenants of the relays");
    }
    if report.more_destinations {
        text.push_str("more destinations are not listed; the first line counts them\n");
    }
    if let Some(oldest) = &report.oldest_due {
        let _ = write!(
            text,
            "\noldest due: row {}, for {}: {} {} to {}\n",
            oldest.id,
            age(oldest.age_s),
            printable(&oldest.operation),
            printable(&oldest.entity),
            printable(&oldest.destination)
        );
    }
    if !report.holds.is_empty() {
        let mut grid = Grid::new(&["HELD", "FOR YET", "WHY", "BY"], &[1]);
        for hold in &report.holds {
            let reason = hold.reason.clone().unwrap_or_else(|| "-".to_owned());
            grid.row([hold.destination.clone(), age(hold.left_s), reason, hold.scope.clone()]);
        }
        let _ = write!(text, "\n{}", grid.render());
    }
    if !report.errors.is_empty() {
        let mut grid = Grid::new(&["ROWS", "STATE", "WHY", "SUCH AS"], &[0]);
        for error in &report.errors {
            let example = error.example.clone().unwrap_or_else(|| "-".to_owned());
            let why = why(error.reason.as_deref(), error.http_status);
            grid.row([number(error.rows), error.status.clone(), why, example]);
        }
        let _ = write!(text, "\n{}", grid.render());
    }
    text
}

fn backlog(report: &StatusReport, ended: bool) -> String {
    let lines = std::iter::once(&report.total).chain(&report.destinations);
    let cells = |line: &DestinationBacklog| {
        let destination = line.destination.clone().unwrap_or_else(|| "all".to_owned());
        let counts = [line.due, line.waiting, line.in_flight, line.uncertain_auto, line.uncertain_parked, line.dead];
        let [due, waiting, in_flight, uncertain, parked, dead] = counts.map(number);
        (destination, [due, waiting, in_flight, uncertain, parked, dead])
    };
    if ended {
        let header =
            ["DESTINATION", "DUE", "WAIT", "FLIGHT", "UNSURE", "PARKED", "DEAD", "DONE", "CANCELLED", "SUPERSEDED"];
        let mut grid = Grid::new(&header, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        for line in lines {
            let (destination, [due, waiting, in_flight, uncertain, parked, dead]) = cells(line);
            let [done, cancelled, superseded] = [line.succeeded, line.cancelled, line.superseded].map(number);
            grid.row([destination, due, waiting, in_flight, uncertain, parked, dead, done, cancelled, superseded]);
        }
        return grid.render();
    }
    let header = ["DESTINATION", "DUE", "OLDEST", "WAITING", "IN FLIGHT", "UNCERTAIN", "PARKED", "DEAD"];
    let mut grid = Grid::new(&header, &[1, 2, 3, 4, 5, 6, 7]);
    for line in lines {
        let (destination, [due, waiting, in_flight, uncertain, parked, dead]) = cells(line);
        grid.row([destination, due, age(line.oldest_due_s), waiting, in_flight, uncertain, parked, dead]);
    }
    grid.render()
}

/// The counts of one destination.
#[derive(Serialize)]
struct Counts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<&'a str>,
    due: i64,
    waiting: i64,
    in_flight: i64,
    uncertain_auto: i64,
    uncertain_parked: i64,
    dead: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    succeeded: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded: Option<i64>,
    oldest_due_seconds: Option<i64>,
}

fn document(report: &StatusReport, ended: bool) -> Value {
    let counts = |line: &DestinationBacklog| {
        json!(Counts {
            destination: line.destination.as_deref(),
            due: line.due,
            waiting: line.waiting,
            in_flight: line.in_flight,
            uncertain_auto: line.uncertain_auto,
            uncertain_parked: line.uncertain_parked,
            dead: line.dead,
            succeeded: ended.then_some(line.succeeded),
            cancelled: ended.then_some(line.cancelled),
            superseded: ended.then_some(line.superseded),
            oldest_due_seconds: line.oldest_due_s,
        })
    };
    let oldest = report.oldest_due.as_ref().map(|row| {
        json!({
            "id": row.id, "operation": row.operation, "entity_id": row.entity, "destination": row.destination,
            "next_attempt_at": row.due_at, "due_seconds": row.age_s,
        })
    });
    let holds: Vec<_> = report
        .holds
        .iter()
        .map(|hold| {
            json!({
                "destination": hold.destination, "scope": hold.scope, "reason": hold.reason,
                "held_until": hold.held_until, "left_seconds": hold.left_s,
            })
        })
        .collect();
    let errors: Vec<_> = report
        .errors
        .iter()
        .map(|error| {
            json!({
                "status": error.status, "reason": error.reason, "last_http_status": error.http_status,
                "rows": error.rows, "last_error": error.example,
            })
        })
        .collect();
    json!({
        "total": counts(&report.total),
        "destinations": report.destinations.iter().map(counts).collect::<Vec<_>>(),
        "oldest_due": oldest,
        "holds": holds,
        "top_errors": errors,
        "saturated": report.saturated,
        "unassigned": report.unassigned,
    })
}
