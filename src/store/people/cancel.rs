//! Cancelling rows, by the function that producers call.

use sqlx::{AssertSqlSafe, postgres::PgDatabaseError};

use super::{
    super::{Db, StoreError, TableName},
    STATEMENT_TIMEOUT,
    act::{Done, Refused, Signature, Stopped, Why},
};

/// Cancels rows one by one, each in a transaction of its own. `allow_unknown`: also rows that may have been executed.
pub async fn cancel(
    db: &Db,
    table: &TableName,
    ids: &[i64],
    allow_unknown: bool,
    signature: &Signature,
) -> Result<Done, Stopped> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let mut done = Done::default();
    for id in ids {
        match one(db, table, id, allow_unknown, signature).await {
            Ok(true) => done.moved.push(id),
            Ok(false) => done.refused.push(Refused { id, status: None, why: Why::NoSuchRow }),
            Err(error) => match refusal(&error) {
                Some((status, message)) => {
                    done.refused.push(Refused { id, status, why: Why::Said(message) });
                }
                None => return Err(Stopped { done, source: error }),
            },
        }
    }
    Ok(done)
}

async fn one(
    db: &Db,
    table: &TableName,
    id: i64,
    allow_unknown: bool,
    signature: &Signature,
) -> Result<bool, StoreError> {
    let act = "cancel the row";
    let sql = format!(
        "SELECT {}(t.idempotency_key::text, note => $2, allow_unknown => $3, actor => $4) FROM {} AS t WHERE t.id = $1",
        table.beside("cancel"),
        table.qualified()
    );
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let row = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(id)
            .bind(signature.note.clone())
            .bind(allow_unknown)
            .bind(signature.actor.clone())
            .fetch_optional(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        Ok(row.is_some())
    })
    .await
}

/// State and words of a refusal, if the error is one.
fn refusal(error: &StoreError) -> Option<(Option<String>, String)> {
    let StoreError::Sql { source: sqlx::Error::Database(source), .. } = error else { return None };
    if source.code().as_deref() != Some("OB409") {
        return None;
    }
    let detail = source.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::detail);
    Some((detail.map(str::to_owned), source.message().to_owned()))
}
