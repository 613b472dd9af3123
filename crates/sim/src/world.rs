//! Sites, the messages between them, and their clients: everything, as one value.
//!
//! A [`World`] can list what may happen next and let one of it happen. The exhaustive checker
//! tries everything; scripts and replays say what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, EffectsOf, GroupId, Grouping, Input, InputOf,
    PeerFault, Protocol, Service, SiteId, Stamp, Unit, step,
};

use crate::idle::Stock;
use crate::trace::Step;

/// What the clients of each site may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Claims that each site makes, by site.
    pub rounds: Vec<u32>,
    /// What a claim may ask for.
    pub demands: Vec<Demand>,
    /// Claims of one site that may be live at once.
    pub slots: usize,
    /// Whether a waiting claim may be withdrawn.
    pub withdraw: bool,
    /// Whether a holder may give back one unit at a time.
    pub partial: bool,
    /// Sites whose holders never give back anything.
    pub keepers: Vec<SiteId>,
    /// How often each site adds to a semaphore, by site; nowhere where it is empty.
    pub adds: Vec<u32>,
    /// What may be added at once.
    pub amounts: Vec<Demand>,
    /// What each site may ask for, and how often, where sites differ; each demand is live once at
    /// a time. Empty where all may ask for the same.
    pub own: Vec<Vec<(Demand, u32)>>,
    /// Whether a stamp is only a name, and one that is free is used again: for protocols whose
    /// order does not come from stamps.
    pub timeless: bool,
    /// Whether claims of the site's own are made for ever.
    pub endless: bool,
    /// When timers fire.
    pub timers: Timers,
    /// Whether any message of a link may arrive next, not only the oldest one.
    pub unordered: bool,
    /// Whether the work of a group ends for each member by itself: see
    /// [`Watch`](crate::groups::Watch).
    pub lenient: bool,
}

/// When timers fire, where they are not for what got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timers {
    /// At any time.
    Any,
    /// Only where no message is on its way: they are long.
    Quiet,
    /// Not at all: what they are for is left out.
    Never,
}

impl Script {
    /// `rounds` claims per site, one at a time, each for one of the demands.
    pub fn new(sites: u16, rounds: u32, demands: Vec<Demand>) -> Self {
        let rounds = vec![rounds; usize::from(sites)];
        Self {
            rounds,
            demands,
            slots: 1,
            withdraw: false,
            partial: false,
            keepers: Vec::new(),
            adds: Vec::new(),
            amounts: Vec::new(),
            own: Vec::new(),
            timeless: false,
            endless: false,
            timers: Timers::Any,
            unordered: false,
            lenient: false,
        }
    }

    /// Claims so that every group works `rounds` times: each process claims for itself, or for each
    /// of its groups where claims are `named`.
    pub fn of_groups(grouping: &Grouping, named: bool, rounds: u32) -> Self {
        let own = |process: SiteId| {
            let groups = grouping.of(process);
            if named {
                let claim = |group| (grouping.demand_for(process, group), rounds);
                return groups.into_iter().map(claim).collect();
            }
            let times = u32::try_from(groups.len()).expect("groups are numbered by 16 bits");
            vec![(grouping.demand(process), rounds.saturating_mul(times))]
        };
        let own = (0..grouping.processes()).map(SiteId).map(own).collect();
        Self { own, timeless: true, ..Self::new(grouping.processes(), 0, Vec::new()) }
    }

    fn demand(&self, site: SiteId, number: usize) -> &Demand {
        self.own.get(site.index()).map_or_else(|| &self.demands[number], |own| &own[number].0)
    }
}

/// Whether timers may fire as soon as they are armed.
pub(crate) fn fires_any_time<P: Protocol>(script: &Script) -> bool {
    !P::PERPETUAL && script.timers == Timers::Any
}

/// One site: the protocol, its clock and timers, and its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Local<P: Protocol> {
    /// The protocol value.
    pub protocol: P,
    /// The site's clock, without fences: nothing depends on them, so worlds that differ only there
    /// are the same.
    pub time: u64,
    /// Timers that are armed.
    pub timers: BTreeSet<P::Timer>,
    /// Claims that its clients have still to make.
    pub rounds: u32,
    /// The same for each demand that only this site makes.
    pub own: Vec<(Demand, u32)>,
    /// Whether stamps are only names.
    pub timeless: bool,
    /// Whether claims are made for ever.
    pub endless: bool,
    /// Claims that are live, oldest first.
    pub claims: Vec<Client>,
    /// Gangs that were called off: none of their members may start any more.
    pub off: Vec<Stamp>,
    /// Times that its clients have still to add to a semaphore.
    pub adds: u32,
    /// Units that its clients have added to semaphores and taken from them, by pool.
    pub balance: Vec<(u64, u64)>,
}

