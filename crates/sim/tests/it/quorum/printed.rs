//! The faults of the published listing, each shown alone by a shortest trace.

use kofm_core::Cluster;
use kofm_core::protocols::quorum_as_printed::{Fault, QuorumAsPrinted, Reading};
use kofm_core::protocols::quorum_as_printed_inquire::QuorumAsPrintedInquire;
use kofm_core::quorums::Construction;

use super::{amounts, arbitrated, group, made_by, pinned, script, violated};

macro_rules! readings {
    ($($name:ident: [$($fault:ident),*];)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;

        impl Reading for $name {
            const NAME: &'static str = stringify!($name);
            const SUMMARY: &'static str = "";
            const FAULTS: &'static [Fault] = &[$(Fault::$fault),*];
        }
    )*};
}

readings! {
    Kind: [];
    Deaf: [DeafSelect];
    Stamps: [StampPerMessage];
    Unchecked: [UncheckedRelease];
    Vacuous: [VacuousSets];
    OwnAlways: [OwnRecallAlways];
    Literal: [
        DeafSelect, Untagged, StampPerMessage, UncheckedRelease, OwnRecallAlways, VacuousSets,
        DeafClock
    ];
}

fn everybody(sites: u16, units: u32) -> Cluster {
    arbitrated(sites, units, made_by(Construction::Broadcast))
}

fn one_arbiter(units: u32) -> Cluster {
    arbitrated(3, units, group(&[0]))
}

#[test]
fn handlers_that_wait_for_each_other() {
    let all = script(&[1, 1, 1], amounts(&[1, 2]));
    assert_eq!(violated::<QuorumAsPrinted>(&Cluster::new(3, 2), &all), Some(("progress", 13)));
    assert_eq!(
        violated::<QuorumAsPrinted<Deaf>>(&Cluster::new(3, 2), &all),
        Some(("progress", 13))
    );
    pinned::<QuorumAsPrinted<Kind>>(&Cluster::new(3, 2), &all, 49_538);
}

#[test]
fn a_late_inquire_is_answered_for_the_wrong_request() {
    let twice = script(&[0, 2, 2], amounts(&[1]));
    assert_eq!(violated::<QuorumAsPrintedInquire>(&one_arbiter(1), &twice), Some(("capacity", 18)));
    assert_eq!(violated::<QuorumAsPrinted>(&one_arbiter(1), &twice), Some(("capacity", 18)));
    pinned::<QuorumAsPrinted<Kind>>(&one_arbiter(1), &twice, 185);
}

#[test]
fn each_arbiter_sees_another_stamp() {
    let once = script(&[1, 1], amounts(&[1]));
    assert_eq!(violated::<QuorumAsPrinted<Stamps>>(&everybody(2, 1), &once), Some(("progress", 4)));
    assert_eq!(
        violated::<QuorumAsPrinted<Literal>>(&everybody(2, 1), &once),
        Some(("progress", 4))
    );
    pinned::<QuorumAsPrinted<Kind>>(&everybody(2, 1), &once, 40);
}

#[test]
fn a_release_lets_in_whoever_is_next() {
    let all = script(&[1, 1, 1], amounts(&[1, 2]));
    assert_eq!(
        violated::<QuorumAsPrinted<Unchecked>>(&one_arbiter(2), &all),
        Some(("capacity", 8))
    );
    pinned::<QuorumAsPrinted<Kind>>(&one_arbiter(2), &all, 762);
}

#[test]
fn no_condition_where_sites_are_few() {
    let all = script(&[1, 1], amounts(&[2]));
    assert_eq!(
        violated::<QuorumAsPrinted<Vacuous>>(&Cluster::new(2, 2), &all),
        Some(("capacity", 2))
    );
    pinned::<QuorumAsPrinted<Kind>>(&Cluster::new(2, 2), &all, 20);
}

#[test]
fn the_own_request_is_recalled_though_it_is_over() {
    let all = script(&[1, 2, 1], amounts(&[1, 2]));
    assert_eq!(violated::<QuorumAsPrinted<OwnAlways>>(&everybody(3, 2), &all), Some(("rest", 27)));
    pinned::<QuorumAsPrinted<Kind>>(&everybody(3, 2), &all, 193_259);
}
