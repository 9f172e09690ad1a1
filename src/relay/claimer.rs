//! The claimer: one per process. It asks for as many rows as there are free slots, and rests when there are none.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::oneshot;

use super::{Inner, attempt, hand::Held};
use crate::{
    domain::{settings::NamedPolicy, share::most_in_hand},
    store::{self, Again, Caps, ClaimPolicy, ClaimRequest, Claimed, Position, StoreError},
    telemetry::log_limit::LogLimit,
};

/// While the database is away: one line at once, then one per this time.
const LOG_EVERY: Duration = Duration::from_secs(20);
/// First and longest pause after a failed claim. Jitter keeps pods apart.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pause where another pod was looking at the same rows: some claims long.
const SOON: Duration = Duration::from_millis(20);

/// Claims until the relay is told to stop.
pub async fn run(inner: &Arc<Inner>) {
    let mut log = LogLimit::new(LOG_EVERY);
    let mut pauses = pauses();
    let poll_interval = inner.relay.settings.poll_interval;
    let mut position = Position::new(poll_interval);
    // Whether payloads come with the claim: not with the one after a claim that a payload may have made fail.
    let mut payloads = true;
    loop {
        let Some(limit) = room(inner).await else { return };
        if inner.refused.load(Ordering::Relaxed) {
            if rest(inner, poll_interval).await {
                return;
            }
            continue;
        }
        match claim(inner, limit, payloads, &mut position).await {
            Ok((claimed, again)) => {
                payloads = true;
                if log.reset() {
                    tracing::info!("the database answers again");
                }
                pauses = self::pauses();
                inner.ready.send_if_modified(|ready| std::mem::replace(ready, Ok(())).is_err());
                // With a batch larger than the free slots, the next claim waits until the last of these rows has begun or
                // gone back.
                for row in claimed {
                    let _ = row.await;
                }
                let pause = match again {
                    Again::AtOnce => continue,
                    Again::Soon => SOON.min(poll_interval),
                    Again::Later => poll_interval,
                };
                if rest(inner, pause).await {
                    return;
                }
            }
            Err(error) => {
                payloads = !error.may_be_a_rows();
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
        () = inner.woken.notified() => false,
    }
}

/// Claims, and starts one task a row. What is returned tells of each row that it waits for a slot no more, and when to claim
/// again.
async fn claim(
    inner: &Arc<Inner>,
    limit: usize,
    payloads: bool,
    position: &mut Position,
) -> Result<(Vec<oneshot::Receiver<()>>, Again), StoreError> {
    let relay = &inner.relay;
    let policies: Vec<ClaimPolicy<'_>> = relay
        .settings
        .policies
        .iter()
        .map(|NamedPolicy { scope, policy }| ClaimPolicy {
            scope,
            caps: Caps { max_in_flight: policy.max_in_flight, rate_per_second: policy.rate_per_second },
            ordering: policy.ordering,
        })
        .collect();
    let request = ClaimRequest {
        tenants: &inner.tenants,
        limit,
        most_in_hand: most_in_hand(relay.settings.concurrency, limit),
        in_hand: &inner.hand.by_destination(),
        policies: &policies,
        routing: &relay.settings.routing,
        worker: &relay.worker,
        lease: relay.settings.lease,
        small_payload: payloads.then(|| inner.memory.small_payload()),
    };
    let claim = store::claim(&relay.db, &relay.table, &request, position).await?;
    *inner.troubled() = claim.troubled;
    let now = Instant::now();
    let begin = |row: Claimed| {
        let destination = row.destination.as_deref().map(Arc::from);
        inner.hand.take(row.id, Held { token: row.token, until: row.held_until, destination });
        let (begun, wait) = oneshot::channel();
        inner.tasks.spawn(attempt::run(Arc::clone(inner), row, now, begun));
        wait
    };
    Ok((claim.rows.into_iter().map(begin).collect(), claim.again))
}
