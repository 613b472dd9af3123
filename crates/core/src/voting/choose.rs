//! Which members vote.

use alloc::collections::BTreeMap;
use alloc::string::String;

use super::{DiskId, Electorate};
use crate::types::SiteId;

/// The most voters that a cluster has.
pub const MAX_VOTERS: usize = 7;

/// How many voters there should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// 1 for one or two sites, 3 for three or four, 5 for more.
    #[default]
    Automatic,
    /// This number, as soon as there are as many sites; made odd, and [`MAX_VOTERS`] at most.
    Number(usize),
    /// Every site of a list that is fixed.
    All,
}

impl Wanted {
    /// The number of voters among so many sites.
    pub fn of(self, sites: usize) -> usize {
        let odd = |number: usize| number - usize::from(number.is_multiple_of(2) && number > 0);
        match self {
            Self::Automatic => odd(sites.clamp(1, 5)),
            Self::Number(number) => odd(number.clamp(1, MAX_VOTERS)).min(odd(sites.max(1))),
            Self::All => sites.max(1),
        }
    }
}

/// A site of the cluster, as the one that chooses sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    /// The disk that it has told of in this epoch: it knows the epoch. None for a site that is
    /// silent.
    pub disk: Option<DiskId>,
    /// It has been silent for longer than voters are waited for.
    pub lost: bool,
    /// It is about to leave.
    pub leaves: bool,
    /// Where it is; empty where zones are not used.
    pub zone: String,
}

/// The voters for the next epoch: the current ones if no change is needed. All sites come to the
/// same result from the same candidates.
///
/// A voter that is lost or leaves is replaced, at most one at a time unless the number of voters
/// changes. That number never shrinks because sites are silent, only with the number of sites: a
/// voter without a replacement stays. Zones with few voters come first, then sites with a smaller
/// number. If nothing else changes and a zone has a majority, one of its voters makes room for a
/// site of another zone that does not get a majority by it.
pub fn choose(
    current: &Electorate,
    sites: &BTreeMap<SiteId, Candidate>,
    wanted: Wanted,
) -> Electorate {
    let number = wanted.of(sites.len());
    let usable = |site: &SiteId| {
        let it = sites.get(site)?;
        it.disk.filter(|_| !it.leaves && !it.lost)
    };
    // Kept: voters with their own disk, and silent ones for as long as they are waited for.
    let keeps = |site: &SiteId, disk: &DiskId| {
        sites
            .get(site)
            .is_some_and(|it| !it.leaves && !it.lost && it.disk.is_none_or(|now| now == *disk))
    };
    let (mut kept, mut gone): (Electorate, Electorate) =
        current.iter().map(|(&site, &disk)| (site, disk)).partition(|it| keeps(&it.0, &it.1));
    let zone = |site: &SiteId| sites.get(site).map_or("", |it| it.zone.as_str());
    let crowd = |voters: &Electorate, site: &SiteId| {
        voters.keys().filter(|it| zone(it) == zone(site)).count()
    };
    // Too many: a silent one goes, or the last one of the fullest zone.
    while kept.len() > number {
        let silent = |site: &SiteId| usable(site).is_none();
        let last = kept.keys().copied().max_by_key(|it| (silent(it), crowd(&kept, it), *it));
        last.and_then(|last| kept.remove(&last));
    }
    // Too few: a site of the emptiest zone, a former voter's site with its new disk first.
    let mut added = 0;
    let grows = current.len() < number;
    while kept.len() < number && (added == 0 || grows) {
        let free = sites.keys().filter(|site| !kept.contains_key(site));
        let free = free.filter_map(|site| Some((*site, usable(site)?)));
        let best =
            free.min_by_key(|(site, _)| (crowd(&kept, site), !current.contains_key(site), *site));
        let Some((site, disk)) = best else { break };
        kept.insert(site, disk);
        gone.remove(&site);
        added += 1;
    }
    if kept == *current {
        let most = kept.len() / 2;
        let crowded = kept.keys().copied().rfind(|site| crowd(&kept, site) > most);
        let free = sites.keys().filter(|site| !kept.contains_key(site));
        let free = free.filter(|site| crowd(&kept, site) < most);
        let free = free.filter_map(|site| Some((*site, usable(site)?)));
        let best = free.min_by_key(|(site, _)| (crowd(&kept, site), *site));
        if let (Some(crowded), Some((site, disk))) = (crowded, best) {
            kept.remove(&crowded);
            kept.insert(site, disk);
        }
    }
    // The number does not shrink by itself.
    gone.retain(|site, _| sites.contains_key(site));
    while kept.len() < number {
        let Some((site, disk)) = gone.pop_first() else { break };
        kept.insert(site, disk);
    }
    // An even number of voters survives no more losses than the odd one below it.
    if kept.len().is_multiple_of(2) && wanted != Wanted::All && !kept.is_empty() {
        return fewer(kept, current);
    }
    kept
}

