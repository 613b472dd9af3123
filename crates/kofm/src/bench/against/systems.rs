//! The systems that are measured: where their programs are, and how they are started.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::ValueEnum;
use rustix::process::geteuid;

use crate::exit::{Exit, SYSTEM};

/// Members of what is replicated.
pub(super) const MEMBERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum System {
    /// Everything that is installed
    All,
    /// A semaphore server with nothing but a queue; always measured
    Floor,
    /// One Redis without persistence
    Redis,
    /// One `PostgreSQL`, advisory locks
    Postgres,
    /// Three members of etcd
    Etcd,
    /// Three members of `ZooKeeper`
    Zookeeper,
    /// Three sites of kofm, and one
    Kofm,
}

impl System {
    /// Those that are started, in the order of the rows.
    pub(super) const EACH: [Self; 6] =
        [Self::Floor, Self::Redis, Self::Postgres, Self::Etcd, Self::Zookeeper, Self::Kofm];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Floor => "floor",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
            Self::Zookeeper => "zookeeper",
            Self::Kofm => "kofm",
        }
    }

    /// What Debian calls it.
    pub(super) const fn package(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Postgres => "postgresql",
            Self::Etcd => "etcd-server",
            Self::Zookeeper => "zookeeper default-jre-headless",
            Self::All | Self::Floor | Self::Kofm => "",
        }
    }

    /// The program, and its version; nothing if it is not installed.
    pub(super) fn find(self) -> Option<(PathBuf, String)> {
        let (program, argument) = match self {
            Self::All => return None,
            Self::Floor | Self::Kofm => (std::env::current_exe().ok()?, "--version"),
            Self::Redis => (on_path("redis-server")?, "--version"),
            Self::Postgres => (postgres()?, "--version"),
            Self::Etcd => (on_path("etcd")?, "--version"),
            Self::Zookeeper => (on_path("java").filter(|_| jar().is_some())?, "-version"),
        };
        let output = Command::new(&program).arg(argument).stdin(Stdio::null()).output().ok()?;
        if !output.status.success() {
            return None;
        }
        // Java prints its version to standard error.
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
        let version = match self {
            Self::Zookeeper => {
                let version = jar_version().unwrap_or_else(|| "of unknown version".to_owned());
                format!("ZooKeeper {version}, {text}")
            }
            Self::All | Self::Floor | Self::Redis | Self::Postgres | Self::Etcd | Self::Kofm => {
                text
            }
        };
        Some((program, version))
    }
}

/// Looks for a program as a shell does, and where Debian puts servers.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The newest `PostgreSQL`: Debian keeps each version in a folder of its own.
fn postgres() -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let program = entry.path().join("bin/postgres");
        if let Some(number) = number.filter(|_| program.is_file()) {
            found.push((number, program));
        }
    }
    let newest = found.into_iter().max().map(|it| it.1);
    let beside = |path: &PathBuf| path.with_file_name("initdb").is_file();
    newest.or_else(|| on_path("postgres")?.canonicalize().ok()).filter(beside)
}

fn jar() -> Option<PathBuf> {
    let path = PathBuf::from("/usr/share/java/zookeeper.jar");
    path.is_file().then_some(path)
}

