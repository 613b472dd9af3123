//! From reports to the next record.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::accounts::{Account, Books};
use super::adopt::adopt;
use super::keepers;
use super::leave::{hand_over, leavers};
use super::orphans;
use super::rules::{Rules, Slip};
use super::survey::{Book, Counts, Plan, Quarantine, Record, Report, Standing, Survey, Withheld};
use crate::parts::SiteSet;
use crate::types::{Clock, Cluster, PoolId, SiteId, Stamp, Unit, Units};

/// How far clocks leap at a change of epoch: further than any site can have got in an epoch
/// without being heard of. So the stamps and fences of an epoch are larger than all before.
const LEAP: u64 = 1 << 32;

/// The record that follows `record`, from the reports of all sites that are to be in it, or leave.
pub(super) fn conclude<C: Plan, R: Rules>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    plan: &C,
    over: u64,
    rules: R,
) -> Record<C> {
    let epoch = record.epoch + 1;
    let leave = leavers(reports);
    let stays = |(site, incarnation): &(&SiteId, &u64)| {
        let withheld = rules.slips(Slip::LeaverIsWithheld) && leave.contains(*site);
        reports.get(site).is_some_and(|report| report.incarnation == **incarnation) && !withheld
    };
    let departed: BTreeMap<SiteId, u64> =
        record.members.iter().filter(|member| !stays(member)).map(|(&s, &i)| (s, i)).collect();
    let mut quarantine = record.quarantine.clone();
    // A new life may go on with what its last one had, as long as that is kept for it.
    let kept = |site: SiteId, last: u64| {
        record.members.get(&site) == Some(&last)
            || record.quarantine.values().any(|it| it.sites.get(&site) == Some(&last))
    };
    let nothing: BTreeMap<SiteId, Report> = reports
        .iter()
        .filter(|(site, report)| {
            let member = record.members.get(site) == Some(&report.incarnation);
            let kept = kept(**site, report.incarnation.saturating_sub(1));
            !member && !kept && !rules.slips(Slip::BelievesTheDead)
        })
        .map(|(&site, report)| (site, without_books(report)))
        .collect();
    let reports: &BTreeMap<SiteId, &Report> =
        &reports.iter().map(|(site, &told)| (*site, nothing.get(site).unwrap_or(told))).collect();
    for kept in quarantine.values_mut() {
        orphans::believe_returned(record, reports, kept, rules);
    }
    let ends = |since: u64| match rules.slip() {
        Some(Slip::NeverEndsQuarantine) => false,
        Some(Slip::EndsEveryQuarantine) => over > 0,
        _ => since <= over,
    };
    let ended: Vec<(u64, Quarantine)> =
        quarantine.extract_if(.., |since, _| ends(*since)).collect();
    let mut clock = Clock::default();
    for survey in &record.surveys {
        clock.merge(survey.clock);
    }
    for report in reports.values() {
        clock.merge(report.clock);
    }
    if !rules.slips(Slip::ClocksDoNotLeap) {
        clock = Clock { time: clock.time + LEAP, fence: clock.fence + LEAP };
    }
    let copies = orphans::copies_of(record, reports, &departed, rules);
    let unsure = orphans::unsure(record, reports, &departed, rules);
    let mut fresh = Quarantine { sites: departed, copies, unsure, ..Quarantine::default() };
    orphans::believe_returned(record, reports, &mut fresh, rules);
    let clusters = record.clusters();
    let books_of = |number: usize| {
        let books =
            reports.iter().filter_map(|(&site, report)| Some((site, report.books.get(number)?)));
        books.collect::<Vec<(SiteId, &Book)>>()
    };
    let gathered = clusters.iter().enumerate();
    let gathered = gathered.map(|(number, cluster)| gather(books_of(number).into_iter(), cluster));
    let mut gathered: Vec<Survey> = gathered.collect();
    let known = ended.iter().map(|it| &it.1).chain(quarantine.values()).chain([&fresh]);
    let facts = orphans::facts(known);
    adopt(record, reports, &clusters, &mut gathered, &mut quarantine, &facts, rules);
    orphans::go_on(record, reports, ended, clock, &mut gathered, rules);
    let moves = hand_over(record, reports, &clusters, &mut gathered, &mut clock, rules);
    let mut surveys = Vec::new();
    for ((number, cluster), mut survey) in clusters.iter().enumerate().zip(gathered) {
        let books = books_of(number);
        // Whoever brings a unit back has it: nobody else who departed can.
        let held = survey.claims.values().flat_map(|standing| standing.held.iter().flatten());
        let back: BTreeSet<Unit> = held.chain(survey.idle.keys()).copied().collect();
        for kept in quarantine.values_mut().filter_map(|kept| kept.books.get_mut(number)) {
            kept.named.retain(|unit| !back.contains(unit));
        }
        if !rules.slips(Slip::WithholdsTwice) {
            take_back(&mut quarantine, record, reports, number);
        }
        let kept = quarantine.values().filter_map(|kept| kept.books.get(number));
        let kept: Vec<&Withheld> = kept.collect();
        survey.clock = clock;
        let before = record.surveys.get(number);
        let stayed = |site: SiteId| {
            let life = reports.get(&site).map(|report| report.incarnation);
            life.is_some() && record.members.get(&site).copied() == life
        };
        survey.counts = count(before, &books, &stayed, &fresh.sites, cluster, rules);
        // Units taken from a semaphore have no holder.
        // Sites that do not share these pools have none of their units.
        let shared = fresh.sites.keys().any(|site| !cluster.absent.contains(*site));
        fresh.books.push(if survey.counts.is_some() || !shared {
            Withheld::default()
        } else {
            let mut missing = missing(&survey, cluster, &kept, &books, rules);
            if rules.slips(Slip::AdopterIsNotWithheld) {
                forget_adopted(record, number, &fresh.sites, &mut missing);
            }
            missing
        });
        surveys.push(survey);
    }
    let skips = rules.slips(Slip::SkipsQuarantine);
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
    let members = reports.iter().filter(|(site, _)| !leave.contains(site));
    let members = members.map(|(&site, report)| (site, report.incarnation)).collect();
    let mut lives = record.lives.clone();
    lives.extend(reports.iter().map(|(&site, report)| (site, report.incarnation)));
    let mut next = Record {
        epoch,
        members,
        lives,
        plan: plan.clone(),
        quarantine,
        surveys: Vec::new(),
        moves,
    };
    let clusters = next.clusters();
    let mut surveys = record.plan.carry(plan, surveys);
    surveys.resize_with(clusters.len(), || Survey { clock, ..Survey::default() });
    let keepers = next.keepers();
    for (survey, cluster) in surveys.iter_mut().zip(&clusters) {
        survey.keepers.clone_from(&keepers);
        trim(survey, cluster);
    }
    next.surveys = surveys;
    next
}

