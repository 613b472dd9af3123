//! The core of a site: it owns the protocols, the clock, the requests and the leases.
//!
//! One input at a time; everything that follows from it is done before the next one. Nothing in
//! here waits. Its driver hands it what comes in.

mod accounts;
mod adopt;
mod engines;
mod epochs;
mod events;
mod gangs;
mod inputs;
mod install;
mod keep;
mod leases;
mod legacy;
mod membership;
mod moves;
mod mutants;
mod plans;
mod requests;
mod rota;
mod semaphores;
mod shares;
mod tries;
mod waits;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kofm_core::epoch::accounts::Outcome as AccountNews;
use kofm_core::epoch::{Account, Accounts, Adopted, LeaseKey};
use kofm_core::{Clock, Demand, Kind, PoolId, Rejection, SiteId, Stamp, Unit};
use rustc_hash::FxHashMap;
use tokio::sync::{broadcast, oneshot};

use crate::api::{self, Answer, Hold, State};
use crate::boottime::{Moment, Now};
use crate::config::{Config, PoolConfig};
use crate::engine::{self, Engine, Move, Outcome};
use crate::fast::Outbox;
use crate::input::Input;
use crate::journal::{Journal, Legacy};
use crate::links::Links;
use crate::metrics::{Metrics, Times};
use crate::names::{self, Names};
use crate::plan::{Group, Plan};
use crate::random::Random;
use crate::tallies::{self, Tallies};

pub use self::epochs::{Births, Change, Doors, View};
pub use self::gangs::total;
pub use self::mutants::Mutant;
pub use self::plans::return_first;
pub use self::semaphores::unknown as unknown_semaphore;

/// Requests that may wait at one site.
pub const MAX_QUEUED: usize = 200_000;
/// Ended requests that are remembered: those with ids of their clients, so that a repeated one
/// finds them, and the others, which nobody repeats. What is remembered beyond the processor's
/// caches is slow to forget: a busy site spent a sixth of its time on that.
const MAX_NAMED: usize = 10_000;
const MAX_NAMELESS: usize = 1_000;
const MAX_HISTORY: usize = 2_000;
/// Names of ended leases that are remembered, so that releasing one again is harmless.
const MAX_ENDED_LEASES: usize = 2_000;
/// Questions to other sites that may be open.
const MAX_ASKS: usize = 20_000;
/// Sites that may wait for the next event.
const MAX_LISTENERS: usize = 1000;
/// Clients that may watch one request.
const MAX_WATCHERS: usize = 16;
/// How long a new request is given before its client is told that it waits.
const SETTLE: Duration = Duration::from_millis(150);
/// How long a request that must not wait is given, for the messages that it takes to know.
const TRY: Duration = Duration::from_secs(1);
/// Entries in one answer about a queue, leases or blockers.
pub const MAX_LISTED: usize = 5_000;
const MAX_BLOCKERS: usize = 64;
/// A table of this capacity stays as large as it is.
const SMALL: usize = 4_096;
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_hours(30 * 24);
/// The longest lease in pools whose protocol heals by itself: shorter than it waits before it makes
/// units anew.
const MAX_HEALING_TTL: Duration = Duration::from_secs(10);
/// The longest that one call waits for news.
pub const MAX_WATCH: Duration = Duration::from_mins(1);

/// Facts from outside with which a core starts.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub incarnation: u64,
    pub now: Now,
    /// All its random numbers come from this.
    pub seed: [u8; 32],
}

