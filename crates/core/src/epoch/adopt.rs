//! Which leases of departed lives go on, and where.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::rules::{Rules, Slip};
use super::survey::{Adopted, Kept, LeaseKey, Plan, Quarantine, Record, Report, Standing, Survey};
use crate::types::{Cluster, Demand, SiteId, Stamp, Unit, Units};

/// How a lease of another life came before the members. Where the same lease came twice, the first
/// of these goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// A member has adopted it before.
    Adopted,
    /// Its holder has presented it.
    Presented,
    /// A new life of its site has brought it.
    Brought,
}

/// A lease that may go on if its units are not another's.
struct Candidate {
    /// Nothing for a claim that is brought back without its lease.
    lease: Option<LeaseKey>,
    way: Way,
    home: SiteId,
    /// The quarantine that its units were withheld in, where it was adopted before.
    since: u64,
    /// By protocol: the claim that it has, or was granted as, and its units.
    parts: Vec<(usize, Stamp, Vec<Unit>)>,
}

impl Candidate {
    fn units(&self) -> impl Iterator<Item = (usize, Unit)> + '_ {
        self.parts.iter().flat_map(|(book, _, units)| units.iter().map(move |unit| (*book, *unit)))
    }
}

/// Units by protocol.
type Places = BTreeSet<(usize, Unit)>;

/// Decides among all leases of other lives, in `surveys`, which are gathered from all reports and
/// say nothing yet of what is withheld. Members' other claims and idle units are beyond doubt.
pub(super) fn adopt<C: Plan>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    clusters: &[Cluster],
    surveys: &mut [Survey],
    quarantine: &mut BTreeMap<u64, Quarantine>,
    facts: &BTreeMap<LeaseKey, Vec<u8>>,
    rules: impl Rules,
) {
    let joins = |site: SiteId| {
        let life = reports.get(&site).map(|report| report.incarnation);
        record.members.get(&site).copied() != life
    };
    let believes = rules.slips(Slip::DiskBesideAdopter) || rules.slips(Slip::BelievesTheDead);
    if !believes {
        drop_what_is_not_kept(record, reports, surveys, &joins);
    }
    let mut list = candidates(record, reports, surveys, &joins);
    if list.iter().all(|it| it.way == Way::Brought) {
        // Nothing was adopted, so no other site has what is brought back.
        return;
    }
    list.sort_by_key(|it| {
        let fence = it.lease.map_or(0, |lease| lease.fence);
        let first = if rules.slips(Slip::FirstPaperWins) { it.way } else { Way::Adopted };
        (first, core::cmp::Reverse(fence), it.way, it.home)
    });
    let contested: BTreeMap<(usize, Unit), u64> = list
        .iter()
        .filter(|it| it.way == Way::Adopted)
        .flat_map(|it| it.units().map(|unit| (unit, it.since)))
        .collect();
    // A paper names a claim of the life that gave it, which the same site may still have.
    let unsettled: BTreeSet<(usize, Stamp)> = list
        .iter()
        .filter(|it| it.way != Way::Presented)
        .flat_map(|it| it.parts.iter().map(|part| (part.0, part.1)))
        .collect();
    let owned = owned(surveys, &unsettled, &joins);
    let departs = record
        .members
        .iter()
        .any(|(site, life)| reports.get(site).is_none_or(|report| report.incarnation != *life));
    // The newest quarantine in which a unit is withheld, that of this change included.
    let since_of = |(book, unit): (usize, Unit)| {
        let mut kept = record.quarantine.iter().rev();
        let named = kept.find(|it| it.1.books.get(book).is_some_and(|it| it.named.contains(&unit)));
        let known = named.map(|it| *it.0).or_else(|| contested.get(&(book, unit)).copied());
        let have_names = reports.values().filter_map(|report| report.books.get(book));
        let named = have_names.into_iter().any(|book| book.idle.is_some());
        known.or_else(|| departs.then_some(record.epoch + 1)).filter(|_| named)
    };
    let exists = |(book, unit): &(usize, Unit)| {
        let pools = clusters.get(*book).map(|cluster| &cluster.pools);
        let units = pools.and_then(|pools| pools.get(unit.pool.index()));
        units.is_some_and(|units| unit.number < units.0)
    };
    let mut taken = Places::new();
    let mut known = BTreeSet::new();
    let mut lost = Vec::new();
    for candidate in list {
        let first = candidate.lease.is_none_or(|lease| !known.contains(&lease));
        let free = candidate.units().all(|unit| !owned.contains(&unit) && !taken.contains(&unit));
        let slips = match candidate.way {
            Way::Adopted => false,
            Way::Presented => {
                let again = !first && rules.slips(Slip::AdoptsTwice);
                again || first && rules.slips(Slip::AdoptsWhatMembersHave)
            }
            Way::Brought => rules.slips(Slip::DiskBesideAdopter),
        };
        let goes_on = match candidate.way {
            Way::Adopted | Way::Brought => first && free || slips,
            Way::Presented => {
                let since: Option<Vec<u64>> = candidate.units().map(since_of).collect();
                let since = since.and_then(|all| all.into_iter().max());
                let since = if slips { since.or(Some(record.epoch + 1)) } else { since };
                (first && free || slips)
                    && candidate.units().all(|unit| exists(&unit))
                    && since.is_some_and(|since| enter(&candidate, since, facts, surveys))
            }
        };
        if goes_on {
            taken.extend(candidate.units());
            known.extend(candidate.lease);
        } else if candidate.way != Way::Presented {
            lost.push(candidate);
        }
    }
    for candidate in &lost {
        for (book, claim, _) in &candidate.parts {
            surveys[*book].claims.remove(claim);
        }
        // The rest of its units is withheld as before.
        let Some(kept) = quarantine.get_mut(&candidate.since) else { continue };
        for (book, unit) in candidate.units().filter(|unit| !taken.contains(unit)) {
            if let Some(kept) = kept.books.get_mut(book) {
                kept.named.insert(unit);
            }
        }
    }
    if rules.slips(Slip::DiskBesideAdopter) {
        return;
    }
    for (book, survey) in surveys.iter_mut().enumerate() {
        survey.idle.retain(|unit, site| !joins(*site) || !taken.contains(&(book, *unit)));
    }
}

