//! The controller of `tree` from every configuration.
//!
//! Whether `tree` heals rests on its controller: once a single one goes round, its count is right,
//! and so is what the root makes of it. Where the controller goes depends on colours only: the
//! colour of each site, the channel from which it expects the controller, and the colours of the
//! controllers on the links. So all configurations of these can be tried, up to turning the
//! colours, which changes nothing. A test compares every step with that of the protocol itself.
//!
//! A run is fair if a message that can always arrive does. The timeout is long: it comes when no
//! controller is left on any link.

mod steps;

use std::collections::VecDeque;

use hashbrown::HashMap;
use kofm_core::protocols::tree::Tree;
use kofm_core::{Cluster, Protocol, SiteId};
use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};

pub use self::steps::{Controller, Step, replay, steps};

/// The most configurations to begin with.
pub const MOST_STARTS: u64 = 4_000_000;

/// How large the system is.
#[derive(Clone, Debug)]
pub struct System {
    /// The cluster, with the network whose tree the controller goes round.
    pub cluster: Cluster,
    /// How many colours circulations have.
    pub colours: u64,
    /// Controllers on each link to begin with, at most.
    pub stale: u32,
    /// By site, its channels: the parent's, then the children's.
    channels: Vec<Vec<SiteId>>,
    /// The links of the tree.
    links: Vec<(SiteId, SiteId)>,
    /// Bits of a colour, and of the number of controllers on a link.
    bits: (u32, u32),
}

/// One configuration. The first site is the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// By site, its colour and the channel from which the controller comes back.
    pub sites: Vec<(u64, usize)>,
    /// By link of the tree, the colours of the controllers on it, the oldest first.
    pub links: Vec<VecDeque<u64>>,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The oldest controller of this link arrives.
    Arrives(usize),
    /// The root has waited long enough, and nothing is on any link.
    TimesOut,
}

/// A run that never comes to a single controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// How many colours there are.
    pub colours: u64,
    /// Where it begins.
    pub from: Configuration,
    /// Steps before the loop.
    pub prefix: usize,
    /// What happens.
    pub events: Vec<Event>,
}

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Found {
    /// Configurations to begin with, up to turning the colours.
    pub starts: u64,
    /// Configurations that come of them.
    pub states: u64,
    /// Those in which a single controller goes round as it should.
    pub right: u64,
    /// A fair run that never comes there.
    pub lasso: Option<Start>,
}

/// Why a system is not explored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// The number of configurations to begin with.
    Starts(u128),
    /// A configuration does not fit in the memory of one.
    Bits,
}

impl System {
    /// The system, if it can be explored.
    pub fn new(cluster: &Cluster, colours: u64, stale: u32) -> Result<Self, TooLarge> {
        let mut system = Self::shaped(cluster, colours, stale);
        let most = (u128::from(stale) * system.links.len() as u128).max(1);
        let bits = |n: u128| u128::BITS - n.leading_zeros();
        system.bits = (bits(u128::from(colours) - 1), bits(most));
        let sites = system.channels.len() as u128;
        let used = 1
            + sites * 4
            + (sites - 1 + most) * u128::from(system.bits.0)
            + system.links.len() as u128 * u128::from(system.bits.1);
        if used > 128 || system.channels.iter().any(|list| list.len() > 15) {
            return Err(TooLarge::Bits);
        }
        match system.starts() {
            starts if starts > MOST_STARTS.into() => Err(TooLarge::Starts(starts)),
            _ => Ok(system),
        }
    }

    /// The system, as large as it may be.
    pub(crate) fn shaped(cluster: &Cluster, colours: u64, stale: u32) -> Self {
        let channels = |me| Tree::<Controller>::new(me, cluster).channels().to_vec();
        let channels: Vec<Vec<SiteId>> = cluster.all().map(channels).collect();
        let from = |site: SiteId| channels[site.index()].iter().map(move |&to| (site, to));
        let links = cluster.all().flat_map(from).collect();
        Self { cluster: cluster.clone(), colours, stale, channels, links, bits: (0, 0) }
    }

    /// The paper's number of colours, for this number of stale controllers on each link.
    pub fn papers_colours(sites: u16, stale: u32) -> u64 {
        2 * (u64::from(sites).max(2) - 1) * (u64::from(stale) + 1)
    }

