//! `kofm gang`: members at several sites that start together or not at all.
//!
//! Sites never run commands. Where all members are on one machine, `gang run` starts the command
//! once for each; where they are not, it is started on each member's machine with `--as`, and those
//! meet at the site of the first member.

mod apart;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use kofm_net::api::{self, Code, GangMembers, PutGang, StartGang, Started, State, Want};
use kofm_net::client::{Client, ClientError};
use kofm_net::{Boottime, Moment, duration};
use rustix::process::Pid;
use tokio::time::{Instant, sleep_until, timeout};

use crate::acquire::{answered, owner, settled};
use crate::ask::Server;
use crate::exit::{BUSY, Exit, INFEASIBLE, LOST, TIMEOUT, UNREACHABLE, USAGE};
use crate::output::{say, tell};
use crate::run::{End, GuardLink, Signals, Word, give_back, start_guard, told};
use crate::tables::{print_json, table};

const PATIENCE: Duration = Duration::from_secs(15);
/// The name under which sites know the fixed gang whose turn is next.
const NEXT: &str = kofm_net::NEXT_GANG;

#[derive(Debug, Subcommand)]
pub(crate) enum Gang {
    /// Create a gang, or change its members
    Set(Set),
    /// Run a command at each member once all have all their units
    #[command(after_help = RUNS)]
    Run(Run),
    /// List gangs
    Ls(Ls),
    /// Remove a gang; a run of it goes on
    Rm(Rm),
}

const RUNS: &str = "\
The members' units and the members themselves are one demand: all of it is
granted, or nothing. A member takes part in one gang at a time. The command
runs once for each member, with KOFM_MEMBER (the site), KOFM_GANG, and of its
own share KOFM_UNITS_<POOL>, KOFM_LEASE and KOFM_FENCE. All units are released
when the last one has ended. When one fails, or a member is lost, all are
stopped.

Sites never run commands. On a cluster in one process (`kofm up`), or with
--here, all members run on this machine. Otherwise run this on each member's
machine, against its own site, with --as:

  s0$ kofm gang run train --as s0 -- torchrun …
  s1$ kofm gang run train --as s1 -- torchrun …

Gangs of [fixed_gangs] in the configuration are run in this way, too. Under
`groups`, where they take turns, it is `kofm gang run --next --as SITE`, and
KOFM_GANG is the gang whose turn it is.

Examples, for a cluster in one process:
  kofm gang set pair --member s0=gpu:1 --member s1=gpu:1,licence:1
  kofm gang run pair -- sh -c 'echo $KOFM_MEMBER has $KOFM_UNITS_GPU'

With --as, no command starts before the clients of all members have confirmed
that they can start theirs. If a client or its site is lost before that, none
starts, and the others wait for that member again. Each waits until all have
ended. A member that is lost after the last confirmation, before its own
command starts, cannot keep the others from starting: they are stopped when it
is missed, after --ttl at the latest, and end with 76. Fixed gangs have
the barriers of their algorithm instead, and end with their own codes.

Exit code, the same at every member: 0 if all ended with 0, otherwise that of
the first that did not; 76 a member or the lease was lost, 75 busy (--wait 0),
124 --wait ran out, 65 unknown or infeasible.";

#[derive(Debug, Args)]
pub(crate) struct Set {
    name: String,
    /// A member and its units; repeat for each member. SITE= alone needs no units
    #[arg(long = "member", value_name = "SITE=POOL:K[,POOL:K]", required = true)]
    members: Vec<String>,
    #[command(flatten)]
    server: Server,
    /// Print the gang as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[arg(value_name = "NAME", required_unless_present = "next")]
    gang: Option<String>,
    /// Run the fixed gang whose turn is next, instead of NAME
    #[arg(long, conflicts_with = "gang", requires = "member")]
    next: bool,
    /// The gang that is run.
    #[arg(skip)]
    name: String,
    /// Run only this member; the other members are started on their own machines
    #[arg(long = "as", value_name = "SITE", conflicts_with = "here")]
    member: Option<String>,
    /// Run all members on this machine
    #[arg(long)]
    here: bool,
    /// Time to wait at most; 0 tries once [default: forever]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Time for which the lease lasts without a renewal
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
    /// Owner, shown to others (default: user@host)
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Time between TERM and KILL, at most a quarter of the ttl
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = duration::parse)]
    kill_grace: Duration,
    #[command(flatten)]
    server: Server,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
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

