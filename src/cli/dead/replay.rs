//! `outbox dead replay`: dead rows are sent again.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

use super::super::{
    Error, INVALID,
    documents::{self, FileArgs},
    rows::{
        ActorArgs, OutputArgs, Target, TargetArgs, filter::SelectionArgs, lists::Preview, outcome, progress::Bar,
        refuse,
    },
};
use crate::{
    api::{self, DispatchPolicySpec, Receiver},
    spec::Documents,
    store::people::{self, Replay, Signature},
};

/// Send dead rows again, with the same keys; attempts are counted anew.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Show what would move, and move nothing.
    #[arg(long)]
    dry_run: bool,
    /// Let the rows become due evenly over this time.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    spread: api::Duration,
    /// How long the receiver remembers a key. Past it, rows that may have been executed are refused. Unset: as -f says, else not known.
    #[arg(long, value_name = "DURATION")]
    key_window: Option<api::Duration>,
    /// A file with the DispatchPolicy that says how long the receiver remembers a key (with several, also the OutboxRelay that refers to one).
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with = "key_window")]
    files: Vec<PathBuf>,
    /// Send rows again even if the receiver may have executed them and has forgotten their keys.
    #[arg(long)]
    accept_duplicate: bool,
    /// Why, for the history.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl ReplayArgs {
    /// Replays.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let (selection, filter) = match self.selection.selection() {
            Ok(selection) => selection,
            Err(code) => return Ok(code),
        };
        let key_window = match self.key_window() {
            Ok(window) => window,
            Err(code) => return Ok(code),
        };
        let target = match self.target.open().await? {
            Ok(target) => target,
            Err(code) => return Ok(code),
        };
        let how = Replay { key_window, accept_duplicate: self.accept_duplicate, spread: self.spread.0 };
        let output = self.output.output;
        if self.dry_run {
            let preview = Preview::of(output);
            let listing =
                people::preview_replay(&target.db, &target.table, &selection, &how, preview.shown(), preview.payload())
                    .await?;
            return preview.print(&listing, "DIED", "dead", "pending");
        }
        let signature = Signature { actor: self.actor.name(), filter, note: self.note };
        let bar = Bar::new("replayed");
        let result = people::replay(&target.db, &target.table, &selection, &signature, &how, &|done, total| {
            bar.tell(done, total);
        })
        .await;
        drop(bar);
        if let Ok(done) = &result {
            say_order(&target, &done.moved).await;
        }
        outcome::report(result, output, "dead", |rows| {
            format!("{rows} moved to pending; keys and payloads stay, attempts are counted anew")
        })
    }

    fn key_window(&self) -> Result<Option<Duration>, ExitCode> {
        if self.files.is_empty() {
            return Ok(self.key_window.map(|window| window.0));
        }
        let documents = FileArgs { files: self.files.clone() }.read().map_err(|problems| {
            documents::show(&problems);
            ExitCode::from(INVALID)
        })?;
        policy(&documents).map(window).map_err(refuse)
    }
}

/// Rows that were skipped when they died go after later ones of their entities now.
async fn say_order(target: &Target, moved: &[i64]) {
    match people::out_of_order(&target.db, &target.table, moved).await {
        Ok(rows) if rows.is_empty() => {}
        Ok(rows) => {
            let such = rows.first().copied().unwrap_or_default();
            eprintln!(
                "outbox: {} out of order (ordering.onDead: Skip): later rows of the entity were sent before, as with row {such}",
                if rows.len() == 1 { "1 row is".to_owned() } else { format!("{} are", outcome::rows(rows.len())) },
            );
        }
        Err(error) => eprintln!("outbox: whether the rows are in the order of their entities is not known: {error}"),
    }
}

/// The policy that the documents are about: the one that their relay refers to, or the only one.
fn policy(documents: &Documents) -> Result<&DispatchPolicySpec, &'static str> {
    if documents.relays.iter().any(|relay| !relay.spec.routes.is_empty()) {
        return Err("-f: the relay's rows go by several policies; give the file of one of them, or --key-window");
    }
    let wanted = match documents.relays.as_slice() {
        [relay] => relay.spec.policy_ref.as_ref().map(|reference| reference.name.as_str()),
        _ => None,
    };
    let named = |name: &str| documents.policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(name));
    match (wanted, documents.policies.as_slice()) {
        (Some(name), _) => named(name).map(|policy| &policy.spec).ok_or("-f: the relay's policy is not in the files"),
        (None, [policy]) => Ok(&policy.spec),
        (None, _) => Err("-f: give one DispatchPolicy, or one OutboxRelay with the policy that it refers to"),
    }
}

/// How long a repeated key is the same work to the receiver. One that does not deduplicate forgets a key at once.
fn window(policy: &DispatchPolicySpec) -> Option<Duration> {
    match policy.idempotency.receiver {
        Receiver::None => Some(Duration::ZERO),
        Receiver::Enforced => policy.idempotency.window.map(|window| window.0),
    }
}
