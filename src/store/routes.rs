//! Routes in SQL: the number of the policy that a row goes by, as [`Routing::policy_of`] says it.

use std::fmt::Write as _;

use super::TableName;
use crate::domain::routing::{MAX_CHARS, Routing};

/// The number of the policy of a row `t`; `None` where all rows have one policy.
pub(super) fn policy(table: &TableName, routing: &Routing) -> Option<String> {
    if routing.routes.is_empty() {
        return None;
    }
    let mut cases = String::new();
    for route in &routing.routes {
        let operations: Vec<String> = route.operations.iter().map(|name| text(name)).collect();
        let endpoints: Vec<String> = route
            .endpoints
            .iter()
            .map(|pattern| {
                format!(
                    "(e.origin LIKE {} ESCAPE '!' AND e.path LIKE {} ESCAPE '!')",
                    like(pattern.origin()),
                    like(pattern.path())
                )
            })
            .collect();
        let mut conditions = Vec::new();
        if !operations.is_empty() {
            conditions.push(format!("t.operation IN ({})", operations.join(", ")));
        }
        if !endpoints.is_empty() {
            conditions.push(format!("e.ascii AND ({})", endpoints.join(" OR ")));
        }
        if conditions.is_empty() {
            conditions.push("true".to_owned());
        }
        let _ = write!(cases, " WHEN {} THEN {}", conditions.join(" AND "), route.policy);
    }
    // The origin is the column, which a trigger keeps, or the same function for a row from before it. What stands before
    // the path must be visible ASCII, so that no folding of letters makes two of them alike.
    Some(format!(
        "(SELECT CASE{cases} ELSE 0 END FROM (SELECT coalesce(t.destination, {origin}(t.endpoint)) COLLATE \"C\" AS origin, \
           CASE WHEN s.tail LIKE '/%' THEN s.tail ELSE '/' || s.tail END COLLATE \"C\" AS path, \
           s.cut !~ '^[^/?#]*//[^/?#]*[^!-~]' AS ascii \
         FROM (SELECT left(t.endpoint, {MAX_CHARS}) AS cut, \
           coalesce(substring(left(t.endpoint, {MAX_CHARS}) FROM '^[^/?#]*//[^/?#]*([^#]*)'), '') AS tail) AS s) AS e)",
        origin = table.beside("origin"),
    ))
}

/// A literal that reads the same whatever `standard_conforming_strings` says.
fn text(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// A pattern whose stars stand for any run of characters.
fn like(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len());
    for character in pattern.chars() {
        match character {
            '*' => like.push('%'),
            '%' | '_' | '!' => like.extend(['!', character]),
            other => like.push(other),
        }
    }
    text(&like)
}
