use kofm_core::Protocol;
use kofm_core::protocols::groups::Groups;
use kofm_core::protocols::groups_hungry::GroupsHungry;
use kofm_sim::exhaustive::explore;
use kofm_sim::fairness::fairness;
use kofm_sim::world::Script;

use crate::topologies::{TWELVE, named};

fn show<P: Protocol>(name: &str, named_groups: bool, rounds: Option<u32>, limit: u64) {
    let cluster = named(name);
    let script = Script {
        endless: rounds.is_none(),
        ..Script::of_groups(&cluster.grouping().unwrap(), named_groups, rounds.unwrap_or(1))
    };
    let found = explore::<P>(&cluster, &script, limit, |_| {});
    println!(
        "{name} {rounds:?} {} {} {:?}",
        found.states,
        found.complete,
        found.violation.as_ref().map(|v| (&v.0, v.1.iter().map(|s| s.text()).collect::<Vec<_>>()))
    );
    if rounds.is_none() && found.complete {
        println!("  {:?}", fairness::<P>(&cluster, &script, !named_groups, 1_000_000));
    }
}

#[test]
fn hungry() {
    for name in ["free", "share", "fig1b", "pairs", "free3", "tri", "hub", "can2", "can3"] {
        show::<GroupsHungry>(name, true, None, 3_000_000);
    }
    for name in TWELVE {
        show::<GroupsHungry>(name, true, Some(1), 4_000_000);
    }
}
#[test]
fn count() {
    for name in TWELVE {
        show::<Groups>(name, false, None, 1_000_000);
    }
}
use kofm_core::protocols::groups_as_printed::GroupsAsPrinted;
use kofm_core::protocols::groups_as_printed_self::GroupsAsPrintedSelf;
use kofm_core::protocols::groups_hungry_as_printed::GroupsHungryAsPrinted;
#[test]
fn printed() {
    for name in ["fig1b", "ring", "fig3", "share"] {
        for rounds in [Some(2), None] {
            println!("kindest");
            show::<GroupsAsPrinted>(name, false, rounds, 2_000_000);
            println!("self");
            show::<GroupsAsPrintedSelf>(name, false, rounds, 2_000_000);
        }
    }
    for name in ["can2", "can3", "fig1b"] {
        show::<GroupsHungryAsPrinted>(name, true, Some(1), 2_000_000);
        show::<GroupsHungryAsPrinted>(name, true, Some(2), 2_000_000);
    }
}
