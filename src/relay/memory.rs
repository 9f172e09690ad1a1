//! Memory for payloads. Small ones come with their claim; a large one is loaded when its turn comes, into room that it keeps
//! until the last of its bytes is gone. Nothing is loaded without room, so a process never holds more than its budget.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rand::RngExt;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Inner;
use crate::{
    domain::{memory, settings::RelaySettings},
    http::Body,
    store::{self, Claimed, Loaded, StoreError},
};

/// Bytes that one permit stands for: a semaphore counts in 32 bits.
const PERMIT_BYTES: u64 = 1024;
/// How long a row is put off that finds neither memory nor a place to wait for it; up to as much again is added, so that
/// such rows do not come back all at once.
const PUT_OFF: Duration = Duration::from_secs(1);

/// How long a row is put off whose payload took too long.
const TOO_SLOW: Duration = Duration::from_mins(5);

/// A process's memory for payloads.
pub struct Memory {
    small_payload: u64,
    /// Room for large payloads; first come, first served.
    large: Arc<Semaphore>,
    /// Places to wait for room.
    waiting: Semaphore,
    /// One payload is loaded at a time: the other connections are the claim's and the settle's.
    loading: Semaphore,
}

/// Whether a row's turn has come.
pub enum Turn {
    /// Its payload, or why there is none.
    Come(Body),
    /// The row goes back for this time.
    PutOff(Duration),
    /// The row is no longer ours.
    Lost,
}

/// The relay was told to stop: another process may take the row at once.
const STOPPED: Turn = Turn::PutOff(Duration::ZERO);

/// A payload and the room that it takes.
struct Housed {
    bytes: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Housed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A payload that came with its claim.
pub fn small_body(payload: String, kept: Option<&[u8]>) -> Body {
    let changed = kept.is_some_and(|kept| Sha256::digest(payload.as_bytes()).as_slice() != kept);
    if changed { Body::Changed } else { Body::Unchanged(payload.into()) }
}

impl Memory {
    /// The memory that settings give.
    pub fn new(settings: &RelaySettings) -> Self {
        let rows = settings.concurrency + settings.claim_batch.unwrap_or(settings.concurrency);
        let permits = memory::large_part(settings.memory_budget) / PERMIT_BYTES;
        Self {
            small_payload: memory::small_payload(settings.memory_budget, rows),
            large: Arc::new(Semaphore::new(usize::try_from(permits).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS))),
            waiting: Semaphore::new(memory::waiting_room(settings.concurrency)),
            loading: Semaphore::new(1),
        }
    }

    /// Largest payload that comes with a claim, in bytes.
    pub fn small_payload(&self) -> u64 {
        self.small_payload
    }

    /// Waits for room and loads a row's payload. A row that has to wait drops `begun`, so that the claimer goes on to others.
    /// `largest` is what the row's policy lets through.
    pub async fn body(
        &self,
        inner: &Inner,
        largest: u64,
        row: &Claimed,
        begun: &mut Option<oneshot::Sender<()>>,
    ) -> Turn {
        match self.load(inner, largest, row, begun).await {
            Ok(turn) => turn,
            // Tried again at once it would keep the other large payloads from being loaded.
            Err(error) if error.is_out_of_time() => {
                tracing::warn!(id = row.id, %error, "a payload takes too long to load; the row goes back");
                Turn::PutOff(TOO_SLOW)
            }
            Err(error) if error.may_be_a_rows() => Turn::Come(Body::Unreadable(error.sqlstate().unwrap_or_default())),
            Err(error) => {
                tracing::debug!(id = row.id, %error, "cannot load a payload; the row goes back");
                put_off()
            }
        }
    }

    async fn load(
        &self,
        inner: &Inner,
        largest: u64,
        row: &Claimed,
        begun: &mut Option<oneshot::Sender<()>>,
    ) -> Result<Turn, StoreError> {
        let (db, table) = (&inner.relay.db, &inner.relay.table);
        // Where there is room for the largest payload that may be sent, its size need not be asked for.
        let mut room = Arc::clone(&self.large).try_acquire_many_owned(permits(largest)).ok();
        if room.is_none() {
            let Ok(_place) = self.waiting.try_acquire() else { return Ok(put_off()) };
            drop(begun.take());
            let measured = {
                let Some(_turn) = until_stopped(inner, self.loading.acquire()).await else { return Ok(STOPPED) };
                store::payload_size(db, table, row.id, row.token).await?
            };
            let Some(size) = measured else { return Ok(Turn::Lost) };
            if size > largest {
                return Ok(Turn::Come(Body::TooLarge(size)));
            }
            room = until_stopped(inner, Arc::clone(&self.large).acquire_many_owned(permits(size))).await;
        }
        let Some(mut room) = room else { return Ok(STOPPED) };
        let Some(_turn) = until_stopped(inner, self.loading.acquire()).await else { return Ok(STOPPED) };
        let limit = largest.min(room.num_permits() as u64 * PERMIT_BYTES);
        Ok(match store::load_payload(db, table, row.id, row.token, limit).await? {
            Loaded::Here { changed: true, .. } => Turn::Come(Body::Changed),
            Loaded::Here { bytes, .. } => {
                let taken = permits(bytes.len() as u64) as usize;
                drop(room.split(room.num_permits().saturating_sub(taken)));
                Turn::Come(Body::Unchanged(Bytes::from_owner(Housed { bytes, _room: room })))
            }
            Loaded::TooLarge { bytes } if bytes > largest => Turn::Come(Body::TooLarge(bytes)),
            // It has grown since it was measured.
            Loaded::TooLarge { .. } => put_off(),
            Loaded::Lost => Turn::Lost,
        })
    }
}

/// The permits that so many bytes take.
fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

fn put_off() -> Turn {
    Turn::PutOff(PUT_OFF + PUT_OFF.mul_f64(rand::rng().random::<f64>()))
}

/// What comes, unless the relay is told to stop before.
async fn until_stopped<T, E>(inner: &Inner, coming: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::select! {
        biased;
        () = inner.stop.cancelled() => None,
        come = coming => come.ok(),
    }
}
