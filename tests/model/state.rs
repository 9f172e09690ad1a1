//! Who knows what at one moment.
//!
//! Fields under "ghost" are read by properties alone; no step depends on them.

use std::hash::{DefaultHasher, Hash, Hasher};

use outbox_operator::domain::row::Status;

use super::{
    setup::{Mutation, Setup},
    table::{Facts, Row, Token, Write},
};

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub rows: Vec<Intent>,
    pub workers: Vec<Worker>,
    /// Acts that a person may still do.
    pub acts: u8,
    /// Mishaps that may still happen, where they are counted.
    pub mishaps: Option<u8>,
    /// Ghost: what must not happen and has.
    pub fault: Option<Fault>,
}

/// What a step did that it must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A result was written by a worker whose row was claimed by another one since.
    SettledAfterLoss,
    /// A second request although the claim before it had neither ended nor been written.
    SentTwice,
    /// A request to a receiver without keys although an earlier one may have been executed and no person said so.
    SentInDoubt,
    /// A request of a row that was past `expires_at` when it was claimed.
    SentExpired,
    /// More requests than the policy allows.
    SentTooOften,
    /// An attempt that had begun was given back although it was no wait, or was a wait and not given back.
    GivenBack,
}

/// One intended effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intent {
    pub row: Row,
    /// Requests whose sender waits no more, and that may still arrive.
    pub stray: u8,
    pub memory: Memory,
    /// Ghost: how often the effect took place.
    pub effects: u8,
    /// Ghost: the row's present claim has begun a request, and nothing of it is written yet.
    pub unwritten: bool,
    /// Ghost: requests begun of which nobody has written that they did nothing, since a person last spoke.
    pub open: u8,
}

/// What the receiver remembers of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    Nothing,
    /// For so many ticks.
    Executed(u8),
    Refused(u8),
}

/// One slot of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Worker {
    Idle,
    /// A claimed row waits for its slot.
    Held(Claim),
    /// It may be sent, and the lease outlasts the attempt.
    Checked(Claim),
    /// The request is under way.
    Sending(Claim, Request),
    /// The result waits for the settler.
    Done(Claim, Write),
}

/// A request whose sender waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Underway,
    /// It will never arrive, or its answer never will.
    Gone,
}

/// What a worker holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub row: usize,
    pub token: Token,
    pub facts: Facts,
    /// Ticks since the claim.
    pub elapsed: u8,
    /// Ticks for which the worker believes that it holds the lease.
    pub covered: u8,
    /// Ghost: no other worker has claimed the row since.
    pub current: bool,
    /// Ghost: a request has begun.
    pub begun: bool,
    /// Ghost: its outcome is known.
    pub known: bool,
}

impl State {
    pub fn take(&mut self, worker: usize) -> Worker {
        std::mem::replace(&mut self.workers[worker], Worker::Idle)
    }

    /// The smallest token that nobody has: tokens are told apart, nothing else.
    pub fn fresh_token(&self) -> Token {
        let held: Vec<Token> = self
            .workers
            .iter()
            .filter_map(|worker| worker.claim().map(|claim| claim.token))
            .chain(self.rows.iter().filter_map(|intent| intent.row.token))
            .collect();
        (0..=Token::MAX).find(|token| !held.contains(token)).unwrap()
    }

    pub fn claims_of(&mut self, row: usize) -> impl Iterator<Item = &mut Claim> {
        self.workers.iter_mut().filter_map(Worker::claim_mut).filter(move |claim| claim.row == row)
    }

    /// A request of the row may still take effect.
    pub fn may_be_executed(&self, row: usize) -> bool {
        let sends = |worker: &Worker| match worker {
            Worker::Checked(claim) | Worker::Sending(claim, Request::Underway) => claim.row == row,
            _ => false,
        };
        self.rows[row].stray > 0 || self.workers.iter().any(sends)
    }
}

impl Worker {
    /// What it holds.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Idle => None,
            Self::Held(claim) | Self::Checked(claim) | Self::Sending(claim, _) | Self::Done(claim, _) => Some(claim),
        }
    }

    pub fn claim_mut(&mut self) -> Option<&mut Claim> {
        match self {
            Self::Idle => None,
            Self::Held(claim) | Self::Checked(claim) | Self::Sending(claim, _) | Self::Done(claim, _) => Some(claim),
        }
    }
}

impl Setup {
    /// Forgets what nothing reads, so that states which differ in it alone are one.
    pub fn normalize(&self, state: &mut State) {
        let State { rows, workers, acts, .. } = state;
        for intent in rows.iter_mut() {
            self.normalize_row(intent, *acts);
        }
        for worker in workers.iter_mut() {
            let done = matches!(worker, Worker::Done(..));
            let decided = !matches!(worker, Worker::Held(_));
            let Some(claim) = worker.claim_mut() else { continue };
            let lost = rows[claim.row].row.token != Some(claim.token) && !self.mutated(Mutation::SettleWithoutToken);
            if done || (lost && decided) {
                // The result is there, or will not be written: the facts have done their work.
                let Facts { attempts, expired, .. } = claim.facts;
                claim.facts = if done { Facts::NONE } else { Facts { attempts, expired, ..Facts::NONE } };
                claim.elapsed = 0;
            }
            claim.facts.unknown_attempts = claim.facts.unknown_attempts.min(2);
            let youth = self.max_age.saturating_sub(claim.facts.retry_age);
            let window = self.window.unwrap_or(0).saturating_sub(claim.facts.dispatch_age);
            claim.elapsed = claim.elapsed.min(youth.max(window));
            if let Worker::Done(_, write) = worker
                && lost
            {
                *write = Write::NOTHING;
            }
        }
        // One worker is like another.
        workers.sort_by_key(|worker| {
            let mut hasher = DefaultHasher::new();
            worker.hash(&mut hasher);
            hasher.finish()
        });
    }

    fn normalize_row(&self, intent: &mut Intent, acts: u8) {
        let window = self.window.unwrap_or(0);
        let row = &mut intent.row;
        row.waits = 0;
        // A claim may die before it decides, any number of times; past the policy's number one is like another.
        row.attempts = row.attempts.min(u8::try_from(self.policy.max_attempts).unwrap() + 2);
        row.unknown_attempts = row.unknown_attempts.min(2);
        row.retry_since = row.retry_since.map(|age| age.min(self.max_age));
        row.first_dispatch = row.first_dispatch.map(|age| age.min(window));
        if row.ended() {
            // A person's act sets these back.
            row.attempts = 0;
            row.retry_since = None;
            if row.status == Status::Succeeded || acts == 0 {
                row.first_dispatch = None;
                row.answered_5xx = false;
            }
        } else {
            row.reason = None;
        }
        if let Memory::Executed(age) | Memory::Refused(age) = &mut intent.memory {
            *age = (*age).min(window);
        }
        if self.deduplicates {
            intent.open = 0;
            // Of several requests of one key that arrive unheard, one at most makes a difference.
            intent.stray = intent.stray.min(1);
            if self.window.is_none() && intent.memory != Memory::Nothing {
                intent.stray = 0;
            }
        } else {
            intent.memory = Memory::Nothing;
        }
    }
}
