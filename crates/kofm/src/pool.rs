//! `kofm pool`: make, change, list and remove pools.

use clap::{Args, Subcommand};
use hyper::Method;
use kofm_net::api::{self, OnExpiry, PutPool, UnitsSpec};
use std::time::Duration;

use crate::ask::{Server, pools_table, print_json};
use crate::exit::{Exit, USAGE};

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Subcommand)]
pub(crate) enum Pool {
    /// Make a pool, or change one that nobody uses
    Set(Set),
    /// List pools
    Ls(Ls),
    /// Remove a pool that nobody uses
    Rm(Rm),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    name: String,
    /// How many, or their names: 8 or a,b,c
    #[arg(long, value_name = "M|a,b,c")]
    units: String,
    /// How it is shared
    #[arg(long, value_name = "P")]
    protocol: Option<String>,
    /// What happens to a lease that is not renewed: release, hold or quarantine
    #[arg(long, value_name = "POLICY")]
    on_expiry: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print the pool as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    name: String,
    #[command(flatten)]
    server: Server,
}

impl Pool {
    pub(crate) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Set(set) => set.run(),
            Self::Ls(ls) => ls.run(),
            Self::Rm(rm) => rm.run(),
        }
    }
}

impl Set {
    fn run(self) -> Result<(), Exit> {
        let units = match self.units.parse() {
            Ok(count) => UnitsSpec::Count(count),
            Err(_) => UnitsSpec::Names(self.units.split(',').map(str::to_owned).collect()),
        };
        let on_expiry = self.on_expiry.as_deref().map(|name| {
            let text = format!("--on-expiry is release, hold or quarantine, not `{name}`");
            OnExpiry::named(name).ok_or_else(|| Exit::new(USAGE, text))
        });
        let spec = PutPool { units, protocol: self.protocol, on_expiry: on_expiry.transpose()? };
        let path = format!("/v1/pools/{}", self.name);
        let pool: api::Pool = self.server.with(async |client| {
            Ok(client.call(Method::PUT, &path, Some(&spec), PATIENCE).await?)
        })?;
        if self.json {
            return print_json(&pool);
        }
        print!("{}", pools_table(&[pool]));
        Ok(())
    }
}

impl Ls {
    fn run(self) -> Result<(), Exit> {
        let pools: Vec<api::Pool> =
            self.server.with(async |client| Ok(client.get("/v1/pools").await?))?;
        if self.json {
            return print_json(&pools);
        }
        print!("{}", pools_table(&pools));
        Ok(())
    }
}

impl Rm {
    fn run(self) -> Result<(), Exit> {
        let path = format!("/v1/pools/{}", self.name);
        let removed: serde_json::Value = self.server.with(async |client| {
            Ok(client.call(Method::DELETE, &path, None::<&()>, PATIENCE).await?)
        })?;
        eprintln!("{} {}", self.name, removed["state"].as_str().unwrap_or("removed"));
        Ok(())
    }
}
