//! The site task: it owns the protocols, the clock, the requests and the leases.
//!
//! One input at a time; everything that follows from it is done before the next one. Nothing in
//! here waits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kofm_core::{Clock, Cluster, Demand, Kind, PoolId, Rejection, SiteId, Stamp, Unit, Units};
use tokio::sync::{broadcast, mpsc, oneshot};
use tracing::{debug, error, info, warn};

use crate::api::{self, Answer, Call, Code, Hold, OnExpiry, State, Submit};
use crate::boottime::{Alarm, Moment};
use crate::config::{Config, PoolConfig};
use crate::engine::{self, Engine, Move, Outcome};
use crate::fast::Numbered;
use crate::link::{Event, Mesh, Payload};
use crate::names::{self, Names};
use crate::random;
use crate::session::Broken;
use crate::site::metrics::Metrics;

/// Requests that may wait at one site.
pub(crate) const MAX_QUEUED: usize = 200_000;
/// Ended requests that are remembered, so that a repeated id finds them.
const MAX_ENDED: usize = 10_000;
const MAX_HISTORY: usize = 10_000;
/// Questions to other sites that may be open.
const MAX_ASKS: usize = 20_000;
/// Clients that may watch one request.
const MAX_WATCHERS: usize = 16;
/// How long a new request is given before its client is told that it waits.
const SETTLE: Duration = Duration::from_millis(150);
/// How long a request that must not wait is given, for the messages that it takes to know.
const TRY: Duration = Duration::from_secs(1);
/// Entries in one answer about a queue, leases or blockers.
pub(crate) const MAX_LISTED: usize = 5_000;
const MAX_BLOCKERS: usize = 64;
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);
const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_hours(30 * 24);
/// The longest that one call waits for news.
pub(crate) const MAX_WATCH: Duration = Duration::from_mins(1);

/// What comes to the site task.
pub(crate) enum Command {
    /// Calls of one fast client.
    Calls {
        list: Vec<(u64, Call)>,
        answers: mpsc::Sender<Numbered>,
    },
    Call {
        call: Call,
        reply: oneshot::Sender<Result<Answer, api::Error>>,
    },
    Ask {
        peer: SiteId,
        call: Call,
        reply: oneshot::Sender<Result<Answer, api::Error>>,
    },
    Metrics(oneshot::Sender<String>),
    Pools(oneshot::Sender<Vec<PoolState>>),
    AddPool {
        name: String,
        pool: PoolConfig,
        reply: oneshot::Sender<Result<(), api::Error>>,
    },
    OpenPool(String),
    /// Nobody may ask for more from now on.
    LimitPool {
        name: String,
        limit: u32,
    },
    RemovePool {
        name: String,
        reply: oneshot::Sender<bool>,
    },
    IsIdle {
        name: String,
        reply: oneshot::Sender<bool>,
    },
    Drain,
}

/// A pool as it is now.
pub(crate) struct PoolState {
    pub name: String,
    pub config: PoolConfig,
    pub limit: u32,
}

pub(crate) struct Core {
    pub(super) me: SiteId,
    pub(super) site: Arc<str>,
    pub(super) members: Vec<Arc<str>>,
    mesh: Arc<Mesh>,
    clock: Clock,
    engines: Vec<Running>,
    pub(super) pools: Vec<Pool>,
    pub(super) pool_by_name: HashMap<Arc<str>, usize>,

    pub(super) requests: HashMap<u64, Request>,
    by_id: HashMap<Arc<str>, u64>,
    /// Stamps are unique within an engine: some protocols keep a clock of their own.
    by_claim: HashMap<(usize, Stamp), u64>,
    by_lease: HashMap<Arc<str>, u64>,
    ended: VecDeque<u64>,
    /// Ids that other sites are being asked about.
    reserved: HashMap<String, Moment>,
    next_key: u64,
    pub(super) queued: usize,

    timers: BTreeMap<(Moment, u64), Timer>,
    next_timer: u64,
    protocol_timers: HashMap<(usize, Vec<u8>), (Moment, u64)>,
    todo: VecDeque<Todo>,
    outcomes: Vec<Outcome>,
    effects: Vec<names::Effect>,

    asks: HashMap<u64, oneshot::Sender<Result<Answer, api::Error>>>,
    next_ask: u64,
    pub(super) history: VecDeque<Arc<api::Happening>>,
    events: broadcast::Sender<Arc<api::Happening>>,
    pub(super) metrics: Metrics,
    faults: HashSet<SiteId>,
    draining: bool,
}

struct Running {
    kind: Kind,
    engine: Box<dyn Engine>,
    names: Names,
    /// The site's number of each of its pools.
    pools: Vec<usize>,
    /// Pools were added to the table first, and are opened when all sites have them.
    open: bool,
}

pub(crate) struct Pool {
    pub(super) name: Arc<str>,
    pub(super) config: PoolConfig,
    /// The most that a demand may name; less than the units where the pool was made smaller.
    pub(super) limit: u32,
    engine: usize,
    id: PoolId,
    /// Waiting requests of this site.
    pub(super) waiting: BTreeSet<(Stamp, u64)>,
    /// Units in leases of this site, and whose.
    pub(super) used: BTreeMap<u32, u64>,
    pub(super) quarantined: u32,
    pub(super) gone: bool,
}

pub(crate) struct Request {
    pub(super) id: Arc<str>,
    pub(super) want: Vec<(usize, u32)>,
    pub(super) owner: Option<Arc<str>>,
    pub(super) reason: Option<Arc<str>>,
    ttl: Duration,
    pub(super) hold: Hold,
    /// Must not wait.
    once: bool,
    pub(super) state: State,
    pub(super) cause: Option<String>,
    pub(super) submitted: Moment,
    pub(super) waited: Duration,
    parts: Vec<Part>,
    /// The part that waits; all before it are granted.
    part: usize,
    pub(super) lease: Option<Lease>,
    deadline: Option<(Moment, u64)>,
    watchers: Vec<Watcher>,
}

struct Part {
    engine: usize,
    demand: Demand,
    claim: Option<Stamp>,
    granted: bool,
    /// The protocol only counts: its numbers come from, and go back to, this site's names.
    counted: bool,
    /// Numbers of the units of each pool, as they become known.
    numbers: BTreeMap<PoolId, Vec<u32>>,
}

