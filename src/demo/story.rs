//! The story: rows go out through two relays to a receiver that misbehaves, and one relay is killed in the middle.
//!
//! Nothing here waits for a time to pass where a condition can be waited for, and every wait has an end.

use std::{collections::HashSet, path::PathBuf, time::Duration};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    audit::{Evidence, audit},
    directory::TemporaryDirectory,
    error::{StoryError, sql, system},
    plan::{self, End, Intent, Wave},
    progress::Progress,
    relays::{LEASE, RELAY_HEADER},
    report::{Told, report},
    rows,
    stage::Stage,
};
use crate::sandbox::{Answered, Ledger, RequestRecord};

/// The whole story takes some 20 seconds; it did not hold if it takes this long.
const STORY_LIMIT: Duration = Duration::from_secs(90);
/// From an insert to its requests, on a busy machine.
const REQUESTS_LIMIT: Duration = Duration::from_secs(30);
/// The receiver hears of a killed client at once; a busy machine may need this long.
const CONNECTIONS_END_LIMIT: Duration = Duration::from_secs(10);
/// Requests that a relay must have on the wire when it is killed.
const ON_THE_WIRE: usize = 3;
/// Effects that the other relay must have brought about before the killed one is started again.
const WITHOUT_THE_KILLED: usize = 10;

/// What is asked of the story.
#[derive(Clone, Debug)]
pub struct StoryOptions {
    /// Rows to insert: [`super::MIN_ROWS`] to [`super::MAX_ROWS`].
    pub rows: usize,
    /// The program that has the commands `relay` and `migrate`: ours.
    pub program: PathBuf,
    /// Leave documents and logs behind, and say where.
    pub keep: bool,
}

/// How the story went.
#[derive(Debug)]
pub struct Story {
    /// For people.
    pub report: String,
    /// Whether every promise was kept and everything happened that had to.
    pub held: bool,
}

/// A kill that happened.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    pub relay: String,
    pub at: Timestamp,
    /// Requests that were under way at the receiver and never got their answer.
    pub on_the_wire: usize,
}

/// Tells the story, and clears the stage whatever comes of it.
///
/// # Errors
///
/// [`StoryError`] where the story cannot be told to its end.
pub async fn tell(
    options: &StoryOptions,
    stop: &CancellationToken,
    progress: &mut Progress,
) -> Result<Story, StoryError> {
    let mut directory = TemporaryDirectory::create("outbox-demo").map_err(system("make a directory", String::new()))?;
    if options.keep {
        directory.keep();
        progress.say(&format!("documents and logs stay in {}", directory.path().display()));
    }
    progress.say("starting a PostgreSQL server of our own");
    let mut stage = tokio::select! {
        () = stop.cancelled() => Err(StoryError::Interrupted),
        stage = Stage::set(&options.program, directory.path(), options.keep) => stage,
    }?;
    let played = tokio::select! {
        () = stop.cancelled() => Err(StoryError::Interrupted),
        () = tokio::time::sleep(STORY_LIMIT) => Err(StoryError::TooLong { limit: STORY_LIMIT }),
        played = play(&mut stage, options.rows, progress) => played,
    };
    let played = played.map_err(|error| match error {
        StoryError::TooLong { limit } => {
            stage.did_not_hold(&format!("not every row had ended after {} s", limit.as_secs()))
        }
        other => other,
    });
    progress.done();
    stage.clear().await;
    played
}

/// The acts, in their order.
async fn play(stage: &mut Stage, rows: usize, progress: &mut Progress) -> Result<Story, StoryError> {
    stage.migrate().await?;
    progress.say("outbox migrate has made the table agent_outbox");
    let intents = plan::intents(rows, stage.receivers())?;
    for name in ["relay-1", "relay-2"] {
        stage.start_relay(name)?;
    }
    stage.relays_ready(progress).await?;
    progress.say("two relays are ready, as processes of their own");
    insert(stage, &intents, Wave::Quiet, progress).await?;
    let dying = intents.iter().filter(|intent| intent.kind.end != End::Succeeded).count() as u64;
    stage.rows_until(progress, |tally| tally.dead + tally.parked >= dying).await?;
    progress.say(&format!("{dying} rows are dead, as they had to be; none of them had an effect"));

    insert(stage, &intents, Wave::Kill, progress).await?;
    let kill = kill_one(stage, progress).await?;
    insert(stage, &intents, Wave::Aftermath, progress).await?;
    the_other_goes_on(stage, &intents, progress).await?;
    let again = format!("{}-again", kill.relay);
    progress.say("the other one goes on alone with rows that were inserted since");
    stage.start_relay(&again)?;
    stage.relays_ready(progress).await?;
    let (relay, lease) = (&kill.relay, LEASE.as_secs());
    progress.say(&format!("{relay} is back as {again}; what it had in hand waits out a lease of {lease} s"));

    let tally = stage.rows_until(progress, |tally| tally.ended() >= rows as u64).await?;
    let quiet = stage.ledger().wait_until(CONNECTIONS_END_LIMIT, |counts| counts.open == 0).await;
    if quiet.is_err() {
        return Err(stage.did_not_hold("the receiver still has open requests after the last row ended"));
    }
    progress.say("every row has ended; comparing the database with the receiver's ledger");
    let ends = rows::ends(&stage.pool).await.map_err(sql("read the rows"))?;
    let (requests, effects) = (stage.ledger().requests(), stage.ledger().effects());
    let audit = audit(&Evidence { intents: &intents, rows: &ends, requests: &requests, effects: &effects });
    let held = audit.problems.is_empty();
    let told = Told { intents: &intents, rows: &ends, requests: &requests, audit: &audit, tally: &tally, kill: &kill };
    Ok(Story { report: report(&told, progress.elapsed()), held })
}

