//! What a record says, from reports by hand: what was once wrong.

use std::collections::{BTreeMap, BTreeSet};

use kofm_core::epoch::{Book, Handed, Quarantine, Record, Report, Standing, Ticket, Withheld};
use kofm_core::{Cluster, Demand, PoolId, SiteId, Stamp, Unit, Units};

const POOL: PoolId = PoolId(0);

fn members<const N: usize>(list: [(u16, u64); N]) -> BTreeMap<SiteId, u64> {
    list.map(|(site, life)| (SiteId(site), life)).into()
}

fn units(numbers: std::ops::Range<u32>) -> BTreeSet<Unit> {
    numbers.map(|number| Unit { pool: POOL, number }).collect()
}

/// A site with this many held claims of one unit each, and this many that lie idle.
fn report(site: u16, incarnation: u64, held: u64, idle: Option<Vec<Unit>>) -> Report {
    let claims = (0..held).map(|time| {
        let standing = Standing::holding(Demand::one(POOL, 1), Vec::new());
        (Stamp { time, site: SiteId(site) }, standing)
    });
    let book = Book { claims: claims.collect(), idle, ..Book::default() };
    Report { books: vec![book], ..Report::empty(incarnation) }
}

#[test]
fn who_begins_anew_keeps_off_what_the_dead_have() {
    let record = Record::first(members([(0, 1), (1, 1)]), Cluster::new(2, 3));
    let named = record.revived(&[(SiteId(0), report(0, 2, 0, Some(Vec::new())))].into());
    assert_eq!(named.surveys[0].withheld_units, units(0..3));
    assert_eq!(named.surveys[0].withheld[&POOL], Units(3));
    let counted = record.revived(&[(SiteId(0), report(0, 2, 0, None))].into());
    assert_eq!(counted.surveys[0].withheld[&POOL], Units(3));
    // Nobody has a book: nobody knows whether units have names.
    let neither = record.revived(&[(SiteId(0), Report::empty(2))].into());
    assert_eq!(neither.surveys[0].withheld_units, units(0..3));
    assert_eq!(neither.surveys[0].withheld[&POOL], Units(3));
}

#[test]
fn what_is_brought_back_counts_once() {
    // Two units: one of a site that departed, one of a site that departs as the first comes back.
    let withheld = Withheld { counted: [(POOL, Units(1))].into(), named: BTreeSet::new() };
    let (sites, books) = (members([(0, 1)]), vec![withheld]);
    let departed = Quarantine { sites, books, ..Quarantine::default() };
    let first = Record::first(members([(1, 1), (2, 1)]), Cluster::new(3, 2));
    let record = Record {
        epoch: 7,
        lives: members([(0, 1), (1, 1), (2, 1)]),
        quarantine: [(7, departed)].into(),
        ..first
    };
    let back = (SiteId(0), report(0, 2, 1, None));
    let next = record.revived(&[back.clone(), (SiteId(2), report(2, 1, 0, None))].into());
    assert_eq!(next.members, members([(0, 2), (2, 1)]));
    assert_eq!(next.surveys[0].held(POOL), Units(1));
    assert_eq!(next.surveys[0].withheld[&POOL], Units(1), "that of site 1");
    // Where nobody departs, nothing is withheld any more.
    let stay = [back, (SiteId(1), report(1, 1, 1, None)), (SiteId(2), report(2, 1, 0, None))];
    let next = record.revived(&stay.into());
    assert_eq!(next.surveys[0].held(POOL), Units(2));
    assert_eq!(next.surveys[0].withheld.get(&POOL), None);
}

#[test]
fn what_was_not_kept_is_not_believed() {
    let record = Record::first(members([(1, 1), (2, 1)]), Cluster::new(3, 2));
    let stay = [(1, 1), (2, 1)].map(|(site, life)| (SiteId(site), report(site, life, 1, None)));
    let back = (SiteId(0), report(0, 2, 1, None));
    let next = record.revived(&stay.into_iter().chain([back]).collect());
    assert_eq!(next.surveys[0].held(POOL), Units(2), "those of the members");
}

fn stamp(time: u64, site: u16) -> Stamp {
    Stamp { time, site: SiteId(site) }
}

/// A member that holds or waits with claims of one unit.
fn member(site: u16, waits: &[u64], holds: &[u64], leaves: bool) -> (SiteId, Report) {
    let demand = Demand::one(POOL, 1);
    let waiting = waits.iter().map(|&time| (stamp(time, site), Standing::waiting(demand.clone())));
    let held = holds
        .iter()
        .map(|&time| (stamp(time, site), Standing::holding(demand.clone(), Vec::new())));
    let claims = waiting.chain(held).collect();
    let book = Book { claims, ..Book::default() };
    let handed = |&time: &u64| Handed {
        claims: vec![(0, stamp(time, site))],
        facts: vec![u8::try_from(time).expect("small")],
    };
    let leaves = leaves.then(|| waits.iter().chain(holds).map(handed).collect());
    (SiteId(site), Report { books: vec![book], leaves, ..Report::empty(1) })
}

