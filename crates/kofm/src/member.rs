//! `kofm init`, `invite`, `join` and `member`: how a cluster begins, grows and shrinks.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use kofm_net::authority::{self, Pair};
use kofm_net::config::{Config, check_name, is_address};
use kofm_net::exposure::is_loopback;
use kofm_net::join::{
    Code, create_private_dir, hosts_of, invite, local_address, random_secret, redeem, write_secret,
};

use crate::ask;
use crate::exit::{CONFIG, Exit, SYSTEM, UNREACHABLE, USAGE};
use crate::keyring;
use crate::log::Log;
use crate::output::{say_line, tell};
use crate::recover::Recover;
use crate::serve::Serve;

/// The ports on which a site listens, unless it is told.
const PEERS: u16 = 7700;
const CLIENTS: u16 = 7600;
/// Ports that are tried when they are taken: several sites on one machine.
const TRIED: u16 = 100;

const FILE: &str = "site.toml";

/// Where a site keeps its configuration, its keys and its state.
#[derive(Debug, Args)]
pub(crate) struct Dir {
    /// Directory of the site; default: /var/lib/kofm for root, else ~/.local/state/kofm
    #[arg(long, env = "KOFM_DIR", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Dir {
    fn path(&self) -> Result<PathBuf, Exit> {
        if let Some(dir) = &self.dir {
            return std::path::absolute(dir).map_err(Exit::from);
        }
        if rustix::process::geteuid().is_root() {
            return Ok(PathBuf::from("/var/lib/kofm"));
        }
        let given = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
        let state = given("XDG_STATE_HOME").map(PathBuf::from);
        let home = || given("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        let base = state.or_else(home);
        base.map(|it| it.join("kofm")).ok_or_else(|| {
            Exit::new(USAGE, "--dir: HOME is not set; give the directory of the site")
        })
    }

    /// The configuration of the site in it.
    pub(crate) fn site_file(&self) -> Result<PathBuf, Exit> {
        Ok(self.path()?.join(FILE))
    }

    /// The directory, which must not have a site yet.
    fn fresh(&self) -> Result<PathBuf, Exit> {
        let dir = self.path()?;
        let file = dir.join(FILE);
        if let Ok(text) = fs::read_to_string(&file) {
            let name = |it: Config| format!("site {} of cluster {}", it.site, it.cluster);
            let who = Config::parse(&text).map_or_else(|_| "a site".to_owned(), name);
            let file = file.display();
            let text = format!(
                "this machine is {who} already ({file}); start it with `kofm serve --config \
                 {file}`, or give --dir for another site"
            );
            return Err(Exit::new(CONFIG, text));
        }
        Ok(dir)
    }
}

fn system(path: &Path) -> impl FnOnce(std::io::Error) -> Exit + '_ {
    move |error| Exit::new(SYSTEM, format!("{}: {error}", path.display()))
}

/// The name of this machine, as far as it can be that of a site.
fn machine_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    let name = name.split('.').next().unwrap_or_default();
    let good = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = name.chars().filter(good).take(64).collect();
    if name.is_empty() { "site".to_owned() } else { name }
}

/// The address by which other machines most likely reach this one.
fn own_address() -> IpAddr {
    // Nothing is sent: the system only says which address it would send from.
    let asked = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    asked.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |it| it.ip())
}

/// The first port from `first` on that is free.
fn free_port(ip: IpAddr, first: u16) -> Result<SocketAddr, Exit> {
    let ports = (first..first + TRIED).map(|port| SocketAddr::new(ip, port));
    let mut free = ports.filter(|address| TcpListener::bind(address).is_ok());
    free.next().ok_or_else(|| {
        Exit::new(SYSTEM, format!("no port from {first} on is free at {ip}; give the address"))
    })
}

fn checked_address(flag: &str, given: &str) -> Result<String, Exit> {
    if is_address(given) {
        return Ok(given.to_owned());
    }
    Err(Exit::new(USAGE, format!("{flag} {given}: an address must be HOST:PORT")))
}

fn checked_name(flag: &str, name: &str) -> Result<(), Exit> {
    check_name(name).map_err(|text| Exit::new(USAGE, format!("{flag}: {text}")))
}

fn checked_zone(zone: Option<&String>) -> Result<(), Exit> {
    zone.map_or(Ok(()), |zone| checked_name("--zone", zone))
}

