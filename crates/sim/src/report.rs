//! What a run came to.

use serde::Serialize;
use serde_json::{Value, json};

use crate::oracle::Oracle;
use crate::seeded::Setup;
use crate::span::{DELAY, Time};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    protocol: &'static str,
    sites: u16,
    units: Vec<u32>,
    seed: u64,
    /// Claims made.
    pub requests: u64,
    /// Claims given up by their clients.
    pub withdrawn: u64,
    /// Claims refused by the protocol.
    pub rejected: u64,
    /// Claims whose units were taken back by the protocol.
    pub revoked: u64,
    /// Messages sent, each hop counted.
    pub messages: u64,
    /// Messages of them that told everybody of an addition, and served no claim.
    pub spread: u64,
    /// Steps taken.
    pub events: u64,
    /// Messages charged to each claim, by its number.
    pub(crate) charges: Vec<u32>,
    /// The claims granted, by their numbers.
    pub(crate) granted: Vec<u32>,
    /// How long each granted claim waited; sorted once the run is over.
    pub(crate) waits: Vec<Time>,
    /// The largest number of younger grants that passed one waiting claim.
    pub overtaken_max: u32,
    /// The most units of one pool held at once.
    pub max_in_use: u64,
    /// The first violations.
    pub violations: Vec<String>,
    /// How many violations there were.
    pub violation_count: u64,
    /// Violations before the last fault was healed.
    pub violations_before: u64,
    /// How garbage was healed, in runs that had some.
    pub stabilised: Option<Stabilised>,
    /// Claims that still waited at the end.
    pub unserved: u64,
}

/// How long it took from the last fault until all tokens were right for good, and all claims that
/// were held until then had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stabilised {
    /// Times that garbage was put into memories.
    pub faults: u64,
    /// Circulations that the root completed.
    pub circulations: u64,
    /// Steps of sites.
    pub steps: u64,
    /// Messages sent.
    pub messages: u64,
    /// Time.
    pub time: Time,
}

/// The smallest, the mean and the largest of something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The smallest.
    pub min: u32,
    /// The mean.
    pub mean: f64,
    /// The largest.
    pub max: u32,
}

impl Report {
    pub(crate) fn new(protocol: &'static str, setup: &Setup) -> Self {
        Self {
            protocol,
            sites: setup.cluster.sites,
            units: setup.cluster.pools.iter().map(|units| units.0).collect(),
            seed: setup.seed,
            requests: 0,
            withdrawn: 0,
            rejected: 0,
            revoked: 0,
            messages: 0,
            spread: 0,
            events: 0,
            charges: Vec::new(),
            granted: Vec::new(),
            waits: Vec::new(),
            overtaken_max: 0,
            max_in_use: 0,
            violations: Vec::new(),
            violation_count: 0,
            violations_before: 0,
            stabilised: None,
            unserved: 0,
        }
    }

    pub(crate) fn close(&mut self, oracle: &Oracle) {
        self.overtaken_max = oracle.overtaken_max();
        self.max_in_use = oracle.max_in_use();
        self.unserved = oracle.unserved();
        let (violations, count) = oracle.violations();
        let text = violations.iter().map(|v| format!("{}: {}", v.property, v.detail));
        self.violations = text.collect();
        self.violation_count = count;
        self.violations_before = oracle.forgiven();
        self.waits.sort_unstable();
    }

    /// Whether nothing was violated and nobody was left waiting.
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0 && self.unserved == 0
    }

    /// Claims granted.
    pub fn grants(&self) -> u64 {
        self.waits.len() as u64
    }

    /// Messages per granted claim: those that served it, and its even share of the upkeep.
    pub fn messages_per_grant(&self) -> Range {
        let charges = || self.granted.iter().map(|&number| self.charges[number as usize]);
        let (Some(min), Some(max)) = (charges().min(), charges().max()) else {
            return Range { min: 0, mean: 0.0, max: 0 };
        };
        // Messages are whole: some grants have one more of the upkeep than others.
        let (upkeep, grants) = (self.upkeep(), self.grants());
        let whole = |share: u64| u32::try_from(share).unwrap_or(u32::MAX);
        Range {
            min: min.saturating_add(whole(upkeep / grants)),
            mean: ratio(self.messages - self.spread - self.in_vain(), grants),
            max: max.saturating_add(whole(upkeep.div_ceil(grants))),
        }
    }

    /// Messages that served claims which were not granted.
    pub fn in_vain(&self) -> u64 {
        let served: u64 = self.granted.iter().map(|&n| u64::from(self.charges[n as usize])).sum();
        self.charged() - served
    }

    /// Messages that served no claim in particular: tokens that go round, epochs, and answers of
    /// listings that do not say whom they answer.
    pub fn upkeep(&self) -> u64 {
        self.messages - self.spread - self.charged()
    }

    fn charged(&self) -> u64 {
        self.charges.iter().map(|&charge| u64::from(charge)).sum()
    }

    /// The mean wait in link delays.
    pub fn wait_mean(&self) -> f64 {
        // Rounded to a tick first, so that the result does not hang on the order of summation.
        let total: u128 = self.waits.iter().map(|&wait| u128::from(wait)).sum();
        let count = self.waits.len().max(1) as u128;
        delays(Time::try_from(total / count).expect("a mean is no more than the largest"))
    }

    /// The wait that this many of a thousand grants did not exceed, in link delays.
    pub fn wait_at(&self, per_mille: usize) -> f64 {
        let last = self.waits.len().saturating_sub(1);
        let place = (self.waits.len() * per_mille).div_ceil(1_000).saturating_sub(1).min(last);
        self.waits.get(place).copied().map_or(0.0, delays)
    }

    /// All waits in link delays, shortest first.
    pub fn waits(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.waits.iter().copied().map(delays)
    }

    /// The report as the contract has it, without `wall_ms`.
    pub fn json(&self) -> Value {
        let units = match self.units[..] {
            [units] => json!(units),
            _ => json!(self.units),
        };
        let mut json = json!({
            "protocol": self.protocol,
            "sites": self.sites,
            "units": units,
            "seed": self.seed,
            "requests": self.requests,
            "grants": self.grants(),
            "withdrawn": self.withdrawn,
            "rejected": self.rejected,
            "revoked": self.revoked,
            "messages": self.messages,
            "messages_per_grant": self.messages_per_grant(),
            "messages_of": {
                "upkeep": self.upkeep(),
                "additions": self.spread,
                "not_granted": self.in_vain(),
            },
            "wait": {
                "mean": self.wait_mean(),
                "p50": self.wait_at(500),
                "p99": self.wait_at(990),
                "max": self.wait_at(1_000),
            },
            "overtaken_max": self.overtaken_max,
            "max_in_use": self.max_in_use,
            "violations": self.violations,
            "unserved": self.unserved,
            "events": self.events,
        });
        if let Some(healed) = &self.stabilised {
            json["stabilised"] = json!({
                "faults": healed.faults,
                "circulations": healed.circulations,
                "steps": healed.steps,
                "messages": healed.messages,
                "time": delays(healed.time),
                "violations_before": self.violations_before,
                "violations_after": self.violation_count,
            });
        }
        json
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn delays(time: Time) -> f64 {
    ratio(time, DELAY)
}
