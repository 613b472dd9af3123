//! Every interleaving, with counts pinned: a change that opens or closes a way shows here.

use kofm_core::protocols::quorum::Quorum;
use kofm_core::quorums::Construction;
use kofm_core::{Cluster, Units};
use kofm_sim::world::Script;

use super::{amounts, arbitrated, group, made_by, one_of_each, pinned, script};

type Sound = Quorum;

#[test]
fn one_unit_two_of_three_arbiters() {
    let cluster = arbitrated(3, 1, made_by(Construction::Uniform));
    pinned::<Sound>(&cluster, &script(&[2, 2, 2], amounts(&[1])), 13_693);
    let withdraw = Script { withdraw: true, ..script(&[1, 2, 1], amounts(&[1])) };
    pinned::<Sound>(&cluster, &withdraw, 18_276);
}

#[test]
fn several_claims_of_a_site() {
    let cluster = arbitrated(3, 1, made_by(Construction::Uniform));
    let two = Script { slots: 2, withdraw: true, ..script(&[2, 2, 0], amounts(&[1])) };
    pinned::<Sound>(&cluster, &two, 14_052);
    let cluster = Cluster::new(2, 2);
    let two =
        Script { slots: 2, partial: true, withdraw: true, ..script(&[2, 2], amounts(&[1, 2])) };
    pinned::<Sound>(&cluster, &two, 8563);
}

#[test]
fn one_unit_on_the_fano_plane() {
    let cluster = arbitrated(7, 1, made_by(Construction::Projective));
    pinned::<Sound>(&cluster, &script(&[1, 1, 1, 0, 0, 0, 0], amounts(&[1])), 8663);
    pinned::<Sound>(&cluster, &script(&[1, 1, 0, 1, 0, 0, 0], amounts(&[1])), 8939);
    pinned::<Sound>(&cluster, &script(&[2, 2, 1, 0, 0, 0, 0], amounts(&[1])), 129_673);
    let withdraw = Script { withdraw: true, ..script(&[1, 1, 0, 1, 0, 0, 0], amounts(&[1])) };
    pinned::<Sound>(&cluster, &withdraw, 288_840);
}

#[test]
fn two_units_everybody_asks_everybody() {
    let cluster = Cluster::new(3, 2);
    let all = Script { partial: true, withdraw: true, ..script(&[1, 1, 1], amounts(&[1, 2])) };
    pinned::<Sound>(&cluster, &all, 5_373_031);
}

#[test]
fn two_units_three_of_four_arbiters() {
    let cluster = arbitrated(4, 2, made_by(Construction::Uniform));
    pinned::<Sound>(&cluster, &script(&[1, 1, 1, 0], amounts(&[1, 2])), 105_991);
    pinned::<Sound>(&cluster, &script(&[1, 1, 1, 1], amounts(&[2])), 460_052);
    let partial = Script { partial: true, ..script(&[1, 1, 1, 0], amounts(&[1, 2])) };
    pinned::<Sound>(&cluster, &partial, 211_728);
}

#[test]
fn three_units_four_of_five_arbiters() {
    let cluster = arbitrated(5, 3, made_by(Construction::Uniform));
    pinned::<Sound>(&cluster, &script(&[1, 1, 1, 0, 0], amounts(&[2])), 604_636);
    pinned::<Sound>(&cluster, &script(&[1, 1, 1, 0, 0], amounts(&[1, 3])), 4_472_325);
    pinned::<Sound>(&cluster, &script(&[1, 1, 0, 0, 0], amounts(&[1, 2, 3])), 33_599);
}

#[test]
fn more_units_than_sites() {
    for (units, count) in [(2, 371), (3, 1020), (5, 4316)] {
        let all: Vec<u32> = (1..=units).collect();
        let partial = Script { partial: true, ..script(&[2, 2], amounts(&all)) };
        pinned::<Sound>(&Cluster::new(2, units), &partial, count);
    }
}

#[test]
fn a_ring_of_demands_over_three_pools() {
    let ring = vec![one_of_each(&[0, 1]), one_of_each(&[1, 2]), one_of_each(&[0, 2])];
    let said = group(&[0, 1]);
    let pools = |units: [u32; 3]| Cluster {
        pools: units.map(Units).to_vec(),
        arbitration: (0..3).map(|pool| (kofm_core::PoolId(pool), said.clone())).collect(),
        ..Cluster::new(3, 1)
    };
    pinned::<Sound>(&pools([1, 1, 1]), &script(&[1, 1, 1], ring.clone()), 772_494);
    pinned::<Sound>(&pools([1, 2, 1]), &script(&[1, 1, 1], ring), 943_611);
}

#[test]
fn two_pools_asked_together_and_alone() {
    let demands = vec![one_of_each(&[0]), one_of_each(&[1]), one_of_each(&[0, 1])];
    let cluster = Cluster { pools: vec![Units(1), Units(1)], ..Cluster::new(3, 1) };
    pinned::<Sound>(&cluster, &script(&[1, 1, 1], demands.clone()), 28_332);
    let cluster = Cluster { pools: vec![Units(2), Units(1)], ..Cluster::new(2, 1) };
    let all = Script { slots: 2, withdraw: true, partial: true, ..script(&[2, 1], demands) };
    pinned::<Sound>(&cluster, &all, 7873);
}
