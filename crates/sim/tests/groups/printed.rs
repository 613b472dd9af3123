//! The published listings, and how each reading of them fails.

use kofm_core::Protocol;
use kofm_core::protocols::groups_as_printed::{GroupsAsPrinted, Own, Reading};
use kofm_core::protocols::groups_as_printed_self::GroupsAsPrintedSelf;
use kofm_core::protocols::groups_hungry_as_printed::GroupsHungryAsPrinted;
use kofm_sim::exhaustive::explore;
use kofm_sim::fairness::{Clients, fairness};
use kofm_sim::world::Script;

use crate::exhaustive::script;
use crate::topologies::named;

/// The property that is broken first, and after how many steps.
fn fails<P: Protocol>(topology: &str) -> Option<(&'static str, usize)> {
    fails_as::<P>(topology, false)
}

/// The same; `lenient`, the work of a group ends for each member by itself.
fn fails_as<P: Protocol>(topology: &str, lenient: bool) -> Option<(&'static str, usize)> {
    let cluster = named(topology);
    let script = Script { lenient, ..script::<P>(&cluster, Some(2)) };
    let found = explore::<P>(&cluster, &script, 2_000_000, |_| {});
    found.violation.map(|(violation, steps)| (violation.property, steps.len()))
}

macro_rules! reading {
    ($name:ident: $($rule:ident = $value:expr),*) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl Reading for $name {
            const NAME: &'static str = stringify!($name);
            const SUMMARY: &'static str = "a reading of the published listing";
            $(reading!(@ $rule = $value);)*
        }
    };
    (@ BLOCKING = $value:expr) => { const BLOCKING: bool = $value; };
    (@ OWN = $value:expr) => { const OWN: Own = $value; };
    (@ NEAREST_ELSE = $value:expr) => { const NEAREST_ELSE: bool = $value; };
    (@ DRAFTS = $value:expr) => { const DRAFTS: bool = $value; };
}

reading!(Open: BLOCKING = false, OWN = Own::Excluded);
reading!(Forgotten: BLOCKING = true, OWN = Own::Forgotten);
reading!(NearestElse: BLOCKING = true, OWN = Own::Excluded, NEAREST_ELSE = true);
reading!(Drafted: BLOCKING = true, OWN = Own::Excluded, DRAFTS = true);

#[test]
fn a_process_works_for_one_group_while_another_counts_it_in() {
    assert_eq!(fails::<GroupsAsPrinted>("ring"), Some(("one group at a time", 10)));
    assert_eq!(fails::<GroupsAsPrinted>("share"), Some(("one group at a time", 5)));
    assert_eq!(fails::<GroupsAsPrinted>("fig3"), Some(("one group at a time", 7)));
}

#[test]
fn with_itself_among_those_to_inform_groups_deadlock() {
    assert_eq!(fails::<GroupsAsPrintedSelf>("fig1b"), Some(("progress", 6)));
    assert_eq!(fails::<GroupsAsPrintedSelf>("ring"), Some(("progress", 8)));
    let cluster = named("share");
    let script = script::<GroupsAsPrintedSelf>(&cluster, None);
    let again = fairness::<GroupsAsPrintedSelf>(&cluster, &script, Clients::Come, 1_000).unwrap();
    assert_eq!(again.dead, [kofm_core::GroupId(0)]);
}

#[test]
fn every_other_reading_fails_too() {
    // Two steps before a process works for two groups, a group works without a resource.
    assert_eq!(fails::<GroupsAsPrinted<Open>>("ring"), Some(("resources", 7)));
    assert_eq!(fails::<GroupsAsPrinted<Forgotten>>("free"), Some(("progress", 4)));
    assert_eq!(fails::<GroupsAsPrinted<NearestElse>>("ring"), Some(("progress", 13)));
    assert_eq!(fails::<GroupsAsPrinted<Drafted>>("ring"), Some(("together", 3)));
}

#[test]
fn a_deleted_inform_arrives_late_in_a_group_of_three() {
    // 14 steps where the two groups' wishes are steps of their own.
    let late = fails_as::<GroupsHungryAsPrinted>("can3", true);
    assert_eq!(late, Some(("one group at a time", 12)));
    // Read strictly, groups that share a process overlap before that.
    assert_eq!(fails::<GroupsHungryAsPrinted>("can3"), Some(("overlap", 9)));
}
