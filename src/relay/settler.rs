//! The settler: writes results in batches, and writes again while the database is away and the lease lasts. A request is
//! never sent again because its record failed.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::Inner;
use crate::{
    domain::{hold::Signal, row::Status},
    store::{self, SettleRow, Signals, StoreError},
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
    Settle(Box<Settle>),
    /// Nothing follows.
    End,
}

/// A row's end of claim, and what is counted and concluded with it.
pub struct Settle {
    /// What to write.
    pub row: SettleRow,
    /// From insert to success, if it succeeded.
    pub delivered_after: Option<Duration>,
    /// What the attempt said of its destination, and under which policy.
    pub signal: Option<((usize, String), Signal)>,
}

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
                Result::Settle(settle) => batch.push(*settle),
                Result::End => ended = true,
            }
        }
        write(&inner, batch, &mut log).await;
    }
}

async fn write(inner: &Inner, mut batch: Vec<Settle>, log: &mut LogLimit) {
    while !batch.is_empty() {
        let rows: Vec<SettleRow> = batch.iter().map(|settle| settle.row.clone()).collect();
        let seen = signals(inner, &batch);
        let troubled: Vec<_> = seen.keys().cloned().collect();
        let signals = by_policy(inner, seen);
        match store::settle(&inner.relay.db, &inner.relay.table, &inner.relay.worker, &rows, &signals).await {
            Ok(settled) => {
                log.reset();
                inner.troubled().extend(troubled);
                for Settle { row, delivered_after, .. } in batch.drain(..) {
                    if settled.contains(&row.id) { count(inner, &row, delivered_after) } else { lost(inner, &row) }
                }
                wake_next(inner, settled).await;
            }
            Err(error) if error.is_transient() => {
                warn(log, &error);
                batch.retain(|settle| keep(inner, &settle.row));
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
                batch.retain_mut(|settle| {
                    if less(settle) { keep(inner, &settle.row) } else { refused(inner, &settle.row, &error) }
                });
            }
        }
    }
}

/// What is worth a write: every failure, and a success only where something is recorded that it changes.
fn signals(inner: &Inner, batch: &[Settle]) -> BTreeMap<(usize, String), Vec<Signal>> {
    let mut seen: BTreeMap<(usize, String), Vec<Signal>> = BTreeMap::new();
    for (destination, signal) in batch.iter().filter_map(|settle| settle.signal.as_ref()) {
        seen.entry(destination.clone()).or_default().push(*signal);
    }
    let troubled = inner.troubled();
    seen.retain(|name, signals| troubled.contains(name) || signals.iter().any(|signal| *signal != Signal::Works));
    drop(troubled);
    seen
}

fn by_policy(inner: &Inner, seen: BTreeMap<(usize, String), Vec<Signal>>) -> Vec<Signals<'_>> {
    let mut signals: BTreeMap<usize, Signals<'_>> = BTreeMap::new();
    for ((policy, destination), seen) in seen {
        let named = inner.relay.settings.policies.get(policy);
        let of_policy = signals.entry(policy).or_insert_with(|| Signals {
            scope: &named.scope,
            policy: named.policy.hold,
            seen: BTreeMap::new(),
        });
        of_policy.seen.insert(destination, seen);
    }
    signals.into_values().collect()
}

/// Where rows wait for each other, the next ones are due now.
async fn wake_next(inner: &Inner, settled: HashSet<i64>) {
    let relay = &inner.relay;
    if !relay.settings.policies.any_ordered() || settled.is_empty() {
        return;
    }
    let settled: Vec<i64> = settled.into_iter().collect();
    match store::wake(&relay.db, &relay.table, &settled).await {
        Ok(true) => inner.woken.notify_one(),
        Ok(false) => {}
        // They are looked at again in their time.
        Err(error) => tracing::debug!(%error, "cannot make the next rows due"),
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

/// Takes from a refused write what it can do without: first what not every database encoding holds, then the texts, at last
/// the history's entry and what is known of the destination. What became of the row counts more than all of them. Returns
/// false when nothing is left to take.
fn less(settle: &mut Settle) -> bool {
    let Settle { row, signal, .. } = settle;
    let texts = [&mut row.last_error, &mut row.settlement.downstream_id];
    if texts.iter().any(|text| text.as_ref().is_some_and(|text| !text.is_ascii())) {
        texts.into_iter().flatten().for_each(|text| text.retain(|c| c.is_ascii()));
        return true;
    }
    let had = texts.iter().any(|text| text.is_some());
    for text in texts {
        *text = None;
    }
    had || row.record.take().is_some() | signal.take().is_some()
}

/// The database takes this row's end in no form. The row is let go, so that the slot is free and the row is not held for as
/// long as this process lives: after its lease another attempt asks or sends again, under the same key.
fn refused(inner: &Inner, row: &SettleRow, error: &StoreError) -> bool {
    inner.relay.metrics.lease_lost.inc();
    inner.hand.let_go(row.id, row.token);
    let status = row.settlement.status.as_str();
    tracing::error!(id = row.id, status, %error, "the database refuses the row's result, which is dropped: see to its constraints and triggers");
    false
}

/// A text without control characters (PostgreSQL refuses NUL), cut to what `last_error` holds.
pub fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_ERROR_CHARS).collect()
}
