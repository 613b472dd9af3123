//! Everything that can happen from a right start: no token is ever lost or doubled, and from every
//! world a way leads on to where nobody waits.

use kofm_core::protocols::tree::{Rules, Tree};
use kofm_core::protocols::tree_as_printed::TreeAsPrinted;
use kofm_core::protocols::tree_as_printed_priority::TreeAsPrintedPriority;
use kofm_core::protocols::tree_as_printed_pusher::TreeAsPrintedPusher;
use kofm_core::{Cluster, Demand, PoolId, Protocol, SiteId, Units};
use kofm_sim::exhaustive::{Exploration, explore};
use kofm_sim::healing::Shape;
use kofm_sim::rng::Rng;
use kofm_sim::world::Script;

/// Tokens travel one by one and never pause: every order in which they can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Loose;

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
    Script::new(sites, rounds, (1..=k).map(|k| Demand::one(PoolId(0), k)).collect())
}

fn all<P: Protocol>(cluster: &Cluster, script: &Script) -> Exploration<P> {
    let found = explore::<P>(cluster, script, 20_000_000, |_| {});
    println!("{} states, {:?}", found.states, found.violation.as_ref().map(|it| &it.0));
    found
}

fn states<P: Protocol>(cluster: &Cluster, script: &Script) -> u64 {
    let found = all::<P>(cluster, script);
    assert!(found.complete && found.violation.is_none(), "{:?}", found.violation);
    found.states
}

#[test]
fn two_sites() {
    let count = |units, k, rounds| {
        states::<Tree<Loose>>(&cluster(2, Shape::Path, units), &script(2, k, rounds))
    };
    for (units, k, rounds) in [(1, 1, 1), (1, 1, 2), (2, 2, 1)] {
        assert!(count(units, k, rounds) > 1);
    }
}

#[test]
#[ignore = "minutes; run with --ignored"]
fn three_and_four_sites() {
    for shape in [Shape::Path, Shape::Star] {
        states::<Tree<Loose>>(&cluster(3, shape, 1), &script(3, 1, 1));
    }
    for keeper in [0, 1] {
        let script = Script { keepers: vec![SiteId(keeper)], ..script(3, 1, 1) };
        states::<Tree<Loose>>(&cluster(3, Shape::Star, 2), &script);
    }
    let both = Script::new(3, 1, vec![Demand::one(PoolId(0), 2)]);
    let stuck = all::<TreeAsPrintedPusher>(&Cluster::new(3, 2), &both).violation;
    assert_eq!(stuck.expect("three wait for ever").0.property, "progress");
    let yields = all::<Tree<PriorityYields>>(&cluster(3, Shape::Star, 2), &script(3, 2, 1));
    assert_eq!(yields.violation.expect("they wait for ever").0.property, "progress");
    let one = script(4, 1, 1);
    for shape in [Shape::Path, Shape::Star, Shape::Random] {
        states::<Tree<Loose>>(&cluster(4, shape, 1), &one);
    }
    for shape in [Shape::Path, Shape::Star] {
        states::<Tree<Loose>>(&cluster(3, shape, 2), &script(3, 2, 1));
    }
}

#[test]
fn as_sites_run_it() {
    let count = |sites, units, k| states::<Tree>(&Cluster::new(sites, units), &script(sites, k, 1));
    for (sites, units, k) in [(1, 2, 2), (2, 1, 1), (2, 2, 2)] {
        assert!(count(sites, units, k) > 1);
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
    assert!(states::<Tree<Loose>>(&cluster, &script) > 1);
}

#[test]
fn who_needs_no_more_than_is_left_is_served_while_others_keep_theirs() {
    // (k,ℓ)-liveness: site 1 never gives back its unit.
    for keeper in [0, 1] {
        let cluster = cluster(2, Shape::Path, 2);
        let script = Script { keepers: vec![SiteId(keeper)], ..script(2, 1, 2) };
        states::<Tree<Loose>>(&cluster, &script);
    }
}

#[test]
fn mistakes_are_found() {
    let late = all::<Tree<CountsLate>>(&cluster(2, Shape::Path, 1), &script(2, 1, 1));
    assert_eq!(late.violation.expect("two hold one unit").0.property, "capacity");
}

#[test]
fn the_published_listing_is_wrong_in_three_places() {
    let two = Cluster::new(2, 1);
    let counts = all::<TreeAsPrinted>(&two, &script(2, 1, 1)).violation.expect("over-allocates");
    assert_eq!((counts.0.property, counts.1.len()), ("capacity", 16));
    let missed = all::<TreeAsPrintedPriority>(&two, &script(2, 1, 1)).violation;
    assert_eq!(missed.expect("one is overlooked").0.property, "tokens");
}
