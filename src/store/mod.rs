//! The only place with SQL.
//!
//! Every statement runs inside `BEGIN .. COMMIT` with unnamed prepared statements and a statement timeout set by
//! `SET LOCAL`, so that it works through a pooler in transaction mode. Every comparison and every new instant is the
//! database's clock; delays are passed as intervals. No transaction of this module spans anything but the database.

pub mod backlog;
mod claim;
mod connect;
mod destinations;
mod error;
pub mod migrate;
mod order;
mod payload;
pub mod people;
mod pre_dispatch;
mod preflight;
mod relays;
mod renew;
mod retention;
mod routes;
mod settle;
mod table;
mod workers;

pub use claim::{Again, Claim, ClaimPolicy, ClaimRequest, Claimed, Position, claim};
pub use connect::{ConnectSettings, Db, SslSettings};
pub use destinations::{Caps, Signals};
pub use error::StoreError;
pub use order::wake;
pub use payload::{Loaded, load_payload, payload_size};
pub use pre_dispatch::{check, find_function};
pub use preflight::{Preflight, preflight};
pub use relays::{Registered, Registration, register, unregister};
pub use renew::renew;
pub use retention::{Cursor, Removed, Sweep, remove};
pub use settle::{AttemptRecord, SettleRow, settle};
pub use table::TableName;
pub use workers::{Heartbeat, beat, leave};
