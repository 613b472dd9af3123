//! Every interleaving of small cases, with the number of states pinned: a number that moves is a
//! change of behaviour.

use kofm_core::topology::{Graph, Topology};
use kofm_core::{Cluster, Demand, Kind, PoolId, SiteId, Units};
use kofm_sim::chosen::explore;
use kofm_sim::world::Script;

/// Amounts of one pool to choose from.
pub(crate) fn ks(low: u32, high: u32) -> Vec<Demand> {
    (low..=high).map(|k| Demand::one(PoolId(0), k)).collect()
}

/// A demand over two pools.
pub(crate) fn both(a: u32, b: u32) -> Demand {
    [(PoolId(0), Units(a)), (PoolId(1), Units(b))].into_iter().collect()
}

/// All demands over a pool of two and a pool of one.
pub(crate) fn two_pools(sites: u16) -> (Cluster, Vec<Demand>) {
    let mut cluster = Cluster::new(sites, 2);
    cluster.pools.push(Units(1));
    (cluster, vec![both(1, 0), both(2, 0), both(0, 1), both(1, 1), both(2, 1)])
}

/// Explores everything: nothing is violated; says how many states there are.
pub(crate) fn all_states(kind: Kind, cluster: &Cluster, script: &Script) -> u64 {
    let found = explore(kind, cluster, script, 40_000_000, &mut |_| {});
    if let Some((violation, lines)) = found.violation {
        let lines: Vec<String> = lines.into_iter().map(|line| line.text).collect();
        panic!("{} {violation:?}\n{}", kind.name(), lines.join("\n"));
    }
    assert!(found.complete);
    found.states
}

fn everything(script: Script) -> Script {
    Script { slots: 2, withdraw: true, partial: true, ..script }
}

#[test]
fn no_more_states_are_kept_than_were_asked_for() {
    let script = Script::new(2, 3, ks(1, 2));
    for limit in [1, 10, 100, 2_565, 2_566] {
        let found = explore(Kind::Permission, &Cluster::new(2, 2), &script, limit, &mut |_| {});
        assert_eq!((found.states, found.complete), (limit, limit == 2_566));
        assert!(found.violation.is_none());
    }
}

#[test]
fn permission_one_claim_at_a_time() {
    let states = |sites, units, rounds| {
        let script = Script::new(sites, rounds, ks(1, units));
        all_states(Kind::Permission, &Cluster::new(sites, units), &script)
    };
    assert_eq!(states(1, 2, 3), 10, "a cluster of one site grants");
    assert_eq!(states(2, 1, 3), 325);
    assert_eq!(states(2, 2, 3), 2_566);
    assert_eq!(states(2, 3, 4), 20_215);
    assert_eq!(states(3, 1, 2), 36_464);
    assert_eq!(states(3, 2, 2), 1_918_155);
}

#[test]
fn permission_with_all_that_clients_may_do() {
    let two = everything(Script::new(2, 2, ks(1, 2)));
    assert_eq!(all_states(Kind::Permission, &Cluster::new(2, 2), &two), 125_815);
    let three = Script { slots: 2, rounds: vec![2, 1, 1], ..Script::new(3, 1, ks(1, 2)) };
    assert_eq!(all_states(Kind::Permission, &Cluster::new(3, 2), &three), 510_220);
    let giving_up = Script { withdraw: true, ..Script::new(3, 1, ks(1, 2)) };
    assert_eq!(all_states(Kind::Permission, &Cluster::new(3, 2), &giving_up), 1_510_983);
}

#[test]
fn permission_over_two_pools() {
    let (cluster, demands) = two_pools(2);
    assert_eq!(all_states(Kind::Permission, &cluster, &Script::new(2, 3, demands.clone())), 16_588);
    let script = everything(Script::new(2, 1, demands));
    let script = Script { rounds: vec![2, 2], ..script };
    assert_eq!(all_states(Kind::Permission, &cluster, &script), 2_462_133);
    let (cluster, _) = two_pools(3);
    let script = Script::new(3, 1, vec![both(1, 1), both(2, 0), both(0, 1)]);
    assert_eq!(all_states(Kind::Permission, &cluster, &script), 65_403);
}