/// All that stands in the file of a site.
struct Files<'a> {
    dir: &'a Path,
    cluster: &'a str,
    site: &'a str,
    address: &'a str,
    http: &'a str,
    zone: Option<&'a str>,
    site_lease: Option<Duration>,
    /// Names and addresses.
    voters: Vec<(String, String)>,
    authority: &'a str,
    authority_key: Option<&'a str>,
    certificate: &'a str,
    key: &'a str,
}

impl Files<'_> {
    /// Writes everything; the configuration last, which says that the rest is complete.
    fn write(&self) -> Result<PathBuf, Exit> {
        let dir = self.dir;
        create_private_dir(dir).map_err(system(dir))?;
        let secret = |name: &str, text: &str| {
            let path = dir.join(name);
            // What an attempt that did not get as far as the configuration left behind.
            fs::remove_file(&path).ok();
            write_secret(&path, text).map_err(system(&path))
        };
        secret("ca.pem", self.authority)?;
        if let Some(key) = self.authority_key {
            secret("ca.key", key)?;
        }
        secret("site.pem", self.certificate)?;
        secret("site.key", self.key)?;
        let token = random_secret();
        secret("admin.token", &format!("{token}\n"))?;
        let path = dir.join(FILE);
        secret(FILE, &self.toml())?;
        if let Err(error) = keyring::keep(self.http, &token) {
            let file = dir.join("admin.token");
            tell(&format!("note: set KOFM_TOKEN from {}: {error}", file.display()));
        }
        Ok(path)
    }

    fn toml(&self) -> String {
        let Self { cluster, site, address, http, .. } = self;
        let path = |name: &str| self.dir.join(name).display().to_string();
        let names: Vec<String> = self.voters.iter().map(|it| format!("{:?}", it.0)).collect();
        let mut text = format!(
            "# Made by kofm. Pools, semaphores and gangs are kept by the cluster: `kofm pool \
             set`.\n\
             cluster = {cluster:?}\n\
             site = {site:?}\n\
             # Where clients on this machine are answered.\n\
             http = {http:?}\n\
             state_dir = {:?}\n\
             # Tokens that clients of this site must show one of: KOFM_TOKEN.\n\
             token_file = {:?}\n",
            path("state"),
            path("admin.token"),
        );
        if let Some(zone) = self.zone {
            let _written = writeln!(text, "zone = {zone:?}");
        }
        if let Some(lease) = self.site_lease {
            let _written = writeln!(text, "site_lease = \"{}ms\"", lease.as_millis());
        }
        let _written = write!(
            text,
            "# The sites that are asked first. Those that vote change as sites come and\n\
             # go: `kofm members` shows them.\n\
             voters = [{}]\n\n\
             [tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
            names.join(", "),
            path("ca.pem"),
            path("site.pem"),
            path("site.key"),
        );
        if self.authority_key.is_some() {
            let _written = writeln!(
                text,
                "# The key of the cluster's authority: `kofm invite` needs it.\nca_key = {:?}",
                path("ca.key")
            );
        }
        text.push_str("\n# The voters and this site; the cluster knows the others.\n[members]\n");
        let own = (self.site.to_owned(), (*address).to_owned());
        let mut members = self.voters.clone();
        if members.iter().all(|it| it.0 != own.0) {
            members.push(own);
        }
        for (name, address) in members {
            let _written = writeln!(text, "{name:?} = {address:?}");
        }
        text
    }
}

const INIT_EXAMPLES: &str = "\
Examples:
  kofm init --cluster lab                # this machine becomes its first site
  kofm init --listen 10.0.0.1:7700       # where other machines reach it
  kofm init --zone eu                    # in a zone
  kofm init --serve                      # and serves at once, as `kofm serve`
  kofm init --dir /tmp/a --listen 127.0.0.1:7700

It prints the commands that come next.";

#[derive(Debug, Args)]
#[command(after_help = INIT_EXAMPLES)]
pub(crate) struct Init {
    /// Name of the cluster
    #[arg(long, default_value = "kofm")]
    cluster: String,
    /// Name of this site; default: the name of the machine
    #[arg(long)]
    site: Option<String>,
    /// HOST:PORT where other sites reach this one; default: its address, port 7700 or the next
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// HOST:PORT where clients are answered; default: 127.0.0.1, port 7600 or the next
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Zone of this site; the voters are spread over zones, and pools may name some
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
    /// Serve at once, as `kofm serve` does
    #[arg(long)]
    serve: bool,
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    log: Log,
}