/// Drops what new lives bring back and what is not withheld for their last ones any more. Another
/// member has adopted it since, and that member, too, may be gone by now, with units that it may
/// still use. Of a lease, all claims go if one does.
fn drop_what_is_not_kept<C>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    surveys: &mut [Survey],
    joins: &impl Fn(SiteId) -> bool,
) {
    let is_kept = |site: SiteId, book: usize, unit: &Unit| {
        let last = reports.get(&site).map(|report| report.incarnation.saturating_sub(1));
        // Nothing of a member's can have been adopted yet.
        let member = last.is_some() && record.members.get(&site).copied() == last;
        let mut kept = record.quarantine.values();
        member
            || kept.any(|it| {
                let its = last.is_some() && it.sites.get(&site).copied() == last;
                its && it.books.get(book).is_some_and(|it| it.named.contains(unit))
            })
    };
    let mut gone: BTreeSet<(SiteId, Option<LeaseKey>, Stamp)> = BTreeSet::new();
    let mut leases: BTreeSet<(SiteId, LeaseKey)> = BTreeSet::new();
    for (book, survey) in surveys.iter().enumerate() {
        for (claim, standing) in survey.claims.iter().filter(|it| joins(it.0.site)) {
            let mut units = standing.held.iter().flatten();
            if !units.all(|unit| is_kept(claim.site, book, unit)) {
                let lease = standing.adopted.map(|it| it.lease);
                gone.insert((claim.site, lease, *claim));
                leases.extend(lease.map(|lease| (claim.site, lease)));
            }
        }
    }
    for (book, survey) in surveys.iter_mut().enumerate() {
        survey.claims.retain(|claim, standing| {
            let lease = standing.adopted.map(|it| it.lease);
            let with_lease = lease.is_some_and(|lease| leases.contains(&(claim.site, lease)));
            !with_lease && !gone.contains(&(claim.site, lease, *claim))
        });
        survey.idle.retain(|unit, site| !joins(*site) || is_kept(*site, book, unit));
    }
}

