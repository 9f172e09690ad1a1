//! Rows and records as JSON and YAML: field names are the columns' names.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;

use super::{super::Error, Output};
use crate::store::people::{Record, Row, Shown};

/// Prints a document. Must not be asked for a table.
pub fn print<T: Serialize>(output: Output, document: &T) -> Result<(), Error> {
    let text = match output {
        Output::Yaml => serde_yaml::to_string(document)?,
        Output::Json | Output::Table => serde_json::to_string_pretty(document)? + "\n",
    };
    super::super::print(&text);
    Ok(())
}

/// A row. JSON holds the payload as it is, digit for digit; YAML holds it as a string, for YAML's numbers are doubles.
pub struct RowDocument<'a> {
    row: &'a Row,
    output: Output,
    history: Option<&'a [Record]>,
}

impl<'a> RowDocument<'a> {
    /// A row of a list.
    pub fn new(row: &'a Row, output: Output) -> Self {
        Self { row, output, history: None }
    }
}

impl Serialize for RowDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.row;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &row.id)?;
        for (name, text) in row.texts() {
            map.serialize_entry(name, &text)?;
        }
        map.serialize_entry("intent_version", &row.intent_version)?;
        map.serialize_entry("attempts", &row.attempts)?;
        map.serialize_entry("waits", &row.waits)?;
        map.serialize_entry("unknown_attempts", &row.unknown_attempts)?;
        map.serialize_entry("answered_5xx", &row.answered_5xx)?;
        map.serialize_entry("last_http_status", &row.last_http_status)?;
        let raw = row.payload.as_deref().map(serde_json::from_str::<&RawValue>).and_then(Result::ok);
        match (self.output, raw) {
            (Output::Json, Some(raw)) => map.serialize_entry("payload", raw)?,
            _ => map.serialize_entry("payload", &row.payload)?,
        }
        if let Some(history) = self.history {
            map.serialize_entry("history", &history.iter().map(RecordDocument).collect::<Vec<_>>())?;
        }
        map.end()
    }
}

/// A record of the history.
struct RecordDocument<'a>(&'a Record);

impl Serialize for RecordDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = self.0;
        let mut map = serializer.serialize_map(None)?;
        for (name, text) in record.texts() {
            map.serialize_entry(name, &text)?;
        }
        map.serialize_entry("attempt", &record.attempt)?;
        map.serialize_entry("http_status", &record.http_status)?;
        map.serialize_entry("duration_ms", &record.duration_ms)?;
        map.serialize_entry("next_row_id", &record.next_row_id)?;
        map.serialize_entry("forced", &record.forced)?;
        map.end()
    }
}

/// Prints rows as a list.
pub fn print_rows(output: Output, rows: &[Row]) -> Result<(), Error> {
    print(output, &rows.iter().map(|row| RowDocument::new(row, output)).collect::<Vec<_>>())
}

/// Prints a row with its history; of a row that is gone, the history alone.
pub fn print_shown(output: Output, shown: &Shown) -> Result<(), Error> {
    if let Some(row) = &shown.row {
        return print(output, &RowDocument { row, output, history: Some(&shown.history) });
    }
    let history: Vec<_> = shown.history.iter().map(RecordDocument).collect();
    print(output, &serde_json::json!({ "history": serde_json::to_value(history)? }))
}
