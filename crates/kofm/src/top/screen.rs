//! The screen of `kofm top`: which list is shown, how it answers keys, and how it is drawn.

use kofm_net::api::Health;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::data::{Data, List, Subject};
use super::grid::{Grid, Sorting, Tone, fit, width};
use super::grids::grid;

/// The longest filter.
const MAX_FILTER: usize = 60;

const TABS: [(&str, Subject); 7] = [
    ("Pools", Subject::Pools),
    ("Queue", Subject::Queue),
    ("Leases", Subject::Leases),
    ("Semaphores", Subject::Semaphores),
    ("Gangs", Subject::Gangs),
    ("Sites", Subject::Sites),
    ("History", Subject::History),
];

/// The next step after a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Quit,
    Stay,
    /// Another subject is to be read.
    Show(Subject),
}

#[derive(Debug)]
pub(super) struct Screen {
    addr: String,
    tab: usize,
    /// A pool or a request whose details are shown.
    detail: Option<Subject>,
    /// The last answer; it may be that of another subject until the next one arrives.
    data: Option<Data>,
    /// The last answer was an error.
    error: Option<String>,
    /// The list as it is shown: filtered and sorted.
    grid: Grid,
    sorting: Sorting,
    filter: String,
    typing: bool,
    selected: usize,
    first: usize,
    /// Rows that fit the screen, as it was drawn last.
    page: usize,
    plain: bool,
}

