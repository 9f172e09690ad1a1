//! One row of the table and what the statements do to it: `claim.sql`, `settle.sql`, the renewal, a person's acts.
//!
//! Time is counted in ticks and kept as distances from now, so that a state of the model does not depend on when it was
//! reached. `agreement.rs` shows that this is what PostgreSQL does.

use std::time::Duration;

use outbox_operator::domain::{
    row::{Reason, RowFacts, Status},
    transition::{Due, Settlement},
};

/// The unit of time: long beside any statement, so that a real database can be shown to agree.
pub const TICK: Duration = Duration::from_secs(3600);

/// A fencing token.
pub type Token = u8;

/// `next_attempt_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// So many ticks from now; 0: due.
    In(u8),
    /// `infinity`: parked for a person.
    Never,
}

/// A row, as far as decisions and statements read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub status: Status,
    pub attempts: u8,
    pub waits: u8,
    pub unknown_attempts: u8,
    pub next_attempt: Next,
    /// `locked_until`, in ticks from now; 0: over.
    pub locked: Option<u8>,
    pub token: Option<Token>,
    /// `retry_since`, in ticks ago.
    pub retry_since: Option<u8>,
    /// `first_dispatch_at`, in ticks ago.
    pub first_dispatch: Option<u8>,
    pub answered_5xx: bool,
    /// `expires_at`, in ticks from now; 0: over.
    pub expires: Option<u8>,
    pub reason: Option<Reason>,
}

/// What a claim returns of a row; [`RowFacts`] in ticks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    pub attempts: u8,
    pub unknown_attempts: u8,
    pub lease_expired: bool,
    pub in_doubt: bool,
    pub answered_5xx: bool,
    pub first_dispatch: bool,
    pub retry_age: u8,
    pub dispatch_age: u8,
    pub expired: bool,
}

impl Facts {
    /// Nothing to decide by.
    pub const NONE: Self = Self {
        attempts: 0,
        unknown_attempts: 0,
        lease_expired: false,
        in_doubt: false,
        answered_5xx: false,
        first_dispatch: false,
        retry_age: 0,
        dispatch_age: 0,
        expired: false,
    };

    /// As the code knows them.
    pub fn to_domain(&self) -> RowFacts {
        RowFacts {
            attempts: self.attempts.into(),
            unknown_attempts: self.unknown_attempts.into(),
            lease_expired: self.lease_expired,
            in_doubt: self.in_doubt,
            answered_5xx: self.answered_5xx,
            first_dispatch: self.first_dispatch,
            retry_age: TICK * self.retry_age.into(),
            dispatch_age: TICK * self.dispatch_age.into(),
            expired: self.expired,
            // Only a policy that asks the receiver looks at these.
            waits: 0,
            since_last_send: std::time::Duration::ZERO,
        }
    }
}

/// A [`Settlement`] in ticks: a parameter list of `settle.sql`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    pub status: Status,
    /// `None`: left as it is.
    pub next_attempt: Option<Next>,
    pub reason: Option<Reason>,
    pub give_back_attempt: bool,
    pub wait: bool,
    pub unknown: bool,
    pub clear_first_dispatch: bool,
    pub clear_retry_since: bool,
    pub answered_5xx: bool,
}

impl Write {
    /// What changes nothing, for a result that will not be written.
    pub const NOTHING: Self = Self {
        status: Status::InFlight,
        next_attempt: None,
        reason: None,
        give_back_attempt: false,
        wait: false,
        unknown: false,
        clear_first_dispatch: false,
        clear_retry_since: false,
        answered_5xx: false,
    };
}

impl From<Settlement> for Write {
    fn from(settlement: Settlement) -> Self {
        Self {
            status: settlement.status,
            next_attempt: match settlement.due {
                Due::Ended => None,
                Due::Parked => Some(Next::Never),
                Due::After(delay) => {
                    Some(Next::In(u8::try_from(delay.as_micros().div_ceil(TICK.as_micros())).unwrap()))
                }
            },
            reason: settlement.reason,
            give_back_attempt: settlement.give_back_attempt,
            wait: settlement.wait,
            unknown: settlement.unknown,
            clear_first_dispatch: settlement.clear_first_dispatch,
            clear_retry_since: settlement.clear_retry_since,
            answered_5xx: settlement.answered_5xx,
        }
    }
}

/// What a person has found out of an uncertain row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    Succeeded,
    Retry,
    Dead,
}

impl Row {
    /// As an application inserts it.
    pub fn inserted(expires: Option<u8>) -> Self {
        Self {
            status: Status::Pending,
            attempts: 0,
            waits: 0,
            unknown_attempts: 0,
            next_attempt: Next::In(0),
            locked: None,
            token: None,
            retry_since: None,
            first_dispatch: None,
            answered_5xx: false,
            expires,
            reason: None,
        }
    }

