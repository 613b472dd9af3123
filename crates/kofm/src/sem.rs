//! `kofm sem`: counters that anybody may take from and add to.

use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use kofm_net::api::{self, AddSpec, PutSemaphore, TakeSpec, Taken};
use kofm_net::duration;

use crate::acquire::owner;
use crate::ask::Server;
use crate::exit::{BUSY, Exit, INFEASIBLE, TIMEOUT};
use crate::output::{say, tell};
use crate::tables::{print_json, show_ms, table};

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Subcommand)]
pub(crate) enum Sem {
    /// Create a semaphore, or set the value of an unused one
    Set(Set),
    /// Take units as soon as it is your turn and there are enough
    #[command(after_help = TAKEN)]
    P(P),
    /// Add units
    V(V),
    /// List semaphores, and who goes next
    Ls(Ls),
    /// Remove a semaphore that is not in use
    Rm(Rm),
}

const TAKEN: &str = "\
Nothing is held and nothing expires: only `kofm sem v` adds the units again.
A P that is interrupted while it waits takes nothing. Calls are repeated at the
other sites of --addr when one does not answer, and take once. P calls are
served in strict order: a P that needs more units than there are blocks all
later ones.

Examples:
  kofm sem set slots --value 3
  kofm sem p slots:2 --wait 10s && { ./work; kofm sem v slots:2; }

Exit code 0 if the units were taken, 75 busy (--wait 0), 124 --wait ran out, 65
unknown or malformed.";

#[derive(Debug, Args)]
pub(crate) struct Set {
    name: String,
    /// First value
    #[arg(long, value_name = "S0")]
    value: u64,
    /// Protocol: sem-token, sem-permission or sem-quorum
    #[arg(long, value_name = "P")]
    protocol: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print the semaphore as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct P {
    /// How much of which: NAME or NAME:K
    #[arg(value_name = "NAME[:K]")]
    what: String,
    /// Time to wait at most; 0 tries once [default: forever]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Owner, shown to others (default: user@host)
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Id of this P: calls with the same one take once (default: a fresh one)
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print what was taken as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct V {
    /// How much to which: NAME or NAME:M
    #[arg(value_name = "NAME[:M]")]
    what: String,
    /// Id of this V: calls with the same one add once (default: a fresh one)
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print what was added as JSON
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

impl Sem {
    pub(crate) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Set(set) => set.run(),
            Self::P(p) => p.run(),
            Self::V(v) => v.run(),
            Self::Ls(ls) => ls.run(),
            Self::Rm(rm) => rm.run(),
        }
    }
}

/// `NAME` or `NAME:K`.
fn amount(text: &str) -> Result<(&str, u64), Exit> {
    let malformed = || {
        let most = u32::MAX;
        let text = format!("`{text}` must be NAME or NAME:K, with K from 1 to {most}");
        Exit::new(INFEASIBLE, text)
    };
    let (name, units) = text.rsplit_once(':').unwrap_or((text, "1"));
    kofm_net::config::check_name(name).map_err(|_| malformed())?;
    let units = units.parse::<u64>().ok().filter(|&units| (1..=u32::MAX.into()).contains(&units));
    Ok((name, units.ok_or_else(malformed)?))
}

impl Set {
    fn run(self) -> Result<(), Exit> {
        let spec = PutSemaphore { value: self.value, protocol: self.protocol };
        let path = path(&self.name)?;
        let semaphore: api::Semaphore = self.server.with(async |client| {
            Ok(client.call(Method::PUT, &path, Some(&spec), PATIENCE).await?)
        })?;
        if self.json {
            return print_json(&semaphore);
        }
        say(&semaphores_table(&[semaphore]));
        Ok(())
    }
}

impl P {
    fn run(self) -> Result<(), Exit> {
        let (name, k) = amount(&self.what)?;
        let owner = self.owner.or_else(|| Some(owner()));
        let spec = TakeSpec { k, wait: self.wait, owner, id: self.id };
        // One call that is answered when the units are taken. Whoever ends this process hangs up,
        // and with that gives up.
        let taken: Result<Taken, Exit> =
            self.server.with(async |client| Ok(client.p(name, &spec).await?));
        let taken = taken.map_err(|exit| match (exit.code, self.wait) {
            (TIMEOUT, Some(wait)) => {
                Exit::new(TIMEOUT, format!("not taken within {}", duration::show(wait)))
            }
            (BUSY, Some(Duration::ZERO)) => {
                Exit::new(BUSY, format!("`{name}` has not got {k} now"))
            }
            _ => exit,
        })?;
        if self.json {
            return print_json(&taken);
        }
        tell(&format!("took {k} of {name} after {}", show_ms(taken.waited_ms)));
        Ok(())
    }
}

impl V {
    fn run(self) -> Result<(), Exit> {
        let (name, m) = amount(&self.what)?;
        let spec = AddSpec { m, id: self.id };
        let added: serde_json::Value =
            self.server.with(async |client| Ok(client.v(name, &spec).await?))?;
        if self.json {
            return print_json(&added);
        }
        tell(&format!("added {m} to {name}"));
        Ok(())
    }
}

impl Ls {
    fn run(self) -> Result<(), Exit> {
        let list: Vec<api::Semaphore> =
            self.server.with(async |client| Ok(client.get("/v1/semaphores").await?))?;
        if self.json {
            return print_json(&list);
        }
        say(&semaphores_table(&list));
        Ok(())
    }
}

impl Rm {
    fn run(self) -> Result<(), Exit> {
        let path = path(&self.name)?;
        let removed: serde_json::Value = self.server.with(async |client| {
            Ok(client.call(Method::DELETE, &path, None::<&()>, PATIENCE).await?)
        })?;
        tell(&format!("{} {}", self.name, removed["state"].as_str().unwrap_or("removed")));
        Ok(())
    }
}

fn path(name: &str) -> Result<String, Exit> {
    kofm_net::config::check_name(name).map_err(|text| Exit::new(INFEASIBLE, text))?;
    Ok(format!("/v1/semaphores/{name}"))
}

fn semaphores_table(list: &[api::Semaphore]) -> String {
    let rows = list.iter().map(|it| {
        let next = it.head.as_ref().map_or(String::new(), |head| {
            let owner = head.owner.as_deref().unwrap_or("an unknown owner");
            let (site, k, missing) = (&head.site, head.k, head.missing);
            format!(
                "{owner} at {site} takes {k}, lacks {missing}, waits {}",
                show_ms(head.waited_ms)
            )
        });
        let numbers = [it.value, it.waiting].map(|number| number.to_string());
        let [value, waiting] = numbers;
        vec![it.name.clone(), value, waiting, it.protocol.clone(), next]
    });
    table(&["SEMAPHORE", "VALUE", "WAITING", "PROTOCOL", "NEXT"], rows)
}
