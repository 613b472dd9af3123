//! Networks of which some sites are absent: whoever takes part can still reach everybody who does,
//! by those who do.

use kofm_core::topology::{Graph, Routes, Topology};
use kofm_core::{Cluster, SiteId};

const SITES: u16 = 7;

fn site(number: u16) -> SiteId {
    SiteId(number)
}

/// A ring, a tree, a path, a star, and a wheel without spokes but one.
fn shapes() -> Vec<Topology> {
    let graph = |edges: Vec<(u16, u16)>| {
        let edges = edges.into_iter().map(|(a, b)| (site(a), site(b))).collect();
        Topology::Graph(Graph::new(SITES, edges).expect("connected"))
    };
    let path: Vec<(u16, u16)> = (1..SITES).map(|to| (to - 1, to)).collect();
    let star = (0..SITES).filter(|&to| to != 3).map(|to| (3, to)).collect();
    let wheel = path.iter().copied().chain([(SITES - 1, 0), (1, 4)]).collect();
    vec![Topology::Ring, Topology::Tree, graph(path), graph(star), graph(wheel)]
}

/// Every cluster of these shapes in which at least one site takes part.
fn clusters() -> impl Iterator<Item = Cluster> {
    shapes().into_iter().flat_map(|topology| {
        (0..(1_u32 << SITES) - 1).map(move |mask| {
            let absent = (0..SITES).filter(|&number| mask >> number & 1 == 1).map(site).collect();
            Cluster { topology: topology.clone(), absent, ..Cluster::new(SITES, 1) }
        })
    })
}

#[test]
fn everybody_reaches_everybody() {
    let mut ways = 0;
    for cluster in clusters() {
        for from in cluster.all() {
            for to in cluster.others(from) {
                let mut at = from;
                let mut hops = 0;
                while at != to {
                    at = Routes::new(at, &cluster).toward(to);
                    hops += 1;
                    assert!(!cluster.absent.contains(at), "{from} to {to} by {at}: {cluster:?}");
                    assert!(hops < SITES, "{from} to {to} goes in circles: {cluster:?}");
                }
                ways += 1;
            }
        }
    }
    assert_eq!(ways, 5 * 7 * 6 * 32, "all pairs, in each shape, with or without each other site");
}

#[test]
fn a_flood_comes_to_everybody_once() {
    for cluster in clusters() {
        for start in cluster.all() {
            let mut reached = vec![start];
            let mut todo = vec![(start, start)];
            while let Some((at, from)) = todo.pop() {
                let routes = Routes::new(at, &cluster);
                for to in routes.onward(from) {
                    // On a ring it goes around until it is home.
                    if to == start && routes.is_ring() {
                        continue;
                    }
                    assert!(!reached.contains(&to), "{to} is reached twice: {cluster:?}");
                    reached.push(to);
                    todo.push((to, at));
                }
            }
            reached.sort_unstable();
            assert_eq!(reached, cluster.all().collect::<Vec<_>>(), "{cluster:?}");
        }
    }
}
