//! Commands that look at a site: status, queue, explain, history, members; and where the site is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kofm_net::api::{self, Code};
use kofm_net::client::{Address, Client, ClientError, Trust, escape};
use serde::Serialize;

use crate::doctor::warn;
use crate::exit::{Exit, USAGE};
use crate::output::{say, say_line, tell};
use crate::tables::{
    leases_table, pools_table, print_json, quarantine_table, queue_table, show_blocker, show_ms,
    show_want, table,
};

/// Where the sites are.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    /// Address of a site: http://HOST:PORT, https://HOST:PORT or unix:PATH; several, separated by
    /// commas, are tried in turn
    #[arg(long, env = "KOFM_ADDR", default_value = DEFAULT)]
    pub addr: String,
    /// Certificate of the authority of https addresses, PEM
    #[arg(long, env = "KOFM_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate that this client shows to https addresses, PEM; it needs --key
    #[arg(long, env = "KOFM_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Key of --cert, PEM
    #[arg(long, env = "KOFM_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
}

const DEFAULT: &str = "http://127.0.0.1:7600";

impl Server {
    pub(crate) fn client(&self) -> Result<Client, Exit> {
        // A variable that is empty is as good as none.
        let addr = if self.addr.is_empty() { DEFAULT } else { &self.addr };
        let wrong = |text: String| Exit::new(USAGE, format!("--addr: {text}"));
        let list = addr.split(',').map(str::trim).filter(|it| !it.is_empty());
        let list: Result<Vec<Address>, String> = list.map(Address::parse).collect();
        let (list, trust) = (list.map_err(wrong)?, self.trust()?);
        let tls = list.iter().find(|it| matches!(it, Address::Tls(_)));
        if let Some(address) = tls.filter(|_| trust.is_none()) {
            let text = "https needs the certificate of an authority; set --ca or KOFM_CA to it";
            return Err(wrong(format!("{address}: {text}")));
        }
        let client = Client::of_several(list, token(addr)?);
        let client = client
            .ok_or_else(|| wrong(format!("`{addr}` has no address; write http://HOST:PORT")))?;
        Ok(client.with_trust(trust))
    }

    fn trust(&self) -> Result<Option<Trust>, Exit> {
        // A variable that is empty is as good as none.
        let given = |it: &Option<PathBuf>| it.clone().filter(|it| !it.as_os_str().is_empty());
        let wrong = |text: String| Exit::new(USAGE, text);
        let Some(ca) = given(&self.ca) else { return Ok(None) };
        let (cert, key) = (given(&self.cert), given(&self.key));
        let own = match (&cert, &key) {
            (Some(cert), Some(key)) => Some((cert.as_path(), key.as_path())),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("--cert needs --key, or KOFM_KEY".to_owned())),
            (None, Some(_)) => return Err(wrong("--key needs --cert, or KOFM_CERT".to_owned())),
        };
        let flags = if own.is_some() { "--ca, --cert or --key" } else { "--ca or KOFM_CA" };
        let trust = Trust::read_with(&ca, own);
        trust.map(Some).map_err(|text| wrong(format!("{flags}: {text}")))
    }

    /// A client of the first address that shows another token.
    pub(crate) fn client_with(&self, token: Option<&str>) -> Result<Client, Exit> {
        let addr = self.addr.split(',').next().filter(|it| !it.is_empty()).unwrap_or(DEFAULT);
        let address = Address::parse(addr.trim()).map_err(|text| Exit::new(USAGE, text))?;
        let client = Client::new(address, token.map(str::to_owned));
        Ok(client.with_trust(self.trust()?))
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
fn token(addr: &str) -> Result<Option<String>, Exit> {
    let Some(token) = std::env::var_os("KOFM_TOKEN").filter(|it| !it.is_empty()) else {
        return Ok(addr.split(',').find_map(crate::keyring::find));
    };
    let token = token.into_string().ok().filter(|it| !it.contains(char::is_control));
    let text = "KOFM_TOKEN must be one line of text, without control characters";
    token.map(Some).ok_or_else(|| Exit::new(USAGE, text))
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
            let view = StatusView { pools, leases: client.list(&leases).await? };
            warn(&client).await;
            Ok(view)
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
        let list: Vec<api::Request> = self.server.with(async |client| {
            let list = client.list(&path).await?;
            warn(&client).await;
            Ok(list)
        })?;
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
        let owner = head.owner.as_deref().unwrap_or("an unknown owner");
        let (site, k, missing) = (&head.site, head.k, head.missing);
        let waited = show_ms(head.waited_ms);
        let needs = format!("wants {k}, lacks {missing}, has waited {waited}");
        say_line(&format!("  {owner} at {site} is next: {needs}"));
        if it.waiting > 1 {
            say_line("  all others wait behind it, even for units that are available");
        }
    } else if it.waiting > 0 {
        say_line("  whose turn it is is being found out");
    }
    if !it.unsure.is_empty() {
        say_line(&format!("  {} may have taken more before it was lost", it.unsure.join(", ")));
    }
}

