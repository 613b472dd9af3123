//! Every interleaving by several threads, in little memory.
//!
//! Each thread has a [`Search`] of its own, which numbers sites, messages and queues as those of
//! the other threads do. A step that one thread has taken is remembered by that thread alone.
//!
//! Worlds are kept in [`Store`]s, each world in the one that its hash names. Level after level,
//! threads take parts of the last level and write down what follows from them, each into a buffer
//! per store; then each thread enters the buffers into its own stores. The buffers are read in the
//! order in which they were written, so every world has the same place in each run, whatever the
//! number of threads: the same bounds give the same states, levels and violation.

mod store;

use std::hash::BuildHasher;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

use kofm_core::{Cluster, Effects, Protocol, Service};
use rustc_hash::FxBuildHasher;

use self::store::{Candidates, STORES, Store};
use super::tables::{Interner, Shared};
use super::{Exploration, Lasso, Outcome, Search};
use crate::trace::Step;
use crate::world::{Action, Envelope, Exact, Local, Script, Timers, Violation, World, ends};

/// Fewer worlds than this are explored by one thread.
pub(super) const FROM: u32 = 200_000;
/// Worlds that are expanded before their successors are entered.
const BATCH: usize = 1 << 16;

/// Whether this engine takes such a search: groups have more in a row, perpetual
/// protocols need all steps at the end, and patient timers look at all links at once.
pub(super) fn takes<P: Protocol>(script: &Script) -> bool {
    let patient = script.timers == Timers::Quiet;
    !P::PERPETUAL && P::PROFILE.serves != Service::Group && !patient
}

/// Steps as they are shown.
type Steps<P> = Vec<Step<<P as Protocol>::Message, <P as Protocol>::Timer>>;

/// The result.
pub(super) struct Found<P: Protocol> {
    pub(super) exploration: Exploration<P>,
    /// Steps that lead no further from the start.
    pub(super) returns: u64,
}

/// The numbers that all threads share.
struct Common<P: Protocol> {
    locals: Arc<Mutex<Shared<Local<P>>>>,
    envelopes: Arc<Mutex<Shared<Envelope<P::Message>>>>,
    queues: Arc<Mutex<Shared<Box<[u32]>>>>,
}

/// A step that breaks a promise, or the world after it.
struct Broken {
    /// Where it comes in the order of all steps.
    order: (usize, usize),
    before: u32,
    /// The world that is wrong; none where the step itself is.
    after: Option<Box<[u32]>>,
    violation: Violation,
}

/// One thread.
struct Worker<'a, P: Protocol> {
    search: Search<'a, P>,
    /// Hashes of what sites, messages and queues are, by number: the same in every run.
    locals: Vec<u64>,
    envelopes: Vec<u64>,
    queues: Vec<u64>,
    candidates: Vec<Candidates>,
    transitions: u64,
    broken: Option<Broken>,
    row: Vec<u32>,
}

pub(super) fn explore<P: Protocol>(
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    progress: &mut dyn FnMut(u64),
) -> Found<P> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(STORES);
    explore_by(threads, cluster, script, limit, progress)
}

fn explore_by<P: Protocol>(
    threads: usize,
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    progress: &mut dyn FnMut(u64),
) -> Found<P> {
    let common =
        Common { locals: Arc::default(), envelopes: Arc::default(), queues: Arc::default() };
    let mut workers: Vec<Worker<'_, P>> =
        (0..threads).map(|_| Worker::new(cluster, script, &common)).collect();
    let width = workers[0].search.rows.width;
    let mut stores: Vec<Store> = (0..STORES).map(|_| Store::new(width)).collect();
    workers[0].enter_start(&mut stores);
    let mut found = Exploration {
        states: 1,
        transitions: 0,
        depth: 0,
        complete: false,
        violation: None,
        lasso: None,
    };
    while found.violation.is_none() && found.states < limit {
        let level: Vec<(usize, Range<u32>)> =
            stores.iter_mut().map(Store::begin_level).enumerate().collect();
        let size: usize = level.iter().map(|(_, range)| range.len()).sum();
        if size == 0 {
            found.complete = true;
            found.depth -= 1;
            break;
        }
        found.depth += 1;
        let mut begin = 0;
        while begin < size && found.violation.is_none() && found.states <= limit {
            let end = size.min(begin + BATCH);
            expand(&mut workers, &stores, &level, begin..end);
            enter(&mut workers, &mut stores);
            begin = end;
            found.states = stores.iter().map(|store| u64::from(store.count())).sum();
            let broken = workers.iter_mut().filter_map(|worker| worker.broken.take());
            if let Some(broken) = broken.min_by_key(|broken| broken.order) {
                let (steps, lasso) = workers[0].shown(&stores, &broken);
                found.violation = Some((broken.violation, steps));
                found.lasso = lasso;
            }
            progress(found.states);
        }
    }
    // More were seen than asked for, a batch at most.
    found.states = found.states.min(limit);
    found.transitions = workers.iter().map(|worker| worker.transitions).sum();
    let returns = stores.iter().map(|store| store.returns).sum();
    Found { exploration: found, returns }
}

