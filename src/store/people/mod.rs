//! What people do with rows: look at them, send dead ones again, settle uncertain ones, take rows back.
//!
//! Every act writes its record into the history in the transaction that changes the row: who, when, by which filter, and
//! why. An act moves only rows of the state that it is about; a row in another state is refused with the state's name.
//! Bulk acts go in batches of [`BATCH`] rows a transaction, so that no lock is held long and what is done stays done.

mod act;
mod batches;
mod cancel;
mod enqueue;
mod history;
mod holds;
mod list;
mod replay;
mod resolve;
mod revise;
mod selection;
mod status;

pub use act::{Done, Refused, Signature, Stopped, Why};
pub use cancel::cancel;
pub use enqueue::{Enqueued, NewRow, enqueue};
pub use history::{Record, Shown, show};
pub use holds::{HeldHere, HoldAct, HoldChanged, HoldRefusal, Until, change_hold, list_holds};
pub use list::{Listing, Row, list_dead, list_uncertain};
pub use replay::{Replay, dismiss, out_of_order, preview_dismiss, preview_replay, replay};
pub use resolve::{Resolution, preview_resolve, resolve};
pub use revise::{Revised, Revision, revise};
pub use selection::{DestinationFilter, Filter, Moment, Selection};
pub use status::{DestinationBacklog, HeldDestination, OldestDue, StatusFilter, StatusReport, TopError, status};

use std::time::Duration;

use super::{Db, StoreError, TableName, migrate};

/// Rows that one transaction of a bulk act changes at most.
pub const BATCH: i64 = 1_000;
/// The server ends a statement of a person after this time: a full batch behind a lock that an application holds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes sure that the table is migrated far enough for the acts of this module.
pub async fn ready(db: &Db, table: &TableName) -> Result<(), StoreError> {
    let act = "look at the table's version";
    let found = db
        .bounded(act, STATEMENT_TIMEOUT, async {
            let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
            let found = migrate::version(&mut tx, table).await?;
            tx.commit().await.map_err(StoreError::sql(act))?;
            Ok(found)
        })
        .await?;
    match found {
        Some(found) if found >= migrate::LATEST => Ok(()),
        Some(found) => Err(StoreError::Preflight(format!(
            "{} is at version {found} and {} is needed: run `outbox migrate`",
            table.qualified(),
            migrate::LATEST
        ))),
        None => Err(StoreError::Preflight(format!(
            "there is no outbox table {}, or it was never migrated: name it by --schema and --table, or run `outbox migrate`",
            table.qualified()
        ))),
    }
}
