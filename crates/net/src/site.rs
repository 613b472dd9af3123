//! A site: a core that owns the protocols, and a handle for everybody who asks.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use kofm_net::config::{Config, PoolConfig};
//! use kofm_net::Site;
//!
//! let mut config = Config::single("here");
//! config.pools.insert("gpu".into(), PoolConfig::new(4));
//! let site = Site::start(config).await?;
//! let lease = site.acquire([("gpu", 2)]).await?;
//! println!("{:?}", lease.units());
//! drop(lease); // gives the units back
//! # Ok(())
//! # }
//! ```

mod calls;
mod desk;
mod events;
mod gangs;
mod health;
mod history;
mod keeper;
mod members;
mod pools;
mod principals;
mod semaphores;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use kofm_core::SiteId;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, oneshot, watch};
use tokio::time::timeout;

use self::desk::Desk;
pub use self::start::StartError;
use crate::api::{self, Answer, Call, Code, Hold, MemberChange, Submit, Usage};
use crate::audit::Audit;
use crate::config::{Config, is_seat};
use crate::incarnation::StateDir;
use crate::link::Mesh;
use crate::random;
pub(crate) use events::Listening;
pub(crate) use history::wall_ms;
use kofm_site::backup::Backup;
use kofm_site::core::{MAX_WATCH, View};
pub(crate) use kofm_site::ids::is_given_id;
use kofm_site::input::Command;
use kofm_site::rules::Principals;

/// How long other sites may take for an answer that is not a long poll.
const PEER_PATIENCE: Duration = Duration::from_secs(2);
/// Events that a slow listener may be behind.
const EVENTS: usize = 4096;
/// How long a site that has left still answers.
const AFTER_LEAVING: Duration = Duration::from_millis(200);

/// A running site. Cheap to clone; the site ends with [`Site::stop`].
#[derive(Clone, Debug)]
pub struct Site(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    incarnation: u64,
    desk: Arc<Desk>,
    mesh: Arc<Mesh>,
    events: broadcast::Sender<Arc<api::Happening>>,
    /// Other sites that report their events here, while somebody listens.
    followed: Mutex<Weak<events::Followed>>,
    /// What each other site last said of its pools: counted on while it is away.
    usage: Mutex<BTreeMap<SiteId, Vec<Usage>>>,
    /// All sites of the cluster live in this process.
    together: bool,
    draining: AtomicBool,
    /// Clients of other machines can reach it.
    exposed: AtomicBool,
    /// They need no credential.
    unguarded: AtomicBool,
    /// Keys for those who wait to take from a semaphore.
    takers: AtomicU64,
    /// The epoch as the core sees it.
    view: watch::Sender<View>,
    /// Since when sites are as they are, apart from their links.
    marks: Arc<Mutex<members::Marks>>,
    /// The port for other sites is reached from this machine only.
    local: bool,
    audit: Arc<Audit>,
    /// Room for releases that wait for their sites.
    late: Arc<Semaphore>,
    /// Principals of the site's last life.
    recalled: Principals,
    _state: Option<Arc<StateDir>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.mesh.stop();
        self.desk.close();
    }
}

impl Site {
    /// What the site was told.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The audit log.
    pub(crate) fn audit(&self) -> Arc<Audit> {
        Arc::clone(&self.0.audit)
    }

    /// Waits until all other sites are connected.
    pub async fn connected(&self) {
        self.0.mesh.connected().await;
    }

    /// Waits for the units and holds them until the guard is dropped. Holder and site are one
    /// process, so the lease needs no renewal.
    pub async fn acquire<S: Into<String>>(
        &self,
        want: impl IntoIterator<Item = (S, u32)>,
    ) -> Result<Held, api::Error> {
        let want = want.into_iter().map(|(pool, units)| (pool.into(), units)).collect();
        let id = random::id::<8>('R', self.0.config.me());
        let spec = Submit { want, id: Some(id.clone()), ..Submit::default() };
        // Whoever stops waiting leaves nothing behind, however early.
        let mut waiting = Waiting { site: self.clone(), id: Some(id.clone()) };
        let call = Call::Submit { spec, fresh: false, hold: Hold::Embedded, patience: None };
        let mut request = self.request(call).await?;
        while request.state == api::State::Queued {
            let call = Call::Watch { id: id.clone(), wait: MAX_WATCH };
            request = self.request(call).await?;
        }
        waiting.id = None;
        match request.lease {
            Some(lease) => Ok(Held { site: self.clone(), lease }),
            None => Err(api::Error::new(Code::Draining, request.cause.unwrap_or_default())),
        }
    }

