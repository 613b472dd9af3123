//! Chaos: real sites in network namespaces, killed, stopped and cut off, under clients that write
//! down what they saw.
//!
//! `cargo xtask chaos --faults 1000 --seed 7` is the long run; a short one is among the tests. The
//! seed decides which faults come, in which order and for how long; what the machine makes of them
//! is never twice the same, so a failure is repeated by running its seed again, more than once.

mod client;
mod cluster;
mod lab;
mod lots;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kofm_net::{Boottime, Moment};

use crate::client::{Client, Seen};
use crate::cluster::{Cluster, Fault, PORT};
use crate::lab::Lab;
use crate::lots::Lots;
use crate::report::Report;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// What a run is told.
pub(crate) struct Setup {
    pub sites: usize,
    pub faults: u64,
    pub seed: u64,
    /// The site lease, in milliseconds.
    pub lease: u64,
    /// Members of etcd; none where the sites vote themselves.
    pub etcd: usize,
    /// Only faults of these classes; all where there are none.
    pub only: Vec<String>,
    pub clients: usize,
    pub durability: String,
    /// Faults that may last at the same time.
    pub at_once: usize,
    /// Milliseconds of peace after each, to measure what one of them costs; it then lasts longer
    /// than units are kept for a site that is gone.
    pub apart: u64,
}

impl Setup {
    pub(crate) fn command(&self) -> String {
        let etcd = if self.etcd > 0 { format!(" --etcd {}", self.etcd) } else { String::new() };
        let only = if self.only.is_empty() {
            String::new()
        } else {
            format!(" --only {}", self.only.join(","))
        };
        format!(
            "cargo xtask chaos --faults {} --seed {} --sites {} --clients {} --lease {}ms \
             --durability {} --at-once {} --apart {}ms{etcd}{only}",
            self.faults,
            self.seed,
            self.sites,
            self.clients,
            self.lease,
            self.durability,
            self.at_once,
            self.apart
        )
    }
}

fn run(setup: &Setup) -> Option<Report> {
    let lab = match Lab::new(setup.sites + setup.etcd) {
        Ok(lab) => lab,
        Err(why) => {
            println!("NOT RUN: no network namespaces or filters here: {why}");
            println!("Run it as root where `ip netns add x` works, with nftables installed.");
            return None;
        }
    };
    if setup.etcd > 0 && std::process::Command::new("etcd").arg("--version").output().is_err() {
        println!("NOT RUN: there is no etcd here; install it: apt-get install etcd-server");
        return None;
    }
    let mut lots = Lots::new(setup.seed);
    let mut cluster = Cluster::start(lab, setup);
    let seen = Arc::new(Seen::default());
    let mut clients = Vec::new();
    for site in 0..setup.sites {
        for number in 0..setup.clients {
            let client = Client {
                space: cluster.lab.space(site),
                site,
                number,
                address: format!("{}:{PORT}", Lab::address(site)).parse().expect("an address"),
                pools: Cluster::pools(),
                seen: Arc::clone(&seen),
            };
            let lots = Lots::new(setup.seed ^ (client.site * 1000 + number + 1) as u64);
            clients.push(std::thread::spawn(move || client.run(lots)));
        }
    }
    wait_for_grants(&seen, 20);

    let mut report = Report::new(setup);
    let mut active: Vec<(Instant, Fault)> = Vec::new();
    let mut next = Instant::now();
    let mut number = 0;
    while report.effective() < setup.faults && number < setup.faults * 3 {
        let now = Instant::now();
        let (over, rest): (Vec<_>, Vec<_>) = active.into_iter().partition(|it| it.0 <= now);
        active = rest;
        for (_, fault) in over {
            let effective = cluster.end(&fault);
            report.count(&fault, effective);
            next = next.max(now + Duration::from_millis(setup.apart));
        }
        if now >= next && active.len() < setup.at_once {
            number += 1;
            let busy: Vec<usize> = active.iter().flat_map(|it| it.1.hosts()).collect();
            if let Some(fault) = cluster.begin(number, &busy, &mut lots, &setup.only) {
                let least = if setup.apart > 0 { setup.lease + 1200 } else { 200 };
                let length = Duration::from_millis(least + lots.below(setup.lease * 2));
                active.push((now + length, fault));
            }
            next = now + Duration::from_millis(lots.below(800));
        }
        cluster.look_after();
        std::thread::sleep(Duration::from_millis(20));
    }
    for (_, fault) in active {
        let effective = cluster.end(&fault);
        report.count(&fault, effective);
    }

    // Everything is healed: whoever waits is served now, and nothing is lost.
    report.settled(settle(&mut cluster, &seen, setup.sites));
    seen.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("clients do not panic");
    }
    report.leak(all_free(&mut cluster));
    report.finish(&cluster, &seen);
    if report.failed() {
        cluster.keep_logs();
    }
    Some(report)
}

