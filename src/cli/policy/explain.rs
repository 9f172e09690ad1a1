//! `outbox policy explain`: what a policy means, in numbers and in plain words.

mod words;

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::super::{
    Error, INVALID,
    documents::{self, FileArgs},
    rows::{
        Output, OutputArgs, documents as spelled,
        grid::{Grid, number},
        refuse,
    },
};
use crate::{
    api::DispatchPolicy,
    domain::{backoff::Wait, settings::Policy},
    spec,
};

/// Waits that a table shows from the first one on; of more, the last one is shown too.
const SHOWN: usize = 24;
/// Waits that a document for programs holds at most.
const SHOWN_TO_PROGRAMS: usize = 1_000;
/// Lines are not longer than this, however wide the terminal: nobody reads further across.
const WIDEST: usize = 100;
/// Lines where there is no terminal.
const USUAL: usize = 80;

/// Print what a policy means: each wait with its sums, the whole span, and every rule in plain words.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl ExplainArgs {
    /// Explains every policy of the files.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let documents = match self.files.read().and_then(|documents| super::check(&documents).map(|()| documents)) {
            Ok(documents) => documents,
            Err(problems) => {
                documents::show(&problems);
                return Ok(ExitCode::from(INVALID));
            }
        };
        let mut explained = Vec::new();
        for policy in &documents.policies {
            match spec::policy_settings(policy) {
                Ok(settings) => explained.push(Explained::new(policy, settings, &documents)),
                Err(problems) => {
                    documents::show(&problems);
                    return Ok(ExitCode::from(INVALID));
                }
            }
        }
        if explained.is_empty() {
            return Ok(refuse("the files hold no DispatchPolicy"));
        }
        if self.output.output == Output::Table {
            let width = comfy_table::Table::new().width().map_or(USUAL, |width| usize::from(width).min(WIDEST));
            let texts: Vec<_> = explained.iter().map(|policy| policy.text(width)).collect();
            super::super::print(&texts.join("\n"));
        } else {
            spelled::print(self.output.output, &explained.iter().map(Explained::document).collect::<Vec<_>>())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A policy with what follows from it.
struct Explained<'a> {
    document: &'a DispatchPolicy,
    settings: Policy,
    /// Whether the document says if the receiver deduplicates.
    receiver_said: bool,
}

impl<'a> Explained<'a> {
    fn new(document: &'a DispatchPolicy, settings: Policy, all: &spec::Documents) -> Self {
        let name = document.metadata.name.as_deref().unwrap_or_default();
        Self { document, settings, receiver_said: !all.receiver_unsaid.contains(name) }
    }

    fn waits(&self) -> impl Iterator<Item = Wait> + '_ {
        self.settings.backoff.table(self.settings.max_attempts)
    }

    /// The last wait, whose sums are those of the whole; `None`: there is only one attempt.
    fn last(&self) -> Option<Wait> {
        self.waits().last()
    }

    /// The failure after which `maxAge` may end the row on the slowest course, where it comes before the last attempt. An
    /// age is judged after an answer, so it lets the attempt be made that it then ends.
    fn ended_by_age(&self) -> Option<u32> {
        self.waits().find(|wait| wait.cumulative_max > self.settings.max_age).map(|wait| wait.failure + 1)
    }

    fn text(&self, width: usize) -> String {
        let name = self.document.metadata.name.as_deref().unwrap_or_default();
        let mut text = format!("DispatchPolicy/{name}\n\n");
        text.push_str(&words::fill(&words::backoff(self), "", width));
        if self.settings.max_attempts > 1 {
            text.push('\n');
            text.push_str(&self.table());
        }
        for (title, lines) in [
            ("The whole span", words::whole(self)),
            ("Requests", words::requests(self)),
            ("Before a request", words::before(self)),
            ("Duplicates", words::duplicates(self)),
            ("Answers", words::answers(self)),
            ("Holds", words::holds(self)),
            ("Addresses", words::addresses(self)),
        ] {
            let _ = writeln!(text, "\n{title}");
            for line in lines {
                text.push_str(&words::fill(&line, "  ", width));
            }
        }
        text
    }

    fn table(&self) -> String {
        let header = ["FAILURE", "WAITS AT MOST", "ON AVERAGE", "SUM AT MOST", "ON AVERAGE"];
        let mut grid = Grid::new(&header, &[0, 1, 2, 3, 4]);
        let waits: Vec<_> = self.waits().take(SHOWN).collect();
        let mut line = |wait: &Wait| {
            grid.row([
                wait.failure.to_string(),
                words::span(wait.max),
                words::span(wait.mean),
                words::span(wait.cumulative_max),
                words::span(wait.cumulative_mean),
            ]);
        };
        waits.iter().for_each(&mut line);
        if let Some(last) = self.last().filter(|last| waits.last() != Some(last)) {
            line(&last);
            let left_out = i64::from(last.failure) - i64::try_from(waits.len()).unwrap_or(0) - 1;
            if left_out > 0 {
                return format!("{}(left out before the last one: {})\n", grid.render(), number(left_out));
            }
        }
        grid.render()
    }

    fn document(&self) -> Value {
        let last = self.last();
        let waits: Vec<_> = self
            .waits()
            .take(SHOWN_TO_PROGRAMS)
            .map(|wait| {
                json!({
                    "failure": wait.failure,
                    "max_ms": millis(wait.max),
                    "mean_ms": millis(wait.mean),
                    "cumulative_max_ms": millis(wait.cumulative_max),
                    "cumulative_mean_ms": millis(wait.cumulative_mean),
                })
            })
            .collect();
        let settings = &self.settings;
        json!({
            "name": self.document.metadata.name,
            "backoff": self.document.spec.retry.backoff,
            "max_attempts": settings.max_attempts,
            "waits": waits,
            "span_max_ms": last.map_or(0, |last| millis(last.cumulative_max)),
            "span_mean_ms": last.map_or(0, |last| millis(last.cumulative_mean)),
            "max_age_ms": millis(settings.max_age),
            "ended_by_age_at_attempt": self.ended_by_age(),
            "receiver": self.document.spec.idempotency.receiver,
            "receiver_said": self.receiver_said,
            "key_window_ms": settings.key_window.map(millis),
            "words": {
                "backoff": words::backoff(self),
                "span": words::whole(self),
                "requests": words::requests(self),
                "before": words::before(self),
                "duplicates": words::duplicates(self),
                "answers": words::answers(self),
                "holds": words::holds(self),
                "addresses": words::addresses(self),
            },
        })
    }
}

/// Whole milliseconds; more than 64 bits hold became the most they hold.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