    /// Takes on a request, as `POST /v1/requests` does.
    pub async fn submit(&self, spec: Submit) -> Result<api::Request, api::Error> {
        if let Some(seat) = spec.want.keys().find(|pool| is_seat(pool)) {
            return Err(api::Error::unknown_pool(seat));
        }
        self.submit_as(spec, false).await
    }

    pub(crate) async fn submit_as(
        &self,
        spec: Submit,
        fresh: bool,
    ) -> Result<api::Request, api::Error> {
        let home = self.home_of_demand(&spec)?;
        let given = spec.id.clone().filter(|_| self.peers().next().is_some());
        let sharing = self.sharing(&spec.want);
        let call = Call::Submit { spec, fresh, hold: Hold::Lease, patience: None };
        let Some(id) = given else {
            return match home {
                Some(home) => expect_request(self.ask(home, call, PEER_PATIENCE * 2).await?),
                None => self.request(call).await,
            };
        };
        // The id may be known at another site: the same id is one request in the whole cluster.
        if let Some(home) = home {
            let known = self.first_of(&id, None, &sharing).await?;
            let home = known.unwrap_or(home);
            return expect_request(self.ask(home, call, PEER_PATIENCE * 2).await?);
        }
        let Answer::Reserved(taken) = self.call(Call::Reserve(id.clone())).await? else {
            return Err(nonsense());
        };
        let Some(time) = taken.filter(|&time| time > 0) else { return self.request(call).await };
        let taken = Some((time, self.0.config.me()));
        match self.first_of(&id, taken, &sharing).await {
            Ok(Some(peer)) => {
                self.call(Call::Unreserve(id)).await?;
                expect_request(self.ask(peer, call, PEER_PATIENCE * 2).await?)
            }
            Ok(None) => self.request(call).await,
            Err(error) => {
                self.call(Call::Unreserve(id)).await?;
                Err(error)
            }
        }
    }

    /// A request, after at most `wait`, or as soon as it is granted or ends. Names the blockers,
    /// wherever they are.
    pub async fn watch(&self, id: &str, wait: Duration) -> Result<api::Request, api::Error> {
        let wait = wait.min(MAX_WATCH);
        let call = Call::Watch { id: id.to_owned(), wait };
        let request = self.anywhere(id, call, wait + PEER_PATIENCE).await?;
        let request = expect_request(request)?;
        if request.state == api::State::Queued { self.explain(request).await } else { Ok(request) }
    }

    /// Asks the sites in question who the blockers are.
    async fn explain(&self, mut request: api::Request) -> Result<api::Request, api::Error> {
        let Some(claim) = request.claim else { return Ok(request) };
        let call = Call::Ahead { want: request.want.clone(), claim: api::stamp(claim) };
        let sharing = self.sharing(&request.want);
        let mut answers = self.ask_some(sharing, &call, PEER_PATIENCE).await;
        answers.push((self.0.config.me(), self.call(call).await?));
        // Pools that have enough are in nobody's way.
        let short: BTreeSet<String> = request.blocked_by.iter().map(|it| it.pool.clone()).collect();
        for (peer, answer) in answers {
            let Answer::Ahead { list, older } = answer else { continue };
            let name = self.name_of(peer);
            if name != request.site
                && let Some(position) = &mut request.position
            {
                *position += older;
            }
            let (theirs, rest): (Vec<_>, Vec<_>) =
                request.blocked_by.into_iter().partition(|it| it.site == name);
            request.blocked_by = rest;
            // What the site itself says is more than what the protocol knows of it.
            let known = name == request.site || list.is_empty();
            if known {
                request.blocked_by.extend(theirs);
            } else {
                let concerns = |it: &api::Blocker| short.is_empty() || short.contains(&it.pool);
                request.blocked_by.extend(list.into_iter().filter(concerns));
            }
        }
        request.blocked_by.sort_by_key(|it| it.state != "held");
        Ok(request)
    }

    /// Gives up a request; nothing is left behind.
    pub async fn cancel(&self, id: &str) -> Result<api::Request, api::Error> {
        expect_request(self.anywhere(id, Call::Cancel(id.to_owned()), PEER_PATIENCE).await?)
    }

