//! Tree pools over real sockets: sites end without a word and start again, memories are garbled,
//! and the pool heals with nobody's help.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use kofm_core::Kind;
use kofm_net::config::{Config, PoolConfig};
use kofm_net::{IdentityError, Site, StartError};
use tokio::runtime::Runtime;

/// Long enough for any machine; healing takes some twenty seconds at most.
const LONG: Duration = Duration::from_mins(2);

/// Sites with a runtime each: what ends with it ends as a process does.
struct Cluster {
    configs: Vec<Config>,
    sites: Vec<Option<(Site, Runtime)>>,
    dir: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for site in 0..self.sites.len() {
            self.kill(site);
        }
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

impl Cluster {
    fn start(name: &str) -> Self {
        Self::of(name, Kind::Tree)
    }

    fn of(name: &str, protocol: Kind) -> Self {
        let dir = std::env::temp_dir().join(format!("kofm-tree-{name}-{}", std::process::id()));
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let members: BTreeMap<String, String> =
            (0..3).map(|i| (format!("s{i}"), format!("127.0.0.1:{}", port()))).collect();
        let pool = PoolConfig { protocol, ..PoolConfig::new(3) };
        let config = |i: usize| {
            let mut config = Config::single(&format!("s{i}"));
            config.members.clone_from(&members);
            config.state_dir = Some(dir.join(i.to_string()));
            config.pools.insert("gpu".to_owned(), pool.clone());
            config
        };
        let configs: Vec<Config> = (0..3).map(config).collect();
        let mut cluster = Self { configs, sites: Vec::new(), dir };
        for site in 0..3 {
            cluster.sites.push(None);
            cluster.revive(site);
        }
        cluster
    }

    fn revive(&mut self, site: usize) {
        let runtime = Runtime::new().unwrap();
        let start = || runtime.block_on(Site::start(self.configs[site].clone()));
        let begun = std::time::Instant::now();
        let started = loop {
            match start() {
                Ok(started) => break started,
                // Threads of its last life, which write to the same directory, may still end.
                Err(StartError::Identity(IdentityError::InUse(_))) if begun.elapsed() < LONG => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("{error}"),
            }
        };
        self.sites[site] = Some((started, runtime));
    }

    fn kill(&mut self, site: usize) {
        if let Some((site, runtime)) = self.sites[site].take() {
            drop(site);
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    /// All units at once, for a moment.
    fn all_three(&self, site: usize) {
        let (site, runtime) = self.sites[site].as_ref().unwrap();
        let held = runtime
            .block_on(async { tokio::time::timeout(LONG, site.acquire([("gpu", 3)])).await });
        held.expect("it heals").unwrap();
    }

    fn happened(&self, event: &str) -> bool {
        self.sites.iter().flatten().any(|(site, runtime)| {
            let (list, _) = runtime.block_on(site.history(None, 100)).unwrap();
            list.iter().any(|it| it.event == event)
        })
    }
}

#[test]
fn a_pool_goes_on_when_a_site_dies_and_comes_back() {
    let mut cluster = Cluster::start("dies");
    for site in 0..3 {
        cluster.all_three(site);
    }
    for victim in [2, 0] {
        // It dies with a unit in use. Who keeps the lease keeps the dead site's directory locked.
        let (site, runtime) = cluster.sites[victim].as_ref().unwrap();
        let held = runtime.block_on(site.acquire([("gpu", 1)])).unwrap();
        cluster.kill(victim);
        drop(held);
        cluster.all_three(1);
        cluster.revive(victim);
        cluster.all_three(victim);
    }
    assert!(cluster.happened("healing") && cluster.happened("healed"));
}

#[test]
fn where_no_pool_heals_nobody_speaks_of_healing() {
    let mut cluster = Cluster::of("others", PoolConfig::new(3).protocol);
    cluster.all_three(0);
    cluster.kill(2);
    cluster.all_three(1);
    cluster.revive(2);
    cluster.all_three(2);
    assert!(cluster.happened("epoch"));
    assert!(!cluster.happened("healing") && !cluster.happened("healed"));
}

#[test]
fn a_pool_heals_from_garbage_in_every_site() {
    let cluster = Cluster::start("garbage");
    cluster.all_three(0);
    for (site, runtime) in cluster.sites.iter().flatten() {
        runtime.block_on(site.scramble("gpu")).unwrap();
    }
    assert!(cluster.happened("corrupted"));
    for site in 0..3 {
        cluster.all_three(site);
    }
    let start = std::time::Instant::now();
    while !cluster.happened("healed") {
        assert!(start.elapsed() < LONG, "the root never found everything right");
        std::thread::sleep(Duration::from_millis(50));
    }
}
