//! Commands that ask a site: acquire, renew, release, status, queue, explain, history, members.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use kofm_net::api::{self, Code, State, Submit, Want};
use kofm_net::client::{Address, Client, ClientError, escape};
use kofm_net::duration;
use serde::Serialize;

use crate::exit::{BUSY, Exit, INFEASIBLE, LOST, SYSTEM, TIMEOUT, UNREACHABLE, USAGE};
use crate::output::{say, say_line, tell, try_say};
use crate::run::Signals;

/// Where the site is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    /// The site: http://HOST:PORT or unix:PATH
    #[arg(long, env = "KOFM_ADDR", default_value = DEFAULT)]
    pub addr: String,
}

const DEFAULT: &str = "http://127.0.0.1:7600";

impl Server {
    pub(crate) fn client(&self) -> Result<Client, Exit> {
        // A variable that is empty is as good as none.
        let addr = if self.addr.is_empty() { DEFAULT } else { &self.addr };
        let address =
            Address::parse(addr).map_err(|text| Exit::new(USAGE, format!("--addr: {text}")))?;
        Ok(Client::new(address, token()?))
    }

    /// Runs a future with a client, on this thread.
    pub(crate) fn with<T, F>(&self, work: impl FnOnce(Client) -> F) -> Result<T, Exit>
    where
        F: Future<Output = Result<T, Exit>>,
    {
        let client = self.client()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(work(client))
    }
}

/// Who asks, to sites that want to know. A token goes into a line of HTTP, so it is one line.
fn token() -> Result<Option<String>, Exit> {
    let Some(token) = std::env::var_os("KOFM_TOKEN").filter(|it| !it.is_empty()) else {
        return Ok(None);
    };
    let token = token.into_string().ok().filter(|it| !it.contains(char::is_control));
    let text = "KOFM_TOKEN is no token: it is one line of text, without control characters";
    token.map(Some).ok_or_else(|| Exit::new(USAGE, text))
}

/// What is asked, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Demand {
    /// Units: POOL or POOL:K, granted all or nothing
    #[arg(required = true, value_name = "POOL[:K]")]
    pub want: Vec<String>,
    /// How long to wait at most; 0 tries once [default: for ever]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// How long the lease lives without a renewal
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = duration::parse)]
    pub ttl: Duration,
    /// What for, shown to others
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who asks, shown to others (default: user@host)
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,
    /// A name for the request: used twice, it is one request
    #[arg(long)]
    pub id: Option<String>,
}

impl Demand {
    pub(crate) fn submit(&self) -> Result<Submit, Exit> {
        let mut want = Want::new();
        for text in &self.want {
            let (pool, units) = text.rsplit_once(':').unwrap_or((text, "1"));
            let malformed =
                || Exit::new(INFEASIBLE, format!("`{text}` is no demand; write POOL:K"));
            let units: u32 = units.parse().map_err(|_| malformed())?;
            if pool.is_empty() || units == 0 {
                return Err(malformed());
            }
            let sum = want.entry(pool.to_owned()).or_insert(0);
            *sum = sum.checked_add(units).ok_or_else(malformed)?;
        }
        Ok(Submit {
            want,
            ttl: Some(self.ttl),
            wait: self.wait,
            id: self.id.clone(),
            owner: Some(self.owner.clone().unwrap_or_else(owner)),
            reason: self.reason.clone(),
        })
    }

    /// Why a request ended without a lease.
    pub(crate) fn refused(&self, request: &api::Request) -> Exit {
        let cause = request.cause.as_deref().unwrap_or("not granted");
        if request.state != State::Failed {
            let state = format!("{:?}", request.state).to_lowercase();
            let text = format!("the request is {state} already ({cause}); choose another --id");
            return Exit::new(BUSY, text);
        }
        match (request.code, self.wait) {
            (Some(Code::Busy), _) => Exit::new(BUSY, cause),
            (Some(Code::Timeout), Some(wait)) => {
                Exit::new(TIMEOUT, format!("not granted within {}", duration::show(wait)))
            }
            (Some(Code::Timeout), None) => Exit::new(TIMEOUT, cause),
            // It waited, and units that it asked for were taken out of use meanwhile.
            (Some(Code::Infeasible | Code::UnknownPool), _) => Exit::new(INFEASIBLE, cause),
            (_, _) => Exit::new(UNREACHABLE, cause),
        }
    }
}

