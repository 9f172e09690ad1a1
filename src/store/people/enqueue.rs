//! Enqueueing a row, by the function that producers call.

use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::{
    super::{Db, StoreError, TableName},
    STATEMENT_TIMEOUT,
};

/// A row to be inserted.
#[derive(Clone, Debug)]
pub struct NewRow {
    /// Whose effect it is.
    pub tenant: Uuid,
    /// The operation.
    pub operation: String,
    /// The business object.
    pub entity: String,
    /// The version of the intent.
    pub version: i32,
    /// The idempotency key.
    pub key: String,
    /// Where to.
    pub endpoint: String,
    /// The payload as JSON text.
    pub payload: String,
    /// When the authority ends, in microseconds of the Unix epoch.
    pub expires_at_us: Option<i64>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The row stands.
    New(i64),
    /// A row has this key already.
    There {
        /// That row.
        id: i64,
        /// Its state.
        status: String,
    },
}

/// Inserts a row.
pub async fn enqueue(db: &Db, table: &TableName, row: &NewRow) -> Result<Enqueued, StoreError> {
    match insert(db, table, row).await {
        Ok(id) => Ok(Enqueued::New(id)),
        Err(error) if error.sqlstate().as_deref() == Some("23505") => match find(db, table, &row.key).await? {
            Some((id, status)) => Ok(Enqueued::There { id, status }),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

async fn insert(db: &Db, table: &TableName, row: &NewRow) -> Result<i64, StoreError> {
    let act = "enqueue the row";
    let sql = format!(
        "SELECT {}(tenant => $1, operation => $2, entity => $3, key => $4, endpoint => $5, payload => $6::text::jsonb, \
         version => $7, expires_at => timestamptz 'epoch' + $8 * interval '1 microsecond')",
        table.beside("enqueue")
    );
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let id = sqlx::query_scalar(AssertSqlSafe(sql))
            .persistent(false)
            .bind(row.tenant)
            .bind(&row.operation)
            .bind(&row.entity)
            .bind(&row.key)
            .bind(&row.endpoint)
            .bind(&row.payload)
            .bind(row.version)
            .bind(row.expires_at_us)
            .fetch_one(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(id)
    })
    .await
}

async fn find(db: &Db, table: &TableName, key: &str) -> Result<Option<(i64, String)>, StoreError> {
    let act = "look for the row that has the key";
    let sql = format!("SELECT id, status::text FROM {} WHERE idempotency_key = $1", table.qualified());
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let row = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(key)
            .fetch_optional(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose().map_err(StoreError::sql(act))
    })
    .await
}
