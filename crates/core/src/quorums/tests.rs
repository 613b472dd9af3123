//! Do the sets meet, and are they as small as they should be?

use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;

/// The set as bits, for clusters of up to 64 sites.
fn bits(set: &RequestSet) -> u64 {
    set.arbiters.iter().fold(0, |bits, arbiter| bits | 1 << arbiter.0)
}

/// Whether any `meet` of the sets, on top of `common`, keep more than `spare` arbiters in common.
/// Exact: goes through all choices, and stops where a set takes nothing away.
fn all_meet(sets: &[u64], common: u64, meet: u32, spare: u32) -> bool {
    if common.count_ones() <= spare {
        return false;
    }
    if meet == 0 {
        return true;
    }
    (0..sets.len())
        .filter(|&i| sets[i] & common != common)
        .all(|i| all_meet(&sets[i + 1..], sets[i] & common, meet - 1, spare))
}

/// The property that everything rests on. A claim may lack as many grants as crashes are survived,
/// each claim different ones, so M + 1 claims may lack M + 1 times as many.
fn is_safe(sets: &RequestSets, units: u32) -> bool {
    let mut masks: Vec<u64> = sets.sites().map(|site| bits(&sets.of(site))).collect();
    masks.sort_unstable();
    masks.dedup();
    let claims = units + 1;
    all_meet(&masks, u64::MAX, claims, claims * u32::from(sets.crashes()))
}

fn named(construction: Construction, sites: u16, units: u32, crashes: u16) -> Terms {
    Terms { construction: Some(construction), crashes, ..Terms::new(sites, units) }
}

/// A small generator for samples.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn the_check_finds_sets_that_do_not_meet() {
    // Any two lines of the Fano plane meet, not any three (Baldoni 1994, figure 1).
    let fano = [0b111, 0b10_1010, 0b11_0100, 0b1_1001, 0b101_0010, 0b110_0001, 0b100_1100];
    assert!(all_meet(&fano, u64::MAX, 2, 0) && !all_meet(&fano, u64::MAX, 3, 0));
    // A hole where two corners of a square would meet.
    assert!(!all_meet(&[0b01, 0b10], u64::MAX, 2, 0));
    // Two grants that may be lacking are one too many for three in common.
    assert!(all_meet(&[0b111], u64::MAX, 2, 2) && !all_meet(&[0b111], u64::MAX, 2, 3));
}

#[test]
fn every_construction_is_safe_for_every_small_cluster() {
    let mut checked = 0;
    for units in 1..=3 {
        for sites in 1..=36 {
            for &construction in Construction::ALL {
                for crashes in 0..=3 {
                    let Ok(sets) = RequestSets::new(&named(construction, sites, units, crashes))
                    else {
                        continue;
                    };
                    assert!(sets.crashes() >= crashes);
                    assert!(is_safe(&sets, units), "{construction}: {sites} share {units}");
                    checked += 1;
                }
            }
        }
    }
    // Pinned, so that nothing is left out unnoticed.
    assert_eq!(checked, 1201);
}

#[test]
fn a_threshold_one_lower_is_not_safe() {
    for sites in 1..=36 {
        for units in 1..=3 {
            let sets = RequestSets::new(&named(Construction::Threshold, sites, units, 0)).unwrap();
            let group = bits(&sets.of(SiteId(0)));
            let lacking = (units + 1) * (u32::from(sets.crashes()) + 1);
            assert!(!all_meet(&[group], u64::MAX, 1, lacking), "{sites} share {units}");
        }
    }
}

#[test]
fn named_arbiters_are_safe_and_serve_alone() {
    for units in 1..=3 {
        for count in 1..=16u16 {
            let list: Vec<SiteId> = (0..count).map(|i| SiteId(i * 2 + 1)).collect();
            for &construction in Construction::ALL {
                let arbiters = Some(list.clone());
                let terms = Terms { arbiters, ..named(construction, 36, units, 0) };
                let Ok(sets) = RequestSets::new(&terms) else { continue };
                assert!(is_safe(&sets, units), "{construction}: {count} arbiters, {units} units");
                for site in sets.sites() {
                    let set = sets.of(site).arbiters;
                    assert!(set.is_sorted() && set.iter().all(|arbiter| list.contains(arbiter)));
                }
            }
        }
    }
}

#[test]
fn samples_of_large_clusters_meet() {
    let mut random = Random(1);
    let clusters = [(57, 1), (100, 1), (1000, 1), (10_000, 1), (100, 2), (1000, 2), (10_000, 2)];
    let more = [(256, 4), (1000, 3), (1000, 8), (10_000, 3), (10_000, 16), (65_535, 1)];
    for (sites, units) in clusters.into_iter().chain(more) {
        for &construction in Construction::ALL {
            for crashes in [0, 1] {
                let Ok(sets) = RequestSets::new(&named(construction, sites, units, crashes)) else {
                    continue;
                };
                for _ in 0..20 {
                    assert!(sample_meets(&sets, units, &mut random), "{construction} {sites}");
                }
            }
        }
    }
}

