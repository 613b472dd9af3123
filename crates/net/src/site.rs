//! A site: one task that owns the protocols, and a handle for everybody who asks.
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

mod core;
mod events;
mod gangs;
mod journal;
mod keeper;
mod metrics;
mod pools;
mod semaphores;
mod tallies;
mod views;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use kofm_core::SiteId;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::timeout;

use self::core::{Change, Command, Core, Doors, MAX_WATCH, Note, View, millis};
use self::journal::Journal;
use self::keeper::News;
use self::tallies::Tallies;
use crate::api::{self, Answer, Call, Code, Hold, Submit, Usage};
use crate::boottime::{Alarm, Moment};
use crate::config::{Config, Durability, PoolConfig};
use crate::fast::Outbox;
use crate::incarnation::{IdentityError, StateDir};
use crate::link::{Answers, Caller, Identity, Mesh};
use crate::plan::{self, Plan};
use crate::store::etcd::Etcd;
use crate::store::voters::{Ballots, Voters};
use crate::store::{Beat, Pulse, Store};
pub(crate) use events::Listening;

/// How long other sites may take for an answer that is not a long poll.
const PEER_PATIENCE: Duration = Duration::from_secs(2);
/// Events that a slow listener may be behind.
const EVENTS: usize = 4096;

/// A running site. Cheap to clone; the site ends with [`Site::stop`].
#[derive(Clone, Debug)]
pub struct Site(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    incarnation: u64,
    commands: mpsc::Sender<Command>,
    mesh: Arc<Mesh>,
    events: broadcast::Sender<Arc<api::Happening>>,
    /// Other sites that report their events here, while somebody listens.
    followed: Mutex<Weak<events::Followed>>,
    /// What each other site last said of its pools: counted on while it is away.
    usage: Mutex<BTreeMap<SiteId, Vec<Usage>>>,
    /// All sites of the cluster, where they live in this process: only then can pools be changed
    /// while it runs.
    together: OnceLock<Vec<Weak<Self>>>,
    /// One change at a time; the requests that keep units out of pools that were made smaller.
    changing: tokio::sync::Mutex<BTreeMap<String, String>>,
    draining: AtomicBool,
    /// Keys for those who wait to take from a semaphore.
    takers: AtomicU64,
    /// The epoch as the site task sees it; nothing where there is only one.
    view: Option<watch::Sender<View>>,
    _state: Option<Arc<StateDir>>,
}

/// Why a site does not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Its incarnation cannot be made durable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system has no more of something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The configuration cannot be.
    #[error("{0}")]
    Config(String),
}

impl Site {
    /// Starts a site. With other members it listens for them; clients come through
    /// [`crate::http::serve`] or this handle.
    pub async fn start(mut config: Config) -> Result<Self, StartError> {
        if !config.etcd.is_empty() {
            find_place(&mut config).await?;
        }
        let listener = if config.members.len() > 1 || !config.etcd.is_empty() {
            let address = config.listen.as_ref().unwrap_or_else(|| &config.members[&config.site]);
            let bound = TcpListener::bind(address).await;
            Some(bound.map_err(|source| StartError::Listen { address: address.clone(), source })?)
        } else {
            None
        };
        Self::start_on(config, listener, false)
    }

    /// Starts all sites of a cluster in this process, on ports of the loopback interface. Their
    /// pools can be changed while they run.
    pub async fn start_together(
        sites: usize,
        pools: BTreeMap<String, PoolConfig>,
    ) -> Result<Vec<Self>, StartError> {
        let mut listeners = Vec::new();
        let mut members = BTreeMap::new();
        let width = sites.saturating_sub(1).to_string().len();
        for number in 0..sites {
            let address = "127.0.0.1:0".to_owned();
            let listener = TcpListener::bind(&address).await;
            let listener = listener.map_err(|source| StartError::Listen { address, source })?;
            members.insert(format!("s{number:0width$}"), listener.local_addr()?.to_string());
            listeners.push(listener);
        }
        let names: Vec<String> = members.keys().cloned().collect();
        let mut list = Vec::new();
        for (name, listener) in names.into_iter().zip(listeners) {
            let (members, pools) = (members.clone(), pools.clone());
            let config = Config { members, pools, ..Config::single(&name) };
            list.push(Self::start_on(config, Some(listener), true)?);
        }
        let together: Vec<Weak<Inner>> = list.iter().map(|site| Arc::downgrade(&site.0)).collect();
        for site in &list {
            site.0.together.get_or_init(|| together.clone());
            site.connected().await;
        }
        Ok(list)
    }

