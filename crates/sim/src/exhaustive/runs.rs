//! Runs without end: those that go round forever, and those that come to rest.
//!
//! A run is fair if nothing that can always happen is always left out: every message arrives, every
//! holder gives back, every timer fires. [`Clients`] says what clients owe. A
//! fair run that goes round stays in a strongly connected part of the graph of worlds, so it is
//! enough to look at those parts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kofm_core::{Grouping, Protocol, Service, SiteId, Stamp};

use super::tables::Code;
use super::{Edge, Lasso, Search};
use crate::fairness::Clients;
use crate::trace::Step;
use crate::world::Move;

/// What happens in the end if it always can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mover<T> {
    /// A message of this link arrives: the oldest, or this one where links keep no order.
    Link(usize, u32),
    /// A client of this site asks for its demand of this number.
    Claim(usize, usize),
    /// A holder at this site gives back what it has.
    Holder(usize, Stamp),
    /// A timer of this site fires.
    Timer(usize, T),
    /// A client does what it need not do.
    Free(usize),
}

/// The steps between all worlds, to look for runs in.
pub(crate) struct Runs<'s, 'a, P: Protocol> {
    search: &'s Search<'a, P>,
    edges: &'s [Edge],
    /// Where the steps of each world begin, and the end of all.
    starts: Vec<usize>,
    clients: Clients,
}

/// A run: the world where its loop begins, and the steps of the loop; none where it rests there.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) head: u32,
    turn: Vec<usize>,
}

impl<'s, 'a, P: Protocol> Runs<'s, 'a, P> {
    /// All runs of a search that has kept its steps.
    pub(crate) fn new(search: &'s Search<'a, P>, edges: &'s [Edge], clients: Clients) -> Self {
        let worlds = search.rows.count() as usize;
        let mut starts = vec![0; worlds + 1];
        for edge in edges {
            starts[edge.from as usize + 1] += 1;
        }
        for at in 0..worlds {
            starts[at + 1] += starts[at];
        }
        Self { search, edges, starts, clients }
    }

    /// How many worlds there are.
    pub(crate) fn worlds(&self) -> u32 {
        self.search.rows.count()
    }

    /// The steps from a world, by number.
    fn from(&self, at: u32) -> std::ops::Range<usize> {
        self.starts[at as usize]..self.starts[at as usize + 1]
    }

    fn mover(&self, at: u32, code: Code) -> Mover<P::Timer> {
        let search = self.search;
        let row = search.rows.row(at);
        if let Some((link, place)) = code.delivery() {
            let queue = row[usize::from(search.cluster.sites) + link];
            let message = search.queues.items[queue as usize][place];
            return Mover::Link(link, if search.script.unordered { message } else { 0 });
        }
        let (site, number) = code.own();
        let facts = &search.facts[row[site] as usize];
        let local = &search.locals.items[row[site] as usize];
        match *facts.moves.iter().chain(&facts.alarms).nth(number).expect("it was taken") {
            Move::Claim(demand) => Mover::Claim(site, demand),
            Move::Release(i) => Mover::Holder(site, local.claims[i].claim),
            Move::Fire(timer) => Mover::Timer(site, timer),
            Move::ReleaseOne(_) | Move::Withdraw(_) | Move::Add(_) => Mover::Free(site),
        }
    }

    /// Whether this has to happen, if it always can.
    fn owed(&self, at: u32, mover: Mover<P::Timer>) -> bool {
        match mover {
            Mover::Link(..) | Mover::Holder(..) | Mover::Timer(..) => true,
            Mover::Free(_) => false,
            Mover::Claim(site, demand) => match self.clients {
                Clients::May => false,
                Clients::Come => true,
                Clients::Arrive => self.is_awaited(at, site, demand),
            },
        }
    }

