//! `kofm pool`: make, change, list and remove pools, and take single units out of use.

use clap::{Args, Subcommand};
use hyper::Method;
use kofm_net::api::{self, OnExpiry, PutPool, PutQuarantine, UnitsSpec};
use kofm_net::client::escape;
use kofm_net::config::{MAX_UNITS, check_name};
use std::time::Duration;

use crate::ask::Server;
use crate::exit::{Exit, INFEASIBLE, USAGE};
use crate::output::{say, tell};
use crate::tables::{pools_table, print_json, quarantine_table};

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Subcommand)]
pub(crate) enum Pool {
    /// Create a pool, or resize one
    #[command(after_help = SET_HELP)]
    Set(Set),
    /// List pools
    Ls(Ls),
    /// Remove a pool that is not in use
    Rm(Rm),
    /// Quarantine a unit: at once if it is idle, otherwise when it is released
    #[command(after_help = QUARANTINE_HELP)]
    Quarantine(Quarantine),
    /// Return a quarantined unit to service
    #[command(after_help = RETURN_HELP)]
    Return(Return),
}

const SET_HELP: &str = "\
Examples:
  kofm pool set licence --units 8   # eight units, called 0 to 7
  kofm pool set gpu --units gpu-0,gpu-1,gpu-2
  kofm pool set licence --units 10  # two more; holders keep theirs
  kofm pool set gpu --units 4 --sites a,b   # no other site takes part
  kofm pool set gpu --units 4 --zones eu    # only sites of that zone do

A pool can be resized while it is in use. If it shrinks, held units are
removed as they are released; which units remain is not defined. To remove a
specific unit, use `kofm pool quarantine`. Renaming units or changing the
protocol, the sites or the zones requires an unused pool.";

const QUARANTINE_HELP: &str = "\
Example: a GPU has errors, and must not be granted until it is replaced:
  kofm pool quarantine gpu gpu-3 --reason 'ECC errors, ticket 4711'
  kofm status gpu             # quarantined units, with reasons
  kofm pool return gpu gpu-3  # returns it to service

The holder of the unit keeps it. Requests that wait for more units than are
left fail. Only pools with the protocol roaming, the default, have this.";

const RETURN_HELP: &str = "\
Example:
  kofm status gpu                # shows quarantined units
  kofm pool return gpu gpu-3";

#[derive(Debug, Args)]
pub(crate) struct Set {
    name: String,
    /// Number of units, or their names: 8 or a,b,c
    #[arg(long, value_name = "M|a,b,c", allow_negative_numbers = true)]
    units: String,
    /// Protocol
    #[arg(long, value_name = "P")]
    protocol: Option<String>,
    /// Policy for a lease that is not renewed: release, hold or quarantine
    #[arg(long, value_name = "POLICY")]
    on_expiry: Option<String>,
    /// Sites that share it: a,b,c, or all
    #[arg(long, value_name = "a,b,c|all")]
    sites: Option<String>,
    /// Zones whose sites share it: eu,us, or all
    #[arg(long, value_name = "z,…|all")]
    zones: Option<String>,
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

#[derive(Debug, Args)]
pub(crate) struct Quarantine {
    /// The pool
    pool: String,
    /// The unit's name; its number if units have no names
    unit: String,
    /// Reason, shown to others; a repetition replaces it
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    server: Server,
    /// Print the pool as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Return {
    /// The pool
    pool: String,
    /// The unit's name; its number if units have no names
    unit: String,
    #[command(flatten)]
    server: Server,
    /// Print the pool as JSON
    #[arg(long)]
    json: bool,
}

impl Pool {
    pub(crate) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Set(set) => set.run(),
            Self::Ls(ls) => ls.run(),
            Self::Rm(rm) => rm.run(),
            Self::Quarantine(it) => {
                let spec = PutQuarantine { reason: it.reason };
                change(&it.server, &it.pool, &it.unit, Some(&spec), it.json)
            }
            Self::Return(it) => change(&it.server, &it.pool, &it.unit, None, it.json),
        }
    }
}

