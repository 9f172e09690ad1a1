//! The application's own function that says whether rows may still be sent.

use std::collections::HashMap;

use sqlx::Row;

use super::{Db, StoreError, table::quote};
use crate::domain::{
    authority::Authority,
    settings::{FunctionName, SQL_CHECK_TIMEOUT},
};

/// Longest reason that is read, in characters.
const MAX_REASON_CHARS: i32 = 200;

fn qualified(function: &FunctionName) -> String {
    match &function.schema {
        Some(schema) => format!("{}.{}", quote(schema), quote(&function.name)),
        None => quote(&function.name),
    }
}

/// Whether the function is there and may be called; else what is missing and the mend.
pub async fn find_function(db: &Db, function: &FunctionName) -> Result<(), StoreError> {
    let act = "look for the pre-dispatch function";
    let name = qualified(function);
    db.bounded(act, SQL_CHECK_TIMEOUT, async {
        let mut tx = db.begin(SQL_CHECK_TIMEOUT).await?;
        // The signature is looked up before its right: a function that is not there has none.
        let row = sqlx::query(
            "SELECT p.oid IS NOT NULL AS there, coalesce(has_function_privilege(p.oid, 'EXECUTE'), false) AS callable, \
             current_user::text AS role FROM (SELECT to_regprocedure($1)::oid AS oid) AS p",
        )
        .persistent(false)
        .bind(format!("{name}(bigint[])"))
        .fetch_one(&mut *tx)
        .await
        .map_err(StoreError::sql(act))?;
        tx.commit().await.map_err(StoreError::sql(act))?;
        let read = |column: &str| row.try_get::<bool, _>(column).map_err(StoreError::sql(act));
        let role: String = row.try_get("role").map_err(StoreError::sql(act))?;
        if !read("there")? {
            return Err(StoreError::Unready(format!(
                "preDispatch.sqlFunction: {role} finds no function {name}(ids bigint[]): create it as returning table (id bigint, allowed boolean, reason text), or grant USAGE on its schema"
            )));
        }
        if !read("callable")? {
            return Err(StoreError::Unready(format!(
                "preDispatch.sqlFunction: {role} may not call {name}: GRANT EXECUTE ON FUNCTION {name}(bigint[]) TO {role}"
            )));
        }
        Ok(())
    })
    .await
}

/// Asks the function about rows, all in one statement. A row that it says nothing of, or says two things of, has no clear
/// answer.
pub async fn check(db: &Db, function: &FunctionName, ids: &[i64]) -> Result<HashMap<i64, Authority>, StoreError> {
    let act = "call the pre-dispatch function";
    // A row more than was asked for tells of a function that answers too much, without reading all of it.
    let limit = i64::try_from(ids.len()).unwrap_or(i64::MAX).saturating_mul(2).saturating_add(1);
    let sql = format!(
        "SELECT c.id, c.allowed, left(c.reason, {MAX_REASON_CHARS}) AS reason FROM {}($1) AS c WHERE c.id = ANY ($1) LIMIT {limit}",
        qualified(function)
    );
    let rows = db
        .bounded(act, SQL_CHECK_TIMEOUT, async {
            let mut tx = db.begin(SQL_CHECK_TIMEOUT).await?;
            let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                .persistent(false)
                .bind(ids)
                .fetch_all(&mut *tx)
                .await
                .map_err(StoreError::sql(act))?;
            tx.commit().await.map_err(StoreError::sql(act))?;
            Ok(rows)
        })
        .await?;
    let mut said: HashMap<i64, Authority> = HashMap::with_capacity(ids.len());
    for row in &rows {
        let id: i64 = row.try_get("id").map_err(StoreError::sql(act))?;
        let allowed: Option<bool> = row.try_get("allowed").map_err(StoreError::sql(act))?;
        let reason: Option<String> = row.try_get("reason").map_err(StoreError::sql(act))?;
        let authority = match allowed {
            Some(true) => Authority::Allowed,
            Some(false) => Authority::Denied { why: reason.unwrap_or_default() },
            None => unclear("said neither true nor false"),
        };
        said.entry(id)
            .and_modify(|known| {
                if *known != authority {
                    *known = unclear("said two things of one row");
                }
            })
            .or_insert(authority);
    }
    for id in ids {
        said.entry(*id).or_insert_with(|| unclear("said nothing of the row"));
    }
    Ok(said)
}

fn unclear(what: &str) -> Authority {
    Authority::Unclear { detail: format!("the pre-dispatch function {what}") }
}