    fn starts(&self) -> u128 {
        let colours = u128::from(self.colours);
        let power = |exponent: u32| colours.saturating_pow(exponent);
        let on_link: u128 = (0..=self.stale).fold(0, |sum, i| sum.saturating_add(power(i)));
        let nexts: u128 = self.channels.iter().map(|list| list.len() as u128).product();
        let others = u32::try_from(self.channels.len()).expect("few sites") - 1;
        let links = u32::try_from(self.links.len()).expect("few links");
        on_link.saturating_pow(links).saturating_mul(power(others)).saturating_mul(nexts)
    }

    /// The link from one site to another.
    fn link(&self, from: SiteId, to: SiteId) -> usize {
        let link = self.links.iter().position(|&link| link == (from, to));
        link.expect("channels are links of the tree")
    }

    /// What can happen.
    fn events(at: &Configuration) -> Vec<Event> {
        let full = (0..at.links.len()).filter(|&link| !at.links[link].is_empty());
        let mut events: Vec<Event> = full.map(Event::Arrives).collect();
        if events.is_empty() {
            events.push(Event::TimesOut);
        }
        events
    }

    /// The configuration after an event.
    fn after(&self, at: &Configuration, event: Event) -> Configuration {
        let mut next = at.clone();
        let (site, goes_on) = match event {
            Event::TimesOut => (0, true),
            Event::Arrives(link) => {
                let (from, to) = self.links[link];
                let colour = next.links[link].pop_front().expect("only full links deliver");
                let channels = &self.channels[to.index()];
                let from = channels.iter().position(|&one| one == from).expect("a channel");
                let (own, expects) = &mut next.sites[to.index()];
                let awaited = from == *expects && colour == *own;
                let on = (*expects + 1) % channels.len();
                let goes_on = if to == SiteId(0) {
                    if awaited {
                        *expects = on;
                        *own = (*own + u64::from(on == 0)) % self.colours;
                    }
                    awaited
                } else if awaited && *expects != 0 {
                    *expects = on;
                    true
                } else {
                    if from == 0 && colour != *own {
                        (*own, *expects) = (colour, 1 % channels.len());
                    }
                    from == 0
                };
                (to.index(), goes_on)
            }
        };
        if goes_on {
            let (colour, expects) = next.sites[site];
            let me = SiteId(u16::try_from(site).expect("few sites"));
            let link = self.link(me, self.channels[site][expects]);
            next.links[link].push_back(colour);
        }
        next
    }

    /// The same with the colours turned so that the root has the first.
    fn turned(&self, mut at: Configuration) -> Configuration {
        let root = at.sites[0].0;
        let turned = |colour: u64| (colour % self.colours + self.colours - root) % self.colours;
        at.sites.iter_mut().for_each(|site| site.0 = turned(site.0));
        at.links.iter_mut().flatten().for_each(|colour| *colour = turned(*colour));
        at
    }

    /// That in bits.
    fn key(&self, at: &Configuration) -> u128 {
        let at = self.turned(at.clone());
        let mut key = 1u128;
        for &(_, expects) in &at.sites {
            key = key << 4 | expects as u128;
        }
        for &(colour, _) in &at.sites[1..] {
            key = key << self.bits.0 | u128::from(colour);
        }
        for link in &at.links {
            key = key << self.bits.1 | link.len() as u128;
            for &colour in link {
                key = key << self.bits.0 | u128::from(colour);
            }
        }
        key
    }

    /// The configuration behind some bits, with the first colour at the root.
    fn unpacked(&self, key: u128) -> Configuration {
        let mut left = u128::BITS - key.leading_zeros() - 1;
        let mut take = |bits: u32| {
            left -= bits;
            u64::try_from(key >> left & ((1 << bits) - 1)).expect("fields are short")
        };
        let mut sites: Vec<(u64, usize)> =
            self.channels.iter().map(|_| (0, usize::try_from(take(4)).expect("small"))).collect();
        for site in &mut sites[1..] {
            site.0 = take(self.bits.0);
        }
        let link = |_| {
            let length = take(self.bits.1);
            (0..length).map(|_| take(self.bits.0)).collect()
        };
        Configuration { sites, links: self.links.iter().map(link).collect() }
    }

