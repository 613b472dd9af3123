//! `kofm acquire`, `renew` and `release`, and how a request is made and waited for.

use std::time::Duration;

use clap::Args;
use kofm_net::api::{self, Code, State, Submit, Want};
use kofm_net::client::{Client, ClientError};
use kofm_net::duration;

use crate::ask::Server;
use crate::exit::{BUSY, Exit, INFEASIBLE, LOST, TIMEOUT, UNREACHABLE};
use crate::output::{say_line, tell, try_say};
use crate::run::Signals;
use crate::tables::{json, print_json, show_ms, show_units};

/// What is asked, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Demand {
    /// Units: POOL or POOL:K, granted all or nothing
    #[arg(required = true, value_name = "POOL[:K]")]
    pub want: Vec<String>,
    /// Time to wait at most; 0 tries once [default: forever]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// Time for which the lease lasts without a renewal
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = duration::parse)]
    pub ttl: Duration,
    /// Reason, shown in `status`, `queue` and `history`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Owner, shown to others (default: user@host)
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,
    /// Idempotency key: repeating a request with the same key returns the first one
    #[arg(long)]
    pub id: Option<String>,
}

impl Demand {
    pub(crate) fn submit(&self) -> Result<Submit, Exit> {
        let mut want = Want::new();
        for text in &self.want {
            let (pool, units) = text.rsplit_once(':').unwrap_or((text, "1"));
            let malformed =
                || Exit::new(INFEASIBLE, format!("`{text}` must be POOL or POOL:K, with K from 1"));
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
            principal: None,
        })
    }

    /// Why a request ended without a lease.
    pub(crate) fn refused(&self, request: &api::Request) -> Exit {
        let cause = request.cause.as_deref().unwrap_or("not granted");
        if request.state != State::Failed {
            let state = format!("{:?}", request.state).to_lowercase();
            let text = match &self.id {
                Some(_) => format!("the request is {state} already ({cause}); choose another --id"),
                None => format!("the request was {state}: {cause}"),
            };
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
  LEASE=$(kofm acquire gpu:2 --ttl 5m)        # only the lease's id goes to stdout
  kofm renew $LEASE                           # before the five minutes are over
  kofm release $LEASE
  kofm acquire gpu licence --wait 30s --json  # all or nothing";

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
        let certain = show_ms(lease.expires_in_ms);
        // Never for longer than its site is known to be good.
        let term = if lease.expires_in_ms < lease.ttl_ms / 10 * 9 {
            format!("{} while its site is there, {certain} for certain", show_ms(lease.ttl_ms))
        } else {
            certain
        };
        tell(&format!("{}, fence {}, for {term}", show_units(&lease.units), lease.fence));
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
    let spec = &client.named(spec);
    let (request, signal) = answered(client.submit(spec), signals).await?;
    let waits = request.state == State::Queued;
    let request = settled(client, Some(spec), request, signal, signals).await?;
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
            let text = "ended before the site answered; a lease that it grants will expire";
            Err(Exit::new(signal_code(number), text))
        }
    }
}

/// Waits until a request is granted or over. It is given up when a signal has come or comes, and
/// when no site can be asked about it any more. With `spec`, it is submitted again if its site is
/// lost.
pub(crate) async fn settled(
    client: &Client,
    spec: Option<&Submit>,
    request: api::Request,
    signal: Option<i32>,
    signals: &mut Signals,
) -> Result<api::Request, Exit> {
    let id = request.id.clone();
    if signal.is_none() && request.state == State::Queued {
        let why = request.cause.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        tell(&format!("waiting as {id}, place {}{why}", request.position.unwrap_or(1)));
    }
    let sent = async {
        match signal {
            Some(number) => number,
            None => signals.next().await,
        }
    };
    let wait = async {
        match spec {
            Some(spec) => client.wait_for(spec, request).await,
            None => client.wait(request).await,
        }
    };
    let number = tokio::select! {
        biased;
        number = sent => number,
        waited = wait => {
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
    /// The lease's id; operators use its name, which `kofm status` shows
    lease: String,
    #[command(flatten)]
    server: Server,
}

impl Release {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let id = &self.lease;
        let home = id.strip_prefix('R').and_then(|rest| rest.split_once('-'));
        if home.is_some_and(|(site, _)| site.parse::<u16>().is_ok()) {
            let text = format!("`{id}` is a request, not a lease: kofm cancel {id}");
            return Err(Exit::usage(text));
        }
        self.server.with(async |client| Ok(client.release(id).await?))
    }
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The request's id, as `kofm queue` shows it
    request: String,
    #[command(flatten)]
    server: Server,
    /// Print the request as JSON
    #[arg(long)]
    json: bool,
}

impl Cancel {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let request = self.server.with(async |client| Ok(client.cancel(&self.request).await?))?;
        if self.json {
            return print_json(&request);
        }
        let state = format!("{:?}", request.state).to_lowercase();
        tell(&format!("{} {state}", request.id));
        Ok(())
    }
}