async fn insert(stage: &Stage, intents: &[Intent], wave: Wave, progress: &Progress) -> Result<(), StoryError> {
    let due: Vec<&Intent> = intents.iter().filter(|intent| intent.wave() == wave).collect();
    rows::insert(&stage.pool, &due).await.map_err(sql("insert rows"))?;
    progress.say(&format!("the application has inserted {} rows", due.len()));
    Ok(())
}

/// Waits until rows that were inserted after the kill have their effects.
async fn the_other_goes_on(stage: &Stage, intents: &[Intent], progress: &mut Progress) -> Result<(), StoryError> {
    let after = intents.iter().filter(|intent| intent.wave() == Wave::Aftermath);
    let after: HashSet<&str> = after.map(|intent| intent.key.as_str()).collect();
    let ledger = stage.ledger().clone();
    let effects = ledger.wait_for(REQUESTS_LIMIT, |ledger| {
        let of_them = |key: Option<&str>| key.is_some_and(|key| after.contains(key));
        let found = ledger.select_effects(|effect| of_them(effect.key.as_deref()), WITHOUT_THE_KILLED);
        (found.len() == WITHOUT_THE_KILLED).then_some(())
    });
    match stage.showing(progress, effects).await? {
        Ok(()) => Ok(()),
        Err(_) => Err(stage.did_not_hold("the other relay did not go on alone")),
    }
}

/// Kills the first relay that has enough requests on the wire, while they are there.
async fn kill_one(stage: &mut Stage, progress: &mut Progress) -> Result<Kill, StoryError> {
    let ledger = stage.ledger().clone();
    let victim = stage.showing(progress, ledger.wait_for(REQUESTS_LIMIT, busiest)).await?;
    let Ok(relay) = victim else {
        return Err(stage.did_not_hold("no relay ever had three unanswered requests on the wire"));
    };
    let at = Timestamp::now();
    stage.kill_relay(&relay).await.map_err(system(format!("kill {relay}"), String::new()))?;
    let none_open = |ledger: &Ledger| {
        let open = ledger.select_requests(|one| one.answered == Answered::Open && sent_by(one, &relay), 1);
        open.is_empty().then_some(())
    };
    if ledger.wait_for(CONNECTIONS_END_LIMIT, none_open).await.is_err() {
        return Err(stage.did_not_hold("connections of the killed relay are still open"));
    }
    let kill = Kill { relay, at, on_the_wire: 0 };
    let on_the_wire = ledger.select_requests(|one| kill.cut_off(one), usize::MAX).len();
    if on_the_wire == 0 {
        return Err(stage.did_not_hold("the killed relay had no request on the wire"));
    }
    progress.say(&format!("SIGKILL for {} with {on_the_wire} requests on the wire", kill.relay));
    Ok(Kill { on_the_wire, ..kill })
}

/// A relay with enough requests that the receiver is in no hurry to answer.
fn busiest(ledger: &Ledger) -> Option<String> {
    let open = ledger.select_requests(
        |one| one.answered == Answered::Open && (one.path.contains("slow:") || one.path.contains("lost")),
        usize::MAX,
    );
    let names: HashSet<&str> = open.iter().filter_map(|one| one.header(RELAY_HEADER)).collect();
    let busy = names.into_iter().find(|name| open.iter().filter(|one| sent_by(one, name)).count() >= ON_THE_WIRE);
    busy.map(str::to_owned)
}

fn sent_by(request: &RequestRecord, relay: &str) -> bool {
    request.header(RELAY_HEADER) == Some(relay)
}

impl Kill {
    /// Whether this request was on the wire when its relay was killed.
    pub fn cut_off(&self, request: &RequestRecord) -> bool {
        request.answered == Answered::ClientLeft
            && sent_by(request, &self.relay)
            && request.ended_at.is_some_and(|ended| ended >= self.at)
    }
}
