//! Each rule left out once: the checker notices.

use kofm_core::Protocol;
use kofm_core::protocols::groups::{self, Groups};
use kofm_core::protocols::groups_hungry::{self, GroupsHungry};
use kofm_sim::exhaustive::explore;

use crate::exhaustive::script;
use crate::topologies::named;

macro_rules! mutant {
    ($rules:ident, $name:ident without $rule:ident) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name;
        impl $rules::Rules for $name {
            const $rule: bool = false;
        }
    };
}

/// Whether one of the smaller topologies shows that something is wrong.
fn caught<P: Protocol>() -> bool {
    ["free", "share", "fig1b", "pairs", "can3", "ring"].iter().any(|name| {
        let cluster = named(name);
        let fails = |rounds| {
            let found = explore::<P>(&cluster, &script::<P>(&cluster, rounds), 100_000, |_| {});
            found.violation.is_some()
        };
        fails(Some(2)) || fails(None)
    })
}

#[test]
fn groups_need_every_rule() {
    mutant!(groups, AnyGroup without LEADS_OWN);
    mutant!(groups, Stale without FORGETS);
    mutant!(groups, Apart without BARRIER);
    assert!(!caught::<Groups>());
    assert!(caught::<Groups<AnyGroup>>());
    assert!(caught::<Groups<Stale>>());
    assert!(caught::<Groups<Apart>>());
}

#[test]
fn hungry_groups_need_every_rule() {
    mutant!(groups_hungry, Stubborn without REVOKES);
    mutant!(groups_hungry, Hasty without CONFIRMS);
    mutant!(groups_hungry, Apart without BARRIER);
    assert!(!caught::<GroupsHungry>());
    assert!(caught::<GroupsHungry<Stubborn>>());
    assert!(caught::<GroupsHungry<Hasty>>());
    assert!(caught::<GroupsHungry<Apart>>());
}
