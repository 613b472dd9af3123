//! `kofm up`: a whole cluster in one process, nothing to install.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use kofm_net::api::UnitsSpec;
use kofm_net::config::{PoolConfig, check_name, protocol_named};
use kofm_net::{Access, Site};
use tokio::net::TcpListener;

use crate::exit::{Exit, SYSTEM, USAGE};
use crate::keyring;
use crate::log::Log;
use crate::output::{tell, try_say};
use crate::pool;
use crate::serve::{access, allow_many_files, stop_signal};

const EXAMPLES: &str = "\
Examples:
  kofm up                     # 3 sites; pools gpu, licence and reboot
  kofm up --sites 5 --pool gpu=gpu-0,gpu-1 --pool licence=8
  kofm up --secure            # other users of this machine need the token
  kofm up --http 127.0.0.1:0  # any free ports; they are printed";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Up {
    /// Number of sites
    #[arg(long, default_value_t = 3)]
    sites: usize,
    /// A pool: NAME=M or NAME=unit,unit,…; may be repeated
    #[arg(long = "pool", value_name = "NAME=M")]
    pools: Vec<String>,
    /// Protocol of the pools
    #[arg(long, value_name = "P")]
    protocol: Option<String>,
    /// HOST:PORT of the first site; the others use the ports after it
    #[arg(long, default_value = "127.0.0.1:7600")]
    http: SocketAddr,
    /// Answer only clients that show a token of this file, one in each line
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Answer only clients with a token: a random one, kept where kofm finds it (mode 0600)
    #[arg(long, conflicts_with = "token_file")]
    secure: bool,
    /// Accept that --http is an address which other machines reach without a token
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    log: Log,
}

impl Up {
    pub(crate) fn run(self) -> Result<(), Exit> {
        self.log.start("warn");
        crate::log::abort_on_panic();
        let pools = self.pools()?;
        if !(1..=100).contains(&self.sites) {
            return Err(Exit::new(USAGE, "--sites is a number from 1 to 100"));
        }
        if !self.http.ip().is_loopback()
            && !self.secure
            && self.token_file.is_none()
            && !self.insecure
        {
            let text = format!(
                "--http {}: other machines reach it, and clients need no token; it must be a \
                 loopback address, or have --secure, --token-file or --insecure",
                self.http
            );
            return Err(Exit::new(USAGE, text));
        }
        allow_many_files();
        crate::serve::runtime()?.block_on(self.serve(pools))
    }

    async fn serve(self, pools: BTreeMap<String, PoolConfig>) -> Result<(), Exit> {
        let secret = self.secure.then(kofm_net::new_token);
        let access = match &secret {
            Some(token) => Access::token(token),
            None => access(self.token_file.as_deref())?,
        };
        let mut kept = Vec::new();
        let mut listeners = Vec::new();
        for number in 0..self.sites {
            let mut address = self.http;
            if address.port() != 0 {
                let port = u16::try_from(number).ok().and_then(|n| address.port().checked_add(n));
                let text = "--http leaves no room for a port per site";
                address.set_port(port.ok_or_else(|| Exit::new(USAGE, text))?);
            }
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.map_err(|error| {
                Exit::new(SYSTEM, format!("cannot listen on {address}: {error}; try --http"))
            })?);
        }
        let names: Vec<String> = pools.keys().cloned().collect();
        let sites = Site::start_together(self.sites, pools).await;
        let sites = sites.map_err(|error| Exit::new(SYSTEM, error.to_string()))?;
        let mut first = String::new();
        for (site, listener) in sites.iter().zip(listeners) {
            let address = listener.local_addr()?;
            // Its work does not depend on somebody reading this.
            drop(try_say(&format!("{} http://{address}\n", site.config().site)));
            if first.is_empty() {
                first = format!("http://{address}");
            }
            if let Some(token) = &secret {
                let path = keyring::keep(&address.to_string(), token);
                let why = |error| Exit::new(SYSTEM, format!("cannot keep the token: {error}"));
                kept.push(path.map_err(why)?);
            }
            tokio::spawn(kofm_net::http::serve(site.clone(), listener, access.clone()));
        }
        advise(&first, &names, self.token_file.is_some());
        if let Some(path) = kept.first() {
            tell(&format!("\nThe token is in {}; kofm finds it there.", path.display()));
        }
        stop_signal().await?;
        for path in &kept {
            keyring::forget(path);
        }
        tell("stopping");
        Ok(())
    }

    fn pools(&self) -> Result<BTreeMap<String, PoolConfig>, Exit> {
        let usage = |text: String| Exit::new(USAGE, text);
        let mut list = BTreeMap::new();
        let examples = ["gpu=gpu-0,gpu-1,gpu-2,gpu-3", "licence=2", "reboot=1"].map(String::from);
        let given = if self.pools.is_empty() { &examples[..] } else { &self.pools[..] };
        for text in given {
            let (name, units) = text
                .split_once('=')
                .ok_or_else(|| usage(format!("--pool {text}: write NAME=M or NAME=a,b,c")))?;
            check_name(name).map_err(usage)?;
            let mut pool = parse_units(units)?;
            if let Some(protocol) = &self.protocol {
                pool.protocol = protocol_named(protocol).map_err(usage)?;
            }
            if list.insert(name.to_owned(), pool).is_some() {
                return Err(usage(format!("--pool {name} is given twice")));
            }
        }
        Ok(list)
    }
}

/// What to type next.
fn advise(addr: &str, pools: &[String], guarded: bool) {
    tell("\nIn another terminal:\n");
    if addr != "http://127.0.0.1:7600" {
        tell(&format!("  export KOFM_ADDR={addr}"));
    }
    if guarded {
        tell("  export KOFM_TOKEN=...        # one of the file's");
    }
    let pool = pools.first().map_or("gpu", String::as_str);
    let binary = std::env::args().next().unwrap_or_else(|| "kofm".into());
    tell(&format!("  {binary} status"));
    tell(&format!("  {binary} run {pool}:1 -- sh -c 'env | grep KOFM_; sleep 30'"));
    tell(&format!("  {binary} acquire {pool}:1 --ttl 5m --json"));
    tell(&format!("  {binary} queue"));
    let page = if guarded { "/#token=TOKEN" } else { "/" };
    tell(&format!("\nOr open {addr}{page} in a browser. Ctrl-C ends it."));
}

/// Reads `8` or `a,b,c`.
fn parse_units(text: &str) -> Result<PoolConfig, Exit> {
    let names = match pool::units(text)? {
        UnitsSpec::Count(units) => return Ok(PoolConfig::new(units)),
        UnitsSpec::Names(names) => names,
    };
    for (i, name) in names.iter().enumerate() {
        check_name(name).map_err(Exit::usage)?;
        if names[..i].contains(name) {
            return Err(Exit::usage(format!("two units have the name `{name}`")));
        }
    }
    let units = u32::try_from(names.len()).map_err(|_| Exit::usage("too many units"))?;
    Ok(PoolConfig { names, ..PoolConfig::new(units) })
}