    /// Renews a lease.
    ///
    /// If the site that granted the lease is gone, this site takes the lease over. While it is not
    /// certain whether the lease goes on, the answer is that the site is unreachable: try again.
    pub async fn renew(&self, id: &str) -> Result<api::Lease, api::Error> {
        let answer = self.at_home_or_here(id).await?;
        if let Answer::Lease(lease) = answer { Ok(*lease) } else { Err(nonsense()) }
    }

    /// Gives a lease back. Repeating it is harmless.
    pub async fn release(&self, id: &str) -> Result<(), api::Error> {
        self.release_at_home(id).await
    }

    pub(crate) async fn release_request(&self, id: &str) -> Result<(), api::Error> {
        self.anywhere(id, Call::ReleaseRequest(id.to_owned()), PEER_PATIENCE).await.map(|_| ())
    }

    /// Puts garbage into the memory of a pool's protocol at this site, to see it heal.
    pub async fn scramble(&self, pool: &str) -> Result<(), api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Scramble { pool: pool.to_owned(), reply });
        answer.await.map_err(|_| stopped())?
    }

    /// All leases, and the sites that did not answer.
    pub async fn leases(&self) -> Result<(Vec<api::Lease>, Vec<String>), api::Error> {
        self.gather_parts(
            |after| Call::Leases { after },
            |answer| {
                if let Answer::Leases(list) = answer { list } else { Vec::new() }
            },
            |lease| Some((lease.fence, lease.request.clone())),
        )
        .await
    }

    /// All that wait, oldest first, with some that are in their way, and the sites that did not
    /// answer.
    pub async fn queue(&self) -> Result<(Vec<api::Request>, Vec<String>), api::Error> {
        let (mut list, missing) = self.waiting().await?;
        if !list.is_empty() {
            let (leases, _) = self.leases().await?;
            kofm_site::views::name_blockers(&mut list, &leases);
        }
        Ok((list, missing))
    }

    /// All that wait, oldest first, and the sites that did not answer.
    async fn waiting(&self) -> Result<(Vec<api::Request>, Vec<String>), api::Error> {
        let (mut list, missing) = self
            .gather_parts(
                |after| Call::Queue { after },
                |answer| {
                    if let Answer::Queue(list) = answer { list } else { Vec::new() }
                },
                |request| request.claim,
            )
            .await?;
        list.sort_by_key(|request| request.claim);
        let mut waiting: BTreeMap<String, u64> = BTreeMap::new();
        for request in &mut list {
            // Exact for demands over one pool, and no less than the truth for others.
            let ahead = request.want.keys().map(|pool| waiting.get(pool).copied().unwrap_or(0));
            request.position = Some(1 + ahead.max().unwrap_or(0));
            for pool in request.want.keys() {
                *waiting.entry(pool.clone()).or_default() += 1;
            }
        }
        Ok((list, missing))
    }

    /// Whether this site may grant now: it does not stop, and is in the cluster's epoch with a
    /// lease that is good.
    pub fn may_grant(&self) -> bool {
        self.0.view.borrow().granting && !self.is_draining()
    }

    /// Whether this site takes no new requests: it stops, or an operator drained it.
    fn is_draining(&self) -> bool {
        let me = self.0.config.me();
        let drained = |plan: &kofm_site::plan::Plan| plan.draining.contains(&me);
        self.0.draining.load(Ordering::Relaxed) || self.0.view.borrow().plan().is_some_and(drained)
    }

    /// What is wrong with this site, or with others as it sees them.
    pub fn troubles(&self) -> Vec<String> {
        let mut list = Vec::new();
        if self.is_draining() {
            list.push("draining".to_owned());
        }
        list.extend(self.0.view.borrow().trouble.clone());
        list.extend(self.insecurities().into_iter().map(|it| format!("insecure: {}", it.0)));
        for member in self.members() {
            if member.state == "away" || member.state == "refused" {
                list.push(format!("site {} is {}", member.site, member.state));
            }
        }
        list
    }

    /// Everything that happens at this site from now on.
    pub fn events(&self) -> broadcast::Receiver<Arc<api::Happening>> {
        self.0.events.subscribe()
    }

    /// Counters, in the text form of Prometheus.
    pub async fn metrics(&self) -> Result<String, api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Metrics(reply));
        answer.await.map_err(|_| stopped())
    }

    /// Takes on nothing more. Where other sites can go on with the requests and leases of this one,
    /// it leaves the epoch and hands them over. Otherwise what waits ends, and leases have up to
    /// `patience` to end.
    pub async fn drain(&self, patience: Duration) {
        self.0.draining.store(true, Ordering::Relaxed);
        let mut events = self.events();
        let mut view = self.0.view.subscribe();
        self.command(Command::Drain);
        let left = async {
            if view.wait_for(|view| view.left).await.is_ok() {
                // Calls that ask for what was here are told to ask elsewhere, and sites that look
                // for it have the new record by then.
                tokio::time::sleep(AFTER_LEAVING).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let ended = async {
            while let Ok(Answer::Leases(leases)) = self.call(Call::Leases { after: None }).await {
                if self.0.view.borrow().leaving {
                    std::future::pending::<()>().await;
                }
                // Whoever misses some events of many looks all the same.
                if leases.is_empty() || events.recv().await == Err(RecvError::Closed) {
                    break;
                }
            }
        };
        let either = async {
            tokio::select! {
                () = left => {}
                () = ended => {}
            }
        };
        timeout(patience, either).await.ok();
    }

    /// Writes the leases down for the next start, and ends the site's links with a goodbye. Without
    /// a place on disk, and in a cluster of one process, what it holds is lost with it. Whoever
    /// still waits for something is told.
    pub async fn stop(&self) {
        let (reply, written) = oneshot::channel();
        self.command(Command::Farewell(reply));
        timeout(PEER_PATIENCE, written).await.ok();
        self.0.mesh.stop();
        // One turn for the goodbyes.
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.0.desk.close();
    }

    /// Waits until the site has stopped, by whatever: also if it has run into a mistake of its own.
    pub async fn ended(&self) {
        self.0.desk.closed().await;
    }

    /// Removes, replaces, drains or undrains a site, with the next epoch.
    pub async fn change_member(&self, name: &str, change: MemberChange) -> Result<(), api::Error> {
        self.next_epoch(Call::Member { name: name.to_owned(), change }).await
    }

    /// The configuration that the cluster keeps.
    pub fn backup(&self) -> Result<Backup, api::Error> {
        let view = self.view();
        let plan = view.plan().filter(|_| view.epoch > 0 || view.sole);
        let unknown = || api::Error::new(Code::Unreachable, "this site knows no epoch yet");
        Ok(Backup::of(&self.0.config.cluster, plan.ok_or_else(unknown)?))
    }

    /// Adds what a backup has and the cluster lacks, with the next epoch: all or nothing.
    pub async fn restore(&self, backup: &Backup) -> Result<(), api::Error> {
        let malformed = |error: serde_json::Error| {
            api::Error::new(Code::Malformed, format!("the backup: {error}"))
        };
        let text = serde_json::to_string(backup).map_err(malformed)?;
        let units = self.view().plan().map_or(0, |plan| backup.units(plan));
        let sum = self.0.config.check_sum(units);
        sum.map_err(|text| api::Error::new(Code::TooMany, text))?;
        self.next_epoch(Call::Restore(text)).await
    }
}

/// A lease held by this process; dropping it gives the units back.
#[derive(Debug)]
pub struct Held {
    site: Site,
    lease: api::Lease,
}

impl Held {
    /// Names of the units, by pool.
    pub const fn units(&self) -> &BTreeMap<String, Vec<String>> {
        &self.lease.units
    }

    /// Larger than that of every earlier lease of one of these units.
    pub const fn fence(&self) -> u64 {
        self.lease.fence
    }

    /// The lease's id.
    pub fn id(&self) -> &str {
        &self.lease.id
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.site.tell(Call::Release(self.lease.id.clone()));
    }
}

/// Cancels a request whose waiter is dropped.
struct Waiting {
    site: Site,
    id: Option<String>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.site.tell(Call::Cancel(id));
        }
    }
}

fn expect_request(answer: Answer) -> Result<api::Request, api::Error> {
    if let Answer::Request(request) = answer { Ok(*request) } else { Err(nonsense()) }
}

fn nonsense() -> api::Error {
    api::Error::new(Code::Unreachable, "another site answered something else than was asked")
}

fn stopped() -> api::Error {
    api::Error::new(Code::Draining, "the site has stopped")
}
