//! In which order those who wait are served, from the lines that members report.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::survey::Survey;
use crate::types::{SiteId, Stamp, Units};

/// All that wait, in the order in which they are to be served. Who waits for a later pool has taken
/// the units of all earlier ones, so it goes before all who wait for those. Without lines, it is
/// the order in which they were made.
pub(crate) fn queue(survey: &Survey, gone: impl Fn(SiteId) -> bool) -> Vec<Stamp> {
    let waiting = survey.claims.iter().filter(|(_, standing)| standing.held.is_none());
    let waiting: BTreeSet<Stamp> = waiting.map(|(&claim, _)| claim).collect();
    let mut list: Vec<Stamp> = Vec::new();
    let mut seen: BTreeSet<Stamp> = BTreeSet::new();
    for lines in survey.lines.values().rev() {
        let own = lines.iter().flat_map(|(&site, line)| {
            // A site that is gone has left its line, or its claims are in the lines of others.
            let gone = &gone;
            let its = move |claim: &Stamp| claim.site == site || gone(claim.site) || gone(site);
            line.iter().map(|it| it.0).filter(its)
        });
        let here: BTreeSet<Stamp> =
            own.filter(|claim| waiting.contains(claim) && !seen.contains(claim)).collect();
        list.extend(merge(lines.values(), &here));
        seen.extend(here);
    }
    // Who is in no line goes behind all that are older.
    for claim in waiting.difference(&seen) {
        let older = |other: &Stamp| survey.origin(*other) < survey.origin(*claim);
        let place = list.iter().rposition(older).map_or(0, |last| last + 1);
        list.insert(place, *claim);
    }
    list
}

/// One order of these claims that agrees with that of each line; where the lines leave it open, or
/// contradict each other, the oldest goes first.
fn merge<'a>(
    lines: impl Iterator<Item = &'a Vec<(Stamp, Units)>>,
    claims: &BTreeSet<Stamp>,
) -> Vec<Stamp> {
    let mut behind: BTreeMap<Stamp, BTreeSet<Stamp>> = BTreeMap::new();
    let mut before: BTreeMap<Stamp, usize> = claims.iter().map(|&claim| (claim, 0)).collect();
    for line in lines {
        let mut seen = BTreeSet::new();
        let mut last = None;
        for claim in line.iter().map(|it| it.0).filter(|claim| claims.contains(claim)) {
            if !seen.insert(claim) {
                continue;
            }
            if let Some(last) = last.replace(claim)
                && behind.entry(last).or_default().insert(claim)
            {
                *before.entry(claim).or_default() += 1;
            }
        }
    }
    let mut ready: BTreeSet<Stamp> =
        before.iter().filter(|it| *it.1 == 0).map(|(&claim, _)| claim).collect();
    let mut list = Vec::new();
    while let Some(claim) = ready.pop_first().or_else(|| before.keys().next().copied()) {
        before.remove(&claim);
        list.push(claim);
        for next in behind.remove(&claim).into_iter().flatten() {
            if let Some(count) = before.get_mut(&next) {
                *count -= 1;
                if *count == 0 {
                    ready.insert(next);
                }
            }
        }
    }
    list
}
