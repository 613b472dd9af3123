//! Sites far from each other: links that are slow, uneven, cut and reset.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, exit_code, get, signal, until};

/// The way from one site to another, and back.
#[derive(Clone)]
struct Road {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    cut: Arc<AtomicBool>,
}

/// Bytes on their way, each with the moment when they arrive; none after the end.
#[derive(Default)]
struct Wire {
    chunks: Mutex<(VecDeque<(Instant, Vec<u8>)>, bool)>,
    news: Condvar,
}

/// A number below the bound, the same in each run.
fn below(state: &mut u64, bound: u32) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    u32::try_from((*state >> 33) % u64::from(bound)).unwrap()
}

/// Carries bytes one way: they arrive after the delay, and up to half of it later.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration, seed: u64) {
    let wire = Arc::new(Wire::default());
    let (input, ends) = (Arc::clone(&wire), from.try_clone().unwrap());
    thread::spawn(move || {
        let (mut buffer, mut seed, mut last) = ([0; 16 << 10], seed, Instant::now());
        loop {
            let count = from.read(&mut buffer).unwrap_or(0);
            let late = delay + delay * below(&mut seed, 100) / 200;
            last = last.max(Instant::now() + late);
            let mut chunks = input.chunks.lock().unwrap();
            if count == 0 {
                chunks.1 = true;
            } else {
                chunks.0.push_back((last, buffer[..count].to_vec()));
            }
            input.news.notify_one();
            if count == 0 {
                return;
            }
        }
    });
    thread::spawn(move || {
        loop {
            let mut chunks = wire.chunks.lock().unwrap();
            while chunks.0.is_empty() && !chunks.1 {
                chunks = wire.news.wait(chunks).unwrap();
            }
            let Some((moment, bytes)) = chunks.0.pop_front() else { break };
            drop(chunks);
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
        ends.shutdown(Shutdown::Both).ok();
    });
}

impl Road {
    fn new(target: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let road = Self { port, open: Arc::default(), cut: Arc::default() };
        let (open, cut) = (Arc::clone(&road.open), Arc::clone(&road.cut));
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                if cut.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let seed = (u64::from(target) << 20) + number as u64;
                let clone = |stream: &TcpStream| stream.try_clone().unwrap();
                carry(clone(&client), clone(&server), delay, seed);
                carry(clone(&server), clone(&client), delay, seed + 1);
                open.lock().unwrap().extend([client, server]);
            }
        });
        road
    }

    fn reset(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
        self.reset();
    }
}

/// Sites with a road each way between any two of them.
struct Far {
    cluster: Cluster,
    roads: Vec<(usize, usize, Road)>,
}

impl Far {
    fn new(sites: usize, delay: Duration, site_lease: &str) -> Self {
        let mut roads: Vec<(usize, usize, Road)> = Vec::new();
        let top = format!("site_lease = \"{site_lease}\"\n");
        let pools = "[pools]\ngpu = 5\n";
        let cluster = Cluster::start_all(
            sites,
            |_| top.clone(),
            pools,
            |from, to, port| {
                if from == to {
                    return port;
                }
                let road = Road::new(port, delay);
                roads.push((from, to, road.clone()));
                road.port
            },
        );
        for site in 0..sites {
            cluster.members(site, sites);
        }
        Self { cluster, roads }
    }

    /// The roads of a site.
    fn of(&self, site: usize) -> impl Iterator<Item = &Road> {
        let its = move |it: &&(usize, usize, Road)| it.0 == site || it.1 == site;
        self.roads.iter().filter(its).map(|it| &it.2)
    }

    /// A command at each site that ends well if its lease is not lost before `done` exists.
    fn hold(&self, done: &std::path::Path) -> Vec<Child> {
        let wait = format!("while [ ! -e {} ]; do sleep 0.1; done", done.display());
        let hold = |site: usize| -> Child {
            let args = ["run", "gpu", "--ttl", "5s", "--", "sh", "-c", &wait];
            let mut command: Command = self.cluster.command(site, &args);
            command.spawn().unwrap()
        };
        (0..self.cluster.http.len()).map(hold).collect()
    }
}

