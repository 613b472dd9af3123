//! Leases of departed sites that only a person may end: found among copies, and carried on.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::adopt::{first_free, place};
use super::machine::majority;
use super::rules::{Rules, Slip};
use super::survey::{
    Adopted, Copy, Kept, LeaseKey, Paper, PaperPart, Plan, Quarantine, Record, Report, Survey,
};
use crate::parts::SiteSet;
use crate::types::{Clock, SiteId, Stamp, Unit};

type Reports<'a> = BTreeMap<SiteId, &'a Report>;
type Found = BTreeMap<(SiteId, LeaseKey), Copy>;

/// All known leases of that kind of sites that depart now.
pub(super) fn copies_of<C: Plan>(
    record: &Record<C>,
    reports: &Reports<'_>,
    departed: &BTreeMap<SiteId, u64>,
    rules: impl Rules,
) -> Vec<(SiteId, Copy)> {
    let mut found = Found::new();
    if !rules.slips(Slip::RecordIsNoCopy) {
        recorded(record, departed, &mut found);
    }
    let stay = reports.iter().filter(|it| record.members.get(it.0) == Some(&it.1.incarnation));
    for copies in stay.clone().map(|it| &it.1.copies) {
        for (&site, copies) in copies.iter().filter(|it| departed.contains_key(it.0)) {
            for copy in copies {
                let old = found.entry((site, copy.paper.lease)).or_insert_with(|| copy.clone());
                // Leases only ever lose units.
                if age(copy) > age(old) {
                    *old = copy.clone();
                }
            }
        }
    }
    for lease in stay.flat_map(|it| &it.1.over) {
        found.retain(|it, _| it.1 != *lease);
    }
    found.into_iter().map(|((site, _), copy)| (site, copy)).collect()
}

/// The later of two copies of a lease has fewer units, or says that it is over.
fn age(copy: &Copy) -> (core::cmp::Reverse<usize>, &[u8]) {
    let units = copy.paper.parts.iter().map(|part| part.units.len()).sum();
    (core::cmp::Reverse(units), &copy.facts)
}

/// The leases that departed sites had as the epoch began.
fn recorded<C>(record: &Record<C>, departed: &BTreeMap<SiteId, u64>, found: &mut Found) {
    for (book, survey) in (0..).zip(&record.surveys) {
        for (&claim, standing) in &survey.claims {
            let (Some(units), Some(kept)) = (&standing.held, &standing.kept) else { continue };
            if !departed.contains_key(&claim.site) {
                continue;
            }
            let fresh = || Copy {
                paper: Paper { lease: kept.lease, parts: Vec::new() },
                facts: kept.facts.clone(),
            };
            let copy = found.entry((claim.site, kept.lease)).or_insert_with(fresh);
            copy.paper.parts.push(PaperPart { book, claim, units: units.clone() });
        }
    }
}

/// Those whose leases may not all be known: all that depart, where too few keepers report.
pub(super) fn unsure<C: Plan>(
    record: &Record<C>,
    reports: &Reports<'_>,
    departed: &BTreeMap<SiteId, u64>,
    rules: impl Rules,
) -> SiteSet {
    let keepers = record.plan.keepers(&record.sites());
    let stays = |site: &SiteId| {
        let life = reports.get(site).map(|report| report.incarnation);
        life.is_some() && record.members.get(site) == life.as_ref()
    };
    let left = keepers.iter().filter(stays).count();
    // Those that were no members cannot have acknowledged a copy.
    let were = keepers.iter().filter(|site| record.members.contains_key(site)).count();
    let certain = left + majority(&keepers) > were || record.members.len() < 2;
    if certain || rules.slips(Slip::CertainWithTooFew) || record.plan.keeps().is_empty() {
        return SiteSet::new();
    }
    departed.keys().copied().collect()
}

/// A site that has come back with all that it had granted knows better than any copy. Only the
/// first life after the one that departed does, and only while its units are kept for it.
pub(super) fn believe_returned<C>(
    record: &Record<C>,
    reports: &Reports<'_>,
    quarantine: &mut Quarantine,
    rules: impl Rules,
) {
    for (&site, &life) in &quarantine.sites {
        let Some(report) = reports.get(&site) else { continue };
        let member = record.members.get(&site) == Some(&report.incarnation);
        let next = !member && report.incarnation == life + 1;
        if next && (report.remembers || rules.slips(Slip::BelievesTheForgetful)) {
            quarantine.copies.retain(|it| it.0 != site);
            quarantine.unsure.remove(site);
        }
    }
}