impl Request {
    /// The claim that it waits with.
    pub(super) fn claim(&self) -> Option<Stamp> {
        self.parts.get(self.part)?.claim
    }
}

pub(crate) struct Lease {
    pub(super) id: Arc<str>,
    pub(super) fence: u64,
    pub(super) ttl: Duration,
    pub(super) expires: Moment,
    pub(super) since: Moment,
    timer: Option<(Moment, u64)>,
    pub(super) status: Status,
    /// Units by the site's number of the pool.
    pub(super) units: BTreeMap<usize, Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Live,
    /// Over, and not given back by its pool's policy.
    Held,
    Quarantined,
}

struct Watcher {
    reply: Responder,
    timer: (Moment, u64),
    told: Told,
}

/// What somebody wants to hear of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The submitter: as soon as it waits for certain.
    WhenSure,
    /// The submitter: when it is granted or over.
    AtTheEnd,
    /// A watcher: the same.
    News,
}

enum Responder {
    Local(oneshot::Sender<Result<Answer, api::Error>>),
    Peer(SiteId, u64),
    Fast(u64, mpsc::Sender<Numbered>),
}

enum Timer {
    Lease(u64),
    Deadline(u64),
    Watch(u64),
    Protocol(usize, Vec<u8>),
}

enum Todo {
    Claim(u64),
    Move(usize, Move),
    Names(usize, names::Effect),
    Granted(usize, Stamp, Vec<Unit>),
    Rejected(usize, Stamp, Rejection),
}

impl Core {
    pub(crate) fn new(
        config: &Config,
        incarnation: u64,
        mesh: Arc<Mesh>,
        events: broadcast::Sender<Arc<api::Happening>>,
    ) -> Self {
        let mut core = Self {
            me: config.me(),
            site: config.site.as_str().into(),
            members: config.members.keys().map(|name| name.as_str().into()).collect(),
            mesh,
            // Stamps and fences of a later life are larger than those of an earlier one.
            clock: first_clock(incarnation),
            engines: Vec::new(),
            pools: Vec::new(),
            pool_by_name: HashMap::new(),
            requests: HashMap::new(),
            by_id: HashMap::new(),
            by_claim: HashMap::new(),
            by_lease: HashMap::new(),
            ended: VecDeque::new(),
            reserved: HashMap::new(),
            next_key: 0,
            queued: 0,
            timers: BTreeMap::new(),
            next_timer: 0,
            protocol_timers: HashMap::new(),
            todo: VecDeque::new(),
            outcomes: Vec::new(),
            effects: Vec::new(),
            asks: HashMap::new(),
            next_ask: 0,
            history: VecDeque::new(),
            events,
            metrics: Metrics::default(),
            faults: HashSet::new(),
            draining: false,
        };
        // One engine per protocol, in the order of the protocols: the order in which a demand over
        // several of them is granted, at every site the same.
        for &kind in Kind::ALL {
            let pools = config.pools.iter().filter(|(_, pool)| pool.protocol == kind);
            let pools: Vec<_> = pools.map(|(name, pool)| (name.clone(), pool.clone())).collect();
            if !pools.is_empty() {
                core.add_engine(kind, pools, true);
            }
        }
        core
    }

    /// Runs until every handle is gone.
    pub(crate) async fn run(
        mut self,
        mut links: mpsc::Receiver<Event>,
        mut commands: mpsc::Receiver<Command>,
        mut alarm: Alarm,
    ) {
        loop {
            alarm.set(self.timers.first_key_value().map(|(key, _)| key.0));
            tokio::select! {
                event = links.recv() => match event {
                    Some(event) => { self.ring(); self.on_link(event); }
                    None => return,
                },
                command = commands.recv() => match command {
                    Some(command) => { self.ring(); self.on_command(command); }
                    None => return,
                },
                () = alarm.ring() => self.ring(),
            }
        }
    }

    // Inputs