/// Whether the sets of M + 1 sites chosen at random have enough in common.
fn sample_meets(sets: &RequestSets, units: u32, random: &mut Random) -> bool {
    let mut pick = || SiteId(u16::try_from(random.below(sets.sites().len())).unwrap());
    let mut common = sets.of(pick()).arbiters;
    for _ in 0..units {
        let other = sets.of(pick()).arbiters;
        common.retain(|arbiter| other.binary_search(arbiter).is_ok());
    }
    common.len() > (units as usize + 1) * usize::from(sets.crashes())
}

#[test]
fn every_site_is_in_its_own_set_where_all_arbitrate() {
    for &construction in Construction::ALL {
        for units in 1..=3 {
            for sites in 1..=60 {
                if let Ok(sets) = RequestSets::new(&named(construction, sites, units, 0)) {
                    assert!(sets.sites().all(|site| sets.of(site).arbiters.contains(&site)));
                }
            }
        }
    }
}

#[test]
fn with_no_more_sites_than_units_all_sets_share_an_arbiter() {
    // Two sites that want two units each are in conflict over two units.
    for sites in 1..=8 {
        for units in u32::from(sites)..=9 {
            let sets = RequestSets::new(&Terms::new(sites, units)).unwrap();
            let masks = sets.sites().map(|site| bits(&sets.of(site)));
            assert_ne!(masks.fold(u64::MAX, |common, set| common & set), 0, "{sites}, {units}");
        }
    }
}

#[test]
fn a_tournament_of_seven_asks_three_others() {
    let sets = RequestSets::new(&named(Construction::Tournament, 7, 1, 0)).unwrap();
    assert_eq!(sets.of(SiteId(5)).arbiters, [0, 1, 5, 6].map(SiteId));
}

#[test]
fn a_crash_budget_takes_the_smallest_group() {
    for (units, group, grants) in [(1, 3, 2), (2, 4, 3), (4, 6, 5), (8, 10, 9), (16, 18, 17)] {
        let sets = RequestSets::new(&Terms { crashes: 1, ..Terms::new(40, units) }).unwrap();
        assert_eq!(sets.construction(), Some(Construction::Threshold));
        let set = sets.of(SiteId(39));
        assert_eq!((set.arbiters.len(), set.grants), (group, grants));
    }
}

#[test]
fn named_arbiters_are_the_group() {
    let arbiters = Some(Vec::from([9, 2, 4, 6, 2].map(SiteId)));
    let terms = Terms { arbiters, ..named(Construction::Threshold, 10, 1, 0) };
    let set = RequestSets::new(&terms).unwrap().of(SiteId(0));
    assert_eq!(set.arbiters, [2, 4, 6, 9].map(SiteId));
    assert_eq!(set.grants, 3);
}

#[test]
fn errors_name_the_largest_that_works() {
    let error = |terms: &Terms| RequestSets::new(terms).unwrap_err().to_string();
    let strangers = Some(Vec::from([1, 12].map(SiteId)));
    assert_eq!(
        error(&Terms { arbiters: strangers, ..Terms::new(10, 1) }),
        "arbiter s12 is not in the cluster: the last site is s9"
    );
    assert_eq!(
        error(&Terms { crashes: 4, ..Terms::new(10, 2) }),
        "no construction survives 4 crashes among 10 arbiters: the most is 3"
    );
    assert_eq!(
        error(&named(Construction::Grid, 10, 2, 1)),
        "grid cannot survive 1 crashes among 10 arbiters: the most is 0"
    );
    assert_eq!(
        error(&named(Construction::Tournament, 10, 2, 0)),
        "tournament cannot share 2 units with 10 arbiters: the most is 1"
    );
    assert_eq!(
        error(&named(Construction::Projective, 100, 16, 0)),
        "projective cannot share 16 units with 100 arbiters: the most is 7"
    );
    assert_eq!(error(&Terms::new(0, 1)), "a cluster has at least 1 site");
    assert_eq!(error(&Terms::new(1, 0)), "a pool that is shared has at least 1 unit");
    let nobody = Terms { arbiters: Some(Vec::new()), ..Terms::new(3, 1) };
    assert_eq!(error(&nobody), "a pool has at least 1 arbiter");
}

#[test]
fn the_largest_that_an_error_names_does_work() {
    for sites in 1..=80 {
        for &construction in Construction::ALL {
            if let Err(QuorumError::TooManyUnits { largest, .. }) =
                RequestSets::new(&named(construction, sites, 60, 0))
            {
                assert!(RequestSets::new(&named(construction, sites, largest, 0)).is_ok());
                assert!(RequestSets::new(&named(construction, sites, largest + 1, 0)).is_err());
            }
            for units in 1..=4 {
                if let Err(QuorumError::TooManyCrashes { largest, .. }) =
                    RequestSets::new(&named(construction, sites, units, 50))
                {
                    let most =
                        |crashes| RequestSets::new(&named(construction, sites, units, crashes));
                    assert!(most(largest).is_ok(), "{construction}: {sites} share {units}");
                    assert!(most(largest + 1).is_err());
                }
            }
        }
    }
}

