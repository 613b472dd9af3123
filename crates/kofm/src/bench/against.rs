//! `kofm bench --against`: other programs and kofm, measured side by side.
//!
//! All servers run during the whole measurement. The cells are measured one after the other, each
//! at one system after the other, so that a machine whose speed changes slows all of a cell alike.
//! Clients have a connection each and wait for the answer to every release. A pair is an acquire
//! and a release. First all clients work as fast as they can: rate, processor time and segments.
//! Then pairs are due at fixed moments, at seven tenths of that rate, and the latency of a pair
//! counts from the moment at which it was due, so a stall is counted for every pair that it delays.
//!
//! Each client counts its units after a grant and before a release: if the sum is ever above M, the
//! system has granted too many, and the command fails.

mod etcd;
mod floor;
mod plot;
mod postgres;
mod redis;
mod report;
mod sessions;
mod systems;
mod usage;
mod wire;
mod zookeeper;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(super) use self::floor::serve as floor;
use self::report::{Measured, Missing, Report};
use self::sessions::{Place, READY, Session};
pub(super) use self::systems::System;
use self::systems::{MEMBERS, Running};
use self::usage::Usage;
use super::{LOAD, Latency, Work, open_loop};
use crate::exit::{Exit, SYSTEM};
use crate::output::{say, tell};
use crate::tables::print_json;

/// How long servers may take to start.
const START: Duration = Duration::from_mins(1);
/// How much longer than its time a measurement may take.
const SLACK: Duration = Duration::from_secs(30);
/// The numbers of clients, unless they are given.
const CLIENTS: [usize; 3] = [1, 8, 32];
const MAX_CLIENTS: usize = 200;

/// A kind of demand and its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Cell {
    /// A unit for each client
    Uncontended,
    /// A unit for two clients
    Half,
    /// One unit for all clients
    One,
    /// One to four of eight units
    Mixed,
}

impl Cell {
    const EACH: [Self; 4] = [Self::Uncontended, Self::Half, Self::One, Self::Mixed];

    const fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Half => "half",
            Self::One => "one",
            Self::Mixed => "mixed",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Uncontended => "M>=C",
            Self::Half => "M=C/2",
            Self::One => "M=1",
            Self::Mixed => "k 1..4 of 8",
        }
    }

    fn units(self, clients: usize) -> u32 {
        let units = match self {
            // Each site of kofm has one to begin with.
            Self::Uncontended => clients.max(MEMBERS),
            Self::Half => clients.div_ceil(2),
            Self::One => 1,
            Self::Mixed => 8,
        };
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

/// A row of the tables: a system, or a way to use kofm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Row {
    Floor,
    Redis,
    Postgres,
    Kofm,
    KofmHttp,
    KofmPermission,
    KofmSingle,
    Etcd,
    Zookeeper,
}

impl Row {
    const EACH: [Self; 9] = [
        Self::Floor,
        Self::Redis,
        Self::Postgres,
        Self::Kofm,
        Self::KofmHttp,
        Self::KofmPermission,
        Self::KofmSingle,
        Self::Etcd,
        Self::Zookeeper,
    ];

    const fn system(self) -> System {
        match self {
            Self::Floor => System::Floor,
            Self::Redis => System::Redis,
            Self::Postgres => System::Postgres,
            Self::Etcd => System::Etcd,
            Self::Zookeeper => System::Zookeeper,
            Self::Kofm | Self::KofmHttp | Self::KofmPermission | Self::KofmSingle => System::Kofm,
        }
    }

    const fn servers(self) -> usize {
        match self {
            Self::Floor | Self::Redis | Self::Postgres | Self::KofmSingle => 1,
            Self::Kofm | Self::KofmHttp | Self::KofmPermission | Self::Etcd | Self::Zookeeper => {
                MEMBERS
            }
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Redis => "redis x1",
            Self::Postgres => "postgres x1",
            Self::Kofm => "kofm x3",
            Self::KofmHttp => "kofm x3, HTTP",
            Self::KofmPermission => "kofm x3, permission",
            Self::KofmSingle => "kofm x1",
            Self::Etcd => "etcd x3",
            Self::Zookeeper => "zookeeper x3",
        }
    }

    /// Whether there is a recipe.
    const fn can(self, cell: Cell) -> bool {
        !matches!((self, cell), (Self::Postgres, Cell::Mixed))
    }
}

/// The options of a comparison.
#[derive(Debug)]
pub(super) struct Against {
    pub(super) systems: Vec<System>,
    /// Numbers of clients; empty for the usual ones.
    pub(super) clients: Vec<usize>,
    /// Cells; empty for all.
    pub(super) cells: Vec<Cell>,
    pub(super) rounds: usize,
    pub(super) time: Duration,
    pub(super) json: bool,
    pub(super) plot: Option<PathBuf>,
}

