//! Whether a relay may start on a table: its shape and the role's rights.

use std::time::Duration;

use super::{Db, StoreError, TableName, migrate};

const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a relay finds before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preflight {
    /// All is there.
    Ready,
    /// The table was never migrated, or by an older program.
    SchemaOld {
        /// The version found.
        found: Option<i32>,
    },
}

/// Looks at the table's version and the role's rights. A missing right is an error that names it.
pub async fn preflight(db: &Db, table: &TableName) -> Result<Preflight, StoreError> {
    let act = "look at the table before the start";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let found = migrate::version(&mut tx, table).await?;
        if found.is_none_or(|found| found < migrate::LATEST) {
            return Ok(Preflight::SchemaOld { found });
        }
        let needs: [(String, &[&str]); 5] = [
            (table.qualified(), &["SELECT", "UPDATE"]),
            (table.workers(), &["INSERT", "UPDATE", "DELETE", "SELECT"]),
            (table.destinations(), &["SELECT", "INSERT", "UPDATE"]),
            (table.history(), &["SELECT", "INSERT", "DELETE"]),
            (table.cleaners(), &["SELECT", "INSERT", "UPDATE"]),
        ];
        let wanted: Vec<(&str, &str)> = needs
            .iter()
            .flat_map(|(relation, rights)| rights.iter().map(move |right| (relation.as_str(), *right)))
            .collect();
        let missing: Vec<String> = sqlx::query_scalar(
            "SELECT w.right || ' on ' || w.relation FROM unnest($1::text[], $2::text[]) AS w (relation, \"right\") \
             WHERE NOT has_table_privilege(w.relation, w.right)",
        )
        .persistent(false)
        .bind(wanted.iter().map(|(relation, _)| (*relation).to_owned()).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(_, right)| (*right).to_owned()).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await
        .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        if missing.is_empty() {
            return Ok(Preflight::Ready);
        }
        Err(StoreError::Preflight(format!("the role lacks rights: GRANT {}", missing.join("; GRANT "))))
    })
    .await
}
