//! How many rows each destination may get under each policy: caps, holds, probes, and the shares of a claim.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::{Postgres, Transaction};

use super::{
    super::{StoreError, TableName, destinations, routes, table::literal},
    ClaimRequest, Open,
    visit::Visited,
};
use crate::domain::share::{Candidate, share};

type Tx = Transaction<'static, Postgres>;

/// Probes that this claim has taken, by policy.
pub(super) type Probes = BTreeMap<usize, Vec<String>>;

/// The policies' numbers in the order of their scopes, which is the order of every lock on destinations.
fn in_order(request: &ClaimRequest<'_>) -> Vec<usize> {
    let mut policies: Vec<usize> = (0..request.policies.len()).collect();
    policies.sort_by_key(|policy| request.policies.get(*policy).map(|policy| policy.scope));
    policies
}

/// Bounds each by the caps of its policy, whose rows stay locked until the transaction ends.
pub(super) async fn by_caps(
    tx: &mut Tx,
    table: &TableName,
    request: &ClaimRequest<'_>,
    open: &mut [Open],
) -> Result<(), StoreError> {
    for number in in_order(request) {
        let Some(policy) = request.policies.get(number).filter(|policy| policy.caps.any()) else { continue };
        let names: BTreeSet<String> =
            open.iter().filter(|open| open.policy == number).filter_map(|open| open.destination.clone()).collect();
        if names.is_empty() {
            continue;
        }
        let mut counted = String::new();
        if !request.tenants.is_empty() {
            let tenants: Vec<String> = request.tenants.iter().map(|tenant| literal(&tenant.to_string())).collect();
            counted = format!(" AND t.tenant_id IN ({})", tenants.join(", "));
        }
        if let Some(case) = routes::policy(table, request.routing) {
            counted = format!("{counted} AND {case} = {number}");
        }
        let names: Vec<String> = names.into_iter().collect();
        let room = destinations::room(tx, table, policy.scope, &names, policy.caps, &counted).await?;
        for open in open.iter_mut().filter(|open| open.policy == number) {
            let Some(destination) = &open.destination else { continue };
            open.limit = Some(room.get(destination).copied().unwrap_or(0));
        }
    }
    Ok(())
}

/// Bounds each by what is recorded of its destination, and takes the probes of holds that are over.
pub(super) async fn by_holds(
    tx: &mut Tx,
    table: &TableName,
    request: &ClaimRequest<'_>,
    due: &[&Visited],
    open: &mut [Open],
) -> Result<Probes, StoreError> {
    let mut probes = Probes::new();
    for number in in_order(request) {
        let Some(policy) = request.policies.get(number) else { continue };
        let states: HashMap<&str, _> = due
            .iter()
            .filter_map(|visited| Some((visited.destination.as_deref()?, visited.states.get(number).copied()?)))
            .collect();
        let state = |open: &Open| open.destination.as_deref().and_then(|name| states.get(name).copied());
        let over: Vec<String> = open
            .iter()
            .filter(|open| open.policy == number && open.limit != Some(0))
            .filter(|open| state(open).and_then(|state| state.hold).is_some_and(|hold| hold.left.is_zero()))
            .filter_map(|open| open.destination.clone())
            .collect();
        let taken = if over.is_empty() {
            Vec::new()
        } else {
            destinations::take_probes(tx, table, policy.scope, &over, request.lease).await?
        };
        for open in open.iter_mut().filter(|open| open.policy == number) {
            let (Some(state), Some(destination)) = (state(open), &open.destination) else { continue };
            let limit = match state.hold {
                Some(_) => Some(usize::from(taken.contains(destination))),
                None => state.allowance.map(|allowance| allowance as usize),
            };
            open.limit = open.limit.into_iter().chain(limit).min();
        }
        probes.insert(number, taken);
    }
    Ok(probes)
}

/// Shares the claim's room among the destinations. Rows without one come on top: they are few, and go.
pub(super) fn shares(request: &ClaimRequest<'_>, open: &[Open]) -> Vec<(Option<String>, usize)> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for open in open {
        let Some(destination) = &open.destination else { continue };
        match candidates.iter_mut().find(|candidate| candidate.destination == *destination) {
            Some(candidate) => {
                candidate.limit = candidate.limit.zip(open.limit).map(|(one, other)| one.saturating_add(other));
            }
            None => candidates.push(Candidate { destination: destination.clone(), limit: open.limit }),
        }
    }
    let shares = share(&candidates, request.limit, request.most_in_hand, request.in_hand);
    let nameless = open.iter().any(|open| open.destination.is_none()).then_some((None, request.limit));
    shares.into_iter().map(|(name, quota)| (Some(name), quota)).chain(nameless).collect()
}

/// Takes what was claimed from the rates, and gives probes back that found no row.
pub(super) async fn account(
    tx: &mut Tx,
    table: &TableName,
    request: &ClaimRequest<'_>,
    taken: &HashMap<(usize, Option<&str>), usize>,
    probes: &Probes,
) -> Result<(), StoreError> {
    for number in in_order(request) {
        let Some(policy) = request.policies.get(number) else { continue };
        let spent: BTreeMap<String, i64> = taken
            .iter()
            .filter(|((taken_by, _), _)| *taken_by == number)
            .filter_map(|((_, destination), rows)| Some(((*destination)?.to_owned(), super::take::count(*rows))))
            .collect();
        if policy.caps.rate_per_second.is_some() && !spent.is_empty() {
            destinations::spend(tx, table, policy.scope, &spent).await?;
        }
        let unused: Vec<String> =
            probes.get(&number).into_iter().flatten().filter(|probe| !spent.contains_key(*probe)).cloned().collect();
        if !unused.is_empty() {
            destinations::give_probes_back(tx, table, policy.scope, &unused).await?;
        }
    }
    Ok(())
}