/// All leases that other lives granted, and that may have to yield.
fn candidates<C>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    surveys: &[Survey],
    joins: &impl Fn(SiteId) -> bool,
) -> Vec<Candidate> {
    let mut list: Vec<Candidate> = Vec::new();
    let mut places: BTreeMap<(LeaseKey, SiteId), usize> = BTreeMap::new();
    for (book, survey) in surveys.iter().enumerate() {
        for (&claim, standing) in &survey.claims {
            let Some(units) = &standing.held else { continue };
            let home = claim.site;
            let adopted = standing.adopted;
            let yields = adopted.is_some_and(|it| record.quarantine.contains_key(&it.since));
            let brought = joins(home);
            if !brought && !yields {
                continue;
            }
            let lease = adopted.map(|it| it.lease);
            let part = (book, claim, units.clone());
            if let Some(&place) = lease.and_then(|lease| places.get(&(lease, home))) {
                list[place].parts.push(part);
                continue;
            }
            places.extend(lease.map(|lease| ((lease, home), list.len())));
            let way = if brought { Way::Brought } else { Way::Adopted };
            let since = adopted.map_or(0, |it| it.since);
            list.push(Candidate { lease, way, home, since, parts: Vec::from([part]) });
        }
    }
    for (&home, report) in reports {
        for paper in &report.papers {
            let parts = paper.parts.iter();
            let parts = parts.map(|it| (usize::from(it.book), it.claim, it.units.clone()));
            let parts: Vec<_> = parts.collect();
            let whole = parts.iter().all(|it| !it.2.is_empty() && surveys.get(it.0).is_some());
            if whole && !parts.is_empty() {
                let (lease, way) = (Some(paper.lease), Way::Presented);
                list.push(Candidate { lease, way, home, since: 0, parts });
            }
        }
    }
    list
}

/// The units that members own without doubt.
fn owned(
    surveys: &[Survey],
    unsettled: &BTreeSet<(usize, Stamp)>,
    joins: &impl Fn(SiteId) -> bool,
) -> Places {
    let mut owned = Places::new();
    for (book, survey) in surveys.iter().enumerate() {
        let idle = survey.idle.iter().filter(|(_, site)| !joins(**site));
        owned.extend(idle.map(|(unit, _)| (book, *unit)));
        for (claim, standing) in &survey.claims {
            if !unsettled.contains(&(book, *claim)) {
                owned.extend(standing.held.iter().flatten().map(|unit| (book, *unit)));
            }
        }
    }
    owned
}

/// Makes the claims of a lease that was presented. They get stamps of their new site that are as
/// old as the ones they were granted with: protocols that serve in the order of stamps count on a
/// held claim being older than those that wait for its units. False where there is none left.
fn enter(
    candidate: &Candidate,
    since: u64,
    facts: &BTreeMap<LeaseKey, Vec<u8>>,
    surveys: &mut [Survey],
) -> bool {
    let Some(lease) = candidate.lease else { return false };
    let kept = facts.get(&lease).map(|facts| Kept { lease, facts: facts.clone() });
    let site = candidate.home;
    let mut claims: Vec<(usize, Stamp)> = Vec::new();
    for (book, claim, _) in &candidate.parts {
        let free = |time: &u64| {
            let stamp = Stamp { time: *time, site };
            !surveys[*book].claims.contains_key(&stamp) && !claims.contains(&(*book, stamp))
        };
        let Some(time) = (1..=claim.time).rev().find(free) else { return false };
        claims.push((*book, Stamp { time, site }));
    }
    for ((book, stamp), (_, _, units)) in claims.into_iter().zip(&candidate.parts) {
        place(stamp, Adopted { lease, since }, kept.clone(), units, &mut surveys[book]);
    }
    true
}