pub(crate) fn owner() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let user = user.unwrap_or_else(|_| format!("uid-{}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname();
    format!("{}@{}", user, host.nodename().to_string_lossy())
}

const ACQUIRE_EXAMPLES: &str = "\
Examples:
  LEASE=$(kofm acquire gpu:2 --ttl 5m)             # only the lease's id goes to stdout
  kofm renew $LEASE                                # before the five minutes are over
  kofm release $LEASE
  kofm acquire gpu licence --wait 30s --json       # all or nothing";

#[derive(Debug, Args)]
#[command(after_help = ACQUIRE_EXAMPLES)]
pub(crate) struct Acquire {
    #[command(flatten)]
    demand: Demand,
    #[command(flatten)]
    server: Server,
    /// Print the lease as JSON
    #[arg(long)]
    json: bool,
}

impl Acquire {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let spec = self.demand.submit()?;
        let lease = self.server.with(async |client| {
            let mut signals = Signals::new()?;
            let lease = acquire(&client, &spec, &self.demand, &mut signals).await?;
            // Only the id on stdout, for LEASE=$(kofm acquire …).
            let text = if self.json { json(&lease)? } else { lease.id.clone() };
            let Err(error) = try_say(&format!("{text}\n")) else { return Ok(lease) };
            // Nobody knows its id, so nobody else can give it back.
            client.release(&lease.id).await?;
            Err(Exit::negative(format!("cannot print the lease, it is given back: {error}")))
        })?;
        if self.json {
            return Ok(());
        }
        tell(&format!(
            "{}, fence {}, for {}",
            show_units(&lease.units),
            lease.fence,
            show_ms(lease.expires_in_ms)
        ));
        Ok(())
    }
}

/// Asks and waits. Whoever is interrupted leaves nothing behind.
pub(crate) async fn acquire(
    client: &Client,
    spec: &Submit,
    demand: &Demand,
    signals: &mut Signals,
) -> Result<api::Lease, Exit> {
    let (request, signal) = answered(client.submit(spec), signals).await?;
    let waits = request.state == State::Queued;
    let request = settled(client, request, signal, signals).await?;
    match request.lease {
        Some(lease) if request.state == State::Granted => Ok(lease),
        // This process was stopped for that long.
        _ if waits && request.state == State::Expired => {
            Err(Exit::new(LOST, "the lease was granted, and had expired before it was taken"))
        }
        Some(_) | None => Err(demand.refused(&request)),
    }
}

/// Waits for the answer to a request, and for a signal that came meanwhile: only the answer says
/// what is to be given up. Who cannot wait for that sends a second one.
pub(crate) async fn answered<T>(
    call: impl Future<Output = Result<T, ClientError>>,
    signals: &mut Signals,
) -> Result<(T, Option<i32>), Exit> {
    tokio::pin!(call);
    let number = tokio::select! {
        answer = &mut call => return Ok((answer?, None)),
        number = signals.next() => number,
    };
    tokio::select! {
        answer = &mut call => Ok((answer?, Some(number))),
        number = signals.next() => {
            let text = "ended before the site answered; what it grants will expire";
            Err(Exit::new(signal_code(number), text))
        }
    }
}

/// Waits until a request is granted or over. It is given up when a signal has come or comes, and
/// when the site can no longer be asked about it.
pub(crate) async fn settled(
    client: &Client,
    request: api::Request,
    signal: Option<i32>,
    signals: &mut Signals,
) -> Result<api::Request, Exit> {
    let id = request.id.clone();
    if signal.is_none() && request.state == State::Queued {
        tell(&format!("waiting as {id}, place {}", request.position.unwrap_or(1)));
    }
    let sent = async {
        match signal {
            Some(number) => number,
            None => signals.next().await,
        }
    };
    let number = tokio::select! {
        biased;
        number = sent => number,
        waited = client.wait(request) => {
            if waited.is_err() {
                // It may well fail like the question before it; then the lease expires.
                client.cancel(&id).await.ok();
            }
            return Ok(waited?);
        }
    };
    client.cancel(&id).await?;
    Err(given_up(number))
}

