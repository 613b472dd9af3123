//! Every interleaving, breadth first.
//!
//! Worlds are many, sites and queues in them are few: the same site stands in thousands of worlds.
//! So each distinct site, message and queue is kept once, under a number, and a world is a short
//! row of numbers. Rows are compared exactly; nothing rests on a hash. A site's step on an input is
//! taken once and remembered, so the protocol itself runs only as often as there are distinct site
//! states, not worlds.

mod judge;
mod runs;
mod tables;
mod wide;

use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use kofm_core::parts::SiteSet;
use kofm_core::{
    Census, Cluster, Effect, Effects, EffectsOf, GroupId, Grouping, Input, PoolId, Protocol,
    Service, SiteId, Stamp,
};
use rustc_hash::FxBuildHasher;

pub(crate) use self::runs::{Run, Runs};
use self::tables::{Code, Interner, Rows};
use crate::groups::Watch;
use crate::idle::Stock;
use crate::trace::Step;
use crate::world::{
    Action, Envelope, Exact, Local, Move, Script, Timers, Violation, World, begun, clock, ends,
    fires_any_time, news,
};

/// What the checker found.
#[derive(Clone, Debug)]
pub struct Exploration<P: Protocol> {
    /// Distinct worlds seen.
    pub states: u64,
    /// Steps taken between them.
    pub transitions: u64,
    /// The longest of the shortest ways to a world.
    pub depth: u32,
    /// Whether everything within the bounds was seen.
    pub complete: bool,
    /// The first violation, with a shortest way to it; if it is of a run without end, with the way
    /// in and the loop.
    pub violation: Option<(Violation, Vec<Step<P::Message, P::Timer>>)>,
    /// Where in the steps of a run without end the loop begins, and what the run is made of.
    pub lasso: Option<Lasso<P>>,
}

/// A run without end: the way in, and the loop; without a loop the run rests.
#[derive(Clone, Debug)]
pub struct Lasso<P: Protocol> {
    /// Steps before the loop.
    pub prefix: usize,
    /// The moves behind all steps but those that wake the sites.
    pub moves: Vec<Action<P::Timer>>,
}

/// Steps and the moves behind them.
pub(crate) type Walk<P> = (
    Vec<Step<<P as Protocol>::Message, <P as Protocol>::Timer>>,
    Vec<Action<<P as Protocol>::Timer>>,
);

/// Explores everything that the script allows, up to `limit` worlds. `progress` is told from time
/// to time how many were seen. Runs that rest are judged; runs that go round are, where something
/// always moves.
pub fn explore<P: Protocol>(
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    progress: impl FnMut(u64),
) -> Exploration<P> {
    explore_runs(cluster, script, limit, P::PERPETUAL, progress)
}

/// The same; where `loops`, runs that go round are judged too. That takes up to twice the time.
pub fn explore_runs<P: Protocol>(
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    loops: bool,
    mut progress: impl FnMut(u64),
) -> Exploration<P> {
    if limit > u64::from(wide::FROM) && wide::takes::<P>(script) {
        if let Some(found) = explore_here(cluster, script, limit, loops, true, &mut progress) {
            return found;
        }
        let found = wide::explore::<P>(cluster, script, limit, &mut progress);
        // If steps lead back, the loops that they close are sought among all steps, one by one.
        if !(loops && found.returns > 0 && found.exploration.complete) {
            return found.exploration;
        }
    }
    explore_here(cluster, script, limit, loops, false, &mut progress).expect("it does not give up")
}

