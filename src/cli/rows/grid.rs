//! Tables that fit a terminal: one line a row, long texts cut in the middle, numbers to the right.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Between two columns.
const GAP: usize = 2;
/// Columns are not cut below this width.
const NARROWEST: usize = 6;

/// A table under construction.
pub struct Grid {
    header: Vec<&'static str>,
    numbers: &'static [usize],
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// An empty table; `numbers` are the columns that stand to the right.
    pub fn new(header: &[&'static str], numbers: &'static [usize]) -> Self {
        Self { header: header.to_vec(), numbers, rows: Vec::new() }
    }

    /// Adds a row of as many cells as the header has.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// The table for this terminal; whole where there is none.
    pub fn render(&self) -> String {
        let width = Table::new().width().map(usize::from);
        self.render_in(width)
    }

    fn render_in(&self, width: Option<usize>) -> String {
        let widths = width.map(|width| self.fit(width));
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if self.header.iter().any(|name| !name.is_empty()) {
            table.set_header(self.header.clone());
        }
        for row in &self.rows {
            table.add_row(row.iter().enumerate().map(|(place, cell)| match &widths {
                Some(widths) => cut(cell, widths[place]),
                None => cell.clone(),
            }));
        }
        let last = self.header.len().saturating_sub(1);
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if place == last { 0 } else { u16::try_from(GAP).unwrap_or(2) }));
            if self.numbers.contains(&place) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The width of each column: its longest cell, or less for the widest ones where the terminal is too narrow.
    fn fit(&self, width: usize) -> Vec<usize> {
        let length = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = self.header.iter().map(|name| length(name)).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = length(cell).max(*widest);
            }
        }
        let room = width.saturating_sub(GAP * self.header.len().saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > NARROWEST => *widest -= 1,
                _ => break,
            }
        }
        widths
    }
}

/// The text within so many characters: both ends of what is too long stay, for they tell entities and hosts apart.
pub fn cut(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (head, tail) = (kept - kept / 2, kept / 2);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// The text without what would move a terminal's cursor or change its colours: rows are data of strangers.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A span of seconds as people say it.
pub fn age(seconds: Option<i64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(s @ ..60) => format!("{}s", s.max(0)),
        Some(s @ 60..3_600) => format!("{}m", s / 60),
        Some(s @ 3_600..172_800) => format!("{}h", s / 3_600),
        Some(s) => format!("{}d", s / 86_400),
    }
}

/// A number with its thousands apart.
pub fn number(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_within_the_terminal_and_cuts_the_widest_columns() {
        let mut grid = Grid::new(&["ID", "ENTITY", "DESTINATION"], &[0]);
        grid.row(["7".to_owned(), "inv-1001".to_owned(), format!("https://{}.example", "a".repeat(80))]);
        grid.row(["12345".to_owned(), "x\u{1b}[31m\n".to_owned(), String::new()]);
        let text = grid.render_in(Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(
            text.contains("    7  inv-1001  https://aaa") && text.contains("…") && text.contains("a.example"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        assert!(grid.render_in(None).contains(&"a".repeat(80)));
    }

    #[test]
    fn numbers_and_ages_read_well() {
        let ages = [0, 59, 60, 3_599, 3_600, 172_799, 172_800].map(|s| age(Some(s)));
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h", "47h", "2d"]);
        assert_eq!([0, 999, 1_000, 1_234_567, -1_000].map(number), ["0", "999", "1,000", "1,234,567", "-1,000"]);
    }
}