/// Quarantines a unit, or returns it; then shows its pool.
fn change(
    server: &Server,
    pool: &str,
    unit: &str,
    spec: Option<&PutQuarantine>,
    json: bool,
) -> Result<(), Exit> {
    for name in [pool, unit] {
        check_name(name).map_err(|text| Exit::new(INFEASIBLE, text))?;
    }
    let method = if spec.is_some() { Method::PUT } else { Method::DELETE };
    let path = format!("/v1/pools/{pool}/quarantine/{unit}");
    let pool: api::Pool =
        server.with(async |client| Ok(client.call(method, &path, spec, PATIENCE).await?))?;
    if json {
        return print_json(&pool);
    }
    let pools = [pool];
    say(&format!("{}{}", pools_table(&pools), quarantine_table(&pools)));
    Ok(())
}

impl Set {
    fn run(self) -> Result<(), Exit> {
        let units = units(&self.units)?;
        let on_expiry = self.on_expiry.as_deref().map(|name| {
            let text = format!("--on-expiry is release, hold or quarantine, not `{name}`");
            OnExpiry::named(name).ok_or_else(|| Exit::new(USAGE, text))
        });
        let spec = PutPool {
            units,
            protocol: self.protocol,
            on_expiry: on_expiry.transpose()?,
            sites: self.sites.as_deref().map(names),
            zones: self.zones.as_deref().map(names),
        };
        let path = format!("/v1/pools/{}", escape(&self.name));
        let pool: api::Pool = self.server.with(async |client| {
            Ok(client.call(Method::PUT, &path, Some(&spec), PATIENCE).await?)
        })?;
        if self.json {
            return print_json(&pool);
        }
        let wanted = match &spec.units {
            UnitsSpec::Count(count) => *count,
            UnitsSpec::Names(names) => u32::try_from(names.len()).unwrap_or(u32::MAX),
        };
        let more = pool.units.saturating_sub(wanted);
        say(&pools_table(&[pool]));
        if more > 0 {
            tell(&format!("kofm: {more} of its units go as they become free"));
        }
        Ok(())
    }
}

/// Reads `a,b,c`, or `all`.
fn names(text: &str) -> Vec<String> {
    if text == "all" {
        return Vec::new();
    }
    text.split(',').map(str::to_owned).collect()
}

/// Reads `8` or `a,b,c`. One word that looks like a number and is none is a slip, not a name.
pub(crate) fn units(text: &str) -> Result<UnitsSpec, Exit> {
    if let Some(count) = text.parse().ok().filter(|count| (1..=MAX_UNITS).contains(count)) {
        return Ok(UnitsSpec::Count(count));
    }
    let numeric = |first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.');
    if !text.contains(',') && text.starts_with(numeric) {
        return Err(Exit::new(
            INFEASIBLE,
            format!(
                "`{text}` must be a number from 1 to {MAX_UNITS}, or names \
                 with commas, as gpu-0,gpu-1; the name of a single unit begins with a letter"
            ),
        ));
    }
    Ok(UnitsSpec::Names(text.split(',').map(str::to_owned).collect()))
}

impl Ls {
    fn run(self) -> Result<(), Exit> {
        let pools: Vec<api::Pool> =
            self.server.with(async |client| Ok(client.get("/v1/pools").await?))?;
        if self.json {
            return print_json(&pools);
        }
        say(&pools_table(&pools));
        Ok(())
    }
}

impl Rm {
    fn run(self) -> Result<(), Exit> {
        let path = format!("/v1/pools/{}", escape(&self.name));
        let removed: serde_json::Value = self.server.with(async |client| {
            Ok(client.call(Method::DELETE, &path, None::<&()>, PATIENCE).await?)
        })?;
        tell(&format!("{} {}", self.name, removed["state"].as_str().unwrap_or("removed")));
        Ok(())
    }
}
