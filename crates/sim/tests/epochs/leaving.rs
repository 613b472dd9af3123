//! Sites leave by themselves: nothing of theirs is withheld, and their clients keep their places.

use kofm_core::epoch::{Rules, Slip, Sound};
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::permission_lazy::PermissionLazy;
use kofm_core::protocols::quorum::Quorum;
use kofm_core::protocols::roaming::Roaming;
use kofm_sim::mortal::Budget;

use crate::exhaustive::{CRASH, Case};

/// One site leaves and comes back.
const LEAVES: Budget = Budget { crashes: 0, leaves: 1, calm: true, ..CRASH };
#[test]
fn one_site_leaves() {
    let case = Case(1, &[1], &[1, 1], LEAVES);
    case.holds::<Permission>(3_019);
    case.holds::<PermissionLazy>(2_987);
    case.holds::<Quorum>(1_996);
    case.holds::<Roaming>(2_086);
}

/// The first violation among the first worlds of some cases.
fn find<R: Rules>(rules: R, worlds: u64) -> Option<String> {
    let cases = [Case(1, &[1], &[1, 1, 0], LEAVES), Case(1, &[1], &[1, 1, 1], LEAVES)];
    cases.into_iter().find_map(|case| {
        let found = case.explore::<Permission, _>(rules, worlds);
        let (violation, way) = found.violation?;
        let (property, steps) = (violation.property, way.len());
        Some(format!("{property}, {} worlds, {steps} steps: {}", found.states, violation.detail))
    })
}

#[test]
fn every_slip_of_leaving_is_found() {
    let slips = [Slip::LeaverGoesOn, Slip::LeaverIsWithheld, Slip::RanksByHome];
    for slip in slips {
        let found = find(slip, 200_000);
        println!("| {slip:?} | {} |", found.as_deref().unwrap_or("not found"));
        assert!(found.is_some(), "{slip:?} is not found");
    }
    assert_eq!(find(Sound, 20_000), None);
}
