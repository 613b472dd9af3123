//! A world of whole site cores in one thread: virtual time, channels in memory, one atomic store.
//!
//! The cores are the ones that production runs. The world takes the place of sockets, the keeper
//! and clients, and injects faults that a seed draws. Laws are judged from what clients saw.

mod clients;
pub mod hold;
mod machine;
mod network;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use kofm_site::boottime::{Moment, Now};
use kofm_site::store as epoch_store;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use self::clients::{Character, Client, Holds};
use self::machine::{Machine, Message, Start, Stimulus};
use self::network::SharedNetwork;
use self::store::AtomicStore;

pub use kofm_site::config::{PoolConfig, Scope};
pub use kofm_site::core::Mutant;

const MILLISECOND: u64 = 1_000_000;
const SITE_LEASE: Duration = Duration::from_secs(1);

/// How long the requests of clients that are gone may take to end, one after the other.
const REST: u64 = 120_000 * MILLISECOND;

/// What a seed varies.
#[derive(Clone, Debug)]
pub struct Case {
    /// How many sites there are.
    pub sites: usize,
    /// The pools of the cluster, by name.
    pub pools: BTreeMap<String, PoolConfig>,
    /// How many clients there are.
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
pub struct Violation(pub String);

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
    /// A process that was asked to stop ends.
    End {
        site: usize,
        life: u64,
    },
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

#[derive(Debug, Default)]
struct Host {
    machine: Option<Machine>,
    /// When the world wakes it next.
    wakes: Option<u64>,
    beats: u64,
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
#[derive(Debug)]
pub struct World {
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
    commands: BTreeMap<u64, Message>,
    quiet: bool,
    inputs: u64,
    grants: u64,
    carried: u64,
    adopted: u64,
    left: u64,
    moved: u64,
    /// A hash of what clients were told.
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
    /// A cluster that starts now.
    pub fn new(case: Case, seed: u64) -> Self {
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
            left: 0,
            moved: 0,
            told: DefaultHasher::new(),
            violation: None,
            case,
        };
        for site in 0..world.case.sites {
            let rate = world.rate();
            let host = Host { rate, ..Host::default() };
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

    /// Starts a process at a host.
    fn start(&mut self, site: usize) {
        let incarnation = self.network.lock().expect("one thread").next_life(site);
        let mut seed = [0; 32];
        self.random.fill_bytes(&mut seed);
        let start = Start {
            number: site,
            sites: self.case.sites,
            pools: &self.case.pools,
            site_lease: SITE_LEASE,
            incarnation,
            now: self.now(site),
            seed,
            mutant: self.case.mutant,
        };
        let machine = Machine::start(&start, &self.network);
        let host = &mut self.hosts[site];
        host.process += 1;
        (host.machine, host.wakes, host.beats) = (Some(machine), None, 0);
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

    fn input(&mut self, site: usize, stimulus: Stimulus) {
        let now = self.now(site);
        let Some(machine) = &mut self.hosts[site].machine else { return };
        machine.handle(now, stimulus);
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
        let host = &mut self.hosts[site];
        let Some(machine) = &mut host.machine else { return };
        let next = machine.next_timer().map(|it| moment_of(it.nanos(), rate).max(time));
        let wake = next.filter(|&next| host.wakes.is_none_or(|armed| next < armed));
        if wake.is_some() {
            host.wakes = wake;
        }
        let beat = machine.has_news();
        let offered = machine.proposal();
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
    fn later(&mut self, delay: u64, site: usize, message: Message) {
        let (number, process) = (self.next_event, self.hosts[site].process);
        self.commands.insert(number, message);
        self.at(delay, Step::Command { site, process, number });
    }

    /// A site hears of a connection now, or when it wakes up.
    fn tell(&mut self, site: usize, news: LinkNews) {
        let process = self.hosts[site].process;
        self.at(0, Step::Link { site, process, news });
    }

    /// Runs until the faults are over, then heals everything and demands service from every site.
    pub fn run(mut self) -> Result<Outcome, Violation> {
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
        let (carried, adopted, left, moved) = (self.carried, self.adopted, self.left, self.moved);
        let told = self.told.finish();
        Ok(Outcome { inputs, grants, carried, adopted, left, moved, told })
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
            | Step::End { .. }
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
                self.hosts[site].wakes = None;
                self.input(site, Stimulus::Time);
            }
            Step::Deliver { from, to, channel } => {
                let payload = self.network.lock().expect("one thread").take(from, to, channel);
                if let Some(payload) = payload {
                    let list = vec![payload];
                    self.input(to, Stimulus::Messages { from, list });
                }
            }
            Step::Connect(a, b) => self.connect(a, b),
            Step::Link { site, process, news } => {
                if self.hosts[site].process == process {
                    let stimulus = match news {
                        LinkNews::Up(peer) => Stimulus::Up(peer),
                        LinkNews::Down(peer) => Stimulus::Down(peer),
                        LinkNews::Reset { peer, old, new } => Stimulus::Reset { peer, old, new },
                    };
                    self.input(site, stimulus);
                }
            }
            Step::Command { site, process, number } => {
                // A command to a process that is gone is dropped, and its client hears of that.
                let command = self.commands.remove(&number);
                if let Some(command) = command.filter(|_| self.hosts[site].process == process) {
                    self.input(site, Stimulus::Call(command));
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
            Step::End { site, life } => {
                if self.hosts[site].process == life && self.hosts[site].machine.is_some() {
                    self.input(site, Stimulus::Farewell);
                    let machine = self.hosts[site].machine.as_ref();
                    self.left += u64::from(machine.is_some_and(|it| it.view().left));
                    self.kill(site);
                    let delay = self.below(1500 * MILLISECOND);
                    self.at(delay, Step::Start(site));
                }
            }
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
        let host = &mut self.hosts[site];
        let Some(machine) = &mut host.machine else { return };
        // One heartbeat is under way at a time.
        if host.beats % 2 == 1 {
            return;
        }
        host.beats += 1;
        let standing = machine.standing();
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
        let host = &mut self.hosts[site];
        if host.machine.is_none() {
            return;
        }
        host.beats += host.beats % 2;
        let stimulus = match news {
            StoreNews::Steady { began, pulses } => Stimulus::Beat { began, pulses },
            StoreNews::Decided(record) => Stimulus::Decided(record),
            StoreNews::Trouble => Stimulus::Trouble("no voter answers"),
        };
        self.input(site, stimulus);
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
                    self.input(site, Stimulus::Drain);
                    let life = self.hosts[site].process;
                    let delay = self.below(400 * MILLISECOND);
                    self.at(delay, Step::End { site, life });
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
                self.clients[client].look_elsewhere(site, self.case.sites);
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
        self.hosts.iter().filter_map(|host| host.machine.as_ref()).any(Machine::is_busy)
    }

    /// Every site may grant again, and its books are empty.
    fn check_rest(&self) -> Result<(), Violation> {
        for (number, host) in self.hosts.iter().enumerate() {
            let machine =
                host.machine.as_ref().ok_or_else(|| fail(format!("s{number} is dead")))?;
            let view = machine.view();
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

fn fail(text: String) -> Violation {
    Violation(text)
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Inputs that cores have handled.
    pub inputs: u64,
    /// Grants of which clients were told.
    pub grants: u64,
    /// Renewals of leases that an earlier incarnation had granted.
    pub carried: u64,
    /// Renewals at another site than the last one.
    pub adopted: u64,
    /// Sites that left the epoch before they stopped.
    pub left: u64,
    /// Requests that their clients found again at another site.
    pub moved: u64,
    /// A hash of every answer that a client got, in order.
    pub told: u64,
}
