//! Sites as processes, and what can be done to them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use kofm_net::{Boottime, Moment};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Setup;
use crate::client::call;
use crate::lab::Lab;
use crate::lots::Lots;

pub(crate) const PORT: u16 = 7600;

/// Each class of faults, by name.
const CLASSES: [&str; 7] = ["kill", "pause", "cut", "one-way", "link", "loss", "clock"];

/// A site that was serving is killed.
#[derive(Debug)]
pub(crate) struct Kill {
    pub site: usize,
    pub at: Moment,
    /// When it was started again.
    pub back: Option<Moment>,
}

pub(crate) struct Cluster {
    pub lab: Lab,
    sites: Vec<Site>,
    etcd: Vec<Site>,
    dir: PathBuf,
    /// When a site that was serving was killed.
    pub kills: Vec<Kill>,
    keep: bool,
}

struct Site {
    host: usize,
    child: Option<Child>,
    /// Stays down until its fault ends.
    down: bool,
    /// How fast its clock runs, for libfaketime.
    rate: Option<String>,
    lives: u32,
}

pub(crate) struct Fault {
    pub class: &'static str,
    id: u64,
    host: usize,
    peer: Option<usize>,
    serving: bool,
}

impl Fault {
    pub(crate) fn hosts(&self) -> Vec<usize> {
        std::iter::once(self.host).chain(self.peer).collect()
    }
}

