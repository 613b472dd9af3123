//! A table that can be filtered and sorted, and that fits any width.

use std::cmp::Ordering;

use ratatui::text::Span;

/// A cell: its text, and for sorting its number if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub text: String,
    pub number: Option<u64>,
}

impl Cell {
    pub(super) fn number(number: impl Into<u64>) -> Self {
        let number = number.into();
        Self { text: number.to_string(), number: Some(number) }
    }

    /// A text that is sorted by a number, as a duration is.
    pub(super) fn measured(text: String, number: u64) -> Self {
        Self { text, number: Some(number) }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = (self.number, other.number);
        if let (Some(mine), Some(others)) = numbers {
            mine.cmp(&others)
        } else {
            self.text.cmp(&other.text)
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), number: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, number: None }
    }
}

impl From<Option<&str>> for Cell {
    fn from(text: Option<&str>) -> Self {
        text.unwrap_or_default().into()
    }
}

/// The colour of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Dim,
    Warn,
}

/// A row. Its key names it from one refresh to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub key: String,
    pub cells: Vec<Cell>,
    pub tone: Tone,
}

impl Row {
    pub(super) fn new(key: impl Into<String>, cells: Vec<Cell>) -> Self {
        Self { key: key.into(), cells, tone: Tone::Plain }
    }

    pub(super) fn toned(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// A table, and lines above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grid {
    pub intro: Vec<String>,
    pub head: &'static [&'static str],
    pub rows: Vec<Row>,
    /// The text in place of rows if there are none.
    pub empty: &'static str,
}

/// The order of rows; none is the order of the site's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sorting {
    pub column: Option<usize>,
    pub reverse: bool,
}

impl Grid {
    /// Drops the rows in which no cell contains the filter, then sorts the rest.
    pub(super) fn arrange(&mut self, filter: &str, sorting: Sorting) {
        let filter = filter.to_lowercase();
        let fits = |cell: &Cell| cell.text.to_lowercase().contains(&filter);
        self.rows.retain(|row| filter.is_empty() || row.cells.iter().any(fits));
        if let Some(column) = sorting.column {
            let empty = Cell::default();
            let cell = |row: &Row| row.cells.get(column).unwrap_or(&empty).clone();
            self.rows.sort_by(|left, right| cell(left).cmp(&cell(right)));
        }
        if sorting.reverse {
            self.rows.reverse();
        }
    }

    /// The width of each column. While all together are wider than the screen, the widest one
    /// shrinks; a column keeps at least the width of its heading.
    pub(super) fn widths(&self, total: usize, shown: &[Row]) -> Vec<usize> {
        let mut widths: Vec<usize> = self.head.iter().map(|head| width(head)).collect();
        let least = widths.clone();
        for row in shown {
            for (width_of, cell) in widths.iter_mut().zip(&row.cells) {
                *width_of = (*width_of).max(width(&cell.text));
            }
        }
        let room = total.saturating_sub(2 * widths.len().saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            let excess = widths.iter().sum::<usize>() - room;
            let widest = (0..widths.len()).filter(|&it| widths[it] > least[it]);
            let Some(widest) = widest.max_by_key(|&it| widths[it]) else { break };
            let second = (0..widths.len()).filter(|&it| it != widest && widths[it] > least[it]);
            let second = second.map(|it| widths[it]).max().unwrap_or(0).max(least[widest]);
            let step = (widths[widest] - second).clamp(1, excess);
            widths[widest] -= step;
        }
        widths
    }
}

/// Cells that a text takes on a terminal.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text in exactly so many cells: cut with an ellipsis, or filled with blanks.
pub(super) fn fit(text: &str, cells: usize) -> String {
    let text: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    let mut line = if width(&text) <= cells {
        text
    } else {
        let mut line = String::new();
        for letter in text.chars() {
            let next = format!("{line}{letter}");
            if width(&next) + 1 > cells {
                break;
            }
            line = next;
        }
        line + "…"
    };
    while width(&line) < cells {
        line.push(' ');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(rows: &[(&str, u64)]) -> Grid {
        let row = |it: &(&str, u64)| Row::new(it.0, vec![it.0.into(), Cell::number(it.1)]);
        Grid { head: &["NAME", "UNITS"], rows: rows.iter().map(row).collect(), ..Grid::default() }
    }

    fn names(grid: &Grid) -> Vec<&str> {
        grid.rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn numbers_are_sorted_as_numbers_and_names_as_names() {
        let mut it = grid(&[("b", 10), ("a", 9), ("c", 100)]);
        it.arrange("", Sorting { column: Some(1), reverse: false });
        assert_eq!(names(&it), ["a", "b", "c"]);
        it.arrange("", Sorting { column: Some(0), reverse: true });
        assert_eq!(names(&it), ["c", "b", "a"]);
    }

    #[test]
    fn a_filter_keeps_rows_with_it_in_any_cell_in_any_case() {
        let mut it = grid(&[("GPU-a", 4), ("licence", 40), ("reboot", 1)]);
        it.arrange("gpu", Sorting::default());
        assert_eq!(names(&it), ["GPU-a"]);
        let mut it = grid(&[("gpu", 4), ("licence", 40), ("reboot", 1)]);
        it.arrange("4", Sorting::default());
        assert_eq!(names(&it), ["gpu", "licence"]);
    }

    #[test]
    fn columns_fit_and_the_widest_shrinks_first() {
        let long = "x".repeat(200);
        let it = grid(&[(&long, 7), ("short", 12)]);
        for total in [20, 40, 80, 300] {
            let widths = it.widths(total, &it.rows);
            assert!(widths.iter().sum::<usize>() + 2 <= total, "{total}: {widths:?}");
            assert_eq!(widths[1], "UNITS".len(), "{total}: {widths:?}");
        }
        // Headings are never cut: what does not fit is beyond the edge of the screen.
        assert_eq!(it.widths(3, &it.rows), [4, 5]);
    }

    #[test]
    fn texts_are_cut_filled_and_free_of_control_characters() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("名前名前", 5), "名前…");
        assert_eq!(fit("名前", 5), "名前 ");
        assert_eq!(fit("a\x1b[2Jb", 7), "a [2Jb ");
        assert_eq!(fit("abc", 0), "…".to_owned());
    }
}
