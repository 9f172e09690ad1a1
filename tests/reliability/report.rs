//! What the tests of this crate share: their length, their turn, and lines that the harness does not swallow.

use std::io::Write as _;

/// Whether the long forms run.
pub fn full() -> bool {
    std::env::var_os("OUTBOX_TEST_FULL").is_some_and(|value| value == "1")
}

/// One heavy test at a time: each of them measures, and two cores are soon busy.
pub async fn turn() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock().await
}

/// Prints figures to standard output also where the test passes.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// A table whose columns line up: Markdown, so that it can stand in the documentation as it is.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].len()).chain([head[column].len()]).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("| {} |", cells.join(" | "))
    };
    let rule = format!("|{}|", widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|"));
    let mut lines = vec![line(head.to_vec()), rule];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}