    /// Everything whose time has come. Called first on every wake-up: after a long pause nothing
    /// must be granted or renewed before what has expired is gone.
    fn ring(&mut self) {
        let Some(first) = self.timers.first_key_value().map(|(key, _)| key.0) else { return };
        let now = Moment::now();
        if first > now {
            return;
        }
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let ((_, number), timer) = entry.remove_entry();
            match timer {
                Timer::Lease(key) => self.expire(key),
                Timer::Deadline(key) => self.run_out(key),
                Timer::Watch(key) => self.answer_watcher(key, number),
                Timer::Protocol(engine, timer) => {
                    self.protocol_timers.remove(&(engine, timer.clone()));
                    self.todo.push_back(Todo::Move(engine, Move::Fire { timer }));
                }
            }
            self.settle();
        }
    }

    fn on_link(&mut self, event: Event) {
        match event {
            Event::Messages { from, list } => {
                for payload in list {
                    self.on_payload(from, payload);
                    self.settle();
                }
            }
            Event::Up(peer) => debug!(peer = peer.0, "up"),
            Event::Down(peer) => debug!(peer = peer.0, "down"),
            Event::PeerReset { peer, why } => self.on_peer_reset(peer, why),
        }
    }

    /// A peer has lost its memory, or this site could not keep what it owed to it. What the
    /// protocols know of each other does not fit any more. An epoch change would start here; until
    /// there is one, whatever needs this peer waits.
    fn on_peer_reset(&mut self, peer: SiteId, why: Broken) {
        let text = format!("site {}: {why}", self.site_name(peer));
        error!("{text}; whatever needs it waits until all sites are restarted");
        self.metrics.peer_resets += 1;
        let happening = self.happening("peer-reset", None);
        self.record(api::Happening { cause: Some(text), ..happening });
    }

    fn on_payload(&mut self, from: SiteId, payload: Payload) {
        match payload {
            Payload::Protocol { engine, clock, message } => {
                self.metrics.messages_received += 1;
                let engine = usize::from(engine);
                if engine < self.engines.len() {
                    let input = Move::Deliver { from, clock, message };
                    self.todo.push_back(Todo::Move(engine, input));
                } else {
                    self.fault(from, "a protocol that is not in the table");
                }
            }
            Payload::Names { engine, clock, message } => {
                self.metrics.messages_received += 1;
                self.on_names(from, engine.into(), clock, &message);
            }
            Payload::Ask { number, body } => match serde_json::from_slice(&body) {
                Ok(call) => self.on_call(call, Responder::Peer(from, number)),
                Err(_) => self.fault(from, "a question that makes no sense"),
            },
            Payload::Answer { number, body } => {
                if let Some(reply) = self.asks.remove(&number) {
                    let answer = serde_json::from_slice(&body).unwrap_or_else(|_| {
                        Err(api::Error::new(Code::Unreachable, "the answer makes no sense"))
                    });
                    reply.send(answer).ok();
                }
            }
        }
    }

    fn on_names(&mut self, from: SiteId, engine: usize, clock: Clock, message: &[u8]) {
        let Some(running) = self.engines.get_mut(engine) else {
            return self.fault(from, "a protocol that is not in the table");
        };
        let Ok(message) = postcard::from_bytes(message) else {
            return self.fault(from, "malformed message");
        };
        if !clock.is_plausible() {
            return self.fault(from, "a clock that no honest site can have");
        }
        if running.names.receive(from, message, &mut self.effects).is_none() {
            return self.fault(from, "units that do not exist or are somewhere else");
        }
        self.clock.merge(clock);
        self.take_names(engine);
    }

    fn fault(&mut self, from: SiteId, what: &str) {
        self.metrics.peer_faults += 1;
        if self.faults.insert(from) {
            warn!(peer = from.0, what, "refused a message; said once per peer");
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Call { call, reply } => self.on_call(call, Responder::Local(reply)),
            Command::Calls { list, answers } => {
                for (number, call) in list {
                    self.on_call(call, Responder::Fast(number, answers.clone()));
                }
            }
            Command::Ask { peer, call, reply } => self.ask(peer, &call, reply),
            Command::Metrics(reply) => {
                reply.send(self.metrics_text()).ok();
            }
            Command::Pools(reply) => {
                let pools = self.pools.iter().filter(|pool| !pool.gone);
                let list = pools.map(|pool| PoolState {
                    name: pool.name.to_string(),
                    config: pool.config.clone(),
                    limit: pool.limit,
                });
                reply.send(list.collect()).ok();
            }
            Command::AddPool { name, pool, reply } => {
                let known = self.pool_by_name.contains_key(name.as_str());
                if !known {
                    self.add_engine(pool.protocol, vec![(name, pool)], false);
                }
                let text = "there is such a pool";
                drop(reply.send(if known {
                    Err(api::Error::new(Code::InUse, text))
                } else {
                    Ok(())
                }));
            }
            Command::OpenPool(name) => {
                if let Some(&pool) = self.pool_by_name.get(name.as_str()) {
                    let engine = self.pools[pool].engine;
                    self.engines[engine].open = true;
                    let happening = self.happening("pool", None);
                    self.record(api::Happening { cause: Some(name), ..happening });
                }
            }
            Command::LimitPool { name, limit } => {
                if let Some(&pool) = self.pool_by_name.get(name.as_str()) {
                    self.pools[pool].limit = limit;
                    let happening = self.happening("pool", None);
                    let cause = Some(format!("{name} has {limit} units"));
                    self.record(api::Happening { cause, ..happening });
                }
            }
            Command::RemovePool { name, reply } => {
                let pool = self.pool_by_name.remove(name.as_str());
                if let Some(pool) = pool {
                    self.pools[pool].gone = true;
                }
                reply.send(pool.is_some()).ok();
            }
            Command::IsIdle { name, reply } => {
                let idle = self.pool_by_name.get(name.as_str()).is_none_or(|&pool| {
                    let pool = &self.pools[pool];
                    pool.used.is_empty()
                        && pool.waiting.is_empty()
                        && !self.requests.values().any(|request| {
                            !request.state.is_over()
                                && request
                                    .want
                                    .iter()
                                    .any(|want| Arc::ptr_eq(&self.pools[want.0].name, &pool.name))
                        })
                });
                reply.send(idle).ok();
            }
            Command::Drain => self.drain(),
        }
        self.settle();
    }

    fn on_call(&mut self, call: Call, reply: Responder) {
        let answer = match call {
            Call::Submit { spec, fresh, hold, patience } => {
                return self.submit(spec, fresh, hold, patience, reply);
            }
            Call::Watch { id, wait } => return self.watch(&id, wait, reply),
            Call::Reserve(id) => Ok(Answer::Known(self.reserve(id))),
            Call::Unreserve(id) => {
                self.reserved.remove(&id);
                Ok(Answer::Done)
            }
            Call::Knows { id, asker } => {
                let mine = self.reserved.contains_key(&id) && self.me < asker;
                Ok(Answer::Known(mine || self.by_id.contains_key(id.as_str())))
            }
            Call::Cancel(id) => self.cancel(&id),
            Call::Renew(id) => self.renew(&id),
            Call::Release(id) => {
                self.release(&id);
                Ok(Answer::Done)
            }
            Call::ReleaseRequest(id) => self.release_request(&id),
            Call::Leases => Ok(Answer::Leases(self.leases())),
            Call::Queue => Ok(Answer::Queue(self.queue())),
            Call::Usage => Ok(Answer::Usage(self.usage())),
            Call::Ahead { want, claim } => Ok(self.ahead(&want, claim)),
            Call::History(limit) => Ok(Answer::History(self.recent(limit))),
        };
        self.respond(reply, answer);
        self.settle();
    }

    fn respond(&self, reply: Responder, answer: Result<Answer, api::Error>) {
        match reply {
            // A client that is gone needs no answer.
            Responder::Local(reply) => {
                reply.send(answer).ok();
            }
            // There is a slot for every open call, so this fails only when the client is gone.
            Responder::Fast(number, answers) => {
                answers.try_send((number, answer)).ok();
            }
            Responder::Peer(peer, number) => {
                let body = serde_json::to_vec(&answer).unwrap_or_default();
                self.mesh.send(peer, &Payload::Answer { number, body }).ok();
            }
        }
    }

    fn ask(
        &mut self,
        peer: SiteId,
        call: &Call,
        reply: oneshot::Sender<Result<Answer, api::Error>>,
    ) {
        if self.asks.len() >= MAX_ASKS {
            // Whoever asked may have given up.
            self.asks.retain(|_, reply| !reply.is_closed());
        }
        let body = serde_json::to_vec(call).unwrap_or_default();
        let number = self.next_ask;
        let sent = self.asks.len() < MAX_ASKS
            && self.mesh.is_up(peer)
            && self.mesh.send(peer, &Payload::Ask { number, body }).is_ok();
        if sent {
            self.next_ask += 1;
            self.asks.insert(number, reply);
        } else {
            let text = format!("site {} does not answer now; try again", self.site_name(peer));
            drop(reply.send(Err(api::Error::new(Code::Unreachable, text))));
        }
    }

    // Requests

    fn reserve(&mut self, id: String) -> bool {
        if self.by_id.contains_key(id.as_str()) {
            return true;
        }
        if self.reserved.len() > 10_000 {
            let now = Moment::now();
            self.reserved.retain(|_, since| now.since(*since) < Duration::from_secs(10));
        }
        self.reserved.insert(id, Moment::now());
        false
    }

    fn submit(
        &mut self,
        spec: Submit,
        fresh: bool,
        hold: Hold,
        patience: Option<Duration>,
        reply: Responder,
    ) {
        let told = if patience.is_some() { Told::AtTheEnd } else { Told::WhenSure };
        if let Some(id) = &spec.id {
            self.reserved.remove(id);
            if let Some(&key) = self.by_id.get(id.as_str()) {
                let over = self.requests.get(&key).is_none_or(|request| request.state.is_over());
                if !(fresh && over) {
                    return self.watch_key(key, patience.unwrap_or(SETTLE), told, reply);
                }
                self.forget(key);
            }
        }
        match self.check(&spec, hold) {
            Ok(want) => {
                let key = self.open(spec, want, hold);
                let settle = if self.requests[&key].once { TRY + SETTLE } else { SETTLE };
                self.watch_key(key, patience.unwrap_or(settle), told, reply);
                self.todo.push_back(Todo::Claim(key));
            }
            Err(error) => {
                self.metrics.refused += 1;
                self.respond(reply, Err(error));
            }
        }
        self.settle();
    }

    fn check(&self, spec: &Submit, hold: Hold) -> Result<Vec<(usize, u32)>, api::Error> {
        let malformed = |text: &str| Err(api::Error::new(Code::Malformed, text));
        if self.draining {
            return Err(api::Error::new(Code::Draining, "this site stops; ask another one"));
        }
        if self.queued >= MAX_QUEUED {
            let text = format!("{MAX_QUEUED} requests wait here; try again later");
            return Err(api::Error::new(Code::TooMany, text));
        }
        if spec.want.is_empty() || spec.want.values().any(|&units| units == 0) {
            return malformed("`want` names no units; write {\"want\":{\"gpu\":1}}");
        }
        if spec.want.len() > 64 {
            return malformed("`want` names more than 64 pools");
        }
        if spec.ttl.is_some_and(|ttl| !(MIN_TTL..=MAX_TTL).contains(&ttl)) {
            return malformed("`ttl` is from 100ms to 30 days");
        }
        let id = spec.id.as_deref().unwrap_or("x");
        if id.is_empty() || id.len() > 200 || id.contains(['/', '?', '#']) || !is_printable(id) {
            return malformed("`id` is up to 200 printable characters without / ? #");
        }
        let texts = [&spec.owner, &spec.reason];
        if texts.into_iter().flatten().any(|text| text.len() > 1000 || !is_printable(text)) {
            return malformed("`owner` and `reason` are up to 1000 bytes of printable text");
        }
        let mut want = Vec::new();
        for (name, &units) in &spec.want {
            let Some(&pool) = self.pool_by_name.get(name.as_str()) else {
                let text = format!("there is no pool `{name}`; GET /v1/pools lists them");
                return Err(api::Error::new(Code::UnknownPool, text));
            };
            let (running, pool_state) = (&self.engines[self.pools[pool].engine], &self.pools[pool]);
            if !running.open {
                let text = format!("pool `{name}` is being made; try again");
                return Err(api::Error::new(Code::InUse, text));
            }
            let drain = hold == Hold::Drain;
            let limit = if drain { pool_state.config.units } else { pool_state.limit };
            if units > limit {
                let text = format!(
                    "{units} units asked of pool `{name}`, which has {limit}; it would never be \
                     granted"
                );
                return Err(api::Error::new(Code::Infeasible, text));
            }
            want.push((pool, units));
        }
        Ok(want)
    }

    fn open(&mut self, spec: Submit, want: Vec<(usize, u32)>, hold: Hold) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        let id: Arc<str> = match spec.id {
            Some(id) => id.into(),
            None => format!("R{}-{}", self.me.0, random::hex::<8>()).into(),
        };
        let mut parts: BTreeMap<usize, Vec<(PoolId, Units)>> = BTreeMap::new();
        for &(pool, units) in &want {
            let pool = &self.pools[pool];
            parts.entry(pool.engine).or_default().push((pool.id, Units(units)));
        }
        let parts = parts.into_iter().map(|(engine, demand)| Part {
            engine,
            demand: demand.into_iter().collect(),
            claim: None,
            granted: false,
            counted: false,
            numbers: BTreeMap::new(),
        });
        let once = spec.wait == Some(Duration::ZERO);
        let deadline = spec.wait.map(|wait| {
            let wait = if once { TRY } else { wait };
            self.start_timer(Moment::now().after(wait), Timer::Deadline(key))
        });
        let request = Request {
            id: Arc::clone(&id),
            want,
            owner: spec.owner.map(Into::into),
            reason: spec.reason.map(Into::into),
            ttl: spec.ttl.unwrap_or(DEFAULT_TTL),
            hold,
            once,
            state: State::Queued,
            cause: None,
            submitted: Moment::now(),
            waited: Duration::ZERO,
            parts: parts.collect(),
            part: 0,
            lease: None,
            deadline,
            watchers: Vec::new(),
        };
        self.requests.insert(key, request);
        self.by_id.insert(id, key);
        self.queued += 1;
        self.metrics.submitted += 1;
        key
    }

    fn watch(&mut self, id: &str, wait: Duration, reply: Responder) {
        match self.by_id.get(id) {
            Some(&key) => self.watch_key(key, wait, Told::News, reply),
            None => self.respond(reply, Err(unknown_request(id))),
        }
    }

    fn watch_key(&mut self, key: u64, wait: Duration, told: Told, reply: Responder) {
        let queued = self.requests.get(&key).is_some_and(|it| it.state == State::Queued);
        if !queued || wait.is_zero() {
            let answer = self.submitted_answer(key, told);
            return self.respond(reply, answer);
        }
        let moment = Moment::now().after(wait.min(MAX_WATCH));
        let timer = self.start_timer(moment, Timer::Watch(key));
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.watchers.push(Watcher { reply, timer, told });
        if request.watchers.len() > MAX_WATCHERS {
            let oldest = request.watchers.remove(0);
            self.timers.remove(&oldest.timer);
            let answer = self.submitted_answer(key, oldest.told);
            self.respond(oldest.reply, answer);
        }
    }

    /// The answer to somebody who submitted: a try that failed is an error there.
    fn submitted_answer(&self, key: u64, told: Told) -> Result<Answer, api::Error> {
        let Some(request) = self.requests.get(&key) else { return Err(unknown_request("?")) };
        if told != Told::News && request.once && request.state == State::Failed {
            let text = "the units are not free; leave out `wait` to queue for them";
            return Err(api::Error::new(Code::Busy, text));
        }
        Ok(Answer::Request(Box::new(self.request_view(key, request, told != Told::News))))
    }

    fn answer_watcher(&mut self, key: u64, number: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(place) = request.watchers.iter().position(|it| it.timer.1 == number) else {
            return;
        };
        let watcher = request.watchers.swap_remove(place);
        let answer = self.submitted_answer(key, watcher.told);
        self.respond(watcher.reply, answer);
    }

    /// Tells everybody who watches, or only those who submitted.
    fn tell(&mut self, key: u64, only_submitted: bool) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let (told, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut request.watchers)
            .into_iter()
            .partition(|watcher| watcher.told == Told::WhenSure || !only_submitted);
        request.watchers = rest;
        for watcher in told {
            self.timers.remove(&watcher.timer);
            let answer = self.submitted_answer(key, watcher.told);
            self.respond(watcher.reply, answer);
        }
    }

    fn cancel(&mut self, id: &str) -> Result<Answer, api::Error> {
        let key = *self.by_id.get(id).ok_or_else(|| unknown_request(id))?;
        match self.requests.get(&key).map(|request| request.state) {
            Some(State::Queued) => self.end(key, State::Cancelled, "cancelled by the client"),
            Some(State::Granted) => self.end(key, State::Released, "its request was cancelled"),
            Some(State::Released | State::Expired | State::Cancelled | State::Failed) | None => {}
        }
        self.answer_request(key)
    }

    fn answer_request(&self, key: u64) -> Result<Answer, api::Error> {
        let request = self.requests.get(&key).ok_or_else(|| unknown_request("?"))?;
        Ok(Answer::Request(Box::new(self.request_view(key, request, true))))
    }

    fn renew(&mut self, id: &str) -> Result<Answer, api::Error> {
        let gone = || {
            let text = "the lease is over: stop using its units, and ask again";
            api::Error::new(Code::Gone, text)
        };
        let key = *self.by_lease.get(id).ok_or_else(gone)?;
        let now = Moment::now();
        let request = self.requests.get_mut(&key).ok_or_else(gone)?;
        let lease = request.lease.as_mut().ok_or_else(gone)?;
        if lease.status != Status::Live || now >= lease.expires {
            return Err(gone());
        }
        let old = lease.timer.take();
        if let Some(old) = old {
            self.timers.remove(&old);
        }
        self.start_lease(key, now);
        self.metrics.renewed += 1;
        let request = &self.requests[&key];
        let lease = self.lease_view(request).ok_or_else(gone)?;
        Ok(Answer::Lease(Box::new(lease)))
    }

    fn release(&mut self, id: &str) {
        if let Some(&key) = self.by_lease.get(id) {
            let expired = self.requests[&key].state == State::Expired;
            let state = if expired { State::Expired } else { State::Released };
            self.end(key, state, "released by the client");
        }
    }

    fn release_request(&mut self, id: &str) -> Result<Answer, api::Error> {
        let key = *self.by_id.get(id).ok_or_else(|| unknown_request(id))?;
        let lease = self.requests[&key].lease.as_ref().map(|lease| Arc::clone(&lease.id));
        let Some(lease) = lease else { return self.cancel(id) };
        self.release(&lease);
        Ok(Answer::Done)
    }

    /// A wait has run out.
    fn run_out(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.deadline = None;
        let cause = if request.once { "busy" } else { "its wait ran out" };
        if request.state == State::Queued {
            self.end(key, State::Failed, cause);
        }
    }

    /// A lease was not renewed.
    fn expire(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        if lease.status != Status::Live {
            return;
        }
        lease.timer = None;
        let pools = lease.units.keys();
        let policy = |pool: &usize| self.pools[*pool].config.on_expiry;
        let kept: Vec<(usize, OnExpiry)> = pools
            .map(|pool| (*pool, policy(pool)))
            .filter(|it| it.1 != OnExpiry::Release)
            .collect();
        let (id, owner) = (Arc::clone(&request.id), request.owner.clone());
        warn!(request = %id, ?owner, "a lease was not renewed in time");
        self.metrics.expired += 1;
        if kept.is_empty() {
            return self.end(key, State::Expired, "not renewed in time");
        }
        self.keep_back(key, &kept);
    }

    /// Keeps the units of some pools back from a lease that is over, and gives back the rest.
    fn keep_back(&mut self, key: u64, kept: &[(usize, OnExpiry)]) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        let quarantine = kept.iter().any(|it| it.1 == OnExpiry::Quarantine);
        lease.status = if quarantine { Status::Quarantined } else { Status::Held };
        request.state = State::Expired;
        request.cause = Some("not renewed in time; a person must release the lease".into());
        for (pool, policy) in kept {
            if *policy == OnExpiry::Quarantine {
                let count = lease.units.get(pool).map_or(0, Vec::len);
                self.pools[*pool].quarantined += u32::try_from(count).unwrap_or(u32::MAX);
            }
        }
        let back: Vec<usize> = lease
            .units
            .keys()
            .copied()
            .filter(|pool| kept.iter().all(|it| it.0 != *pool))
            .collect();
        for pool in back {
            self.give_back_pool(key, pool);
        }
        let event = if quarantine { "quarantined" } else { "held" };
        let happening = self.happening(event, Some(key));
        self.record(happening);
    }

    /// Gives back all units of one pool of a lease.
    fn give_back_pool(&mut self, key: u64, pool: usize) {
        let (engine, id) = (self.pools[pool].engine, self.pools[pool].id);
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        let Some(numbers) = lease.units.remove(&pool) else { return };
        let Some(part) = request.parts.iter_mut().find(|part| part.engine == engine) else {
            return;
        };
        let Some(claim) = part.claim else { return };
        let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let returned = Demand::one(id, count);
        part.numbers.remove(&id);
        part.demand = part.demand.minus(&returned).unwrap_or_else(|| part.demand.clone());
        for number in &numbers {
            self.pools[pool].used.remove(number);
        }
        if part.counted {
            self.engines[engine].names.free(id, &numbers, &mut self.effects);
            self.take_names(engine);
        }
        let part = Some(returned);
        self.todo.push_back(Todo::Move(engine, Move::Release { claim, part }));
    }

    /// Ends a request, whatever it has or waits for.
    fn end(&mut self, key: u64, state: State, cause: &str) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let was = request.state;
        request.state = state;
        request.cause = Some(cause.to_owned());
        let parts = std::mem::take(&mut request.parts);
        let (lease, deadline) = (request.lease.take(), request.deadline.take());
        let now = Moment::now();
        let held = lease.as_ref().map(|lease| now.since(lease.since));
        if was == State::Queued {
            request.waited = now.since(request.submitted);
            self.queued -= 1;
        }
        if let Some(timer) = deadline {
            self.timers.remove(&timer);
        }
        if let Some(lease) = lease {
            self.drop_lease(key, &lease);
        }
        for part in parts {
            self.undo(key, &part);
        }
        self.metrics.ended(state, held);
        let mut happening = self.happening(state_name(state), Some(key));
        happening.held_ms = held.map(millis);
        happening.cause = Some(cause.to_owned());
        self.record(happening);
        self.tell(key, false);
        self.ended.push_back(key);
        while self.ended.len() > MAX_ENDED {
            if let Some(old) = self.ended.pop_front() {
                self.forget(old);
            }
        }
    }

    fn drop_lease(&mut self, key: u64, lease: &Lease) {
        self.by_lease.remove(&lease.id);
        if let Some(timer) = lease.timer {
            self.timers.remove(&timer);
        }
        for (pool, numbers) in &lease.units {
            let pool = &mut self.pools[*pool];
            for number in numbers {
                if pool.used.get(number) == Some(&key) {
                    pool.used.remove(number);
                }
            }
            let kept = lease.status == Status::Quarantined
                && pool.config.on_expiry == OnExpiry::Quarantine;
            if kept {
                pool.quarantined -= u32::try_from(numbers.len()).unwrap_or(0);
            }
        }
    }

    /// Takes back one part of a demand: withdrawn where it waits, released where it is held.
    fn undo(&mut self, key: u64, part: &Part) {
        let Some(claim) = part.claim else { return };
        let engine = part.engine;
        self.by_claim.remove(&(engine, claim));
        self.leave_queue(key, claim, engine, &part.demand);
        if !part.granted {
            self.todo.push_back(Todo::Move(engine, Move::Withdraw { claim }));
            return;
        }
        // Numbers first: whoever is granted because of the release finds them here.
        if part.counted {
            let names = &mut self.engines[engine].names;
            for pool in part.demand.pools() {
                match part.numbers.get(&pool) {
                    Some(numbers) => names.free(pool, numbers, &mut self.effects),
                    None => names.cancel(pool, claim, &mut self.effects),
                }
            }
            self.take_names(engine);
        }
        self.todo.push_back(Todo::Move(engine, Move::Release { claim, part: None }));
    }

    fn leave_queue(&mut self, key: u64, claim: Stamp, engine: usize, demand: &Demand) {
        for pool in demand.pools() {
            let pool = self.engines[engine].pools[pool.index()];
            self.pools[pool].waiting.remove(&(claim, key));
        }
    }

    fn forget(&mut self, key: u64) {
        if let Some(request) = self.requests.remove(&key)
            && self.by_id.get(&request.id) == Some(&key)
        {
            self.by_id.remove(&request.id);
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        let queued: Vec<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| request.state == State::Queued)
            .map(|(&key, _)| key)
            .collect();
        info!(queued = queued.len(), "draining");
        for key in queued {
            self.end(key, State::Failed, "the site stops");
            self.settle();
        }
    }

    // Protocols

    /// Carries out everything that follows, in order.
    fn settle(&mut self) {
        while let Some(todo) = self.todo.pop_front() {
            match todo {
                Todo::Claim(key) => self.claim(key),
                Todo::Move(engine, input) => self.step(engine, input),
                Todo::Names(engine, effect) => self.on_names_effect(engine, effect),
                Todo::Granted(engine, claim, units) => self.granted(engine, claim, &units),
                Todo::Rejected(engine, claim, reason) => self.rejected(engine, claim, &reason),
            }
        }
    }

    /// Makes the claim of the part that is next.
    fn claim(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(part) = request.parts.get_mut(request.part) else { return };
        // The stamp is taken here, with nothing between it and the step.
        let (engine, demand) = (part.engine, part.demand.clone());
        let claim = self.engines[engine].engine.next_stamp(self.clock);
        part.claim = Some(claim);
        let mut crowded = false;
        for pool in demand.pools() {
            let pool = &mut self.pools[self.engines[engine].pools[pool.index()]];
            crowded |= !pool.waiting.is_empty();
            pool.waiting.insert((claim, key));
        }
        self.by_claim.insert((engine, claim), key);
        self.step(engine, Move::Claim { claim, demand });
        // Whoever has somebody in front waits for certain, and is told so at once. Grants stand in
        // the list of things to do, so they have to be looked for.
        let granted = self
            .todo
            .iter()
            .any(|todo| matches!(todo, Todo::Granted(_, granted, _) if *granted == claim));
        if granted {
            return;
        }
        let sure = crowded
            || self.engines[engine]
                .engine
                .explain(claim)
                .iter()
                .any(|blocker| blocker.claim.is_some());
        if !sure {
            return;
        }
        if self.requests.get(&key).is_some_and(|request| request.once) {
            self.end(key, State::Failed, "busy");
        } else {
            self.tell(key, true);
        }
    }

    fn step(&mut self, number: usize, input: Move) {
        let running = &mut self.engines[number];
        let from = match &input {
            Move::Deliver { from, .. } => Some(*from),
            Move::Claim { .. }
            | Move::Release { .. }
            | Move::Withdraw { .. }
            | Move::Fire { .. } => None,
        };
        let result = running.engine.step(&mut self.clock, input, &mut self.outcomes);
        if let Err(refused) = result {
            if let Some(from) = from {
                self.fault(from, &refused.to_string());
            } else {
                error!(%refused, "a protocol refused its own site");
            }
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for outcome in outcomes.drain(..) {
            self.carry_out(number, outcome);
        }
        self.outcomes = outcomes;
    }

    fn carry_out(&mut self, engine: usize, outcome: Outcome) {
        match outcome {
            Outcome::Send { to, clock, message } if to == self.me => {
                let input = Move::Deliver { from: to, clock, message };
                self.todo.push_back(Todo::Move(engine, input));
            }
            Outcome::Send { to, clock, message } => {
                self.metrics.messages_sent += 1;
                let engine = u16::try_from(engine).unwrap_or(u16::MAX);
                self.send(to, &Payload::Protocol { engine, clock, message });
            }
            Outcome::Grant { claim, units } => {
                self.todo.push_back(Todo::Granted(engine, claim, units));
            }
            Outcome::Reject { claim, reason } => {
                self.todo.push_back(Todo::Rejected(engine, claim, reason));
            }
            Outcome::Arm { timer, min, max } => {
                let moment = Moment::now().after(random::between(min, max));
                let key = self.start_timer(moment, Timer::Protocol(engine, timer.clone()));
                if let Some(old) = self.protocol_timers.insert((engine, timer), key) {
                    self.timers.remove(&old);
                }
            }
            Outcome::Disarm { timer } => {
                if let Some(old) = self.protocol_timers.remove(&(engine, timer)) {
                    self.timers.remove(&old);
                }
            }
        }
    }

    fn send(&mut self, to: SiteId, payload: &Payload) {
        if let Err(why) = self.mesh.send(to, payload) {
            self.on_peer_reset(to, why);
        }
    }

    fn take_names(&mut self, engine: usize) {
        for effect in self.effects.drain(..) {
            self.todo.push_back(Todo::Names(engine, effect));
        }
    }

    fn on_names_effect(&mut self, engine: usize, effect: names::Effect) {
        match effect {
            names::Effect::Send { to, message } => {
                self.metrics.messages_sent += 1;
                let message = postcard::to_stdvec(&message).unwrap_or_default();
                let (engine, clock) = (u16::try_from(engine).unwrap_or(u16::MAX), self.clock);
                self.send(to, &Payload::Names { engine, clock, message });
            }
            names::Effect::Named { claim, pool, numbers } => {
                let Some(&key) = self.by_claim.get(&(engine, claim)) else {
                    // Ended meanwhile, before it could be taken off the list.
                    self.engines[engine].names.free(pool, &numbers, &mut self.effects);
                    return self.take_names(engine);
                };
                if let Some(part) = self.part_of(key, claim) {
                    part.numbers.insert(pool, numbers);
                }
                self.advance(key, claim);
            }
        }
    }

    fn part_of(&mut self, key: u64, claim: Stamp) -> Option<&mut Part> {
        let parts = &mut self.requests.get_mut(&key)?.parts;
        parts.iter_mut().find(|part| part.claim == Some(claim))
    }

    fn granted(&mut self, engine: usize, claim: Stamp, units: &[Unit]) {
        let Some(&key) = self.by_claim.get(&(engine, claim)) else {
            // Ended in the same moment.
            let release = Move::Release { claim, part: None };
            return self.todo.push_back(Todo::Move(engine, release));
        };
        let Some(part) = self.part_of(key, claim) else { return };
        part.granted = true;
        part.counted = units.is_empty();
        for unit in units {
            part.numbers.entry(unit.pool).or_default().push(unit.number);
        }
        let demand = part.demand.clone();
        self.leave_queue(key, claim, engine, &demand);
        if units.is_empty() {
            for (pool, units) in demand.parts() {
                self.engines[engine].names.need(pool, claim, units.0, &mut self.effects);
            }
            self.take_names(engine);
        } else {
            self.advance(key, claim);
        }
    }

    /// Goes on with the next part once this one is granted and has its numbers.
    fn advance(&mut self, key: u64, claim: Stamp) {
        let Some(part) = self.part_of(key, claim) else { return };
        if part.numbers.len() < part.demand.parts().len() {
            return;
        }
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.part += 1;
        if request.part < request.parts.len() {
            self.todo.push_back(Todo::Claim(key));
        } else {
            self.grant(key);
        }
    }

    fn grant(&mut self, key: u64) {
        let now = Moment::now();
        // Later than whatever this site has heard of, so later than the last use of any of these
        // units: a fence.
        self.clock.fence += 1;
        let fence = self.clock.fence;
        let Some(request) = self.requests.get_mut(&key) else { return };
        let mut units: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for part in &request.parts {
            for (pool, numbers) in &part.numbers {
                units.insert(self.engines[part.engine].pools[pool.index()], numbers.clone());
            }
        }
        for (pool, numbers) in &units {
            for number in numbers {
                if let Some(other) = self.pools[*pool].used.insert(*number, key) {
                    self.metrics.conservation_errors += 1;
                    let pool = &self.pools[*pool].name;
                    error!(%pool, number, other, key, "a unit has two holders: this is a bug");
                }
            }
        }
        let id: Arc<str> = format!("L{}-{}", self.me.0, random::hex::<16>()).into();
        request.state = State::Granted;
        request.waited = now.since(request.submitted);
        if let Some(timer) = request.deadline.take() {
            self.timers.remove(&timer);
        }
        request.lease = Some(Lease {
            id: Arc::clone(&id),
            fence,
            ttl: request.ttl,
            expires: now,
            since: now,
            timer: None,
            status: Status::Live,
            units,
        });
        self.queued -= 1;
        self.metrics.granted(request.waited);
        self.by_lease.insert(id, key);
        self.start_lease(key, now);
        let happening = self.happening("granted", Some(key));
        self.record(happening);
        self.tell(key, false);
    }

    /// Lets a lease run from now on. Its units are given away a little later than it ends: the
    /// holder's clock may be slower.
    fn start_lease(&mut self, key: u64, now: Moment) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lease) = request.lease.as_mut() else { return };
        if request.hold != Hold::Lease {
            lease.expires = now.after(MAX_TTL);
            return;
        }
        let ttl = lease.ttl;
        lease.expires = now.after(ttl);
        let timer = self.start_timer(now.after(ttl + slack(ttl)), Timer::Lease(key));
        if let Some(lease) = self.requests.get_mut(&key).and_then(|it| it.lease.as_mut()) {
            lease.timer = Some(timer);
        }
    }

    fn rejected(&mut self, engine: usize, claim: Stamp, reason: &Rejection) {
        if let Some(&key) = self.by_claim.get(&(engine, claim)) {
            // The protocol has forgotten the claim already.
            if let Some(part) = self.part_of(key, claim) {
                let demand = part.demand.clone();
                part.claim = None;
                self.leave_queue(key, claim, engine, &demand);
            }
            self.by_claim.remove(&(engine, claim));
            self.end(key, State::Failed, &reason.to_string());
        }
    }

    fn add_engine(&mut self, kind: Kind, pools: Vec<(String, PoolConfig)>, open: bool) {
        let number = self.engines.len();
        let sites = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let units: Vec<Units> = pools.iter().map(|(_, pool)| Units(pool.units)).collect();
        let said = (0..).map(PoolId).zip(&pools);
        let said = said.filter_map(|(id, (_, pool))| Some((id, pool.arbitration.clone()?)));
        let arbitration = said.collect();
        let cluster = Cluster { pools: units.clone(), arbitration, ..Cluster::new(sites, 1) };
        let engine = engine::start(kind, self.me, &cluster).expect("checked by the configuration");
        let first = self.pools.len();
        let count = pools.len();
        for (id, (name, config)) in (0..).map(PoolId).zip(pools) {
            let name: Arc<str> = name.into();
            self.pool_by_name.insert(Arc::clone(&name), self.pools.len());
            self.pools.push(Pool {
                name,
                limit: config.units,
                config,
                engine: number,
                id,
                waiting: BTreeSet::new(),
                used: BTreeMap::new(),
                quarantined: 0,
                gone: false,
            });
        }
        self.engines.push(Running {
            kind,
            engine,
            names: Names::new(self.me, sites, units),
            pools: (first..first + count).collect(),
            open,
        });
    }

    // Helpers

    fn start_timer(&mut self, moment: Moment, timer: Timer) -> (Moment, u64) {
        let key = (moment, self.next_timer);
        self.next_timer += 1;
        self.timers.insert(key, timer);
        key
    }

    pub(super) fn site_name(&self, site: SiteId) -> String {
        self.members.get(site.index()).map_or_else(|| site.to_string(), ToString::to_string)
    }

    /// What a waiting request waits for, as its protocol sees it, and its claim.
    pub(super) fn blockers(&self, request: &Request) -> (Option<Stamp>, Vec<api::Blocker>) {
        let Some(part) = request.parts.get(request.part) else { return (None, Vec::new()) };
        let Some(claim) = part.claim else { return (None, Vec::new()) };
        let running = &self.engines[part.engine];
        let mut list: Vec<api::Blocker> = Vec::new();
        for blocker in running.engine.explain(claim) {
            if list.len() >= MAX_BLOCKERS {
                break;
            }
            let pool = running.pools.get(blocker.pool.index()).copied();
            let other = blocker.claim.and_then(|claim| self.by_claim.get(&(part.engine, claim)));
            let other = other.and_then(|key| self.requests.get(key));
            let entry = match (pool, other) {
                (Some(pool), Some(other)) => self.blocker_view(other, pool),
                (Some(pool), None) => api::Blocker {
                    site: self.site_name(blocker.site),
                    owner: None,
                    reason: None,
                    pool: self.pools[pool].name.to_string(),
                    units: blocker.units.0,
                    lease: None,
                    state: if blocker.claim.is_some() { "claimed" } else { "unanswered" }.into(),
                    expires_in_ms: None,
                },
                (None, _) => continue,
            };
            list.push(entry);
        }
        // Holders first: they are what a person can talk to.
        list.sort_by_key(|blocker| blocker.state != "held");
        (Some(claim), list)
    }

    fn metrics_text(&self) -> String {
        crate::site::metrics::text(self, &self.mesh.info())
    }

    pub(super) fn protocols(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.engines.iter().map(|it| (it.kind.name(), it.engine.is_at_rest()))
    }

    pub(super) fn happening(&self, event: &str, key: Option<u64>) -> api::Happening {
        let request = key.and_then(|key| self.requests.get(&key));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let lease = request.and_then(|request| request.lease.as_ref());
        let text = |text: &Option<Arc<str>>| text.as_ref().map(ToString::to_string);
        api::Happening {
            at_ms: millis(since),
            event: event.to_owned(),
            site: self.site.to_string(),
            request: request.map(|request| request.id.to_string()),
            owner: request.and_then(|request| text(&request.owner)),
            reason: request.and_then(|request| text(&request.reason)),
            want: request.map(|request| self.want_view(request)).unwrap_or_default(),
            units: lease.map(|lease| self.units_view(lease)).unwrap_or_default(),
            fence: lease.map(|lease| lease.fence),
            waited_ms: request.map(|request| millis(request.waited)),
            held_ms: None,
            cause: None,
        }
    }

    fn record(&mut self, happening: api::Happening) {
        let happening = Arc::new(happening);
        self.history.push_back(Arc::clone(&happening));
        if self.history.len() > MAX_HISTORY {
            self.history.pop_front();
        }
        // Nobody may be listening; who listens too slowly is told so.
        self.events.send(happening).ok();
    }
}

/// How much longer than its time a lease's units are kept from others.
fn slack(ttl: Duration) -> Duration {
    ttl / 50 + Duration::from_millis(200)
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Queued => "queued",
        State::Granted => "granted",
        State::Released => "released",
        State::Expired => "expired",
        State::Cancelled => "cancelled",
        State::Failed => "failed",
    }
}

fn is_printable(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn unknown_request(id: &str) -> api::Error {
    let text = format!("there is no request `{id}`, or it ended long ago");
    api::Error::new(Code::UnknownRequest, text)
}

/// Where the clock of an incarnation starts.
fn first_clock(incarnation: u64) -> Clock {
    let start = incarnation.saturating_sub(1) << 32;
    Clock { time: start, fence: start }
}
