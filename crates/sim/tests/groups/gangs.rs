//! Gangs: the nine small instances, mutants, seeds and prices.

use kofm_core::protocols::gang::{Gang, Rules, Shares};
use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::quorum::Quorum;
use kofm_core::quorums::Arbitration;
use kofm_core::{Cluster, Demand, PoolId, Protocol, SiteId, Units};
use kofm_sim::exhaustive::{Exploration, explore};
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;
use kofm_sim::world::{Script, Timers};

/// A gang: members from 1, the leader first, with what each needs of the pools from 1.
type Members<'a> = &'a [(u16, &'a [(u16, u32)])];

struct Instance<'a> {
    name: &'a str,
    sites: u16,
    pools: &'a [u32],
    gangs: &'a [Members<'a>],
    rounds: u32,
    withdraw: bool,
}

impl Instance<'_> {
    fn cluster(&self) -> Cluster {
        let pools = self.pools.iter().copied().map(Units).collect();
        let mut cluster = Cluster { pools, ..Cluster::new(self.sites, 1) };
        // One arbiter is the smallest protocol that there is: the barrier is what is explored.
        let all = 0..u16::try_from(self.pools.len()).unwrap() + self.sites;
        let one = Arbitration { arbiters: Some(vec![SiteId(0)]), ..Arbitration::default() };
        cluster.arbitration = all.map(|pool| (PoolId(pool), one.clone())).collect();
        cluster
    }

    fn explore<P: Protocol>(&self, limit: u64) -> Exploration<P> {
        self.explore_with(Timers::Any, limit)
    }

    fn explore_with<P: Protocol>(&self, timers: Timers, limit: u64) -> Exploration<P> {
        let cluster = self.cluster();
        let shares = Shares::new(&cluster).unwrap();
        let mut own = vec![Vec::new(); usize::from(self.sites)];
        for gang in self.gangs {
            let mut parts = Vec::new();
            for &(member, needs) in *gang {
                let member = SiteId(member - 1);
                parts.push((shares.seat(member), Units(1)));
                for &(pool, units) in needs {
                    parts.push((shares.share(member, PoolId(pool - 1)), Units(units)));
                }
            }
            let demand: Demand = parts.into_iter().collect();
            own[usize::from(gang[0].0 - 1)].push((demand, self.rounds));
        }
        let new = Script::new(self.sites, 0, Vec::new());
        let script = Script { own, withdraw: self.withdraw, timers, ..new };
        explore::<P>(&cluster, &script, limit, |_| {})
    }

    fn states<P: Protocol>(&self) -> u64 {
        self.states_with::<P>(Timers::Any)
    }

    fn states_with<P: Protocol>(&self, timers: Timers) -> u64 {
        let found = self.explore_with::<P>(timers, 20_000_000);
        if let Some((violation, steps)) = &found.violation {
            let steps: Vec<String> = steps.iter().map(kofm_sim::trace::Step::text).collect();
            panic!("{}: {violation:?}\n{}", self.name, steps.join("\n"));
        }
        assert!(found.complete, "{}", self.name);
        found.states
    }
}

const CYCLE3: Instance<'static> = Instance {
    name: "cycle3",
    sites: 6,
    pools: &[1, 1, 1],
    gangs: &[
        &[(1, &[(1, 1)]), (2, &[(2, 1)])],
        &[(4, &[(2, 1)]), (5, &[(3, 1)])],
        &[(3, &[(3, 1)]), (6, &[(1, 1)])],
    ],
    rounds: 1,
    withdraw: false,
};

const FIG1B: Instance<'static> = Instance {
    name: "fig1b",
    sites: 3,
    pools: &[1],
    gangs: &[&[(1, &[]), (2, &[(1, 1)])], &[(3, &[(1, 1)]), (1, &[])]],
    rounds: 1,
    withdraw: true,
};

fn nine() -> [Instance<'static>; 9] {
    [
        CYCLE3,
        FIG1B,
        Instance { name: "fig1b twice", rounds: 2, withdraw: false, ..FIG1B },
        Instance {
            name: "ring3",
            sites: 4,
            pools: &[1, 1],
            gangs: &[
                &[(1, &[(1, 1)]), (2, &[(2, 1)])],
                &[(2, &[(2, 1)]), (3, &[(1, 1)])],
                &[(3, &[(1, 1)]), (4, &[(2, 1)])],
            ],
            rounds: 1,
            withdraw: false,
        },
        Instance {
            name: "pools",
            sites: 4,
            pools: &[3, 2, 1],
            gangs: &[&[(1, &[(1, 2), (2, 1)]), (2, &[(3, 1)])], &[(3, &[(1, 2)]), (4, &[(2, 2)])]],
            rounds: 1,
            withdraw: true,
        },
        Instance {
            name: "room",
            sites: 4,
            pools: &[4],
            gangs: &[&[(1, &[(1, 1)]), (2, &[(1, 1)])], &[(3, &[(1, 1)]), (4, &[(1, 1)])]],
            rounds: 1,
            withdraw: true,
        },
        Instance {
            name: "same",
            sites: 3,
            pools: &[3],
            gangs: &[&[(1, &[(1, 1)]), (2, &[(1, 2)])], &[(3, &[(1, 1)])]],
            rounds: 2,
            withdraw: false,
        },
        Instance {
            name: "toobig",
            sites: 3,
            pools: &[2],
            gangs: &[&[(1, &[(1, 2)]), (2, &[(1, 1)])], &[(3, &[(1, 2)]), (2, &[])]],
            rounds: 2,
            withdraw: true,
        },
        Instance {
            name: "cycle4",
            sites: 6,
            pools: &[1, 1],
            gangs: &[
                &[(1, &[(1, 1)]), (6, &[])],
                &[(2, &[(1, 1)]), (3, &[])],
                &[(3, &[]), (4, &[(2, 1)])],
                &[(5, &[(2, 1)]), (6, &[])],
            ],
            rounds: 1,
            withdraw: false,
        },
    ]
}

