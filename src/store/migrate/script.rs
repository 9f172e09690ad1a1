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

const FILES: &[(i32, &str, &str)] = &[(1, "outbox_table", include_str!("../../../migrations/0001_outbox_table.sql"))];

/// The name of the unique index over the key: the published one, or one of the table's own where that name is taken.
pub fn key_index(table: &TableName, published_name_is_free: bool) -> String {
    if published_name_is_free { "uq_outbox_key".to_owned() } else { table.side_name("uq_key") }
}

/// All versions in order, for one table.
pub fn all(table: &TableName, key_index: &str) -> Vec<Script> {
    FILES.iter().map(|&(version, name, text)| Script { version, name, steps: steps(text, table, key_index) }).collect()
}

fn steps(text: &str, table: &TableName, key_index: &str) -> Vec<Step> {
    let names = [
        ("{index_key}", key_index.to_owned()),
        ("{index_claim}", table.side_name("claim")),
        ("{index_dead}", table.side_name("dead")),
    ];
    text.split("\n-- step: ")
        .skip(1)
        .map(|part| {
            let (title, body) = part.split_once('\n').unwrap_or((part, ""));
            let index = title.strip_prefix("index ").map(|rest| Index {
                name: names
                    .iter()
                    .find(|(placeholder, _)| rest.starts_with(placeholder))
                    .map_or_else(String::new, |(_, name)| name.clone()),
                unique_key: rest.ends_with(" unique"),
            });
            let sql: String = body.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
            Step {
                title: fill(title, table, &names, false),
                index,
                sql: fill(sql.trim().trim_end_matches(';'), table, &names, true),
            }
        })
        .collect()
}

fn fill(text: &str, table: &TableName, names: &[(&str, String)], quoted: bool) -> String {
    let mut text = text
        .replace("{table}", &table.qualified())
        .replace("{table_literal}", &regclass_literal(table))
        .replace("{workers}", &table.workers())
        .replace(
            "{index_key_literal}",
            &names.iter().find(|(p, _)| *p == "{index_key}").map_or_else(String::new, |(_, name)| literal(name)),
        );
    for (placeholder, name) in names {
        text = text.replace(placeholder, &if quoted { quote(name) } else { name.clone() });
    }
    text
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
                assert!(!step.sql.contains('{') && !step.title.contains('{'), "{step:?}");
                assert!(step.index.is_none_or(|index| !index.name.is_empty()));
            }
        }
    }
}
