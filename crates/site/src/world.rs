//! A world of whole site cores in one thread: virtual time, channels in memory, one atomic store.
//!
//! The cores are the ones that production runs. The world takes the place of sockets, the keeper
//! and clients, and injects faults that a seed draws. Laws are judged from what clients saw.

mod clients;
mod hold;
mod network;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use kofm_core::SiteId;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tokio::sync::{broadcast, mpsc, watch};

use self::clients::{Character, Client, Holds};
use self::network::{Channels, SharedNetwork};
use self::store::AtomicStore;
use crate::boottime::{Moment, Now};
use crate::config::{Config, PoolConfig};
use crate::core::{Change, Core, Doors, Mutant, Origin, View};
use crate::input::{Command, Input};
use crate::keeper::{News, Note, Standing};
use crate::links::Event;
use crate::plan::Plan;
use crate::session::Broken;
use crate::store as epoch_store;

const MILLISECOND: u64 = 1_000_000;
const SITE_LEASE: Duration = Duration::from_secs(1);

/// How long the requests of clients that are gone may take to end, one after the other.
const REST: u64 = 120_000 * MILLISECOND;

/// What a seed varies.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub sites: usize,
    pub pools: BTreeMap<String, PoolConfig>,
    pub clients: usize,
    /// Faults during the first phase.
    pub faults: usize,
    /// Virtual length of the first phase.
    pub length: Duration,
    /// How late a heartbeat can be answered.
    pub slow: Duration,
    /// A fault in every core.
    pub mutant: Option<Mutant>,
}

/// A broken law, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation(pub String);

/// What happens at a moment.
#[derive(Clone, Debug)]
enum Step {
    /// A timer of the site may be due.
    Wake(usize),
    /// The first message of a channel arrives.
    Deliver {
        from: usize,
        to: usize,
        channel: u64,
    },
    /// A connection between two sites is made.
    Connect(usize, usize),
    /// A site hears of a connection.
    Link {
        site: usize,
        process: u64,
        news: LinkNews,
    },
    /// A client's command arrives; the number finds it among those under way.
    Command {
        site: usize,
        process: u64,
        number: u64,
    },
    /// The site's heartbeat leaves it, reaches the store, and its answer arrives.
    Beat(usize),
    Answered {
        site: usize,
        life: u64,
        news: StoreNews,
    },
    /// A proposal reaches the store.
    Propose {
        site: usize,
        life: u64,
        record: epoch_store::Record,
    },
    Client(usize),
    /// A client waits no longer for a call that it sent then.
    GiveUp {
        client: usize,
        sent: u64,
    },
    Fault,
    /// A dead site starts again.
    Start(usize),
    /// A cut ends.
    Heal,
}

#[derive(Clone, Copy, Debug)]
enum LinkNews {
    Up(usize),
    Down(usize),
    Reset { peer: usize, old: u64, new: u64 },
}

#[derive(Clone, Debug)]
enum StoreNews {
    Steady { began: u64, pulses: Vec<epoch_store::Pulse> },
    Decided(epoch_store::Record),
    Trouble,
}

struct Machine {
    core: Core,
    standing: watch::Receiver<Standing>,
    proposals: mpsc::Receiver<epoch_store::Record>,
    view: watch::Receiver<View>,
    /// When the world wakes it next.
    wakes: Option<u64>,
    beats: u64,
}

struct Host {
    machine: Option<Machine>,
    /// Processes that have run here; a later one's heartbeats and proposals are told apart.
    process: u64,
    paused_until: u64,
    /// Parts per thousand that its clock runs fast.
    rate: i64,
    /// Nothing reaches it, and it reaches nothing.
    cut: bool,
    /// It reaches no other site, but the store and clients.
    apart: bool,
}

/// The world.
pub(super) struct World {
    case: Case,
    time: u64,
    queue: BTreeMap<(u64, u64), Step>,
    next_event: u64,
    random: ChaCha12Rng,
    hosts: Vec<Host>,
    network: SharedNetwork,
    store: AtomicStore,
    clients: Vec<Client>,
    holds: Holds,
    commands: BTreeMap<u64, Command>,
    quiet: bool,
    /// Inputs that cores have handled, and a hash of what clients were told.
    pub inputs: u64,
    pub grants: u64,
    /// Renewals of leases that an earlier incarnation had granted.
    pub carried: u64,
    /// Renewals at another site than the last one.
    pub adopted: u64,
    told: DefaultHasher,
    violation: Option<Violation>,
}

