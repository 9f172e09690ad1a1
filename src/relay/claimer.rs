//! The claimer: one per process. It asks for as many rows as there are free slots, and rests when there are none.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::oneshot;

use super::{Inner, attempt, hand::Held};
use crate::{
    store::{self, ClaimRequest, Claimed, StoreError},
    telemetry::log_limit::LogLimit,
};

/// While the database is away: one line at once, then one per this time.
const LOG_EVERY: Duration = Duration::from_secs(20);
/// First and longest pause after a failed claim. Jitter keeps pods apart.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Claims until the relay is told to stop.
pub async fn run(inner: &Arc<Inner>) {
    let mut log = LogLimit::new(LOG_EVERY);
    let mut pauses = pauses();
    loop {
        let Some(limit) = room(inner).await else { return };
        match claim(inner, limit).await {
            Ok(claimed) => {
                if log.reset() {
                    tracing::info!("the database answers again");
                }
                pauses = self::pauses();
                inner.ready.send_if_modified(|ready| std::mem::replace(ready, Ok(())).is_err());
                let found = claimed.len();
                // With a batch larger than the free slots, the next claim waits until the last of these rows has begun or
                // gone back.
                for row in claimed {
                    let _ = row.await;
                }
                if found < limit && rest(inner, inner.relay.settings.poll_interval).await {
                    return;
                }
            }
            Err(error) => {
                if let Some(held_back) = log.pass(Instant::now()) {
                    tracing::warn!(%error, held_back, "cannot claim rows; trying again");
                }
                let _ = inner.ready.send_replace(Err(format!("cannot claim rows: {error}")));
                let pause = pauses.next().unwrap_or(PAUSES.1);
                if rest(inner, pause).await {
                    return;
                }
            }
        }
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(PAUSES.0)
        .with_max_delay(PAUSES.1)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Waits until a slot is free and no claimed row waits for one; then says how many rows to ask for. `None`: stop.
async fn room(inner: &Inner) -> Option<usize> {
    let free = tokio::select! {
        () = inner.stop.cancelled() => return None,
        // Taken and given back at once: the slot is the attempt's, which takes it when it begins.
        permit = inner.slots.acquire() => { drop(permit); inner.slots.available_permits().max(1) }
    };
    let settings = &inner.relay.settings;
    let busy = settings.concurrency.saturating_sub(free);
    inner.relay.metrics.slots(busy, free);
    Some(settings.claim_batch.unwrap_or(free))
}

async fn rest(inner: &Inner, time: Duration) -> bool {
    tokio::select! {
        () = inner.stop.cancelled() => true,
        () = tokio::time::sleep(time) => false,
    }
}

/// Claims, and starts one task a row. What is returned tells of each row that it waits for a slot no more.
async fn claim(inner: &Arc<Inner>, limit: usize) -> Result<Vec<oneshot::Receiver<()>>, StoreError> {
    let relay = &inner.relay;
    let request = ClaimRequest { tenants: &inner.tenants, limit, worker: &relay.worker, lease: relay.settings.lease };
    let rows = store::claim(&relay.db, &relay.table, &request).await?;
    let now = Instant::now();
    let begin = |row: Claimed| {
        inner.hand.take(row.id, Held { token: row.token, until: row.held_until });
        let (begun, wait) = oneshot::channel();
        inner.tasks.spawn(attempt::run(Arc::clone(inner), row, now, begun));
        wait
    };
    Ok(rows.into_iter().map(begin).collect())
}
