//! Uncertain rows, once a person has found out.

use super::{
    super::{Db, StoreError, TableName},
    act::{Done, Signature, Stopped},
    batches::{self, Kind},
    list::{self, Listing},
    selection::{PgQuery, Selection},
};

/// Since when a row may have been executed, as near as the table says.
pub(super) const UNCERTAIN_WHEN: &str = "coalesce(t.first_dispatch_at, t.created_at)";

/// What a person found out about a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The effect took place.
    Succeeded {
        /// The receiver's name of it.
        downstream_id: Option<String>,
    },
    /// It did not, and shall: the row is due at once, with its key, counted anew. The receiver does not know the key, so
    /// its window begins anew too.
    Retry,
    /// It did not, and shall not by itself.
    Dead,
}

const fn kind(set: &'static str) -> Kind {
    Kind { act: "resolve", from: "uncertain", when: UNCERTAIN_WHEN, refusal: "", forced: "false", set }
}

const SUCCEEDED: Kind = kind(
    "status = 'succeeded', completed_at = now(), reason = NULL, \
     downstream_id = coalesce(left($14::text, 500), t.downstream_id)",
);
const RETRY: Kind = kind(
    "status = 'pending', attempts = 0, waits = 0, retry_since = NULL, first_dispatch_at = NULL, reason = NULL, \
     next_attempt_at = now()",
);
const DEAD: Kind = kind("status = 'dead', completed_at = now(), reason = coalesce(t.reason, 'resolved')");

impl Resolution {
    fn kind(&self) -> &'static Kind {
        match self {
            Self::Succeeded { .. } => &SUCCEEDED,
            Self::Retry => &RETRY,
            Self::Dead => &DEAD,
        }
    }

    fn bind<'q>(&self, query: PgQuery<'q>) -> PgQuery<'q> {
        match self {
            Self::Succeeded { downstream_id } => query.bind(downstream_id.clone()),
            Self::Retry | Self::Dead => query,
        }
    }
}

/// Settles uncertain rows.
pub async fn resolve(
    db: &Db,
    table: &TableName,
    selection: &Selection,
    signature: &Signature,
    resolution: &Resolution,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Done, Stopped> {
    batches::run(db, table, resolution.kind(), selection, signature, |query, _| resolution.bind(query), progress).await
}

/// What [`resolve`] would move.
pub async fn preview_resolve(
    db: &Db,
    table: &TableName,
    selection: &Selection,
    resolution: &Resolution,
    shown: i64,
    payload: bool,
) -> Result<Listing, StoreError> {
    list::preview(db, table, resolution.kind(), selection, shown, payload, |query, _| resolution.bind(query)).await
}