fn wait_for_grants(seen: &Seen, count: u64) {
    let start = Instant::now();
    while seen.grants.load(Ordering::Relaxed) < count {
        assert!(start.elapsed() < PATIENCE, "the cluster does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until clients of every site are served again; says who is not.
fn settle(cluster: &mut Cluster, seen: &Seen, sites: usize) -> Result<(), String> {
    let (start, since) = (Instant::now(), Moment::now().nanos());
    loop {
        cluster.look_after();
        let mut served: BTreeMap<String, u64> = BTreeMap::new();
        for hold in seen.holds.lock().expect("no client panics").iter().rev() {
            if hold.from >= since {
                let site = hold.who.split('/').next().unwrap_or_default();
                *served.entry(site.to_owned()).or_default() += 1;
            }
        }
        let missing: Vec<String> = (0..sites)
            .map(|site| format!("s{site}"))
            .filter(|site| served.get(site).copied().unwrap_or(0) < 3)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("clients of {} are not served", missing.join(", ")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until every site sees all units free; says which do not.
fn all_free(cluster: &mut Cluster) -> Result<(), String> {
    let start = Instant::now();
    loop {
        cluster.look_after();
        let wrong = cluster.not_free();
        if wrong.is_empty() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(wrong.join("; "));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn judge(setup: &Setup) {
    if let Some(report) = run(setup) {
        println!("{report}");
        assert!(!report.failed(), "again: {}", setup.command());
    }
}

/// A short run; `cargo xtask chaos` is the long one.
#[test]
fn nothing_is_granted_twice_while_sites_are_killed_stopped_and_cut_off() {
    judge(&Setup {
        sites: 3,
        faults: 6,
        seed: 1,
        lease: 2000,
        etcd: 0,
        only: Vec::new(),
        clients: 2,
        durability: "none".into(),
        at_once: 2,
        apart: 0,
    });
}

#[test]
#[ignore = "as long as it is told to be: cargo xtask chaos"]
fn as_told() {
    let number = |name: &str, default: u64| {
        let value = std::env::var(format!("KOFM_CHAOS_{name}"));
        value.map_or(default, |text| text.parse().expect("a number"))
    };
    let text = |name: &str| std::env::var(format!("KOFM_CHAOS_{name}")).unwrap_or_default();
    let small = |number: u64| usize::try_from(number).expect("a small number");
    judge(&Setup {
        sites: small(number("SITES", 5)),
        faults: number("FAULTS", 100),
        seed: number("SEED", 1),
        lease: number("LEASE", 2000),
        etcd: small(number("ETCD", 0)),
        only: text("ONLY").split(',').filter(|it| !it.is_empty()).map(Into::into).collect(),
        clients: small(number("CLIENTS", 3)),
        durability: Some(text("DURABILITY"))
            .filter(|it| !it.is_empty())
            .unwrap_or_else(|| "none".into()),
        at_once: small(number("AT_ONCE", 2)),
        apart: number("APART", 0),
    });
}
