//! One claimed row, from its slot to its result.

use std::{sync::Arc, time::Instant};

use rand::RngExt;
use tokio::sync::oneshot;

use super::{
    Inner,
    before::{self, Before},
    database_time,
    memory::{self, Turn},
    settler,
};
use crate::{
    domain::{
        hold::{self, Signal},
        judge::{self, Observation, Verdict},
        settings::History,
        transition::{self, Plan, Settlement},
    },
    http::{Body, RowRequest, Sender},
    store::{AttemptRecord, Claimed, SettleRow},
};

/// Waits for a slot, makes the attempt, and hands its result to the settler. `begun` tells the claimer that the row waits
/// no more.
pub async fn run(inner: Arc<Inner>, mut row: Claimed, claimed_at: Instant, begun: oneshot::Sender<()>) {
    let policy = inner.relay.settings.routing.policy_of(&row.operation, &row.endpoint);
    let sender = inner.relay.senders.get(policy);
    let Some(result) = begin(&inner, sender, &mut row, claimed_at, begun).await else {
        // The lease was lost before the first byte: the row is somebody else's.
        inner.relay.metrics.lease_lost.inc();
        inner.hand.let_go(row.id, row.token);
        return;
    };
    let settle = SettleRow {
        id: row.id,
        token: row.token,
        settlement: result.settlement,
        last_error: result.last_error,
        http_status: result.http_status,
        record: result.record,
    };
    let settle = settler::Settle {
        row: settle,
        delivered_after: result.delivered.then(|| row.age + claimed_at.elapsed()),
        signal: row.destination.zip(result.signal).map(|(destination, signal)| ((policy, destination), signal)),
    };
    let _ = inner.results.send(settler::Result::Settle(Box::new(settle))).await;
}

/// Gets what the attempt needs, payload and slot, and makes it. `None`: the lease was lost before the first byte.
async fn begin(
    inner: &Inner,
    sender: &Sender,
    row: &mut Claimed,
    claimed_at: Instant,
    begun: oneshot::Sender<()>,
) -> Option<Attempted> {
    let policy = sender.policy();
    let mut begun = Some(begun);
    let body = match row.payload.take() {
        Some(payload) => memory::small_body(payload, row.payload_hash.as_deref()),
        // Not loaded for nothing.
        None => match before::plan(policy, row, claimed_at) {
            Plan::Settle(settlement) => return Some(Attempted::unsent(settlement)),
            Plan::Ask | Plan::Send => {
                match inner.memory.body(inner, policy.request.max_body_bytes as u64, row, &mut begun).await {
                    Turn::Come(body) => body,
                    Turn::PutOff(delay) => {
                        return Some(Attempted::unsent(transition::put_off(policy, &row.facts, delay)));
                    }
                    Turn::Lost => return None,
                }
            }
        },
    };
    let slot = tokio::select! {
        biased;
        () = inner.stop.cancelled() => None,
        slot = Arc::clone(&inner.slots).acquire_owned() => slot.ok(),
    };
    drop(begun);
    match slot {
        Some(_slot) => attempt(inner, sender, row, body, claimed_at).await,
        None => Some(Attempted::unsent(transition::release(policy, &row.facts))),
    }
}

/// What becomes of a claimed row, and what is counted with it.
pub struct Attempted {
    /// What is written to the row.
    pub settlement: Settlement,
    /// For people.
    pub last_error: Option<String>,
    /// The answer's status.
    pub http_status: Option<u16>,
    /// The effect took place.
    pub delivered: bool,
    /// What it says of its destination.
    pub signal: Option<Signal>,
    /// For the history.
    pub record: Option<AttemptRecord>,
}

impl Attempted {
    /// Nothing was sent.
    pub fn unsent(settlement: Settlement) -> Self {
        let last_error = settlement.reason.as_ref().map(|reason| format!("not sent: {reason}"));
        Self { settlement, last_error, http_status: None, delivered: false, signal: None, record: None }
    }
}

async fn attempt(inner: &Inner, sender: &Sender, row: &Claimed, body: Body, claimed_at: Instant) -> Option<Attempted> {
    let relay = &inner.relay;
    let policy = sender.policy();
    let request = RowRequest {
        tenant: &row.tenant,
        operation: &row.operation,
        key: &row.key,
        endpoint: &row.endpoint,
        body,
        headers: row.headers.as_deref(),
        attempt: row.facts.attempts,
    };
    match before::request(inner, sender, row, &request, claimed_at).await {
        Before::Send => {}
        Before::Settled(settled) => return Some(*settled),
        Before::LeaseLost => return None,
    }
    let started = Instant::now();
    let sent = sender.send(&request, || database_time(row.claimed_at_ms, claimed_at, Instant::now())).await;
    // The payload's memory is free for the next one, whatever the settle waits for.
    drop(request);
    let busy = started.elapsed();
    let mut facts = row.facts.clone();
    facts.retry_age += claimed_at.elapsed();
    facts.dispatch_age += claimed_at.elapsed();
    let verdict = judge::judge(policy, &facts, &sent.seen);
    let random = rand::rng().random::<f64>();
    let settlement = transition::after_attempt(policy, &facts, &sent.seen, &verdict, random);
    inner.work.attempt(busy);
    relay.metrics.dispatch_duration.observe(busy.as_secs_f64());
    relay.metrics.dispatched(sent.destination.as_deref(), outcome(&verdict));
    match &verdict {
        Verdict::Wait { .. } => _ = relay.metrics.waits.inc(),
        Verdict::Uncertain { .. } => _ = relay.metrics.uncertain.inc(),
        _ => {}
    }
    let delivered = matches!(verdict, Verdict::Succeeded { .. });
    Some(Attempted {
        settlement,
        last_error: (!delivered).then(|| describe(&sent.seen)),
        http_status: match &sent.seen {
            Observation::Answer(answer) => Some(answer.status),
            _ => None,
        },
        delivered,
        signal: hold::signal(&sent.seen, &verdict),
        record: match policy.history {
            History::None => None,
            History::Failures if delivered => None,
            History::Failures | History::All => {
                Some(AttemptRecord { outcome: outcome(&verdict), attempt: row.facts.attempts, duration: busy })
            }
        },
    })
}

fn outcome(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Succeeded { .. } => "succeeded",
        Verdict::Retry { .. } => "retry",
        Verdict::Wait { .. } => "wait",
        Verdict::Uncertain { .. } => "uncertain",
        Verdict::Dead { .. } => "dead",
    }
}

/// What `last_error` says: never a URL's path or query, a header's value or a body.
pub fn describe(seen: &Observation) -> String {
    match seen {
        Observation::Answer(answer) => {
            let reason = http::StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason());
            let mut text = format!("answered {}", answer.status);
            if let Some(reason) = reason {
                text.push(' ');
                text.push_str(reason);
            }
            if let Some(host) = answer.location_host.as_ref().filter(|_| (300..400).contains(&answer.status)) {
                text.push_str(" to host ");
                text.push_str(host);
            }
            text
        }
        Observation::NotExecuted { detail, .. }
        | Observation::Unknown { detail, .. }
        | Observation::NotBuilt { detail, .. } => settler::bounded(detail),
    }
}