pub struct Core {
    pub(super) me: SiteId,
    /// This site has lived before, and may have promised what it does not know of.
    reborn: bool,
    pub(super) site: Arc<str>,
    pub(super) members: Vec<Arc<str>>,
    links: Box<dyn Links>,
    clock: Clock,
    /// The time of the input that is being handled: one reading of the driver's clock, taken after
    /// the input had arrived.
    pub(super) now: Moment,
    /// The same on the wall clock, in milliseconds since 1970. Events show it; no decision uses it.
    wall_ms: u64,
    random: Random,
    pub(super) change: Change,
    /// The epoch that is installed, and its configuration.
    installed: u64,
    plan: Plan,
    journal: Option<Journal>,
    /// When a journal that is behind is written again.
    rewrite_at: Option<Moment>,
    /// What the last life left behind, until an epoch confirms it.
    legacy: Option<Legacy>,
    /// Leases that other sites granted, and that their holders presented here.
    presented: BTreeMap<String, adopt::Presented>,
    /// Leases that were not renewed, and when they ended, oldest first.
    lapsed: VecDeque<(Moment, u64)>,
    /// Requests whose leases wait for copies.
    keeping: BTreeMap<LeaseKey, u64>,
    /// Those that keepers should be told of, and leases that are over.
    uncopied: Vec<u64>,
    uncopied_over: Vec<LeaseKey>,
    /// The site has said goodbye: no protocol takes a step any more.
    stopped: bool,
    engines: Vec<Running>,
    pub(super) pools: Vec<Pool>,
    pub(super) pool_by_name: BTreeMap<Arc<str>, usize>,

    pub(super) semaphores: Vec<semaphores::Semaphore>,
    semaphore_by_name: BTreeMap<Arc<str>, usize>,
    /// Whoever waits to take from a semaphore, by the key of the call and by claim.
    takers: BTreeMap<u64, semaphores::Taker>,
    taker_by_claim: BTreeMap<(usize, Stamp), u64>,
    /// Claims of semaphores that are about to be withdrawn.
    leaving: BTreeMap<(usize, Stamp), Demand>,
    /// The accounts of each protocol of semaphores, in the epoch that is installed.
    accounts: BTreeMap<usize, Accounts<accounts::Deal>>,
    account_news: Vec<(usize, accounts::Deal, AccountNews)>,
    /// V that are not answered, by a key of this site's own.
    adders: BTreeMap<u64, accounts::Adder>,
    next_adder: u64,
    /// What is taken and added goes here, and what earlier lives did; nothing where they forgot.
    tallies: Option<Tallies>,
    earlier: Option<BTreeMap<tallies::Key, Account>>,

    /// Gangs whose members meet here.
    rallies: BTreeMap<String, gangs::Rally>,
    /// How the latest runs of gangs ended, for members that ask later.
    gang_ends: VecDeque<gangs::RunEnd>,
    rota: Option<rota::Rota>,
    /// Since when members of gangs are away.
    away: BTreeMap<SiteId, Moment>,

    /// By keys of this site's own: nobody can choose them to collide. The table is moved from time
    /// to time as they come and go, and they are large.
    pub(super) requests: FxHashMap<u64, Box<Request>>,
    by_id: HashMap<Arc<str>, u64>,
    /// Stamps are unique within an engine: some protocols keep a clock of their own.
    by_claim: FxHashMap<(usize, Stamp), u64>,
    /// Nobody else makes up the ids of leases.
    by_lease: FxHashMap<Arc<str>, u64>,
    /// Names of leases that ended lately, oldest first.
    ended_leases: VecDeque<Arc<str>>,
    /// Those that are over, oldest first: with an id of the client's own, and without.
    ended: VecDeque<u64>,
    ended_nameless: VecDeque<u64>,
    /// What was asked for last: whoever asks for the same shares it.
    asked: Arc<api::Want>,
    /// What is told of requests that have none.
    no_units: Arc<api::Units>,
    /// Ids that other sites are being asked about.
    reserved: BTreeMap<String, (Moment, u64)>,
    /// The latest time at which one was taken, as far as is known here.
    last_reserved: u64,
    next_key: u64,
    pub(super) queued: usize,

    timers: BTreeMap<(Moment, u64), Timer>,
    next_timer: u64,
    protocol_timers: BTreeMap<(usize, Vec<u8>), (Moment, u64)>,
    todo: VecDeque<Todo>,
    outcomes: Vec<Outcome>,
    effects: Vec<names::Effect>,