pub(crate) fn given_up(signal: i32) -> Exit {
    Exit::new(signal_code(signal), "given up; nothing is held")
}

fn signal_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// The lease's id
    lease: String,
    #[command(flatten)]
    server: Server,
    /// Print the lease as JSON
    #[arg(long)]
    json: bool,
}

impl Renew {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let lease = self.server.with(async |client| Ok(client.renew(&self.lease).await?))?;
        if self.json {
            return print_json(&lease);
        }
        say_line(&show_ms(lease.expires_in_ms));
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The lease's id
    lease: String,
    #[command(flatten)]
    server: Server,
}

impl Release {
    pub(crate) fn run(self) -> Result<(), Exit> {
        self.server.with(async |client| Ok(client.release(&self.lease).await?))
    }
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only this pool
    pool: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print JSON: {"pools":[…],"leases":[…]}
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StatusView {
    pools: Vec<api::Pool>,
    leases: Vec<api::Lease>,
}

impl Status {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let view = self.server.with(async |client| {
            let (pools, leases) = match &self.pool {
                Some(pool) => {
                    let pool = escape(pool);
                    let pools = vec![client.get(&format!("/v1/pools/{pool}")).await?];
                    (pools, format!("/v1/leases?pool={pool}"))
                }
                None => (client.get("/v1/pools").await?, "/v1/leases".to_owned()),
            };
            Ok(StatusView { pools, leases: client.get(&leases).await? })
        })?;
        if self.json {
            return print_json(&view);
        }
        say(&format!("{}{}", pools_table(&view.pools), quarantine_table(&view.pools)));
        if !view.leases.is_empty() {
            say_line("");
            say(&leases_table(&view.leases));
        }
        for pool in view.pools.iter().filter(|pool| !pool.unaccounted.is_empty()) {
            let units = pool.unaccounted.join(", ");
            say_line(&format!(
                "\nnot at exactly one site: {units}; keep the logs, this is a mistake of kofm"
            ));
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Queue {
    /// Only this pool
    pool: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Queue {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let pool = self.pool.map_or(String::new(), |pool| format!("?pool={}", escape(&pool)));
        let path = format!("/v1/queue{pool}");
        let list: Vec<api::Request> =
            self.server.with(async |client| Ok(client.get(&path).await?))?;
        if self.json {
            return print_json(&list);
        }
        say(&queue_table(&list));
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The request's id, or the name of a semaphore
    request: String,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What there is to explain: a P has no id, whoever waits for a semaphore waits for its head.
enum Subject {
    Request(Box<api::Request>),
    Semaphore(api::Semaphore),
}

impl Explain {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let (name, unknown) = (self.request.as_str(), Code::UnknownRequest);
        let subject = self.server.with(async |client| {
            let request = client.watch(name, Duration::ZERO).await;
            if kofm_net::config::check_name(name).is_ok()
                && matches!(&request, Err(ClientError::Refused(it)) if it.error == unknown)
                && let Ok(semaphore) = client.get(&format!("/v1/semaphores/{}", escape(name))).await
            {
                return Ok(Subject::Semaphore(semaphore));
            }
            Ok(Subject::Request(Box::new(request?)))
        })?;
        let request = match subject {
            Subject::Request(request) => request,
            Subject::Semaphore(it) if self.json => return print_json(&it),
            Subject::Semaphore(it) => {
                explain_semaphore(&it);
                return Ok(());
            }
        };
        if self.json {
            return print_json(&request);
        }
        let want = show_want(&request.want);
        let state = format!("{:?}", request.state).to_lowercase();
        say_line(&format!("{} wants {want} and is {state} at {}", request.id, request.site));
        if let Some(cause) = &request.cause {
            say_line(&format!("because: {cause}"));
        }
        if let Some(position) = request.position {
            say_line(&format!("place {position}, waited {}", show_ms(request.waited_ms)));
        }
        for blocker in &request.blocked_by {
            say_line(&format!("  {}", show_blocker(blocker)));
        }
        Ok(())
    }
}

fn explain_semaphore(it: &api::Semaphore) {
    say_line(&format!("semaphore {} has {}, and {} wait", it.name, it.value, it.waiting));
    if let Some(head) = &it.head {
        let owner = head.owner.as_deref().unwrap_or("somebody");
        let (site, k, missing) = (&head.site, head.k, head.missing);
        let waited = show_ms(head.waited_ms);
        let needs = format!("wants {k}, lacks {missing}, has waited {waited}");
        say_line(&format!("  {owner} at {site} is next: {needs}"));
        if it.waiting > 1 {
            say_line("  everybody else waits behind it, even for units that are there");
        }
    } else if it.waiting > 0 {
        say_line("  whose turn it is is being found out");
    }
    if !it.unsure.is_empty() {
        say_line(&format!("  {} may have taken more before it was lost", it.unsure.join(", ")));
    }
}

fn show_blocker(blocker: &api::Blocker) -> String {
    let (owner, units, pool) =
        (blocker.owner.as_deref().unwrap_or("somebody"), blocker.units, &blocker.pool);
    let reason = blocker.reason.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    match blocker.state.as_str() {
        "held" => {
            let ends = blocker
                .expires_in_ms
                .map_or(String::new(), |ms| format!(", renewed or over in {}", show_ms(ms)));
            format!("{owner}{reason} holds {units} of {pool} at {}{ends}", blocker.site)
        }
        "queued" => format!("{owner}{reason} wants {units} of {pool} at {}, earlier", blocker.site),
        "unanswered" => format!("site {} has not answered about {pool}", blocker.site),
        _ => format!("an earlier claim of site {} counts {units} of {pool}", blocker.site),
    }
}

const HISTORY_EXAMPLES: &str = "\
Examples:
  kofm history                                     # the last 100 events that this site knows
  kofm history gpu --limit 10
  kofm history --json";

#[derive(Debug, Args)]
#[command(after_help = HISTORY_EXAMPLES)]
pub(crate) struct History {
    /// Only this pool
    pool: Option<String>,
    /// How many entries at most
    #[arg(long, default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl History {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let pool = self.pool.map_or(String::new(), |pool| format!("&pool={}", escape(&pool)));
        let path = format!("/v1/history?limit={}{pool}", self.limit);
        let list: Vec<api::Happening> =
            self.server.with(async |client| Ok(client.get(&path).await?))?;
        if self.json {
            return print_json(&list);
        }
        let rows = list.iter().map(|it| {
            vec![
                show_time(it.at_ms),
                it.event.to_string(),
                if it.units.is_empty() { show_want(&it.want) } else { show_units(&it.units) },
                it.owner.as_deref().unwrap_or_default().to_owned(),
                it.waited_ms.map(show_ms).unwrap_or_default(),
                it.held_ms.map(show_ms).unwrap_or_default(),
                it.cause.as_deref().unwrap_or_default().to_owned(),
            ]
        });
        say(&table(&["TIME", "EVENT", "UNITS", "OWNER", "WAITED", "HELD", "CAUSE"], rows));
        Ok(())
    }
}

/// How long a change of epoch may take.
const LEAVING: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub(crate) struct Members {
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Take a site out of the cluster for good; for clusters that keep their epoch in etcd
    #[arg(long, value_name = "SITE", conflicts_with = "json")]
    remove: Option<String>,
}

impl Members {
    pub(crate) fn run(self) -> Result<(), Exit> {
        if let Some(site) = self.remove {
            let path = format!("/v1/members/{}", escape(&site));
            let _removed: serde_json::Value = self.server.with(async |client| {
                Ok(client.call(hyper::Method::DELETE, &path, None::<&()>, LEAVING).await?)
            })?;
            tell(&format!("{site} removed"));
            return Ok(());
        }
        let list: Vec<api::Member> =
            self.server.with(async |client| Ok(client.get("/v1/members").await?))?;
        if self.json {
            return print_json(&list);
        }
        let rows = list.iter().map(|it| {
            vec![
                it.site.clone(),
                it.state.clone(),
                it.address.clone(),
                it.incarnation.map(|n| n.to_string()).unwrap_or_default(),
                if it.member { it.epoch.to_string() } else { "-".into() },
                it.lease_ms.map(show_ms).unwrap_or_default(),
                it.quarantine_ms.map(show_ms).unwrap_or_default(),
                it.trouble.clone().unwrap_or_default(),
            ]
        });
        let head =
            ["SITE", "STATE", "ADDRESS", "INCARNATION", "EPOCH", "LEASE", "QUARANTINE", "TROUBLE"];
        say(&table(&head, rows));
        Ok(())
    }
}

// Text for people

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Exit> {
    say_line(&json(value)?);
    Ok(())
}

fn json(value: &impl Serialize) -> Result<String, Exit> {
    serde_json::to_string_pretty(value).map_err(|error| Exit::new(SYSTEM, error.to_string()))
}

pub(crate) fn pools_table(pools: &[api::Pool]) -> String {
    let rows = pools.iter().map(|it| {
        vec![
            it.name.clone(),
            it.units.to_string(),
            it.held.to_string(),
            it.free.to_string(),
            it.quarantined.to_string(),
            it.waiting.to_string(),
            it.protocol.clone(),
        ]
    });
    table(&["POOL", "UNITS", "HELD", "FREE", "QUARANTINED", "WAITING", "PROTOCOL"], rows)
}

/// What people have quarantined, after an empty line; nothing where there is nothing.
pub(crate) fn quarantine_table(pools: &[api::Pool]) -> String {
    let rows = pools.iter().flat_map(|pool| {
        pool.quarantine.iter().map(|it| {
            let held = if it.held { "when it is released" } else { "yes" };
            vec![pool.name.clone(), it.unit.clone(), held.to_owned(), it.reason.clone()]
        })
    });
    let text = table(&["POOL", "UNIT", "QUARANTINED", "REASON"], rows);
    if text.lines().count() > 1 { format!("\n{text}") } else { String::new() }
}

pub(crate) fn leases_table(leases: &[api::Lease]) -> String {
    let rows = leases.iter().map(|it| {
        let state = if it.state == "live" { String::new() } else { format!(" {}", it.state) };
        vec![
            format!("{}{state}", it.id),
            show_units(&it.units),
            it.owner.clone().unwrap_or_default(),
            show_ms(it.held_ms),
            show_ms(it.expires_in_ms),
            it.site.clone(),
            it.reason.clone().unwrap_or_default(),
        ]
    });
    table(&["LEASE", "UNITS", "OWNER", "HELD", "ENDS IN", "SITE", "REASON"], rows)
}

pub(crate) fn queue_table(queue: &[api::Request]) -> String {
    let rows = queue.iter().map(|it| {
        vec![
            it.position.unwrap_or(0).to_string(),
            it.id.clone(),
            show_want(&it.want),
            it.owner.clone().unwrap_or_default(),
            show_ms(it.waited_ms),
            it.site.clone(),
            it.reason.clone().unwrap_or_default(),
            show_blockers(&it.blocked_by),
        ]
    });
    table(&["PLACE", "REQUEST", "WANT", "OWNER", "WAITED", "SITE", "REASON", "WAITS FOR"], rows)
}

/// The first of those in the way: `kofm explain` has them all.
fn show_blockers(list: &[api::Blocker]) -> String {
    let Some(first) = list.first() else { return String::new() };
    let owner = first.owner.as_deref().unwrap_or("somebody");
    let reason = first.reason.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    let more = if list.len() > 1 { ", …" } else { "" };
    format!("{owner}{reason}{more}")
}

pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let mut widths = vec![0; rows[0].len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

pub(crate) fn show_units(units: &BTreeMap<String, Vec<String>>) -> String {
    let parts = units.iter().map(|(pool, list)| format!("{pool} {}", list.join(",")));
    parts.collect::<Vec<_>>().join("; ")
}

fn show_want(want: &Want) -> String {
    let parts = want.iter().map(|(pool, units)| format!("{pool}:{units}"));
    parts.collect::<Vec<_>>().join(" ")
}

pub(crate) fn show_ms(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// UTC, as `12:34:56`: history is short.
fn show_time(at_ms: u64) -> String {
    let secs = at_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", secs / 3600, secs % 3600 / 60, secs % 60)
}
