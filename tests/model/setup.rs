//! What one run of the checker explores.

use std::fmt::{self, Write as _};

use outbox_operator::{domain::settings::Policy, spec};

/// What a receiver does with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// The work, and 200. Where the key's work is done already: 200 alone.
    Execute,
    /// The work, and then 500. A receiver that enforces keys is trusted not to.
    ExecuteAndFail,
    /// Nothing, and 500.
    Fail,
    /// Nothing, 409 with `Retry-After`: the same key is being processed. (A 429 with one is judged alike.)
    Busy,
    /// Nothing, 409 without.
    Conflict,
    /// Nothing, 422. A receiver that enforces keys answers every request of that key so.
    Refuse,
    /// Nothing, 401: asked before the key is looked at.
    Unauthorized,
}

/// One thing that is wrong on purpose, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// `settle.sql` without its token.
    SettleWithoutToken,
    /// A claim takes rows whose lease is not over.
    ClaimIgnoresLease,
    /// A claim of an expired lease does not count an unknown attempt.
    ExpiredLeaseNotCounted,
    /// A claim does not write its lease into `next_attempt_at`.
    LeaseNotDue,
    /// What should park dies.
    DeadInDoubt,
    /// What nobody knows is taken for success.
    UnknownIsSuccess,
    /// The relay believes that the receiver enforces keys.
    BelievesInKeys,
    /// A release gives back a row whose expired lease was found, and with it forgets the doubt.
    ReleaseForgetsExpiredLease,
    /// The key window is judged by the age at the claim, however long the row waited for its slot.
    WindowAtClaim,
    /// The key window is not judged at all.
    NoWindow,
    /// A retry gives its attempt back.
    RetryGivesBack,
    /// A wait begins the row's age anew.
    WaitIsYoung,
    /// A claim does not see that the row's authority has ended.
    NeverExpires,
    /// Attempts are not limited.
    NoLimit,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub rows: usize,
    pub workers: usize,
    /// The relay's policy.
    pub policy: Policy,
    /// Whether the receiver really does a key's work once.
    pub deduplicates: bool,
    /// What the receiver may do.
    pub does: Vec<Does>,
    /// Length of a lease in ticks.
    pub lease: u8,
    /// `retry.maxAge` in ticks.
    pub max_age: u8,
    /// `idempotency.window` in ticks; past it the receiver may forget the key.
    pub window: Option<u8>,
    /// `expires_at`, in ticks after the insert.
    pub expires: Option<u8>,
    /// How often a person acts.
    pub acts: u8,
    /// How many things go wrong at most; `None`: any number.
    pub mishaps: Option<u8>,
    pub mutation: Option<Mutation>,
}

/// Every answer.
pub const ALL: [Does; 7] =
    [Does::Execute, Does::ExecuteAndFail, Does::Fail, Does::Busy, Does::Conflict, Does::Refuse, Does::Unauthorized];

impl Setup {
    /// One row, two workers, a receiver that enforces keys and remembers them for ever.
    pub fn enforced() -> Self {
        Self::new("Enforced, keys remembered for ever", true, None)
    }

    /// A receiver that forgets a key after its window.
    pub fn window() -> Self {
        Self::new("Enforced, keys forgotten after a window", true, Some(2))
    }

    /// A receiver that does not deduplicate.
    pub fn none() -> Self {
        Self::new("None", false, None)
    }

    fn new(name: &'static str, deduplicates: bool, window: Option<u8>) -> Self {
        let (max_attempts, max_age) = (2, 2);
        Self {
            name,
            rows: 1,
            workers: 2,
            policy: policy(deduplicates, window, max_attempts, max_age),
            deduplicates,
            does: ALL.to_vec(),
            lease: 1,
            max_age,
            window,
            expires: None,
            acts: 0,
            mishaps: None,
            mutation: None,
        }
    }

    pub fn acts(self, acts: u8) -> Self {
        Self { acts, ..self }
    }

    pub fn attempts(mut self, max_attempts: u8) -> Self {
        self.policy.max_attempts = max_attempts.into();
        self
    }

    pub fn with(mut self, mutation: Mutation) -> Self {
        match mutation {
            Mutation::BelievesInKeys => self.policy.receiver_enforces_keys = true,
            Mutation::NoWindow => self.policy.key_window = None,
            _ => {}
        }
        Self { mutation: Some(mutation), ..self }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rows, workers, policy, acts, .. } = self;
        write!(f, "{name}; rows {rows}, workers {workers}, attempts {}, acts of a person {acts}", policy.max_attempts)?;
        match self.mishaps {
            Some(mishaps) => write!(f, ", mishaps {mishaps}"),
            None => Ok(()),
        }
    }
}

/// A policy, read from a document as the relay reads it. Times are in hours, which are the model's ticks.
pub fn policy(enforced: bool, window: Option<u8>, max_attempts: u8, max_age: u8) -> Policy {
    let mut text = format!(
        "apiVersion: outbox-operator.dev/v1alpha1\nkind: OutboxRelay\nmetadata: {{name: model}}\nspec:\n  \
         database: {{urlSecretRef: {{name: db, key: uri}}}}\n  policyRef: {{name: model}}\n---\n\
         apiVersion: outbox-operator.dev/v1alpha1\nkind: DispatchPolicy\nmetadata: {{name: model}}\nspec:\n  \
         retry: {{maxAttempts: {max_attempts}, maxAge: {max_age}h}}\n  idempotency:\n    receiver: {}\n",
        if enforced { "Enforced" } else { "None" }
    );
    if let Some(window) = window {
        writeln!(text, "    window: {window}h").unwrap();
    }
    let documents = spec::read([("model.yaml", text.as_str())]).unwrap();
    spec::resolve(&documents.relays[0], &documents.policies).unwrap().policies.own.policy
}
