//! Whether a relay may start on a table: its shape and the role's rights.

use std::time::Duration;

use super::{Db, StoreError, TableName, migrate};
use crate::domain::settings::{Removal, Retention};

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

/// What a role needs to serve the table: rights on relations.
fn needs(table: &TableName, retention: &Retention) -> Vec<(String, &'static str)> {
    let mut needs = Vec::new();
    let mut need = |relation: String, rights: &[&'static str]| {
        needs.extend(rights.iter().map(|right| (relation.clone(), *right)));
    };
    need(table.migrations(), &["SELECT"]);
    need(table.qualified(), &["SELECT", "UPDATE"]);
    need(table.workers(), &["SELECT", "INSERT", "UPDATE", "DELETE"]);
    need(table.relays(), &["SELECT", "INSERT", "UPDATE", "DELETE"]);
    need(table.destinations(), &["SELECT", "INSERT", "UPDATE"]);
    need(table.history(), &["INSERT"]);
    for (removal, _) in retention.removals() {
        match removal {
            Removal::Succeeded | Removal::Dead => need(table.qualified(), &["DELETE"]),
            Removal::Payload => {}
            Removal::History => need(table.history(), &["SELECT", "DELETE"]),
        }
    }
    if retention.removals().next().is_some() {
        need(table.cleaners(), &["SELECT", "INSERT", "UPDATE"]);
    }
    needs
}

/// Looks at the role's rights on what is there, and at the table's version. A missing right is an error that names it.
pub async fn preflight(db: &Db, table: &TableName, retention: &Retention) -> Result<Preflight, StoreError> {
    let act = "look at the table before the start";
    db.bounded(act, STATEMENT_TIMEOUT, async {
        let mut tx = db.begin(STATEMENT_TIMEOUT).await?;
        let wanted = needs(table, retention);
        let missing: Vec<String> = sqlx::query_scalar(
            "SELECT format('GRANT %s ON %s TO %I', string_agg(w.right, ', ' ORDER BY w.right), w.relation, current_user) \
             FROM unnest($1::text[], $2::text[]) AS w (relation, \"right\") \
             WHERE NOT has_table_privilege(to_regclass(w.relation), w.right) GROUP BY w.relation ORDER BY w.relation",
        )
        .persistent(false)
        .bind(wanted.iter().map(|(relation, _)| relation.clone()).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(_, right)| (*right).to_owned()).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await
        .map_err(StoreError::sql(act))?;
        if !missing.is_empty() {
            return Err(StoreError::Preflight(format!(
                "the role lacks rights, which the tables' owner can give: {}",
                missing.join("; ")
            )));
        }
        let found = migrate::version(&mut tx, table).await?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        let ready = found.is_some_and(|found| found >= migrate::LATEST);
        Ok(if ready { Preflight::Ready } else { Preflight::SchemaOld { found } })
    })
    .await
}