/// How long a change of epoch may take.
const LEAVING: Duration = Duration::from_mins(1);

/// Changes the part that a site has in the cluster.
pub(crate) fn change_member(server: &Server, site: &str, change: &str) -> Result<(), Exit> {
    let path = format!("/v1/members/{}/{change}", escape(site));
    let _done: serde_json::Value = server.with(async |client| {
        Ok(client.call(hyper::Method::POST, &path, None::<&()>, LEAVING).await?)
    })?;
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct Members {
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Remove a site from the cluster for good, as `kofm member rm` does
    #[arg(long, value_name = "SITE", conflicts_with = "json")]
    remove: Option<String>,
}

impl Members {
    /// Removes a site.
    pub(crate) const fn removing(server: Server, site: String) -> Self {
        Self { server, json: false, remove: Some(site) }
    }

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
            self.server.with(async |client| Ok(client.list("/v1/members").await?))?;
        if self.json {
            return print_json(&list);
        }
        let rows = list.iter().map(|it| {
            vec![
                it.site.clone(),
                if it.draining { "draining".into() } else { it.state.clone() },
                it.role.clone(),
                it.health.clone(),
                it.since_ms.map(show_ms).unwrap_or_default(),
                it.zone.clone().unwrap_or_else(|| "-".into()),
                it.version.clone().unwrap_or_default(),
                it.address.clone(),
                it.incarnation.map(|n| n.to_string()).unwrap_or_default(),
                if it.member { it.epoch.to_string() } else { "-".into() },
                it.lease_ms.map(show_ms).unwrap_or_default(),
                it.quarantine_ms.map(show_ms).unwrap_or_default(),
                it.trouble.clone().unwrap_or_default(),
                it.advice.clone().unwrap_or_default(),
            ]
        });
        let head = [
            "SITE",
            "STATE",
            "ROLE",
            "HEALTH",
            "SINCE",
            "ZONE",
            "VERSION",
            "ADDRESS",
            "INCARNATION",
            "EPOCH",
            "LEASE",
            "QUARANTINE",
            "TROUBLE",
            "ADVICE",
        ];
        say(&table(&head, rows));
        for note in notes(&list) {
            tell(&format!("note: {note}"));
        }
        Ok(())
    }
}

/// Warnings about sites and zones that the cluster cannot lose.
fn notes(list: &[api::Member]) -> Vec<String> {
    let voters: Vec<&api::Member> = list.iter().filter(|it| it.voter).collect();
    let members = list.iter().filter(|it| it.member).count();
    let mut notes = Vec::new();
    if let [alone] = voters[..]
        && members > 1
    {
        notes.push(format!("{} decides alone: without it the others grant nothing", alone.site));
    }
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    for zone in voters.iter().filter_map(|it| it.zone.as_deref()) {
        *zones.entry(zone).or_default() += 1;
    }
    let all = voters.len();
    if let Some((zone, count)) = zones.into_iter().find(|it| it.1 > all / 2 && all > 1) {
        notes.push(format!(
            "zone {zone} has {count} of {all} voters: if it is lost, nothing is granted; it takes \
             sites in three zones to survive the loss of one"
        ));
    }
    notes
}

// Text for people
