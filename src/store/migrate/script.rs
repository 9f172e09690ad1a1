//! The files of `migrations/` as steps, with the names of one table filled in. Pure.

use super::{
    super::TableName,
    super::table::{literal, quote},
    regclass_literal,
};

/// One file: a version and its steps.
#[derive(Clone, Debug)]
pub struct Script {
    /// The version, from the file's name.
    pub version: i32,
    /// The file's name without version and ending.
    pub name: &'static str,
    /// In order.
    pub steps: Vec<Step>,
}

/// One statement, or one block, that may be run again.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it does, for people.
    pub title: String,
    /// Set when the step builds an index outside a transaction.
    pub index: Option<Index>,
    /// The SQL.
    pub sql: String,
}

/// An index that a step builds.
#[derive(Clone, Debug)]
pub struct Index {
    /// Its name, unquoted.
    pub name: String,
    /// Whether any unique index over the key does as well.
    pub unique_key: bool,
}

const FILES: &[(i32, &str, &str)] = &[
    (1, "outbox_table", include_str!("../../../migrations/0001_outbox_table.sql")),
    (2, "people_and_producers", include_str!("../../../migrations/0002_people_and_producers.sql")),
    (3, "destinations", include_str!("../../../migrations/0003_destinations.sql")),
    (4, "acts_on_destinations", include_str!("../../../migrations/0004_acts_on_destinations.sql")),
    (5, "retention", include_str!("../../../migrations/0005_retention.sql")),
    (6, "order", include_str!("../../../migrations/0006_order.sql")),
    (7, "relays", include_str!("../../../migrations/0007_relays.sql")),
    (8, "last_dispatch", include_str!("../../../migrations/0008_last_dispatch.sql")),
    (9, "rights", include_str!("../../../migrations/0009_rights.sql")),
];

/// The name of the unique index over the key: the published one, or one of the table's own where that name is taken.
pub fn key_index(table: &TableName, published_name_is_free: bool) -> String {
    if published_name_is_free { "uq_outbox_key".to_owned() } else { table.side_name("uq_key") }
}

/// All versions in order, for one table.
pub fn all(table: &TableName, key_index: &str) -> Vec<Script> {
    FILES.iter().map(|&(version, name, text)| Script { version, name, steps: steps(text, table, key_index) }).collect()
}

fn steps(text: &str, table: &TableName, key_index: &str) -> Vec<Step> {
    text.split("\n-- step: ")
        .skip(1)
        .map(|part| {
            let (title, body) = part.split_once('\n').unwrap_or((part, ""));
            let index = title.strip_prefix("index ").map(|rest| {
                let placeholder = rest.split_whitespace().next().unwrap_or_default();
                Index {
                    name: index_name(placeholder.trim_matches(['{', '}']), table, key_index),
                    unique_key: rest.ends_with(" unique"),
                }
            });
            let sql: String = body.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
            Step {
                title: fill(title, table, key_index, false),
                index,
                sql: fill(sql.trim().trim_end_matches(';'), table, key_index, true),
            }
        })
        .collect()
}

/// Fills in placeholders: `{table}`, `{side_NAME}` and `{function_NAME}` for the table and objects beside it, `{index_NAME}`
/// for indexes, and `{table_literal}`, `{side_NAME_literal}` and `{index_key_literal}` as text for catalogues.
fn fill(text: &str, table: &TableName, key_index: &str, quoted: bool) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((name, tail)) = after.split_once('}') else {
            filled.push('{');
            rest = after;
            continue;
        };
        match value(name, table, key_index, quoted) {
            Some(value) => filled.push_str(&value),
            None => {
                filled.push('{');
                filled.push_str(name);
                filled.push('}');
            }
        }
        rest = tail;
    }
    filled.push_str(rest);
    filled
}

fn value(name: &str, table: &TableName, key_index: &str, quoted: bool) -> Option<String> {
    let beside =
        |suffix: &str| if quoted { table.in_schema(&table.side_name(suffix)) } else { table.side_name(suffix) };
    match name {
        "table" => Some(table.qualified()),
        "table_literal" => Some(regclass_literal(table)),
        "index_key_literal" => Some(literal(key_index)),
        _ => {
            if let Some(suffix) = name.strip_prefix("side_").and_then(|name| name.strip_suffix("_literal")) {
                return Some(literal(&beside(suffix)));
            }
            if let Some(suffix) = name.strip_prefix("side_").or_else(|| name.strip_prefix("function_")) {
                return Some(beside(suffix));
            }
            let index = name.strip_prefix("index_").map(|_| index_name(name, table, key_index))?;
            Some(if quoted { quote(&index) } else { index })
        }
    }
}

fn index_name(placeholder: &str, table: &TableName, key_index: &str) -> String {
    match placeholder.strip_prefix("index_") {
        Some("key") => key_index.to_owned(),
        Some(suffix) => table.side_name(suffix),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_and_every_index_has_a_name() {
        let table = TableName::new("Tenant-A", "Outbox Rows");
        for script in all(&table, &key_index(&table, true)) {
            assert!(!script.steps.is_empty());
            for step in script.steps {
                assert!(
                    !step.sql.contains("{table")
                        && !step.sql.contains("{index")
                        && !step.sql.contains("{side")
                        && !step.title.contains('{'),
                    "{step:?}"
                );
                assert!(step.index.is_none_or(|index| !index.name.is_empty()));
            }
        }
    }
}