#[test]
fn small_instances_start_together_or_not_at_all() {
    let [instances @ .., _] = nine();
    let found = instances.map(|instance| (instance.name, instance.states::<Gang<Quorum>>()));
    let expected = [
        ("cycle3", 23_453),
        ("fig1b", 1_114),
        ("fig1b twice", 2_337),
        ("ring3", 34_257),
        ("pools", 2_250),
        ("room", 2_726),
        ("same", 1_038),
        ("toobig", 5_434),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_largest_instance_does_too() {
    let [.., cycle4] = nine();
    assert_eq!(cycle4.states::<Gang<Quorum>>(), 787_667);
}

#[test]
fn the_smaller_ones_over_permission_too() {
    let found = [1, 2, 6, 7].map(|i| nine()[i].states::<Gang<Permission>>());
    assert_eq!(found, [3_688, 4_074, 2_775, 3_159]);
}

#[test]
fn and_over_roaming_as_sites_run_it() {
    let instances = nine();
    let states = |i: usize, timers| instances[i].states_with::<Gang>(timers);
    // Claims may seek, once nothing else happens; in larger ones they do not.
    let found = [1, 6, 7].map(|i| states(i, Timers::Quiet));
    assert_eq!(found, [977, 6_326, 2_229]);
    let found = [1, 2, 5, 6, 7].map(|i| states(i, Timers::Never));
    assert_eq!(found, [977, 1_830, 5_784, 1_778, 2_229]);
}

#[test]
fn each_rule_of_the_barrier_is_missed() {
    macro_rules! caught {
        (without $rule:ident) => {{
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct Mutant;
            impl Rules for Mutant {
                const $rule: bool = false;
            }
            let fails = |instance: &Instance<'static>| {
                instance.explore::<Gang<Quorum, Mutant>>(50_000).violation.is_some()
            };
            nine().iter().any(fails)
        }};
    }
    assert!(caught!(without WAIT_FOR_ALL));
    assert!(caught!(without GRANT_FIRST));
    assert!(caught!(without CALL_OFF));
}

#[test]
fn a_gang_costs_what_its_pools_cost_and_four_for_each_other_member() {
    // With permission a claim alone in the cluster costs 2(n−1), and its end nothing.
    for members in 1..=4u16 {
        let pools = vec![Units(2)];
        let cluster = Cluster { pools, ..Cluster::new(4, 1) };
        let shares = Shares::new(&cluster).unwrap();
        let demand: Demand =
            (0..members).map(|site| (shares.seat(SiteId(site)), Units(1))).collect();
        let mut own = vec![Vec::new(); 4];
        own[0] = vec![(demand, 1)];
        let script = Script { own, ..Script::new(4, 0, Vec::new()) };
        let found = explore::<Gang<Permission>>(&cluster, &script, 1_000_000, |_| {});
        assert!(found.complete && found.violation.is_none());
        let sent = sent(&cluster, &script);
        assert_eq!(sent, 2 * 3 + 4 * (usize::from(members) - 1));
    }
}

/// The messages of one way through a script with a single end.
fn sent(cluster: &Cluster, script: &Script) -> usize {
    use kofm_core::{Effect, Effects};
    use kofm_sim::world::World;
    let mut world = World::<Gang<Permission>>::new(cluster, script);
    let mut sent = 0;
    while let Some(&action) = world.enabled(script).first() {
        let (site, input) = world.input(action, script);
        let mut out = Effects::default();
        world.apply(site, input, &mut out).unwrap();
        sent += out.as_slice().iter().filter(|e| matches!(e, Effect::Send { .. })).count();
    }
    sent
}

#[test]
fn thousands_of_seeds_break_nothing() {
    for seed in 0..600 {
        let sites = u16::try_from(seed % 6).unwrap() + 1;
        let units = u32::try_from(seed % 5).unwrap() + 1;
        let setup = Setup {
            k: (1, units),
            requests: 150,
            clients: u32::try_from(seed % 3).unwrap() + 1,
            think: Span::Exponential([0.5, 5.0][usize::try_from(seed % 2).unwrap()]),
            hold: Span::Exponential(3.0),
            patience: (seed % 4 == 0).then_some(Span::Exponential(10.0)),
            seed,
            ..Setup::new(Cluster::new(sites, units))
        };
        for report in [run::<Gang>(&setup, &mut Blind), run::<Gang<Permission>>(&setup, &mut Blind)]
        {
            assert!(report.is_clean(), "{setup:?}: {:?}", report.violations);
            assert_eq!(report.grants() + report.withdrawn, report.requests, "{setup:?}");
        }
    }
}