    /// `together`: all sites live and die in this process, so their epoch never changes.
    fn start_on(
        config: Config,
        listener: Option<TcpListener>,
        together: bool,
    ) -> Result<Self, StartError> {
        let config = config.with_seats();
        if !config.members.contains_key(&config.site) {
            let text = format!("site `{}` is not a member", config.site);
            return Err(StartError::Config(text));
        }
        let state = config.state_dir.as_deref().map(StateDir::open).transpose()?.map(Arc::new);
        let incarnation = state.as_ref().map_or(1, |state| state.incarnation());
        let identity = Identity {
            cluster: config.cluster.clone(),
            name: config.site.clone(),
            me: config.me(),
            incarnation,
            table: config.table(),
            silence: config.site_lease,
        };
        let alone = config.members.len() == 1 && config.etcd.is_empty();
        let changes = !alone && !together;
        let peers = config.members.iter().filter(|(name, _)| **name != config.site);
        let numbered =
            peers.clone().filter_map(|(name, it)| Some((config.number_of(name)?, it.clone())));
        let ballots = Arc::new(Ballots::open(config.state_dir.as_deref().filter(|_| changes))?);
        let answers: Option<Arc<dyn Answers>> =
            (changes && config.etcd.is_empty()).then(|| Arc::clone(&ballots) as _);
        let (mesh, links) = Mesh::start(identity, numbered.collect(), listener, answers);
        let (commands, receiver) = mpsc::channel(1024);
        let (news, news_receiver) = mpsc::channel(64);
        let view = watch::Sender::new(View::default());
        let mut change = None;
        if changes {
            // Well below the lease: a voter that does not answer must not cost it.
            let patience = config.site_lease / 4;
            let store: Arc<dyn Store> = if config.etcd.is_empty() {
                let callers = peers.map(|(name, it)| Caller::new(&config.cluster, name, it));
                let me = config.me().0;
                Arc::new(Voters::new(ballots, callers.collect(), me, incarnation, patience))
            } else {
                let etcd = Etcd::new(&config.cluster, &config.etcd, patience);
                Arc::new(etcd.map_err(StartError::Config)?)
            };
            change = Some(keep(&config, incarnation, store, news, view.clone(), state.clone()));
        }
        let events = broadcast::Sender::new(EVENTS);
        let dir = config.state_dir.as_deref().filter(|_| changes);
        let synced = config.durability == Durability::Grant;
        let journal = dir.map(|dir| Journal::open(dir, incarnation, synced)).transpose()?;
        let mut core =
            Core::new(&config, incarnation, Arc::clone(&mesh), events.clone(), change, journal);
        if let Some(dir) = dir {
            let (tallies, earlier) = Tallies::open(dir, incarnation)?;
            core.remember(tallies, earlier);
        }
        tokio::spawn(core.run(links, receiver, news_receiver, Alarm::new()?));
        let inner = Arc::new(Inner {
            config,
            incarnation,
            commands,
            mesh,
            events,
            followed: Mutex::default(),
            view: changes.then_some(view),
            usage: Mutex::default(),
            together: OnceLock::new(),
            changing: tokio::sync::Mutex::default(),
            draining: AtomicBool::new(false),
            takers: AtomicU64::new(0),
            _state: state,
        });
        if alone {
            inner.together.get_or_init(|| vec![Arc::downgrade(&inner)]);
        }
        Ok(Self(inner))
    }

