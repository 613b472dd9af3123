use kofm_core::protocols::groups::Groups;
use kofm_sim::exhaustive::explore;
use kofm_sim::fairness::fairness;
use kofm_sim::world::Script;

use crate::topologies::{TWELVE, named};

#[test]
fn count() {
    for name in TWELVE {
        let cluster = named(name);
        let script =
            Script { endless: true, ..Script::of_groups(&cluster.grouping().unwrap(), false, 1) };
        let found = explore::<Groups>(&cluster, &script, 1_000_000, |_| {});
        println!(
            "{name} {} {} {:?}",
            found.states,
            found.complete,
            found
                .violation
                .as_ref()
                .map(|v| (&v.0, v.1.iter().map(|s| s.text()).collect::<Vec<_>>()))
        );
        println!("  {:?}", fairness::<Groups>(&cluster, &script, true, 1_000_000));
    }
}
