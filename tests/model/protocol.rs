//! The protocol as a model: workers that claim, send, judge and settle, and crash anywhere; a network that delays and loses;
//! a receiver; a person; time.
//!
//! Every decision is the code's own: `transition::before_send`, `transition::after_attempt`, `transition::release` and
//! `judge::judge`. What is modelled is what surrounds them: the statements ([`super::table`]), the order of the steps in
//! `src/relay/attempt.rs`, and the world.

use std::time::Duration;

use outbox_operator::domain::{
    judge::{Answer, Observation, judge},
    row::{Reason, Status},
    transition::{self, Plan, Settlement},
};
use stateright::Model;

use super::{
    action::Action,
    setup::{Does, Mutation, Setup},
    state::{Claim, Fault, Intent, Memory, Request, State, Worker},
    table::{Next, Row, TICK, Word, Write},
};

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let intent = Intent {
            row: Row::inserted(self.expires),
            stray: 0,
            memory: Memory::Nothing,
            effects: 0,
            unwritten: false,
            open: 0,
        };
        vec![State {
            rows: vec![intent; self.rows],
            workers: vec![Worker::Idle; self.workers],
            acts: self.acts,
            mishaps: self.mishaps,
            fault: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        if self.time_may_pass(state) {
            actions.push(Action::Tick);
        }
        for (row, intent) in state.rows.iter().enumerate() {
            self.actions_of_row(state, row, intent, actions);
        }
        for (worker, doing) in state.workers.iter().enumerate() {
            self.actions_of_worker(state, worker, doing, actions);
        }
        if state.mishaps == Some(0) {
            // A request that is gone has had its mishap; that nobody answers is what follows.
            let gone = |worker: usize| matches!(state.workers[worker], Worker::Sending(_, Request::Gone));
            actions.retain(|action| match action {
                Action::NoAnswer { worker } => gone(*worker),
                action => !action.is_mishap(),
            });
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        if action.is_mishap()
            && let Some(left) = &mut next.mishaps
        {
            *left = left.saturating_sub(1);
        }
        self.step(&mut next, action);
        self.normalize(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        super::properties::all(self)
    }
}

impl Setup {
    pub fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// A tick is longer than a request lives, so a receiver that forgets keys does not meet one that left before. For it to
    /// help, nobody may fall asleep between looking at the window and sending: that much of a margin the policy's window
    /// needs. Where keys are remembered for ever, workers may sleep anywhere.
    fn time_may_pass(&self, state: &State) -> bool {
        self.window.is_none() || !state.workers.iter().any(|worker| matches!(worker, Worker::Checked(_)))
    }

    fn claimable(&self, row: &Row) -> bool {
        row.claimable() || (self.mutated(Mutation::ClaimIgnoresLease) && row.status == Status::InFlight)
    }

    fn actions_of_row(&self, state: &State, row: usize, intent: &Intent, actions: &mut Vec<Action>) {
        if self.claimable(&intent.row) {
            for (worker, doing) in state.workers.iter().enumerate() {
                if *doing == Worker::Idle {
                    actions.push(Action::Claim { worker, row });
                }
            }
            actions.push(Action::ClaimUnheard { row });
        }
        if intent.stray > 0 {
            actions.extend(self.heard_by_nobody(intent).map(|does| Action::StrayArrives { row, does }));
        }
        if let (Some(window), Memory::Executed(age) | Memory::Refused(age)) = (self.window, intent.memory)
            && age >= window
        {
            actions.push(Action::Forget { row });
        }
        if state.acts > 0 {
            if intent.row.clone().replay(self.window) {
                actions.push(Action::Replay { row });
            }
            if intent.row.status == Status::Uncertain {
                // A person who resolves has found out, which takes until nothing of the row is under way any more.
                if intent.effects > 0 {
                    actions.push(Action::Resolve { row, word: Word::Succeeded });
                } else if !state.may_be_executed(row) {
                    actions.push(Action::Resolve { row, word: Word::Dead });
                    // A retry begins a new window, which says that the receiver does not know the key.
                    if self.window.is_none() || intent.memory == Memory::Nothing {
                        actions.push(Action::Resolve { row, word: Word::Retry });
                    }
                }
            }
        }
    }

    fn actions_of_worker(&self, state: &State, worker: usize, doing: &Worker, actions: &mut Vec<Action>) {
        let renew = |claim: &Claim, actions: &mut Vec<Action>| {
            if claim.covered < self.lease {
                actions.push(Action::Renew { worker });
            }
        };
        match doing {
            Worker::Idle => return,
            Worker::Held(claim) => {
                actions.push(Action::Check { worker });
                actions.push(Action::Release { worker });
                renew(claim, actions);
            }
            Worker::Checked(claim) => {
                actions.push(Action::Begin { worker });
                actions.push(Action::CannotBuild { worker });
                renew(claim, actions);
            }
            Worker::Sending(claim, request) => {
                if *request == Request::Underway {
                    let intent = &state.rows[claim.row];
                    actions.extend(self.receiver_may(intent).map(|does| Action::Answer { worker, does }));
                    actions.extend(self.heard_by_nobody(intent).map(|does| Action::AnswerLost { worker, does }));
                    actions.push(Action::Refused { worker });
                }
                actions.push(Action::NoAnswer { worker });
                renew(claim, actions);
            }
            Worker::Done(claim, _) => {
                actions.push(Action::Settle { worker });
                if state.rows[claim.row].row.token == Some(claim.token) {
                    actions.push(Action::SettleUnheard { worker });
                }
                renew(claim, actions);
            }
        }
        actions.push(Action::Crash { worker });
    }

    /// What the receiver may do with a request of this key. What it remembers it answers again; what stands before it (a
    /// proxy, a limit, a login) may still say what it likes.
    fn receiver_may(&self, intent: &Intent) -> impl Iterator<Item = Does> {
        let remembers = if self.deduplicates { intent.memory } else { Memory::Nothing };
        let deduplicates = self.deduplicates;
        self.does.iter().copied().filter(move |does| match does {
            Does::Execute => !matches!(remembers, Memory::Refused(_)),
            Does::Refuse => !matches!(remembers, Memory::Executed(_)),
            Does::ExecuteAndFail => !deduplicates,
            _ => true,
        })
    }

    /// What makes a difference if nobody hears the answer; a request that does nothing may as well not arrive.
    fn heard_by_nobody(&self, intent: &Intent) -> impl Iterator<Item = Does> {
        let fresh = !self.deduplicates || intent.memory == Memory::Nothing;
        let refuses = self.deduplicates;
        self.does
            .iter()
            .copied()
            .filter(move |does| fresh && (*does == Does::Execute || (refuses && *does == Does::Refuse)))
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => self.tick(state),
            Action::Claim { worker, row } => {
                let claim = self.claim(state, row);
                state.workers[worker] = Worker::Held(claim);
            }
            Action::ClaimUnheard { row } => _ = self.claim(state, row),
            Action::Release { worker } => {
                let Worker::Held(claim) = state.take(worker) else { return };
                let write = self.write(&claim, self.release(&claim));
                state.workers[worker] = Worker::Done(claim, write);
            }
            Action::Renew { worker } => self.renew(state, worker),
            Action::Check { worker } => {
                let Worker::Held(claim) = state.take(worker) else { return };
                state.workers[worker] = self.check(&mut state.rows[claim.row].row, claim);
            }
            Action::CannotBuild { worker } => {
                let Worker::Checked(claim) = state.take(worker) else { return };
                let seen = Observation::NotBuilt { reason: Reason::INVALID, detail: String::new() };
                state.workers[worker] = self.judged(claim, &seen);
            }
            Action::Begin { worker } => self.begin(state, worker),
            Action::Answer { worker, does } => {
                let Worker::Sending(claim, _) = state.take(worker) else { return };
                self.arrive(&mut state.rows[claim.row], does);
                let known = self.deduplicates || !matches!(does, Does::Fail | Does::ExecuteAndFail);
                state.workers[worker] = self.judged(Claim { known, ..claim }, &answer(does));
            }
            Action::AnswerLost { worker, does } => {
                let Worker::Sending(claim, request) = &mut state.workers[worker] else { return };
                *request = Request::Gone;
                self.arrive(&mut state.rows[claim.row], does);
            }
            Action::StrayArrives { row, does } => {
                state.rows[row].stray -= 1;
                self.arrive(&mut state.rows[row], does);
            }
            Action::Refused { worker } => {
                let Worker::Sending(claim, _) = state.take(worker) else { return };
                let seen = Observation::NotExecuted { reason: Reason::CONNECT, detail: String::new() };
                state.workers[worker] = self.judged(Claim { known: true, ..claim }, &seen);
            }
            Action::NoAnswer { worker } => {
                let Worker::Sending(claim, request) = state.take(worker) else { return };
                state.rows[claim.row].stray += u8::from(request == Request::Underway);
                let seen = Observation::Unknown { reason: Reason::TIMEOUT, detail: String::new() };
                state.workers[worker] = self.judged(claim, &seen);
            }
            Action::Settle { worker } => {
                let Worker::Done(claim, write) = state.take(worker) else { return };
                self.settle(state, &claim, &write);
            }
            Action::SettleUnheard { worker } => {
                let Worker::Done(claim, write) = state.workers[worker].clone() else { return };
                self.settle(state, &claim, &write);
            }
            Action::Crash { worker } => {
                if let Worker::Sending(claim, Request::Underway) = state.take(worker) {
                    state.rows[claim.row].stray += 1;
                }
            }
            Action::Forget { row } => state.rows[row].memory = Memory::Nothing,
            Action::Replay { row } => {
                state.acts -= 1;
                state.rows[row].row.replay(self.window);
            }
            Action::Resolve { row, word } => {
                state.acts -= 1;
                state.rows[row].row.resolve(word);
                state.rows[row].open = 0;
            }
        }
    }

    fn tick(&self, state: &mut State) {
        for intent in &mut state.rows {
            intent.row.tick();
            if let Memory::Executed(age) | Memory::Refused(age) = &mut intent.memory {
                *age += 1;
            }
            if self.window.is_some() {
                intent.stray = 0;
            }
        }
        for worker in &mut state.workers {
            if let Worker::Held(claim) | Worker::Checked(claim) | Worker::Sending(claim, _) | Worker::Done(claim, _) =
                worker
            {
                claim.elapsed += 1;
                claim.covered = claim.covered.saturating_sub(1);
            }
            if let Worker::Sending(_, request @ Request::Underway) = worker
                && self.window.is_some()
            {
                *request = Request::Gone;
            }
        }
    }

    fn claim(&self, state: &mut State, row: usize) -> Claim {
        let token = state.fresh_token();
        for claim in state.claims_of(row) {
            claim.current = false;
        }
        let intent = &mut state.rows[row];
        // What the claim finds is written down only if it waited for the lease to end.
        if intent.row.locked.is_none_or(|left| left == 0) {
            intent.unwritten = false;
        }
        let unknown_before = intent.row.unknown_attempts;
        let mut facts = intent.row.claim(token, self.lease);
        if self.mutated(Mutation::ExpiredLeaseNotCounted) {
            intent.row.unknown_attempts = unknown_before;
            facts.unknown_attempts = unknown_before;
        }
        if self.mutated(Mutation::LeaseNotDue) {
            intent.row.next_attempt = Next::Never;
        }
        let covered = self.lease;
        Claim { row, token, facts, elapsed: 0, covered, current: true, begun: false, known: false }
    }

    /// The keeper's renewal, and the one right before an attempt.
    fn renew(&self, state: &mut State, worker: usize) {
        let mut doing = state.take(worker);
        if let Worker::Held(claim) | Worker::Checked(claim) | Worker::Sending(claim, _) | Worker::Done(claim, _) =
            &mut doing
        {
            if state.rows[claim.row].row.renew(claim.token, self.lease) {
                claim.covered = self.lease;
            } else if matches!(doing, Worker::Held(_)) {
                // Lost before the attempt: it does not begin.
                return;
            }
        }
        state.workers[worker] = doing;
    }

    /// Whether to send; then whether the lease outlasts the attempt. A renewal that fails gives the row back, which is
    /// [`Action::Release`].
    fn check(&self, row: &mut Row, mut claim: Claim) -> Worker {
        let mut facts = claim.facts.to_domain();
        if !self.mutated(Mutation::WindowAtClaim) {
            facts.dispatch_age += TICK * claim.elapsed.into();
        }
        facts.expired &= !self.mutated(Mutation::NeverExpires);
        if self.mutated(Mutation::NoLimit) {
            facts.attempts = 1;
        }
        match transition::before_send(&self.policy, &facts) {
            Plan::Ask => unreachable!("no policy of the model asks"),
            Plan::Send if claim.covered > 0 => Worker::Checked(claim),
            Plan::Send if row.renew(claim.token, self.lease) => {
                claim.covered = self.lease;
                Worker::Checked(claim)
            }
            // Lost before the first byte.
            Plan::Send => Worker::Idle,
            Plan::Settle(settlement) => {
                let write = self.write(&claim, settlement);
                Worker::Done(claim, write)
            }
        }
    }

    fn release(&self, claim: &Claim) -> Settlement {
        let mut facts = claim.facts.to_domain();
        if self.mutated(Mutation::ReleaseForgetsExpiredLease) {
            facts.lease_expired = false;
        }
        transition::release(&self.policy, &facts)
    }

    fn begin(&self, state: &mut State, worker: usize) {
        let Worker::Checked(mut claim) = state.take(worker) else { return };
        let intent = &mut state.rows[claim.row];
        if claim.begun || (claim.current && intent.unwritten) {
            state.fault = Some(Fault::SentTwice);
        } else if !self.deduplicates && intent.open > 0 {
            state.fault = Some(Fault::SentInDoubt);
        } else if claim.facts.expired {
            state.fault = Some(Fault::SentExpired);
        } else if u32::from(claim.facts.attempts) > self.policy.max_attempts {
            state.fault = Some(Fault::SentTooOften);
        }
        intent.unwritten |= claim.current;
        intent.open += 1;
        claim.begun = true;
        state.workers[worker] = Worker::Sending(claim, Request::Underway);
    }

    fn arrive(&self, intent: &mut Intent, does: Does) {
        let fresh = !self.deduplicates || intent.memory == Memory::Nothing;
        match does {
            Does::Execute | Does::ExecuteAndFail if fresh => {
                intent.effects += 1;
                intent.memory = Memory::Executed(0);
            }
            Does::Refuse if fresh => intent.memory = Memory::Refused(0),
            _ => {}
        }
    }

    fn judged(&self, claim: Claim, seen: &Observation) -> Worker {
        let facts = aged(&claim);
        let verdict = judge(&self.policy, &facts, seen);
        // No jitter: a retry is due at once, so every later time is explored too.
        let settlement = transition::after_attempt(&self.policy, &facts, seen, &verdict, 0.0);
        let write = self.write(&claim, settlement);
        Worker::Done(claim, write)
    }

    /// The parameters of the settle statement.
    fn write(&self, claim: &Claim, settlement: Settlement) -> Write {
        let mut write = Write::from(settlement);
        let counted = write.status == Status::Pending && claim.begun && !write.wait;
        match self.mutation {
            Some(Mutation::DeadInDoubt) if write.next_attempt == Some(Next::Never) => {
                write = Write { status: Status::Dead, next_attempt: None, ..write };
            }
            Some(Mutation::UnknownIsSuccess) if write.unknown => {
                write = Write { status: Status::Succeeded, next_attempt: None, ..write };
            }
            Some(Mutation::RetryGivesBack) if counted => write.give_back_attempt = true,
            Some(Mutation::WaitIsYoung) if write.wait => write.clear_retry_since = true,
            _ => {}
        }
        write
    }

    fn settle(&self, state: &mut State, claim: &Claim, write: &Write) {
        let intent = &mut state.rows[claim.row];
        let applied = if self.mutated(Mutation::SettleWithoutToken) {
            intent.row.write(write);
            true
        } else {
            intent.row.settle(claim.token, write)
        };
        if !applied {
            return;
        }
        let given_back_rightly = if claim.begun { write.give_back_attempt == write.wait } else { true };
        if !claim.current {
            state.fault = Some(Fault::SettledAfterLoss);
        } else if !given_back_rightly {
            state.fault = Some(Fault::GivenBack);
        }
        intent.unwritten = false;
        if claim.begun && claim.known {
            intent.open = intent.open.saturating_sub(1);
        }
    }
}

/// The facts as `attempt.rs` passes them on: as old as they are by now.
fn aged(claim: &Claim) -> outbox_operator::domain::row::RowFacts {
    let mut facts = claim.facts.to_domain();
    facts.retry_age += TICK * claim.elapsed.into();
    facts.dispatch_age += TICK * claim.elapsed.into();
    facts
}

/// What the sender sees of what the receiver did.
fn answer(does: Does) -> Observation {
    let (status, retry_after) = match does {
        Does::Execute => (200, None),
        Does::ExecuteAndFail | Does::Fail => (500, None),
        Does::Busy => (409, Some(Duration::ZERO)),
        Does::Conflict => (409, None),
        Does::Refuse => (422, None),
        Does::Unauthorized => (401, None),
    };
    Observation::Answer(Answer { status, retry_after, ..Answer::default() })
}
