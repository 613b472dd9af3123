//! Clusters of real processes.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for any machine; no test depends on how fast it is.
pub(crate) const LONG: Duration = Duration::from_secs(90);
pub(crate) const KOFM: &str = env!("CARGO_BIN_EXE_kofm");

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// Processes that end with the test.
pub(crate) struct Cluster {
    pub sites: Vec<Child>,
    pub http: Vec<String>,
    pub configs: Vec<PathBuf>,
    pub peers: Vec<u16>,
    dir: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for site in &mut self.sites {
            site.kill().ok();
            site.wait().ok();
        }
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// A port that is free and stays so until it is used, which may be seconds later: below those that
/// the system gives to whoever asks for any.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 61 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(number % 20_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub(crate) fn temp_dir() -> PathBuf {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("kofm-it-{}-{number}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}

impl Cluster {
    /// One `kofm serve` per site.
    pub(crate) fn start(sites: usize, pools: &str) -> Self {
        Self::start_with(sites, pools, |_, _, port| port)
    }

    /// The same, with more lines at the top of the configuration.
    pub(crate) fn start_as(sites: usize, top: &str, pools: &str) -> Self {
        Self::start_all(sites, |_| top.to_owned(), pools, |_, _, port| port)
    }

    /// The same, with lines of its own for each site.
    pub(crate) fn start_each(
        sites: usize,
        top_of: impl FnMut(usize) -> String,
        pools: &str,
    ) -> Self {
        Self::start_all(sites, top_of, pools, |_, _, port| port)
    }

    /// Kills a site without a word.
    pub(crate) fn kill(&mut self, site: usize) {
        self.sites[site].kill().unwrap();
        self.sites[site].wait().unwrap();
    }

    /// Starts a site again.
    pub(crate) fn restart(&mut self, site: usize) {
        self.restart_by(site, || Command::new(KOFM));
    }

    /// Starts a site again by a command that runs `kofm` with the arguments that are added.
    pub(crate) fn restart_by(&mut self, site: usize, kofm: impl FnOnce() -> Command) {
        let (child, http) = serve_by(kofm(), &self.configs[site]);
        self.sites[site] = child;
        self.http[site] = http;
    }

    pub(crate) fn state_dir(&self, site: usize) -> PathBuf {
        self.dir.join(format!("state-{site}"))
    }

    /// Waits until a site sees so many members in the epoch.
    pub(crate) fn members(&self, site: usize, count: usize) {
        until("the members agree", || {
            let output = self.run(site, &["members", "--json"]);
            let members: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let members = members.as_array().cloned().unwrap_or_default();
            let granting =
                members.iter().all(|it| it["state"] != "self" || it["trouble"].is_null());
            granting && members.iter().filter(|it| it["member"] == true).count() == count
        });
    }

    /// The same, where site `from` reaches site `to` on another port.
    pub(crate) fn start_with(
        sites: usize,
        pools: &str,
        port_of: impl FnMut(usize, usize, u16) -> u16,
    ) -> Self {
        Self::start_all(sites, |_| String::new(), pools, port_of)
    }

    pub(crate) fn start_all(
        sites: usize,
        top_of: impl FnMut(usize) -> String,
        pools: &str,
        port_of: impl FnMut(usize, usize, u16) -> u16,
    ) -> Self {
        let cluster = Self::begin_all(sites, top_of, pools, port_of);
        cluster.connected();
        cluster
    }

    /// One `kofm serve` per site, which need not have met.
    pub(crate) fn begin(sites: usize, pools: &str) -> Self {
        Self::begin_all(sites, |_| String::new(), pools, |_, _, port| port)
    }