/// Makes a held claim of an adopted lease.
pub(super) fn place(
    claim: Stamp,
    adopted: Adopted,
    kept: Option<Kept>,
    units: &[Unit],
    survey: &mut Survey,
) {
    let mut counts = BTreeMap::new();
    for unit in units {
        *counts.entry(unit.pool).or_insert(Units(0)) += Units(1);
    }
    let demand: Demand = counts.into_iter().collect();
    let standing = Standing::holding(demand, units.to_vec());
    let standing = Standing { adopted: Some(adopted), kept, ..standing };
    survey.claims.insert(claim, standing);
}

/// A stamp of this site that no claim has, as old as this one or older, if there is one.
pub(super) fn first_free(from: Stamp, survey: &Survey) -> Option<Stamp> {
    let older = (1..=from.time).rev();
    let mut times = older.chain(from.time.saturating_add(1)..);
    let stamp = |time| Stamp { time, site: from.site };
    let free = |stamp: &Stamp| !survey.claims.contains_key(stamp);
    times.find_map(|time| Some(stamp(time)).filter(free))
}

#[cfg(test)]
mod tests {
    use super::super::Sound;
    use super::super::conclude::conclude;
    use super::super::survey::{Book, Withheld};
    use super::*;
    use crate::types::PoolId;

    const UNIT: Unit = Unit { pool: PoolId(0), number: 0 };

    fn held(site: u16, since: u64) -> (Stamp, Standing) {
        let lease = LeaseKey { giver: SiteId(0), fence: 5 };
        let demand = Demand::one(PoolId(0), 1);
        let standing = Standing::holding(demand, Vec::from([UNIT]));
        let adopted = Some(Adopted { lease, since });
        (Stamp { time: 1, site: SiteId(site) }, Standing { adopted, ..standing })
    }

    /// Site 0 left with epoch 2, and its next life brings back the lease that it had granted.
    /// Site 1, which was alone in epoch 3, is gone.
    fn after(claims: BTreeMap<Stamp, Standing>, named: BTreeSet<Unit>) -> Record<Cluster> {
        let book = |claims| Book { claims, idle: Some(Vec::new()), ..Book::default() };
        let kept = Withheld { named, ..Withheld::default() };
        let sites = [(SiteId(0), 1)].into();
        let quarantine = Quarantine { sites, books: Vec::from([kept]), ..Quarantine::default() };
        let record = Record {
            epoch: 3,
            members: [(SiteId(1), 1)].into(),
            lives: [(SiteId(0), 1), (SiteId(1), 1)].into(),
            plan: Cluster::new(2, 1),
            quarantine: [(2, quarantine)].into(),
            surveys: Vec::from([Survey { claims, ..Survey::default() }]),
            moves: Vec::new(),
        };
        let books = Vec::from([book([held(0, 0)].into())]);
        let report = Report { books, ..Report::empty(2) };
        conclude(&record, &[(SiteId(0), &report)].into(), &record.plan, 0, Sound)
    }

    #[test]
    fn a_returning_site_goes_on_with_what_is_kept_for_it() {
        let next = after(BTreeMap::new(), [UNIT].into());
        assert!(next.surveys[0].claims.contains_key(&held(0, 0).0));
        assert!(next.surveys[0].withheld_units.is_empty());
    }

    /// The adopter may still renew the lease, so its units are withheld, and the site that granted
    /// it does not go on with it.
    #[test]
    fn a_returning_site_yields_to_an_adopter_that_is_gone() {
        let next = after([held(1, 2)].into(), BTreeSet::new());
        assert!(next.surveys[0].claims.is_empty(), "{:?}", next.surveys);
        assert_eq!(next.surveys[0].withheld_units, [UNIT].into());
    }
}