fn client_address(given: Option<&String>) -> Result<String, Exit> {
    match given {
        Some(address) => checked_address("--http", address),
        None => Ok(free_port(Ipv4Addr::LOCALHOST.into(), CLIENTS)?.to_string()),
    }
}

impl Init {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let dir = self.dir.fresh()?;
        let site = self.site.unwrap_or_else(machine_name);
        checked_name("--cluster", &self.cluster)?;
        checked_name("--site", &site)?;
        checked_zone(self.zone.as_ref())?;
        let address = match &self.listen {
            Some(address) => checked_address("--listen", address)?,
            None => free_port(own_address(), PEERS)?.to_string(),
        };
        let http = client_address(self.http.as_ref())?;
        let system = |text: String| Exit::new(SYSTEM, text);
        let ca = authority::create(&self.cluster).map_err(system)?;
        let Pair { public, key } = authority::request(&self.cluster, &site).map_err(system)?;
        let hosts = hosts_of(&address);
        let certificate = authority::issue(&ca, &self.cluster, &site, &hosts, &public);
        let path = Files {
            dir: &dir,
            cluster: &self.cluster,
            site: &site,
            address: &address,
            http: &http,
            zone: self.zone.as_deref(),
            site_lease: None,
            voters: vec![(site.clone(), address.clone())],
            authority: &ca.public,
            authority_key: Some(&ca.key),
            certificate: &certificate.map_err(system)?,
            key: &key,
        }
        .write()?;
        let state = dir.join("state");
        kofm_net::join::found(&state)
            .map_err(|error| Exit::new(SYSTEM, format!("{}: {error}", state.display())))?;
        say_line(&format!("cluster {}, site {site}: {}", self.cluster, path.display()));
        let option = if self.dir.dir.is_some() {
            format!(" --dir {}", dir.display())
        } else {
            String::new()
        };
        let serve = if self.serve {
            String::new()
        } else {
            format!("  kofm serve --config {}\n", path.display())
        };
        say_line(&format!(
            "\nnext:\n{serve}  \
             export KOFM_ADDR=http://{http}   # on this machine\n  \
             export KOFM_CA={}   # for https://\n  export KOFM_TOKEN=$(cat {})   # elsewhere\n  \
             kofm pool set gpu --units 4\n  \
             kofm invite{option}   # prints a code; then, on another machine: kofm join CODE",
            dir.join("ca.pem").display(),
            dir.join("admin.token").display(),
        ));
        if self.serve { Serve::of(path, self.log).run() } else { Ok(()) }
    }
}

const INVITE_EXAMPLES: &str = "\
Examples:
  kofm invite                # a code for one use, within an hour
  kofm invite --expires 10m

Run it on the machine of any site that `kofm init` or `kofm join` made; that site must run, too.";

#[derive(Debug, Args)]
#[command(after_help = INVITE_EXAMPLES)]
pub(crate) struct Invite {
    /// Time until the code expires
    #[arg(long, default_value = "1h", value_parser = kofm_net::duration::parse)]
    expires: Duration,
    #[command(flatten)]
    dir: Dir,
}

impl Invite {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let path = self.dir.path()?.join(FILE);
        let text = fs::read_to_string(&path).map_err(|error| {
            let path = path.display();
            let text = format!("{path}: {error}; run `kofm init` first, or give --dir");
            Exit::new(CONFIG, text)
        })?;
        let config = Config::parse(&text)
            .map_err(|mistakes| Exit::new(CONFIG, format!("{}: {mistakes}", path.display())))?;
        let code = invite(&config, self.expires).map_err(|text| Exit::new(CONFIG, text))?;
        if is_loopback(&code.address) {
            tell(&format!(
                "note: the code is good on this machine only: site {} listens on {}",
                config.site, code.address
            ));
        }
        say_line(&code.to_string());
        Ok(())
    }
}

const JOIN_EXAMPLES: &str = "\
Examples:
  kofm join CODE               # joins and serves, as `kofm serve` does
  kofm join CODE --site b --listen 10.0.0.2:7700
  kofm join CODE --only        # writes site.toml; start it with `kofm serve`";

