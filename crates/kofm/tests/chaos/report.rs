//! What a run has shown.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kofm_sim::history::{History, Violation};

use crate::Setup;
use crate::client::Seen;
use crate::cluster::{Cluster, Fault};

pub(crate) struct Report {
    command: String,
    started: Instant,
    seconds: u64,
    /// Faults begun and effective, by class.
    classes: BTreeMap<&'static str, (u64, u64)>,
    violations: Vec<Violation>,
    troubles: Vec<String>,
    grants: usize,
    unknown: u64,
    lost: u64,
    most: BTreeMap<String, u64>,
    /// Milliseconds from a kill until a unit held there was granted again, where the site stayed
    /// away for longer than that should take, and where it came back with its leases.
    regrants: [Vec<u64>; 2],
    lease: u64,
    epoch: Option<u64>,
}

impl Report {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            command: setup.command(),
            started: Instant::now(),
            seconds: 0,
            classes: BTreeMap::new(),
            violations: Vec::new(),
            troubles: Vec::new(),
            grants: 0,
            unknown: 0,
            lost: 0,
            most: BTreeMap::new(),
            regrants: [Vec::new(), Vec::new()],
            lease: setup.lease,
            epoch: None,
        }
    }

    pub(crate) fn count(&mut self, fault: &Fault, effective: bool) {
        let class = self.classes.entry(fault.class).or_default();
        class.0 += 1;
        class.1 += u64::from(effective);
    }

    pub(crate) fn effective(&self) -> u64 {
        self.classes.values().map(|it| it.1).sum()
    }

    pub(crate) fn settled(&mut self, end: Result<(), String>) {
        self.troubles.extend(end.err());
    }

    pub(crate) fn leak(&mut self, end: Result<(), String>) {
        self.troubles.extend(end.err());
    }

    pub(crate) fn finish(&mut self, cluster: &Cluster, seen: &Seen) {
        let holds = seen.holds.lock().expect("no client panics").clone();
        self.grants = holds.len();
        self.unknown = seen.unknown.load(Ordering::Relaxed);
        self.lost = seen.lost.load(Ordering::Relaxed);
        self.epoch = cluster.epoch();
        for kill in &cluster.kills {
            let mine = format!("s{}/", kill.site);
            let at = kill.at.nanos();
            let due = at + (self.lease + 1000) * 1_000_000;
            let stayed = kill.back.is_none_or(|back| back.nanos() > due);
            let regrants = &mut self.regrants[usize::from(!stayed)];
            let held = holds.iter().filter(|it| it.from < at && at < it.until);
            for hold in held.filter(|it| it.who.starts_with(&mine)) {
                for (pool, units) in &hold.units {
                    for unit in units {
                        let has = |units: &Vec<String>| units.contains(unit);
                        let later = holds.iter().filter(|it| it.from > at);
                        let again = later
                            .filter(|it| it.units.get(pool).is_some_and(has))
                            .map(|it| it.from)
                            .min();
                        regrants.extend(again.map(|again| (again - at) / 1_000_000));
                    }
                }
            }
        }
        self.regrants.iter_mut().for_each(|list| list.sort_unstable());
        let history = History { pools: Cluster::pools(), holds };
        self.most = history.most_in_use();
        self.violations = history.violations();
        self.seconds = self.started.elapsed().as_secs();
    }

    pub(crate) fn failed(&self) -> bool {
        !self.violations.is_empty() || !self.troubles.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<10} {:>8} {:>10}", "fault", "begun", "effective")?;
        for (class, (begun, effective)) in &self.classes {
            writeln!(f, "{class:<10} {begun:>8} {effective:>10}")?;
        }
        let begun: u64 = self.classes.values().map(|it| it.0).sum();
        writeln!(f, "{:<10} {begun:>8} {:>10}", "all", self.effective())?;
        writeln!(
            f,
            "\n{} grants in {} s, {} calls without an answer, {} leases lost early, epoch {}",
            self.grants,
            self.seconds,
            self.unknown,
            self.lost,
            self.epoch.map_or_else(|| "?".to_owned(), |it| it.to_string()),
        )?;
        writeln!(f, "most in use at once: {:?}", self.most)?;
        let ways = ["whose site stayed away", "whose site came back with its leases"];
        for (list, way) in self.regrants.iter().zip(ways) {
            let Some(last) = list.len().checked_sub(1) else { continue };
            let at = |percent: usize| list[last * percent / 100];
            writeln!(
                f,
                "granted again after kill -9: {} units {way}, median {} ms, 99th percentile {} ms, \
                 most {} ms, with a site lease of {} ms",
                list.len(),
                at(50),
                at(99),
                list[last],
                self.lease
            )?;
            if std::env::var_os("KOFM_CHAOS_TIMES").is_some() {
                writeln!(f, "{list:?}")?;
            }
        }
        writeln!(f, "{} violations", self.violations.len())?;
        for violation in self.violations.iter().take(20) {
            writeln!(f, "  {violation}")?;
        }
        for trouble in &self.troubles {
            writeln!(f, "  {trouble}")?;
        }
        if self.failed() {
            writeln!(f, "again: {}", self.command)?;
        }
        Ok(())
    }
}
