//! The keeper: renews the leases of rows in hand, and reports what this worker does.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Inner;
use crate::store::{self, Heartbeat, Registered};

/// How often the worker's report is written.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Runs until `stop`, which comes after the last result was written. Leases do not wait for reports.
pub async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let leases = async {
        // Three chances before a lease ends.
        let mut renewals = every(inner.relay.settings.lease / 3);
        while next(&mut renewals, &stop).await {
            renew(&inner).await;
        }
    };
    let reports = async {
        let mut reports = every(REPORT_EVERY);
        while next(&mut reports, &stop).await {
            report(&inner).await;
            register(&inner).await;
        }
    };
    tokio::join!(leases, reports);
}

fn every(period: Duration) -> Interval {
    let mut timer = tokio::time::interval(period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

async fn next(timer: &mut Interval, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        _ = timer.tick() => true,
    }
}

async fn renew(inner: &Inner) {
    let (relay, asked) = (&inner.relay, Instant::now());
    let rows = inner.hand.ending_before(asked + relay.settings.lease / 3 * 2);
    if rows.is_empty() {
        return;
    }
    match store::renew(&relay.db, &relay.table, &rows, relay.settings.lease).await {
        Ok(renewed) => {
            for (id, token) in rows {
                if renewed.contains(&id) {
                    inner.hand.renewed(id, token, asked + relay.settings.lease);
                } else {
                    // Settled meanwhile, or lost: an attempt that has not begun finds it gone and does not begin.
                    inner.hand.let_go(id, token);
                }
            }
        }
        Err(error) => tracing::debug!(%error, "cannot renew leases; trying again"),
    }
}

/// Renews the registration. It can be lost only while the database is not reached for longer than it lasts.
async fn register(inner: &Inner) {
    let relay = &inner.relay;
    match store::register(&relay.db, &relay.table, &relay.registration(&inner.tenants)).await {
        Ok(Registered::Alone) => inner.refused.store(false, Ordering::Relaxed),
        Ok(Registered::Overlaps { relay: other }) => {
            tracing::error!(%other, "another relay serves rows of our tenants; nothing is claimed while it does");
            inner.refused.store(true, Ordering::Relaxed);
        }
        Err(error) => tracing::debug!(%error, "cannot renew the registration; trying again"),
    }
}

async fn report(inner: &Inner) {
    let relay = &inner.relay;
    let report = Heartbeat {
        worker: &relay.worker,
        slots: relay.settings.concurrency,
        in_hand: inner.hand.len(),
        completed: relay.metrics.completed(),
        drain_per_second: inner.work.take_drain_per_second(relay.settings.concurrency),
    };
    if let Err(error) = store::beat(&relay.db, &relay.table, &report).await {
        tracing::debug!(%error, "cannot write the worker's report; trying again");
    }
}