/// For a slip: what departed members had adopted is not withheld for their sake.
fn forget_adopted<C>(
    record: &Record<C>,
    number: usize,
    departed: &BTreeMap<SiteId, u64>,
    missing: &mut Withheld,
) {
    let claims = record.surveys.get(number).into_iter().flat_map(|survey| &survey.claims);
    let its = claims.filter(|it| it.1.adopted.is_some() && departed.contains_key(&it.0.site));
    for unit in its.flat_map(|it| it.1.held.iter().flatten()) {
        missing.named.remove(unit);
    }
}

/// Where units are only counted, what a new life brings back is not withheld for its last one any
/// more: otherwise it would count twice, and what others may have not at all.
fn take_back<C>(
    quarantine: &mut BTreeMap<u64, Quarantine>,
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    number: usize,
) {
    for (site, report) in reports {
        if record.members.get(site) == Some(&report.incarnation) {
            continue;
        }
        let last = report.incarnation.saturating_sub(1);
        let its = |kept: &&mut Quarantine| kept.sites.get(site) == Some(&last);
        let Some(kept) = quarantine.values_mut().find(its) else { continue };
        let (Some(kept), Some(book)) = (kept.books.get_mut(number), report.books.get(number))
        else {
            continue;
        };
        let held =
            book.claims.iter().filter(|(claim, told)| claim.site == *site && told.held.is_some());
        for (pool, units) in held.flat_map(|(_, told)| told.demand.parts()) {
            if let Some(counted) = kept.counted.get_mut(&pool) {
                *counted = counted.saturating_sub(units);
            }
        }
        kept.counted.retain(|_, units| !units.is_zero());
    }
}

