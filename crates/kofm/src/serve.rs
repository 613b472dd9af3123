//! `kofm serve` and `kofm check-config`: one site of a cluster.

use std::io;
use std::num::NonZero;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kofm_net::config::Config;
use kofm_net::exposure::exposures;
use kofm_net::http::bind_unix;
use kofm_net::https::Https;
use kofm_net::{Access, Site};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::exit::{CONFIG, Exit, SYSTEM};
use crate::log::{Log, abort_on_panic};
use crate::output::{say_line, try_say};

const EXAMPLES: &str = "\
Examples:
  kofm check-config site.toml  # every mistake, with its line
  kofm serve --config site.toml
  KOFM_LOG=debug kofm serve --config site.toml --log-format json

SIGHUP reads the file again. SIGTERM hands leases and waiting requests to the
other sites, within --drain. A second one ends the site at once.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The configuration file
    #[arg(long)]
    config: PathBuf,
    /// Time to wait for leases to end after SIGTERM
    #[arg(long, default_value = "5s", value_parser = kofm_net::duration::parse)]
    drain: Duration,
    #[command(flatten)]
    log: Log,
}

#[derive(Debug, Args)]
pub(crate) struct CheckConfig {
    /// The configuration file
    config: PathBuf,
}

impl CheckConfig {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let (config, _) = read(&self.config)?;
        access(config.token_file.as_deref())?;
        certificate(&self.config, &config)?;
        protected(&self.config, &config)?;
        say_line(&format!(
            "{}: site {} of {} in cluster {}, {} pools, {} semaphores",
            self.config.display(),
            config.site,
            config.members.len(),
            config.cluster,
            config.pools.len(),
            config.semaphores.len()
        ));
        for (name, pool) in &config.pools {
            say_line(&format!(
                "  {name}: {} units, {}, on expiry {}",
                pool.units,
                pool.protocol.name(),
                pool.on_expiry.name()
            ));
        }
        for (name, it) in &config.semaphores {
            say_line(&format!("  {name}: a semaphore of {}, {}", it.value, it.protocol.name()));
        }
        for (name, members) in &config.gangs {
            let members: Vec<&str> = members.keys().map(String::as_str).collect();
            say_line(&format!("  {name}: a gang of {}", members.join(", ")));
        }
        if let Some(rota) = &config.rota {
            for (name, members) in &rota.gangs {
                let (protocol, members) = (rota.protocol.name(), members.join(", "));
                say_line(&format!("  {name}: fixed gang, {protocol}, {members}"));
            }
        }
        Ok(())
    }
}

fn read(path: &PathBuf) -> Result<(Config, String), Exit> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Exit::new(CONFIG, format!("{}: {error}", path.display())))?;
    let config = Config::parse(&text).map_err(|mistakes| {
        let lines: Vec<String> = mistakes
            .0
            .iter()
            .map(|mistake| format!("{}:{}: {}", path.display(), mistake.line, mistake.text))
            .collect();
        Exit::new(CONFIG, lines.join("\nkofm: "))
    })?;
    Ok((config, text))
}

/// Refuses addresses that other machines reach without protection, unless the file accepts that.
fn protected(path: &Path, config: &Config) -> Result<(), Exit> {
    if config.insecure {
        return Ok(());
    }
    let list = exposures(config, config.token_file.is_some());
    let lines: Vec<String> =
        list.iter().map(|it| format!("{}: {}", path.display(), it.rule())).collect();
    if lines.is_empty() { Ok(()) } else { Err(Exit::new(CONFIG, lines.join("\nkofm: "))) }
}

/// The certificate that clients see.
fn certificate(path: &Path, config: &Config) -> Result<Option<Arc<Https>>, Exit> {
    let https = Https::of(config);
    https.map_err(|text| Exit::new(CONFIG, format!("{}: {text}", path.display())))
}

/// Who may use the API, by the file that says so.
pub(crate) fn access(file: Option<&Path>) -> Result<Access, Exit> {
    let Some(path) = file else { return Ok(Access::open()) };
    Access::read(path)
        .map_err(|error| Exit::new(CONFIG, format!("token_file {}: {error}", path.display())))
}

impl Serve {
    /// With this file and the usual settings.
    pub(crate) const fn of(config: PathBuf, log: Log) -> Self {
        Self { config, drain: Duration::from_secs(5), log }
    }

    pub(crate) fn run(self) -> Result<(), Exit> {
        let (config, text) = read(&self.config)?;
        protected(&self.config, &config)?;
        self.log.start("info");
        abort_on_panic();
        // Lease ids are secrets: other users must not read state files.
        umask(Mode::from_raw_mode(0o077));
        allow_many_files();
        runtime()?.block_on(self.serve(config, text))
    }

