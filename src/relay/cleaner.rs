//! The cleaner: removes what is past its retention, in small batches with long pauses, so that deliveries never notice. One
//! pod of a relay cleans at a time; the others look again later.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rand::RngExt;
use tokio_util::sync::CancellationToken;

use super::Inner;
use crate::{
    domain::settings::{OnDead, Removal},
    store::{self, Sweep},
    telemetry::log_limit::LogLimit,
};

/// Pause between two sweeps; up to half as much again is added, so that pods do not ask all at once.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Pause before the first sweep: a pod that starts has rows to send.
const FIRST_SWEEP_AFTER: Duration = Duration::from_secs(2);
/// Pause after a batch, as a multiple of the time that it took: a fifth of one connection's time while nothing is sent, a
/// twentieth while requests are in flight.
const PAUSE_IDLE: u32 = 4;
const PAUSE_BUSY: u32 = 19;
/// Shortest and longest pause after a batch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// While a batch fails: one line at once, then one per this time.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// Cleans until the relay is told to stop.
pub async fn run(inner: Arc<Inner>) {
    announce(&inner);
    let mut log = LogLimit::new(LOG_EVERY);
    let mut every = FIRST_SWEEP_AFTER;
    loop {
        let pause = every.mul_f64(1.0 + rand::rng().random::<f64>() / 2.0);
        if rest(&inner.stop, pause).await {
            return;
        }
        every = SWEEP_EVERY;
        if let Err(error) = sweep(&inner).await
            && let Some(held_back) = log.pass(Instant::now())
        {
            tracing::warn!(%error, held_back, "cannot remove what is past its retention; trying again");
        }
    }
}

/// Says at the start what deleting gives up.
fn announce(inner: &Inner) {
    for (removal, age) in inner.relay.settings.retention.removals() {
        let age = age.as_secs();
        match removal {
            Removal::Succeeded | Removal::Dead => tracing::warn!(
                what = removal.as_str(),
                age_seconds = age,
                "retention deletes rows, and with each its unique key: the same intent inserted again would be performed again"
            ),
            Removal::Payload => {
                tracing::info!(age_seconds = age, "retention replaces the payloads of succeeded rows by null");
            }
            Removal::History => {}
        }
    }
}

async fn sweep(inner: &Inner) -> Result<(), store::StoreError> {
    let relay = &inner.relay;
    for (removal, age) in relay.settings.retention.removals() {
        let sweep = Sweep {
            relay: &relay.settings.name,
            worker: &relay.worker,
            tenants: &inner.tenants,
            removal,
            age,
            dead_blocks: relay.settings.policies.iter().any(|named| named.policy.ordering == Some(OnDead::Block)),
        };
        let mut cursor = None;
        loop {
            let begun = Instant::now();
            let Some(removed) = store::remove(&relay.db, &relay.table, &sweep, cursor).await? else { return Ok(()) };
            relay.metrics.removed(removal, removed.rows);
            let Some(next) = removed.next else { break };
            cursor = Some(next);
            if rest(&inner.stop, pause(begun.elapsed(), inner.hand.len() > 0)).await {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// How long to leave the database alone after a batch that took so long.
fn pause(took: Duration, busy: bool) -> Duration {
    took.saturating_mul(if busy { PAUSE_BUSY } else { PAUSE_IDLE }).clamp(PAUSES.0, PAUSES.1)
}

async fn rest(stop: &CancellationToken, time: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => true,
        () = tokio::time::sleep(time) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_batch_and_with_the_load() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(20), false), ms(80));
        assert_eq!(pause(ms(20), true), ms(380));
        assert_eq!(pause(ms(0), true), PAUSES.0);
        assert_eq!(pause(ms(4000), true), PAUSES.1);
    }
}