    /// Events since the site started, and who waits for the next.
    happened: u64,
    /// The number of the first of them: larger than those of earlier starts.
    first_event: u64,
    listeners: Vec<events::Listener>,
    asks: BTreeMap<u64, Asker>,
    /// Requests with `wait` zero for which members count.
    tries: BTreeMap<u64, tries::Try>,
    shares: shares::Shares,
    next_ask: u64,
    pub(super) history: VecDeque<api::Happening>,
    /// Where it is kept for longer, and the questions that it has not answered.
    pub(super) kept: Option<Box<dyn History>>,
    historians: BTreeMap<u64, Responder>,
    next_ticket: u64,
    /// Refusals that were written down in the second that began then.
    refusals: (Moment, u32),
    events: broadcast::Sender<Arc<api::Happening>>,
    pub(super) metrics: Metrics,
    faults: BTreeSet<SiteId>,
    draining: bool,
    /// The cluster says that this site takes no new requests.
    drained: bool,
    /// It leaves the epoch, or is about to.
    departure: Option<moves::Departure>,
    /// What waits here, for others, and what waits at others.
    telling: waits::Telling,
    waits: BTreeMap<SiteId, waits::Copies>,
    /// The requests that other sites have since it left.
    moved_ids: (Moment, BTreeSet<Arc<str>>),
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

/// Keeps what happens, and answers questions about it.
pub trait History: Send {
    /// Keeps an event. Never waits.
    fn note(&self, happening: &api::Happening);
    /// Starts to answer; the answer comes as [`Command::Told`]. False if too many are asked.
    ///
    /// [`Command::Told`]: crate::input::Command::Told
    fn ask(&self, ticket: u64, ask: api::LedgerAsk) -> bool;
    /// Bytes that are kept, and events that were lost.
    fn counts(&self) -> (u64, u64);
}

struct Running {
    group: Group,
    kind: Kind,
    engine: Box<dyn Engine>,
    /// It does not say which units it grants: that is for the names.
    counts: bool,
    names: Names,
    /// The site's number of each of its pools, or semaphores.
    pools: Vec<usize>,
    /// What was last known of its tokens, where this site looks after them.
    sound: Option<bool>,
}

impl Running {
    fn new(group: Group, engine: Box<dyn Engine>, names: Names, pools: Vec<usize>) -> Self {
        let kind = group.kind;
        // Those that heal name their units, too, but count none of them as idle.
        let counts = engine.idle_units().is_none() && !engine::heals(kind);
        Self { group, kind, engine, counts, names, pools, sound: None }
    }
}

pub struct Pool {
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
    /// Those of them whose leases ended badly, kept back for a person.
    pub(super) quarantined: BTreeSet<u32>,
    pub(super) gone: bool,
    /// How long its leases were waited for and held.
    pub(super) times: Option<Box<Times>>,
    /// Takes no new requests: it is about to change.
    closed: bool,
    /// Units that a departed site may still use.
    withheld: BTreeSet<u32>,
    /// Units that people have quarantined, and why.
    out: BTreeMap<u32, String>,
    /// Those of them that this site counts while nobody holds them.
    keeps: BTreeSet<u32>,
}

/// Quarantined units that are named where they are in the way.
const SHOWN: usize = 3;

impl Pool {
    fn new(name: Arc<str>, config: PoolConfig) -> Self {
        Self {
            name,
            limit: config.units,
            config,
            engine: 0,
            id: PoolId(0),
            waiting: BTreeSet::new(),
            used: BTreeMap::new(),
            quarantined: BTreeSet::new(),
            gone: false,
            times: None,
            closed: false,
            withheld: BTreeSet::new(),
            out: BTreeMap::new(),
            keeps: BTreeSet::new(),
        }
    }

    /// Whether so many units are not left, because some are quarantined.
    fn lacks(&self, units: u32) -> bool {
        let out = u32::try_from(self.out.len()).unwrap_or(u32::MAX);
        out > 0 && units > self.limit.saturating_sub(out)
    }

    /// Whether so many units are never granted.
    fn refuses(&self, units: u32) -> bool {
        units > self.limit || self.lacks(units)
    }

    /// Why so many units are never granted.
    fn refusal(&self, units: u32) -> String {
        let Self { name, limit, .. } = self;
        let asked = format!("{units} units asked of pool `{name}`, which has {limit}");
        if units > *limit {
            return format!("{asked}; it would never be granted");
        }
        let list = self.out.iter().take(SHOWN);
        let list = list.map(|(&unit, why)| format!("{} ({why})", self.config.unit_name(unit)));
        let list: Vec<String> = list.collect();
        let more = if self.out.len() > SHOWN { ", …" } else { "" };
        let (out, list) = (self.out.len(), list.join(", "));
        format!("{asked}, {out} of them quarantined: {list}{more}; `kofm pool return` ends that")
    }

