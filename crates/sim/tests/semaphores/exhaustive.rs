//! Every interleaving within bounds; counts are pinned, so that a change of behaviour is seen.

use kofm_core::Cluster;
use kofm_core::parts::Semaphores;
use kofm_core::parts::semaphores::Rules;
use kofm_core::protocols::sem_permission::{ByPermission, SemPermission};
use kofm_core::protocols::sem_quorum::{ByQuorum, SemQuorum};
use kofm_core::protocols::sem_token::{ByToken, SemToken};
use kofm_sim::world::Script;

use crate::{adding, pinned, script};

/// Rules that reset counters all the time.
macro_rules! resets {
    ($($name:ident: $x:literal;)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl Rules for $name {
            const RESET: i64 = $x;
        }
    )*};
}

resets! {
    EveryUnit: 1;
    EveryTwo: 2;
}

#[test]
fn two_sites_take_and_add_one_and_two() {
    let both = adding(&[2, 2], 1, 2, script(&[3, 3], 1, 2));
    pinned::<SemPermission>(&Cluster::new(2, 1), &both, 660_938);
    let less = adding(&[2, 1], 1, 2, script(&[3, 2], 1, 2));
    pinned::<SemToken>(&Cluster::new(2, 1), &less, 77_260);
    pinned::<SemQuorum>(&Cluster::new(2, 1), &less, 76_436);
}

#[test]
fn three_sites_and_one_that_only_adds() {
    let adds = adding(&[0, 0, 2], 1, 1, script(&[2, 2, 0], 1, 1));
    pinned::<SemPermission>(&Cluster::new(3, 0), &adds, 7_648);
    pinned::<SemToken>(&Cluster::new(3, 0), &adds, 286);
    pinned::<SemQuorum>(&Cluster::new(3, 0), &adds, 1_878);
    let one = adding(&[0, 0, 2], 1, 1, script(&[2, 2, 1], 1, 1));
    pinned::<SemPermission>(&Cluster::new(3, 1), &one, 211_115);
}

#[test]
fn three_sites_take_what_there_is() {
    pinned::<SemPermission>(&Cluster::new(3, 3), &script(&[2, 2, 2], 1, 1), 30_635);
    let adds = adding(&[0, 0, 1], 1, 1, script(&[2, 2, 2], 1, 1));
    pinned::<SemToken>(&Cluster::new(3, 2), &adds, 6_498);
    pinned::<SemQuorum>(&Cluster::new(3, 2), &adds, 45_774);
}

#[test]
fn several_claims_at_a_site_that_may_be_withdrawn() {
    let two = adding(&[1, 0], 1, 2, script(&[2, 2], 1, 2));
    let two = Script { slots: 2, withdraw: true, ..two };
    let less = Script { rounds: vec![2, 1], ..two.clone() };
    pinned::<SemPermission>(&Cluster::new(2, 1), &less, 48_289);
    pinned::<SemToken>(&Cluster::new(2, 1), &two, 16_251);
    pinned::<SemQuorum>(&Cluster::new(2, 1), &two, 33_208);
    let three = adding(&[0, 0, 1], 1, 1, script(&[2, 1, 1], 1, 1));
    let three = Script { slots: 2, withdraw: true, ..three };
    let less = Script { rounds: vec![2, 1, 0], ..three.clone() };
    pinned::<SemPermission>(&Cluster::new(3, 0), &less, 582_017);
    pinned::<SemToken>(&Cluster::new(3, 0), &three, 17_222);
    pinned::<SemQuorum>(&Cluster::new(3, 0), &three, 427_350);
}

#[test]
fn counters_are_reset_all_the_time() {
    let two = adding(&[2, 1], 1, 2, script(&[3, 2], 1, 2));
    pinned::<Semaphores<ByPermission<EveryUnit>>>(&Cluster::new(2, 1), &two, 133_675);
    pinned::<Semaphores<ByPermission<EveryTwo>>>(&Cluster::new(2, 1), &two, 95_684);
    let three = adding(&[0, 1, 1], 1, 1, script(&[2, 1, 1], 1, 1));
    pinned::<Semaphores<ByToken<EveryUnit>>>(&Cluster::new(3, 1), &three, 108_996);
    pinned::<Semaphores<ByToken<EveryTwo>>>(&Cluster::new(3, 1), &three, 36_506);
    pinned::<Semaphores<ByQuorum<EveryUnit>>>(&Cluster::new(3, 1), &three, 43_145);
    pinned::<Semaphores<ByQuorum<EveryTwo>>>(&Cluster::new(3, 1), &three, 43_145);
}

#[test]
fn one_site_needs_nobody() {
    let alone = adding(&[3], 1, 2, script(&[4], 1, 3));
    let alone = Script { slots: 2, withdraw: true, ..alone };
    pinned::<SemPermission>(&Cluster::new(1, 1), &alone, 853);
    pinned::<SemToken>(&Cluster::new(1, 1), &alone, 853);
    pinned::<SemQuorum>(&Cluster::new(1, 1), &alone, 853);
}
