//! Every interleaving of a mortal world, breadth first, and whether each can still end well.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::HashTable;
use kofm_core::epoch::Rules;
use kofm_core::{Cluster, Protocol};
use rustc_hash::FxBuildHasher;

use super::{Budget, Common, Queue, Seat, World};
use crate::world::{Script, Violation};

/// What was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Distinct worlds seen.
    pub states: u64,
    /// Steps between them.
    pub transitions: u64,
    /// Whether everything was seen.
    pub complete: bool,
    /// The first violation, with a shortest way to it.
    pub violation: Option<(Violation, Vec<String>)>,
}

/// Explores everything that script and budget allow, up to `limit` worlds.
pub fn explore<P: Protocol, R: Rules>(
    cluster: &Cluster,
    script: &Script,
    budget: Budget,
    rules: R,
    limit: u64,
) -> Finding {
    let mut search = Search::<P, R>::new(script);
    let first = World::new(cluster, script, budget, rules);
    let row = search.row(&first, None);
    search.add(&row, 0);
    let mut at = 0;
    while at < search.count() {
        if let Err((violation, what)) = search.expand(at) {
            let way = search.way_to(at, &what);
            return search.report(false, Some((violation, way)));
        }
        at += 1;
        if u64::from(search.count()) > limit {
            return search.report(false, None);
        }
    }
    if let Some(stuck) = search.find_stuck() {
        let violation = Violation::new("progress", "from here nothing leads to a good end");
        let way = search.way_to(stuck, "");
        return search.report(true, Some((violation, way)));
    }
    search.report(true, None)
}

/// Each distinct part once, under a number.
struct Parts<T> {
    items: Vec<Arc<T>>,
    index: HashTable<u32>,
}

impl<T: Hash + Eq> Parts<T> {
    const fn new() -> Self {
        Self { items: Vec::new(), index: HashTable::new() }
    }

    fn number(&mut self, item: &Arc<T>) -> u32 {
        let hash = FxBuildHasher.hash_one(&**item);
        let items = &self.items;
        if let Some(&i) = self.index.find(hash, |&i| *items[i as usize] == **item) {
            return i;
        }
        let new = u32::try_from(self.items.len()).expect("fewer than 2^32 parts");
        self.items.push(Arc::clone(item));
        let items = &self.items;
        self.index.insert_unique(hash, new, |&i| FxBuildHasher.hash_one(&*items[i as usize]));
        new
    }
}

struct Search<'a, P: Protocol, R: Rules> {
    script: &'a Script,
    seats: Parts<Seat<P, R>>,
    queues: Parts<Queue<P>>,
    commons: Parts<Common<R>>,
    width: usize,
    cells: Vec<u32>,
    index: HashTable<u32>,
    /// The row that each was first reached from.
    origin: Vec<u32>,
    /// All steps, from and to.
    edges: Vec<(u32, u32)>,
    /// Worlds in which nothing can happen but crashes.
    ends: Vec<u32>,
}

impl<'a, P: Protocol, R: Rules> Search<'a, P, R> {
    const fn new(script: &'a Script) -> Self {
        Self {
            script,
            seats: Parts::new(),
            queues: Parts::new(),
            commons: Parts::new(),
            width: 0,
            cells: Vec::new(),
            index: HashTable::new(),
            origin: Vec::new(),
            edges: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.origin.len()).expect("fewer than 2^32 worlds")
    }

    /// The numbers of a world's parts; those that it shares with `before` are known.
    fn row(&mut self, world: &World<P, R>, before: Option<(&World<P, R>, &[u32])>) -> Vec<u32> {
        let mut row = Vec::with_capacity(self.width);
        for (i, seat) in world.seats.iter().enumerate() {
            row.push(match before {
                Some((old, numbers)) if Arc::ptr_eq(&old.seats[i], seat) => numbers[i],
                _ => self.seats.number(seat),
            });
        }
        let base = world.seats.len();
        for (i, link) in world.links.iter().enumerate() {
            row.push(match before {
                Some((old, numbers)) if Arc::ptr_eq(&old.links[i], link) => numbers[base + i],
                _ => self.queues.number(link),
            });
        }
        row.push(match before {
            Some((old, numbers)) if Arc::ptr_eq(&old.common, &world.common) => {
                numbers[numbers.len() - 1]
            }
            _ => self.commons.number(&world.common),
        });
        self.width = row.len();
        row
    }