/// The facts of each lease of which there are copies, for a holder that presents it.
pub(super) fn facts<'a>(
    quarantines: impl Iterator<Item = &'a Quarantine>,
) -> BTreeMap<LeaseKey, Vec<u8>> {
    let copies = quarantines.flat_map(|it| &it.copies);
    copies.map(|(_, copy)| (copy.paper.lease, copy.facts.clone())).collect()
}

/// Lets leases go on whose quarantine has ended.
pub(super) fn go_on<C: Plan>(
    record: &Record<C>,
    reports: &Reports<'_>,
    ended: Vec<(u64, Quarantine)>,
    clock: Clock,
    surveys: &mut [Survey],
    rules: impl Rules,
) {
    let evidence = |it: &Quarantine| !it.copies.is_empty() || !it.unsure.is_empty();
    if rules.slips(Slip::CopyEndsWithQuarantine) || !ended.iter().any(|it| evidence(&it.1)) {
        return;
    }
    let keeps = record.plan.keeps();
    let keeps = |book: usize, unit: &Unit| keeps.contains(&(book, unit.pool));
    // Those that a member has go on there.
    let claims = surveys.iter().flat_map(|survey| survey.claims.values());
    let known: BTreeSet<LeaseKey> = claims.filter_map(|it| Some(it.adopted?.lease)).collect();
    let keepers = record.plan.keepers(&record.sites());
    let stays = |it: &SiteId| record.members.get(it) == Some(&reports[it].incarnation);
    let staying: Vec<SiteId> = reports.keys().copied().filter(stays).collect();
    let keeper = staying.iter().copied().find(|&site| keepers.contains(site));
    let any = staying.iter().chain(reports.keys()).next().copied();
    let Some(home) = keeper.or(any) else { return };
    let mut fence = clock.fence;
    for (since, quarantine) in ended {
        let mut left = still_withheld(&quarantine, surveys);
        let mut copies = quarantine.copies;
        copies.sort_by_key(|it| core::cmp::Reverse(it.1.paper.lease.fence));
        if rules.slips(Slip::OlderCopyWins) {
            copies.reverse();
        }
        for (_, copy) in copies {
            let Copy { mut paper, facts } = copy;
            if known.contains(&paper.lease) {
                continue;
            }
            for part in &mut paper.parts {
                let book = usize::from(part.book);
                let right = rules.slips(Slip::CopyIsARight);
                part.units.retain(|unit| right || left.contains(&(book, *unit)));
            }
            paper.parts.retain(|part| !part.units.is_empty());
            let matters = |part: &PaperPart| {
                part.units.iter().any(|unit| keeps(usize::from(part.book), unit))
            };
            if paper.parts.iter().any(matters) {
                let kept = Some(Kept { lease: paper.lease, facts });
                for part in paper.parts {
                    let book = usize::from(part.book);
                    for unit in &part.units {
                        left.remove(&(book, *unit));
                    }
                    let from = Stamp { time: part.claim.time, site: home };
                    let Some(claim) = first_free(from, &surveys[book]) else { continue };
                    let adopted = Adopted { lease: paper.lease, since };
                    place(claim, adopted, kept.clone(), &part.units, &mut surveys[book]);
                }
            }
        }
        let Some(giver) = quarantine.unsure.iter().next() else { continue };
        for (book, unit) in left.into_iter().filter(|it| keeps(it.0, &it.1)) {
            fence += 1;
            let lease = LeaseKey { giver, fence };
            let from = Stamp { time: 1, site: home };
            let Some(claim) = first_free(from, &surveys[book]) else { continue };
            let (adopted, kept) = (Adopted { lease, since }, Kept { lease, facts: Vec::new() });
            place(claim, adopted, Some(kept), &[unit], &mut surveys[book]);
        }
    }
}

/// The units of a quarantine that no member has.
fn still_withheld(quarantine: &Quarantine, surveys: &[Survey]) -> BTreeSet<(usize, Unit)> {
    let books = quarantine.books.iter().enumerate();
    let mut left: BTreeSet<(usize, Unit)> =
        books.flat_map(|(book, it)| it.named.iter().map(move |unit| (book, *unit))).collect();
    for (book, survey) in surveys.iter().enumerate() {
        let held = survey.claims.values().flat_map(|it| it.held.iter().flatten());
        for unit in held.chain(survey.idle.keys()) {
            left.remove(&(book, *unit));
        }
    }
    left
}