/// The same by one thread, which keeps every step that it needs; gives up if it `may_give_up` and
/// there are many worlds.
fn explore_here<P: Protocol>(
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    loops: bool,
    may_give_up: bool,
    progress: &mut dyn FnMut(u64),
) -> Option<Exploration<P>> {
    let mut search = Search::<P>::new(cluster, script);
    search.limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let (mut depth, mut at) = (0, 0);
    while at < search.rows.count() {
        if at == search.level_end {
            depth += 1;
            search.level_end = search.rows.count();
            if may_give_up && search.level_end > wide::FROM {
                return None;
            }
        }
        if let Err((violation, code)) = search.expand(at) {
            let (steps, moves) = search.walk(&search.way_to(at), Some((at, code)));
            let rests = violation.property == "progress";
            let lasso = rests.then_some(Lasso { prefix: steps.len(), moves });
            return Some(search.report(depth + 1, false, Some((violation, steps)), lasso));
        }
        at += 1;
        if search.full {
            return Some(search.report(depth, false, None, None));
        }
        if at % 0x4_0000 == 0 {
            progress(u64::from(search.rows.count()));
        }
    }
    // Of groups it is judged which work again and again: see `fairness`.
    let loops = loops && P::PROFILE.serves != Service::Group;
    if let Some((detail, steps, lasso)) = loops.then(|| search.without_end()).flatten() {
        let violation = Violation::new("progress", detail);
        return Some(search.report(depth, true, Some((violation, steps)), Some(lasso)));
    }
    Some(search.report(depth, true, None, None))
}

/// What is asked of a site state again and again.
struct Facts<T> {
    /// What it may do; timers that are patient stand apart, behind them.
    moves: Vec<Move<T>>,
    alarms: Vec<Move<T>>,
    held: Vec<u64>,
    census: Census,
    live: bool,
    waiting: bool,
    /// Whether somebody here will move whatever others do: a holder or a timer.
    stirring: bool,
    at_rest: bool,
    /// By semaphore: units added and taken here, and the claim of this site whose turn it is.
    balance: Vec<(u64, u64)>,
    heads: Vec<Option<Turn>>,
    /// Whether a client may still claim.
    claims: bool,
    /// The groups that its process works for, and those it waits for: any where there is none.
    works: Vec<GroupId>,
    waits: Vec<Option<GroupId>>,
    /// What lies idle here, where the protocol says so.
    stock: Option<Stock>,
    /// Gangs of other sites that it has started for, and own ones that have not started.
    started: Vec<Stamp>,
    unstarted: Vec<Stamp>,
}

/// A claim whose turn it is at a semaphore.
struct Turn {
    units: u64,
    taken: Option<i64>,
}

/// What a step comes to.
#[derive(Clone)]
struct Outcome {
    local: u32,
    sends: Arc<[(u16, u32)]>,
    /// The groups whose work begins here.
    begun: Arc<[GroupId]>,
}

/// A step between two worlds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: u32,
    pub(crate) to: u32,
    code: Code,
    /// The group whose work began.
    pub(crate) begun: Option<GroupId>,
}

pub(crate) struct Search<'a, P: Protocol> {
    cluster: &'a Cluster,
    script: &'a Script,
    locals: Interner<Local<P>>,
    facts: Vec<Facts<P::Timer>>,
    envelopes: Interner<Envelope<P::Message>>,
    queues: Interner<Box<[u32]>>,
    /// Queue and message, with the message at the end.
    pushed: HashMap<(u32, u32), u32, FxBuildHasher>,
    /// Queue, without its message of this place.
    popped: HashMap<(u32, u32), u32, FxBuildHasher>,
    /// Queue and time of its receiver, with the times in it that say nothing new forgotten.
    settled: HashMap<(u32, u64), u32, FxBuildHasher>,
    /// Site state and input, with what comes of it.
    steps: HashMap<(u32, u64), Result<Outcome, Violation>, FxBuildHasher>,
    /// The two ends of each link, by its place in a row.
    links: Vec<(SiteId, SiteId)>,
    rows: Rows,
    /// No more worlds than this are kept, and whether there was one more.
    limit: u32,
    full: bool,
    transitions: u64,
    /// The first row that is one step further from the start than the one that is expanded.
    level_end: u32,
    /// Steps that lead no further from the start: without one there is no loop.
    returns: u64,
    /// Tokens of each kind that there should be.
    expected: Vec<u32>,
    /// Whether there are from the start, and so for ever.
    closed: bool,
    scratch: Vec<u32>,
    out: EffectsOf<P>,
    /// Judges groups, where the protocol serves them; the members that have begun stand last in a
    /// row, as a number of this list.
    watch: Option<Watch>,
    begun: Interner<Vec<SiteSet>>,
    /// All steps, by the row where they begin: for perpetual protocols, and where loops are sought.
    pub(crate) edges: Option<Vec<Edge>>,
}