#[test]
fn permission_on_a_ring_a_tree_and_a_graph() {
    let links = [(0, 1), (1, 2), (2, 3), (3, 0)].map(|(a, b)| (SiteId(a), SiteId(b)));
    let graph = Topology::Graph(Graph::new(4, links.to_vec()).unwrap());
    let states = |sites, topology, script: Script| {
        let cluster = Cluster { topology, ..Cluster::new(sites, 2) };
        all_states(Kind::Permission, &cluster, &script)
    };
    assert_eq!(states(3, Topology::Ring, Script::new(3, 2, ks(1, 2))), 155_029);
    assert_eq!(states(3, Topology::Tree, Script::new(3, 2, ks(1, 2))), 393_481);
    let once = Script { withdraw: true, partial: true, ..Script::new(3, 1, ks(1, 2)) };
    assert_eq!(states(3, Topology::Ring, once.clone()), 53_062);
    assert_eq!(states(3, Topology::Tree, once), 203_389);
    assert_eq!(states(4, graph, Script::new(4, 1, ks(1, 1))), 223_556);
    let slots = Script { slots: 2, rounds: vec![2, 2, 1], ..Script::new(3, 1, ks(1, 1)) };
    assert_eq!(states(3, Topology::Ring, slots.clone()), 63_352);
    assert_eq!(states(3, Topology::Tree, slots), 227_791);
}

#[test]
fn permission_lazy_one_claim_at_a_time() {
    let states = |sites, units, rounds, high| {
        let script = Script::new(sites, rounds, ks(1, high));
        all_states(Kind::PermissionLazy, &Cluster::new(sites, units), &script)
    };
    assert_eq!(states(1, 2, 3, 2), 10);
    assert_eq!(states(2, 2, 5, 2), 39_624);
    assert_eq!(states(2, 3, 5, 3), 98_605);
    assert_eq!(states(3, 3, 2, 2), 4_106_809);
}

#[test]
fn permission_lazy_with_all_that_clients_may_do() {
    let two = everything(Script::new(2, 2, ks(1, 2)));
    assert_eq!(all_states(Kind::PermissionLazy, &Cluster::new(2, 2), &two), 183_811);
    let many = Script { slots: 2, ..Script::new(2, 3, ks(1, 3)) };
    assert_eq!(all_states(Kind::PermissionLazy, &Cluster::new(2, 3), &many), 949_452);
    let three = Script { slots: 2, rounds: vec![2, 1, 1], ..Script::new(3, 1, ks(1, 2)) };
    assert_eq!(all_states(Kind::PermissionLazy, &Cluster::new(3, 2), &three), 444_650);
}

#[test]
fn permission_lazy_over_two_pools() {
    let (cluster, demands) = two_pools(2);
    assert_eq!(all_states(Kind::PermissionLazy, &cluster, &Script::new(2, 3, demands)), 22_571);
    let (cluster, _) = two_pools(3);
    let demands = vec![both(1, 1), both(1, 0), both(0, 1)];
    let script = Script { rounds: vec![2, 1, 1], ..Script::new(3, 1, demands) };
    assert_eq!(all_states(Kind::PermissionLazy, &cluster, &script), 274_800);
}

#[test]
fn the_published_lazy_listing_over_allocates_after_thirteen_steps() {
    let script = Script::new(2, 2, ks(1, 2));
    let found = explore(
        Kind::PermissionLazyAsPrinted,
        &Cluster::new(2, 2),
        &script,
        1_000_000,
        &mut |_| {},
    );
    let (violation, steps) = found.violation.expect("the listing is wrong");
    assert_eq!((violation.property, steps.len()), ("capacity", 13));
}

#[test]
fn the_published_lazy_listing_holds_where_amounts_are_constant() {
    // Tests with one amount cannot show its fault.
    let script = Script::new(2, 4, ks(1, 1));
    assert_eq!(all_states(Kind::PermissionLazyAsPrinted, &Cluster::new(2, 2), &script), 7_443);
}
