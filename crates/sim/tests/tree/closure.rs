//! Everything that can happen from a right start: no token is ever lost or doubled, and from every
//! world a way leads on to where nobody waits.

use kofm_core::protocols::tree::{Rules, Tree};
use kofm_core::protocols::tree_as_printed::TreeAsPrinted;
use kofm_core::protocols::tree_as_printed_priority::TreeAsPrintedPriority;
use kofm_core::protocols::tree_as_printed_pusher::TreeAsPrintedPusher;
use kofm_core::topology::{Graph, Topology};
use kofm_core::{Cluster, Demand, PoolId, Protocol, SiteId, Units};
use kofm_sim::exhaustive::{Exploration, explore};
use kofm_sim::healing::Shape;
use kofm_sim::rng::Rng;
use kofm_sim::world::Script;

/// Tokens travel one by one and never pause: every order in which they can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Loose;

/// The same, but the root decides before it has counted what it has itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CountsLate;

/// The same, but only who has priority yields to the pusher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PriorityYields;

macro_rules! loose {
    ($($name:ident { $($rule:ident = $value:expr),* })*) => {$(
        impl Rules for $name {
            const WATCHES: bool = false;
            const COALESCES: bool = false;
            const GATED: bool = false;
            const PARKS: bool = false;
            const LEASE: bool = false;
            $(const $rule: bool = $value;)*
            fn colours(_sites: u16) -> u64 {
                3
            }
        }
    )*};
}

loose! {
    Loose {}
    CountsLate { COUNTS_OWN = false }
    PriorityYields { SPARES_PRIORITY = false }
}

fn cluster(sites: u16, shape: Shape, units: u32) -> Cluster {
    let topology = shape.tree(sites, &mut Rng::new(1));
    Cluster { topology, ..Cluster::new(sites, units) }
}

fn script(sites: u16, k: u32, rounds: u32) -> Script {
    // With one claim at a time nobody compares times.
    let demands = (1..=k).map(|k| Demand::one(PoolId(0), k)).collect();
    Script { timeless: true, ..Script::new(sites, rounds, demands) }
}

fn all<P: Protocol>(cluster: &Cluster, script: &Script) -> Exploration<P> {
    let found = explore::<P>(cluster, script, 20_000_000, |_| {});
    println!("{} states, {:?}", found.states, found.violation.as_ref().map(|it| &it.0));
    found
}

/// Every world that can be reached: the tokens are right in all of them, and nobody starves.
fn pin<P: Protocol>(cluster: &Cluster, script: &Script, states: u64) {
    let found = all::<P>(cluster, script);
    assert!(found.complete && found.violation.is_none(), "{:?}", found.violation);
    assert_eq!(found.states, states, "{cluster:?} {script:?}");
}

#[test]
fn two_sites() {
    for (units, k, rounds, states) in [(1, 1, 1, 2_350), (1, 1, 2, 11_104), (2, 2, 1, 14_446)] {
        pin::<Tree<Loose>>(&cluster(2, Shape::Path, units), &script(2, k, rounds), states);
    }
}

#[test]
fn three_sites() {
    for (shape, states) in [(Shape::Path, 82_527), (Shape::Star, 83_758)] {
        pin::<Tree<Loose>>(&cluster(3, shape, 1), &script(3, 1, 1), states);
    }
    for (keeper, states) in [(0, 245_933), (1, 205_375)] {
        let script = Script { keepers: vec![SiteId(keeper)], ..script(3, 1, 1) };
        pin::<Tree<Loose>>(&cluster(3, Shape::Star, 2), &script, states);
    }
}

#[test]
#[ignore = "half a minute: run in release with --ignored"]
fn three_sites_with_two_units() {
    for (shape, states) in [(Shape::Path, 1_424_905), (Shape::Star, 1_423_590)] {
        pin::<Tree<Loose>>(&cluster(3, shape, 2), &script(3, 2, 1), states);
    }
}

#[test]
#[ignore = "half a minute: run in release with --ignored"]
fn four_sites() {
    // All trees that there are: from its end a path, from its middle, a star from its middle, from
    // its end.
    for (above, states) in [
        ([0, 1, 2], 1_217_283),
        ([0, 0, 1], 1_214_117),
        ([0, 0, 0], 1_214_044),
        ([0, 1, 1], 1_191_768),
    ] {
        let edges = above.into_iter().zip(1..).map(|(a, b)| (SiteId(a), SiteId(b))).collect();
        let topology = Topology::Graph(Graph::new(4, edges).unwrap());
        let cluster = Cluster { topology, ..Cluster::new(4, 1) };
        pin::<Tree<Loose>>(&cluster, &script(4, 1, 1), states);
    }
}

#[test]
#[ignore = "half a minute: run in release with --ignored"]
fn a_pusher_that_spares_the_wrong_ones_is_found() {
    let both = Script::new(3, 1, vec![Demand::one(PoolId(0), 2)]);
    let stuck = all::<TreeAsPrintedPusher>(&Cluster::new(3, 2), &both).violation;
    assert_eq!(stuck.expect("three wait for ever").0.property, "progress");
    let yields = all::<Tree<PriorityYields>>(&cluster(3, Shape::Star, 2), &script(3, 2, 1));
    assert_eq!(yields.violation.expect("they wait for ever").0.property, "progress");
}

#[test]
fn as_sites_run_it() {
    for (sites, units, k, states) in [(1, 2, 2, 5), (2, 1, 1, 6_274), (2, 2, 2, 26_510)] {
        pin::<Tree>(&Cluster::new(sites, units), &script(sites, k, 1), states);
    }
}

#[test]
fn several_claims_pools_withdrawal_and_release_in_parts() {
    let cluster = Cluster { pools: vec![Units(1), Units(1)], ..Cluster::new(2, 1) };
    let demands = vec![
        Demand::one(PoolId(0), 1),
        [(PoolId(0), Units(1)), (PoolId(1), Units(1))].into_iter().collect(),
    ];
    let rounds = Script::new(2, 1, demands);
    let script = Script { slots: 2, withdraw: true, partial: true, ..rounds };
    pin::<Tree<Loose>>(&cluster, &script, 60_070);
}

#[test]
fn who_needs_no_more_than_is_left_is_served_while_others_keep_theirs() {
    // (k,ℓ)-liveness: site 1 never gives back its unit.
    for (keeper, states) in [(0, 12_019), (1, 9_863)] {
        let script = Script { keepers: vec![SiteId(keeper)], ..script(2, 1, 2) };
        pin::<Tree<Loose>>(&cluster(2, Shape::Path, 2), &script, states);
    }
}

#[test]
fn mistakes_are_found() {
    let late = all::<Tree<CountsLate>>(&cluster(2, Shape::Path, 1), &script(2, 1, 1));
    assert_eq!(late.violation.expect("it makes a second one").0.property, "tokens");
}

#[test]
fn the_published_listing_is_wrong_in_three_places() {
    let two = Cluster::new(2, 1);
    let counts = all::<TreeAsPrinted>(&two, &script(2, 1, 1)).violation.expect("over-allocates");
    assert_eq!((counts.0.property, counts.1.len()), ("capacity", 16));
    let missed = all::<TreeAsPrintedPriority>(&two, &script(2, 1, 1)).violation;
    assert_eq!(missed.expect("one is overlooked").0.property, "tokens");
}