/// One live claim, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The claim.
    pub claim: Stamp,
    /// What it asked for.
    pub asked: Demand,
    /// What it asks for, or still holds; in a group, with the seat that it got.
    pub demand: Demand,
    /// Whether it was granted.
    pub held: bool,
}

/// What a client or a timer of one site may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move<T> {
    /// Ask for the demand of this number in the script.
    Claim(usize),
    /// Give back everything, of the live claim of this number.
    Release(usize),
    /// Give back one unit of the first pool.
    ReleaseOne(usize),
    /// Give up waiting.
    Withdraw(usize),
    /// Add the amount of this number in the script to a semaphore.
    Add(usize),
    /// A timer fires.
    Fire(T),
}

/// What may happen next in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action<T> {
    /// Something at this site.
    Local(SiteId, Move<T>),
    /// A message of this link arrives.
    Deliver {
        /// The sender.
        from: SiteId,
        /// The receiver.
        to: SiteId,
        /// Its place on the link, from the oldest; 0 on links that keep the order.
        nth: usize,
    },
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one, by its short name.
    pub property: &'static str,
    /// What was seen.
    pub detail: String,
}

impl Violation {
    /// A violation of `property`.
    pub fn new(property: &'static str, detail: impl Into<String>) -> Self {
        Self { property, detail: detail.into() }
    }

    fn refused(fault: &PeerFault) -> Self {
        Self::new("understanding", format!("a correct site's message was refused: {fault}"))
    }
}

impl<P: Protocol> Local<P> {
    /// What lies idle here and who waits, where the protocol says so.
    pub(crate) fn stock(&self) -> Option<Stock> {
        let idle = self.protocol.idle_units()?;
        let waiting = self.claims.iter().filter(|client| !client.held);
        let waiting = waiting.map(|client| (client.claim, client.demand.clone())).collect();
        Some(Stock { idle, waiting, armed: !self.timers.is_empty() })
    }

    /// A site at rest.
    pub fn new(me: SiteId, cluster: &Cluster, rounds: u32) -> Self {
        Self {
            protocol: P::new(me, cluster),
            time: 0,
            timers: BTreeSet::new(),
            rounds,
            own: Vec::new(),
            timeless: false,
            endless: false,
            claims: Vec::new(),
            off: Vec::new(),
            adds: 0,
            balance: match P::PROFILE.serves {
                Service::Pool | Service::Group | Service::Gang => Vec::new(),
                Service::Semaphore => vec![(0, 0); cluster.pools.len()],
            },
        }
    }

    /// The site as a script has it.
    pub fn scripted(me: SiteId, cluster: &Cluster, script: &Script) -> Self {
        Self {
            own: script.own.get(me.index()).cloned().unwrap_or_default(),
            timeless: script.timeless,
            endless: script.endless,
            ..Self::new(me, cluster, script.rounds[me.index()])
        }
    }

    /// What its clients and timers may do.
    pub fn moves(&self, script: &Script) -> Vec<Move<P::Timer>> {
        let mut list = Vec::new();
        for (i, (demand, left)) in self.own.iter().enumerate() {
            let live = |client: &Client| client.asked == *demand;
            if (self.endless || *left > 0) && !self.claims.iter().any(live) {
                list.push(Move::Claim(i));
            }
        }
        if self.rounds > 0 && self.claims.len() < script.slots {
            list.extend((0..script.demands.len()).map(Move::Claim));
        }
        if self.adds > 0 {
            list.extend((0..script.amounts.len()).map(Move::Add));
        }
        for (i, client) in self.claims.iter().enumerate() {
            if client.held && script.keepers.contains(&client.claim.site) {
                continue;
            }
            if client.held {
                list.push(Move::Release(i));
                let total: u32 = client.demand.parts().map(|part| part.1.0).sum();
                if script.partial && total > 1 {
                    list.push(Move::ReleaseOne(i));
                }
            } else if script.withdraw {
                list.push(Move::Withdraw(i));
            }
        }
        if fires_any_time::<P>(script) {
            list.extend(self.alarms());
        }
        list
    }