impl<'a, P: Protocol> Search<'a, P> {
    pub(crate) fn new(cluster: &'a Cluster, script: &'a Script) -> Self {
        let mut search = Self::bare(cluster, script);
        let empty = search.queues.number(Box::new([]));
        assert_eq!(empty, EMPTY, "the empty queue has the first number");
        let row = search.first_row();
        search.rows.add(&row, (0, Code(0)));
        search
    }

    /// Without any world, and without the empty queue.
    fn bare(cluster: &'a Cluster, script: &'a Script) -> Self {
        let pairs = |from: SiteId| cluster.others(from).map(move |to| (from, to));
        let links: Vec<_> = cluster.all().flat_map(pairs).collect();
        let watch = (P::PROFILE.serves == Service::Group).then(|| {
            let grouping = cluster.grouping().expect("checked by whoever made the cluster");
            Watch::new(&grouping, !script.lenient)
        });
        let width = usize::from(cluster.sites) + links.len() + usize::from(watch.is_some());
        let mut search = Self {
            cluster,
            script,
            locals: Interner::new(),
            facts: Vec::new(),
            envelopes: Interner::new(),
            queues: Interner::new(),
            pushed: HashMap::default(),
            popped: HashMap::default(),
            settled: HashMap::default(),
            steps: HashMap::default(),
            links,
            rows: Rows { width, cells: Vec::new(), index: HashTable::new(), origin: Vec::new() },
            limit: u32::MAX,
            full: false,
            transitions: 0,
            level_end: 1,
            returns: 0,
            expected: P::expected_tokens(cluster),
            closed: false,
            scratch: Vec::new(),
            out: Effects::default(),
            watch,
            begun: Interner::new(),
            edges: P::PERPETUAL.then(Vec::new),
        };
        if let Some(watch) = &search.watch {
            search.begun.number(watch.nobody());
        }
        search
    }

    /// The world at the start.
    fn first_row(&mut self) -> Vec<u32> {
        let (cluster, width) = (self.cluster, self.rows.width);
        let first = World::<P>::new(cluster, self.script);
        let mut row: Vec<u32> = first.locals.into_iter().map(|l| self.local(l)).collect();
        row.resize(width, EMPTY);
        // What was sent on waking is on its way.
        for (i, link) in first.links.into_iter().enumerate().filter(|(_, link)| !link.is_empty()) {
            let (from, to) = ends(i, usize::from(cluster.sites));
            let numbers = link.into_iter().map(|envelope| self.envelopes.number(envelope));
            let numbers: Vec<u32> = numbers.collect();
            let place = self.place(from.index(), to.index());
            row[place] = self.queue(numbers);
        }
        // A listing as printed shows what clients see of its mistakes.
        self.closed = !P::PROFILE.as_printed && self.wrong_tokens(&row).is_none();
        row
    }

    fn local(&mut self, local: Local<P>) -> u32 {
        let number = self.locals.number(local);
        self.learn_facts();
        number
    }

    /// Keeps facts of every site state that has a number.
    fn learn_facts(&mut self) {
        for local in &self.locals.items[self.facts.len()..] {
            self.facts.push(facts(local, self.cluster, self.script));
        }
    }