/// The reading of a clock that runs fast by so many parts per thousand.
fn reading(time: u64, rate: i64) -> u64 {
    let shift = i128::from(time) * i128::from(rate) / 1000;
    u64::try_from(i128::from(time) + shift).unwrap_or(0)
}

/// The first moment at which such a clock shows at least `shown`.
fn moment_of(shown: u64, rate: i64) -> u64 {
    let time = i128::from(shown) * 1000 / (1000 + i128::from(rate));
    u64::try_from(time).unwrap_or(0) + 2
}

impl World {
    pub(super) fn new(case: Case, seed: u64) -> Self {
        let mut world = Self {
            time: 1_000_000 * MILLISECOND,
            queue: BTreeMap::new(),
            next_event: 0,
            random: ChaCha12Rng::seed_from_u64(seed),
            hosts: Vec::new(),
            network: network::shared(case.sites),
            store: AtomicStore::default(),
            clients: Vec::new(),
            holds: Holds::default(),
            commands: BTreeMap::new(),
            quiet: false,
            inputs: 0,
            grants: 0,
            carried: 0,
            adopted: 0,
            told: DefaultHasher::new(),
            violation: None,
            case,
        };
        for site in 0..world.case.sites {
            let rate = world.rate();
            let host =
                Host { machine: None, process: 0, paused_until: 0, rate, cut: false, apart: false };
            world.hosts.push(host);
            world.start(site);
        }
        for number in 0..world.case.clients {
            let character = Character::draw(world.below(10));
            let rate = world.rate();
            let place = world.some_site();
            world.clients.push(Client::new(character, place, rate));
            let delay = 500 * MILLISECOND + world.below(1000 * MILLISECOND);
            world.at(delay, Step::Client(number));
        }
        for _ in 0..world.case.faults {
            let length = u64::try_from(world.case.length.as_nanos()).unwrap_or(u64::MAX);
            let delay = 800 * MILLISECOND + world.below(length);
            world.at(delay, Step::Fault);
        }
        world
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound.max(1)
    }

    /// How many parts per thousand a clock runs fast: half of them are as wrong as they may be.
    fn rate(&mut self) -> i64 {
        [-5, 5, -2, 3][usize::try_from(self.below(4)).unwrap_or(0)]
    }

    fn some_site(&mut self) -> usize {
        usize::try_from(self.below(self.case.sites as u64)).unwrap_or(0)
    }

    fn delay(&mut self) -> u64 {
        MILLISECOND / 2 + self.below(MILLISECOND)
    }

    fn at(&mut self, delay: u64, event: Step) {
        self.queue.insert((self.time + delay, self.next_event), event);
        self.next_event += 1;
    }

    fn config(&self, site: usize) -> Config {
        let members = (0..self.case.sites).map(|it| (format!("s{it}"), String::new())).collect();
        let pools = self.case.pools.clone();
        let name = format!("s{site}");
        Config { members, pools, site_lease: SITE_LEASE, ..Config::single(&name) }.with_seats()
    }

    /// Starts a process at a host.
    fn start(&mut self, site: usize) {
        let config = self.config(site);
        let incarnation = self.network.lock().expect("one thread").next_life(site);
        let note = Note { address: config.site.clone(), ..Note::default() };
        let (me, standing) = watch::channel(Standing::before_joining(incarnation, &note));
        let (offers, proposals) = mpsc::channel(4);
        let (running, view) = watch::channel(View::default());
        let doors = Doors {
            me,
            proposals: offers,
            running,
            state: None,
            joinable: false,
            wanted: None,
            sole: false,
            whole: false,
        };
        let now = self.now(site);
        let plan = Plan::first(&config);
        let change =
            Change::new(config.me(), incarnation, now.boot, plan, config.site_lease, doors);
        let mut seed = [0; 32];
        self.random.fill_bytes(&mut seed);
        let links = Box::new(Channels::new(site, Arc::clone(&self.network)));
        let events = broadcast::Sender::new(1);
        let mut core =
            Core::new(&config, Origin { incarnation, now, seed }, links, events, change, None);
        core.mutant = self.case.mutant;
        let host = &mut self.hosts[site];
        host.process += 1;
        host.machine = Some(Machine { core, standing, proposals, view, wakes: None, beats: 0 });
        self.at(0, Step::Beat(site));
        for peer in (0..self.case.sites).filter(|&peer| peer != site) {
            let delay = self.delay();
            self.at(delay, Step::Connect(site.min(peer), site.max(peer)));
        }
        self.look_at(site);
    }

