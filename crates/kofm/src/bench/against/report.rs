//! The result of a comparison: as JSON, and as tables.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::systems::Running;
use super::{Cell, Latency, Row};
use crate::exit::Exit;
use crate::tables::table;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Processors of this machine.
    cores: usize,
    /// Time of each measurement.
    time_ms: u64,
    rounds: usize,
    versions: Vec<Version>,
    missing: Vec<Missing>,
    pub(super) cells: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Version {
    system: &'static str,
    servers: usize,
    #[serde(rename = "version")]
    text: String,
}

/// A system that is not installed.
#[derive(Debug, Serialize)]
pub(super) struct Missing {
    pub(super) system: &'static str,
    pub(super) install: String,
}

/// A cell of a row.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub(super) row: Row,
    pub(super) cell: Cell,
    pub(super) clients: usize,
    /// The median of the rounds.
    pub(super) per_second: Option<f64>,
    /// The median of the ratios of each round.
    pub(super) of_floor: Option<f64>,
    of_redis: Option<f64>,
    rounds: Vec<Measured>,
    errors: Vec<String>,
}

/// One measurement of a cell.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    units: u32,
    per_second: f64,
    /// Processor time of all servers.
    cpu_us_per_pair: f64,
    /// TCP segments with data, of clients and between servers, in both directions.
    segments_per_pair: Option<f64>,
    bytes_per_pair: Option<f64>,
    /// The most units that clients held at a time.
    held_max: i64,
    latency_us: Latency,
}

impl Measured {
    pub(super) fn new(
        units: u32,
        per_second: f64,
        cpu_us_per_pair: f64,
        sent: Option<(f64, f64)>,
        held_max: i64,
        latency_us: Latency,
    ) -> Self {
        let (segments_per_pair, bytes_per_pair) = sent.unzip();
        Self {
            units,
            per_second,
            cpu_us_per_pair,
            segments_per_pair,
            bytes_per_pair,
            held_max,
            latency_us,
        }
    }
}

impl Report {
    pub(super) fn new(
        time: Duration,
        rounds: usize,
        running: &[Running],
        missing: Vec<Missing>,
    ) -> Self {
        let version = |it: &Running| Version {
            system: it.system.name(),
            servers: it.addresses.len(),
            text: it.version.clone(),
        };
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            rounds,
            versions: running.iter().map(version).collect(),
            missing,
            cells: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        (row, cell, clients): (Row, Cell, usize),
        result: Result<Measured, String>,
    ) {
        let same = |it: &Entry| (it.row, it.cell, it.clients) == (row, cell, clients);
        let place = self.cells.iter().position(same).unwrap_or_else(|| {
            let (rounds, errors) = (Vec::new(), Vec::new());
            let (per_second, of_floor, of_redis) = (None, None, None);
            let entry =
                Entry { row, cell, clients, per_second, of_floor, of_redis, rounds, errors };
            self.cells.push(entry);
            self.cells.len() - 1
        });
        match result {
            Ok(measured) => self.cells[place].rounds.push(measured),
            Err(text) => self.cells[place].errors.push(text),
        }
    }

    /// Takes the medians, when all has been measured.
    pub(super) fn conclude(&mut self) {
        let rates = |row: Row, cell: Cell, clients: usize| -> Vec<f64> {
            let found = |it: &&Entry| (it.row, it.cell, it.clients) == (row, cell, clients);
            let entry = self.cells.iter().find(found).filter(|it| it.errors.is_empty());
            entry.map_or_else(Vec::new, |it| it.rounds.iter().map(|it| it.per_second).collect())
        };
        let mut results = Vec::new();
        for entry in &self.cells {
            let own = rates(entry.row, entry.cell, entry.clients);
            let ratio = |other: Row| {
                let other = rates(other, entry.cell, entry.clients);
                median(own.iter().zip(&other).map(|(own, other)| own / other).collect())
            };
            results.push((ratio(Row::Floor), ratio(Row::Redis), median(own.clone())));
        }
        for (entry, (of_floor, of_redis, per_second)) in self.cells.iter_mut().zip(results) {
            (entry.of_floor, entry.of_redis, entry.per_second) = (of_floor, of_redis, per_second);
        }
    }

