//! What comes before a request: the row's own limits, the receiver's word on a doubt, the right to send, and a lease that
//! outlasts all of it.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::{Inner, attempt::Attempted, authority, database_time};
use crate::{
    domain::{
        authority::Authority,
        judge::{self, Observation, Told},
        row::{RowFacts, Status},
        settings::{History, LEASE_MARGIN, Policy, StatusQuery},
        transition::{self, Plan},
    },
    http::{RowRequest, Sender},
    store::{self, AttemptRecord, Claimed},
};

/// Where a claimed row stands when everything before its request is done.
pub enum Before {
    /// It is sent.
    Send,
    /// It is not; this is written.
    Settled(Box<Attempted>),
    /// The lease was lost: the row is somebody else's.
    LeaseLost,
}

/// Does everything that comes before the request.
pub async fn request(
    inner: &Inner,
    sender: &Sender,
    row: &Claimed,
    request: &RowRequest<'_>,
    claimed_at: Instant,
) -> Before {
    let policy = sender.policy();
    let plan = plan(policy, row, claimed_at);
    if let Plan::Settle(settlement) = plan {
        return settled(Attempted::unsent(settlement));
    }
    if let Some(end) = without_lease(inner, policy, row, policy.time_in_hand()).await {
        return end;
    }
    if let (Plan::Ask, Some(query)) = (plan, &policy.status_query)
        && let Some(settlement) = ask(inner, sender, row, request, query, claimed_at).await
    {
        return settled(settlement);
    }
    let authority = authority::of(inner, sender, row).await;
    let detail = match &authority {
        // What came before may have taken long.
        Authority::Allowed => {
            return without_lease(inner, policy, row, policy.total_timeout).await.unwrap_or(Before::Send);
        }
        Authority::Denied { why } if why.is_empty() => "not sent: revoked".to_owned(),
        Authority::Denied { why } => format!("not sent: revoked: {why}"),
        Authority::Unclear { detail } | Authority::Unasked { detail } => format!("not sent: {detail}"),
    };
    let random = rand::rng().random::<f64>();
    let settlement = transition::not_allowed(policy, &aged(row, claimed_at), &authority, random);
    settled(Attempted { last_error: Some(super::settler::bounded(&detail)), ..Attempted::unsent(settlement) })
}

/// What to do with the row, by what the claim and the time since tell.
pub fn plan(policy: &Policy, row: &Claimed, claimed_at: Instant) -> Plan {
    transition::before_send(policy, &aged(row, claimed_at))
}

fn settled(attempted: Attempted) -> Before {
    Before::Settled(Box::new(attempted))
}

/// A row that waited since its claim is older than its claim says.
fn aged(row: &Claimed, claimed_at: Instant) -> RowFacts {
    let waited = claimed_at.elapsed();
    RowFacts {
        dispatch_age: row.facts.dispatch_age + waited,
        since_last_send: row.facts.since_last_send + waited,
        ..row.facts.clone()
    }
}

/// Asks the receiver what became of the row. `None`: it does not know the row, which may be sent.
async fn ask(
    inner: &Inner,
    sender: &Sender,
    row: &Claimed,
    request: &RowRequest<'_>,
    query: &StatusQuery,
    claimed_at: Instant,
) -> Option<Attempted> {
    let policy = sender.policy();
    // An answer is believed as of when it was asked for.
    let facts = aged(row, claimed_at);
    let started = Instant::now();
    let seen = sender.ask(query, request, || database_time(row.claimed_at_ms, claimed_at, Instant::now())).await;
    let told = judge::told(query, &seen);
    inner.relay.metrics.queried(told.as_str());
    let random = rand::rng().random::<f64>();
    let Plan::Settle(settlement) = transition::after_ask(policy, query, &facts, &told, random) else { return None };
    let delivered = settlement.status == Status::Succeeded;
    Some(Attempted {
        last_error: (!delivered).then(|| super::settler::bounded(&describe(&told, &seen))),
        delivered,
        record: match policy.history {
            History::None => None,
            History::Failures if !delivered => None,
            // The attempt that it settles stands there as uncertain.
            History::Failures | History::All => Some(AttemptRecord {
                outcome: "status_query",
                attempt: row.facts.attempts,
                duration: started.elapsed(),
            }),
        },
        ..Attempted::unsent(settlement)
    })
}

fn describe(told: &Told, seen: &Observation) -> String {
    let told = match told {
        Told::Done { .. } => "done",
        Told::Unknown => "it does not know the key",
        Told::Pending => "it still works on it",
        Told::Unclear => "no rule of statusQuery fits",
    };
    format!("asked the receiver: {told}; {}", super::attempt::describe(seen))
}

/// Makes sure that the lease lasts for `needed` from now on, renewing it where it does not. What ends the row's turn where
/// that cannot be had.
async fn without_lease(inner: &Inner, policy: &Policy, row: &Claimed, needed: Duration) -> Option<Before> {
    match lease_covers(inner, row, needed + LEASE_MARGIN / 2).await {
        Some(true) => None,
        Some(false) => {
            let settlement = transition::release(policy, &row.facts);
            Some(settled(Attempted::unsent(settlement)))
        }
        None => Some(Before::LeaseLost),
    }
}

/// Whether the lease outlasts `needed`. `None` when it was lost.
async fn lease_covers(inner: &Inner, row: &Claimed, needed: Duration) -> Option<bool> {
    let relay = &inner.relay;
    let until = inner.hand.until(row.id, row.token)?;
    if Instant::now() + needed <= until {
        return Some(true);
    }
    let asked = Instant::now();
    match store::renew(&relay.db, &relay.table, &[(row.id, row.token)], relay.settings.lease).await {
        Ok(renewed) if renewed.contains(&row.id) => {
            inner.hand.renewed(row.id, row.token, asked + relay.settings.lease);
            Some(Instant::now() + needed <= asked + relay.settings.lease)
        }
        Ok(_) => None,
        // Not known to be ours for long enough: give it back rather than risk a second worker beside us.
        Err(_) => Some(false),
    }
}