    /// Whether another member of the group of this demand waits for it.
    fn is_awaited(&self, at: u32, site: usize, demand: usize) -> bool {
        let search = self.search;
        let row = search.rows.row(at);
        let own = &search.locals.items[row[site] as usize].own;
        let group = own.get(demand).and_then(|own| Grouping::named(&own.0));
        let (Some(group), Some(watch)) = (group, &search.watch) else { return false };
        let waits = |member: &SiteId| {
            search.facts[row[member.index()] as usize].waits.contains(&Some(group))
        };
        watch.grouping().members(group).iter().any(waits)
    }

    /// Everything that has to happen in the end, if it can from here on.
    fn due(&self, at: u32) -> BTreeSet<Mover<P::Timer>> {
        let movers = self.from(at).map(|i| self.mover(at, self.edges[i].code));
        movers.filter(|&mover| self.owed(at, mover)).collect()
    }

    /// From which worlds a way leads to one of those that are marked.
    pub(crate) fn leading_to(&self, mut marked: Vec<bool>) -> Vec<bool> {
        // By the world where they end.
        let mut before: Vec<u32> =
            (0..u32::try_from(self.edges.len()).expect("fewer than 2^32 steps")).collect();
        before.sort_unstable_by_key(|&i| self.edges[i as usize].to);
        let mut next: Vec<u32> = (0..self.worlds()).filter(|&at| marked[at as usize]).collect();
        while let Some(at) = next.pop() {
            let first = before.partition_point(|&i| self.edges[i as usize].to < at);
            let into = before[first..].iter().map(|&i| self.edges[i as usize]);
            for edge in into.take_while(|edge| edge.to == at) {
                if !std::mem::replace(&mut marked[edge.from as usize], true) {
                    next.push(edge.from);
                }
            }
        }
        marked
    }

    /// The worlds from which a step begins the work of a group.
    pub(crate) fn begins(&self, group: kofm_core::GroupId) -> Vec<bool> {
        let mut begins = vec![false; self.worlds() as usize];
        for edge in self.edges.iter().filter(|edge| edge.begun == Some(group)) {
            begins[edge.from as usize] = true;
        }
        begins
    }

    /// A fair run within the worlds that count, by the steps that count: the first that rests or
    /// goes round.
    pub(crate) fn fair(&self, counts: &[bool], step: impl Fn(&Edge) -> bool) -> Option<Run> {
        let rests = |&at: &u32| counts[at as usize] && self.due(at).is_empty();
        let rest = (0..self.worlds()).find(rests).map(|head| Run { head, turn: Vec::new() });
        let round = self.going_round(counts, step);
        let earlier = |a: Run, b: Run| if b.head < a.head { b } else { a };
        match (rest, round) {
            (Some(rest), Some(round)) => Some(earlier(rest, round)),
            (rest, round) => rest.or(round),
        }
    }

    /// The same, of those that go round.
    pub(crate) fn going_round(&self, counts: &[bool], step: impl Fn(&Edge) -> bool) -> Option<Run> {
        let inside =
            |edge: &Edge| counts[edge.from as usize] && counts[edge.to as usize] && step(edge);
        let component = self.components(&inside);
        let mut members: Vec<u32> = (0..self.worlds()).filter(|&at| counts[at as usize]).collect();
        members.sort_by_key(|&at| component[at as usize]);
        let same = |a: &u32, b: &u32| component[*a as usize] == component[*b as usize];
        let mut fair: Vec<&[u32]> = members.chunk_by(same).collect();
        // Each part is sorted by world, so its first one is the nearest to the start.
        fair.sort_by_key(|part| part[0]);
        fair.into_iter().find_map(|part| {
            self.turn(part, |edge| {
                inside(edge) && component[edge.from as usize] == component[edge.to as usize]
            })
        })
    }

    /// Whether any run goes round, fair or not.
    fn has_loops(&self) -> bool {
        let component = self.components(&|_| true);
        let same = |edge: &Edge| component[edge.from as usize] == component[edge.to as usize];
        self.edges.iter().any(same)
    }