/// Without one voter, a new one if there is any.
fn fewer(mut voters: Electorate, current: &Electorate) -> Electorate {
    let last = voters.iter().rev().find(|(site, disk)| current.get(site) != Some(disk));
    let last = last.or_else(|| voters.last_key_value()).map(|it| *it.0);
    last.and_then(|last| voters.remove(&last));
    voters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(number: u16, zone: &str) -> (SiteId, Candidate) {
        let disk = Some(DiskId(u128::from(number) + 1));
        (SiteId(number), Candidate { disk, lost: false, leaves: false, zone: zone.into() })
    }

    fn sites(count: u16) -> BTreeMap<SiteId, Candidate> {
        (0..count).map(|number| site(number, "")).collect()
    }

    fn numbers(voters: &Electorate) -> alloc::vec::Vec<u16> {
        voters.keys().map(|it| it.0).collect()
    }

    fn grown(sites: &BTreeMap<SiteId, Candidate>) -> Electorate {
        choose(&Electorate::new(), sites, Wanted::Automatic)
    }

    #[test]
    fn the_number_of_voters_is_odd_and_follows_the_number_of_sites() {
        for (count, voters) in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (100, 5)] {
            assert_eq!(grown(&sites(count)).len(), voters, "{count} sites");
        }
        let seven = |count| choose(&Electorate::new(), &sites(count), Wanted::Number(7)).len();
        assert_eq!([6, 7, 9].map(seven), [5, 7, 7]);
        assert_eq!(choose(&Electorate::new(), &sites(4), Wanted::All).len(), 4);
    }

    #[test]
    fn a_choice_that_is_made_again_stays() {
        for count in 1..12 {
            let sites = sites(count);
            let voters = grown(&sites);
            assert_eq!(choose(&voters, &sites, Wanted::Automatic), voters, "{count} sites");
        }
    }

    #[test]
    fn silent_voters_stay_until_they_are_lost_and_are_replaced_by_living_sites() {
        let mut sites = sites(4);
        let voters = grown(&sites);
        assert_eq!(numbers(&voters), [0, 1, 2]);
        sites.get_mut(&SiteId(1)).unwrap().disk = None;
        assert_eq!(choose(&voters, &sites, Wanted::Automatic), voters);
        sites.get_mut(&SiteId(1)).unwrap().lost = true;
        let voters = choose(&voters, &sites, Wanted::Automatic);
        assert_eq!(numbers(&voters), [0, 2, 3]);
        // No site is left to replace another one: the number of voters stays.
        for lost in [2, 3] {
            *sites.get_mut(&SiteId(lost)).unwrap() =
                Candidate { disk: None, lost: true, ..site(lost, "").1 };
        }
        assert_eq!(choose(&voters, &sites, Wanted::Automatic), voters);
    }

    #[test]
    fn another_disk_of_a_site_is_another_voter() {
        let mut sites = sites(3);
        let voters = grown(&sites);
        sites.get_mut(&SiteId(1)).unwrap().disk = Some(DiskId(99));
        let next = choose(&voters, &sites, Wanted::Automatic);
        assert_eq!(numbers(&next), [0, 1, 2]);
        assert_eq!(next[&SiteId(1)], DiskId(99));
        assert_eq!(next[&SiteId(0)], voters[&SiteId(0)]);
    }

    #[test]
    fn voters_shrink_only_with_the_number_of_sites() {
        let mut sites = sites(5);
        let voters = grown(&sites);
        sites.get_mut(&SiteId(4)).unwrap().leaves = true;
        assert_eq!(choose(&voters, &sites, Wanted::Automatic), voters);
        sites.remove(&SiteId(4));
        let voters = choose(&voters, &sites, Wanted::Automatic);
        assert_eq!(numbers(&voters), [0, 1, 2]);
        sites.retain(|site, _| site.0 < 2);
        assert_eq!(numbers(&choose(&voters, &sites, Wanted::Automatic)), [0]);
        // A silent one is not the last that is left.
        let mut silent = sites.clone();
        silent.get_mut(&SiteId(0)).unwrap().disk = None;
        assert_eq!(numbers(&choose(&voters, &silent, Wanted::Automatic)), [1]);
        sites.get_mut(&SiteId(0)).unwrap().leaves = true;
        let only = [(SiteId(0), DiskId(1))].into();
        assert_eq!(numbers(&choose(&only, &sites, Wanted::Automatic)), [1]);
    }

    #[test]
    fn no_zone_of_three_has_a_majority() {
        let mut zoned: BTreeMap<SiteId, Candidate> = (0..9).map(|it| site(it, "a")).collect();
        for (number, zone) in [(5, "b"), (6, "b"), (7, "c"), (8, "c")] {
            zoned.insert(SiteId(number), site(number, zone).1);
        }
        let voters = grown(&zoned);
        for zone in ["a", "b", "c"] {
            let inside = voters.keys().filter(|site| zoned[site].zone == zone).count();
            assert!(inside <= 2, "{inside} of zone {zone}");
        }
        // Its replacement keeps that.
        let lost = *voters.keys().find(|site| zoned[site].zone == "b").unwrap();
        zoned.get_mut(&lost).unwrap().lost = true;
        let voters = choose(&voters, &zoned, Wanted::Automatic);
        assert_eq!(voters.len(), 5);
        assert!(!voters.contains_key(&lost));
        let inside = voters.keys().filter(|site| zoned[site].zone == "a").count();
        assert!(inside <= 2, "{inside} of zone a");
    }

    #[test]
    fn a_zone_with_a_majority_gives_votes_to_zones_without() {
        let three = ["a", "b", "c", "a", "a", "b", "c"];
        let zoned = |zones: &[&str]| -> BTreeMap<SiteId, Candidate> {
            (0..).zip(zones).map(|(number, zone)| site(number, zone)).collect()
        };
        // The first five came first.
        let voters = grown(&zoned(&three[..5]));
        assert_eq!(numbers(&voters), [0, 1, 2, 3, 4]);
        let next = choose(&voters, &zoned(&three), Wanted::Automatic);
        assert_eq!(numbers(&next), [0, 1, 2, 3, 5]);
        assert_eq!(choose(&next, &zoned(&three), Wanted::Automatic), next);
        // Of two zones one has the majority, whichever it is.
        let two = zoned(&["a", "b", "a", "b", "a", "b", "b"]);
        let voters = grown(&two);
        assert_eq!(choose(&voters, &two, Wanted::Automatic), voters);
    }

    #[test]
    fn one_voter_is_replaced_at_a_time() {
        let mut sites = sites(9);
        let voters = grown(&sites);
        for lost in [1, 2] {
            sites.get_mut(&SiteId(lost)).unwrap().lost = true;
        }
        let next = choose(&voters, &sites, Wanted::Automatic);
        assert_eq!(next.iter().filter(|it| voters.get(it.0) != Some(it.1)).count(), 1);
        assert_eq!(next.len(), 5);
        let last = choose(&next, &sites, Wanted::Automatic);
        assert_eq!(numbers(&last), [0, 3, 4, 5, 6]);
        assert_eq!(choose(&last, &sites, Wanted::Automatic), last);
    }
}