#[test]
fn what_a_site_has_goes_to_others_when_it_leaves() {
    let record = Record::first(members([(0, 1), (1, 1), (2, 1)]), Cluster::new(3, 3));
    let reports = [
        member(0, &[5, 9], &[], false),
        member(1, &[4, 5, 7], &[1, 2], true),
        member(2, &[5, 6], &[1], false),
    ];
    let next = record.revived(&reports.into());
    assert_eq!(next.members, members([(0, 1), (2, 1)]));
    assert!(next.quarantine.is_empty(), "nothing is withheld");
    let survey = &next.surveys[0];
    assert_eq!(survey.held(POOL), Units(3));
    assert!(survey.claims.keys().all(|claim| claim.site != SiteId(1)));
    // In the order in which they were made, whatever they are called now.
    let waits = survey.claims.iter().filter(|(_, standing)| standing.held.is_none());
    let places: Vec<Stamp> = waits.map(|(claim, _)| survey.origin(*claim)).collect();
    let expected = [(4, 1), (5, 0), (5, 1), (5, 2), (6, 2), (7, 1), (9, 0)];
    assert_eq!(places, expected.map(|(time, site)| stamp(time, site)));
    // Each request has one home, which is told what its site knew of it.
    let mut handed = BTreeMap::new();
    for moved in &next.moves {
        let [(0, old, new)] = moved.claims[..] else { panic!("{moved:?}") };
        assert_eq!((moved.from, new.site), (SiteId(1), moved.home));
        assert_eq!(moved.facts, [u8::try_from(old.time).expect("small")]);
        handed.insert(old, survey.claims[&new].held.is_some());
    }
    let expected = [(1, true), (2, true), (4, false), (5, false), (7, false)];
    assert_eq!(handed, expected.map(|(time, held)| (stamp(time, 1), held)).into());
    // Members learn what their own claims are called.
    let renamed: Vec<Stamp> = survey.renamed.keys().copied().collect();
    assert_eq!(renamed, [stamp(5, 0), stamp(5, 2), stamp(6, 2), stamp(9, 0)]);
    assert!(survey.renamed.iter().all(|(old, new)| survey.origin(*new) == *old));
    assert!(survey.clock.time >= survey.claims.keys().map(|claim| claim.time).max().unwrap_or(0));
}

#[test]
fn places_outlast_several_changes() {
    let first = Record::first(members([(0, 1), (1, 1)]), Cluster::new(2, 1));
    let reports = [member(0, &[5], &[], false), member(1, &[3, 8], &[], true)];
    let next = first.revived(&reports.into());
    // The site comes back, claims, and the other one leaves.
    let survey = &next.surveys[0];
    let late = Stamp { time: survey.clock.time + 1, site: SiteId(1) };
    let mut claims = survey.claims.clone();
    let book = Book { claims: claims.clone(), origins: survey.origins.clone(), ..Book::default() };
    let handed = |claim: &Stamp| Handed { claims: vec![(0, *claim)], facts: Vec::new() };
    let leaves = Some(claims.keys().map(handed).collect());
    let leaver = Report { books: vec![book], leaves, ..Report::empty(1) };
    claims = [(late, Standing::waiting(Demand::one(POOL, 1)))].into();
    let book = Book { claims, ..Book::default() };
    let stays = Report { books: vec![book], ..Report::empty(2) };
    let record = Record { members: members([(0, 1), (1, 2)]), ..next };
    let next = record.revived(&[(SiteId(0), leaver), (SiteId(1), stays)].into());
    let survey = &next.surveys[0];
    let places: Vec<Stamp> = survey.claims.keys().map(|claim| survey.origin(*claim)).collect();
    assert_eq!(places, [stamp(3, 1), stamp(5, 0), stamp(8, 1), late]);
    assert!(survey.claims.keys().all(|claim| claim.site == SiteId(1)));
}

#[test]
fn nobody_leaves_where_nobody_would_be_left() {
    let record = Record::first(members([(0, 1), (1, 1)]), Cluster::new(2, 1));
    let reports = [member(0, &[5], &[], true), member(1, &[3], &[1], true)];
    let next = record.revived(&reports.into());
    assert_eq!(next.members, record.members);
    assert!(next.moves.is_empty());
    assert_eq!(next.surveys[0].claims.len(), 3);
}

#[test]
fn a_ticket_brings_a_claim_back_to_its_place_once() {
    let record = Record::first(members([(0, 1), (1, 1), (2, 1)]), Cluster::new(3, 2));
    let ticket = |life, time| Ticket {
        giver: SiteId(1),
        life,
        book: 0,
        origin: stamp(time, 1),
        demand: Demand::one(POOL, 1),
    };
    let present = |it: (SiteId, Report), tickets| (it.0, Report { tickets, ..it.1 });
    let stay = || [member(0, &[5, 9], &[], false), member(2, &[6], &[1], false)];
    let [a, c] = stay();
    // To two members, and one of another life.
    let lost = [
        present(a, vec![ticket(1, 5), ticket(0, 2)]),
        present(c, vec![ticket(1, 5), ticket(1, 7)]),
    ];
    let next = record.revived(&lost.clone().into());
    let survey = &next.surveys[0];
    let waits = survey.claims.iter().filter(|(_, standing)| standing.held.is_none());
    let places: Vec<(Stamp, SiteId)> =
        waits.map(|(claim, _)| (survey.origin(*claim), claim.site)).collect();
    let expected = [(5, 0, 0), (5, 1, 0), (6, 2, 2), (7, 1, 2), (9, 0, 0)];
    assert_eq!(places, expected.map(|(time, site, home)| (stamp(time, site), SiteId(home))));
    assert!(!next.may_queue(&ticket(1, 5)), "it is there");
    assert!(next.may_queue(&ticket(1, 8)) && !next.may_queue(&ticket(2, 8)));
    // Its site lives, and has it: its word counts.
    let [a, c] = lost;
    let next = record.revived(&[a, member(1, &[5], &[], false), c].into());
    let survey = &next.surveys[0];
    assert_eq!(survey.claims.len(), 5);
    assert!(survey.claims.contains_key(&stamp(5, 1)) && survey.renamed.is_empty());
}