    /// Takes every step from a world.
    fn expand(&mut self, at: u32) -> Result<(), (Violation, Code)> {
        let sites = self.cluster.sites as usize;
        let before = self.transitions;
        for site in 0..sites {
            let local = self.rows.row(at)[site];
            for number in 0..self.facts[local as usize].moves.len() {
                let code = Code::local(site, number);
                let outcome = self.own_step(local, number).map_err(|v| (v, code))?;
                self.go(at, site, None, &outcome, code)?;
            }
        }
        for link in 0..self.links.len() {
            let queue = self.rows.row(at)[sites + link];
            let (from, to) = self.links[link];
            for nth in 0..self.deliverable(queue) {
                let items = &self.queues.items[queue as usize];
                let message = items[nth];
                // Equal messages stand side by side, and one of them is enough.
                if nth > 0 && items[nth - 1] == message {
                    continue;
                }
                let code = Code::link(link, nth);
                let local = self.rows.row(at)[to.index()];
                let outcome = self.delivery(local, from, message).map_err(|v| (v, code))?;
                self.go(at, to.index(), Some((link, nth)), &outcome, code)?;
            }
        }
        let waits = |&local: &u32| self.facts[local as usize].waiting;
        let (locals, links) = self.rows.row(at).split_at(sites);
        let stuck = self.transitions == before && locals.iter().any(waits);
        let quiet = || links[..self.links.len()].iter().all(|&queue| queue == EMPTY);
        if P::PERPETUAL && stuck || self.script.timers == Timers::Quiet && quiet() {
            self.sound_alarms(at)?;
        }
        Ok(())
    }

    /// Nothing else can happen in this world, yet somebody waits, so timers of a perpetual protocol
    /// fire; or nothing is on its way, so patient ones do.
    fn sound_alarms(&mut self, at: u32) -> Result<(), (Violation, Code)> {
        for site in 0..self.cluster.sites as usize {
            let local = self.rows.row(at)[site];
            let moves = self.facts[local as usize].moves.len();
            for alarm in 0..self.facts[local as usize].alarms.len() {
                let number = moves + alarm;
                let code = Code::local(site, number);
                let outcome = self.own_step(local, number).map_err(|v| (v, code))?;
                self.go(at, site, None, &outcome, code)?;
            }
        }
        Ok(())
    }

    /// Enters the world that a step leads to, and judges it if it is new.
    fn go(
        &mut self,
        at: u32,
        site: usize,
        link: Option<(usize, usize)>,
        outcome: &Outcome,
        code: Code,
    ) -> Result<(), (Violation, Code)> {
        let mut row = std::mem::take(&mut self.scratch);
        row.clear();
        row.extend_from_slice(self.rows.row(at));
        self.follow(&mut row, site, link, outcome);
        self.transitions += 1;
        let verdict = self.begin(&mut row, site, &outcome.begun);
        if self.rows.count() >= self.limit && !self.rows.has(&row) {
            self.full = true;
            self.scratch = row;
            return Ok(());
        }
        let (to, new) = self.rows.add(&row, (at, code));
        self.returns += u64::from(!new && to < self.level_end);
        if let Some(edges) = &mut self.edges {
            let begun = outcome.begun.first().copied();
            edges.push(Edge { from: at, to, code, begun });
        }
        let verdict = verdict.and_then(|()| if new { self.judge(&row) } else { Ok(()) });
        self.scratch = row;
        verdict.map_err(|violation| (violation, code))
    }

    /// Makes a world the one that a step leads to.
    fn follow(
        &mut self,
        row: &mut [u32],
        site: usize,
        link: Option<(usize, usize)>,
        outcome: &Outcome,
    ) {
        let sites = self.cluster.sites as usize;
        let time = self.locals.items[row[site] as usize].time;
        row[site] = outcome.local;
        if let Some((link, nth)) = link {
            row[sites + link] = self.pop(row[sites + link], nth);
        }
        for &(to, message) in outcome.sends.iter() {
            let to = usize::from(to);
            let link = self.place(site, to);
            row[link] = self.push(row[link], message);
            row[link] = self.forget_times(row[link], row[to]);
        }
        if self.locals.items[outcome.local as usize].time == time {
            return;
        }
        for from in (0..sites).filter(|&from| from != site) {
            let link = self.place(from, site);
            row[link] = self.forget_times(row[link], outcome.local);
        }
    }

