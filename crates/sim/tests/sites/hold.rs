//! Leases that only a person ends, when sites are lost for good.

use kofm_sim::sites::Mutant;
use kofm_sim::sites::hold::story;

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let first = number("KOFM_SEED").unwrap_or(0);
    first..first + number("KOFM_SEEDS").unwrap_or(30)
}

#[test]
fn units_stay_with_their_lease_when_its_site_is_lost() {
    let mut told = 0;
    for seed in seeds() {
        for (sites, losses) in [(3, 1), (5, 2), (3, 0), (2, 1)] {
            match story(seed, sites, losses, None) {
                Ok(more) => told += more,
                Err(violation) => panic!("seed {seed}, {losses} of {sites}: {}", violation.0),
            }
        }
    }
    assert!(told > 100, "clients were granted {told} leases");
}

/// No site is left that knows: the units are withheld for a person.
#[test]
fn units_stay_out_of_use_when_most_sites_are_lost() {
    for seed in seeds() {
        if let Err(violation) = story(seed, 3, 2, None) {
            panic!("seed {seed}: {}", violation.0);
        }
    }
}

/// As it was before leases were copied.
#[test]
fn a_grant_without_copies_is_found() {
    let found = (0..30).find_map(|seed| story(seed, 3, 1, Some(Mutant::GrantsUncopied)).err());
    let found = found.expect("a site that makes no copies is found");
    assert!(found.0.contains("was granted as") || found.0.contains("in no list"), "{}", found.0);
}
