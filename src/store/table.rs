//! The names of the outbox table and of the small tables beside it, quoted for SQL.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// PostgreSQL cuts longer identifiers silently, so ours are never longer.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// A schema-qualified outbox table. Both parts are taken as they are and quoted, so `"Tenant-A"."Outbox Rows"` works.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    schema: String,
    table: String,
}

impl TableName {
    /// Names a table. Neither part is quoted yet.
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Self {
        Self { schema: schema.into(), table: table.into() }
    }

    /// The schema, unquoted.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table without its schema, unquoted.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The table for SQL: `"public"."agent_outbox"`.
    pub fn qualified(&self) -> String {
        self.in_schema(&self.table)
    }

    /// The table of live workers, for SQL.
    pub fn workers(&self) -> String {
        self.beside("workers")
    }

    /// The table of applied migrations, for SQL.
    pub fn migrations(&self) -> String {
        self.beside("migrations")
    }

    /// The history of attempts and acts, for SQL.
    pub fn history(&self) -> String {
        self.beside("history")
    }

    /// The table of cleaners, for SQL.
    pub fn cleaners(&self) -> String {
        self.beside("cleaners")
    }

    /// Which relays serve whose rows.
    pub fn relays(&self) -> String {
        self.beside("relays")
    }

    /// An object beside the table, for SQL: `"public"."agent_outbox_cancel"`.
    pub fn beside(&self, suffix: &str) -> String {
        self.in_schema(&self.side_name(suffix))
    }

    /// The table of destinations, for SQL.
    pub fn destinations(&self) -> String {
        self.in_schema(&self.side_name("destinations"))
    }

    /// The name of an object beside the table, unquoted and without schema: `agent_outbox_workers`. A name that would be
    /// too long is cut and carries a hash of the table's name, so that two long names stay apart.
    pub fn side_name(&self, suffix: &str) -> String {
        let whole = format!("{}_{suffix}", self.table);
        if whole.len() <= MAX_IDENTIFIER_BYTES {
            return whole;
        }
        let mut tag = String::new();
        for byte in Sha256::digest(self.table.as_bytes()).iter().take(4) {
            let _ = write!(tag, "{byte:02x}");
        }
        let mut cut = MAX_IDENTIFIER_BYTES - suffix.len() - tag.len() - 2;
        while !self.table.is_char_boundary(cut) {
            cut -= 1;
        }
        format!("{}_{tag}_{suffix}", &self.table[..cut])
    }

    /// An object of the table's schema, for SQL.
    pub fn in_schema(&self, name: &str) -> String {
        format!("{}.{}", quote(&self.schema), quote(name))
    }
}

/// Quotes an identifier.
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Quotes a text literal for SQL that cannot take parameters (DDL, functions' bodies).
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_they_hold() {
        let name = TableName::new("Tenant-A", "Outbox \"Rows\"");
        assert_eq!(name.qualified(), r#""Tenant-A"."Outbox ""Rows""""#);
        assert_eq!(name.workers(), r#""Tenant-A"."Outbox ""Rows""_workers""#);
    }

    #[test]
    fn side_names_of_long_tables_fit_and_stay_apart() {
        let (a, b) = (TableName::new("s", "å".repeat(31)), TableName::new("s", format!("{}b", "å".repeat(30))));
        let (a, b) = (a.side_name("migrations"), b.side_name("migrations"));
        assert!(a.len() <= 63 && b.len() <= 63);
        assert_ne!(a, b);
    }
}
