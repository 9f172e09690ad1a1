//! Every row ends: shown on the whole graph of states, since the checker's `eventually` gives up where paths join.
//!
//! What somebody may do for ever is set aside: giving rows back, renewing leases, dying or sleeping
//! through a lease without having sent anything, and letting time pass while nothing changes by it. What is left has no
//! circle, so every run of it comes to an end, however often workers die of a request and answers are lost; and where a run ends, every row has ended or is parked.

use std::collections::{HashMap, HashSet};

use stateright::Model;

use super::{
    action::Action,
    setup::Setup,
    state::{State, Worker},
};

/// What the graph shows.
#[derive(Debug)]
pub struct Outcome {
    pub states: usize,
    /// Steps of the longest run.
    pub longest: usize,
}

/// Follows every run from every state; says which one need not end.
pub fn check(setup: &Setup) -> Result<Outcome, String> {
    let mut graph = Graph { setup, ids: HashMap::new(), longest: Vec::new() };
    let mut longest = 0;
    for start in reachable(setup) {
        if !graph.ids.contains_key(&start) {
            longest = longest.max(graph.visit(start)?);
        }
    }
    Ok(Outcome { states: graph.ids.len(), longest })
}

/// Every state, reached by whatever may happen.
fn reachable(setup: &Setup) -> HashSet<State> {
    let mut found: HashSet<State> = setup.init_states().into_iter().collect();
    let mut frontier: Vec<State> = found.iter().cloned().collect();
    while let Some(state) = frontier.pop() {
        for next in setup.next_states(&state) {
            if !found.contains(&next) {
                found.insert(next.clone());
                frontier.push(next);
            }
        }
    }
    found
}

struct Graph<'a> {
    setup: &'a Setup,
    ids: HashMap<State, usize>,
    /// By id: steps of the longest run from there, once known.
    longest: Vec<Option<usize>>,
}

/// One state on the way from the start to the state that is visited.
struct Visit {
    id: usize,
    left: Vec<State>,
    longest: usize,
}

impl Graph<'_> {
    /// A depth-first walk without recursion, since runs are long.
    fn visit(&mut self, start: State) -> Result<usize, String> {
        let mut path = vec![self.enter(start)?];
        loop {
            let Some(visit) = path.last_mut() else { return Ok(0) };
            let Some(next) = visit.left.pop() else {
                let (id, longest) = (visit.id, visit.longest);
                self.longest[id] = Some(longest);
                path.pop();
                match path.last_mut() {
                    Some(before) => before.longest = before.longest.max(longest + 1),
                    None => return Ok(longest),
                }
                continue;
            };
            match self.ids.get(&next).map(|id| self.longest[*id]) {
                Some(Some(longest)) => visit.longest = visit.longest.max(longest + 1),
                Some(None) => return Err(format!("a run need not end; it comes back to {next:?}")),
                None => {
                    let visit = self.enter(next)?;
                    path.push(visit);
                }
            }
        }
    }

    fn enter(&mut self, state: State) -> Result<Visit, String> {
        let left = self.steps(&state)?;
        let id = self.longest.len();
        self.longest.push(None);
        self.ids.insert(state, id);
        Ok(Visit { id, left, longest: 0 })
    }

    fn steps(&self, state: &State) -> Result<Vec<State>, String> {
        let mut actions = Vec::new();
        self.setup.actions(state, &mut actions);
        actions.retain(|action| match action {
            Action::Release { .. } | Action::Renew { .. } | Action::ClaimUnheard { .. } => false,
            Action::Claim { row, .. } => !state
                .workers
                .iter()
                .filter_map(Worker::claim)
                .any(|claim| claim.row == *row && !claim.begun && state.rows[*row].row.token == Some(claim.token)),
            Action::Crash { worker } => state.workers[*worker].claim().is_some_and(|claim| claim.begun),
            _ => true,
        });
        let mut goes_on = false;
        let mut next_states = Vec::with_capacity(actions.len());
        for action in actions {
            let next = self.setup.next_state(state, action);
            if let Some(next) = next.filter(|next| next != state) {
                goes_on |= is_due_to_happen(action);
                next_states.push(next);
            }
        }
        if !goes_on && !state.rows.iter().all(|intent| intent.row.ended()) {
            return Err(format!("nothing goes on, and a row has not ended: {state:?}"));
        }
        Ok(next_states)
    }
}

/// What happens by itself if nothing goes wrong and nobody acts.
fn is_due_to_happen(action: Action) -> bool {
    !matches!(
        action,
        Action::Crash { .. }
            | Action::SettleUnheard { .. }
            | Action::StrayArrives { .. }
            | Action::Forget { .. }
            | Action::Replay { .. }
            | Action::Resolve { .. }
    )
}