    fn now(&self, site: usize) -> Now {
        let boot = Moment::from_nanos(reading(self.time, self.hosts[site].rate));
        Now { boot, wall_ms: self.time / MILLISECOND }
    }

    fn input(&mut self, site: usize, input: Input) {
        let now = self.now(site);
        let Some(machine) = &mut self.hosts[site].machine else { return };
        machine.core.on_input(now, input);
        self.inputs += 1;
        self.look_at(site);
    }

    /// Carries out what a core has done since the world last looked.
    fn look_at(&mut self, site: usize) {
        let sent = self.network.lock().expect("one thread").take_sent(site);
        for (to, channel) in sent {
            let delay = self.delay();
            self.at(delay, Step::Deliver { from: site, to, channel });
        }
        let reborn = self.network.lock().expect("one thread").take_reborn(site);
        if reborn {
            for peer in (0..self.case.sites).filter(|&peer| peer != site) {
                self.tell(peer, LinkNews::Down(site));
                let delay = self.delay();
                self.at(delay, Step::Connect(site.min(peer), site.max(peer)));
            }
        }
        let (time, rate) = (self.time, self.hosts[site].rate);
        let Some(machine) = &mut self.hosts[site].machine else { return };
        let next = machine.core.next_timer().map(|it| moment_of(it.nanos(), rate).max(time));
        let wake = next.filter(|&next| machine.wakes.is_none_or(|armed| next < armed));
        if wake.is_some() {
            machine.wakes = wake;
        }
        let beat = machine.standing.has_changed().unwrap_or(false);
        if beat {
            machine.standing.mark_unchanged();
        }
        let mut offered = None;
        while let Ok(record) = machine.proposals.try_recv() {
            offered = Some(record);
        }
        let life = self.hosts[site].process;
        if let Some(wake) = wake {
            self.at(wake - time, Step::Wake(site));
        }
        if beat {
            self.at(0, Step::Beat(site));
        }
        if let Some(record) = offered {
            let delay = self.delay();
            self.at(delay, Step::Propose { site, life, record });
        }
        self.ask_clients(site);
    }

    fn incarnation(&self, site: usize) -> u64 {
        self.network.lock().expect("one thread").life(site)
    }

    /// A command reaches a site later.
    fn later(&mut self, delay: u64, site: usize, command: Command) {
        let (number, process) = (self.next_event, self.hosts[site].process);
        self.commands.insert(number, command);
        self.at(delay, Step::Command { site, process, number });
    }

    /// A site hears of a connection now, or when it wakes up.
    fn tell(&mut self, site: usize, news: LinkNews) {
        let process = self.hosts[site].process;
        self.at(0, Step::Link { site, process, news });
    }

    /// Runs until the faults are over, then heals everything and demands service from every site.
    pub(super) fn run(mut self) -> Result<Outcome, Violation> {
        let length = u64::try_from(self.case.length.as_nanos()).unwrap_or(u64::MAX);
        self.advance(800 * MILLISECOND + length)?;
        self.heal();
        self.quiet = true;
        // Leases of clients that crashed end, departed sites' quarantines too.
        self.advance(6_000 * MILLISECOND)?;
        let end = self.time + REST;
        while self.is_busy() {
            if self.time >= end {
                return Err(fail("L3: requests and leases of clients that are gone remain".into()));
            }
            self.advance(500 * MILLISECOND)?;
        }
        self.advance(6_000 * MILLISECOND)?;
        self.check_rest()?;
        for site in 0..self.case.sites {
            self.demand_everything(site)?;
        }
        let (inputs, grants) = (self.inputs, self.grants);
        let (carried, adopted) = (self.carried, self.adopted);
        Ok(Outcome { inputs, grants, carried, adopted, told: self.told.finish() })
    }