#[derive(Debug, Args)]
#[command(after_help = JOIN_EXAMPLES)]
pub(crate) struct Join {
    /// The code that `kofm invite` printed
    code: String,
    /// Name of this site; default: the name of the machine
    #[arg(long)]
    site: Option<String>,
    /// HOST:PORT where other sites reach this one; default: its address, port 7700 or the next
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// HOST:PORT where clients are answered; default: 127.0.0.1, port 7600 or the next
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Zone of this site; the voters are spread over zones, and pools may name some
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
    /// Write the configuration, and do not serve
    #[arg(long)]
    only: bool,
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    log: Log,
}

impl Join {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let code: Code = self.code.parse().map_err(|text: String| Exit::new(USAGE, text))?;
        let dir = self.dir.fresh()?;
        let site = self.site.clone().unwrap_or_else(machine_name);
        checked_name("--site", &site)?;
        checked_zone(self.zone.as_ref())?;
        let http = client_address(self.http.as_ref())?;
        let unreachable = |text: String| Exit::new(UNREACHABLE, text);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let joined = runtime.block_on(async {
            let address = if let Some(address) = &self.listen {
                checked_address("--listen", address)?
            } else {
                let ip = local_address(&code).await.map_err(unreachable)?;
                free_port(ip, PEERS)?.to_string()
            };
            let joined = redeem(&code, &site, &address).await.map_err(unreachable)?;
            Ok::<_, Exit>((joined, address))
        });
        drop(runtime);
        let ((admission, key), address) = joined?;
        let path = Files {
            dir: &dir,
            cluster: &admission.cluster,
            site: &site,
            address: &address,
            http: &http,
            zone: self.zone.as_deref(),
            site_lease: Some(Duration::from_millis(admission.site_lease)),
            voters: admission.voters.into_iter().collect(),
            authority: &admission.authority,
            authority_key: Some(&admission.authority_key),
            certificate: &admission.certificate,
            key: &key,
        }
        .write()?;
        tell(&format!(
            "site {site} of cluster {}: {}\nclients on this machine: export \
             KOFM_ADDR=http://{http}   # and elsewhere KOFM_TOKEN, from {}",
            admission.cluster,
            path.display(),
            dir.join("admin.token").display(),
        ));
        if self.only {
            say_line(&format!("next: kofm serve --config {}", path.display()));
            return Ok(());
        }
        Serve::of(path, self.log).run()
    }
}

/// Look at the sites of a cluster, and remove some.
#[derive(Debug, Subcommand)]
pub(crate) enum Member {
    /// List the sites
    Ls(Ls),
    /// Remove a site from the cluster for good
    Rm(Rm),
    /// Give up a site that is gone with its disk, and take its name back
    Replace(Rm),
    /// Go on with this site alone if the majority of the voters is lost for good
    Recover(Recover),
}

/// Let a site take no new requests, and move its vote
#[derive(Debug, Args)]
#[command(
    after_help = "Other sites go on with its leases and waiting requests. `kofm undrain` takes it \
back."
)]
pub(crate) struct Drain {
    #[command(flatten)]
    of: Rm,
}

impl Drain {
    pub(crate) fn run(self) -> Result<(), Exit> {
        change(&self.of, "drain", "takes no new requests")
    }
}

/// Let a drained site take requests again
#[derive(Debug, Args)]
pub(crate) struct Undrain {
    #[command(flatten)]
    of: Rm,
}

impl Undrain {
    pub(crate) fn run(self) -> Result<(), Exit> {
        change(&self.of, "undrain", "takes requests again")
    }
}

fn change(Rm { site, server }: &Rm, change: &str, told: &str) -> Result<(), Exit> {
    ask::change_member(server, site, change)?;
    tell(&format!("site {site} {told}"));
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    members: ask::Members,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The site
    site: String,
    #[command(flatten)]
    server: ask::Server,
}

impl Member {
    pub(crate) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Ls(ls) => ls.members.run(),
            Self::Recover(recover) => recover.run(),
            Self::Rm(Rm { site, server }) => ask::Members::removing(server, site).run(),
            Self::Replace(of) => change(
                &of,
                "replace",
                "is given up: for a new machine, run `kofm invite` at a site with the \
                 authority's key and `kofm join CODE --site NAME` there; with the same files and \
                 an empty state_dir, start it again",
            ),
        }
    }
}
