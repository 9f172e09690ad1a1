//! Dead rows: sent again, or dismissed.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{
    super::{Db, StoreError, TableName, claim::micros},
    STATEMENT_TIMEOUT,
    act::{Done, Signature, Stopped},
    batches::{self, Kind},
    list::{self, Listing},
    selection::{PgQuery, Selection},
};

/// Replayed rows whose order is looked into at most.
const MAX_ORDERED: i64 = 10_000;
/// Rows behind them that are read for it at most.
const MAX_LATER: i64 = 200_000;

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

/// Of these rows, those that come after later ones of their entity, where a relay sends an entity's rows in order and goes
/// on without dead ones. Rows that were inserted much later are not looked at.
pub async fn out_of_order(db: &Db, table: &TableName, moved: &[i64]) -> Result<Vec<i64>, StoreError> {
    let act = "look for rows that are out of order";
    // One pass over the rows behind the first of them, so far and no farther: nothing finds a succeeded row by its entity.
    let sql = format!(
        "WITH moved AS MATERIALIZED (SELECT id, tenant_id, entity_id FROM {table} WHERE id = ANY ($1) ORDER BY id LIMIT {MAX_ORDERED}), \
         later AS MATERIALIZED (SELECT id, tenant_id, entity_id, status FROM {table} \
           WHERE id > (SELECT min(id) FROM moved) ORDER BY id LIMIT {MAX_LATER}) \
         SELECT id FROM moved WHERE EXISTS (SELECT FROM {relays} WHERE skips_dead AND seen_at > now() - interval '1 hour') \
           AND EXISTS (SELECT FROM later WHERE later.tenant_id = moved.tenant_id AND later.entity_id = moved.entity_id \
             AND later.id > moved.id AND later.status IN ('succeeded', 'in_flight', 'uncertain')) ORDER BY id",
        table = table.qualified(),
        relays = table.beside("relays"),
    );
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let ids = sqlx::query_scalar(AssertSqlSafe(sql))
            .persistent(false)
            .bind(moved.to_vec())
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(ids)
    })
    .await
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