    /// What the site was told.
    pub fn config(&self) -> &Config {
        &self.0.config
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
        let spec = Submit { want, ..Submit::default() };
        let call = Call::Submit { spec, fresh: false, hold: Hold::Embedded, patience: None };
        let mut request = self.request(call).await?;
        // Whoever stops waiting leaves nothing behind.
        let mut waiting = Waiting { site: self.clone(), id: Some(request.id.clone()) };
        while request.state == api::State::Queued {
            let call = Call::Watch { id: request.id.clone(), wait: MAX_WATCH };
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
        self.submit_as(spec, false).await
    }

    pub(crate) async fn submit_as(
        &self,
        spec: Submit,
        fresh: bool,
    ) -> Result<api::Request, api::Error> {
        let Some(id) = spec.id.clone().filter(|_| self.peers().next().is_some()) else {
            return self
                .request(Call::Submit { spec, fresh, hold: Hold::Lease, patience: None })
                .await;
        };
        // The id may be known at another site: the same id is one request in the whole cluster.
        if let Answer::Known(true) = self.call(Call::Reserve(id.clone())).await? {
            return self
                .request(Call::Submit { spec, fresh, hold: Hold::Lease, patience: None })
                .await;
        }
        let asker = self.0.config.me();
        let answers = self.ask_all(&Call::Knows { id: id.clone(), asker }).await;
        let known = answers.into_iter().find(|(_, answer)| matches!(answer, Answer::Known(true)));
        let call = Call::Submit { spec, fresh, hold: Hold::Lease, patience: None };
        match known {
            Some((peer, _)) => {
                self.call(Call::Unreserve(id)).await?;
                expect_request(self.ask(peer, call, PEER_PATIENCE * 2).await?)
            }
            None => self.request(call).await,
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
        let call = Call::Ahead { want: request.want.clone(), claim };
        let mut answers = self.ask_all(&call).await;
        answers.push((self.0.config.me(), self.call(call).await?));
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
            let known = name == request.site || theirs.is_empty() || list.is_empty();
            request.blocked_by.extend(if known { theirs } else { list });
        }
        request.blocked_by.sort_by_key(|it| it.state != "held");
        Ok(request)
    }

    /// Gives up a request; nothing is left behind.
    pub async fn cancel(&self, id: &str) -> Result<api::Request, api::Error> {
        expect_request(self.anywhere(id, Call::Cancel(id.to_owned()), PEER_PATIENCE).await?)
    }

    /// Renews a lease.
    pub async fn renew(&self, id: &str) -> Result<api::Lease, api::Error> {
        let answer = self.at_home(id, Call::Renew(id.to_owned())).await?;
        if let Answer::Lease(lease) = answer { Ok(*lease) } else { Err(nonsense()) }
    }

    /// Gives a lease back. Repeating it is harmless.
    pub async fn release(&self, id: &str) -> Result<(), api::Error> {
        self.at_home(id, Call::Release(id.to_owned())).await.map(|_| ())
    }

    pub(crate) async fn release_request(&self, id: &str) -> Result<(), api::Error> {
        self.anywhere(id, Call::ReleaseRequest(id.to_owned()), PEER_PATIENCE).await.map(|_| ())
    }

    /// Puts garbage into the memory of a pool's protocol at this site, to see it heal.
    pub async fn scramble(&self, pool: &str) -> Result<(), api::Error> {
        let stopping = || api::Error::new(Code::Draining, "the site is stopping");
        let (reply, answer) = oneshot::channel();
        let command = Command::Scramble { pool: pool.to_owned(), reply };
        self.0.commands.send(command).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// All leases, and the sites that did not answer.
    pub async fn leases(&self) -> Result<(Vec<api::Lease>, Vec<String>), api::Error> {
        self.gather(
            Call::Leases,
            |answer| {
                if let Answer::Leases(list) = answer { list } else { Vec::new() }
            },
        )
        .await
    }

    /// All that wait, oldest first, and the sites that did not answer.
    pub async fn queue(&self) -> Result<(Vec<api::Request>, Vec<String>), api::Error> {
        let (mut list, missing) =
            self.gather(Call::Queue, |answer| {
                if let Answer::Queue(list) = answer { list } else { Vec::new() }
            })
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

    /// What happened lately, at all sites, oldest first.
    pub async fn history(
        &self,
        limit: usize,
    ) -> Result<(Vec<api::Happening>, Vec<String>), api::Error> {
        let (mut list, missing) = self
            .gather(Call::History(limit), |answer| {
                if let Answer::History(list) = answer { list } else { Vec::new() }
            })
            .await?;
        list.sort_by_key(|happening| happening.at_ms);
        let skipped = list.len().saturating_sub(limit);
        Ok((list.split_off(skipped), missing))
    }

    /// The members as this site sees them.
    pub fn members(&self) -> Vec<api::Member> {
        let config = &self.0.config;
        let now = Moment::now();
        let view = self.0.view.as_ref().map(|view| view.borrow().clone());
        let epoch = view.as_ref().map_or(1, |view| view.epoch);
        let left = |moment: &Moment| millis(moment.since(now));
        let member = |site| view.as_ref().is_none_or(|view| view.members.contains_key(&site));
        let quarantine = |site| view.as_ref()?.quarantined.get(&site).map(left);
        let mut list = vec![api::Member {
            site: config.site.clone(),
            number: config.me().0,
            address: config.members[&config.site].clone(),
            state: "self".into(),
            incarnation: Some(view.as_ref().map_or(self.0.incarnation, |view| view.incarnation)),
            epoch,
            member: member(config.me()),
            lease_ms: view.as_ref().map(|view| view.leased.as_ref().map_or(0, left)),
            quarantine_ms: quarantine(config.me()),
            trouble: view.as_ref().and_then(|view| view.trouble.clone()),
            unacknowledged: 0,
        }];
        // A site that was taken out has no name any more.
        let links = self.0.mesh.info().into_iter();
        let links = links.filter(|link| !self.name_of(link.peer).is_empty());
        list.extend(links.map(|link| {
            api::Member {
                site: self.name_of(link.peer),
                number: link.peer.0,
                address: link.address,
                state: match (&link.broken, link.up) {
                    (Some(_), _) => "refused",
                    (None, true) => "up",
                    (None, false) => "away",
                }
                .into(),
                incarnation: link.incarnation,
                epoch,
                member: member(link.peer),
                lease_ms: None,
                quarantine_ms: quarantine(link.peer),
                trouble: link.broken.or(link.trouble),
                unacknowledged: link.waiting as u64,
            }
        }));
        list.sort_by_key(|member| member.number);
        list
    }

    /// Whether this site may grant now: it does not stop, and is in the cluster's epoch with a
    /// lease that is good.
    pub fn may_grant(&self) -> bool {
        let granting = self.0.view.as_ref().is_none_or(|view| view.borrow().granting);
        granting && !self.0.draining.load(Ordering::Relaxed)
    }

    /// What is wrong with this site, or with others as it sees them.
    pub fn troubles(&self) -> Vec<String> {
        let mut list = Vec::new();
        if self.0.draining.load(Ordering::Relaxed) {
            list.push("draining".to_owned());
        }
        if let Some(view) = &self.0.view {
            list.extend(view.borrow().trouble.clone());
        }
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
        self.command(Command::Metrics(reply)).await?;
        answer.await.map_err(|_| stopped())
    }

    /// Takes on nothing more, ends what waits, and gives leases up to `patience` to end.
    pub async fn drain(&self, patience: Duration) {
        self.0.draining.store(true, Ordering::Relaxed);
        let mut events = self.events();
        if self.command(Command::Drain).await.is_err() {
            return;
        }
        let ended = async {
            while let Ok(Answer::Leases(leases)) = self.call(Call::Leases).await {
                if leases.is_empty() || events.recv().await.is_err() {
                    break;
                }
            }
        };
        timeout(patience, ended).await.ok();
    }

    /// Writes the leases down for the next start, and ends the site's links with a goodbye. Without
    /// a place on disk, and in a cluster of one process, what it holds is lost with it.
    pub async fn stop(&self) {
        let (reply, written) = oneshot::channel();
        if self.command(Command::Farewell(reply)).await.is_ok() {
            timeout(PEER_PATIENCE, written).await.ok();
        }
        self.0.mesh.stop();
        // One turn for the goodbyes.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Calls

    async fn command(&self, command: Command) -> Result<(), api::Error> {
        self.0.commands.send(command).await.map_err(|_| stopped())
    }

    async fn call(&self, call: Call) -> Result<Answer, api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Call { call, reply }).await?;
        answer.await.map_err(|_| stopped())?
    }

    /// Whether the site task can answer it alone.
    pub(crate) fn is_local(&self, call: &Call) -> bool {
        let home = match call {
            Call::Submit { spec, .. } if spec.id.is_none() => return true,
            Call::Take { .. } | Call::GiveUp(_) | Call::Add { .. } => return true,
            Call::Renew(id) | Call::Release(id) => home_of(id),
            Call::Watch { id, .. } | Call::Cancel(id) if id.starts_with('R') => home_of(id),
            Call::Submit { .. }
            | Call::Reserve(_)
            | Call::Unreserve(_)
            | Call::Knows { .. }
            | Call::Watch { .. }
            | Call::Cancel(_)
            | Call::ReleaseRequest(_)
            | Call::Leases
            | Call::Queue
            | Call::Usage
            | Call::Events { .. }
            | Call::Ahead { .. }
            | Call::Semaphores
            | Call::Gangs
            | Call::Rota
            | Call::SetGang { .. }
            | Call::Join(_)
            | Call::History(_)
            | Call::IsIdle(_)
            | Call::Count(_)
            | Call::Plan { .. }
            | Call::Quarantine { .. }
            | Call::PlanSemaphore { .. }
            | Call::Leave(_) => None,
        };
        home == Some(self.0.config.me()) || self.peers().next().is_none()
    }

    /// Calls that the site task can answer alone; the answers go to the outbox.
    pub(crate) async fn call_many(
        &self,
        list: Vec<(u64, Call)>,
        outbox: &Arc<Outbox>,
    ) -> io::Result<()> {
        let outbox = Arc::clone(outbox);
        self.command(Command::Calls { list, outbox }).await.map_err(io::Error::other)
    }

    /// A call that another site may have to answer.
    pub(crate) async fn call_anywhere(&self, call: Call) -> Result<Answer, api::Error> {
        match call {
            Call::Submit { spec, fresh, .. } => {
                self.submit_as(spec, fresh).await.map(|it| Answer::Request(Box::new(it)))
            }
            Call::Watch { id, wait } => {
                self.watch(&id, wait).await.map(|it| Answer::Request(Box::new(it)))
            }
            Call::Cancel(id) => self.cancel(&id).await.map(|it| Answer::Request(Box::new(it))),
            Call::Renew(id) => self.renew(&id).await.map(|it| Answer::Lease(Box::new(it))),
            Call::Release(id) => self.release(&id).await.map(|()| Answer::Done),
            call @ (Call::Count(_)
            | Call::Reserve(_)
            | Call::Unreserve(_)
            | Call::Knows { .. }
            | Call::ReleaseRequest(_)
            | Call::Leases
            | Call::Queue
            | Call::Usage
            | Call::Events { .. }
            | Call::Ahead { .. }
            | Call::Take { .. }
            | Call::GiveUp(_)
            | Call::Add { .. }
            | Call::Semaphores
            | Call::Gangs
            | Call::Rota
            | Call::SetGang { .. }
            | Call::Join(_)
            | Call::History(_)
            | Call::IsIdle(_)
            | Call::Plan { .. }
            | Call::Quarantine { .. }
            | Call::PlanSemaphore { .. }
            | Call::Leave(_)) => self.call(call).await,
        }
    }

    async fn request(&self, call: Call) -> Result<api::Request, api::Error> {
        expect_request(self.call(call).await?)
    }

    async fn ask(&self, peer: SiteId, call: Call, wait: Duration) -> Result<Answer, api::Error> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::Ask { peer, call, reply }).await?;
        let Ok(Ok(answer)) = timeout(wait, answer).await else {
            let text = format!("site {} does not answer; try again", self.name_of(peer));
            return Err(api::Error::new(Code::Unreachable, text));
        };
        answer
    }

