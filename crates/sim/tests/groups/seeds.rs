//! Larger and messier systems, drawn from seeds.

use kofm_core::protocols::groups::Groups;
use kofm_core::protocols::groups_hungry::GroupsHungry;
use kofm_core::topology::Topology;
use kofm_core::{Cluster, Grouping, Protocol, SiteId, Visitor};
use kofm_sim::faults::Fault;
use kofm_sim::report::Report;
use kofm_sim::rng::Rng;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;
use kofm_sim::visit_on;

/// Three to nine processes, two to six groups of up to four members, some resources; none where
/// what was drawn makes no sense.
fn drawn(rng: &mut Rng) -> Option<Grouping> {
    let processes = u16::try_from(rng.between(3, 9)).unwrap();
    let resources = rng.between(2, 12);
    let needs = (0..processes).map(|_| {
        let mut list: Vec<u32> =
            (0..rng.between(1, 2)).map(|_| u32::try_from(rng.below(resources)).unwrap()).collect();
        list.sort_unstable();
        list.dedup();
        list
    });
    let needs = needs.collect();
    let members = (0..rng.between(2, 6)).map(|_| {
        let mut list: Vec<SiteId> = (0..rng.between(1, 4))
            .map(|_| SiteId(u16::try_from(rng.below(processes.into())).unwrap()))
            .collect();
        list.sort_unstable();
        list.dedup();
        list
    });
    Grouping::new(needs, members.collect()).ok()
}

fn setup(seed: u64) -> Setup {
    let mut rng = Rng::new(seed);
    let grouping = loop {
        if let Some(grouping) = drawn(&mut rng) {
            break grouping;
        }
    };
    let shapes = [Topology::Full, Topology::Full, Topology::Ring, Topology::Tree];
    let topology = shapes[usize::try_from(rng.below(4)).unwrap()].clone();
    let spans = [Span::Exponential(0.5), Span::Exponential(5.0), Span::Uniform(0.0, 30.0)];
    let mut span = || spans[usize::try_from(rng.below(3)).unwrap()];
    let (think, hold, delay) = (span(), span(), span());
    let faults = [Fault::Pause, Fault::Partition].into_iter().filter(|_| rng.below(3) == 0);
    let faults = faults.collect();
    let cluster = Cluster { topology, ..Cluster::of_groups(grouping) };
    Setup { requests: 200, think, hold, delay, faults, seed, ..Setup::new(cluster) }
}

struct Run<'a>(&'a Setup);

impl Visitor for Run<'_> {
    type Output = Report;
    fn visit<P: Protocol>(self) -> Report {
        run::<P>(self.0, &mut Blind)
    }
}

#[test]
fn thousands_of_systems_break_nothing_and_leave_nobody_waiting() {
    for seed in 0..1_500 {
        let setup = setup(seed);
        for kind in [kofm_core::Kind::Groups, kofm_core::Kind::GroupsHungry] {
            let report = visit_on(kind, &setup.cluster.topology, Run(&setup));
            assert!(report.is_clean(), "{setup:?}: {:?}", report.violations);
            assert_eq!(report.grants(), report.requests, "{setup:?}");
        }
    }
}

#[test]
fn claims_are_as_many_as_asked_for_up_to_a_whole_work() {
    for (sites, units) in [(1, 1), (2, 2), (3, 1), (4, 2), (5, 3), (9, 4)] {
        for requests in [1, 2, 10, 99, 100] {
            let setup = Setup { requests, ..Setup::new(Cluster::new(sites, units)) };
            for report in
                [run::<Groups>(&setup, &mut Blind), run::<GroupsHungry>(&setup, &mut Blind)]
            {
                assert!(report.is_clean(), "{report:?}");
                assert!(report.requests + 1 >= requests && report.requests <= requests);
                assert!(report.max_in_use <= u64::from(units));
            }
        }
    }
}