/// Lets each thread expand its part of these worlds of a level.
fn expand<P: Protocol>(
    workers: &mut [Worker<'_, P>],
    stores: &[Store],
    level: &[(usize, Range<u32>)],
    part: Range<usize>,
) {
    let share = part.len().div_ceil(workers.len()).max(1);
    thread::scope(|scope| {
        for (i, worker) in workers.iter_mut().enumerate() {
            let first = (part.start + i * share).min(part.end);
            let last = (first + share).min(part.end);
            scope.spawn(move || {
                worker.learn();
                let mut at = 0;
                for (store, range) in level {
                    let low = first.clamp(at, at + range.len()) - at;
                    let high = last.clamp(at, at + range.len()) - at;
                    for (i, slot) in range.clone().enumerate().take(high).skip(low) {
                        worker.expand(at + i, &stores[*store], store::number(*store, slot));
                    }
                    at += range.len();
                }
            });
        }
    });
}

/// Lets each thread enter what all have written down for its stores.
fn enter<P: Protocol>(workers: &mut [Worker<'_, P>], stores: &mut [Store]) {
    let all: Vec<Vec<Candidates>> =
        workers.iter_mut().map(|worker| std::mem::take(&mut worker.candidates)).collect();
    let share = stores.len().div_ceil(workers.len());
    thread::scope(|scope| {
        let parts = stores.chunks_mut(share).enumerate();
        for (worker, (i, part)) in workers.iter_mut().zip(parts) {
            let all = &all;
            scope.spawn(move || {
                worker.learn();
                for (store, number) in part.iter_mut().zip(i * share..) {
                    for written in all {
                        worker.enter(number, store, &written[number]);
                    }
                }
            });
        }
    });
    for (worker, mut written) in workers.iter_mut().zip(all) {
        written.iter_mut().for_each(Candidates::clear);
        worker.candidates = written;
    }
}

impl<'a, P: Protocol> Worker<'a, P> {
    fn new(cluster: &'a Cluster, script: &'a Script, common: &Common<P>) -> Self {
        let mut search = Search::bare(cluster, script);
        search.locals = Interner::sharing(Arc::clone(&common.locals));
        search.envelopes = Interner::sharing(Arc::clone(&common.envelopes));
        search.queues = Interner::sharing(Arc::clone(&common.queues));
        search.queues.number(Box::new([]));
        let width = search.rows.width;
        Self {
            search,
            locals: Vec::new(),
            envelopes: Vec::new(),
            queues: Vec::new(),
            candidates: (0..STORES).map(|_| Candidates::new(width)).collect(),
            transitions: 0,
            broken: None,
            row: Vec::new(),
        }
    }

    /// Enters the world at the start.
    fn enter_start(&mut self, stores: &mut [Store]) {
        let row = self.search.first_row();
        self.learn();
        stores[Store::of(self.hash(&row))].add(&row, store::NONE);
    }

    const fn sites(&self) -> usize {
        self.search.cluster.sites as usize
    }

    /// Learns what others have numbered. A queue that has a number is made of messages that have
    /// one, so they are learnt behind it.
    fn learn(&mut self) {
        self.search.queues.sync();
        self.search.envelopes.sync();
        self.search.locals.sync();
        self.search.learn_facts();
    }

    /// Keeps a hash of everything that has a number.
    fn learn_hashes(&mut self) {
        let search = &mut self.search;
        for local in &search.locals.items[self.locals.len()..] {
            self.locals.push(FxBuildHasher.hash_one(local));
        }
        if self.queues.len() == search.queues.items.len() {
            return;
        }
        search.envelopes.sync();
        for envelope in &search.envelopes.items[self.envelopes.len()..] {
            self.envelopes.push(FxBuildHasher.hash_one(envelope));
        }
        for queue in &search.queues.items[self.queues.len()..] {
            let messages = queue.iter().map(|&one| self.envelopes[one as usize]);
            // On links without order messages stand as they were numbered.
            self.queues.push(if search.script.unordered {
                messages.fold(queue.len() as u64, |sum, one| sum.wrapping_add(mixed(one, 1)))
            } else {
                messages.fold(queue.len() as u64, mixed)
            });
        }
    }

    fn hash(&mut self, row: &[u32]) -> u64 {
        self.learn_hashes();
        let (locals, queues) = row.split_at(self.sites());
        let locals = locals.iter().map(|&local| self.locals[local as usize]);
        let queues = queues.iter().map(|&queue| self.queues[queue as usize]);
        locals.chain(queues).fold(0, mixed)
    }

    /// Writes down all worlds that follow one.
    fn expand(&mut self, at: usize, store: &Store, before: u32) {
        if let Err(violation) = self.try_expand(store, before) {
            let broken = Broken { order: (0, at), before, after: None, violation };
            self.broken.get_or_insert(broken);
        }
    }

    fn try_expand(&mut self, store: &Store, before: u32) -> Result<(), Violation> {
        let from = store.row(store::place(before).1);
        let sites = self.sites();
        for site in 0..sites {
            for number in 0..self.search.facts[from[site] as usize].moves.len() {
                let outcome = self.search.own_step(from[site], number)?;
                self.write(before, from, site, None, &outcome);
            }
        }
        for link in 0..self.search.links.len() {
            let queue = from[sites + link];
            let (sender, to) = self.search.links[link];
            for nth in 0..self.search.deliverable(queue) {
                let items = &self.search.queues.items[queue as usize];
                let message = items[nth];
                if nth > 0 && items[nth - 1] == message {
                    continue;
                }
                let local = from[to.index()];
                let outcome = self.search.delivery(local, sender, message)?;
                self.write(before, from, to.index(), Some((link, nth)), &outcome);
            }
        }
        Ok(())
    }

    /// Writes down the world that a step leads to.
    fn write(
        &mut self,
        before: u32,
        from: &[u32],
        site: usize,
        taken: Option<(usize, usize)>,
        outcome: &Outcome,
    ) {
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row.extend_from_slice(from);
        self.search.follow(&mut row, site, taken, outcome);
        self.transitions += 1;
        let store = Store::of(self.hash(&row));
        self.candidates[store].push(before, &row);
        self.row = row;
    }

    /// Enters candidates, and judges those that are new.
    fn enter(&mut self, number: usize, store: &mut Store, candidates: &Candidates) {
        for (before, row) in candidates.iter() {
            if store.add(row, before)
                && let Err(violation) = self.search.judge(row)
            {
                let after = Some(row.into());
                let broken = Broken { order: (1, number), before, after, violation };
                self.broken.get_or_insert(broken);
            }
        }
    }

    /// The way to a wrong world, or to the step that is wrong, and what it is as a run.
    fn shown(&mut self, stores: &[Store], broken: &Broken) -> (Steps<P>, Option<Lasso<P>>) {
        self.learn();
        let mut rows: Vec<Box<[u32]>> = broken.after.iter().cloned().collect();
        let mut at = broken.before;
        while at != store::NONE {
            let (store, slot) = store::place(at);
            rows.push(stores[store].row(slot).into());
            at = stores[store].before(slot);
        }
        rows.reverse();
        let mut targets: Vec<_> = rows[1..].iter().map(|row| Some(self.world(row))).collect();
        targets.extend(broken.after.is_none().then_some(None));
        let (cluster, script) = (self.search.cluster, self.search.script);
        let mut world = World::<P>::new(cluster, script);
        let (mut exact, mut steps) = Exact::<P>::new(cluster);
        let mut moves = Vec::new();
        for target in targets {
            let leads = |&action: &Action<P::Timer>| {
                let mut next = world.clone();
                let (site, input) = next.input(action, script);
                let taken = next.apply(site, input, &mut Effects::default());
                match &target {
                    None => taken.is_err(),
                    Some(target) => taken.is_ok() && next.sorted(script) == *target,
                }
            };
            let action = world.enabled(script).into_iter().find(leads);
            let action = action.expect("a step leads from each world of a way to the next");
            let nth = if let Action::Deliver { nth, .. } = action { nth } else { 0 };
            let (site, input) = world.input(action, script);
            moves.push(action);
            steps.push(exact.follow(steps.len() as u64 + 1, site, nth, input.clone()));
            // The last step may be the violation itself.
            let _taken = world.apply(site, input, &mut Effects::default());
        }
        let rests = broken.violation.property == "progress";
        let lasso = rests.then_some(Lasso { prefix: steps.len(), moves });
        (steps, lasso)
    }

    /// A world as a value.
    fn world(&self, row: &[u32]) -> World<P> {
        let (sites, search) = (self.sites(), &self.search);
        let local = |&local: &u32| search.locals.items[local as usize].clone();
        let links = (0..sites * sites).map(|link| {
            let (from, to) = ends(link, sites);
            if from == to {
                return std::collections::VecDeque::new();
            }
            let queue = row[search.place(from.index(), to.index())];
            let messages = search.queues.items[queue as usize].iter();
            messages.map(|&one| search.envelopes.items[one as usize].clone()).collect()
        });
        let world =
            World { locals: row[..sites].iter().map(local).collect(), links: links.collect() };
        world.sorted(search.script)
    }
}

/// Mixes a number into a hash.
const fn mixed(sum: u64, one: u64) -> u64 {
    let sum = (sum.rotate_left(5) ^ one).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    sum ^ sum >> 29
}