impl Gang {
    pub(crate) fn run(self) -> Result<(), Exit> {
        match self {
            Self::Set(set) => set.run(),
            Self::Run(run) => run.run(),
            Self::Ls(ls) => ls.run(),
            Self::Rm(rm) => rm.run(),
        }
    }
}

fn path(name: &str) -> Result<String, Exit> {
    kofm_net::config::check_name(name).map_err(|text| Exit::new(INFEASIBLE, text))?;
    Ok(format!("/v1/gangs/{name}"))
}

/// `SITE=POOL:K,POOL:K`.
fn member(text: &str) -> Result<(String, Want), Exit> {
    let malformed = || {
        Exit::new(INFEASIBLE, format!("--member {text}: write SITE=POOL:K, more pools with commas"))
    };
    let (site, demand) = text.split_once('=').ok_or_else(malformed)?;
    let want = api::parse_want(demand).filter(|_| !site.is_empty()).ok_or_else(malformed)?;
    Ok((site.to_owned(), want))
}

impl Set {
    fn run(self) -> Result<(), Exit> {
        let mut members = BTreeMap::new();
        for text in &self.members {
            let (site, want) = member(text)?;
            if members.insert(site.clone(), want).is_some() {
                return Err(Exit::new(
                    INFEASIBLE,
                    format!(
                        "--member {site} is given twice; write each site once, with all its pools"
                    ),
                ));
            }
        }
        let spec = PutGang { members: GangMembers(members) };
        let path = path(&self.name)?;
        let gang: api::Gang = self.server.with(async |client| {
            Ok(client.call(Method::PUT, &path, Some(&spec), PATIENCE).await?)
        })?;
        if self.json {
            return print_json(&gang);
        }
        say(&gangs_table(&[gang]));
        Ok(())
    }
}

