//! What a record says, from reports by hand: what was once wrong.

use std::collections::{BTreeMap, BTreeSet};

use kofm_core::epoch::{Book, Quarantine, Record, Report, Standing, Withheld};
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
    let book = Book { claims: claims.collect(), idle, lines: BTreeMap::new(), tallies: None };
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