    pub fn parked(&self) -> bool {
        self.status == Status::Uncertain && self.next_attempt == Next::Never
    }

    /// No worker will touch it again.
    pub fn ended(&self) -> bool {
        !matches!(self.status, Status::Pending | Status::InFlight | Status::Uncertain) || self.parked()
    }

    /// The `WHERE` of `claim.sql`.
    pub fn claimable(&self) -> bool {
        matches!(self.status, Status::Pending | Status::InFlight | Status::Uncertain)
            && self.next_attempt == Next::In(0)
            && (self.status != Status::InFlight || self.token.is_some() || self.locked.is_none_or(|left| left == 0))
    }

    /// The `SET` and the `RETURNING` of `claim.sql`.
    pub fn claim(&mut self, token: Token, lease: u8) -> Facts {
        let lease_expired = self.status == Status::InFlight;
        let in_doubt = self.status == Status::Uncertain;
        let first_dispatch = self.first_dispatch.is_none();
        self.status = Status::InFlight;
        self.attempts += 1;
        self.unknown_attempts += u8::from(lease_expired);
        self.token = Some(token);
        self.locked = Some(lease);
        self.next_attempt = Next::In(lease);
        let retry_age = *self.retry_since.get_or_insert(0);
        let dispatch_age = *self.first_dispatch.get_or_insert(0);
        Facts {
            attempts: self.attempts,
            unknown_attempts: self.unknown_attempts,
            lease_expired,
            in_doubt,
            answered_5xx: self.answered_5xx,
            first_dispatch,
            retry_age,
            dispatch_age,
            expired: self.expires == Some(0),
        }
    }

    /// `renew.rs`: `false` when the row is no longer this claim's.
    pub fn renew(&mut self, token: Token, lease: u8) -> bool {
        let ours = self.token == Some(token) && self.status == Status::InFlight;
        if ours {
            self.locked = Some(lease);
            self.next_attempt = Next::In(lease);
        }
        ours
    }

    /// `settle.sql`: `false` when the row is no longer this claim's; then nothing has changed.
    pub fn settle(&mut self, token: Token, write: &Write) -> bool {
        let ours = self.token == Some(token) && self.status == Status::InFlight;
        if ours {
            self.write(write);
        }
        ours
    }

    /// The `SET` of `settle.sql`.
    pub fn write(&mut self, write: &Write) {
        self.status = write.status;
        self.next_attempt = write.next_attempt.unwrap_or(self.next_attempt);
        self.locked = None;
        self.token = None;
        self.attempts = self.attempts.saturating_sub(write.give_back_attempt.into());
        self.waits += u8::from(write.wait);
        self.unknown_attempts += u8::from(write.unknown);
        self.answered_5xx |= write.answered_5xx;
        self.reason.clone_from(&write.reason);
        if write.clear_first_dispatch {
            self.first_dispatch = None;
        }
        if write.clear_retry_since {
            self.retry_since = None;
        }
    }

    /// `replay.rs`, without `--accept-duplicate`: `false` where it refuses. Key, window and doubt stay.
    pub fn replay(&mut self, window: Option<u8>) -> bool {
        let stored = self.unknown_attempts > 0 || self.answered_5xx;
        let over = window.zip(self.first_dispatch).is_some_and(|(window, age)| age >= window);
        let moves = self.status == Status::Dead && !(stored && over);
        if moves {
            self.again();
        }
        moves
    }

    /// `resolve.rs`: `false` where the row is in another state.
    pub fn resolve(&mut self, word: Word) -> bool {
        let moves = self.status == Status::Uncertain;
        if moves {
            match word {
                Word::Succeeded => {
                    self.status = Status::Succeeded;
                    self.reason = None;
                }
                Word::Dead => {
                    self.status = Status::Dead;
                    self.reason.get_or_insert_with(|| Reason::custom("resolved".to_owned()));
                }
                Word::Retry => {
                    self.again();
                    self.first_dispatch = None;
                }
            }
            self.locked = None;
            self.token = None;
        }
        moves
    }

    fn again(&mut self) {
        self.status = Status::Pending;
        self.next_attempt = Next::In(0);
        self.attempts = 0;
        self.waits = 0;
        self.retry_since = None;
        self.reason = None;
        self.locked = None;
        self.token = None;
    }

    /// One tick of the database's clock.
    pub fn tick(&mut self) {
        if let Next::In(left) = &mut self.next_attempt {
            *left = left.saturating_sub(1);
        }
        for left in [&mut self.locked, &mut self.expires].into_iter().flatten() {
            *left = left.saturating_sub(1);
        }
        for age in [&mut self.retry_since, &mut self.first_dispatch].into_iter().flatten() {
            *age = age.saturating_add(1);
        }
    }
}