    /// Notes that members have begun to work, if they may.
    fn begin(&mut self, row: &mut [u32], site: usize, groups: &[GroupId]) -> Result<(), Violation> {
        let (Some(watch), [_, ..]) = (&self.watch, groups) else { return Ok(()) };
        let last = row.len() - 1;
        let site = SiteId(u16::try_from(site).expect("sites fit in 16 bits"));
        let mut begun = self.begun.items[row[last] as usize].clone();
        let facts = |site: SiteId| &self.facts[row[site.index()] as usize];
        for &group in groups {
            let waits = |site: SiteId| {
                facts(site).waits.iter().any(|wish| wish.is_none_or(|wish| wish == group))
            };
            let works = |site: SiteId| facts(site).works.first().copied();
            watch.begin(&mut begun, site, group, waits, works)?;
        }
        row[last] = self.begun.number(begun);
        Ok(())
    }

    /// Explores everything and keeps all steps; the number of worlds, or none where there are more
    /// than `limit` or a promise was broken.
    pub(crate) fn all_steps(&mut self, limit: u32) -> Option<u32> {
        self.edges = Some(Vec::new());
        let mut at = 0;
        while at < self.rows.count() {
            self.expand(at).ok().filter(|()| self.rows.count() <= limit)?;
            at += 1;
        }
        Some(at)
    }

    /// Whether every member of a group waits for it.
    pub(crate) fn all_wait(&self, at: u32, group: GroupId) -> bool {
        let locals = &self.rows.row(at)[..usize::from(self.cluster.sites)];
        self.watch.as_ref().is_some_and(|watch| self.all_wait_in(locals, watch, group))
    }

    fn all_wait_in(&self, locals: &[u32], watch: &Watch, group: GroupId) -> bool {
        let waits = |site: &SiteId| {
            let waits = &self.facts[locals[site.index()] as usize].waits;
            waits.iter().any(|wish| wish.is_none_or(|wish| wish == group))
        };
        watch.grouping().members(group).iter().all(waits)
    }

    /// Where a link stands in a row: behind the sites, those of one sender together, without one
    /// to itself.
    const fn place(&self, from: usize, to: usize) -> usize {
        let sites = self.cluster.sites as usize;
        sites + from * (sites - 1) + if to > from { to - 1 } else { to }
    }

    fn own_step(&mut self, local: u32, number: usize) -> Result<Outcome, Violation> {
        let key = (local, number as u64);
        if let Some(outcome) = self.steps.get(&key) {
            return outcome.clone();
        }
        let facts = &self.facts[local as usize];
        let action = *facts.moves.iter().chain(&facts.alarms).nth(number).expect("it was listed");
        let before = &self.locals.items[local as usize];
        let input = before.input(action, self.script);
        self.take_step(key, input)
    }

    fn delivery(&mut self, local: u32, from: SiteId, message: u32) -> Result<Outcome, Violation> {
        let key = (local, 1 << 63 | u64::from(from.0) << 32 | u64::from(message));
        if let Some(outcome) = self.steps.get(&key) {
            return outcome.clone();
        }
        let (time, message) = self.envelopes.items[message as usize].clone();
        self.take_step(key, Input::Deliver { from, clock: clock(time), message })
    }

