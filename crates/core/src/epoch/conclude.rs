//! From reports to the next record.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::rules::{Rules, Slip};
use super::survey::{Book, Plan, Quarantine, Record, Report, Standing, Survey, Withheld};
use crate::types::{Clock, Cluster, PoolId, SiteId, Unit, Units};

/// How far clocks leap at a change of epoch: further than any site can have got in an epoch
/// without being heard of. So the stamps and fences of an epoch are larger than all before.
const LEAP: u64 = 1 << 32;

/// The record that follows `record`, from the reports of everybody who is to be in it.
pub(super) fn conclude<C: Plan, R: Rules>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    plan: &C,
    over: u64,
) -> Record<C> {
    let epoch = record.epoch + 1;
    let stays = |(site, incarnation): &(&SiteId, &u64)| {
        reports.get(site).is_some_and(|report| report.incarnation == **incarnation)
    };
    let departed: BTreeMap<SiteId, u64> =
        record.members.iter().filter(|member| !stays(member)).map(|(&s, &i)| (s, i)).collect();
    let mut quarantine = record.quarantine.clone();
    match R::SLIP {
        Some(Slip::NeverEndsQuarantine) => {}
        Some(Slip::EndsEveryQuarantine) if over > 0 => quarantine.clear(),
        _ => quarantine.retain(|&since, _| since > over),
    }
    let mut clock = Clock::default();
    for survey in &record.surveys {
        clock.merge(survey.clock);
    }
    for report in reports.values() {
        clock.merge(report.clock);
    }
    if R::SLIP != Some(Slip::ClocksDoNotLeap) {
        clock = Clock { time: clock.time + LEAP, fence: clock.fence + LEAP };
    }
    let mut fresh = Quarantine { sites: departed, books: Vec::new() };
    let mut surveys = Vec::new();
    for (number, cluster) in record.clusters().iter().enumerate() {
        let kept = quarantine.values().filter_map(|kept| kept.books.get(number));
        let kept: Vec<&Withheld> = kept.collect();
        let books =
            reports.iter().filter_map(|(&site, report)| Some((site, report.books.get(number)?)));
        let mut survey = gather(books, cluster);
        survey.clock = clock;
        let missing = missing(&survey, cluster, &kept, named(reports, number));
        fresh.books.push(missing);
        surveys.push(survey);
    }
    let skips = R::SLIP == Some(Slip::SkipsQuarantine);
    if !fresh.sites.is_empty() && !skips {
        quarantine.insert(epoch, fresh);
    }
    for (number, survey) in surveys.iter_mut().enumerate() {
        for kept in quarantine.values().filter_map(|kept| kept.books.get(number)) {
            for (&pool, &units) in &kept.counted {
                *survey.withheld.entry(pool).or_default() += units;
            }
            for &unit in &kept.named {
                *survey.withheld.entry(unit.pool).or_default() += Units(1);
                survey.withheld_units.insert(unit);
            }
        }
    }
    let members = reports.iter().map(|(&site, report)| (site, report.incarnation)).collect();
    let mut lives = record.lives.clone();
    lives.extend(reports.iter().map(|(&site, report)| (site, report.incarnation)));
    let mut next =
        Record { epoch, members, lives, plan: plan.clone(), quarantine, surveys: Vec::new() };
    let clusters = next.clusters();
    let mut surveys = record.plan.carry(plan, surveys);
    surveys.resize_with(clusters.len(), || Survey { clock, ..Survey::default() });
    for (survey, cluster) in surveys.iter_mut().zip(&clusters) {
        trim(survey, cluster);
    }
    next.surveys = surveys;
    next
}

/// Whether the units of a protocol have names.
fn named(reports: &BTreeMap<SiteId, &Report>, number: usize) -> bool {
    let mut books = reports.values().filter_map(|report| report.books.get(number));
    books.any(|book| book.idle.is_some())
}

/// What the members have.
fn gather<'a>(books: impl Iterator<Item = (SiteId, &'a Book)>, cluster: &Cluster) -> Survey {
    let mut survey = Survey::default();
    let exists = |unit: &Unit| {
        cluster.pools.get(unit.pool.index()).is_some_and(|units| unit.number < units.0)
    };
    for (site, book) in books {
        // A site speaks for its own claims only.
        let claims = book.claims.iter().filter(|(claim, _)| claim.site == site);
        survey.claims.extend(claims.map(|(&claim, standing)| (claim, standing.clone())));
        let idle = book.idle.iter().flatten().copied().filter(exists);
        survey.idle.extend(idle.map(|unit| (unit, site)));
    }
    survey
}

/// What nobody has reported and nobody waits for the end of: whoever departed just now may have it.
fn missing(survey: &Survey, cluster: &Cluster, kept: &[&Withheld], named: bool) -> Withheld {
    let mut missing = Withheld::default();
    for (pool, &units) in (0..).map(PoolId).zip(&cluster.pools) {
        if named {
            missing.named.extend((0..units.0).map(|number| Unit { pool, number }));
            continue;
        }
        let known = kept.iter().map(|kept| kept.counted.get(&pool).copied().unwrap_or_default());
        let known: Units = known.sum();
        let rest = units.saturating_sub(survey.held(pool) + known);
        if !rest.is_zero() {
            missing.counted.insert(pool, rest);
        }
    }
    for unit in
        survey.idle.keys().chain(survey.claims.values().flat_map(|s| s.held.iter().flatten()))
    {
        missing.named.remove(unit);
    }
    for kept in kept {
        missing.named.retain(|unit| !kept.named.contains(unit));
    }
    missing
}

/// Takes out what the cluster no longer has. A waiting claim that can never be granted ends, a held
/// one keeps what is left of it.
fn trim(survey: &mut Survey, cluster: &Cluster) {
    let units_of = |pool: PoolId| cluster.pools.get(pool.index()).copied();
    let exists = |unit: &Unit| units_of(unit.pool).is_some_and(|units| unit.number < units.0);
    survey.claims.retain(|_, Standing { demand, held }| {
        if let Some(units) = held {
            if demand.pools().any(|pool| units_of(pool).is_none()) {
                *demand = demand.parts().filter(|part| units_of(part.0).is_some()).collect();
                units.retain(|unit| units_of(unit.pool).is_some());
            }
            !demand.is_empty()
        } else {
            demand.parts().all(|(pool, units)| units_of(pool).is_some_and(|all| units <= all))
        }
    });
    survey.idle.retain(|unit, site| exists(unit) && !cluster.absent.contains(*site));
    survey.withheld_units.retain(exists);
    survey.withheld.retain(|&pool, _| units_of(pool).is_some());
    let named: BTreeSet<PoolId> = survey.withheld_units.iter().map(|unit| unit.pool).collect();
    for pool in named {
        let count = survey.withheld_units.iter().filter(|unit| unit.pool == pool).count();
        survey.withheld.insert(pool, Units(u32::try_from(count).unwrap_or(u32::MAX)));
    }
}