    fn begin_all(
        sites: usize,
        mut top_of: impl FnMut(usize) -> String,
        pools: &str,
        mut port_of: impl FnMut(usize, usize, u16) -> u16,
    ) -> Self {
        let dir = temp_dir();
        let peers: Vec<u16> = (0..sites).map(|_| free_port()).collect();
        let mut configs = Vec::new();
        for me in 0..sites {
            let mut text = format!(
                "cluster = \"test\"\nsite = \"s{me}\"\nhttp = \"127.0.0.1:0\"\n\
                 listen = \"127.0.0.1:{}\"\nstate_dir = \"{}\"\n{}[members]\n",
                peers[me],
                dir.join(format!("state-{me}")).display(),
                top_of(me)
            );
            for (to, &port) in peers.iter().enumerate() {
                writeln!(text, "s{to} = \"127.0.0.1:{}\"", port_of(me, to, port)).unwrap();
            }
            text.push_str(pools);
            let path = dir.join(format!("s{me}.toml"));
            fs::write(&path, text).unwrap();
            configs.push(path);
        }
        let mut cluster =
            Self { sites: Vec::new(), http: Vec::new(), configs: configs.clone(), peers, dir };
        for config in configs {
            let (child, http) = serve(&config);
            cluster.sites.push(child);
            cluster.http.push(http);
        }
        cluster
    }

    /// Waits until all sites see each other.
    pub(crate) fn connected(&self) {
        for site in 0..self.http.len() {
            until("all sites are connected", || {
                let members = self.json(site, &["members", "--json"]);
                members.as_array().unwrap().iter().all(|it| it["state"] != "away")
            });
        }
    }

    pub(crate) fn command(&self, site: usize, args: &[&str]) -> Command {
        command(&self.http[site], args)
    }

    pub(crate) fn run(&self, site: usize, args: &[&str]) -> Output {
        self.command(site, args).output().unwrap()
    }

    pub(crate) fn json(&self, site: usize, args: &[&str]) -> Value {
        let output = self.run(site, args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn pool(&self, site: usize, name: &str) -> Value {
        self.json(site, &["status", name, "--json"])["pools"][0].clone()
    }

    /// Waits until nobody holds or waits; units are exact all the time.
    pub(crate) fn all_free(&self, name: &str) {
        until("all units are free", || {
            let pool = self.pool(0, name);
            let count = |field: &str| pool[field].as_u64().unwrap();
            let sum = count("held") + count("free") + count("quarantined");
            assert_eq!(sum, count("units"), "{pool}");
            count("free") == count("units") && count("waiting") == 0
        });
    }
}

pub(crate) fn command(http: &str, args: &[&str]) -> Command {
    let mut command = Command::new(KOFM);
    command.args(args).env("KOFM_ADDR", http).stdin(Stdio::null());
    command
}

/// Starts a site; it says on stdout where it answers clients.
pub(crate) fn serve(config: &PathBuf) -> (Child, String) {
    serve_by(Command::new(KOFM), config)
}

fn serve_by(mut kofm: Command, config: &PathBuf) -> (Child, String) {
    let mut child = kofm
        .args(["serve", "--config"])
        .arg(config)
        .env("KOFM_LOG", "error")
        .env("KOFM_TEST_FAULTS", "1")
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let http = line.split_whitespace().nth(1).expect("the site says where it is").to_owned();
    (child, http)
}

/// What a site answers, with its head.
pub(crate) fn get(http: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(http.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nconnection: close\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Waits for something that must become true, however slow the machine is.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn exit_code(child: &mut Child) -> i32 {
    let mut code = None;
    until("a process ends", || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    code.unwrap().code().unwrap_or(-1)
}

pub(crate) fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// A TCP proxy that can be cut: connections are dropped, and new ones are not passed on.
pub(crate) struct Proxy {
    pub port: u16,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn new(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&cut);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cut = Arc::clone(&shared);
                    std::thread::spawn(move || pump(from, to, &cut));
                }
            }
        });
        Self { port, cut }
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut buffer = [0; 16 << 10];
    loop {
        if cut.load(Ordering::Relaxed) {
            break;
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            Err(_) => break,
        }
    }
    from.shutdown(std::net::Shutdown::Both).ok();
    to.shutdown(std::net::Shutdown::Both).ok();
}