    fn take_step(
        &mut self,
        key: (u32, u64),
        input: Input<P::Message, P::Timer>,
    ) -> Result<Outcome, Violation> {
        let mut local = self.locals.items[key.0 as usize].clone();
        let mut out = std::mem::take(&mut self.out);
        let result = local.apply(input, &mut out).map(|()| {
            let mut sends = Vec::new();
            for effect in out.as_slice() {
                if let Effect::Send { to, clock, message, .. } = effect {
                    let time = if self.script.timeless { 0 } else { clock.time };
                    sends.push((to.0, self.envelopes.number((time, message.clone()))));
                }
            }
            let begun = out.as_slice().iter().filter_map(|effect| match effect {
                Effect::Grant { units, .. } => begun::<P>(units),
                Effect::Send { .. }
                | Effect::Reject { .. }
                | Effect::Revoke { .. }
                | Effect::Arm { .. }
                | Effect::Disarm { .. } => None,
            });
            Outcome { begun: begun.collect(), local: self.local(local), sends: sends.into() }
        });
        out.drain();
        self.out = out;
        self.steps.insert(key, result.clone());
        result
    }

    /// How many messages of a queue may arrive next: the first, or any.
    fn deliverable(&self, queue: u32) -> usize {
        let length = self.queues.items[queue as usize].len();
        if self.script.unordered { length } else { length.min(1) }
    }

    /// The number of a queue; where links keep no order, it is sorted.
    fn queue(&mut self, mut messages: Vec<u32>) -> u32 {
        if self.script.unordered {
            messages.sort_unstable();
        }
        self.queues.number(messages.into())
    }

    fn pop(&mut self, queue: u32, nth: usize) -> u32 {
        let key = (queue, u32::try_from(nth).expect("queues are short"));
        if let Some(&rest) = self.popped.get(&key) {
            return rest;
        }
        let mut rest = self.queues.items[queue as usize].to_vec();
        rest.remove(nth);
        let rest = self.queue(rest);
        self.popped.insert(key, rest);
        rest
    }

    fn push(&mut self, queue: u32, message: u32) -> u32 {
        if let Some(&longer) = self.pushed.get(&(queue, message)) {
            return longer;
        }
        let mut longer = self.queues.items[queue as usize].to_vec();
        longer.push(message);
        let longer = self.queue(longer);
        self.pushed.insert((queue, message), longer);
        longer
    }

    /// Forgets the times in a queue that say nothing new to its receiver; see [`news`].
    fn forget_times(&mut self, queue: u32, receiver: u32) -> u32 {
        if queue == EMPTY {
            return EMPTY;
        }
        let time = self.locals.items[receiver as usize].time;
        if let Some(&settled) = self.settled.get(&(queue, time)) {
            return settled;
        }
        let mut settled = self.queues.items[queue as usize].to_vec();
        for number in &mut settled {
            let (sent, message) = &self.envelopes.items[*number as usize];
            let envelope = (news(*sent, time), message.clone());
            *number = self.envelopes.number(envelope);
        }
        let settled = self.queue(settled);
        self.settled.insert((queue, time), settled);
        settled
    }

    /// A shortest way from the start to a world: the worlds before each step, and the step.
    fn way_to(&self, at: u32) -> Vec<(u32, Code)> {
        let mut way = Vec::new();
        let mut row = at;
        while row != 0 {
            let step = self.rows.origin[row as usize];
            way.push(step);
            row = step.0;
        }
        way.reverse();
        way
    }

    /// The steps of a way with their effects, behind those that wake the sites, and their moves.
    fn walk(&self, way: &[(u32, Code)], last: Option<(u32, Code)>) -> Walk<P> {
        let mut world = World::<P>::new(self.cluster, self.script);
        let (mut exact, mut steps) = Exact::<P>::new(self.cluster);
        let mut moves = Vec::new();
        for &(at, code) in way.iter().chain(&last) {
            let action = self.action(&world, at, code);
            let nth = if let Action::Deliver { nth, .. } = action { nth } else { 0 };
            let (site, input) = world.input(action, self.script);
            moves.push(action);
            steps.push(exact.follow(steps.len() as u64 + 1, site, nth, input.clone()));
            // The last step may be the violation itself.
            if world.apply(site, input, &mut Effects::default()).is_err() {
                break;
            }
        }
        (steps, moves)
    }