    /// The number of a row, and whether it is new.
    fn add(&mut self, row: &[u32], from: u32) -> (u32, bool) {
        let hash = FxBuildHasher.hash_one(row);
        let (cells, width) = (&self.cells, self.width);
        let at = |i: u32| &cells[i as usize * width..][..width];
        if let Some(&i) = self.index.find(hash, |&i| at(i) == row) {
            return (i, false);
        }
        let new = self.count();
        self.cells.extend_from_slice(row);
        self.origin.push(from);
        let cells = &self.cells;
        let rehash = |&i: &u32| FxBuildHasher.hash_one(&cells[i as usize * width..][..width]);
        self.index.insert_unique(hash, new, rehash);
        (new, true)
    }

    fn world(&self, row: &[u32], sites: usize) -> World<P, R> {
        let links = &row[sites..row.len() - 1];
        let part = |i: &u32| *i as usize;
        World {
            seats: row[..sites].iter().map(|i| Arc::clone(&self.seats.items[part(i)])).collect(),
            links: links.iter().map(|i| Arc::clone(&self.queues.items[part(i)])).collect(),
            common: Arc::clone(&self.commons.items[row[row.len() - 1] as usize]),
        }
    }

    fn world_at(&self, at: u32) -> (World<P, R>, Vec<u32>) {
        let row = self.cells[at as usize * self.width..][..self.width].to_vec();
        (self.world(&row, self.script.rounds.len()), row)
    }

    fn expand(&mut self, at: u32) -> Result<(), (Violation, String)> {
        let (world, row) = self.world_at(at);
        let enabled = world.enabled(self.script);
        world.judge(&enabled).map_err(|violation| (violation, String::new()))?;
        if !enabled.iter().any(|action| !matches!(action, super::Action::Crash(_))) {
            self.ends.push(at);
        }
        for action in enabled {
            let mut next = world.clone();
            let result = next.act(&action, self.script);
            result.map_err(|violation| (violation, format!("{action:?}")))?;
            let numbers = self.row(&next, Some((&world, &row)));
            let (to, _) = self.add(&numbers, at);
            if to != at {
                self.edges.push((at, to));
            }
        }
        Ok(())
    }

    /// A world from which no world is reached in which everything is done.
    fn find_stuck(&self) -> Option<u32> {
        let count = self.origin.len();
        let mut starts = vec![0_usize; count + 1];
        for &(_, to) in &self.edges {
            starts[to as usize + 1] += 1;
        }
        for i in 0..count {
            starts[i + 1] += starts[i];
        }
        let mut before = vec![0_u32; self.edges.len()];
        let mut next = starts.clone();
        for &(from, to) in &self.edges {
            before[next[to as usize]] = from;
            next[to as usize] += 1;
        }
        let mut fine = vec![false; count];
        let mut todo: VecDeque<u32> = self.ends.iter().copied().collect();
        for &end in &self.ends {
            fine[end as usize] = true;
        }
        while let Some(at) = todo.pop_front() {
            for &from in &before[starts[at as usize]..starts[at as usize + 1]] {
                if !std::mem::replace(&mut fine[from as usize], true) {
                    todo.push_back(from);
                }
            }
        }
        let stuck = fine.iter().position(|fine| !fine)?;
        Some(u32::try_from(stuck).expect("fewer than 2^32 worlds"))
    }

    /// The steps from the start to a world, and what happened there.
    fn way_to(&self, at: u32, last: &str) -> Vec<String> {
        let mut rows = vec![at];
        let mut row = at;
        while row != 0 {
            row = self.origin[row as usize];
            rows.push(row);
        }
        let mut way = Vec::new();
        for pair in rows.iter().rev().collect::<Vec<_>>().windows(2) {
            let (world, _) = self.world_at(*pair[0]);
            let (goal, _) = self.world_at(*pair[1]);
            let found = world.enabled(self.script).into_iter().find(|action| {
                let mut next = world.clone();
                let done = next.act(action, self.script).is_ok();
                done && next.seats == goal.seats
                    && next.links == goal.links
                    && next.common == goal.common
            });
            way.push(found.map_or_else(String::new, |action| world.tell(&action)));
        }
        if !last.is_empty() {
            way.push(last.to_owned());
        }
        way
    }

    fn report(self, complete: bool, violation: Option<(Violation, Vec<String>)>) -> Finding {
        let transitions = self.edges.len() as u64;
        Finding { states: self.origin.len() as u64, transitions, complete, violation }
    }
}

impl<P: Protocol, R: Rules> World<P, R> {
    /// An action, with the frame that is delivered.
    fn tell(&self, action: &super::Action<P::Timer>) -> String {
        let super::Action::Deliver(from, to) = *action else { return format!("{action:?}") };
        let frame = self.links[self.link(from, to)].front();
        match frame {
            Some(kofm_core::epoch::Frame::Change(message)) => {
                format!("{from} -> {to}: {}", super::name(message))
            }
            frame => format!("{from} -> {to}: {frame:?}"),
        }
    }
}