    /// The rows that were measured.
    pub(super) fn rows(&self) -> Vec<Row> {
        let measured = |row: &Row| self.cells.iter().any(|it| it.row == *row);
        Row::EACH.into_iter().filter(measured).collect()
    }

    /// The columns that were measured.
    pub(super) fn columns(&self) -> Vec<(Cell, usize)> {
        let mut columns: Vec<(Cell, usize)> = Vec::new();
        for it in &self.cells {
            if !columns.contains(&(it.cell, it.clients)) {
                columns.push((it.cell, it.clients));
            }
        }
        columns
    }

    pub(super) fn entry(&self, row: Row, (cell, clients): (Cell, usize)) -> Option<&Entry> {
        self.cells.iter().find(|it| (it.row, it.cell, it.clients) == (row, cell, clients))
    }

    /// Text tables of all that was measured.
    pub(super) fn show(&self) -> String {
        let mut text = String::new();
        let mut add = |title: &str, show: &dyn Fn(&Entry) -> Option<String>| {
            let columns = self.columns();
            let heads: Vec<String> =
                columns.iter().map(|it| format!("{} C={}", it.0.title(), it.1)).collect();
            let heads: Vec<&str> =
                [title].into_iter().chain(heads.iter().map(|it| &**it)).collect();
            let rows = self.rows().into_iter().map(|row| {
                let cells = columns.iter().map(|&column| {
                    let shown = self.entry(row, column).and_then(show);
                    shown.unwrap_or_else(|| "-".to_owned())
                });
                [row.title().to_owned()].into_iter().chain(cells).collect()
            });
            text.push_str(&table(&heads, rows));
            text.push('\n');
        };
        add("PAIRS PER S", &|it| it.per_second.map(|rate| format!("{rate:.0}")));
        add("OF FLOOR", &|it| it.of_floor.map(|part| format!("{part:.2}")));
        if self.rows().contains(&Row::Redis) {
            add("OF REDIS", &|it| it.of_redis.map(|part| format!("{part:.2}")));
        }
        let middle = |it: &Entry, of: &dyn Fn(&Measured) -> Option<f64>| {
            median(it.rounds.iter().filter_map(of).collect())
        };
        add("CPU us PER PAIR", &|it| {
            middle(it, &|it| Some(it.cpu_us_per_pair)).map(|time| format!("{time:.0}"))
        });
        add("SEGMENTS PER PAIR", &|it| {
            middle(it, &|it| it.segments_per_pair).map(|count| format!("{count:.1}"))
        });
        add("P50/P99 us AT 0.7", &|it| {
            let latency = it.rounds.first()?.latency_us.middle_and_tail();
            Some(format!("{}/{}", latency.0, latency.1))
        });
        for it in &self.versions {
            let _ = writeln!(text, "{} x{}: {}", it.system, it.servers, it.text);
        }
        for it in &self.missing {
            let _ = writeln!(text, "{}: not installed; on Debian: {}", it.system, it.install);
        }
        for it in &self.cells {
            for error in &it.errors {
                let (row, cell, clients) = (it.row.title(), it.cell.title(), it.clients);
                let _ = writeln!(text, "{row}, {cell}, {clients} clients: {error}");
            }
        }
        text
    }

    /// An error if a system granted more than M, or if a measurement failed.
    pub(super) fn verdict(&self) -> Result<(), Exit> {
        for it in &self.cells {
            let (row, cell, clients) = (it.row.title(), it.cell.title(), it.clients);
            let place = format!("{row}, {cell}, {clients} clients");
            if let Some(over) = it.rounds.iter().find(|it| it.held_max > i64::from(it.units)) {
                let (held, units) = (over.held_max, over.units);
                return Err(Exit::negative(format!("{place}: {held} of {units} units were held")));
            }
            if let Some(error) = it.errors.first() {
                return Err(Exit::negative(format!("{place}: {error}")));
            }
        }
        Ok(())
    }
}

/// The middle of some numbers; nothing if there is none.
fn median(mut list: Vec<f64>) -> Option<f64> {
    list.sort_unstable_by(f64::total_cmp);
    list.get(list.len() / 2).copied()
}
