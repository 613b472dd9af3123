//! Claims that go on at another site, each in its place.
//!
//! A member that leaves by itself reports, like the others, and is not in the next record.
//! Its report is true when the record takes effect, because it is frozen from its report on. So
//! nothing of it is missing, and nothing is withheld for its sake: its held claims get another
//! site, its idle units are dealt out, and the claims that wait at it wait at another site.
//!
//! A claim that waits at a site which is lost ends with it. Its client may have a *ticket* of it,
//! and presents that to a member. The next record has the claim again, at that member.
//!
//! In both cases the claim has another name, because a claim's name says where it waits. Its
//! *origin* is the name that it was made with, and never changes. Where a claim has moved, all
//! claims that wait are numbered again in the order of their origins, so protocols that serve in
//! the order of names go on serving in the order of origins. Clocks leap at every change, so
//! origins of different epochs compare as they should. A protocol that reports
//! [lines](super::Book::lines) serves in their order: there claims are numbered in the order of the
//! lines.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::order::queue;
use super::rules::{Rules, Slip};
use super::survey::{Record, Report, Standing, Survey};
use crate::types::{Clock, Cluster, Demand, SiteId, Stamp};

/// A request of a client that a member hands over when it leaves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Handed {
    /// Its claims, each with the place of its protocol in
    /// [`Plan::clusters`](super::Plan::clusters).
    pub claims: Vec<(u16, Stamp)>,
    /// What its next site has to know of it. The machine does not read it.
    pub facts: Vec<u8>,
}

/// A request that goes on at another site, because its own has left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Moved {
    /// The site that has left.
    pub from: SiteId,
    /// The site that goes on with it.
    pub home: SiteId,
    /// Its claims: the place of the protocol, the old name, the new name.
    pub claims: Vec<(u16, Stamp, Stamp)>,
    /// The facts that the old site has told of it.
    pub facts: Vec<u8>,
}

/// A claim that waited at a site which is gone, as its client presents it to a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The site that it waited at.
    pub giver: SiteId,
    /// In which life.
    pub life: u64,
    /// The place of its protocol.
    pub book: u16,
    /// The name that it was made with. No two claims of a protocol have the same.
    pub origin: Stamp,
    /// The units that it asks for.
    pub demand: Demand,
}

impl Survey {
    /// The place of a waiting claim in the order of all: the name that it was made with.
    pub fn origin(&self, claim: Stamp) -> Stamp {
        self.origins.get(&claim).copied().unwrap_or(claim)
    }

    /// The claim that has this place.
    pub fn placed(&self, origin: Stamp) -> Option<Stamp> {
        let renamed = self.origins.iter().find(|it| *it.1 == origin).map(|it| *it.0);
        let named = || self.claims.contains_key(&origin) && !self.origins.contains_key(&origin);
        renamed.or_else(|| named().then_some(origin))
    }
}

impl<C> Record<C> {
    /// Whether the next record may have the claim of this ticket: its site departed and is in
    /// quarantine, and the claim is nowhere else.
    pub fn may_queue(&self, ticket: &Ticket) -> bool {
        let gone = is_quarantined(self, ticket);
        let survey = self.surveys.get(usize::from(ticket.book));
        gone && survey.is_some_and(|it| it.placed(ticket.origin).is_none())
    }
}

fn is_quarantined<C>(record: &Record<C>, ticket: &Ticket) -> bool {
    record.quarantine.values().any(|it| it.sites.get(&ticket.giver) == Some(&ticket.life))
}

/// The sites that leave with this change: none if no other site were left.
pub(super) fn leavers(reports: &BTreeMap<SiteId, &Report>) -> BTreeSet<SiteId> {
    let (leave, stay): (BTreeSet<_>, BTreeSet<_>) =
        reports.iter().partition(|(_, report)| report.leaves.is_some());
    if stay.is_empty() { BTreeSet::new() } else { leave.into_iter().map(|it| *it.0).collect() }
}

