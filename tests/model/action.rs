//! What may happen.

use super::{setup::Does, table::Word};

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes.
    Tick,
    /// The worker claims the row, and learns of it.
    Claim { worker: usize, row: usize },
    /// The claim commits, and its worker is gone or does not hear of it.
    ClaimUnheard { row: usize },
    /// The worker stops before the attempt, or cannot renew the lease that the attempt needs.
    Release { worker: usize },
    /// The lease is renewed, or found to be lost.
    Renew { worker: usize },
    /// The worker decides whether to send, and renews a lease that is too short for it.
    Check { worker: usize },
    /// No request can be built.
    CannotBuild { worker: usize },
    /// The first byte leaves.
    Begin { worker: usize },
    /// No connection stands.
    Refused { worker: usize },
    /// The request arrives, and its answer is read.
    Answer { worker: usize, does: Does },
    /// The request arrives, and its answer is lost.
    AnswerLost { worker: usize, does: Does },
    /// No answer in time, or a broken one.
    NoAnswer { worker: usize },
    /// The result is written, if the row is still the worker's.
    Settle { worker: usize },
    /// The same, but the worker does not hear of it and will try again.
    SettleUnheard { worker: usize },
    /// The worker dies.
    Crash { worker: usize },
    /// A request arrives whose sender waits no more.
    StrayArrives { row: usize, does: Does },
    /// The receiver forgets the key.
    Forget { row: usize },
    /// A person replays a dead row.
    Replay { row: usize },
    /// A person has found out what became of an uncertain row.
    Resolve { row: usize, word: Word },
}

impl Action {
    /// What goes wrong.
    pub fn is_mishap(self) -> bool {
        matches!(
            self,
            Self::ClaimUnheard { .. }
                | Self::SettleUnheard { .. }
                | Self::Crash { .. }
                | Self::NoAnswer { .. }
                | Self::AnswerLost { .. }
                | Self::Release { .. }
                | Self::Renew { .. }
                | Self::CannotBuild { .. }
        )
    }
}
