//! Who waits for the units of one pool at one site, in the order of the plan.
//!
//! The switchboard decides one ask after the other, and that order is the plan. A site sees it by
//! one number: each want says how many of the site's own asks the switchboard had heard when it
//! decided. So a want goes before the claims that asked later, and behind those that were heard.
//! Between two asks nothing was promised to the site, so the order of all that come in between is
//! free: it is that of their age.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::types::{SiteId, Stamp};

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    /// Asks of this site that go before, or the one that the claim made itself.
    asks: u64,
    /// Whether the claim did not make it.
    quiet: bool,
    pub(super) claim: Stamp,
}

/// Own claims and wants of other sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    me: SiteId,
    /// All that have a place.
    placed: BTreeMap<Place, u32>,
    /// Those of them that are own claims, with their places.
    own: BTreeMap<Stamp, Place>,
    /// Units that others want, by site.
    by_site: BTreeMap<SiteId, u32>,
    /// Own claims that came last and did not ask. Their place is behind the last ask.
    tail: BTreeMap<Stamp, u32>,
    /// How many own claims that did not ask, in the tail or placed, need how many units.
    quiet: BTreeMap<u32, u32>,
    /// Units that own claims need, all in all.
    needed: u64,
    /// Units that others want.
    wanted: u64,
    /// Units that others ever wanted.
    told: u64,
    /// Asks made.
    asked: u64,
    /// What the last of them was for: as soon as it is heard, this site has so many units,
    ensured: u64,
    /// but for those that went to others since.
    since: u64,
}

impl Place {
    /// Before everybody.
    pub(super) const FIRST: Self =
        Self { asks: 0, quiet: false, claim: Stamp { time: 0, site: SiteId(0) } };
}

impl Line {
    pub(super) const fn new(me: SiteId) -> Self {
        Self {
            me,
            placed: BTreeMap::new(),
            own: BTreeMap::new(),
            by_site: BTreeMap::new(),
            tail: BTreeMap::new(),
            quiet: BTreeMap::new(),
            needed: 0,
            wanted: 0,
            told: 0,
            asked: 0,
            ensured: 0,
            since: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.placed.is_empty() && self.tail.is_empty()
    }

    /// Units that others ever wanted.
    pub(super) const fn told(&self) -> u64 {
        self.told
    }

    /// Asks made.
    pub(super) const fn asked(&self) -> u64 {
        self.asked
    }

    /// Units that own claims need, all in all.
    pub(super) const fn needed(&self) -> u64 {
        self.needed
    }

    /// How many units this site has for certain behind all that are in the line, if it owns so
    /// many now.
    pub(super) fn sure(&self, owned: usize) -> u64 {
        let here = (owned as u64).saturating_sub(self.wanted);
        here.max(self.ensured.saturating_sub(self.since))
    }

    /// Whose turn it is, and for how many units.
    pub(super) fn head(&self) -> Option<(Place, u32)> {
        let placed = self.placed.first_key_value().map(|(&place, &units)| (place, units));
        let tail = self.tail.first_key_value().map(|(&claim, &units)| (self.last(claim), units));
        match (placed, tail) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, u32)> + '_ {
        let mut placed = self.placed.iter().map(|(&place, &units)| (place, units)).peekable();
        let tail = self.tail.iter().map(|(&claim, &units)| (self.last(claim), units));
        let mut tail = tail.peekable();
        core::iter::from_fn(move || match (placed.peek(), tail.peek()) {
            (Some(one), Some(other)) if other < one => tail.next(),
            (Some(_), _) => placed.next(),
            (None, _) => tail.next(),
        })
    }

    /// The units of an own claim that waits here; none of any other.
    pub(super) fn units(&self, claim: Stamp) -> u32 {
        let placed = self.own.get(&claim).and_then(|place| self.placed.get(place));
        placed.or_else(|| self.tail.get(&claim)).copied().unwrap_or_default()
    }

