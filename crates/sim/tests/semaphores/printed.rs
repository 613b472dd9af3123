//! The faults of the published listings, each shown alone by a shortest trace.

use kofm_core::protocols::sem_permission_as_printed::SemPermissionAsPrinted;
use kofm_core::protocols::sem_quorum_as_printed::SemQuorumAsPrinted;
use kofm_core::protocols::sem_token_as_printed::SemTokenAsPrinted;
use kofm_core::{Cluster, Fault, PoolId, SiteId};

use crate::{adding, pinned, script, violated};

/// The cluster with a reading of its listing.
fn read(cluster: Cluster, faults: &[Fault]) -> Cluster {
    Cluster { reading: Some(faults.iter().copied().collect()), ..cluster }
}

/// The same with request sets of its sites.
fn asking(cluster: Cluster, sets: &[&[u16]]) -> Cluster {
    let sites = |set: &&[u16]| set.iter().copied().map(SiteId).collect();
    let sets = sets.iter().map(sites).collect();
    Cluster { sets: [(PoolId(0), sets)].into(), ..cluster }
}

fn resetting(cluster: Cluster) -> Cluster {
    Cluster { reset: Some(2), ..cluster }
}

#[test]
fn permissions_that_are_not_awaited_take_units_twice() {
    let one = script(&[1, 1], 1, 1);
    let found = violated::<SemPermissionAsPrinted>(&Cluster::new(2, 1), &one);
    assert_eq!(found, Some(("value", 2)));
}

#[test]
fn two_sites_permit_each_other() {
    let one = script(&[1, 1], 1, 1);
    let clock = read(Cluster::new(2, 1), &[Fault::StampedByClock]);
    assert_eq!(violated::<SemPermissionAsPrinted>(&clock, &one), Some(("count", 5)));
    pinned::<SemPermissionAsPrinted>(&read(Cluster::new(2, 1), &[]), &one, 21);
}

#[test]
fn permissions_that_are_never_called_back() {
    let one = script(&[1, 1, 1], 1, 1);
    let found = violated::<SemQuorumAsPrinted>(&Cluster::new(3, 1), &one);
    assert_eq!(found, Some(("progress", 6)));
    let alone = read(Cluster::new(3, 1), &[Fault::NoCallBack]);
    assert_eq!(violated::<SemQuorumAsPrinted>(&alone, &one), found);
    let more = adding(&[0, 0, 1], 1, 1, script(&[2, 2, 2], 1, 1));
    pinned::<SemQuorumAsPrinted>(&read(Cluster::new(3, 2), &[]), &more, 43_389);
}

#[test]
fn a_permission_that_comes_back_unused_lowers_the_count() {
    // Claimants and arbiters are different sites, so that a request to oneself is on its way too.
    let sets: &[&[u16]] = &[&[3, 4], &[4, 5], &[3, 5], &[3, 4], &[3, 4], &[3, 4]];
    let all = adding(&[1, 0, 0, 0, 0, 0], 1, 1, script(&[2, 1, 1, 0, 0, 0], 1, 1));
    let cluster = || asking(Cluster::new(6, 0), sets);
    let found = violated::<SemQuorumAsPrinted>(&read(cluster(), &[Fault::YieldWrites]), &all);
    assert_eq!(found, Some(("count", 18)));
    pinned::<SemQuorumAsPrinted>(&read(cluster(), &[]), &all, 227_549);
}

#[test]
fn a_late_release_lowers_the_count_of_a_claimant() {
    // Site 1 arbitrates for site 0, and not for itself.
    let sets: &[&[u16]] = &[&[1, 2], &[2], &[2]];
    let all = script(&[1, 2, 0], 1, 1);
    let cluster = || asking(Cluster::new(3, 2), sets);
    let found = violated::<SemQuorumAsPrinted>(&read(cluster(), &[Fault::OneVariable]), &all);
    assert_eq!(found, Some(("value", 14)));
    pinned::<SemQuorumAsPrinted>(&read(cluster(), &[]), &all, 337);
}

#[test]
fn counts_from_before_a_reset_are_mixed_with_those_after_it() {
    let all = adding(&[0, 0, 1], 1, 1, script(&[1, 1, 1], 1, 1));
    let cluster = || resetting(Cluster::new(3, 2));
    let found = violated::<SemQuorumAsPrinted>(&read(cluster(), &[Fault::MixedScales]), &all);
    assert_eq!(found, Some(("progress", 18)));
    pinned::<SemQuorumAsPrinted>(&read(cluster(), &[]), &all, 7_311);
}

#[test]
fn one_variable_for_both_counts() {
    let all = adding(&[0, 0, 1], 1, 1, script(&[2, 1, 0], 1, 1));
    let one = read(Cluster::new(3, 1), &[Fault::OneValue]);
    assert_eq!(violated::<SemQuorumAsPrinted>(&one, &all), Some(("progress", 10)));
}

#[test]
fn a_token_on_a_ring_or_a_tree_is_right() {
    let all = adding(&[1, 1, 1], 1, 1, script(&[1, 1, 1], 1, 1));
    pinned::<SemTokenAsPrinted>(&Cluster::new(3, 1), &all, 37_123);
    pinned::<SemTokenAsPrinted>(&read(Cluster::new(3, 1), &[Fault::Ring]), &all, 55_250);
}

#[test]
fn a_token_that_does_not_wait_for_acknowledgements_takes_units_twice() {
    let all = adding(&[1, 1, 1], 1, 1, script(&[2, 2, 2], 1, 1));
    let read = |faults: &[Fault]| {
        violated::<SemTokenAsPrinted>(&read(resetting(Cluster::new(3, 1)), faults), &all)
    };
    assert_eq!(read(&[Fault::Unacknowledged]), Some(("value", 15)));
    assert_eq!(read(&[Fault::Ring, Fault::Unacknowledged]), Some(("value", 13)));
    assert_eq!(read(&[Fault::Unsigned]), Some(("value", 14)));
}