    fn action(&self, world: &World<P>, at: u32, code: Code) -> Action<P::Timer> {
        if let Some((link, place)) = code.delivery() {
            let (from, to) = self.links[link];
            let sites = usize::from(self.cluster.sites);
            let queue = self.rows.row(at)[sites + link];
            let message = self.queues.items[queue as usize][place];
            let envelope = &self.envelopes.items[message as usize];
            // Here messages stand in an order of their own, there in the order of sending.
            let on_link = &world.links[from.index() * sites + to.index()];
            let nth = on_link.iter().position(|other| other == envelope);
            return Action::Deliver { from, to, nth: nth.expect("both worlds are the same") };
        }
        let (site, number) = code.own();
        let local = &world.locals[site];
        let mut moves = local.moves(self.script);
        if !fires_any_time::<P>(self.script) {
            moves.extend(local.alarms());
        }
        Action::Local(local.protocol.me(), moves[number])
    }

    fn report(
        self,
        depth: u32,
        complete: bool,
        violation: Option<(Violation, Vec<Step<P::Message, P::Timer>>)>,
        lasso: Option<Lasso<P>>,
    ) -> Exploration<P> {
        let states = u64::from(self.rows.count());
        Exploration { states, transitions: self.transitions, depth, complete, violation, lasso }
    }
}

const EMPTY: u32 = 0;

fn facts<P: Protocol>(local: &Local<P>, cluster: &Cluster, script: &Script) -> Facts<P::Timer> {
    let gang = P::PROFILE.serves == Service::Gang;
    let seats = if gang { usize::from(cluster.sites) } else { 0 };
    let mut held = vec![0; cluster.pools.len() + seats];
    for client in local.claims.iter().filter(|client| client.held) {
        for (pool, units) in client.demand.parts() {
            // Seats in groups are no pool of the cluster.
            if let Some(held) = held.get_mut(pool.index()) {
                *held += u64::from(units.0);
            }
        }
    }
    let turn = |pool| {
        let head = local.protocol.head(pool)?;
        let mine = local.claims.iter().find(|client| client.claim == head.claim);
        let units = mine.map_or(0, |client| u64::from(client.demand.units(pool).0));
        Some(Turn { units, taken: head.taken })
    };
    let semaphores = (0..).map(PoolId).take(local.balance.len());
    let moves = local.moves(script);
    let group = |held| {
        let clients = local.claims.iter().filter(move |client| client.held == held);
        clients.map(|client| Grouping::named(&client.demand))
    };
    let groups = P::PROFILE.serves == Service::Group;
    let fires = fires_any_time::<P>(script);
    let alarms = if fires { Vec::new() } else { local.alarms().collect() };
    let me = local.protocol.me();
    let claims = |held| {
        let clients = local.claims.iter().filter(move |client| client.held == held && gang);
        clients.map(|client| client.claim)
    };
    let armed = script.timers != Timers::Never && !local.timers.is_empty();
    Facts {
        alarms,
        census: local.protocol.census(),
        started: claims(true).filter(|claim| claim.site != me).collect(),
        unstarted: claims(false).chain(local.off.iter().copied()).collect(),
        claims: moves.iter().any(|action| matches!(action, Move::Claim(_))),
        works: group(true).flatten().filter(|_| groups).collect(),
        waits: group(false).filter(|_| groups).collect(),
        moves,
        balance: local.balance.clone(),
        heads: semaphores.map(turn).collect(),
        held,
        live: !local.claims.is_empty(),
        waiting: local.claims.iter().any(|client| !client.held),
        stirring: local.claims.iter().any(|client| client.held) || armed,
        stock: local.stock(),
        at_rest: local.protocol.is_at_rest(),
    }
}
