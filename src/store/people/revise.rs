//! A dead row's next version: a new intent with a new key in the place of one that cannot succeed.

use sqlx::{AssertSqlSafe, Postgres, Row, Transaction};

use super::{
    super::{Db, StoreError, TableName},
    STATEMENT_TIMEOUT,
    act::{Refused, Signature, Why},
};
use crate::domain::key::{KeyError, derive_key};

/// What the next version has in other words than the row; what is not given stays.
#[derive(Clone, Debug, Default)]
pub struct Revision {
    /// The payload as JSON text.
    pub payload: Option<String>,
    /// Where to.
    pub endpoint: Option<String>,
    /// The key; else it is derived from the arguments.
    pub key: Option<String>,
    /// The approved arguments as JSON text; else the payload.
    pub args: Option<String>,
    /// When the authority ends, in microseconds of the Unix epoch.
    pub expires_at_us: Option<i64>,
    /// Revise a row that may have been executed: the new key makes a second effect possible.
    pub accept_duplicate: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Revised {
    /// The next version stands.
    Done {
        /// The new row.
        id: i64,
        /// Its version.
        version: i64,
        /// Its key.
        key: String,
    },
    /// Nothing was changed.
    Refused(Refused),
    /// No key can be derived from these arguments.
    NoKey(KeyError),
}

/// The row as it is under its lock.
struct Old {
    status: String,
    unknown_attempts: i32,
    tenant: String,
    operation: String,
    entity: String,
    version: i64,
    payload: String,
}

/// Inserts version n+1 and marks the dead row superseded, in one transaction.
pub async fn revise(
    db: &Db,
    table: &TableName,
    id: i64,
    revision: &Revision,
    signature: &Signature,
) -> Result<Revised, StoreError> {
    let act = "revise the row";
    let outcome = db
        .bounded(act, STATEMENT_TIMEOUT, async {
            let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
            let refuse = |status, why| Ok(Revised::Refused(Refused { id, status, why }));
            let Some(old) = lock(&mut tx, table, id).await? else { return refuse(None, Why::NoSuchRow) };
            if old.status != "dead" {
                return refuse(Some(old.status), Why::State);
            }
            if old.unknown_attempts > 0 && !revision.accept_duplicate {
                return refuse(Some(old.status), Why::MayHaveRun);
            }
            let key = if let Some(key) = &revision.key {
                key.clone()
            } else {
                let args = revision.args.as_ref().or(revision.payload.as_ref()).unwrap_or(&old.payload);
                match derive_key(&old.tenant, &old.operation, &old.entity, old.version + 1, args) {
                    Ok(key) => key,
                    Err(error) => return Ok(Revised::NoKey(error)),
                }
            };
            let heir = replace(&mut tx, table, id, revision, &key, signature).await?;
            tx.commit().await.map_err(StoreError::sql(act))?;
            Ok(Revised::Done { id: heir, version: old.version + 1, key })
        })
        .await;
    match outcome {
        Err(error) if error.sqlstate().as_deref() == Some("23505") => {
            Ok(Revised::Refused(Refused { id, status: Some("dead".to_owned()), why: Why::KeyTaken }))
        }
        other => other,
    }
}

async fn lock(tx: &mut Transaction<'static, Postgres>, table: &TableName, id: i64) -> Result<Option<Old>, StoreError> {
    let act = "lock the row";
    let sql = format!(
        "SELECT status::text, unknown_attempts, tenant_id::text, operation::text, entity_id::text, intent_version::bigint, \
         payload::text FROM {} WHERE id = $1 FOR UPDATE",
        table.qualified()
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .bind(id)
        .fetch_optional(&mut **tx)
        .await
        .map_err(StoreError::sql(act))?;
    row.map(|row| {
        Ok(Old {
            status: row.try_get(0)?,
            unknown_attempts: row.try_get(1)?,
            tenant: row.try_get(2)?,
            operation: row.try_get(3)?,
            entity: row.try_get(4)?,
            version: row.try_get(5)?,
            payload: row.try_get(6)?,
        })
    })
    .transpose()
    .map_err(StoreError::sql(act))
}

async fn replace(
    tx: &mut Transaction<'static, Postgres>,
    table: &TableName,
    id: i64,
    revision: &Revision,
    key: &str,
    signature: &Signature,
) -> Result<i64, StoreError> {
    let sql = include_str!("revise.sql").replace("{table}", &table.qualified()).replace("{history}", &table.history());
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(id)
        .bind(key)
        .bind(revision.payload.clone())
        .bind(revision.endpoint.clone())
        .bind(revision.expires_at_us)
        .bind(signature.actor.clone())
        .bind(signature.note.clone())
        .fetch_one(&mut **tx)
        .await
        .map_err(StoreError::sql("put the next version in the row's place"))
}