    async fn serve(self, config: Config, text: String) -> Result<(), Exit> {
        let system = |text: String| Exit::new(SYSTEM, text);
        let https = certificate(&self.config, &config)?;
        let http = match &config.http {
            Some(address) => Some(
                TcpListener::bind(address)
                    .await
                    .map_err(|error| system(format!("cannot listen on {address}: {error}")))?,
            ),
            None => None,
        };
        let access = access(config.token_file.as_deref())?;
        let socket = match &config.socket {
            Some(path) => {
                let bound = bind_unix(path);
                let why = |error| system(format!("cannot listen on {}: {error}", path.display()));
                Some(bound.map_err(why)?)
            }
            None => None,
        };
        let file = File::new(self.config.clone(), config.clone(), text, access.clone())
            .with_certificate(https.clone());
        let site = Site::start(config).await.map_err(|error| system(error.to_string()))?;
        if let Some(listener) = http {
            info!(address = %listener.local_addr()?, "answering clients");
            // Tests and scripts that gave port 0 read the port here; others need not.
            let line = format!("{} http://{}\n", site.config().site, listener.local_addr()?);
            drop(try_say(&line));
            if let Some(https) = &https {
                tokio::spawn(Arc::clone(https).keep_fresh());
            }
            let serve = kofm_net::http::serve_tls;
            tokio::spawn(serve(site.clone(), listener, access.clone(), https));
        }
        if let Some(listener) = socket {
            tokio::spawn(kofm_net::http::serve_unix(site.clone(), listener, access));
        }
        for (text, action) in site.insecurities() {
            warn!("insecure: {text}; {action}");
        }
        notify("READY=1");
        if let Some(interval) = watchdog() {
            tokio::spawn(feed_watchdog(site.clone(), interval));
        }
        tokio::spawn(file.watch(site.clone()));
        tokio::select! {
            stopped = stop_signal() => stopped?,
            () = site.ended() => return Err(system("the site has ended by itself".into())),
        }
        notify("STOPPING=1");
        info!("draining; a second signal ends it at once");
        tokio::select! {
            () = site.drain(self.drain) => {}
            stopped = stop_signal() => stopped?,
        }
        site.stop().await;
        Ok(())
    }
}

/// The configuration file of a running site.
struct File {
    path: PathBuf,
    /// What it says.
    config: Config,
    text: String,
    /// What of it has been brought about.
    running: Config,
    /// Where the last text stands of which everything has been.
    applied: Option<PathBuf>,
    access: Access,
    https: Option<Arc<Https>>,
}

impl File {
    /// A file that may have been changed since the last life of the site read it.
    fn new(path: PathBuf, config: Config, text: String, access: Access) -> Self {
        let applied = config.state_dir.as_ref().map(|dir| dir.join("applied.toml"));
        let last = applied.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let mut running = config.clone();
        if let Some(last) = last.and_then(|text| Config::parse(&text).ok()) {
            running.pools = last.pools;
            running.semaphores = last.semaphores;
            running.gangs = last.gangs;
        }
        Self { path, config, text, running, applied, access, https: None }
    }

    fn with_certificate(self, https: Option<Arc<Https>>) -> Self {
        Self { https, ..self }
    }

    /// Brings about what was changed before the start, and with every SIGHUP what was since.
    async fn watch(mut self, site: Site) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
        site.ready().await;
        self.apply(&site).await;
        while hangup.recv().await.is_some() {
            notify("RELOADING=1");
            self.read_tokens();
            self.read_certificate();
            match read(&self.path) {
                Ok((config, _)) if config == self.running => {
                    info!("the configuration is unchanged");
                }
                Ok((config, text)) => {
                    (self.config, self.text) = (config, text);
                    self.apply(&site).await;
                }
                Err(exit) => {
                    error!("the configuration is wrong, the old one stays: {}", exit.message);
                }
            }
            notify("READY=1");
        }
    }

    /// Clients show the tokens of the file as it is now.
    fn read_tokens(&self) {
        let Some(path) = &self.running.token_file else { return };
        match self.access.reload(path) {
            Ok(true) => info!(tokens = self.access.count(), "token_file changed"),
            Ok(false) => {}
            Err(error) => {
                let path = path.display();
                error!("token_file {path}: {error}; the old tokens stay valid");
            }
        }
    }

    /// New connections of clients get the certificate of the files as they are now.
    fn read_certificate(&self) {
        let Some(https) = &self.https else { return };
        match https.reload() {
            Ok(true) => info!("the certificate for clients changed"),
            Ok(false) => {}
            Err(error) => error!("{error}; clients go on with the old certificate"),
        }
    }

    /// Changes pools, semaphores and gangs in the whole cluster; what needs a restart is named.
    async fn apply(&mut self, site: &Site) {
        let mut all = true;
        for (what, done) in site.reload(&mut self.running, &self.config).await {
            match done {
                Ok(()) => info!(%what, "changed"),
                Err(error) => {
                    error!(%what, "not changed: {error}");
                    all = false;
                }
            }
        }
        let fixed = self.config.differs_in(&self.running);
        if !fixed.is_empty() {
            warn!(
                "changed as well: {}; restart for that, all sites if all have it",
                fixed.join(", ")
            );
        }
        // Otherwise the rest is tried again at the next start.
        if let Some(path) = self.applied.as_ref().filter(|_| all) {
            let fresh = path.with_extension("new");
            let written = std::fs::write(&fresh, &self.text);
            if let Err(error) = written.and_then(|()| std::fs::rename(&fresh, path)) {
                warn!(path = %path.display(), %error, "cannot keep what the file says now");
            }
        }
    }
}

/// Waits for SIGINT or SIGTERM.
pub(crate) async fn stop_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// One thread at a time decides, so a second one helps only where there is much to read and
/// write: a thread for every two cores. On few, passing work on costs more than it brings.
pub(crate) fn runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (cores / 2).clamp(1, 8);
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

/// Every client is an open file.
pub(crate) fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_err() {
        warn!("cannot raise the limit of open files");
    }
}

/// Tells systemd, where it started us.
fn notify(state: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        warn!(%error, "systemd does not listen");
    }
}

/// The interval in which systemd expects a sign of life of this process, if it expects any.
fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let for_other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|&micros| micros > 0 && !for_other)?;
    Some(Duration::from_micros(micros))
}

/// Tells systemd, twice per interval, that the site answers. A site that is stuck does not, and
/// systemd restarts it.
async fn feed_watchdog(site: Site, interval: Duration) {
    while site.metrics().await.is_ok() {
        notify("WATCHDOG=1");
        tokio::time::sleep(interval / 2).await;
    }
}