/// Gives the claims of those who leave another site, enters the claims of tickets, and numbers
/// those that wait again where that is needed. `surveys` are gathered from all reports; `clock` is
/// where the next epoch begins, and is moved behind the new names.
pub(super) fn hand_over<C>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    clusters: &[Cluster],
    surveys: &mut [Survey],
    clock: &mut Clock,
    rules: impl Rules,
) -> Vec<Moved> {
    let leavers = leavers(reports);
    let homes = homes(record, reports, &leavers);
    let mut list: Vec<Moved> = Vec::new();
    let mut moving: Moving = BTreeMap::new();
    for &from in &leavers {
        let handed = reports[&from].leaves.iter().flatten();
        for (handed, &home) in handed.zip(homes.iter().cycle()) {
            let known = |(book, claim): &(u16, Stamp)| {
                let survey = surveys.get(usize::from(*book));
                claim.site == from && survey.is_some_and(|it| it.claims.contains_key(claim))
            };
            let claims: Vec<(u16, Stamp)> = handed.claims.iter().copied().filter(known).collect();
            moving.extend(claims.iter().map(|&(book, claim)| ((usize::from(book), claim), home)));
            let claims = claims.into_iter().map(|(book, claim)| (book, claim, claim)).collect();
            list.push(Moved { from, home, claims, facts: handed.facts.clone() });
        }
    }
    let first = clock.time;
    for (book, survey) in surveys.iter_mut().enumerate() {
        give_up_the_rest(book, survey, &leavers, &moving);
        enter_tickets(record, reports, book, survey, clusters.get(book), &mut moving);
        let gone = |site: SiteId| leavers.contains(&site) || !reports.contains_key(&site);
        let mut names = number(book, survey, &moving, first, gone, rules);
        clock.time = clock.time.max(first + names.len() as u64);
        names.extend(name_held(book, survey, &moving));
        let claims = list.iter_mut().flat_map(|moved| &mut moved.claims);
        for it in claims.filter(|it| usize::from(it.0) == book) {
            it.2 = names.get(&it.1).copied().unwrap_or(it.2);
        }
    }
    list
}

/// The new sites of claims, by protocol and old name.
type Moving = BTreeMap<(usize, Stamp), SiteId>;

/// Where claims can go: to members that stay; if there are none, to those who join.
fn homes<C>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    leavers: &BTreeSet<SiteId>,
) -> Vec<SiteId> {
    let stay = reports.iter().filter(|it| !leavers.contains(it.0));
    let is_member = |it: &(&SiteId, &&Report)| {
        record.members.get(it.0).is_some_and(|life| *life == it.1.incarnation)
    };
    let (members, others): (Vec<_>, Vec<_>) = stay.partition(is_member);
    let list = if members.is_empty() { others } else { members };
    list.into_iter().map(|it| *it.0).collect()
}

/// A name for a held claim at another site. It is as old as its own: protocols that serve in the
/// order of names count on a held claim being older than those that wait for its units.
fn old_name(survey: &Survey, claim: Stamp, site: SiteId) -> Option<Stamp> {
    let names = (1..=claim.time).rev().map(|time| Stamp { time, site });
    names.into_iter().find(|name| !survey.claims.contains_key(name))
}

/// Names the held claims that move. Says which names they had.
fn name_held(book: usize, survey: &mut Survey, moving: &Moving) -> BTreeMap<Stamp, Stamp> {
    let mut names = BTreeMap::new();
    for (&(_, claim), &site) in moving.iter().filter(|it| it.0.0 == book) {
        if survey.claims.get(&claim).is_none_or(|standing| standing.held.is_none()) {
            continue;
        }
        // If all older names are taken, those that wait have new numbers.
        let mut later = (claim.time + 1..).map(|time| Stamp { time, site });
        let name = old_name(survey, claim, site)
            .or_else(|| later.find(|name| !survey.claims.contains_key(name)));
        if let Some(name) = name
            && let Some(standing) = survey.claims.remove(&claim)
        {
            survey.claims.insert(name, standing);
            names.insert(claim, name);
        }
    }
    names
}

