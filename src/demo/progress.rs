//! What a person sees while the story runs: a bar on a terminal, else a line now and then.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::rows::Tally;

/// Without a terminal: one line of numbers per this time.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows how far the story is, on standard error.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
    last_tally: Tally,
}

impl Progress {
    /// For a story of so many rows. A bar if standard error is a terminal.
    pub fn new(rows: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(rows as u64), ProgressDrawTarget::stderr_with_hz(10));
            // A constant template; the plain bar stands in if it were wrong.
            if let Ok(style) =
                ProgressStyle::with_template("{bar:30.green/black.bright} {pos:>4}/{len} rows ended  {msg}")
            {
                bar.set_style(style.progress_chars("━╸━"));
            }
            bar
        });
        Self { started: Instant::now(), bar, last_line: None, last_tally: Tally::default() }
    }

    /// Since when.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells what has just happened.
    pub fn say(&self, what: &str) {
        let line = format!("{:>5.1} s  {what}", self.started.elapsed().as_secs_f64());
        match &self.bar {
            Some(bar) => bar.println(line),
            None => write_line(&line),
        }
    }

    /// Shows where the rows are.
    pub(super) fn tally(&mut self, tally: &Tally) {
        let open = format!(
            "{} in flight, {} waiting, {} uncertain, {} dead",
            tally.in_flight, tally.pending, tally.uncertain, tally.dead
        );
        if let Some(bar) = &self.bar {
            bar.set_position(tally.ended());
            bar.set_message(open);
        } else if *tally != self.last_tally && self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            self.say(&format!("{} rows ended: {} succeeded; {open}", tally.ended(), tally.succeeded));
            self.last_line = Some(Instant::now());
            self.last_tally = tally.clone();
        }
    }

    /// Takes the bar away.
    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn write_line(line: &str) {
    // Whoever closed our standard error does not want to know.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
