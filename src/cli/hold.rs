//! `outbox hold`: destinations that get no rows for a while.

use std::{process::ExitCode, str::FromStr};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Error, REFUSED,
    rows::{
        ActorArgs, Output, OutputArgs, Target, TargetArgs, documents,
        filter::{DestinationArg, instant},
        grid::{Grid, age, number},
        refuse,
    },
};
use crate::{
    api::Duration,
    store::people::{self, HeldHere, HoldAct, HoldChanged, HoldRefusal, Signature, Until},
};

/// Look at destinations that get no rows for a while, let them have rows again, or hold one yourself.
#[derive(Debug, Subcommand)]
pub enum HoldCommand {
    /// List held destinations, those that are held longest first.
    List(ListArgs),
    /// Let destinations have rows again: a few at first, as after a probe that was answered.
    Release(ReleaseArgs),
    /// Send nothing to a destination until a moment; then a probe decides.
    Set(SetArgs),
}

impl HoldCommand {
    /// Runs the command.
    pub async fn run(self) -> Result<ExitCode, Error> {
        match self {
            Self::List(args) => args.run().await,
            Self::Release(args) => args.run().await,
            Self::Set(args) => args.run().await,
        }
    }
}

/// List held destinations, those that are held longest first.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl ListArgs {
    async fn run(self) -> Result<ExitCode, Error> {
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let (held, more) = people::list_holds(&target.db, &target.table).await?;
        match self.output.output {
            Output::Table if held.is_empty() => super::print("no destination is held\n"),
            Output::Table => super::print(&table(&held)),
            output => documents::print(output, &held.iter().map(document).collect::<Vec<_>>())?,
        }
        if more {
            eprintln!(
                "outbox: only the first {} holds are shown",
                number(i64::try_from(held.len()).unwrap_or(i64::MAX))
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(held: &[HeldHere]) -> String {
    let mut grid =
        Grid::new(&["DESTINATION", "FOR YET", "WHY", "ROWS", "FAILURES", "RELAY", "SET BY", "NOTE"], &[1, 3, 4]);
    for hold in held {
        let left = if hold.left_s == Some(0) { "probing".to_owned() } else { age(hold.left_s) };
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        grid.row([
            hold.destination.clone(),
            left,
            or_dash(&hold.reason),
            format!("{}{}", number(hold.rows), if hold.more_rows { "+" } else { "" }),
            number(hold.failures.into()),
            hold.scope.clone(),
            or_dash(&hold.held_by),
            or_dash(&hold.note),
        ]);
    }
    grid.render()
}

fn document(hold: &HeldHere) -> Value {
    json!({
        "scope": hold.scope, "destination": hold.destination, "reason": hold.reason, "held_until": hold.held_until,
        "left_seconds": hold.left_s, "failures": hold.failures, "holds": hold.holds, "held_by": hold.held_by,
        "note": hold.note, "rows": hold.rows, "more_rows": hold.more_rows,
    })
}

/// Whose holds, who acts and why: what release and set have in common.
#[derive(Debug, Args)]
struct ActArgs {
    /// Only the holds of this relay (NS/RELAY), or of one policy of it (NS/RELAY/POLICY), as list shows them.
    #[arg(long, value_name = "RELAY")]
    scope: Option<String>,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Why, for the history.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl ActArgs {
    fn signature(&self, until: Option<&str>) -> Signature {
        let scope = self.scope.as_ref().map(|scope| format!("--scope {scope}"));
        let until = until.map(|until| format!("--until {until}"));
        let filter: Vec<_> = scope.into_iter().chain(until).collect();
        Signature {
            actor: self.actor.name(),
            filter: (!filter.is_empty()).then(|| filter.join(" ")),
            note: self.note.clone(),
        }
    }

    async fn change(
        &self,
        target: &Target,
        destinations: &[DestinationArg],
        act: HoldAct,
        until: Option<&str>,
    ) -> Result<ExitCode, Error> {
        let signature = self.signature(until);
        let (mut changed, mut refused) = (Vec::new(), Vec::new());
        for DestinationArg(destination) in destinations {
            let scope = self.scope.as_deref();
            match people::change_hold(&target.db, &target.table, destination, scope, act, &signature).await? {
                Ok(here) => changed.extend(here),
                Err(refusal) => {
                    refused.push((destination.canonical.clone(), reason(&destination.canonical, refusal, scope)));
                }
            }
        }
        for (_, reason) in &refused {
            eprintln!("outbox: {reason}");
        }
        match self.output.output {
            Output::Table if changed.is_empty() => super::print("no hold changed\n"),
            Output::Table => super::print(&said(&changed)),
            output => documents::print(
                output,
                &json!({
                    "changed": changed.iter().map(|hold| json!({
                        "scope": hold.scope, "destination": hold.destination, "held_until": hold.held_until,
                    })).collect::<Vec<_>>(),
                    "refused": refused.iter().map(|(destination, reason)| json!({
                        "destination": destination, "reason": reason,
                    })).collect::<Vec<_>>(),
                }),
            )?,
        }
        Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) })
    }
}

fn said(changed: &[HoldChanged]) -> String {
    changed
        .iter()
        .map(|hold| match &hold.held_until {
            Some(until) => format!("{} is held until {until} for {}\n", hold.destination, hold.scope),
            None => format!("{} is released for {}: a few rows at first, then more\n", hold.destination, hold.scope),
        })
        .collect()
}

/// Why nothing was changed, and what to do.
fn reason(destination: &str, refusal: HoldRefusal, scope: Option<&str>) -> String {
    let of = scope.map(|scope| format!(" for {scope}")).unwrap_or_default();
    match refusal {
        HoldRefusal::Unknown => format!(
            "{destination} is unknown: no relay has met it and no row goes there; outbox status lists the destinations that are known"
        ),
        HoldRefusal::NotHeld => format!("{destination} is not held{of}"),
        HoldRefusal::NoScope => format!(
            "{destination}: no relay has had trouble on this table yet, so none is known here; say whose hold it is: --scope NS/RELAY/POLICY, or --scope NS/RELAY for one without a policy"
        ),
        HoldRefusal::Past => format!("{destination}: --until is a moment that has passed by the database's clock"),
        HoldRefusal::TooFar => format!("{destination}: --until is more than ten years away"),
    }
}

/// Let destinations have rows again: a few at first, as after a probe that was answered.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    act: ActArgs,
    /// The destinations: origins such as https://billing.example, or any endpoint of them.
    #[arg(value_name = "DEST", required_unless_present = "all")]
    destinations: Vec<DestinationArg>,
    /// All that are held.
    #[arg(long, conflicts_with = "destinations")]
    all: bool,
}