/// The values of semaphores: exact, where enough keepers have said what they know. Otherwise those
/// that departed just now may have taken all that was left; the operations of others are certain.
fn count(
    before: Option<&Survey>,
    books: &[(SiteId, &Book)],
    stayed: &impl Fn(SiteId) -> bool,
    departed: &BTreeMap<SiteId, u64>,
    cluster: &Cluster,
    rules: impl Rules,
) -> Option<Counts> {
    let known = before.and_then(|survey| survey.counts.as_ref());
    if known.is_none() && books.iter().all(|(_, book)| book.accounts.is_none()) {
        return None;
    }
    let first = known.cloned().unwrap_or_default();
    let mut counts = first.clone();
    let told = books.iter().filter_map(|(site, book)| Some((*site, book.accounts.as_ref()?)));
    for (_, accounts) in told.clone().filter(|(site, _)| stayed(*site)) {
        for (&pool, sites) in accounts {
            for (&site, account) in sites {
                let known = counts.accounts.entry(pool).or_default().entry(site).or_default();
                known.catch_up(account);
            }
        }
    }
    let left: SiteSet = books.iter().map(|(site, _)| *site).filter(|site| stayed(*site)).collect();
    let enough = before.is_some_and(|it| keepers::meet_every_majority(&it.keepers, &left))
        || departed.is_empty()
        || rules.slips(Slip::CertainWithTooFew);
    if !enough {
        counts.unsure = counts.unsure.iter().chain(departed.keys().copied()).collect();
    }
    // By what the members of the last epoch did in it.
    let since = counts.accounts.clone();
    for (site, accounts) in told.filter(|(site, _)| !stayed(*site)) {
        if counts.unsure.remove(site) || rules.slips(Slip::DiskBeatsRecord) {
            for (&pool, sites) in accounts {
                let Some(account) = sites.get(&site) else { continue };
                let known = counts.accounts.entry(pool).or_default();
                if rules.slips(Slip::DiskBeatsRecord) {
                    known.entry(site).or_default().catch_up(account);
                } else {
                    go_on_from_disk(known, site, account);
                }
            }
        }
    }
    if rules.slips(Slip::BelievesTheWiped) {
        let wiped = books.iter().filter(|(site, book)| !stayed(*site) && book.accounts.is_none());
        for (site, _) in wiped {
            counts.accounts.values_mut().for_each(|sites| drop(sites.remove(site)));
            counts.unsure.remove(*site);
        }
    }
    counts.values = (0..)
        .map(PoolId)
        .zip(&cluster.pools)
        .map(|(pool, &units)| {
            let old = first.values.get(&pool).copied().unwrap_or_else(|| units.0.into());
            let start = sum(&first.accounts, pool);
            let exact = plus(units.0.into(), (0, 0), sum(&counts.accounts, pool));
            if counts.unsure.is_empty() {
                return (pool, exact);
            }
            let shaken = !enough && departed.keys().any(|site| counts.unsure.contains(*site));
            let certain = plus(old, start, sum(&since, pool));
            (pool, if shaken { 0 } else { certain.min(exact) })
        })
        .collect();
    Some(counts)
}

/// Takes over the account on the disk of `site`. It may have operations that no other site heard
/// of, and whose clients have called again elsewhere: those are undone.
fn go_on_from_disk(accounts: &mut BTreeMap<SiteId, Account>, site: SiteId, disk: &Account) {
    let mut known = accounts.remove(&site).unwrap_or_default();
    if disk.length() > known.length() {
        known.tally = disk.tally;
        let old: BTreeSet<u128> = known.named.iter().map(|it| it.id).collect();
        for &named in disk.named.iter().filter(|it| !old.contains(&it.id)) {
            let mut others = accounts.values().flat_map(|account| &account.named);
            if others.any(|it| it.id == named.id) {
                known.count(-named.change);
            } else {
                known.remember(named);
            }
        }
    }
    accounts.insert(site, known);
}