    /// A fair loop through a strongly connected part, if there is one.
    fn turn(&self, part: &[u32], inside: impl Fn(&Edge) -> bool) -> Option<Run> {
        let steps = |at: u32| self.from(at).filter(|&i| inside(&self.edges[i]));
        if part.iter().all(|&at| steps(at).next().is_none()) {
            return None;
        }
        // What could always happen here has to happen here.
        let mut always = self.due(part[0]);
        for &at in &part[1..] {
            if always.is_empty() {
                break;
            }
            let due = self.due(at);
            always.retain(|mover| due.contains(mover));
        }
        let happens = |mover: &Mover<P::Timer>| {
            let mut all = part.iter().flat_map(|&at| steps(at));
            all.any(|i| self.mover(self.edges[i].from, self.edges[i].code) == *mover)
        };
        if !always.iter().all(happens) {
            return None;
        }
        let head = part[0];
        let mut open = self.due(head);
        let settles = |i: usize, mover: &Mover<P::Timer>| {
            let edge = self.edges[i];
            self.mover(edge.from, edge.code) == *mover || !self.due(edge.to).contains(mover)
        };
        let (mut turn, mut at) = (Vec::new(), head);
        while turn.is_empty() || !open.is_empty() {
            let good = |i: usize| open.is_empty() || open.iter().any(|mover| settles(i, mover));
            let way = self.way(at, &inside, good);
            open.retain(|mover| !way.iter().any(|&i| settles(i, mover)));
            at = self.edges[*way.last().expect("a way has a step")].to;
            turn.extend(way);
        }
        if at != head {
            turn.extend(self.way(at, &inside, |i| self.edges[i].to == head));
        }
        Some(Run { head, turn })
    }

    /// A shortest way whose last step is a good one; there is one in a strongly connected part.
    fn way(
        &self,
        at: u32,
        inside: impl Fn(&Edge) -> bool,
        good: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut before = BTreeMap::from([(at, None)]);
        let mut queue = VecDeque::from([at]);
        while let Some(at) = queue.pop_front() {
            for i in self.from(at).filter(|&i| inside(&self.edges[i])) {
                if good(i) {
                    let mut way = vec![i];
                    let mut back = before[&at];
                    while let Some(i) = back {
                        way.push(i);
                        back = before[&self.edges[i].from];
                    }
                    way.reverse();
                    return way;
                }
                let to = self.edges[i].to;
                before.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    Some(i)
                });
            }
        }
        unreachable!("every step of a strongly connected part can be reached in it")
    }

    /// A run as a way: the worlds before each step, the steps, and how many lead to the loop.
    fn lasso(&self, run: &Run) -> (Vec<(u32, Code)>, usize) {
        let mut way = self.search.way_to(run.head);
        let prefix = way.len();
        way.extend(run.turn.iter().map(|&i| (self.edges[i].from, self.edges[i].code)));
        (way, prefix)
    }

    /// A run with its steps.
    pub(crate) fn shown(&self, run: &Run) -> (Vec<Step<P::Message, P::Timer>>, Lasso<P>) {
        let (way, prefix) = self.lasso(run);
        let (steps, moves) = self.search.walk(&way, None);
        // The steps that woke the sites come first.
        let prefix = prefix + steps.len() - moves.len();
        (steps, Lasso { prefix, moves })
    }

    /// The number of the strongly connected component of each world, after Tarjan, without
    /// recursion.
    fn components(&self, inside: &impl Fn(&Edge) -> bool) -> Vec<u32> {
        const NEW: u32 = u32::MAX;
        let worlds = self.worlds() as usize;
        let mut order = vec![NEW; worlds];
        let mut low = vec![0u32; worlds];
        let mut component = vec![NEW; worlds];
        let (mut stack, mut path) = (Vec::new(), Vec::new());
        let (mut clock, mut number) = (0, 0);
        for root in 0..self.worlds() {
            if order[root as usize] != NEW {
                continue;
            }
            path.push((root, self.from(root).start));
            while let Some((at, next)) = path.pop() {
                let here = at as usize;
                if order[here] == NEW {
                    order[here] = clock;
                    low[here] = clock;
                    clock += 1;
                    stack.push(at);
                }
                let step = (next..self.from(at).end).find(|&i| inside(&self.edges[i]));
                if let Some(i) = step {
                    let to = self.edges[i].to;
                    path.push((at, i + 1));
                    if order[to as usize] == NEW {
                        path.push((to, self.from(to).start));
                    } else if component[to as usize] == NEW {
                        low[here] = low[here].min(order[to as usize]);
                    }
                    continue;
                }
                if low[here] == order[here] {
                    while let Some(member) = stack.pop() {
                        component[member as usize] = number;
                        if member == at {
                            break;
                        }
                    }
                    number += 1;
                }
                if let Some(&(parent, _)) = path.last() {
                    low[parent as usize] = low[parent as usize].min(low[here]);
                }
            }
        }
        component
    }
}