impl Ls {
    fn run(self) -> Result<(), Exit> {
        let list: Vec<api::Gang> =
            self.server.with(async |client| Ok(client.get("/v1/gangs").await?))?;
        if self.json {
            return print_json(&list);
        }
        say(&gangs_table(&list));
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

fn gangs_table(gangs: &[api::Gang]) -> String {
    let member = |(site, want): (&String, &Want)| {
        let parts: Vec<String> =
            want.iter().map(|(pool, units)| format!("{pool}:{units}")).collect();
        format!("{site}={}", parts.join(","))
    };
    let row = |gang: &api::Gang| {
        let members: Vec<String> = gang.members.iter().map(member).collect();
        vec![gang.name.clone(), gang.state.clone(), members.join(" ")]
    };
    table(&["GANG", "STATE", "MEMBERS"], gangs.iter().map(row))
}

impl Run {
    fn run(mut self) -> Result<(), Exit> {
        self.name = self.gang.take().unwrap_or_else(|| NEXT.to_owned());
        let code = self.server.with(async |client| match &self.member {
            Some(member) => self.run_one(&client, member).await,
            None => self.run_all(&client).await,
        })?;
        if code == 0 { Ok(()) } else { Err(Exit::new(code, "")) }
    }

    fn env(gang: &str, member: &str, rest: Vec<(String, String)>) -> Vec<(String, String)> {
        let own = [("KOFM_GANG", gang), ("KOFM_MEMBER", member)];
        let own = own.map(|(variable, value)| (variable.to_owned(), value.to_owned()));
        own.into_iter().chain(rest).collect()
    }

    fn who(&self) -> String {
        self.owner.clone().unwrap_or_else(owner)
    }

    // All members here: one lease, one command for each.

    async fn run_all(&self, client: &Client) -> Result<u8, Exit> {
        let spec = StartGang {
            ttl: Some(self.ttl),
            wait: self.wait,
            owner: Some(self.who()),
            ..StartGang::default()
        };
        let start = path(&self.name)? + "/start";
        let mut signals = Signals::new()?;
        let call = client.call(Method::POST, &start, Some(&spec), PATIENCE);
        let (started, signal): (Started, _) = answered(call, &mut signals).await?;
        let id = started.request.id.clone();
        if !started.together && !self.here && started.members.len() > 1 {
            client.cancel(&id).await?;
            let name = &self.name;
            return Err(Exit::new(
                USAGE,
                format!(
                    "the sites of gang {name} are not one process: run `kofm gang run {name} --as \
                     SITE -- …` on the machine of each member, or all of them here with --here"
                ),
            ));
        }
        let request = settled(client, None, started.request, signal, &mut signals).await?;
        let Some(lease) = request.lease.clone().filter(|_| request.state == State::Granted) else {
            return Err(self.refused(&request));
        };
        let shares = api::shares(&started.members, &lease.units);
        let held = self.hold_all(client, &lease, &shares, &mut signals).await;
        give_back(client, &lease.id, held.unwrap_or_else(End::before_start)).await
    }

    fn refused(&self, request: &api::Request) -> Exit {
        let cause = request.cause.as_deref().unwrap_or("not granted");
        match (request.code, self.wait) {
            (Some(Code::Busy), _) => Exit::new(BUSY, cause),
            (Some(Code::Timeout), Some(wait)) => {
                Exit::new(TIMEOUT, format!("not started within {}", duration::show(wait)))
            }
            (_, _) => Exit::new(UNREACHABLE, cause),
        }
    }

    /// Runs all commands, each under its guard. Errors come before the first starts.
    async fn hold_all(
        &self,
        client: &Client,
        lease: &api::Lease,
        shares: &BTreeMap<String, BTreeMap<String, Vec<String>>>,
        signals: &mut Signals,
    ) -> Result<End, Exit> {
        let mut crew = Crew::new();
        for (member, units) in shares {
            let env = Self::env(&self.name, member, told(&lease.id, lease.fence, units));
            crew.add(member, start_guard(&self.command, &env).await?);
        }
        // How old the grant is, nobody here knows; a renewal has a beginning that is known.
        let sent = Moment::now();
        let renewed = client.renew(&lease.id).await?;
        let certain = |renewed: &api::Lease| {
            Duration::from_millis(lease.ttl_ms.min(renewed.expires_in_ms.max(1)))
        };
        let mut ttl = certain(&renewed);
        let mut until = sent.after(Duration::from_millis(renewed.expires_in_ms));
        // Only now, when all guards are there, do they start anything.
        crew.until(until, ttl, self.kill_grace).await;
        // A moment, not a pause: signals that come often must not put it off.
        let mut next = Instant::now() + ttl / 3;
        let mut lost = None;
        while crew.works() {
            tokio::select! {
                () = crew.next() => {}
                word = signals.word() => crew.say(&word).await,
                () = sleep_until(next), if lost.is_none() => {
                    let sent = Moment::now();
                    let mut pause = (ttl / 20).max(Duration::from_millis(20));
                    match timeout(ttl / 3, client.renew(&lease.id)).await {
                        Ok(Ok(renewed)) => {
                            ttl = certain(&renewed);
                            until = sent.after(Duration::from_millis(renewed.expires_in_ms));
                            crew.until(until, ttl, self.kill_grace).await;
                            pause = ttl / 3;
                        }
                        Ok(Err(ClientError::Refused(error))) if error.error == Code::Gone => {
                            tell(&format!("kofm: {}; stopping all members", error.message));
                            crew.lost().await;
                            lost = Some(error.message);
                        }
                        Ok(Err(error)) => tell(&format!("kofm: not renewed: {error}")),
                        Err(_) => {}
                    }
                    next = Instant::now() + pause;
                }
            }
            if lost.is_none() {
                crew.stop_if_one_failed(self.kill_grace).await;
            }
        }
        let end = crew.result();
        Ok(match lost {
            Some(message) => End { code: Err(Exit::new(LOST, message)), ..end },
            None => end,
        })
    }
}

/// The members that run here, each under its guard.
struct Crew {
    guards: Vec<(String, GuardLink)>,
    /// The codes of those that did not end well.
    ends: BTreeMap<String, Result<u8, Exit>>,
    /// The first that did not end well.
    failed: Option<String>,
    stopped: bool,
    /// Nothing runs any more of those that have ended.
    over: bool,
}

impl Crew {
    const fn new() -> Self {
        Self { guards: Vec::new(), ends: BTreeMap::new(), failed: None, stopped: false, over: true }
    }

    fn add(&mut self, member: &str, guard: GuardLink) {
        self.guards.push((member.to_owned(), guard));
    }

    const fn works(&self) -> bool {
        !self.guards.is_empty()
    }

    /// Waits until one of them has ended.
    async fn next(&mut self) {
        let limit = self.guards.iter().filter_map(|it| it.1.limit).min();
        let overdue = async {
            match limit {
                Some(limit) => sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        let words = std::future::poll_fn(|context| {
            for (place, (_, guard)) in self.guards.iter_mut().enumerate() {
                let word = std::pin::Pin::new(&mut guard.words).poll_next_line(context);
                if let std::task::Poll::Ready(word) = word {
                    return std::task::Poll::Ready((place, word));
                }
            }
            std::task::Poll::Pending
        });
        let next = tokio::select! {
            biased;
            (place, line) = words => Some((place, Word::read(line.ok().flatten()))),
            () = overdue => None,
        };
        let (place, word) = next.unwrap_or_else(|| {
            let place = self.guards.iter().position(|it| it.1.limit == limit);
            (place.unwrap_or_default(), Word::Overdue)
        });
        let others: Vec<Pid> = self.guards.iter().map(|(_, guard)| guard.pid).collect();
        let (member, guard) = &self.guards[place];
        let member = member.clone();
        let failed = match &word {
            // Its processes are stopped with the other members.
            Word::Left(status) => End::told(status).code,
            Word::Last(_) | Word::Gone | Word::Overdue => Ok(0),
        };
        let others: Vec<Pid> = others.into_iter().filter(|pid| *pid != guard.pid).collect();
        let end = guard.ended(word, &others);
        let code = match end {
            None => failed,
            Some(End { code, over }) => {
                self.guards.remove(place);
                self.over &= over;
                code
            }
        };
        if !matches!(code, Ok(0)) {
            self.failed.get_or_insert_with(|| member.clone());
            self.ends.entry(member).or_insert(code);
        }
    }

    async fn lost(&mut self) {
        for (_, guard) in &mut self.guards {
            guard.lost().await;
        }
    }

    async fn say(&mut self, word: &str) {
        for (_, guard) in &mut self.guards {
            guard.say(word).await;
        }
    }

    async fn stop(&mut self, grace: Duration) {
        for (_, guard) in &mut self.guards {
            guard.stop(grace).await;
        }
    }

    async fn until(&mut self, until: Moment, ttl: Duration, grace: Duration) {
        for (_, guard) in &mut self.guards {
            guard.until(until, ttl, grace).await;
        }
    }

    /// A gang without one of its members has no use.
    async fn stop_if_one_failed(&mut self, grace: Duration) {
        if let Some(member) = self.failed.clone().filter(|_| !self.stopped && self.works()) {
            self.stopped = true;
            tell(&format!("kofm: member {member} failed; stopping the others"));
            self.stop(grace).await;
        }
    }

    fn result(mut self) -> End {
        let failed = self.failed.and_then(|member| self.ends.remove(&member));
        End { code: failed.unwrap_or(Ok(0)), over: self.over }
    }
}
