//! The faults of the published listings, each shown alone by a shortest trace.

use kofm_core::Cluster;
use kofm_core::parts::Semaphores;
use kofm_core::protocols::sem_permission_as_printed::{
    self as permission, Annex, SemPermissionAsPrinted,
};
use kofm_core::protocols::sem_quorum_as_printed::{self as quorum, SemQuorumAsPrinted, Text};

use crate::{adding, pinned, script, violated};

macro_rules! readings {
    ($of:ident: $($name:ident: [$($fault:ident),*] $($what:ident: $is:ty = $raz:expr)?;)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl $of::Reading for $name {
            const FAULTS: &'static [$of::Fault] = &[$($of::Fault::$fault),*];
            $(const $what: Option<$is> = Some($raz);)?
        }
    )*};
}

readings! { permission:
    Repaired: [];
    Clock: [StampedByClock];
}

readings! { quorum:
    CalledBack: [];
    NoCallBack: [NoCallBack];
    Yields: [YieldWrites] QUORUMS: &'static [&'static [u16]] =
        &[&[3, 4], &[4, 5], &[3, 5], &[3, 4], &[3, 4], &[3, 4]];
    Kept: [] QUORUMS: &'static [&'static [u16]] =
        &[&[3, 4], &[4, 5], &[3, 5], &[3, 4], &[3, 4], &[3, 4]];
    OneCount: [OneVariable] QUORUMS: &'static [&'static [u16]] = &[&[1, 2], &[2], &[2]];
    Apart: [] QUORUMS: &'static [&'static [u16]] = &[&[1, 2], &[2], &[2]];
    Mixed: [MixedScales] RAZ: i64 = 2;
    Scaled: [] RAZ: i64 = 2;
    OneValue: [OneValue];
}

#[test]
fn nobody_waits_for_permissions() {
    let one = script(&[1, 1], 1, 1);
    let found = violated::<SemPermissionAsPrinted>(&Cluster::new(2, 1), &one);
    assert_eq!(found, Some(("value", 2)));
}

#[test]
fn two_sites_permit_each_other() {
    let one = script(&[1, 1], 1, 1);
    let found = violated::<Semaphores<Annex<Clock>>>(&Cluster::new(2, 1), &one);
    assert_eq!(found, Some(("count", 5)));
    pinned::<Semaphores<Annex<Repaired>>>(&Cluster::new(2, 1), &one, 21);
}

#[test]
fn permissions_that_are_never_called_back() {
    let one = script(&[1, 1, 1], 1, 1);
    let found = violated::<SemQuorumAsPrinted>(&Cluster::new(3, 1), &one);
    assert_eq!(found, Some(("progress", 6)));
    let alone = violated::<Semaphores<Text<NoCallBack>>>(&Cluster::new(3, 1), &one);
    assert_eq!(alone, found);
    let more = adding(&[0, 0, 1], 1, 1, script(&[2, 2, 2], 1, 1));
    pinned::<Semaphores<Text<CalledBack>>>(&Cluster::new(3, 2), &more, 43_389);
}

#[test]
fn a_permission_that_comes_back_unused_lowers_the_count() {
    // Claimants and arbiters are different sites, so that a request to oneself is on its way too.
    let all = adding(&[1, 0, 0, 0, 0, 0], 1, 1, script(&[2, 1, 1, 0, 0, 0], 1, 1));
    let found = violated::<Semaphores<Text<Yields>>>(&Cluster::new(6, 0), &all);
    assert_eq!(found, Some(("count", 18)));
    pinned::<Semaphores<Text<Kept>>>(&Cluster::new(6, 0), &all, 227_549);
}

#[test]
fn a_late_release_lowers_the_count_of_a_claimant() {
    // Site 1 arbitrates for site 0, and not for itself.
    let all = script(&[1, 2, 0], 1, 1);
    let found = violated::<Semaphores<Text<OneCount>>>(&Cluster::new(3, 2), &all);
    assert_eq!(found, Some(("value", 14)));
    pinned::<Semaphores<Text<Apart>>>(&Cluster::new(3, 2), &all, 337);
}

#[test]
fn counts_from_before_a_reset_are_mixed_with_those_after_it() {
    let all = adding(&[0, 0, 1], 1, 1, script(&[1, 1, 1], 1, 1));
    let found = violated::<Semaphores<Text<Mixed>>>(&Cluster::new(3, 2), &all);
    assert_eq!(found, Some(("progress", 18)));
    pinned::<Semaphores<Text<Scaled>>>(&Cluster::new(3, 2), &all, 7_311);
}

#[test]
fn one_variable_for_both_counts() {
    let all = adding(&[0, 0, 1], 1, 1, script(&[2, 1, 0], 1, 1));
    let found = violated::<Semaphores<Text<OneValue>>>(&Cluster::new(3, 1), &all);
    assert_eq!(found, Some(("progress", 10)));
}