impl Screen {
    pub(super) fn new(addr: &str) -> Self {
        Self {
            addr: addr.to_owned(),
            tab: 0,
            detail: None,
            data: None,
            error: None,
            grid: Grid::default(),
            sorting: Sorting::default(),
            filter: String::new(),
            typing: false,
            selected: 0,
            first: 0,
            page: 10,
            plain: std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty()),
        }
    }

    fn subject(&self) -> Subject {
        self.detail.clone().unwrap_or_else(|| TABS[self.tab].1.clone())
    }

    /// Takes the answer of the site. An answer to an earlier subject is dropped.
    pub(super) fn update(&mut self, answer: Result<Data, String>) {
        match answer {
            Ok(data) if data.subject == self.subject() => {
                self.error = None;
                self.data = Some(data);
                self.arrange();
            }
            Ok(_) => {}
            Err(error) => self.error = Some(error),
        }
    }

    /// Builds the rows again; the selection stays with its row.
    fn arrange(&mut self) {
        let key = self.grid.rows.get(self.selected).map(|row| row.key.clone());
        self.grid = self.data.as_ref().map(|data| grid(&data.list)).unwrap_or_default();
        self.grid.arrange(&self.filter, self.sorting);
        let place = key.and_then(|key| self.grid.rows.iter().position(|row| row.key == key));
        let last = self.grid.rows.len().saturating_sub(1);
        self.selected = place.unwrap_or(self.selected).min(last);
    }

    /// Goes to another list or detail, without the rows of the one before.
    fn show(&mut self) -> Next {
        self.data = None;
        self.grid = Grid::default();
        self.sorting = Sorting::default();
        self.filter.clear();
        (self.selected, self.first) = (0, 0);
        Next::Show(self.subject())
    }

    fn show_tab(&mut self, tab: usize) -> Next {
        self.detail = None;
        self.tab = tab % TABS.len();
        self.show()
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys have no effect")]
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Stay;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => Next::Quit,
            code if self.typing => {
                self.type_filter(code);
                Next::Stay
            }
            code => self.command(code),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys have no effect")]
    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.len() < MAX_FILTER => self.filter.push(letter),
            _ => {}
        }
        self.arrange();
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys have no effect")]
    fn command(&mut self, code: KeyCode) -> Next {
        let last = self.grid.rows.len().saturating_sub(1);
        let page = self.page.max(1);
        match code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(page),
            KeyCode::PageDown => self.selected = (self.selected + page).min(last),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = last,
            KeyCode::Tab | KeyCode::Right => return self.show_tab(self.tab + 1),
            KeyCode::BackTab | KeyCode::Left => return self.show_tab(self.tab + TABS.len() - 1),
            KeyCode::Char(digit @ '1'..='7') => {
                return self.show_tab(digit as usize - '1' as usize);
            }
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => {
                self.sorting.reverse = !self.sorting.reverse;
                self.arrange();
            }
            KeyCode::Enter => return self.open(),
            KeyCode::Esc | KeyCode::Backspace => {
                if !self.filter.is_empty() {
                    self.filter.clear();
                    self.arrange();
                } else if self.detail.take().is_some() {
                    return self.show();
                }
            }
            _ => {}
        }
        Next::Stay
    }

    /// Sorts by the next column; after the last one, by none.
    fn sort_by_next(&mut self) {
        let column = self.sorting.column.map_or(0, |column| column + 1);
        self.sorting.column = Some(column).filter(|&it| it < self.grid.head.len());
        self.arrange();
    }

    /// Shows the units of the selected pool, or the blockers of the selected request.
    fn open(&mut self) -> Next {
        let Some(row) = self.grid.rows.get(self.selected) else { return Next::Stay };
        let key = row.key.clone();
        self.detail = match self.data.as_ref().map(|data| &data.list) {
            Some(List::Pools(_)) => Some(Subject::Pool(key)),
            Some(List::Queue(_) | List::Leases(_)) => Some(Subject::Request(key)),
            _ => return Next::Stay,
        };
        self.show()
    }

    fn style(&self, color: Color) -> Style {
        if self.plain { Style::new() } else { Style::new().fg(color) }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let health = self.health_lines(frame.area().width);
        let intro = self.intro_lines(frame.area().width);
        let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
        let areas = Layout::vertical([
            lines(1),
            lines(health.len()),
            lines(1),
            lines(intro.len()),
            Constraint::Min(2),
            lines(1),
        ]);
        let [title, state, tabs, above, table, keys] = areas.areas(frame.area());
        frame.render_widget(Line::from(self.title(title.width)), title);
        frame.render_widget(Paragraph::new(health), state);
        frame.render_widget(self.tabs(), tabs);
        frame.render_widget(Paragraph::new(intro), above);
        self.draw_table(frame, table);
        frame.render_widget(Line::from(self.keys()), keys);
        if self.typing {
            let column = "Filter: ".len() + width(&self.filter);
            let column = u16::try_from(column).unwrap_or(0).min(keys.width.saturating_sub(1));
            frame.set_cursor_position(Position::new(keys.x + column, keys.y));
        }
    }

    fn title(&self, columns: u16) -> String {
        let site = self.data.as_ref().map(|data| &data.health);
        let site = site.map_or(String::new(), |it| format!("site {}, epoch {}", it.site, it.epoch));
        let addr = fit(&self.addr, width(&self.addr).min(usize::from(columns) / 2));
        let left = format!("kofm top  {addr}");
        let gap = usize::from(columns).saturating_sub(width(&left) + width(&site));
        format!("{left}{}{site}", " ".repeat(gap.max(2)))
    }

    /// How the cluster is, in words: at most two problems and the next step of the first.
    fn health_lines(&self, columns: u16) -> Vec<Line<'static>> {
        let line =
            |text: &str, color| Line::styled(fit(text, usize::from(columns)), self.style(color));
        let mut lines = Vec::new();
        if let Some(error) = &self.error {
            lines.push(line(&format!("Not up to date: {error}"), Color::Red));
        }
        let Some(health) = self.data.as_ref().map(|data| &data.health) else {
            if lines.is_empty() {
                lines.push(line("Reading…", Color::DarkGray));
            }
            return lines;
        };
        lines.extend(problems(health, &line));
        lines
    }

    fn tabs(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (number, (name, _)) in TABS.iter().enumerate() {
            let style = if number == self.tab {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
            spans.push(Span::styled(format!(" {} {name} ", number + 1), style));
        }
        Line::from(spans)
    }

    fn intro_lines(&self, columns: u16) -> Vec<Line<'static>> {
        let intro = self.grid.intro.iter();
        intro.map(|text| Line::raw(fit(text, usize::from(columns)))).collect()
    }

    fn keys(&self) -> String {
        if self.typing {
            return format!("Filter: {}", self.filter);
        }
        let count = self.grid.rows.len();
        let place = if count == 0 { 0 } else { self.selected + 1 };
        let filter = if self.filter.is_empty() {
            String::new()
        } else {
            format!("  filter “{}” (Esc clears)", self.filter)
        };
        let back = if self.detail.is_some() { "Esc back  " } else { "Enter details  " };
        format!("{place}/{count}  q quit  {back}/ filter  s sort  r reverse  Tab next{filter}")
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.grid.rows.is_empty() {
            let text = match (&self.data, self.filter.is_empty()) {
                (None, _) => "",
                (Some(_), true) => self.grid.empty,
                (Some(_), false) => "No row contains the filter.",
            };
            frame.render_widget(Line::raw(text), area);
            return;
        }
        self.page = usize::from(area.height).saturating_sub(1).max(1);
        let lowest = (self.selected + 1).saturating_sub(self.page);
        self.first = self.first.clamp(lowest, self.selected);
        self.first = self.first.min(self.grid.rows.len().saturating_sub(self.page)).max(lowest);
        let end = (self.first + self.page).min(self.grid.rows.len());
        let shown = &self.grid.rows[self.first..end];
        let widths = self.grid.widths(usize::from(area.width), shown);
        let line = |cells: Vec<&str>| {
            let cells = cells.into_iter().zip(&widths).map(|(text, &cells)| fit(text, cells));
            fit(&cells.collect::<Vec<_>>().join("  "), usize::from(area.width))
        };
        let marked: Vec<String> =
            self.grid.head.iter().enumerate().map(|it| self.mark(it)).collect();
        let head = line(marked.iter().map(String::as_str).collect());
        let mut lines = vec![Line::styled(head, Style::new().add_modifier(Modifier::BOLD))];
        for (place, row) in (self.first..).zip(shown) {
            let style = match row.tone {
                Tone::Plain => Style::new(),
                Tone::Dim => self.style(Color::DarkGray),
                Tone::Warn => self.style(Color::Yellow),
            };
            let chosen = place == self.selected;
            let style = if chosen { style.add_modifier(Modifier::REVERSED) } else { style };
            let text = line(row.cells.iter().map(|cell| cell.text.as_str()).collect());
            lines.push(Line::styled(text, style));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// The heading of a column; the one that rows are sorted by is in lower case with an arrow.
    fn mark(&self, (column, name): (usize, &&str)) -> String {
        if self.sorting.column != Some(column) {
            return (*name).to_owned();
        }
        let arrow = if self.sorting.reverse { '↓' } else { '↑' };
        // As wide as the name, so that no column moves.
        let short: String = name.chars().take(name.chars().count() - 1).collect();
        format!("{short}{arrow}")
    }
}

/// At most two problems, and the next step of the first.
fn problems(health: &Health, line: &dyn Fn(&str, Color) -> Line<'static>) -> Vec<Line<'static>> {
    let problems = &health.problems;
    let Some(first) = problems.first() else {
        return vec![line("Healthy: the site reports no problem.", Color::Green)];
    };
    let mut lines = vec![
        line(&format!("{}: {}", first.code, first.message), Color::Yellow),
        line(&format!("  {}", first.action), Color::Reset),
    ];
    if let Some(second) = problems.get(1) {
        let more = if problems.len() > 2 { "; `kofm doctor` lists all" } else { "" };
        lines.push(line(&format!("{}: {}{more}", second.code, second.message), Color::Yellow));
    }
    lines
}

#[cfg(test)]
mod tests;
