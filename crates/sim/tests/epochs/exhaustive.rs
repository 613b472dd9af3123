//! One site dies at any moment and may come back, and everything that can follow.

use kofm_core::epoch::{Rules, Sound};
use kofm_core::parts::Routed;
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::permission_lazy::PermissionLazy;
use kofm_core::protocols::quorum::Quorum;
use kofm_core::protocols::roaming::Roaming;
use kofm_core::topology::{Graph, Topology};
use kofm_core::{Cluster, Demand, PoolId, Protocol, SiteId};
use kofm_sim::mortal::{Budget, Finding, explore};
use kofm_sim::world::{Script, Timers};

/// So many units, what claims ask for, how many each site makes, what goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case(pub u32, pub &'static [u32], pub &'static [u32], pub Budget);

impl Case {
    pub(crate) fn explore<P: Protocol, R: Rules>(self, rules: R, limit: u64) -> Finding {
        self.explore_on::<P, R>(Topology::Full, Timers::Never, rules, limit)
    }

    fn explore_on<P: Protocol, R: Rules>(
        self,
        topology: Topology,
        timers: Timers,
        rules: R,
        limit: u64,
    ) -> Finding {
        let Self(units, k, rounds, budget) = self;
        let demands = k.iter().map(|&k| Demand::one(PoolId(0), k)).collect();
        let sites = u16::try_from(rounds.len()).unwrap();
        let rounds = rounds.to_vec();
        let script = Script { rounds, timers, ..Script::new(sites, 1, demands) };
        let cluster = Cluster { topology, ..Cluster::new(sites, units) };
        explore::<P, R>(&cluster, &script, budget, rules, limit)
    }

    /// Everything is fine in so many worlds.
    pub(crate) fn holds<P: Protocol>(self, states: u64) {
        self.holds_on::<P>(Topology::Full, Timers::Never, states);
    }

    pub(crate) fn holds_on<P: Protocol>(self, topology: Topology, timers: Timers, states: u64) {
        let found = self.explore_on::<P, _>(topology, timers, Sound, 10_000_000);
        if let Some((violation, way)) = &found.violation {
            let (property, detail) = (violation.property, &violation.detail);
            panic!("{} {self:?}: {property}: {detail}\n{}", P::NAME, way.join("\n"));
        }
        assert!(found.complete);
        if std::env::var_os("COUNT").is_some() {
            println!("{} {self:?}: {} instead of {states}", P::NAME, found.states);
            return;
        }
        assert_eq!(found.states, states, "{} {self:?}", P::NAME);
    }
}

/// One site dies and does not come back.
pub(crate) const CRASH: Budget = Budget {
    crashes: 1,
    restarts: 0,
    memory: false,
    doubts: 0,
    resize: None,
    outages: 0,
    papers: 0,
    leaves: 0,
    repeats: 0,
    calm: false,
};
/// One site dies and may come back without memory.
pub(crate) const RESTART: Budget = Budget { restarts: 1, calm: true, ..CRASH };
/// One site dies and may come back with what was granted.
pub(crate) const MEMORY: Budget = Budget { memory: true, ..RESTART };
/// All die, in turn or at once, and some come back.
const ALL_DIE: Budget = Budget { crashes: 2, restarts: 2, ..RESTART };
/// One site is believed dead and is not.
pub(crate) const DOUBT: Budget = Budget { crashes: 0, doubts: 1, calm: true, ..CRASH };

const fn resize(units: u32) -> Budget {
    Budget { crashes: 0, resize: Some(units), ..CRASH }
}

#[test]
fn one_site_dies() {
    let case = Case(1, &[1], &[1, 1, 0], CRASH);
    case.holds::<Permission>(42_315);
    case.holds::<PermissionLazy>(34_858);
    case.holds::<Quorum>(20_314);
    case.holds::<Roaming>(14_052);
    Case(2, &[1, 2], &[1, 1, 0], CRASH).holds::<Roaming>(42_137);
}