    /// Asks all other sites at once; those that do not answer are left out.
    async fn ask_all(&self, call: &Call) -> Vec<(SiteId, Answer)> {
        let peers = self.peers().filter(|&peer| self.0.mesh.is_up(peer));
        let tasks: Vec<_> = peers
            .map(|peer| {
                let (site, call) = (self.clone(), call.clone());
                (peer, tokio::spawn(async move { site.ask(peer, call, PEER_PATIENCE).await }))
            })
            .collect();
        let mut list = Vec::new();
        for (peer, task) in tasks {
            if let Ok(Ok(answer)) = task.await {
                list.push((peer, answer));
            }
        }
        list
    }

    async fn gather<T>(
        &self,
        call: Call,
        part: impl Fn(Answer) -> Vec<T>,
    ) -> Result<(Vec<T>, Vec<String>), api::Error> {
        let mut list = part(self.call(call.clone()).await?);
        let answers = self.ask_all(&call).await;
        let missing = self.peers().filter(|peer| answers.iter().all(|it| it.0 != *peer));
        let missing = missing.map(|peer| self.name_of(peer)).collect();
        for (_, answer) in answers {
            list.extend(part(answer));
        }
        Ok((list, missing))
    }

    /// Calls the site that a lease's id names.
    async fn at_home(&self, id: &str, call: Call) -> Result<Answer, api::Error> {
        match home_of(id).filter(|&home| home != self.0.config.me()) {
            Some(home) if self.peers().any(|peer| peer == home) => {
                self.ask(home, call, PEER_PATIENCE).await
            }
            Some(_) | None => self.call(call).await,
        }
    }

