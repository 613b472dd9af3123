//! Leases that outlive their site, and everything that can follow when they are presented.

use kofm_core::epoch::{Rules, Slip, Sound};
use kofm_core::protocols::roaming::Roaming;
use kofm_sim::mortal::Budget;

use crate::exhaustive::{CRASH, Case, DOUBT, MEMORY};

/// One site dies, and leases are presented twice.
const DIES: Budget = Budget { papers: 2, calm: true, ..CRASH };
/// The site that adopted the lease dies, too.
const BOTH_DIE: Budget = Budget { crashes: 2, ..DIES };
/// One of two sites is left out while it lives, and its clients go on.
const LEFT_OUT: Budget = Budget { papers: 2, calm: false, ..DOUBT };
/// A site comes back with what it had granted, of which a lease may be elsewhere.
const RETURNS: Budget = Budget { papers: 1, ..MEMORY };
/// The same, left out while it lived.
const REJOINS: Budget = Budget { memory: true, papers: 1, calm: false, ..DOUBT };

/// Cases in which each slip is looked for.
const CASES: &[(&str, Case)] = &[
    ("dies", Case(1, &[1], &[1, 0, 0], DIES)),
    ("left out", Case(1, &[1], &[1, 0], LEFT_OUT)),
    ("left out, two grants", Case(1, &[1], &[2, 0], LEFT_OUT)),
    ("left out, others claim", Case(1, &[1], &[2, 1], LEFT_OUT)),
    ("both die", Case(1, &[1], &[1, 0, 0], BOTH_DIE)),
    ("both die, others claim", Case(1, &[1], &[1, 0, 1], BOTH_DIE)),
    ("returns", Case(1, &[1], &[1, 1], RETURNS)),
    ("rejoins", Case(1, &[1], &[2, 0], REJOINS)),
];

#[test]
fn a_lease_goes_on_when_its_site_dies() {
    Case(1, &[1], &[1, 0, 0], DIES).holds::<Roaming>(3_847);
    Case(1, &[1], &[0, 0, 1], DIES).holds::<Roaming>(4_003);
}

#[test]
fn a_lease_goes_on_when_its_new_site_dies_as_well() {
    Case(1, &[1], &[1, 0, 0], BOTH_DIE).holds::<Roaming>(49_108);
}

/// The first violation among the first worlds of all cases.
fn find<R: Rules>(rules: R, worlds: u64) -> Option<String> {
    CASES.iter().find_map(|(name, case)| {
        let found = case.explore::<Roaming, _>(rules, worlds);
        let (violation, way) = found.violation?;
        let (property, steps) = (violation.property, way.len());
        Some(format!("{name}, {} worlds, {steps} steps: {property}", found.states))
    })
}

#[test]
#[ignore = "minutes; run it after a change of epochs or of leases"]
fn sound_rules_hold_in_the_first_worlds_of_all_cases() {
    assert_eq!(find(Sound, 1_000_000), None);
}

const SLIPS: [Slip; 8] = [
    Slip::AdoptsWhatMembersHave,
    Slip::AdoptsTwice,
    Slip::FirstPaperWins,
    Slip::DiskBesideAdopter,
    Slip::AdopterIsNotWithheld,
    Slip::FreesAdopted,
    Slip::ReusesBeforeBeat,
    Slip::TakesLateAnswer,
];

#[test]
#[ignore = "minutes; run it after a change of epochs or of leases"]
fn every_slip_with_leases_is_found() {
    let mut missed = Vec::new();
    for slip in SLIPS {
        let found = find(slip, 1_000_000);
        println!("| {slip:?} | {} |", found.as_deref().unwrap_or("not found"));
        if found.is_none() {
            missed.push(slip);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