/// Why a run without end is wrong, and the run.
pub(super) type Endless<P> =
    (String, Vec<Step<<P as Protocol>::Message, <P as Protocol>::Timer>>, Lasso<P>);

impl<P: Protocol> Search<'_, P> {
    /// A fair run without end in which a claim waits forever, after everything was explored. Runs
    /// that rest were judged world by world.
    pub(super) fn without_end(&mut self) -> Option<Endless<P>> {
        if !P::PERPETUAL && self.returns == 0 {
            // Every step leads further from the start: no run goes round.
            return None;
        }
        if self.edges.is_none() {
            let (transitions, returns) = (self.transitions, self.returns);
            self.all_steps(u32::MAX).expect("everything was explored without a violation");
            (self.transitions, self.returns) = (transitions, returns);
        }
        let edges = self.edges.take().unwrap_or_default();
        let runs = Runs::new(self, &edges, Clients::May);
        let found = self.starving(&runs).map(|(detail, run)| {
            let (steps, lasso) = runs.shown(&run);
            (detail, steps, lasso)
        });
        self.edges = Some(edges);
        found
    }

    fn starving(&self, runs: &Runs<'_, '_, P>) -> Option<(String, Run)> {
        let sites = usize::from(self.cluster.sites);
        let waits = |&local: &u32| self.facts[local as usize].waiting;
        let rows = || (0..self.rows.count()).map(|at| &self.rows.row(at)[..sites]);
        // A claim on a semaphore may rightly wait for units that no site adds.
        if P::PERPETUAL && P::PROFILE.serves != Service::Semaphore {
            // Something always moves, so standing still is not a sign.
            let served = rows().map(|row| !row.iter().any(waits)).collect();
            let good = runs.leading_to(served);
            if good.contains(&false) {
                let bad: Vec<bool> = good.into_iter().map(|good| !good).collect();
                let run = runs.fair(&bad, |_| true)?;
                let detail =
                    "a claim waits, and whatever happens from here, some claim waits forever";
                return Some((detail.to_owned(), run));
            }
        }
        let mut stamps: Vec<Stamp> = Vec::new();
        for local in &self.locals.items {
            let waiting = local.claims.iter().filter(|client| !client.held);
            stamps.extend(waiting.map(|client| client.claim));
        }
        stamps.sort_unstable();
        stamps.dedup();
        if !runs.has_loops() {
            return None;
        }
        stamps.into_iter().find_map(|stamp| {
            let waits = |&local: &u32| {
                let claims = &self.locals.items[local as usize].claims;
                claims.iter().any(|client| client.claim == stamp && !client.held)
            };
            let counts: Vec<bool> = rows().map(|row| waits(&row[stamp.site.index()])).collect();
            let run = runs.going_round(&counts, |_| true)?;
            Some((format!("claim {stamp} waits while the others go round forever"), run))
        })
    }
}