    /// All configurations to begin with: by their number, as digits of different sizes.
    fn start(&self, mut number: u64) -> Configuration {
        let mut digit = |size: u64| {
            let digit = number % size;
            number /= size;
            digit
        };
        let sites = self.channels.iter().enumerate().map(|(i, channels)| {
            let colour = if i == 0 { 0 } else { digit(self.colours) };
            let expects = digit(channels.len() as u64);
            (colour, usize::try_from(expects).expect("few channels"))
        });
        let sites = sites.collect();
        let on_link: u64 = (0..=self.stale).map(|i| self.colours.pow(i)).sum();
        let links = self.links.iter().map(|_| {
            let mut number = digit(on_link);
            let mut length = 0;
            while number >= self.colours.pow(length) {
                number -= self.colours.pow(length);
                length += 1;
            }
            let colour = |_| {
                let colour = number % self.colours;
                number /= self.colours;
                colour
            };
            (0..length).map(colour).collect()
        });
        Configuration { sites, links: links.collect() }
    }

    /// The configurations that a right start leads to: one controller, which every site takes for
    /// the true one when it comes.
    fn right(&self) -> HashMap<u128, (), FxBuildHasher> {
        let colours = |i: usize| if i == 0 { 0 } else { self.colours - 1 };
        let sites = (0..self.channels.len()).map(|i| (colours(i), 0)).collect();
        let mut links = vec![VecDeque::new(); self.links.len()];
        links[self.link(SiteId(0), self.channels[0][0])].push_back(0);
        let mut seen = HashMap::default();
        let mut next = vec![Configuration { sites, links }];
        while let Some(at) = next.pop() {
            if seen.insert(self.key(&at), ()).is_none() {
                next.extend(Self::events(&at).into_iter().map(|event| self.after(&at, event)));
            }
        }
        seen
    }

    /// Tries all; `seen` hears from time to time how many configurations there were.
    pub fn explore(&self, seen: &mut dyn FnMut(u64)) -> Found {
        let right = self.right();
        let starts = u64::try_from(self.starts()).expect("checked when it was made");
        let mut graph = Graph::default();
        for number in 0..starts {
            graph.add(self.key(&self.start(number)), None);
        }
        let mut at = 0;
        while (at as usize) < graph.keys.len() {
            let key = graph.keys[at as usize];
            graph.right.push(right.contains_key(&key));
            graph.starts.push(graph.steps.len());
            if !graph.right[at as usize] {
                let from = self.unpacked(key);
                for event in Self::events(&from) {
                    let next = self.after(&from, event);
                    let to = graph.add(self.key(&next), Some((at, event)));
                    graph.steps.push((to, event));
                }
            }
            at += 1;
            if at.is_multiple_of(0x4_0000) {
                seen(at.into());
            }
        }
        graph.starts.push(graph.steps.len());
        let lasso = graph.going_round().map(|(head, turn)| {
            let (from, mut events) = graph.way_to(head);
            let prefix = events.len();
            events.extend(turn);
            let from = self.unpacked(graph.keys[from as usize]);
            Start { colours: self.colours, from, prefix, events }
        });
        let right = graph.right.iter().filter(|&&right| right).count() as u64;
        Found { starts, states: graph.keys.len() as u64, right, lasso }
    }
}

/// All configurations and the steps between them.
#[derive(Default)]
struct Graph {
    keys: Vec<u128>,
    /// By configuration, from which one it was first reached, and how.
    origins: Vec<Option<(u32, Event)>>,
    /// By configuration, whether a single controller goes round as it should.
    right: Vec<bool>,
    index: HashMap<u128, u32, FxBuildHasher>,
    /// Steps in the order of where they begin, and by configuration the first of its steps.
    steps: Vec<(u32, Event)>,
    starts: Vec<usize>,
}

impl Graph {
    fn add(&mut self, key: u128, origin: Option<(u32, Event)>) -> u32 {
        let new = u32::try_from(self.keys.len()).expect("fewer than 2^32 configurations");
        let at = *self.index.entry(key).or_insert(new);
        if at == new {
            self.keys.push(key);
            self.origins.push(origin);
        }
        at
    }

    fn way_to(&self, head: u32) -> (u32, Vec<Event>) {
        let (mut at, mut events) = (head, Vec::new());
        while let Some((before, event)) = self.origins[at as usize] {
            events.push(event);
            at = before;
        }
        events.reverse();
        (at, events)
    }

    fn from(&self, at: u32) -> &[(u32, Event)] {
        &self.steps[self.starts[at as usize]..self.starts[at as usize + 1]]
    }

    /// What can happen next: all of it has to, if it always can.
    fn due(&self, at: u32) -> Vec<Event> {
        self.from(at).iter().map(|step| step.1).collect()
    }