/// The version is not in the file; Debian knows it.
fn jar_version() -> Option<String> {
    let mut command = Command::new("dpkg-query");
    command.args(["-W", "-f", "${Version}", "zookeeper"]).stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Servers that run, and end with this value.
pub(super) struct Running {
    pub(super) system: System,
    pub(super) version: String,
    /// Where clients connect.
    pub(super) addresses: Vec<String>,
    /// All ports on which they listen.
    pub(super) ports: Vec<u16>,
    children: Vec<Child>,
    dir: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

impl Running {
    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// The first server that has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Starts the servers of a system; `pools` are those of kofm, as a file of sites has them.
    pub(super) fn start(
        system: System,
        sites: usize,
        (program, version): (&Path, String),
        pools: &str,
    ) -> Result<Self, Exit> {
        let name = format!("kofm-bench-{}-{}-{sites}", std::process::id(), system.name());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir)?;
        let (addresses, ports, children) = (Vec::new(), Vec::new(), Vec::new());
        let mut running = Self { system, version, addresses, ports, children, dir };
        match system {
            System::All => {}
            System::Floor => running.spoken(Command::new(program).args(["bench", "--floor"]))?,
            System::Redis => running.redis(program)?,
            System::Postgres => running.postgres(program)?,
            System::Etcd => running.etcd(program)?,
            System::Zookeeper => running.zookeeper(program)?,
            System::Kofm => running.kofm(program, sites, pools)?,
        }
        Ok(running)
    }

    fn spawn(&mut self, command: &mut Command) -> Result<&mut Child, Exit> {
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        self.children.push(child);
        let last = self.children.last_mut();
        last.ok_or_else(|| Exit::new(SYSTEM, "no child"))
    }

    /// Starts a server of this program: it prints its address.
    fn spoken(&mut self, command: &mut Command) -> Result<(), Exit> {
        let child = self.spawn(command.stdout(Stdio::piped()))?;
        let stdout = child.stdout.take().ok_or_else(|| Exit::new(SYSTEM, "no output"))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.ok_or_else(|| Exit::new(SYSTEM, "a server of kofm did not start"))?;
        self.ports.push(port);
        self.addresses.push(address);
        Ok(())
    }

    fn redis(&mut self, program: &Path) -> Result<(), Exit> {
        let port = self.claim_ports(1)?[0];
        self.addresses.push(format!("127.0.0.1:{port}"));
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--port", &port.to_string(), "--dir"]).arg(&self.dir);
        self.spawn(command.stdout(Stdio::null())).map(drop)
    }

    fn postgres(&mut self, program: &Path) -> Result<(), Exit> {
        let port = self.claim_ports(1)?[0];
        self.addresses.push(format!("127.0.0.1:{port}"));
        // It refuses to run as root.
        let root = geteuid().is_root();
        let command = |program: &Path| {
            if !root {
                return Command::new(program);
            }
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]);
            command.arg(program);
            command
        };
        if root {
            run(Command::new("chown").arg("postgres:postgres").arg(&self.dir))?;
        }
        let data = self.dir.join("data");
        let mut initdb = command(&program.with_file_name("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--no-sync", "-D"]).arg(&data);
        run(initdb.current_dir(&self.dir))?;
        let mut server = command(program);
        server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
        server.args(["-c", "unix_socket_directories=", "-c", "max_connections=300"]);
        self.spawn(server.current_dir(&data).stdout(Stdio::null())).map(drop)
    }

    fn etcd(&mut self, program: &Path) -> Result<(), Exit> {
        let ports = self.claim_ports(2 * MEMBERS)?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let pairs = ports.as_chunks::<2>().0;
        let names = pairs.iter().enumerate().map(|(me, pair)| format!("m{me}={}", url(pair[1])));
        let cluster = names.collect::<Vec<_>>().join(",");
        for (me, pair) in pairs.iter().enumerate() {
            let [client, peer] = pair.map(url);
            self.addresses.push(format!("127.0.0.1:{}", pair[0]));
            let mut command = Command::new(program);
            command
                .args(["--name", &format!("m{me}"), "--data-dir"])
                .arg(self.dir.join(&*format!("m{me}")));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster, "--initial-cluster-state", "new"]);
            self.spawn(command.stdout(Stdio::null()))?;
        }
        Ok(())
    }

    fn zookeeper(&mut self, program: &Path) -> Result<(), Exit> {
        let ports = self.claim_ports(3 * MEMBERS)?;
        let sets = ports.as_chunks::<3>().0;
        let jar = jar().ok_or_else(|| Exit::new(SYSTEM, "zookeeper.jar is missing"))?;
        let mut servers = String::new();
        for (me, [_, peer, election]) in sets.iter().enumerate() {
            let _ = writeln!(servers, "server.{}=127.0.0.1:{peer}:{election}", me + 1);
        }
        for (me, [client, ..]) in sets.iter().enumerate() {
            let dir = self.dir.join(format!("m{me}"));
            std::fs::create_dir_all(&dir)?;
            std::fs::write(dir.join("myid"), format!("{}\n", me + 1))?;
            let config = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={client}\n\
                 clientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
                 maxClientCnxns=0\n{servers}",
                dir.display()
            );
            let path = dir.join("zoo.cfg");
            std::fs::write(&path, config)?;
            self.addresses.push(format!("127.0.0.1:{client}"));
            let mut command = Command::new(program);
            command.arg("-cp").arg(&jar).arg("-Dzookeeper.jmx.log4j.disable=true");
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&path);
            self.spawn(command.current_dir(&dir).stdout(Stdio::null()))?;
        }
        Ok(())
    }

    /// Sites as `kofm serve` runs them: each grant is in the site's file before its client hears of
    /// it.
    fn kofm(&mut self, program: &Path, sites: usize, pools: &str) -> Result<(), Exit> {
        let peers = self.claim_ports(sites)?;
        let mut members = String::new();
        for (me, port) in peers.iter().enumerate() {
            let _ = writeln!(members, "s{me} = \"127.0.0.1:{port}\"");
        }
        let mut configs = Vec::new();
        for me in 0..sites {
            let state = self.dir.join(format!("s{me}"));
            let text = format!(
                "cluster = \"bench\"\nsite = \"s{me}\"\nhttp = \"127.0.0.1:0\"\n\
                 state_dir = \"{}\"\n[members]\n{members}{pools}",
                state.display()
            );
            let path = self.dir.join(format!("s{me}.toml"));
            std::fs::write(&path, text)?;
            configs.push(path);
        }
        for path in configs {
            let mut command = Command::new(program);
            command.env("KOFM_LOG", "error").args(["serve", "--config"]).arg(path);
            self.spoken(&mut command)?;
        }
        Ok(())
    }

    /// Takes note of ports that are free now.
    fn claim_ports(&mut self, count: usize) -> Result<Vec<u16>, Exit> {
        let mut listeners = Vec::new();
        for _ in 0..count {
            listeners.push(TcpListener::bind("127.0.0.1:0")?);
        }
        let mut ports = Vec::new();
        for listener in listeners {
            ports.push(listener.local_addr()?.port());
        }
        self.ports.extend(&ports);
        Ok(ports)
    }
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<(), Exit> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let name = command.get_program().to_string_lossy().into_owned();
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Exit::new(SYSTEM, format!("{name}: {}", text.lines().next_back().unwrap_or("failed"))))
}
