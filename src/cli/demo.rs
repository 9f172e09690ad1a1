//! `outbox demo`: the whole relay story in a minute, on a throwaway PostgreSQL.

use std::process::ExitCode;

use clap::{Args, value_parser};

use super::{Error, FAILED, signal};
use crate::demo::{self, MAX_ROWS, MIN_ROWS, Progress, StoryError, StoryOptions};

/// Exit code of a command that was interrupted, as shells have it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// What `--help` says beyond the first line.
const HELP: &str = "\
It starts a PostgreSQL server and a receiver that misbehaves, runs two relays as
processes, kills one of them in the middle of its requests, waits until every row
has ended, and compares the database with what the receiver saw. Nothing is left
behind. PostgreSQL's programs must be installed (OUTBOX_POSTGRES_BIN names their
directory if they are in no usual place).

Exit code 0: every intent took effect once, or is dead with its reason and took
none. 1: the story did not hold. 130: interrupted.
";

/// Tell the whole relay story in a minute, on a throwaway PostgreSQL.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct DemoArgs {
    /// Rows to insert.
    #[arg(long, value_name = "N", default_value = "300", value_parser = value_parser!(u16).range(MIN_ROWS as i64..=MAX_ROWS as i64))]
    rows: u16,
    /// Leave the relays' documents and logs behind, and say where.
    #[arg(long)]
    keep: bool,
}

impl DemoArgs {
    /// Tells the story.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let stop = signal::on_stop()?;
        let rows = usize::from(self.rows);
        let options = StoryOptions { rows, program: std::env::current_exe()?, keep: self.keep };
        let mut progress = Progress::new(rows);
        match demo::tell(&options, &stop, &mut progress).await {
            Ok(story) => {
                super::print(&story.report);
                Ok(if story.held { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
            }
            Err(StoryError::Interrupted) => {
                progress.say("interrupted; nothing is left running");
                Ok(ExitCode::from(INTERRUPTED))
            }
            Err(error) => Err(error.into()),
        }
    }
}