fn members(cluster: &Cluster, site: usize) -> Vec<Value> {
    let text = get(&cluster.http[site], "/v1/members");
    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default();
    let list: Value = serde_json::from_str(body).unwrap_or_default();
    list.as_array().cloned().unwrap_or_default()
}

fn epoch(cluster: &Cluster, site: usize) -> u64 {
    members(cluster, site).iter().filter_map(|it| it["epoch"].as_u64()).max().unwrap_or(0)
}

#[test]
fn resets_of_all_connections_of_a_far_site_cost_no_lease() {
    let far = Far::new(3, Duration::from_millis(80), "10s");
    let done = crate::harness::temp_dir().join("done");
    let mut holders = far.hold(&done);
    until("all hold", || far.cluster.pool(0, "gpu")["held"] == 3);
    for _ in 0..4 {
        far.of(2).for_each(Road::reset);
        thread::sleep(Duration::from_millis(700));
    }
    for site in 0..3 {
        far.cluster.members(site, 3);
        let all = far.cluster.run(site, &["run", "gpu:2", "--", "true"]);
        assert!(all.status.success(), "{all:?}");
    }
    std::fs::write(&done, "").unwrap();
    for holder in &mut holders {
        assert_eq!(exit_code(holder), 0, "a lease was lost");
    }
}

/// `DELAYS=1,20,80,150` are milliseconds one way, `RUN=600` seconds for each.
#[test]
#[ignore = "a measurement, of minutes"]
fn how_sites_far_from_each_other_fare() {
    let number = |name, or: &str| std::env::var(name).unwrap_or_else(|_| or.to_owned());
    println!(
        "| one way | resets, cuts | epochs by them | leases lost | kill noticed | \
         silence noticed |\n\
         | --- | --- | --- | --- | --- | --- |"
    );
    for delay in number("DELAYS", "1,20,80,150").split(',') {
        let delay = Duration::from_millis(delay.parse().unwrap());
        let far = Far::new(5, delay, "5s");
        let done = crate::harness::temp_dir().join("done");
        let mut holders = far.hold(&done);
        until("all hold", || far.cluster.pool(0, "gpu")["held"] == 5);
        let (start, first) = (Instant::now(), epoch(&far.cluster, 0));
        let length = Duration::from_secs(number("RUN", "60").parse().unwrap());
        let (mut resets, mut cuts, mut seed) = (0, 0, 7);
        while start.elapsed() < length {
            thread::sleep(Duration::from_millis((500 + below(&mut seed, 2000)).into()));
            let site = usize::try_from(below(&mut seed, 5)).unwrap();
            match below(&mut seed, 3) {
                // One connection, all of a site, or a road that is cut for less than a second.
                0 => far.of(site).take(1).for_each(Road::reset),
                1 => far.of(site).for_each(Road::reset),
                _ => {
                    let road = far.of(site).last().unwrap();
                    road.cut(true);
                    thread::sleep(Duration::from_millis(below(&mut seed, 1000).into()));
                    road.cut(false);
                    cuts += 1;
                    continue;
                }
            }
            resets += 1;
        }
        let epochs = epoch(&far.cluster, 0) - first;
        std::fs::write(&done, "").unwrap();
        let lost = holders.iter_mut().map(exit_code).filter(|it| *it != 0).count();
        let gone = |site: usize, from: Instant| {
            until("it is left out", || {
                let list = members(&far.cluster, 0);
                list.get(site).is_some_and(|it| it["member"] == false)
            });
            from.elapsed().as_secs_f64()
        };
        signal(&far.cluster.sites[3], "STOP");
        let silent = gone(3, Instant::now());
        signal(&far.cluster.sites[3], "CONT");
        far.cluster.members(0, 5);
        signal(&far.cluster.sites[4], "KILL");
        let killed = gone(4, Instant::now());
        println!(
            "| {} ms | {resets}, {cuts} | {epochs} | {lost} of 5 | {killed:.2} s | {silent:.2} s |",
            delay.as_millis()
        );
    }
}