    /// Whether an own claim waits here and has not asked.
    pub(super) fn is_in_tail(&self, claim: Stamp) -> bool {
        self.tail.contains_key(&claim)
    }

    /// The oldest own claim, with its units.
    pub(super) fn oldest(&self) -> Option<(Stamp, u32)> {
        let placed = self.own.first_key_value().map(|(&claim, place)| (claim, self.placed[place]));
        let tail = self.tail.first_key_value().map(|(&claim, &units)| (claim, units));
        match (placed, tail) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// The oldest own claim behind `claim` that needs no more than so many units.
    pub(super) fn next_own(&self, claim: Stamp, units: usize) -> Option<(Stamp, u32)> {
        let behind = (Bound::Excluded(claim), Bound::Unbounded);
        let placed = self.own.range(behind).map(|(&claim, place)| (claim, self.placed[place]));
        let tail = self.tail.range(behind).map(|(&claim, &units)| (claim, units));
        let all = placed.take(REACH).chain(tail.take(REACH));
        all.filter(|own| own.1 as usize <= units).min()
    }

    /// Units that claims of a site want.
    pub(super) fn wanted_by(&self, site: SiteId) -> u32 {
        self.by_site.get(&site).copied().unwrap_or_default()
    }

    /// The oldest own claim before `claim` that needs no more than so many units.
    pub(super) fn elder(&self, claim: Stamp, units: usize) -> Option<(Stamp, u32)> {
        let placed = self.own.range(..claim).map(|(&claim, place)| (claim, self.placed[place]));
        let tail = self.tail.range(..claim).map(|(&claim, &units)| (claim, units));
        let all = placed.take(REACH).chain(tail.take(REACH));
        all.filter(|own| own.1 as usize <= units).min()
    }

    /// Units of all that go before an own claim.
    pub(super) fn before(&self, claim: Stamp) -> u64 {
        let others = self.iter().take_while(|(place, _)| place.claim != claim);
        others.map(|(_, units)| u64::from(units)).sum()
    }

    /// The place of an own claim that does not ask.
    const fn last(&self, claim: Stamp) -> Place {
        Place { asks: self.asked, quiet: true, claim }
    }

    /// An own claim comes last.
    pub(super) fn join(&mut self, claim: Stamp, units: u32) {
        self.tail.insert(claim, units);
        *self.quiet.entry(units).or_default() += 1;
        self.needed += u64::from(units);
    }

    fn speak(&mut self, units: u32) {
        let count = self.quiet.get_mut(&units).expect("whoever did not ask is counted");
        *count -= 1;
        if *count == 0 {
            self.quiet.remove(&units);
        }
    }

    /// The largest demand of an own claim that did not ask.
    pub(super) fn largest_quiet(&self) -> u32 {
        self.quiet.last_key_value().map_or(0, |(&units, _)| units)
    }

    /// A claim of the tail asks that this site have so many units.
    pub(super) fn ask(&mut self, claim: Stamp, ensured: u32) {
        let units = self.tail.remove(&claim).expect("only claims of the tail ask");
        self.speak(units);
        let younger = self.tail.split_off(&claim);
        // Whoever is older keeps its place.
        for (older, units) in core::mem::replace(&mut self.tail, younger) {
            let place = self.last(older);
            self.placed.insert(place, units);
            self.own.insert(older, place);
        }
        self.asked += 1;
        self.ensured = ensured.into();
        self.since = 0;
        let place = Place { asks: self.asked, quiet: false, claim };
        self.placed.insert(place, units);
        self.own.insert(claim, place);
    }

    /// Nobody can count on what was asked for.
    pub(super) const fn retract(&mut self) {
        self.ensured = 0;
        self.since = 0;
    }

    /// Another site wants units, and the switchboard had heard so many asks of this one.
    pub(super) fn want(&mut self, heard: u64, claim: Stamp, units: u32) -> Place {
        let place = Place { asks: heard, quiet: true, claim };
        *self.placed.entry(place).or_default() += units;
        *self.by_site.entry(claim.site).or_default() += units;
        self.wanted += u64::from(units);
        self.told += u64::from(units);
        if heard >= self.asked {
            self.since += u64::from(units);
        }
        place
    }

    /// Units went to the switchboard, which nobody here waited for.
    pub(super) fn part_with(&mut self, units: u32) {
        self.since += u64::from(units);
    }

    /// Puts the own claims behind `place` that did not ask, and cannot count on what there is, into
    /// the tail. Says which of them is the oldest.
    pub(super) fn uncover(&mut self, place: Place, owned: usize) -> Option<Stamp> {
        // Who has a place cannot count on what was asked for later.
        let here = (owned as u64).saturating_sub(self.wanted);
        let sure = self.sure(owned);
        if u64::from(self.largest_quiet()) <= here {
            return None;
        }
        let behind = self.placed.range(place..).filter(|(place, units)| {
            place.quiet && place.claim.site == self.me && u64::from(**units) > here
        });
        let behind: Vec<Place> = behind.map(|(&place, _)| place).collect();
        for place in &behind {
            let units = self.placed.remove(place).expect("it was found there");
            self.own.remove(&place.claim);
            self.tail.insert(place.claim, units);
        }
        let tail = self
            .tail
            .iter()
            .filter(|&(&claim, &units)| u64::from(units) > sure && self.last(claim) > place);
        let oldest = tail.map(|(&claim, _)| claim).next();
        behind.first().map(|place| place.claim).into_iter().chain(oldest).min()
    }

    /// An own claim that did not ask comes last. Says whether there is such a claim.
    pub(super) fn come_last(&mut self, claim: Stamp) -> bool {
        if let Some(&place) = self.own.get(&claim).filter(|place| place.quiet) {
            self.own.remove(&claim);
            let units = self.placed.remove(&place).expect("its place is known");
            self.tail.insert(claim, units);
        }
        self.is_in_tail(claim)
    }

    /// Units go to a site that wants them.
    pub(super) fn serve_want(&mut self, place: Place, units: u32) {
        let wanted = self.placed.get_mut(&place).expect("wants have places");
        *wanted -= units;
        if *wanted == 0 {
            self.placed.remove(&place);
        }
        self.wanted -= u64::from(units);
        let site = self.by_site.entry(place.claim.site).or_default();
        *site -= units;
        if *site == 0 {
            self.by_site.remove(&place.claim.site);
        }
    }

    /// Asserts that what is counted is what is there.
    pub(super) fn audit(&self) {
        let (mut needed, mut wanted, mut own) = (0, 0, 0);
        let mut by_site: BTreeMap<SiteId, u32> = BTreeMap::new();
        let mut quiet: BTreeMap<u32, u32> = BTreeMap::new();
        for (place, units) in self.iter() {
            if place.claim.site != self.me {
                wanted += u64::from(units);
                *by_site.entry(place.claim.site).or_default() += units;
                continue;
            }
            needed += u64::from(units);
            own += usize::from(!self.is_in_tail(place.claim));
            if place.quiet {
                *quiet.entry(units).or_default() += 1;
            }
        }
        assert_eq!((self.needed, self.wanted), (needed, wanted), "units that are waited for");
        assert_eq!((&self.by_site, &self.quiet), (&by_site, &quiet), "who waits");
        assert_eq!(self.own.len(), own, "own claims have one place each");
        assert!(self.own.iter().all(|(claim, place)| place.claim == *claim), "their own");
    }

    /// Takes out an own claim.
    pub(super) fn leave(&mut self, claim: Stamp) {
        let placed = self.own.remove(&claim);
        let units = match placed {
            Some(place) => self.placed.remove(&place),
            None => self.tail.remove(&claim),
        };
        let Some(units) = units else { return };
        if placed.is_none_or(|place| place.quiet) {
            self.speak(units);
        }
        self.needed -= u64::from(units);
    }
}

/// How many claims are looked at to find one that fits.
const REACH: usize = 8;
