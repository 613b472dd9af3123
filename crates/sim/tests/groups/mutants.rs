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

fn fails<P: Protocol>(topology: &str) -> Option<(&'static str, usize)> {
    let cluster = named(topology);
    let found = explore::<P>(&cluster, &script::<P>(&cluster, None), 300_000, |_| {});
    found.violation.map(|(violation, steps)| (violation.property, steps.len()))
}

#[test]
fn groups_need_every_rule() {
    mutant!(groups, AnyGroup without LEADS_OWN);
    mutant!(groups, Generous without KEEPS_FORKS);
    mutant!(groups, Stale without FORGETS);
    mutant!(groups, Apart without BARRIER);
    assert_eq!(fails::<Groups<AnyGroup>>("share"), Some(("progress", 6)));
    assert_eq!(fails::<Groups<Generous>>("fig1b"), None, "whoever has promised leads anyway");
    assert_eq!(fails::<Groups<Stale>>("free"), Some(("understanding", 10)));
    assert_eq!(fails::<Groups<Apart>>("share"), Some(("overlap", 8)));
}

#[test]
fn hungry_groups_need_every_rule() {
    mutant!(groups_hungry, Stubborn without REVOKES);
    mutant!(groups_hungry, Hasty without CONFIRMS);
    mutant!(groups_hungry, Apart without BARRIER);
    assert_eq!(fails::<GroupsHungry<Stubborn>>("fig1b"), Some(("progress", 8)));
    assert_eq!(fails::<GroupsHungry<Hasty>>("fig1b"), Some(("together", 7)));
    assert_eq!(fails::<GroupsHungry<Apart>>("share"), Some(("overlap", 8)));
}