    /// Units kept back for a person, of which this site keeps count.
    pub(super) fn kept_back(&self) -> usize {
        let out = self.keeps.iter().filter(|unit| !self.used.contains_key(unit)).count();
        self.quarantined.len() + out
    }
}

pub struct Request {
    pub(super) id: Arc<str>,
    /// The client chose the id.
    named: bool,
    pub(super) want: Vec<(usize, u32)>,
    /// The same, by the names of the pools.
    pub(super) asked: Arc<api::Want>,
    pub(super) owner: Option<Arc<str>>,
    pub(super) reason: Option<Arc<str>>,
    /// The principal that asked.
    pub(super) principal: Option<Arc<str>>,
    ttl: Duration,
    pub(super) hold: Hold,
    /// Must not wait.
    once: bool,
    pub(super) state: State,
    pub(super) cause: Option<Cow<'static, str>>,
    pub(super) code: Option<api::Code>,
    pub(super) submitted: Moment,
    pub(super) waited: Duration,
    parts: Vec<Part>,
    /// The part that waits; all before it are granted.
    part: usize,
    pub(super) lease: Option<Box<Lease>>,
    deadline: Option<(Moment, u64)>,
    watchers: Vec<Watcher>,
    /// Why its lease is not renewed any more.
    doom: Option<String>,
    /// It has its units, and its lease waits for copies.
    keeping: Option<keep::Keeping>,
    /// Its site was lost, and its client has not asked for it since: how long it may take to.
    orphan: Option<(Moment, u64)>,
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

pub struct Lease {
    pub(super) id: Arc<str>,
    /// What lists and events show of the id.
    pub(super) name: Arc<str>,
    pub(super) fence: u64,
    pub(super) epoch: u64,
    pub(super) ttl: Duration,
    pub(super) expires: Moment,
    pub(super) since: Moment,
    timer: Option<(Moment, u64)>,
    pub(super) status: Status,
    /// Units by the site's number of the pool.
    pub(super) units: BTreeMap<usize, Vec<u32>>,
    /// The same, by names.
    pub(super) names: Arc<api::Units>,
    /// Another life granted it.
    adopted: Option<Adopted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Live,
    /// Not renewed in time. Its units are kept until a beat says that no other site has adopted it.
    Lapsed,
    /// Over, and adopted from a site whose other leases may still turn up.
    Ghost,
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
    Fast(u64, Arc<dyn Outbox>),
}

/// Where the answer of another site goes.
enum Asker {
    Caller(oneshot::Sender<Result<Answer, api::Error>>),
    /// A request that must not wait, and the member that was asked.
    Try(u64, SiteId),
}

enum Timer {
    Lease(u64),
    Deadline(u64),
    Watch(u64),
    Listen,
    Taker(u64),
    Protocol(usize, Vec<u8>),
    Tick,
    /// Something about the epoch is due.
    Look,
    /// The members of a gang's request are looked after.
    Members(u64),
    /// Members of a gang meet.
    Rally(String),
    /// Clients of the rota are looked after.
    Rota,
    /// A request has waited for its client.
    Orphan(u64),
}

enum Todo {
    Take(u64),
    Leave(usize, Stamp),
    /// A V that is about to be done.
    Add(u64),
    /// A peer speaks about what it did with semaphores, or what this site did.
    Accounts {
        from: SiteId,
        engine: usize,
        message: Vec<u8>,
    },
    Claim(u64),
    /// A part of a request that is over is given back. Nobody finds the request by it any more.
    Undo(Part),
    Grant(u64),
    Move(usize, Move),
    Names(usize, names::Effect),
    /// A peer says which numbers move.
    Numbers {
        from: SiteId,
        engine: usize,
        clock: Clock,
        message: Vec<u8>,
    },
    Granted(usize, Stamp, Vec<Unit>),
    Rejected(usize, Stamp, Rejection),
    Revoked(usize, Stamp),
}

impl Todo {
    /// Whether it is still to do when this site begins a new life: the messages of engines that
    /// `heals` names, and what gives back parts that `undo` names.
    fn outlives_the_epoch(
        &self,
        heals: impl Fn(usize) -> bool,
        undo: impl Fn(&Part) -> bool,
    ) -> bool {
        match self {
            Self::Add(_) => true,
            Self::Undo(part) => undo(part),
            Self::Move(engine, _) | Self::Granted(engine, ..) => heals(*engine),
            Self::Take(_)
            | Self::Leave(..)
            | Self::Claim(_)
            | Self::Grant(_)
            | Self::Names(..)
            | Self::Numbers { .. }
            | Self::Accounts { .. }
            | Self::Rejected(..)
            | Self::Revoked(..) => false,
        }
    }
}

impl Core {
    pub fn new(
        config: &Config,
        origin: Origin,
        links: Box<dyn Links>,
        events: broadcast::Sender<Arc<api::Happening>>,
        change: Change,
        journal: Option<(Journal, Option<Legacy>)>,
    ) -> Self {
        let Origin { incarnation, now, seed } = origin;
        let (journal, legacy) = journal.map_or((None, None), |it| (Some(it.0), it.1));
        let first = Plan::first(config);
        let mut core = Self {
            me: config.me(),
            reborn: incarnation > 1,
            site: config.site.as_str().into(),
            members: config.members.keys().map(|name| name.as_str().into()).collect(),
            links,
            // Stamps and fences of a later life are larger than those of an earlier one.
            clock: first_clock(incarnation),
            now: now.boot,
            wall_ms: now.wall_ms,
            random: Random::new(seed),
            change,
            installed: 0,
            plan: Plan { gangs: first.gangs, root: first.root, ..Plan::default() },
            journal,
            rewrite_at: None,
            legacy,
            presented: BTreeMap::new(),
            lapsed: VecDeque::new(),
            keeping: BTreeMap::new(),
            uncopied: Vec::new(),
            uncopied_over: Vec::new(),
            stopped: false,
            engines: Vec::new(),
            pools: Vec::new(),
            pool_by_name: BTreeMap::new(),
            semaphores: Vec::new(),
            rallies: BTreeMap::new(),
            gang_ends: VecDeque::new(),
            rota: None,
            away: BTreeMap::new(),
            semaphore_by_name: BTreeMap::new(),
            takers: BTreeMap::new(),
            taker_by_claim: BTreeMap::new(),
            leaving: BTreeMap::new(),
            accounts: BTreeMap::new(),
            account_news: Vec::new(),
            adders: BTreeMap::new(),
            next_adder: 0,
            tallies: None,
            earlier: None,
            requests: FxHashMap::default(),
            by_id: HashMap::new(),
            by_claim: FxHashMap::default(),
            by_lease: FxHashMap::default(),
            ended_leases: VecDeque::new(),
            ended: VecDeque::new(),
            ended_nameless: VecDeque::new(),
            asked: Arc::default(),
            no_units: Arc::default(),
            reserved: BTreeMap::new(),
            last_reserved: 0,
            next_key: 0,
            queued: 0,
            timers: BTreeMap::new(),
            next_timer: 0,
            protocol_timers: BTreeMap::new(),
            todo: VecDeque::new(),
            outcomes: Vec::new(),
            effects: Vec::new(),
            happened: 0,
            first_event: first_clock(incarnation).time,
            listeners: Vec::new(),
            asks: BTreeMap::new(),
            tries: BTreeMap::new(),
            shares: shares::Shares::default(),
            next_ask: 0,
            history: VecDeque::new(),
            kept: None,
            historians: BTreeMap::new(),
            next_ticket: 0,
            refusals: (now.boot, 0),
            events,
            metrics: Metrics::default(),
            faults: BTreeSet::new(),
            draining: false,
            drained: false,
            departure: None,
            telling: waits::Telling::default(),
            waits: BTreeMap::new(),
            moved_ids: (now.boot, BTreeSet::new()),
            #[cfg(feature = "mutants")]
            mutant: None,
        };
        // Everything comes with the first epoch.
        for (name, pool) in &config.pools {
            let name: Arc<str> = name.as_str().into();
            core.pool_by_name.insert(Arc::clone(&name), core.pools.len());
            core.pools.push(Pool::new(name, pool.clone()));
        }
        core.expect_semaphores(&Plan::first(config));
        core.install_nothing();
        if let Some(rota) = &config.rota {
            core.expect_rota(rota);
        }
        core.watch_epochs();
        core
    }