impl Cluster {
    pub(crate) fn start(lab: Lab, setup: &Setup) -> Self {
        let dir = std::env::temp_dir().join(format!("kofm-chaos-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        fs::create_dir_all(&dir).expect("a place for the sites");
        let site = |host| Site { host, child: None, down: false, rate: None, lives: 0 };
        let sites = (0..setup.sites).map(site).collect();
        let etcd = (setup.sites..setup.sites + setup.etcd).map(site).collect();
        let mut cluster = Self { lab, sites, etcd, dir, kills: Vec::new(), keep: false };
        for number in 0..setup.sites {
            let config = cluster.config(number, setup);
            fs::write(cluster.dir.join(format!("s{number}.toml")), config).expect("it is ours");
        }
        cluster.look_after();
        cluster
    }

    pub(crate) fn pools() -> BTreeMap<String, u32> {
        [("gpu", 4), ("seat", 2), ("slot", 3)].map(|(name, m)| (name.to_owned(), m)).into()
    }

    fn config(&self, number: usize, setup: &Setup) -> String {
        let members: Vec<String> = (0..setup.sites)
            .map(|other| format!("s{other} = \"{}:7700\"\n", Lab::address(other)))
            .collect();
        let etcd: Vec<String> = self
            .etcd
            .iter()
            .map(|it| format!("\"http://{}:2379\"", Lab::address(it.host)))
            .collect();
        let etcd =
            if etcd.is_empty() { String::new() } else { format!("etcd = [{}]\n", etcd.join(", ")) };
        format!(
            "cluster = \"chaos\"\nsite = \"s{number}\"\nhttp = \"{}:{PORT}\"\nstate_dir = \"{}\"\n\
             insecure = true\nsite_lease = \"{}ms\"\ndurability = \
             \"{}\"\n{etcd}[members]\n{}[pools]\n\
             gpu = {{ units = 4, protocol = \"permission\" }}\n\
             seat = {{ units = 2, protocol = \"quorum\" }}\n\
             slot = {{ units = 3, protocol = \"roaming\" }}\n",
            Lab::address(number),
            self.dir.join(format!("s{number}")).display(),
            setup.lease,
            setup.durability,
            members.join(""),
        )
    }

    /// Starts whatever should run and does not.
    pub(crate) fn look_after(&mut self) {
        for number in 0..self.sites.len() {
            let site = &mut self.sites[number];
            let gone = site.child.as_mut().is_none_or(|it| !matches!(it.try_wait(), Ok(None)));
            if !gone || site.down {
                continue;
            }
            site.lives += 1;
            let log = self.dir.join(format!("s{number}.{}.log", site.lives));
            let log = File::create(log).expect("a log");
            // Another program that serves a site, to look for what it does wrong.
            let other = std::env::var("KOFM_CHAOS_BIN");
            let program = other.as_deref().unwrap_or(env!("CARGO_BIN_EXE_kofm"));
            let mut command = self.lab.command(number, program);
            command.args(["serve", "--config"]).arg(self.dir.join(format!("s{number}.toml")));
            command
                .env("KOFM_LOG", std::env::var("KOFM_CHAOS_LOG").unwrap_or_else(|_| "warn".into()));
            if let Some(rate) = &site.rate {
                command.env("LD_PRELOAD", FAKETIME).env("FAKETIME", format!("+0 x{rate}"));
            }
            let child = command.stdout(Stdio::null()).stderr(log).spawn();
            site.child = Some(child.expect("kofm starts"));
        }
        self.look_after_etcd();
    }

    fn look_after_etcd(&mut self) {
        let urls: Vec<String> = self
            .etcd
            .iter()
            .map(|it| format!("e{}=http://{}:2380", it.host, Lab::address(it.host)))
            .collect();
        for site in &mut self.etcd {
            let gone = site.child.as_mut().is_none_or(|it| !matches!(it.try_wait(), Ok(None)));
            if !gone || site.down {
                continue;
            }
            let address = Lab::address(site.host);
            let (client, peer) =
                (format!("http://{address}:2379"), format!("http://{address}:2380"));
            let mut command = self.lab.command(site.host, "etcd");
            command
                .args(["--name", &format!("e{}", site.host), "--data-dir"])
                .arg(self.dir.join(format!("e{}", site.host)))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &urls.join(","), "--log-level", "error"])
                .args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
            let log = self.dir.join(format!("e{}.log", site.host));
            let log = File::options().create(true).append(true).open(log).expect("a log");
            site.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().expect("etcd"));
        }
    }

    /// Begins a fault that the lots choose; none where it would hit what is hit already.
    pub(crate) fn begin(
        &mut self,
        id: u64,
        busy: &[usize],
        lots: &mut Lots,
        only: &[String],
    ) -> Option<Fault> {
        let mut classes: Vec<&'static str> = CLASSES.to_vec();
        if !self.etcd.is_empty() {
            classes.extend(["etcd", "etcd"]);
        }
        // A program that asks the kernel for the time, not the C library, cannot be fooled.
        let fooled = std::env::var("KOFM_CHAOS_CLOCK").is_ok();
        if !fooled || !std::path::Path::new(FAKETIME).exists() {
            classes.retain(|class| *class != "clock");
        }
        classes.retain(|class| only.is_empty() || only.iter().any(|it| it == class));
        let pick =
            |lots: &mut Lots, count: usize| usize::try_from(lots.below(count as u64)).unwrap_or(0);
        let class = classes[pick(lots, classes.len())];
        let mut host = pick(lots, self.sites.len());
        let mut peer = (host + 1 + pick(lots, self.sites.len() - 1)) % self.sites.len();
        if class == "etcd" {
            host = self.sites.len() + pick(lots, self.etcd.len());
            peer = host;
        }
        let inward = lots.below(2) == 0;
        let (percent, rate) = (10 + lots.below(50), 992 + lots.below(17));
        if busy.contains(&host) || (class == "link" && busy.contains(&peer)) {
            return None;
        }
        let serving = class == "etcd" || self.serves(host);
        let mut fault = Fault { class, id, host, peer: None, serving };
        let percent = u32::try_from(percent).unwrap_or(50);
        match class {
            "kill" | "clock" => {
                if serving && class == "kill" {
                    self.kills.push(Kill { site: host, at: Moment::now(), back: None });
                }
                if class == "clock" {
                    self.sites[host].rate = Some(format!("{}.{:03}", rate / 1000, rate % 1000));
                }
                self.sites[host].down = true;
                self.signal(host, Signal::KILL);
            }
            "etcd" => {
                self.etcd[host - self.sites.len()].down = true;
                self.signal(host, Signal::KILL);
            }
            "pause" => self.signal(host, Signal::STOP),
            "cut" => {
                self.lab.drop_packets(host, id, "in", None, 100);
                self.lab.drop_packets(host, id, "out", None, 100);
            }
            "one-way" => {
                self.lab.drop_packets(host, id, if inward { "in" } else { "out" }, None, 100);
            }
            "link" => {
                fault.peer = Some(peer);
                self.lab.drop_packets(host, id, "in", Some(peer), 100);
                self.lab.drop_packets(host, id, "out", Some(peer), 100);
            }
            _ => {
                self.lab.drop_packets(host, id, "in", None, percent);
                self.lab.drop_packets(host, id, "out", None, percent);
            }
        }
        Some(fault)
    }

    /// Ends a fault; says whether it had an effect on a site that was serving.
    pub(crate) fn end(&mut self, fault: &Fault) -> bool {
        let done = match fault.class {
            "kill" | "clock" => {
                let mine = |it: &&mut Kill| it.site == fault.host && it.back.is_none();
                if let Some(kill) = self.kills.iter_mut().rev().find(mine) {
                    kill.back = Some(Moment::now());
                }
                let site = &mut self.sites[fault.host];
                site.down = false;
                site.child.take().is_some_and(|mut child| child.wait().is_ok())
            }
            "etcd" => {
                let place = fault.host - self.sites.len();
                self.etcd[place].down = false;
                self.etcd[place].child.take().is_some_and(|mut child| child.wait().is_ok())
            }
            "pause" => {
                self.signal(fault.host, Signal::CONT);
                true
            }
            _ => self.lab.heal(fault.host, fault.id) > 0,
        };
        self.look_after();
        done && fault.serving
    }

    fn signal(&mut self, host: usize, signal: Signal) {
        let site = self.sites.iter_mut().chain(&mut self.etcd).find(|it| it.host == host);
        let pid = site.and_then(|it| it.child.as_ref()).map(Child::id);
        let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, signal).ok();
        }
    }

    fn ask(&self, site: usize, path: &str) -> Option<(u16, Value)> {
        let (space, path) = (self.lab.space(site), path.to_owned());
        let address = format!("{}:{PORT}", Lab::address(site)).parse().expect("an address");
        let asked = std::thread::spawn(move || {
            Lab::enter(&space);
            call(address, "GET", &path, None, Duration::from_millis(800)).ok()
        });
        asked.join().ok().flatten()
    }

    /// Whether a site says that it may grant.
    fn serves(&self, site: usize) -> bool {
        self.ask(site, "/readyz").is_some_and(|(status, _)| status == 200)
    }

    /// The pools that a site does not see as free, site by site.
    pub(crate) fn not_free(&self) -> Vec<String> {
        let mut list = Vec::new();
        for site in 0..self.sites.len() {
            let Some((200, pools)) = self.ask(site, "/v1/pools") else {
                list.push(format!("s{site} does not answer"));
                continue;
            };
            for pool in pools.as_array().into_iter().flatten() {
                if pool["free"] != pool["units"] || pool["waiting"] != 0 {
                    list.push(format!("s{site} says {pool}"));
                }
            }
        }
        list
    }

    /// What the sites say about epochs, for the report.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.ask(0, "/v1/members")?.1.as_array()?.first()?["epoch"].as_u64()
    }

    pub(crate) fn keep_logs(&mut self) {
        self.keep = true;
        println!("logs: {}", self.dir.display());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for site in self.sites.iter_mut().chain(&mut self.etcd) {
            if let Some(child) = &mut site.child {
                child.kill().ok();
                child.wait().ok();
            }
        }
        if !self.keep && !std::thread::panicking() {
            fs::remove_dir_all(&self.dir).ok();
        }
    }
}

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