/// Claims lose patience, and ask everybody, before and after.
#[test]
fn one_site_dies_while_a_claim_seeks() {
    let full = Topology::Full;
    Case(1, &[1], &[1, 1, 0], CRASH).holds_on::<Roaming>(full.clone(), Timers::Any, 14_052);
    Case(2, &[1], &[1, 1, 0], CRASH).holds_on::<Roaming>(full.clone(), Timers::Any, 6_900);
    Case(2, &[1, 2], &[1, 1, 0], CRASH).holds_on::<Roaming>(full.clone(), Timers::Quiet, 55_046);
    Case(2, &[1], &[1, 1, 1], CRASH).holds_on::<Roaming>(full, Timers::Quiet, 171_996);
}

#[test]
fn one_site_dies_and_comes_back() {
    let case = Case(1, &[1], &[1, 0, 0], RESTART);
    case.holds::<Permission>(110_637);
    case.holds::<Quorum>(98_366);
    case.holds::<Roaming>(79_001);
}

#[test]
fn one_site_dies_and_comes_back_with_what_was_granted() {
    let case = Case(1, &[1], &[1, 0, 0], MEMORY);
    case.holds::<Permission>(123_000);
    case.holds::<Quorum>(110_291);
    case.holds::<Roaming>(91_746);
}

/// Whoever is back first begins anew, and what the dead may use is kept from it.
#[test]
fn nobody_is_left() {
    let case = Case(1, &[1], &[1, 0], Budget { memory: true, ..ALL_DIE });
    case.holds::<Permission>(331_129);
    case.holds::<Roaming>(281_242);
}

/// Whoever is left closes the ring, and takes in who would be cut off.
#[test]
fn one_site_dies_where_not_all_are_neighbours() {
    let path = [(0, 1), (1, 2)].map(|(a, b)| (SiteId(a), SiteId(b)));
    let path = Topology::Graph(Graph::new(3, path.to_vec()).unwrap());
    let case = Case(1, &[1], &[1, 0, 1], CRASH);
    case.holds_on::<Permission>(Topology::Ring, Timers::Never, 22_709);
    case.holds_on::<Permission>(Topology::Tree, Timers::Never, 36_095);
    case.holds_on::<Permission>(path.clone(), Timers::Never, 26_396);
    case.holds_on::<Routed<Roaming>>(Topology::Ring, Timers::Never, 17_001);
    case.holds_on::<Routed<Roaming>>(path, Timers::Never, 19_057);
}

#[test]
fn a_pool_shrinks_while_it_is_in_use() {
    let case = Case(2, &[1, 2], &[1, 1, 0], resize(1));
    case.holds::<Permission>(73_453);
    case.holds::<Roaming>(14_672);
}

#[test]
#[ignore = "minutes; run it after a change of epochs or of a protocol"]
fn everything_else() {
    let all_die = Case(1, &[1], &[1, 0], ALL_DIE);
    all_die.holds::<Permission>(275_466);
    all_die.holds::<Roaming>(218_645);
    let all_die = Case(2, &[1], &[1, 1], ALL_DIE);
    all_die.holds::<Permission>(2_147_118);
    all_die.holds::<Roaming>(1_443_165);
    let all_die = Case(2, &[1], &[1, 1], Budget { memory: true, ..ALL_DIE });
    all_die.holds::<Permission>(3_683_474);
    all_die.holds::<Roaming>(2_342_091);
    let memory = Case(1, &[1], &[1, 1, 0], MEMORY);
    memory.holds::<Permission>(1_152_234);
    memory.holds::<Roaming>(728_113);
    let restart = Case(1, &[1], &[1, 1, 0], RESTART);
    restart.holds::<Permission>(1_005_267);
    restart.holds::<PermissionLazy>(860_152);
    restart.holds::<Quorum>(681_597);
    restart.holds::<Roaming>(624_893);
    let doubt = Case(1, &[1], &[1, 1, 0], DOUBT);
    doubt.holds::<Permission>(413_073);
    doubt.holds::<PermissionLazy>(368_971);
    doubt.holds::<Quorum>(301_410);
    doubt.holds::<Roaming>(310_197);
    let shrink = Case(2, &[1, 2], &[1, 1, 0], resize(1));
    shrink.holds::<PermissionLazy>(64_771);
    shrink.holds::<Quorum>(101_887);
    let grow = Case(2, &[1, 2], &[1, 1, 0], resize(3));
    grow.holds::<Permission>(88_622);
    grow.holds::<PermissionLazy>(78_100);
    grow.holds::<Quorum>(117_043);
    grow.holds::<Roaming>(19_817);
}