/// Claims that a site does not hand over when it leaves are over, and their units are free.
fn give_up_the_rest(book: usize, survey: &mut Survey, leavers: &BTreeSet<SiteId>, moving: &Moving) {
    let Survey { claims, idle, .. } = survey;
    claims.retain(|claim, standing| {
        let stays = !leavers.contains(&claim.site) || moving.contains_key(&(book, *claim));
        let units = standing.held.iter().flatten().filter(|_| !stays);
        idle.extend(units.map(|unit| (*unit, claim.site)));
        stays
    });
}

/// Enters the claims that were presented, under their origins, for the time being.
fn enter_tickets<C>(
    record: &Record<C>,
    reports: &BTreeMap<SiteId, &Report>,
    book: usize,
    survey: &mut Survey,
    cluster: Option<&Cluster>,
    moving: &mut Moving,
) {
    let stays = |ticket: &Ticket| {
        reports.get(&ticket.giver).is_some_and(|report| report.incarnation == ticket.life)
    };
    let departs =
        |ticket: &Ticket| record.members.get(&ticket.giver) == Some(&ticket.life) && !stays(ticket);
    let fits = |demand: &Demand| {
        let most = |pool| cluster.and_then(|cluster| cluster.usable(pool));
        !demand.is_empty() && demand.parts().all(|it| most(it.0).is_some_and(|all| it.1 <= all))
    };
    for (&site, report) in reports.iter().filter(|it| it.1.leaves.is_none()) {
        let mine = report.tickets.iter().filter(|it| usize::from(it.book) == book);
        for ticket in mine {
            let gone = departs(ticket) || is_quarantined(record, ticket);
            // A new life of its site may have brought it back, held.
            let known = survey.placed(ticket.origin).is_some()
                || survey.claims.contains_key(&ticket.origin);
            if gone && !known && fits(&ticket.demand) {
                survey.claims.insert(ticket.origin, Standing::waiting(ticket.demand.clone()));
                moving.insert((book, ticket.origin), site);
            }
        }
    }
}

/// Gives those that wait new names, in the order in which they are to be served, if one of them
/// moves or has its place among older ones. Says which names they had.
fn number(
    book: usize,
    survey: &mut Survey,
    moving: &Moving,
    first: u64,
    gone: impl Fn(SiteId) -> bool,
    rules: impl Rules,
) -> BTreeMap<Stamp, Stamp> {
    let waits = survey.claims.iter().filter(|(_, standing)| standing.held.is_none());
    let waits: BTreeSet<Stamp> = waits.map(|(claim, _)| *claim).collect();
    survey.origins.retain(|claim, _| waits.contains(claim));
    let mut moved = moving.iter().filter(|it| it.0.0 == book);
    let moves = moved.any(|(&(_, claim), &site)| {
        waits.contains(&claim) || old_name(survey, claim, site).is_none()
    });
    // A protocol with lines serves in their order, whatever its claims are called.
    let has_lines = !survey.lines.is_empty();
    let origins = || waits.iter().map(|&claim| survey.origin(claim));
    if !moves && (has_lines || origins().is_sorted()) {
        return BTreeMap::new();
    }
    let home = |claim: &Stamp| moving.get(&(book, *claim)).copied().unwrap_or(claim.site);
    let mut ranked = queue(survey, gone);
    if rules.slips(Slip::RanksByHome) {
        ranked.sort_by_key(home);
    }
    let mut names = BTreeMap::new();
    let mut origins = BTreeMap::new();
    for (time, claim) in (first + 1..).zip(ranked) {
        let name = Stamp { time, site: home(&claim) };
        names.insert(claim, name);
        origins.insert(name, survey.origin(claim));
        if let Some(standing) = survey.claims.remove(&claim) {
            survey.claims.insert(name, standing);
        }
    }
    for (claim, _) in survey.lines.values_mut().flat_map(|it| it.values_mut()).flatten() {
        *claim = names.get(claim).copied().unwrap_or(*claim);
    }
    survey.origins = origins;
    let stays =
        names.iter().filter(|it| it.0.site == it.1.site && !moving.contains_key(&(book, *it.0)));
    survey.renamed = stays.map(|(&old, &new)| (old, new)).collect();
    names
}
