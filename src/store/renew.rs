//! Longer leases for rows that a worker still holds.

use std::{collections::HashSet, time::Duration};

use sqlx::Row;
use uuid::Uuid;

use super::{Db, StoreError, TableName, claim::micros};

const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Renews the leases of rows, given with their tokens. Returns the ids that were still the claim's.
pub async fn renew(
    db: &Db,
    table: &TableName,
    rows: &[(i64, Uuid)],
    lease: Duration,
) -> Result<HashSet<i64>, StoreError> {
    let act = "renew leases";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        // A lease that has run out is renewed all the same if nobody has claimed the row since: the token is still its own.
        let sql = format!(
            "UPDATE {} AS t SET locked_until = now() + $3 * interval '1 microsecond', \
             next_attempt_at = now() + $3 * interval '1 microsecond' \
             FROM unnest($1::bigint[], $2::uuid[]) AS held (id, token) \
             WHERE t.id = held.id AND t.claim_token = held.token AND t.status = 'in_flight' RETURNING t.id",
            table.qualified()
        );
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let renewed = sqlx::query(sqlx::AssertSqlSafe(sql))
            .persistent(false)
            .bind(rows.iter().map(|row| row.0).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.1).collect::<Vec<_>>())
            .bind(micros(lease))
            .fetch_all(&mut *tx)
            .await
            .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        renewed.iter().map(|row| row.try_get("id").map_err(StoreError::sql(act))).collect()
    })
    .await
}