impl Against {
    pub(super) async fn run(mut self) -> Result<(), Exit> {
        self.check()?;
        let (mut running, missing) = self.start_all()?;
        let mut report = Report::new(self.time, self.rounds, &running, missing);
        for one in &mut running {
            tell(&format!("{} is starting", one.system.name()));
            let ready = timeout(START, wait_until_ready(one)).await;
            let ready = ready.unwrap_or_else(|_| Err(format!("not ready within {START:?}")));
            ready.map_err(|why| Exit::new(SYSTEM, format!("{}: {why}", one.system.name())))?;
        }
        self.measure(&running, &mut report).await;
        drop(running);
        report.conclude();
        if let Some(path) = &self.plot {
            std::fs::write(path, plot::svg(&report)).map_err(|error| {
                Exit::new(SYSTEM, format!("--plot {}: {error}", path.display()))
            })?;
        }
        if self.json {
            print_json(&report)?;
        } else {
            say(&report.show());
        }
        report.verdict()
    }

    /// Refuses what cannot be measured before a server is started.
    fn check(&mut self) -> Result<(), Exit> {
        if self.clients.is_empty() {
            self.clients = CLIENTS.to_vec();
        }
        if self.cells.is_empty() {
            self.cells = Cell::EACH.to_vec();
        }
        if let Some(number) = self.clients.iter().find(|it| !(1..=MAX_CLIENTS).contains(*it)) {
            let text = format!("--clients {number}: with --against, write 1 to {MAX_CLIENTS}");
            return Err(Exit::usage(text));
        }
        if !(1..=100).contains(&self.rounds) {
            return Err(Exit::usage(format!("--rounds {}: write 1 to 100", self.rounds)));
        }
        let (min, max) = (Duration::from_millis(10), Duration::from_mins(1));
        if !(min..=max).contains(&self.time) {
            return Err(Exit::usage("--time: with --against, write 10ms to 60s"));
        }
        if self.places().is_empty() {
            let text = "no cell is left: only `uncontended` is measured with one client";
            return Err(Exit::usage(text));
        }
        if let Some(path) = &self.plot {
            // An hour of measurements must not end at a folder that is missing.
            std::fs::write(path, "")
                .map_err(|error| Exit::usage(format!("--plot {}: {error}", path.display())))?;
        }
        Ok(())
    }

    /// The cells with their numbers of clients. One client never waits.
    fn places(&self) -> Vec<(Cell, usize)> {
        let all =
            self.cells.iter().flat_map(|&cell| self.clients.iter().map(move |&it| (cell, it)));
        all.filter(|&(cell, clients)| cell == Cell::Uncontended || clients > 1).collect()
    }

    /// Starts the systems that are installed; reports the others. A system that was named must be
    /// installed.
    fn start_all(&self) -> Result<(Vec<Running>, Vec<Missing>), Exit> {
        let all = self.systems.contains(&System::All);
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for system in System::EACH {
            if !all && system != System::Floor && !self.systems.contains(&system) {
                continue;
            }
            if let Some(program) = system.find() {
                found.push((system, program));
                continue;
            }
            let (name, install) = (system.name(), format!("apt install {}", system.package()));
            if !all {
                let text = format!("{name} is not installed; on Debian: {install}");
                return Err(Exit::new(SYSTEM, text));
            }
            tell(&format!("{name} is not installed and is left out; on Debian: {install}"));
            missing.push(Missing { system: name, install });
        }
        let mut running = Vec::new();
        for (system, (program, version)) in found {
            for sites in if system == System::Kofm { vec![MEMBERS, 1] } else { vec![1] } {
                let pools = self.pools();
                let one = Running::start(system, sites, (&program, version.clone()), &pools);
                running.push(one.map_err(|exit| {
                    Exit::new(exit.code, format!("{}: {}", system.name(), exit.message))
                })?);
            }
        }
        Ok((running, missing))
    }

    /// The pools of kofm: one for each cell and protocol, and one to see whether it is ready.
    fn pools(&self) -> String {
        let mut text = "[pools]\nready = 3\n".to_owned();
        for (cell, clients) in self.places() {
            for protocol in ["roaming", "permission"] {
                let (name, units) = (sessions::pool(protocol, cell, clients), cell.units(clients));
                let _ = writeln!(text, "{name} = {{ units = {units}, protocol = \"{protocol}\" }}");
            }
        }
        text
    }

    async fn measure(&self, running: &[Running], report: &mut Report) {
        let mut number = READY;
        for round in 1..=self.rounds {
            for (cell, clients) in self.places() {
                tell(&format!("round {round}: {}, {clients} clients", cell.title()));
                for row in Row::EACH {
                    let found = running.iter().find(|it| {
                        let servers = if row.system() == System::Kofm { row.servers() } else { 0 };
                        it.system == row.system() && (servers == 0 || it.addresses.len() == servers)
                    });
                    let Some(one) = found.filter(|_| row.can(cell)) else { continue };
                    number += 1;
                    let (units, addresses) = (cell.units(clients), one.addresses.clone());
                    let place = Place { row, cell, clients, units, number, addresses };
                    let all = timeout(2 * self.time + SLACK, measure(place, one, self.time));
                    let result =
                        all.await.unwrap_or_else(|_| Err(Exit::new(SYSTEM, "did not end in time")));
                    report.add((row, cell, clients), result.map_err(|exit| exit.message));
                }
            }
        }
    }
}

