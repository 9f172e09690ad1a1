//! The settler: writes results in batches, and writes again while the database is away and the lease lasts. A request is
//! never sent again because its record failed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::Inner;
use crate::{
    domain::row::Status,
    store::{self, SettleRow, StoreError},
    telemetry::log_limit::LogLimit,
};

/// Rows of one statement at most.
const MAX_BATCH: usize = 500;
/// Pause before a failed write is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// While the database is away: one line at once, then one per this time.
const LOG_EVERY: Duration = Duration::from_secs(20);
/// Longest `last_error`, in characters.
const MAX_ERROR_CHARS: usize = 500;

/// What attempts hand over.
pub enum Result {
    /// A row's end of claim.
    Settle {
        /// What to write.
        row: Box<SettleRow>,
        /// From insert to success, if it succeeded.
        delivered_after: Option<Duration>,
    },
    /// Nothing follows.
    End,
}

type Settle = (SettleRow, Option<Duration>);

/// Writes results until the end.
pub async fn run(inner: Arc<Inner>, mut incoming: mpsc::Receiver<Result>) {
    let mut log = LogLimit::new(LOG_EVERY);
    let mut waiting = Vec::with_capacity(MAX_BATCH);
    let mut ended = false;
    while !ended {
        if incoming.recv_many(&mut waiting, MAX_BATCH).await == 0 {
            return;
        }
        let mut batch: Vec<Settle> = Vec::with_capacity(waiting.len());
        for result in waiting.drain(..) {
            match result {
                Result::Settle { row, delivered_after } => batch.push((*row, delivered_after)),
                Result::End => ended = true,
            }
        }
        write(&inner, batch, &mut log).await;
    }
}

async fn write(inner: &Inner, mut batch: Vec<Settle>, log: &mut LogLimit) {
    while !batch.is_empty() {
        let rows: Vec<SettleRow> = batch.iter().map(|(row, _)| row.clone()).collect();
        match store::settle(&inner.relay.db, &inner.relay.table, &rows).await {
            Ok(settled) => {
                log.reset();
                for (row, delivered_after) in batch.drain(..) {
                    if settled.contains(&row.id) { count(inner, &row, delivered_after) } else { lost(inner, &row) }
                }
            }
            Err(error) if error.is_transient() => {
                warn(log, &error);
                batch.retain(|(row, _)| keep(inner, row));
                tokio::time::sleep(PAUSE).await;
            }
            // The statement itself is refused, so one row's text is the likely cause: each alone, and the culprit without it.
            Err(error) if batch.len() > 1 => {
                warn(log, &error);
                for one in std::mem::take(&mut batch) {
                    Box::pin(write(inner, vec![one], log)).await;
                }
            }
            Err(error) => {
                warn(log, &error);
                for (row, _) in &mut batch {
                    plain(row);
                }
                batch.retain(|(row, _)| keep(inner, row));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the row is still ours to write. Past its lease, somebody else claims it and decides anew.
fn keep(inner: &Inner, row: &SettleRow) -> bool {
    let ours = inner.hand.until(row.id, row.token).is_some_and(|until| Instant::now() < until);
    if !ours {
        lost(inner, row);
    }
    ours
}

fn lost(inner: &Inner, row: &SettleRow) {
    inner.relay.metrics.lease_lost.inc();
    inner.hand.let_go(row.id, row.token);
    tracing::warn!(id = row.id, "the lease was lost before the result was written; the result is dropped");
}

fn count(inner: &Inner, row: &SettleRow, delivered_after: Option<Duration>) {
    let metrics = &inner.relay.metrics;
    inner.hand.let_go(row.id, row.token);
    metrics.complete(1);
    if let Some(lag) = delivered_after {
        metrics.delivery_lag.observe(lag.as_secs_f64());
    }
    if row.settlement.status == Status::Dead {
        let reason = row.settlement.reason.as_ref().map_or("unknown", |reason| reason.as_str());
        metrics.dead(reason);
        tracing::info!(id = row.id, reason, last_error = row.last_error.as_deref(), "a row is dead");
    }
}

fn warn(log: &mut LogLimit, error: &StoreError) {
    if let Some(held_back) = log.pass(Instant::now()) {
        tracing::warn!(%error, held_back, "cannot write results; trying again while their leases last");
    }
}

/// Texts that any database encoding can hold.
fn plain(row: &mut SettleRow) {
    let ascii = |text: &String| text.chars().filter(char::is_ascii).collect::<String>();
    row.last_error = row.last_error.as_ref().map(ascii);
    row.settlement.downstream_id = row.settlement.downstream_id.as_ref().map(ascii);
}

/// A text without control characters (PostgreSQL refuses NUL), cut to what `last_error` holds.
pub fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_ERROR_CHARS).collect()
}