    /// Calls the site that knows a request: this one, the one that its id names, or any.
    async fn anywhere(&self, id: &str, call: Call, wait: Duration) -> Result<Answer, api::Error> {
        let unknown = match self.call(call.clone()).await {
            Err(error) if error.error == Code::UnknownRequest => error,
            answer => return answer,
        };
        if let Some(home) = home_of(id).filter(|home| self.peers().any(|peer| peer == *home)) {
            return self.ask(home, call, wait).await;
        }
        let asker = SiteId(u16::MAX);
        let answers = self.ask_all(&Call::Knows { id: id.to_owned(), asker }).await;
        let known = answers.into_iter().find(|(_, answer)| matches!(answer, Answer::Known(true)));
        match known {
            Some((peer, _)) => self.ask(peer, call, wait).await,
            None => Err(unknown),
        }
    }

    /// All other sites: those of the epoch's plan, or of the configuration before there is one.
    fn peers(&self) -> impl Iterator<Item = SiteId> + use<> {
        let me = self.0.config.me();
        let planned: Vec<SiteId> = match &self.0.view {
            Some(view) => view.borrow().plan.sites.keys().copied().collect(),
            None => Vec::new(),
        };
        let config = &self.0.config;
        let list: Vec<SiteId> = if planned.is_empty() {
            config.members.keys().filter_map(|name| config.number_of(name)).collect()
        } else {
            planned
        };
        list.into_iter().filter(move |&it| it != me)
    }

