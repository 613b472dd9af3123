//! What one work of a group costs, all its members together.

use std::collections::BTreeMap;

use kofm_core::protocols::groups::Groups;
use kofm_core::protocols::groups_hungry::GroupsHungry;
use kofm_core::{Cluster, Effect, GroupId, Grouping, Protocol, Stamp};
use kofm_sim::seeded::{Observer, Setup, run};
use kofm_sim::span::Span;
use kofm_sim::trace::Step;

use crate::topologies::{TWELVE, named};

/// Messages by claim, and the claims of each group by its members in order.
#[derive(Default)]
struct Bill {
    messages: BTreeMap<Stamp, u64>,
    works: BTreeMap<(GroupId, u16), Vec<Stamp>>,
}

impl<P: Protocol> Observer<P> for Bill {
    fn wants_steps(&self) -> bool {
        true
    }
    fn step(&mut self, step: Step<P::Message, P::Timer>) {
        for effect in step.effects {
            match effect {
                Effect::Send { serves: Some(claim), .. } => {
                    *self.messages.entry(claim).or_default() += 1;
                }
                Effect::Send { serves: None, message, .. } => panic!("{message:?} serves nobody"),
                Effect::Grant { claim, units, .. } => {
                    let group = Grouping::group_of(&units).unwrap();
                    self.works.entry((group, claim.site.0)).or_default().push(claim);
                }
                _ => {}
            }
        }
    }
}

/// The cost of each work of each group, in order.
fn bill<P: Protocol>(cluster: &Cluster, think: f64, seed: u64) -> Vec<(GroupId, Vec<u64>)> {
    let setup = Setup {
        requests: 480,
        think: Span::Exponential(think),
        seed,
        ..Setup::new(cluster.clone())
    };
    let mut bill = Bill::default();
    let report = run::<P>(&setup, &mut bill);
    assert!(report.is_clean(), "{report:?}");
    let grouping = cluster.grouping().unwrap();
    let cost = |group: GroupId| {
        let member = |site: &kofm_core::SiteId| &bill.works[&(group, site.0)];
        let members: Vec<&Vec<Stamp>> = grouping.members(group).iter().map(member).collect();
        let work = |i: usize| members.iter().map(|claims| charge(&bill, claims[i])).sum();
        (group, (0..members[0].len()).map(work).collect())
    };
    grouping.all().map(cost).collect()
}

fn charge(bill: &Bill, claim: Stamp) -> u64 {
    bill.messages.get(&claim).copied().unwrap_or(0)
}

#[test]
fn a_work_costs_no_more_than_the_true_bound_and_both_ends_are_reached() {
    let (mut least, mut most) = (false, false);
    for name in TWELVE {
        let cluster = named(name);
        let grouping = cluster.grouping().unwrap();
        for (seed, think) in (0..20).zip([0.1, 5.0, 50.0].into_iter().cycle()) {
            for (group, costs) in bill::<Groups>(&cluster, think, seed) {
                let (min, max) = grouping.price(group);
                let pairs: usize =
                    grouping.members(group).iter().map(|&site| grouping.rivals(site).len()).sum();
                let start_up = 2 * pairs as u64;
                assert!(costs.iter().all(|cost| (min..=max + start_up).contains(cost)), "{name}");
                // The first round may be dearer, where forks lie wrong.
                assert!(costs[1..].iter().all(|&cost| cost <= max), "{name} {group}: {costs:?}");
                least |= costs.contains(&min);
                most |= min < max && costs[1..].contains(&max);
            }
        }
    }
    assert!(least && most);
}

#[test]
fn the_papers_count_is_too_low_on_its_own_example() {
    // 3m + n(n−1) = 8; the barrier is 2 more.
    let costs = bill::<Groups>(&named("ring"), 0.1, 1);
    let later = || costs.iter().flat_map(|group| &group.1[1..]).copied();
    assert!(later().any(|cost| cost > 8 + 2));
}

#[test]
fn hungry_groups_pay_at_least_four_for_each_member_but_the_leader() {
    for name in TWELVE {
        let cluster = named(name);
        let grouping = cluster.grouping().unwrap();
        for (group, costs) in bill::<GroupsHungry>(&cluster, 5.0, 3) {
            let others = grouping.members(group).len() as u64 - 1;
            assert!(costs.iter().all(|&cost| cost >= 4 * others), "{name} {group}: {costs:?}");
        }
    }
}