impl ReleaseArgs {
    async fn run(self) -> Result<ExitCode, Error> {
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let destinations =
            if self.all { held_now(&target, self.act.scope.as_deref()).await? } else { self.destinations };
        self.act.change(&target, &destinations, HoldAct::Release, None).await
    }
}

/// Every destination that is held for this scope.
async fn held_now(target: &Target, scope: Option<&str>) -> Result<Vec<DestinationArg>, Error> {
    let (held, more) = people::list_holds(&target.db, &target.table).await?;
    if more {
        eprintln!("outbox: more destinations are held than are released at once; run the command again");
    }
    let ours = |hold: &&HeldHere| {
        scope.is_none_or(|scope| {
            hold.scope.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let mut names: Vec<_> = held.iter().filter(ours).map(|hold| hold.destination.clone()).collect();
    names.sort_unstable();
    names.dedup();
    // As the table spells them, which is what the table is asked by.
    Ok(names.into_iter().map(DestinationArg::known).collect())
}

/// Send nothing to a destination until a moment; then a probe decides.
#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    act: ActArgs,
    /// The destination: an origin such as https://billing.example, or any endpoint of it.
    #[arg(value_name = "DEST")]
    destination: DestinationArg,
    /// Until when: a span from now such as 30m or 2h, or an instant such as 2026-05-01T12:00:00Z.
    #[arg(long, value_name = "WHEN")]
    until: String,
}

impl SetArgs {
    async fn run(self) -> Result<ExitCode, Error> {
        let until = match Duration::from_str(&self.until) {
            Ok(span) => Until::In(span.0),
            Err(_) => match instant(&self.until) {
                Ok(instant) => Until::At(instant),
                Err(message) => return Ok(refuse(&format!("--until: {message}"))),
            },
        };
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        self.act.change(&target, &[self.destination], HoldAct::Set(until), Some(&self.until)).await
    }
}