    fn name_of(&self, site: SiteId) -> String {
        let view = self.0.view.as_ref();
        let planned = view.and_then(|view| Some(view.borrow().plan.sites.get(&site)?.0.clone()));
        let config = &self.0.config;
        let names = || config.members.keys().find(|name| config.number_of(name) == Some(site));
        planned.or_else(|| names().cloned()).unwrap_or_default()
    }

    /// Takes a site out of the cluster for good, with the next epoch.
    pub async fn remove_member(&self, name: &str) -> Result<(), api::Error> {
        if self.0.config.etcd.is_empty() {
            let text = "the members of this cluster are fixed by its configuration; with etcd \
                        sites may come and go";
            return Err(api::Error::new(Code::Unsupported, text));
        }
        self.next_epoch(Call::Leave(name.to_owned())).await
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
        self.site.send_later(Call::Release(self.lease.id.clone()));
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
            self.site.send_later(Call::Cancel(id));
        }
    }
}

impl Site {
    /// Sends a call whose answer nobody waits for, from where nothing can be awaited.
    fn send_later(&self, call: Call) {
        let (reply, _) = oneshot::channel();
        let command = Command::Call { call, reply };
        let Err(mpsc::error::TrySendError::Full(command)) = self.0.commands.try_send(command)
        else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let site = self.clone();
            runtime.spawn(async move { site.command(command).await.is_ok() });
        } else {
            self.0.commands.blocking_send(command).ok();
        }
    }
}

