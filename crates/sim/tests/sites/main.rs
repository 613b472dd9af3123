//! Whole sites under faults, with clients like real ones.

mod hold;

use std::collections::BTreeMap;
use std::time::Duration;

use kofm_sim::sites::{Case, Mutant, PoolConfig, Scope, World};

fn case(seed: u64) -> Case {
    let sites = 1 + usize::try_from(seed % 5).unwrap_or(0);
    let kinds = ["roaming", "permission", "permission-lazy", "quorum"];
    let mut pools = BTreeMap::new();
    for (number, name) in ["x", "y"].into_iter().enumerate() {
        let kind = kinds[(usize::try_from(seed / 5).unwrap_or(0) + number) % kinds.len()];
        let units = 1 + u32::try_from(seed / 7 + number as u64).unwrap_or(0) % 5;
        let protocol = kofm_core::Kind::named(kind).expect("a protocol of this name");
        pools.insert(name.to_owned(), PoolConfig { protocol, ..PoolConfig::new(units) });
    }
    let faults = usize::try_from(seed % 13).unwrap_or(0);
    let slow = Duration::from_millis(if seed.is_multiple_of(3) { 900 } else { 250 });
    let length = Duration::from_secs(20);
    Case { sites, pools, clients: 16, faults, length, slow, mutant: None }
}

/// Seeds that run with every test; `KOFM_SEEDS` and `KOFM_SEED` choose others.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let first = number("KOFM_SEED").unwrap_or(0);
    first..first + number("KOFM_SEEDS").unwrap_or(200)
}

#[test]
fn whole_sites_keep_their_promises_under_faults() {
    let (mut inputs, mut grants, mut carried, mut adopted) = (0, 0, 0, 0);
    let (mut left, mut moved) = (0, 0);
    for seed in seeds() {
        match World::new(case(seed), seed).run() {
            Ok(outcome) => {
                (inputs, grants) = (inputs + outcome.inputs, grants + outcome.grants);
                carried += outcome.carried;
                adopted += outcome.adopted;
                (left, moved) = (left + outcome.left, moved + outcome.moved);
            }
            Err(violation) => panic!("seed {seed}: {}\n{:#?}", violation.0, case(seed)),
        }
    }
    println!(
        "{inputs} inputs, {grants} grants, {carried} renewals by a later incarnation, \
         {adopted} at another site; {left} sites left, {moved} requests went on elsewhere"
    );
    assert!(grants > 0, "clients were served");
    assert!(carried > 0, "a site that was left out went on with its leases");
    assert!(adopted > 0, "leases went on at other sites");
    assert!(left > 0 && moved > 0, "sites left, and requests went on elsewhere");
}

/// A request for a pool goes to a site that shares it. A client that knows no such site is refused.
/// At the end each site that shares a pool is granted all its units.
#[test]
fn pools_of_some_sites_keep_their_promises_under_faults() {
    let mut grants = 0;
    for seed in seeds().take(40) {
        let sites = 3 + usize::try_from(seed % 3).unwrap_or(0);
        let mut case = Case { sites, ..case(seed) };
        let scope = |sites: &[&str]| Scope {
            sites: sites.iter().map(|it| (*it).to_owned()).collect(),
            ..Scope::default()
        };
        case.pools.get_mut("y").unwrap().scope = scope(&["s0", "s1"]);
        if seed % 2 == 0 {
            case.pools.get_mut("x").unwrap().scope = scope(&["s1", "s2"]);
        }
        match World::new(case.clone(), seed).run() {
            Ok(outcome) => grants += outcome.grants,
            Err(violation) => panic!("seed {seed}: {}\n{case:#?}", violation.0),
        }
    }
    println!("{grants} grants");
    assert!(grants > 0, "clients were served");
}

/// Each fault is found, and the number of seeds that it took is printed.
#[test]
fn every_mutant_is_found() {
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let found = (0..1000).find_map(|seed| {
            let case = Case { mutant: Some(mutant), ..case(seed) };
            Some((seed, World::new(case, seed).run().err()?))
        });
        let sound = found.as_ref().map(|it| World::new(case(it.0), it.0).run());
        assert!(sound.is_none_or(|it| it.is_ok()), "{mutant:?}: the seed fails without it");
        match found {
            Some((seed, violation)) => println!("{mutant:?}: seed {seed}: {}", violation.0),
            None => missed.push(mutant),
        }
    }
    assert_eq!(missed, [], "not found within 1000 seeds");
}

#[test]
fn one_seed_gives_one_run() {
    for seed in 0..20 {
        let first = World::new(case(seed), seed).run();
        let second = World::new(case(seed), seed).run();
        assert_eq!(first, second, "seed {seed}");
    }
}