    /// Its timers that may fire. Those of a perpetual protocol are for what got lost, and fire only
    /// where nothing else can happen and somebody waits; patient ones where nothing is on its way.
    pub fn alarms(&self) -> impl Iterator<Item = Move<P::Timer>> + '_ {
        self.timers.iter().copied().map(Move::Fire)
    }

    /// The input that a move is.
    pub fn input(&self, action: Move<P::Timer>, script: &Script) -> InputOf<P> {
        match action {
            Move::Claim(i) => Input::Claim {
                claim: self.protocol.next_stamp(clock(self.time)),
                demand: script.demand(self.protocol.me(), i).clone(),
            },
            Move::Release(i) => Input::Release { claim: self.claims[i].claim, part: None },
            Move::ReleaseOne(i) => {
                let client = &self.claims[i];
                let pool = client.demand.pools().next().expect("a live claim has units");
                Input::Release { claim: client.claim, part: Some(Demand::one(pool, 1)) }
            }
            Move::Withdraw(i) => Input::Withdraw { claim: self.claims[i].claim },
            Move::Add(i) => Input::Add { demand: script.amounts[i].clone() },
            Move::Fire(timer) => Input::Fire { timer },
        }
    }

    /// Takes a step and keeps the clients' books. What it sends stays in `out`.
    pub fn apply(&mut self, input: InputOf<P>, out: &mut EffectsOf<P>) -> Result<(), Violation> {
        match &input {
            Input::Claim { claim, demand } => {
                self.rounds = self.rounds.saturating_sub(1);
                if let Some(own) = self.own.iter_mut().find(|own| own.0 == *demand && !self.endless)
                {
                    own.1 = own.1.saturating_sub(1);
                }
                // Elsewhere nobody looks at it, and worlds that differ only there are the same.
                let grouped = matches!(P::PROFILE.serves, Service::Group | Service::Gang);
                let asked = if grouped || !self.own.is_empty() {
                    demand.clone()
                } else {
                    Demand::from_iter([])
                };
                let client = Client { claim: *claim, asked, demand: demand.clone(), held: false };
                self.claims.push(client);
            }
            Input::Release { claim, part } => self.give_back(*claim, part.as_ref()),
            Input::Withdraw { claim } => {
                self.claims.retain(|client| client.claim != *claim);
                if P::PROFILE.serves == Service::Gang {
                    self.off.push(*claim);
                }
            }
            Input::Add { demand } => {
                self.adds = self.adds.saturating_sub(1);
                for (pool, units) in demand.parts() {
                    self.balance[pool.index()].0 += u64::from(units.0);
                }
            }
            Input::Deliver { .. } => {}
            Input::Fire { timer } => {
                self.timers.remove(timer);
            }
        }
        let mut now = clock(self.time);
        step(&mut self.protocol, &mut now, input, out)
            .map_err(|fault| Violation::refused(&fault))?;
        self.time = now.time;
        for effect in out.as_slice() {
            match effect {
                Effect::Grant { claim, units, .. } => self.granted(*claim, units)?,
                Effect::Reject { claim, .. } | Effect::Revoke { claim } => {
                    self.claims.retain(|c| c.claim != *claim);
                }
                Effect::Arm { timer, .. } => {
                    self.timers.insert(*timer);
                }
                Effect::Disarm { timer } => {
                    self.timers.remove(timer);
                }
                Effect::Send { .. } => {}
            }
        }
        if self.timeless {
            let taken = |time: &u64| self.claims.iter().any(|client| client.claim.time == time + 1);
            let live = self.claims.len() as u64;
            self.time = (0..=live).find(|time| !taken(time)).expect("one more than are live");
        }
        Ok(())
    }

    fn give_back(&mut self, claim: Stamp, part: Option<&Demand>) {
        if let (Some(part), Some(client)) =
            (part, self.claims.iter_mut().find(|c| c.claim == claim))
        {
            client.demand = client.demand.minus(part).expect("clients give back what they hold");
        }
        self.claims.retain(|c| c.claim != claim || (part.is_some() && !c.demand.is_empty()));
    }

    fn granted(&mut self, claim: Stamp, units: &[Unit]) -> Result<(), Violation> {
        let gang = P::PROFILE.serves == Service::Gang;
        let share =
            || units.iter().map(|unit| (unit.pool, kofm_core::Units(1))).collect::<Demand>();
        if gang && claim.site != self.protocol.me() {
            // The leader is somewhere else; this is its member's share.
            let nothing = || std::iter::empty().collect();
            let client = Client { claim, asked: nothing(), demand: share(), held: true };
            self.claims.push(client);
            return Ok(());
        }
        let waits = |client: &Client| client.claim == claim && !client.held;
        let Some(place) = self.claims.iter().position(waits) else {
            return Err(Violation::new("one grant", format!("{claim} was granted, not waiting")));
        };
        if P::PROFILE.serves == Service::Semaphore {
            // What is taken from a semaphore is taken, and the claim is over.
            for (pool, units) in self.claims.remove(place).demand.parts() {
                self.balance[pool.index()].1 += u64::from(units.0);
            }
            return Ok(());
        }
        let client = &mut self.claims[place];
        client.held = true;
        if gang && !units.is_empty() {
            client.demand = share();
        }
        if let Some(group) = begun::<P>(units) {
            let seat = (group.seats(), kofm_core::Units(1));
            let rest = client.asked.parts().filter(|part| part.0 != seat.0);
            client.demand = rest.chain([seat]).collect();
        }
        Ok(())
    }
}