/// Asks etcd for the number of this site, and has it given one where it is new.
async fn find_place(config: &mut Config) -> Result<(), StartError> {
    let store = Etcd::new(&config.cluster, &config.etcd, config.site_lease / 4);
    let store = store.map_err(StartError::Config)?;
    let address = config.members.get(&config.site).cloned().unwrap_or_default();
    let note = postcard::to_stdvec(&Note { address }).unwrap_or_default();
    let mut epoch = 0;
    for count in 0.. {
        let (site, note) = (config.site.clone(), note.clone());
        let pulse = Pulse { site, incarnation: 0, count, note };
        match store.beat(epoch, pulse).await {
            // There is no epoch yet: all begin with what they were told.
            Ok(Beat::Steady(_)) if epoch == 0 => return Ok(()),
            Ok(Beat::Steady(_)) => {}
            Ok(Beat::Moved(record)) => {
                epoch = record.epoch;
                let record = plan::unpack(&record.body)
                    .map_err(|why| StartError::Config(format!("etcd: {why}")))?;
                let sites = &record.plan.sites;
                if sites.values().any(|it| it.0 == config.site) {
                    config.members = sites.values().cloned().collect();
                    config.numbers = sites.iter().map(|(&it, site)| (site.0.clone(), it)).collect();
                    return Ok(());
                }
                tracing::info!(epoch, "not in the cluster yet: waits to be taken in");
            }
            Err(error) => tracing::warn!(%error, "etcd does not answer"),
        }
        tokio::time::sleep(config.site_lease / 20).await;
    }
    Ok(())
}

/// Starts the tasks that talk to the store.
fn keep(
    config: &Config,
    incarnation: u64,
    store: Arc<dyn Store>,
    news: mpsc::Sender<News>,
    running: watch::Sender<View>,
    state: Option<Arc<StateDir>>,
) -> Change {
    let note = Note { address: config.members[&config.site].clone() };
    let note = postcard::to_stdvec(&note).unwrap_or_default();
    let standing = keeper::Standing { epoch: 0, incarnation, hurry: true, note };
    let (me, watched) = watch::channel(standing);
    let (proposals, offered) = mpsc::channel(4);
    let (lease, name) = (config.site_lease, config.site.clone());
    tokio::spawn(keeper::beat(Arc::clone(&store), name, lease, watched, news.clone()));
    tokio::spawn(keeper::propose(store, offered, news));
    let joinable = !config.etcd.is_empty();
    let doors = Doors { me, proposals, running, state, joinable };
    Change::new(config.me(), incarnation, Plan::first(config), lease, doors)
}

/// The site that gave an id out: `L2-…` and `R2-…` come from site 2.
fn home_of(id: &str) -> Option<SiteId> {
    let (home, _) = id.strip_prefix(['L', 'R'])?.split_once('-')?;
    home.parse().ok().map(SiteId)
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