    /// A fair loop outside the right configurations: where it begins, and what happens in it.
    fn going_round(&self) -> Option<(u32, Vec<Event>)> {
        let component = self.components();
        let same = |a: &u32, b: &u32| component[*a as usize] == component[*b as usize];
        let all = 0..u32::try_from(self.keys.len()).expect("checked when added");
        let mut order: Vec<u32> = all.filter(|&at| !self.right[at as usize]).collect();
        order.sort_by_key(|&at| component[at as usize]);
        let mut parts: Vec<&[u32]> = order.chunk_by(same).collect();
        parts.sort_by_key(|part| part[0]);
        parts.into_iter().find_map(|part| self.turn(part, &component))
    }

    fn turn(&self, part: &[u32], component: &[u32]) -> Option<(u32, Vec<Event>)> {
        let number = component[part[0] as usize];
        let inside =
            |at: u32| self.from(at).iter().filter(move |step| component[step.0 as usize] == number);
        if part.iter().all(|&at| inside(at).next().is_none()) {
            return None;
        }
        let mut always = self.due(part[0]);
        for &at in &part[1..] {
            let here = self.due(at);
            always.retain(|event| here.contains(event));
        }
        let happens =
            |event: &Event| part.iter().any(|&at| inside(at).any(|step| step.1 == *event));
        if !always.iter().all(happens) {
            return None;
        }
        let head = part[0];
        let mut open = self.due(head);
        let (mut at, mut turn) = (head, Vec::new());
        let settles = |event: &Event, step: (u32, Event)| {
            *event == step.1 || !self.due(step.0).contains(event)
        };
        while turn.is_empty() || !open.is_empty() {
            let good = |step| open.is_empty() || open.iter().any(|event| settles(event, step));
            let way = self.way(at, component, good);
            for &step in &way {
                open.retain(|event| !settles(event, step));
                at = step.0;
                turn.push(step.1);
            }
        }
        if at != head {
            let way = self.way(at, component, |step| step.0 == head);
            turn.extend(way.into_iter().map(|step| step.1));
        }
        Some((head, turn))
    }

    /// A shortest way inside a part whose last step is a good one.
    fn way(
        &self,
        start: u32,
        component: &[u32],
        good: impl Fn((u32, Event)) -> bool,
    ) -> Vec<(u32, Event)> {
        let mut before: HashMap<u32, Option<(u32, Event)>, FxBuildHasher> = HashMap::default();
        before.insert(start, None);
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for &(to, event) in self.from(at) {
                if component[to as usize] != component[at as usize] {
                    continue;
                }
                if good((to, event)) {
                    let mut way = vec![(to, event)];
                    let mut back = at;
                    while let Some((earlier, event)) = before[&back] {
                        way.push((back, event));
                        back = earlier;
                    }
                    way.reverse();
                    return way;
                }
                before.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    Some((at, event))
                });
            }
        }
        unreachable!("every step of a strongly connected part can be reached in it")
    }

    /// Strongly connected components of what is not right, after Tarjan, without recursion.
    fn components(&self) -> Vec<u32> {
        const NEW: u32 = u32::MAX;
        let count = self.keys.len();
        let (mut order, mut low) = (vec![NEW; count], vec![0u32; count]);
        let mut component = vec![NEW; count];
        let (mut stack, mut path) = (Vec::new(), Vec::new());
        let (mut clock, mut number) = (0, 0);
        for root in (0..count).filter(|&at| !self.right[at]) {
            if order[root] != NEW {
                continue;
            }
            path.push((root, self.starts[root]));
            while let Some((at, step)) = path.pop() {
                if order[at] == NEW {
                    (order[at], low[at]) = (clock, clock);
                    clock += 1;
                    stack.push(at);
                }
                let wrong = |&i: &usize| !self.right[self.steps[i].0 as usize];
                if let Some(i) = (step..self.starts[at + 1]).find(wrong) {
                    let to = self.steps[i].0 as usize;
                    path.push((at, i + 1));
                    if order[to] == NEW {
                        path.push((to, self.starts[to]));
                    } else if component[to] == NEW {
                        low[at] = low[at].min(order[to]);
                    }
                    continue;
                }
                if low[at] == order[at] {
                    while let Some(member) = stack.pop() {
                        component[member] = number;
                        if member == at {
                            break;
                        }
                    }
                    number += 1;
                }
                if let Some(&(parent, _)) = path.last() {
                    low[parent] = low[parent].min(low[at]);
                }
            }
        }
        component
    }
}
