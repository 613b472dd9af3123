//! What must happen again and again, in worlds without end.
//!
//! A group can *always work again* if from every world some way leads to its work. It is *never
//! starved* if no run goes on for ever without its work, in which every message arrives, every
//! worker finishes and, where that is asked, every client that may claim does so in the end.

use kofm_core::{Cluster, GroupId, Protocol, Service};

use crate::exhaustive::{Edge, Mover, Search};
use crate::world::Script;

/// What was found out about the groups of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// Distinct worlds seen.
    pub states: u32,
    /// Groups that cannot work any more after some way.
    pub dead: Vec<GroupId>,
    /// Groups that a fair run may pass over for ever.
    pub starved: Vec<GroupId>,
}

/// Explores everything that an endless script allows, and looks at what goes on for ever. Where
/// `eager` every client claims again in the end; otherwise only a group all of whose members wait
/// for it is said to starve.
///
/// None where there are more than `limit` worlds, or where a promise is broken: see
/// [`explore`](crate::exhaustive::explore).
pub fn fairness<P: Protocol>(
    cluster: &Cluster,
    script: &Script,
    eager: bool,
    limit: u32,
) -> Option<Fairness> {
    assert!(P::PROFILE.serves == Service::Group && script.endless, "groups that work for ever");
    let mut search = Search::<P>::new(cluster, script);
    let states = search.all_steps(limit)?;
    let edges = search.edges.take().unwrap_or_default();
    let grouping = cluster.grouping().ok()?;
    let dead = grouping.all().filter(|&group| !always_again(states, &edges, group)).collect();
    let starved = grouping.all().filter(|&group| {
        let counts: Vec<bool> = (0..states).map(|at| eager || search.all_wait(at, group)).collect();
        starves(&edges, &counts, group, eager)
    });
    Some(Fairness { states, dead, starved: starved.collect() })
}

/// Whether from every world a work of the group can be reached.
fn always_again(states: u32, edges: &[Edge], group: GroupId) -> bool {
    let mut before = vec![Vec::new(); states as usize];
    let mut reaches = vec![false; states as usize];
    let mut next = Vec::new();
    for edge in edges {
        before[edge.to as usize].push(edge.from);
        if edge.begun == Some(group) && !reaches[edge.from as usize] {
            reaches[edge.from as usize] = true;
            next.push(edge.from);
        }
    }
    while let Some(at) = next.pop() {
        for &from in &before[at as usize] {
            if !reaches[from as usize] {
                reaches[from as usize] = true;
                next.push(from);
            }
        }
    }
    reaches.into_iter().all(|reaches| reaches)
}

/// Whether a fair run goes on for ever without the group's work, within the worlds that count.
fn starves(edges: &[Edge], counts: &[bool], group: GroupId, eager: bool) -> bool {
    let inside = |edge: &&Edge| {
        counts[edge.from as usize] && counts[edge.to as usize] && edge.begun != Some(group)
    };
    let mut after = vec![Vec::new(); counts.len()];
    for edge in edges.iter().filter(inside) {
        after[edge.from as usize].push(edge.to);
    }
    let component = components(&after);
    let number = component.iter().copied().max().map_or(0, |last| last + 1);
    // For each component: its size, the movers that move inside it, and how many of its worlds
    // each mover could leave. Whoever could always move but never does makes it unfair.
    let mut size = vec![0u32; number];
    for &c in &component {
        size[c] += 1;
    }
    let must = |mover: Mover| eager || !matches!(mover, Mover::Claim(..));
    let mut able: Vec<(usize, Mover, u32)> = Vec::new();
    let mut moved: Vec<(usize, Mover)> = Vec::new();
    let mut cyclic = vec![false; number];
    for edge in edges {
        let (from, to) = (component[edge.from as usize], component[edge.to as usize]);
        if must(edge.mover) {
            able.push((from, edge.mover, edge.from));
        }
        if from == to && inside(&edge) {
            cyclic[from] = true;
            moved.push((from, edge.mover));
        }
    }
    able.sort_unstable();
    able.dedup();
    moved.sort_unstable();
    let mut unfair = vec![false; number];
    for run in able.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (c, mover, _) = run[0];
        let always = run.len() == size[c] as usize;
        if always && moved.binary_search(&(c, mover)).is_err() {
            unfair[c] = true;
        }
    }
    (0..number).any(|c| cyclic[c] && !unfair[c])
}

/// The number of the strongly connected component of each world, after Tarjan, without recursion.
fn components(after: &[Vec<u32>]) -> Vec<usize> {
    const NEW: u32 = u32::MAX;
    let mut order = vec![NEW; after.len()];
    let mut low = vec![0u32; after.len()];
    let mut component = vec![usize::MAX; after.len()];
    let (mut stack, mut path) = (Vec::new(), Vec::new());
    let (mut clock, mut number) = (0, 0);
    for root in 0..after.len() {
        if order[root] != NEW {
            continue;
        }
        path.push((root, 0));
        while let Some((at, edge)) = path.pop() {
            if edge == 0 {
                order[at] = clock;
                low[at] = clock;
                clock += 1;
                stack.push(at);
            }
            if let Some(&to) = after[at].get(edge) {
                let to = to as usize;
                path.push((at, edge + 1));
                if order[to] == NEW {
                    path.push((to, 0));
                } else if component[to] == usize::MAX {
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