/// The group whose work begins with a grant of these units.
pub(crate) fn begun<P: Protocol>(units: &[Unit]) -> Option<GroupId> {
    if P::PROFILE.serves == Service::Group { Grouping::group_of(units) } else { None }
}

/// A message on a link, with its sender's time.
pub type Envelope<M> = (u64, M);

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World<P: Protocol> {
    /// The sites.
    pub locals: Vec<Local<P>>,
    /// Messages in flight, one queue per ordered pair: sender × sites + receiver.
    pub links: Vec<VecDeque<Envelope<P::Message>>>,
}

impl<P: Protocol> World<P> {
    /// The same world, with what is on links that keep no order in an order of its own: equal
    /// worlds are equal values.
    #[must_use]
    pub fn sorted(mut self, script: &Script) -> Self {
        if script.unordered {
            self.links.iter_mut().for_each(|link| link.make_contiguous().sort_unstable());
        }
        self
    }

    /// All sites at rest, and woken one after another where they have an alarm.
    pub fn new(cluster: &Cluster, script: &Script) -> Self {
        let local = |me: SiteId| Local {
            adds: script.adds.get(me.index()).copied().unwrap_or(0),
            ..Local::scripted(me, cluster, script)
        };
        let sites = usize::from(cluster.sites);
        let mut world = Self {
            locals: cluster.all().map(local).collect(),
            links: vec![VecDeque::new(); sites * sites],
        };
        for site in cluster.all() {
            if let Some(timer) = world.locals[site.index()].protocol.alarm() {
                let woken = world.apply(site, Input::Fire { timer }, &mut Effects::default());
                woken.expect("nobody claims anything yet");
            }
        }
        world
    }

    /// What may happen next, sites first, then links, in order.
    pub fn enabled(&self, script: &Script) -> Vec<Action<P::Timer>> {
        let mut list = Vec::new();
        for (site, local) in (0..).map(SiteId).zip(&self.locals) {
            list.extend(local.moves(script).into_iter().map(|m| Action::Local(site, m)));
        }
        for (i, link) in self.links.iter().enumerate() {
            let (from, to) = ends(i, self.locals.len());
            let any = if script.unordered { link.len() } else { link.len().min(1) };
            // Of equal messages one is enough.
            let first = |&nth: &usize| !link.range(..nth).any(|other| *other == link[nth]);
            list.extend((0..any).filter(first).map(|nth| Action::Deliver { from, to, nth }));
        }
        let waits = |local: &Local<P>| local.claims.iter().any(|client| !client.held);
        let quiet = script.timers == Timers::Quiet && self.links.iter().all(VecDeque::is_empty);
        let stuck = P::PERPETUAL && list.is_empty() && self.locals.iter().any(waits);
        if quiet || stuck {
            for (site, local) in (0..).map(SiteId).zip(&self.locals) {
                list.extend(local.alarms().map(|m| Action::Local(site, m)));
            }
        }
        list
    }

    /// The site at which an action happens, and the input that it is. Takes the message off its
    /// link.
    pub fn input(&mut self, action: Action<P::Timer>, script: &Script) -> (SiteId, InputOf<P>) {
        match action {
            Action::Local(site, action) => (site, self.locals[site.index()].input(action, script)),
            Action::Deliver { from, to, nth } => {
                let link = &mut self.links[from.index() * self.locals.len() + to.index()];
                let (time, message) = link.remove(nth).expect("it is on its way");
                (to, Input::Deliver { from, clock: clock(time), message })
            }
        }
    }

