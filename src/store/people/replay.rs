//! Dead rows: sent again, or dismissed.

use std::time::Duration;

use super::{
    super::{Db, StoreError, TableName, claim::micros},
    act::{Done, Signature, Stopped},
    batches::{self, Kind},
    list::{self, Listing},
    selection::{PgQuery, Selection},
};

/// When a row died; rows of an adopted table may not say.
pub(super) const DEAD_WHEN: &str = "coalesce(t.completed_at, t.created_at)";

/// Attempts, waits and age are counted anew; key, first dispatch and unknown attempts stay. Where an attempt may have been
/// executed, or its answer is stored, the receiver must still know the key: the window is parameter 14. A person who
/// accepts a duplicate (parameter 15) begins a new window with the next dispatch, else the relay would park the row again.
const REPLAY: Kind = Kind {
    act: "replay",
    from: "dead",
    when: DEAD_WHEN,
    refusal: "WHEN NOT $15::boolean AND (t.unknown_attempts > 0 OR t.answered_5xx) \
              AND t.first_dispatch_at <= now() - $14::bigint * interval '1 microsecond' THEN 'key_window'",
    forced: "$15 AND (t.unknown_attempts > 0 OR t.answered_5xx) \
             AND ($14 IS NULL OR t.first_dispatch_at <= now() - $14 * interval '1 microsecond')",
    set: "status = 'pending', attempts = 0, waits = 0, retry_since = NULL, completed_at = NULL, reason = NULL, \
          first_dispatch_at = CASE WHEN placed.forced THEN NULL ELSE t.first_dispatch_at END, \
          next_attempt_at = timestamptz 'epoch' + ($16::bigint + ($17::bigint::float8 \
              * least($18::bigint + placed.position, $19::bigint) / greatest($19, 1))::bigint) * interval '1 microsecond'",
};

/// The effect will never happen, and somebody says that this is right.
const DISMISS: Kind = Kind {
    act: "dismiss",
    from: "dead",
    when: DEAD_WHEN,
    refusal: "",
    forced: "false",
    set: "status = 'cancelled', completed_at = now()",
};

/// How dead rows are sent again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replay {
    /// How long the receiver remembers a key; `None`: not known, so nothing is refused for it.
    pub key_window: Option<Duration>,
    /// Send a row again even if the receiver may have executed it and has forgotten the key.
    pub accept_duplicate: bool,
    /// The rows become due evenly over this time.
    pub spread: Duration,
}

impl Replay {
    fn bind<'q>(&self, query: PgQuery<'q>, place: batches::Place) -> PgQuery<'q> {
        query
            .bind(self.key_window.map(micros))
            .bind(self.accept_duplicate)
            .bind(place.began_us)
            .bind(micros(self.spread))
            .bind(place.moved)
            .bind(place.total)
    }
}

/// Moves dead rows back to pending.
pub async fn replay(
    db: &Db,
    table: &TableName,
    selection: &Selection,
    signature: &Signature,
    how: &Replay,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Done, Stopped> {
    batches::run(db, table, &REPLAY, selection, signature, |query, place| how.bind(query, place), progress).await
}

/// What [`replay`] would move.
pub async fn preview_replay(
    db: &Db,
    table: &TableName,
    selection: &Selection,
    how: &Replay,
    shown: i64,
    payload: bool,
) -> Result<Listing, StoreError> {
    list::preview(db, table, &REPLAY, selection, shown, payload, |query, place| how.bind(query, place)).await
}

/// Takes dead rows off the list for good.
pub async fn dismiss(
    db: &Db,
    table: &TableName,
    selection: &Selection,
    signature: &Signature,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Done, Stopped> {
    batches::run(db, table, &DISMISS, selection, signature, |query, _| query, progress).await
}

/// What [`dismiss`] would move.
pub async fn preview_dismiss(
    db: &Db,
    table: &TableName,
    selection: &Selection,
    shown: i64,
    payload: bool,
) -> Result<Listing, StoreError> {
    list::preview(db, table, &DISMISS, selection, shown, payload, |query, _| query).await
}