#[test]
fn a_budget_that_one_construction_can_meet_is_met() {
    for sites in 1..=80 {
        for units in 1..=4 {
            let new = |crashes| RequestSets::new(&Terms { crashes, ..Terms::new(sites, units) });
            let Err(QuorumError::TooManyCrashes { construction: None, largest, .. }) = new(90)
            else {
                panic!("{sites} sites cannot survive 90 crashes");
            };
            assert_eq!(new(largest).map(|sets| sets.crashes()), Ok(largest));
            assert!(new(largest + 1).is_err());
        }
    }
}

#[test]
fn no_small_cluster_asks_more_than_the_best_cyclic_sets() {
    let mut better = 0;
    for units in 1..=3 {
        for sites in 2..=21 {
            let meet = u32::from(sites).min(units + 1);
            let pattern = cyclic::pattern(sites.into(), meet).unwrap();
            let fewest = Thousandths::mean(3 * u64::from(pattern.count_ones() - 1), 1);
            let chosen = compare(sites, units, 0).unwrap().chosen().census.messages;
            assert!(chosen <= fewest, "{sites} share {units}: {chosen} > {fewest}");
            better += u32::from(chosen < fewest);
        }
    }
    // Sets of different sizes, or that need not have their own site in them, may ask fewer.
    assert_eq!(better, 23);
    let messages = |sites, units| compare(sites, units, 0).unwrap().chosen().census.messages;
    assert_eq!((messages(6, 2), messages(10, 3)), (Thousandths(9_000), Thousandths(18_000)));
}

fn given(sets: &[&[u16]], units: u32) -> Result<RequestSets, QuorumError> {
    let sites = u16::try_from(sets.len()).unwrap();
    let list = |set: &&[u16]| set.iter().copied().map(SiteId).collect();
    let sets = Some(sets.iter().map(list).collect());
    RequestSets::new(&Terms { sets, ..Terms::new(sites, units) })
}

const FANO: [&[u16]; 7] =
    [&[0, 1, 2], &[1, 3, 5], &[2, 4, 5], &[0, 3, 4], &[1, 4, 6], &[0, 5, 6], &[2, 3, 6]];

#[test]
fn sets_that_are_given_have_to_meet() {
    let plane = given(&FANO, 1).unwrap();
    assert!(is_safe(&plane, 1));
    assert_eq!(plane.of(SiteId(3)).arbiters, [SiteId(0), SiteId(3), SiteId(4)]);
    assert_eq!((plane.of(SiteId(3)).grants, plane.construction()), (3, None));
    // Theorem 1 is necessary: three of the sets share no arbiter, and each pair of them does.
    let Err(QuorumError::Apart(sites)) = given(&FANO, 2) else { panic!("they do not meet") };
    let sets: Vec<u64> = sites.iter().map(|&site| bits(&plane.of(site))).collect();
    assert_eq!((sites.len(), sets.iter().fold(u64::MAX, |all, set| all & set)), (3, 0));
}

#[test]
fn given_sets_that_make_no_family_are_refused() {
    let all: &[u16] = &[0, 1, 2];
    assert!(given(&[all, all, all], 5).is_ok(), "three sets meet, more there are not");
    assert_eq!(given(&[all, &[], all], 1), Err(QuorumError::EmptySet(SiteId(1))));
    let stranger = QuorumError::Stranger { arbiter: SiteId(3), last: SiteId(2) };
    assert_eq!(given(&[all, &[0, 3], all], 1), Err(stranger));
    assert_eq!(
        given(&[&[0], &[1], all], 1),
        Err(QuorumError::Apart([SiteId(0), SiteId(1)].to_vec()))
    );
    // With as many units as sites or more, all sets together share an arbiter.
    assert!(given(&[&[0, 1], &[1, 2], &[0, 2]], 1).is_ok());
    assert!(matches!(given(&[&[0, 1], &[1, 2], &[0, 2]], 3), Err(QuorumError::Apart(_))));
    let sets = Some([[SiteId(0)].to_vec()].to_vec());
    let few = RequestSets::new(&Terms { sets, ..Terms::new(3, 1) });
    assert_eq!(few, Err(QuorumError::SetsOfOthers { sets: 1, sites: 3 }));
}

#[test]
fn too_many_given_sets_are_not_checked_for_hours() {
    // All sites but one, in sets of eight that have to meet: more combinations than are tried.
    let sets: Vec<Vec<SiteId>> =
        (0..64).map(|i| (0..64).filter(|&j| j != i).map(SiteId).collect()).collect();
    let sets = Some(sets);
    let result = RequestSets::new(&Terms { sets, ..Terms::new(64, 9) });
    assert_eq!(result, Err(QuorumError::TooManySets));
}