    /// Keeps what is done with semaphores over the site's lives.
    pub fn remember(&mut self, tallies: Tallies, earlier: Option<BTreeMap<tallies::Key, Account>>) {
        (self.tallies, self.earlier) = (Some(tallies), earlier);
    }

    /// Keeps what happens for longer than the events in memory.
    pub fn keep_history(&mut self, kept: Box<dyn History>) {
        self.kept = Some(kept);
    }

    /// Handles one input and everything that follows from it. The driver reads `now` after the
    /// input has arrived: a client counts its lease from before it asked, so an earlier reading
    /// would let the client rely on the lease for longer than the site does.
    pub fn on_input(&mut self, now: Now, input: Input) {
        debug_assert!(now.boot >= self.now, "the driver's clock never goes back");
        self.now = now.boot;
        self.wall_ms = now.wall_ms;
        self.ring();
        match input {
            Input::Command(command) => self.on_command(command),
            Input::Link(event) => self.on_link(event),
            Input::News(news) => self.on_news(news),
            Input::Nothing => {}
        }
        self.tell_keepers();
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<Moment> {
        self.timers.first_key_value().map(|(key, _)| key.0)
    }

    /// Everything whose time has come. Called first on every wake-up: after a long pause nothing
    /// must be granted or renewed before what has expired is gone.
    fn ring(&mut self) {
        let Some(first) = self.next_timer() else { return };
        let now = self.now;
        if first > now {
            return;
        }
        // First of all: whether this site may do anything for anybody.
        self.check_lease(now);
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let ((_, number), timer) = entry.remove_entry();
            match timer {
                Timer::Lease(key) => self.expire(key),
                Timer::Deadline(key) => self.run_out(key),
                Timer::Watch(key) => self.answer_watcher(key, number),
                Timer::Listen => self.stop_listening(number),
                Timer::Taker(key) => self.stop_taking(key),
                Timer::Tick => self.tick(),
                Timer::Look => self.look_around(),
                Timer::Members(key) => self.look_after(key),
                Timer::Rally(name) => self.rally_again(name),
                Timer::Rota => self.sweep_rota(),
                Timer::Orphan(key) => self.give_up_orphan(key),
                Timer::Protocol(engine, timer) => {
                    self.protocol_timers.remove(&(engine, timer.clone()));
                    self.todo.push_back(Todo::Move(engine, Move::Fire { timer }));
                }
            }
            self.settle();
        }
    }

    /// Returns the memory of tables that were large and are nearly empty. A table never does so by
    /// itself.
    fn shrink(&mut self) {
        let room = |length: usize, capacity: usize| {
            (capacity > SMALL && length < capacity / 8).then_some((2 * length).max(SMALL))
        };
        macro_rules! shrink {
            ($($table:ident)*) => {
                $(if let Some(room) = room(self.$table.len(), self.$table.capacity()) {
                    self.$table.shrink_to(room);
                })*
            };
        }
        shrink!(requests by_id by_claim by_lease todo outcomes effects lapsed);
    }

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

    /// Whether a request waits here, or a unit is in a lease.
    pub fn is_busy(&self) -> bool {
        self.queued > 0 || self.pools.iter().any(|pool| !pool.used.is_empty())
    }

    fn metrics_text(&self) -> String {
        crate::metrics::text(self, &self.links.info())
    }

    pub(super) fn protocols(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.engines.iter().map(|it| (it.kind.name(), it.engine.is_at_rest()))
    }
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Where the clock of an incarnation starts.
fn first_clock(incarnation: u64) -> Clock {
    let start = incarnation.saturating_sub(1) << 32;
    Clock { time: start, fence: start }
}