    /// Lets one input happen and puts what is sent on the links. The effects stay in `out`.
    pub fn apply(
        &mut self,
        site: SiteId,
        input: InputOf<P>,
        out: &mut EffectsOf<P>,
    ) -> Result<(), Violation> {
        let sites = self.locals.len();
        self.locals[site.index()].apply(input, out)?;
        for effect in out.as_slice() {
            if let Effect::Send { to, clock, message, .. } = effect {
                let link = &mut self.links[site.index() * sites + to.index()];
                let receiver = &self.locals[to.index()];
                let time = if receiver.timeless { 0 } else { clock.time };
                link.push_back((news(time, receiver.time), message.clone()));
            }
        }
        let time = self.locals[site.index()].time;
        for link in self.links.iter_mut().skip(site.index()).step_by(sites) {
            for envelope in link {
                envelope.0 = news(envelope.0, time);
            }
        }
        Ok(())
    }
}

/// A sender's time as far as it can still matter: a receiver that is ahead of it already will be
/// when the message arrives, so then it is forgotten, and equal worlds are equal.
pub(crate) const fn news(sent: u64, receiver: u64) -> u64 {
    if sent > receiver { sent } else { 0 }
}

/// A clock without fences.
pub const fn clock(time: u64) -> Clock {
    Clock { time, fence: 0 }
}

/// The same cluster with nothing left out: clocks carry fences. A world says what happens, this
/// says what it looked like.
#[derive(Clone, Debug)]
pub struct Exact<P: Protocol> {
    sites: Vec<(P, Clock)>,
    links: Vec<VecDeque<(Clock, P::Message)>>,
    /// The true stamps of claims, by those of the world, which may use one again.
    stamps: BTreeMap<Stamp, Stamp>,
}

impl<P: Protocol> Exact<P> {
    /// All sites at rest and woken, with the steps that woke them.
    pub fn new(cluster: &Cluster) -> (Self, Vec<Step<P::Message, P::Timer>>) {
        let sites = usize::from(cluster.sites);
        let mut exact = Self {
            sites: cluster.all().map(|me| (P::new(me, cluster), Clock::default())).collect(),
            links: vec![VecDeque::new(); sites * sites],
            stamps: BTreeMap::new(),
        };
        let mut steps = Vec::new();
        for site in cluster.all() {
            if let Some(timer) = exact.sites[site.index()].0.alarm() {
                let number = steps.len() as u64 + 1;
                steps.push(exact.follow(number, site, 0, Input::Fire { timer }));
            }
        }
        (exact, steps)
    }

    /// Takes the step that a world took, and gives it back with its true clocks and effects. A
    /// message that arrives is the `nth` of its link.
    pub fn follow(
        &mut self,
        number: u64,
        site: SiteId,
        nth: usize,
        mut input: InputOf<P>,
    ) -> Step<P::Message, P::Timer> {
        let sites = self.sites.len();
        let (protocol, clock) = &mut self.sites[site.index()];
        match &mut input {
            Input::Deliver { from, clock, message } => {
                let link = &mut self.links[from.index() * sites + site.index()];
                (*clock, *message) = link.remove(nth).expect("the world delivered it");
            }
            Input::Claim { claim, .. } => {
                let stamp = protocol.next_stamp(*clock);
                self.stamps.insert(*claim, stamp);
                *claim = stamp;
            }
            Input::Release { claim, .. } | Input::Withdraw { claim } => {
                *claim = self.stamps.get(claim).copied().unwrap_or(*claim);
            }
            Input::Add { .. } | Input::Fire { .. } => {}
        }
        let mut out = Effects::default();
        // A refusal is the world's to report.
        let _refused = step(protocol, clock, input.clone(), &mut out);
        for effect in out.as_slice() {
            if let Effect::Send { to, clock, message, .. } = effect {
                let link = &mut self.links[site.index() * sites + to.index()];
                link.push_back((*clock, message.clone()));
            }
        }
        Step::new(number, None, site, input, out.drain().collect())
    }
}

/// The two ends of a link by its number.
pub(crate) fn ends(link: usize, sites: usize) -> (SiteId, SiteId) {
    let site = |i: usize| SiteId(u16::try_from(i).expect("sites fit in 16 bits"));
    (site(link / sites), site(link % sites))
}