    fn advance(&mut self, time: u64) -> Result<(), Violation> {
        let end = self.time + time;
        while let Some(entry) = self.queue.first_entry() {
            let moment = entry.key().0;
            if moment > end {
                break;
            }
            let event = entry.remove();
            self.time = self.time.max(moment);
            self.happen(event);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.time = end;
        Ok(())
    }

    /// The site that has to be awake for an event, if there is one.
    const fn actor(event: &Step) -> Option<usize> {
        match event {
            Step::Wake(site)
            | Step::Beat(site)
            | Step::Answered { site, .. }
            | Step::Link { site, .. }
            | Step::Command { site, .. }
            | Step::Deliver { to: site, .. } => Some(*site),
            Step::Connect(..)
            | Step::Propose { .. }
            | Step::Client(_)
            | Step::GiveUp { .. }
            | Step::Fault
            | Step::Start(_)
            | Step::Heal => None,
        }
    }

    fn happen(&mut self, event: Step) {
        if let Some(site) = Self::actor(&event) {
            let until = self.hosts[site].paused_until;
            if until > self.time {
                return self.at(until - self.time, event);
            }
        }
        match event {
            Step::Wake(site) => {
                if let Some(machine) = &mut self.hosts[site].machine {
                    machine.wakes = None;
                }
                self.input(site, Input::Nothing);
            }
            Step::Deliver { from, to, channel } => {
                let payload = self.network.lock().expect("one thread").take(from, to, channel);
                if let Some(payload) = payload {
                    let list = vec![payload];
                    self.input(to, Input::Link(Event::Messages { from: site_id(from), list }));
                }
            }
            Step::Connect(a, b) => self.connect(a, b),
            Step::Link { site, process, news } => {
                if self.hosts[site].process == process {
                    let event = match news {
                        LinkNews::Up(peer) => Event::Up(site_id(peer)),
                        LinkNews::Down(peer) => Event::Down(site_id(peer)),
                        LinkNews::Reset { peer, old, new } => {
                            let why = Broken::Reset { old, new };
                            Event::PeerReset { peer: site_id(peer), why }
                        }
                    };
                    self.input(site, Input::Link(event));
                }
            }
            Step::Command { site, process, number } => {
                // A command to a process that is gone is dropped, and its client hears of that.
                let command = self.commands.remove(&number);
                if let Some(command) = command.filter(|_| self.hosts[site].process == process) {
                    self.input(site, Input::Command(command));
                } else {
                    self.ask_clients(site);
                }
            }
            Step::Beat(site) => self.beat(site),
            Step::Answered { site, life, news } => self.on_news(site, life, news),
            Step::Propose { site, life, record } => {
                if self.reaches_store(site) {
                    let news = StoreNews::Decided(self.store.swap(record));
                    let delay = self.delay();
                    self.at(delay, Step::Answered { site, life, news });
                }
            }
            Step::Client(number) => self.client_acts(number),
            Step::GiveUp { client, sent } => self.client_gives_up(client, sent),
            Step::Fault => self.inject(),
            Step::Start(site) => {
                if self.hosts[site].machine.is_none() {
                    self.start(site);
                }
            }
            Step::Heal => self.heal(),
        }
    }

    /// A site reaches a majority of the voters unless it is cut off.
    fn reaches_store(&self, site: usize) -> bool {
        !self.hosts[site].cut
    }

    fn connect(&mut self, a: usize, b: usize) {
        let both = self.hosts[a].machine.is_some() && self.hosts[b].machine.is_some();
        let apart = |site: usize| self.hosts[site].cut || self.hosts[site].apart;
        if !both || apart(a) || apart(b) {
            return;
        }
        let connected = self.network.lock().expect("one thread").connect(a, b);
        let Some(connected) = connected else { return };
        for (site, peer, old, new) in connected.resets {
            self.tell(site, LinkNews::Reset { peer, old, new });
        }
        self.tell(a, LinkNews::Up(b));
        self.tell(b, LinkNews::Up(a));
        for (from, to, count) in connected.waiting {
            for _ in 0..count {
                let (delay, channel) = (self.delay(), connected.channel);
                self.at(delay, Step::Deliver { from, to, channel });
            }
        }
    }

    fn disconnect(&mut self, a: usize, b: usize) {
        if self.network.lock().expect("one thread").disconnect(a, b) {
            self.tell(a, LinkNews::Down(b));
            self.tell(b, LinkNews::Down(a));
        }
    }

    fn beat(&mut self, site: usize) {
        let began = reading(self.time, self.hosts[site].rate);
        let reaches = self.reaches_store(site);
        let life = self.hosts[site].process;
        let Some(machine) = &mut self.hosts[site].machine else { return };
        // One heartbeat is under way at a time.
        if machine.beats % 2 == 1 {
            return;
        }
        machine.beats += 1;
        let standing = machine.standing.borrow_and_update().clone();
        let news =
            if reaches { self.store.beat(site, began, &standing) } else { StoreNews::Trouble };
        let slow = self.below(4) == 0;
        let delay = match (reaches, slow) {
            (true, false) => 2 * self.delay(),
            // A voter answers late, or a majority does not answer in time.
            (true, true) => {
                let slow = if self.quiet { Duration::ZERO } else { self.case.slow };
                self.below(u64::try_from(slow.as_nanos()).unwrap_or(0))
            }
            (false, _) => 250 * MILLISECOND,
        };
        self.at(delay, Step::Answered { site, life, news });
        let pause = if standing.hurry { SITE_LEASE / 20 } else { SITE_LEASE / 5 };
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.at(delay + pause, Step::Beat(site));
    }

    fn on_news(&mut self, site: usize, life: u64, news: StoreNews) {
        if self.hosts[site].process != life {
            return;
        }
        let Some(machine) = &mut self.hosts[site].machine else { return };
        let news = match news {
            StoreNews::Steady { began, pulses } => {
                machine.beats += machine.beats % 2;
                News::Beat { began: Moment::from_nanos(began), pulses }
            }
            StoreNews::Decided(record) => {
                machine.beats += machine.beats % 2;
                News::Decided(record)
            }
            StoreNews::Trouble => {
                machine.beats += machine.beats % 2;
                News::Trouble("no voter answers".to_owned())
            }
        };
        self.input(site, Input::News(news));
    }

    fn inject(&mut self) {
        if self.quiet {
            return;
        }
        let site = self.some_site();
        let alive = self.hosts.iter().filter(|host| host.machine.is_some() && !host.cut).count();
        let majority = self.case.sites / 2 + 1;
        // A majority usually stays; now and then it does not.
        let spare = alive > majority || self.below(4) == 0;
        match self.below(9) {
            0 if spare => {
                self.kill(site);
                let delay = 100 * MILLISECOND + self.below(4000 * MILLISECOND);
                self.at(delay, Step::Start(site));
            }
            1 | 2 => {
                let time = self.below(4000 * MILLISECOND);
                self.hosts[site].paused_until = self.time + time;
            }
            3 if spare => {
                self.cut(site);
                let delay = 100 * MILLISECOND + self.below(3000 * MILLISECOND);
                self.at(delay, Step::Heal);
            }
            4 => {
                let peer = (site + 1) % self.case.sites;
                if peer != site {
                    self.disconnect(site, peer);
                    let delay = self.below(400 * MILLISECOND);
                    self.at(delay, Step::Connect(site.min(peer), site.max(peer)));
                }
            }
            5 => {
                // Its answers and its heartbeats come late, and then nothing any more.
                let time = self.below(1500 * MILLISECOND);
                self.hosts[site].paused_until = self.time + time;
                if spare {
                    self.cut(site);
                }
                let delay = time + self.below(3000 * MILLISECOND);
                self.at(delay, Step::Heal);
            }
            6 => {
                self.hosts[site].apart = true;
                self.disconnect_all(site);
                let delay = self.below(4000 * MILLISECOND);
                self.at(delay, Step::Heal);
            }
            _ => {
                // A planned stop with its queue, and a restart.
                if spare {
                    self.input(site, Input::Command(Command::Drain));
                    self.kill(site);
                    let delay = self.below(1500 * MILLISECOND);
                    self.at(delay, Step::Start(site));
                }
            }
        }
    }

    fn cut(&mut self, site: usize) {
        self.hosts[site].cut = true;
        self.disconnect_all(site);
        self.lose_calls(site);
    }

    fn disconnect_all(&mut self, site: usize) {
        for peer in (0..self.case.sites).filter(|&peer| peer != site) {
            self.disconnect(site, peer);
        }
    }

    fn kill(&mut self, site: usize) {
        self.hosts[site].machine = None;
        self.hosts[site].paused_until = 0;
        self.disconnect_all(site);
        self.network.lock().expect("one thread").forget(site);
        for client in 0..self.clients.len() {
            if self.clients[client].calls(site) {
                self.clients[client].lose_call();
                self.at(0, Step::Client(client));
            }
        }
    }

    fn heal(&mut self) {
        for site in 0..self.case.sites {
            (self.hosts[site].cut, self.hosts[site].apart) = (false, false);
            if self.quiet && self.hosts[site].machine.is_none() {
                self.start(site);
            }
        }
        for a in 0..self.case.sites {
            for b in a + 1..self.case.sites {
                let delay = self.delay();
                self.at(delay, Step::Connect(a, b));
            }
        }
    }

    /// Some site has a request that waits, or a unit in a lease.
    fn is_busy(&self) -> bool {
        let mut cores = self.hosts.iter().filter_map(|host| host.machine.as_ref());
        cores.any(|it| it.core.queued > 0 || it.core.pools.iter().any(|pool| !pool.used.is_empty()))
    }

    /// Every site may grant again, and its books are empty.
    fn check_rest(&self) -> Result<(), Violation> {
        for (number, host) in self.hosts.iter().enumerate() {
            let machine =
                host.machine.as_ref().ok_or_else(|| fail(format!("s{number} is dead")))?;
            let view = machine.view.borrow();
            if !view.granting {
                return Err(fail(format!("s{number} does not grant: {:?}", view.trouble)));
            }
        }
        let busy: BTreeSet<usize> = self.holds.holders(self.time);
        if let Some(client) = busy.first() {
            return Err(fail(format!("client {client} still holds units at rest")));
        }
        Ok(())
    }
}

fn site_id(site: usize) -> SiteId {
    SiteId(u16::try_from(site).unwrap_or(u16::MAX))
}

fn fail(text: String) -> Violation {
    Violation(text)
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outcome {
    pub inputs: u64,
    pub grants: u64,
    /// Renewals of leases that an earlier incarnation had granted.
    pub carried: u64,
    pub adopted: u64,
    /// A hash of every answer that a client got, in order.
    pub told: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(seed: u64) -> Case {
        let sites = 1 + usize::try_from(seed % 5).unwrap_or(0);
        let kinds = ["roaming", "permission", "permission-lazy", "quorum"];
        let mut pools = BTreeMap::new();
        for (number, name) in ["x", "y"].into_iter().enumerate() {
            let kind = kinds[(usize::try_from(seed / 5).unwrap_or(0) + number) % kinds.len()];
            let units = 1 + u32::try_from(seed / 7 + number as u64).unwrap_or(0) % 5;
            let protocol = kofm_core::Kind::named(kind).expect("a protocol of this name");
            pools.insert(name.to_owned(), PoolConfig { protocol, ..PoolConfig::new(units) });
        }
        let faults = usize::try_from(seed % 13).unwrap_or(0);
        let slow = Duration::from_millis(if seed.is_multiple_of(3) { 900 } else { 250 });
        let length = Duration::from_secs(20);
        Case { sites, pools, clients: 16, faults, length, slow, mutant: None }
    }

    /// Seeds that run with every test; `KOFM_SEEDS` and `KOFM_SEED` choose others.
    fn seeds() -> std::ops::Range<u64> {
        let number = |name| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
        let first = number("KOFM_SEED").unwrap_or(0);
        first..first + number("KOFM_SEEDS").unwrap_or(200)
    }

    #[test]
    fn whole_sites_keep_their_promises_under_faults() {
        let (mut inputs, mut grants, mut carried, mut adopted) = (0, 0, 0, 0);
        for seed in seeds() {
            match World::new(case(seed), seed).run() {
                Ok(outcome) => {
                    (inputs, grants) = (inputs + outcome.inputs, grants + outcome.grants);
                    carried += outcome.carried;
                    adopted += outcome.adopted;
                }
                Err(violation) => panic!("seed {seed}: {}\n{:#?}", violation.0, case(seed)),
            }
        }
        println!(
            "{inputs} inputs, {grants} grants, {carried} renewals by a later incarnation, \
             {adopted} at another site"
        );
        assert!(grants > 0, "clients were served");
        assert!(carried > 0, "a site that was left out went on with its leases");
        assert!(adopted > 0, "leases went on at other sites");
    }

    /// Each fault is found, and the number of seeds that it took is printed.
    #[test]
    fn every_mutant_is_found() {
        let mut missed = Vec::new();
        for mutant in Mutant::ALL {
            let found = (0..400).find_map(|seed| {
                let case = Case { mutant: Some(mutant), ..case(seed) };
                Some((seed, World::new(case, seed).run().err()?))
            });
            let sound = found.as_ref().map(|it| World::new(case(it.0), it.0).run());
            assert!(sound.is_none_or(|it| it.is_ok()), "{mutant:?}: the seed fails without it");
            match found {
                Some((seed, violation)) => println!("{mutant:?}: seed {seed}: {}", violation.0),
                None => missed.push(mutant),
            }
        }
        assert_eq!(missed, [], "not found within 400 seeds");
    }

    #[test]
    fn one_seed_gives_one_run() {
        for seed in 0..20 {
            let first = World::new(case(seed), seed).run();
            let second = World::new(case(seed), seed).run();
            assert_eq!(first, second, "seed {seed}");
        }
    }
}