/// Waits until a client can acquire and release at each server.
async fn wait_until_ready(one: &mut Running) -> Result<(), String> {
    let row = match one.system {
        System::All | System::Floor => Row::Floor,
        System::Redis => Row::Redis,
        System::Postgres => Row::Postgres,
        System::Etcd => Row::Etcd,
        System::Zookeeper => Row::Zookeeper,
        System::Kofm => Row::Kofm,
    };
    for address in one.addresses.clone() {
        let addresses = vec![address];
        let place = Place { row, cell: Cell::One, clients: 1, units: 1, number: READY, addresses };
        while let Err(exit) = attempt(&place).await {
            if one.has_ended() {
                return Err(format!("a server has ended: {}", exit.message));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

async fn attempt(place: &Place) -> Result<(), Exit> {
    let once = async {
        place.prepare().await?;
        let mut session = Session::connect(place, 0).await?;
        session.acquire(1).await?;
        session.release(1).await
    };
    let patience = Duration::from_secs(5);
    timeout(patience, once).await.unwrap_or_else(|_| Err(Exit::new(SYSTEM, "no answer")))
}

/// Units that clients hold at this moment, as they see it, and the most that they ever held.
#[derive(Debug, Default)]
struct Held {
    now: AtomicI64,
    most: AtomicI64,
}

/// A client that checks how many units are held.
struct Checked {
    place: Arc<Place>,
    number: usize,
    held: Arc<Held>,
}

struct Worker {
    session: Session,
    held: Arc<Held>,
    cell: Cell,
    pairs: usize,
}

impl Work for Checked {
    type Client = Worker;

    async fn connect(&self) -> Result<Worker, Exit> {
        let session = Session::connect(&self.place, self.number).await?;
        let held = Arc::clone(&self.held);
        Ok(Worker { session, held, cell: self.place.cell, pairs: self.number })
    }

    async fn once(worker: &mut Worker) -> Result<(), Exit> {
        worker.pairs += 1;
        // One to four in turn: the same amounts for all systems.
        let k: u32 = match worker.cell {
            Cell::Mixed => [1, 3, 2, 4][worker.pairs % 4],
            Cell::Uncontended | Cell::Half | Cell::One => 1,
        };
        worker.session.acquire(k).await?;
        let now = worker.held.now.fetch_add(i64::from(k), Ordering::SeqCst) + i64::from(k);
        worker.held.most.fetch_max(now, Ordering::SeqCst);
        worker.held.now.fetch_sub(i64::from(k), Ordering::SeqCst);
        worker.session.release(k).await
    }
}

/// Measures one cell at one system.
async fn measure(place: Place, one: &Running, time: Duration) -> Result<Measured, Exit> {
    place.prepare().await?;
    let (place, held) = (Arc::new(place), Arc::new(Held::default()));
    let mut clients = Vec::new();
    for number in 0..place.clients {
        let (place, held) = (Arc::clone(&place), Arc::clone(&held));
        clients.push(Checked { place, number, held }.connect().await?);
    }
    // The first pairs find out where units are.
    let warm_up = time / 10;
    let (_, _, clients) = closed_loop(clients, warm_up).await?;
    let (pids, ports) = (one.pids(), &one.ports);
    let before = Usage::read(&pids, ports);
    let (pairs, elapsed, clients) = closed_loop(clients, time).await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let pairs = pairs as f64;
    let (cpu_us, sent) = Usage::read(&pids, ports).since(before, pairs);
    let rate = pairs / elapsed.as_secs_f64();
    let latency = open_loop::<Checked>(clients, rate * LOAD, time).await?;
    let most = held.most.load(Ordering::SeqCst);
    Ok(Measured::new(place.units, rate, cpu_us, sent, most, latency))
}

/// All clients work as fast as they can; returns the number of pairs and the time that they took.
async fn closed_loop(
    clients: Vec<Worker>,
    time: Duration,
) -> Result<(u64, Duration, Vec<Worker>), Exit> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            let mut count = 0_u64;
            while start.elapsed() < time {
                Checked::once(&mut client).await?;
                count += 1;
            }
            Ok::<_, Exit>((count, client))
        });
    }
    let (mut pairs, mut clients) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (count, client) = done.map_err(|error| Exit::new(SYSTEM, error.to_string()))??;
        pairs += count;
        clients.push(client);
    }
    Ok((pairs, start.elapsed(), clients))
}

impl Latency {
    /// Half of the pairs, and all but one in a hundred, took at most this long, in microseconds.
    const fn middle_and_tail(&self) -> (u64, u64) {
        (self.p50, self.p99)
    }
}