/// Units that all sites together have added to a semaphore, and taken from it.
fn sum(accounts: &Books, pool: PoolId) -> (u64, u64) {
    let tallies = accounts.get(&pool).into_iter().flat_map(|sites| sites.values());
    tallies.fold((0_u64, 0_u64), |(added, taken), Account { tally, .. }| {
        (added.saturating_add(tally.added), taken.saturating_add(tally.taken))
    })
}

/// A value after what was done since.
const fn plus(value: u64, from: (u64, u64), to: (u64, u64)) -> u64 {
    let more = value.saturating_add(to.0.saturating_sub(from.0));
    more.saturating_sub(to.1.saturating_sub(from.1))
}

/// A report that brings no units and no claims.
fn without_books(report: &Report) -> Report {
    let empty = |book: &Book| Book {
        claims: BTreeMap::new(),
        idle: book.idle.as_ref().map(|_| Vec::new()),
        lines: BTreeMap::new(),
        origins: BTreeMap::new(),
        // What was done with semaphores is known all the same.
        accounts: book.accounts.clone(),
    };
    Report { books: report.books.iter().map(empty).collect(), papers: Vec::new(), ..report.clone() }
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
        let origins = book.origins.iter().filter(|(claim, _)| claim.site == site);
        survey.origins.extend(origins.map(|(&claim, &origin)| (claim, origin)));
        let idle = book.idle.iter().flatten().copied().filter(exists);
        survey.idle.extend(idle.map(|unit| (unit, site)));
        for (&pool, line) in &book.lines {
            survey.lines.entry(pool).or_default().insert(site, line.clone());
        }
    }
    survey
}

/// What nobody has reported and nobody waits for the end of: whoever departed just now may have it.
/// Where nobody has a book, nobody knows whether units have names, and both are out of use.
fn missing(
    survey: &Survey,
    cluster: &Cluster,
    kept: &[&Withheld],
    books: &[(SiteId, &Book)],
    rules: impl Rules,
) -> Withheld {
    let slips = rules.slips(Slip::WithholdsByNumber);
    let named = books.iter().any(|(_, book)| book.idle.is_some()) && !slips;
    let mut missing = Withheld::default();
    for (pool, &units) in (0..).map(PoolId).zip(&cluster.pools) {
        if named || books.is_empty() && !slips {
            missing.named.extend((0..units.0).map(|number| Unit { pool, number }));
        }
        if named {
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
    let granted = |unit: &Unit| exists(unit) && !cluster.out.contains(unit);
    let serves = survey.counts.is_some();
    survey.claims.retain(|_, Standing { demand, held, .. }| {
        if let Some(units) = held {
            if demand.pools().any(|pool| units_of(pool).is_none()) {
                *demand = demand.parts().filter(|part| units_of(part.0).is_some()).collect();
                units.retain(|unit| units_of(unit.pool).is_some());
            }
            !demand.is_empty()
        } else {
            // What a semaphore has not got, somebody may add.
            let fits =
                |(pool, units)| cluster.usable(pool).is_some_and(|all| serves || units <= all);
            demand.parts().all(fits)
        }
    });
    let Survey { claims, lines, origins, renamed, .. } = survey;
    origins.retain(|claim, _| claims.contains_key(claim));
    renamed.retain(|_, claim| claims.contains_key(claim));
    let waits = |claim: &Stamp| claims.get(claim).is_some_and(|told| told.held.is_none());
    lines.retain(|&pool, lines| {
        for line in lines.values_mut() {
            line.retain(|(claim, _)| waits(claim));
        }
        lines.retain(|_, line| !line.is_empty());
        units_of(pool).is_some() && !lines.is_empty()
    });
    survey.idle.retain(|unit, site| granted(unit) && !cluster.absent.contains(*site));
    survey.withheld_units.retain(exists);
    survey.withheld.retain(|&pool, _| units_of(pool).is_some());
    let mut named: BTreeMap<PoolId, u32> = BTreeMap::new();
    for unit in &survey.withheld_units {
        *named.entry(unit.pool).or_default() += 1;
    }
    survey.withheld.extend(named.into_iter().map(|(pool, count)| (pool, Units(count))));
}
