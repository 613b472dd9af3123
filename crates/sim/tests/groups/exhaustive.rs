//! Everything that can happen in small systems, with the number of worlds.

use kofm_core::protocols::groups::Groups;
use kofm_core::protocols::groups_hungry::GroupsHungry;
use kofm_core::{Cluster, Protocol, SiteId};
use kofm_sim::exhaustive::explore;
use kofm_sim::fairness::{Clients, fairness};
use kofm_sim::groups::names_groups;
use kofm_sim::world::Script;

use crate::topologies::{TWELVE, named};

/// The script in which every group may work for ever, or so many times.
pub(crate) fn script<P: Protocol>(cluster: &Cluster, rounds: Option<u32>) -> Script {
    let grouping = cluster.grouping().unwrap();
    let named = names_groups::<P>(cluster);
    let once = Script::of_groups(&grouping, named, rounds.unwrap_or(1));
    Script { endless: rounds.is_none(), ..once }
}

/// Explores all, and says how many worlds there are.
fn all<P: Protocol>(cluster: &Cluster, rounds: Option<u32>) -> u64 {
    let found = explore::<P>(cluster, &script::<P>(cluster, rounds), 10_000_000, |_| {});
    if let Some((violation, steps)) = &found.violation {
        let steps: Vec<String> = steps.iter().map(kofm_sim::trace::Step::text).collect();
        panic!("{violation:?}\n{}", steps.join("\n"));
    }
    assert!(found.complete);
    found.states
}

/// The duties of clients: where claims name no group, all come; where they do, the awaited ones.
fn owed<P: Protocol>(cluster: &Cluster) -> Clients {
    if names_groups::<P>(cluster) { Clients::Arrive } else { Clients::Come }
}

/// Explores all without end; every group can always work again and none is starved.
fn lively<P: Protocol>(cluster: &Cluster) -> u64 {
    let states = all::<P>(cluster, None);
    let script = script::<P>(cluster, None);
    let again = fairness::<P>(cluster, &script, owed::<P>(cluster), u32::MAX).unwrap();
    assert_eq!((again.dead, again.starved), (vec![], vec![]));
    assert_eq!(u64::from(again.states), states);
    states
}

#[test]
fn groups_take_turns_for_ever_on_twelve_topologies() {
    let found = TWELVE.map(|name| (name, lively::<Groups>(&named(name))));
    let expected = [
        ("free", 33),
        ("share", 330),
        ("fig1b", 324),
        ("pairs", 1_476),
        ("free3", 1_523),
        ("tri", 2_475),
        ("ring", 5_092),
        ("hub", 13_633),
        ("hub2", 13_525),
        ("trio", 42_990),
        ("fig1a", 49_008),
        ("fig3", 73_920),
    ];
    assert_eq!(found, expected);
}

#[test]
fn it_does_not_matter_where_forks_lie_in_the_beginning() {
    for (name, forks) in [("ring", [(2, 0), (3, 1)]), ("fig3", [(1, 0), (4, 3)])] {
        for which in 1..4 {
            let mut grouping = named(name).grouping().unwrap();
            for (i, (holder, other)) in forks.into_iter().enumerate() {
                if which >> i & 1 == 1 {
                    grouping = grouping.with_fork(SiteId(holder), SiteId(other)).unwrap();
                }
            }
            lively::<Groups>(&Cluster::of_groups(grouping));
        }
    }
}

#[test]
fn hungry_groups_work_for_ever_and_idle_ones_hold_up_nobody() {
    let names = ["free", "share", "fig1b", "pairs", "free3", "can2", "can3"];
    let found = names.map(|name| (name, lively::<GroupsHungry>(&named(name))));
    let expected = [
        ("free", 23),
        ("share", 1_470),
        ("fig1b", 1_714),
        ("pairs", 1_976),
        ("free3", 149),
        ("can2", 1_470),
        ("can3", 8_820),
    ];
    assert_eq!(found, expected);
}

#[test]
fn hungry_groups_work_for_ever_in_larger_systems() {
    let found = ["tri", "hub"].map(|name| (name, lively::<GroupsHungry>(&named(name))));
    assert_eq!(found, [("tri", 168_450), ("hub", 304_889)]);
    let found = ["ring", "fig3"].map(|name| (name, all::<GroupsHungry>(&named(name), Some(1))));
    assert_eq!(found, [("ring", 272_702), ("fig3", 126_298)]);
}

#[test]
fn every_wish_of_a_hungry_group_is_fulfilled_once() {
    let names = ["free", "share", "fig1b", "pairs", "free3", "tri", "hub", "hub2", "trio", "fig1a"];
    let found = names.map(|name| (name, all::<GroupsHungry>(&named(name), Some(1))));
    let expected = [
        ("free", 14),
        ("share", 248),
        ("fig1b", 303),
        ("pairs", 307),
        ("free3", 52),
        ("tri", 5_061),
        ("hub", 6_105),
        ("hub2", 5_442),
        ("trio", 983),
        ("fig1a", 8_845),
    ];
    assert_eq!(found, expected);
}

#[test]
fn an_idle_group_stops_those_that_take_turns_but_not_the_hungry() {
    // p3 of fig1b never wants to work.
    fn idle<P: Protocol>() -> Option<String> {
        let cluster = named("fig1b");
        let mut script = script::<P>(&cluster, Some(2));
        script.own[2] = Vec::new();
        if names_groups::<P>(&cluster) {
            script.own[0].truncate(1);
        }
        let found = explore::<P>(&cluster, &script, 1_000_000, |_| {});
        found.violation.map(|violation| violation.0.property.to_owned())
    }
    assert_eq!(idle::<Groups>().as_deref(), Some("progress"));
    assert_eq!(idle::<GroupsHungry>(), None);
}
