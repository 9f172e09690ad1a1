//! Payloads that are too large to come with their claim: loaded when their turn comes.

use std::time::Duration;

use futures::TryStreamExt as _;
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use super::{Db, StoreError, TableName};

/// The server ends a load after this time: a payload of 100 MB takes a few seconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that come in one piece. The connection's buffers grow to a few of these and stay so.
const PART_BYTES: i32 = 256 * 1024;

/// What a load found.
#[derive(Debug)]
pub enum Loaded {
    /// The payload.
    Here {
        /// `payload::text`, to be sent byte for byte. No larger than what was allowed, and no longer than its capacity.
        bytes: Vec<u8>,
        /// Whether it is no more what it was at its first attempt.
        changed: bool,
    },
    /// It is larger than what was allowed.
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The row is no longer this claim's.
    Lost,
}

/// The size of a claimed row's payload as text, in bytes; `None` when the row is no longer this claim's.
pub async fn payload_size(db: &Db, table: &TableName, id: i64, token: Uuid) -> Result<Option<u64>, StoreError> {
    let act = "measure a payload";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let sql = format!(
            "SELECT octet_length(convert_to(payload::text, 'UTF8')) FROM {} WHERE id = $1 AND claim_token = $2 AND status = 'in_flight'",
            table.qualified()
        );
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let size: Option<i32> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind(id)
            .bind(token)
            .fetch_optional(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(size.map(|size| u64::try_from(size).unwrap_or(0)))
    })
    .await
}

/// Loads a claimed row's payload if it has at most `limit` bytes. Its hash is kept before it can be sent, so that a payload
/// edited later is not sent under the old key unnoticed.
pub async fn load_payload(db: &Db, table: &TableName, id: i64, token: Uuid, limit: u64) -> Result<Loaded, StoreError> {
    let act = "load a payload";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let sql = include_str!("payload.sql").replace("{table}", &table.qualified());
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let mut rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind(id)
            .bind(token)
            .bind(i32::try_from(limit).unwrap_or(i32::MAX))
            .bind(PART_BYTES)
            .fetch(&mut *tx);
        let mut loading: Option<Loading> = None;
        while let Some(row) = rows.try_next().await.map_err(StoreError::sql(act))? {
            loading
                .get_or_insert(Loading::of(&row).map_err(StoreError::sql(act))?)
                .take(&row)
                .map_err(StoreError::sql(act))?;
        }
        drop(rows);
        let Some(loading) = loading else { return Ok(Loaded::Lost) };
        let Some(hash) = loading.hash else { return Ok(Loaded::TooLarge { bytes: loading.size }) };
        if loading.kept.is_none() {
            let sql = format!(
                "UPDATE {} SET payload_hash = $3 WHERE id = $1 AND claim_token = $2 AND payload_hash IS NULL",
                table.qualified()
            );
            let kept = sqlx::query(sqlx::AssertSqlSafe(sql))
                .persistent(false)
                .bind(id)
                .bind(token)
                .bind(&hash)
                .execute(&mut *tx)
                .await
                .map_err(StoreError::sql(act))?;
            if kept.rows_affected() == 0 {
                return Ok(Loaded::Lost);
            }
        }
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(Loaded::Here { changed: loading.kept.is_some_and(|kept| kept != hash), bytes: loading.bytes })
    })
    .await
}

/// A payload of which parts have come.
struct Loading {
    size: u64,
    kept: Option<Vec<u8>>,
    /// None when the payload is too large.
    hash: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Loading {
    fn of(first: &PgRow) -> Result<Self, sqlx::Error> {
        let size = usize::try_from(first.try_get::<i32, _>("octets")?).unwrap_or(0);
        let hash: Option<Vec<u8>> = first.try_get("hash")?;
        // Room for all of it at once: growing would copy it.
        let bytes = Vec::with_capacity(if hash.is_some() { size } else { 0 });
        Ok(Self { size: size as u64, kept: first.try_get("kept")?, hash, bytes })
    }

    fn take(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        if let Some(part) = row.try_get::<Option<&[u8]>, _>("part")? {
            self.bytes.extend_from_slice(part);
        }
        Ok(())
    }
}
