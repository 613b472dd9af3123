//! Who waits for the units of one pool at one site, in the order of the plan.
//!
//! The switchboard decides one ask after the other, and that order is the plan. A site sees it by
//! one number: each want says how many of the site's own asks the switchboard had heard when it
//! decided. So a want goes before the claims that asked later, and behind those that were heard.
//! Between two asks nothing was promised to the site that was not on its way, so the order of all
//! that come in between is free: it is that of their age.
//!
//! Own claims that did not ask are *quiet*. They go by their age among each other: whoever asks
//! late takes all younger ones along behind its ask. So it is enough to know at which claims the
//! number of asks changes that they go behind, and a late ask moves nobody one by one.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use super::crowd::{Crowd, OLDEST, YOUNGEST};
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
    /// Wants, and own claims that asked.
    placed: BTreeMap<Place, u32>,
    /// Own claims that asked.
    asking: Crowd,
    /// Which ask each of them made.
    asks: BTreeMap<Stamp, u64>,
    /// Own claims that did not ask.
    quiet: Crowd,
    /// Quiet claims that are older than this one go behind so many asks; both numbers grow. Those
    /// that are older than none of these are the tail, which goes behind all asks.
    bounds: VecDeque<(Stamp, u64)>,
    /// Units that others want, by site.
    by_site: BTreeMap<SiteId, u32>,
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

impl Line {
    pub(super) const fn new(me: SiteId) -> Self {
        Self {
            me,
            placed: BTreeMap::new(),
            asking: Crowd::new(),
            asks: BTreeMap::new(),
            quiet: Crowd::new(),
            bounds: VecDeque::new(),
            by_site: BTreeMap::new(),
            needed: 0,
            wanted: 0,
            told: 0,
            asked: 0,
            ensured: 0,
            since: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.placed.is_empty() && self.quiet.is_empty()
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
        self.here(owned).max(self.ensured.saturating_sub(self.since))
    }

    /// The same without what was asked for.
    fn here(&self, owned: usize) -> u64 {
        (owned as u64).saturating_sub(self.wanted)
    }

    /// Whose turn it is, and for how many units.
    pub(super) fn head(&self) -> Option<(Place, u32)> {
        let placed = self.placed.first_key_value().map(|(&place, &units)| (place, units));
        let quiet = self.quiet.first().map(|(claim, units)| (self.quiet_place(claim), units));
        match (placed, quiet) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, u32)> + '_ {
        let mut placed = self.placed.iter().map(|(&place, &units)| (place, units)).peekable();
        let quiet = self.quiet.iter().map(|(claim, units)| (self.quiet_place(claim), units));
        let mut quiet = quiet.peekable();
        core::iter::from_fn(move || match (placed.peek(), quiet.peek()) {
            (Some(one), Some(other)) if other < one => quiet.next(),
            (Some(_), _) => placed.next(),
            (None, _) => quiet.next(),
        })
    }

    /// The units of an own claim that waits here; none of any other.
    pub(super) fn units(&self, claim: Stamp) -> u32 {
        self.quiet.units(claim).or_else(|| self.asking.units(claim)).unwrap_or_default()
    }

    /// Whether an own claim waits here and has not asked.
    pub(super) fn is_quiet(&self, claim: Stamp) -> bool {
        self.quiet.units(claim).is_some()
    }

    /// The oldest own claim, with its units.
    pub(super) fn oldest(&self) -> Option<(Stamp, u32)> {
        self.asking.first().into_iter().chain(self.quiet.first()).min()
    }

    /// Units that claims of a site want.
    pub(super) fn wanted_by(&self, site: SiteId) -> u32 {
        self.by_site.get(&site).copied().unwrap_or_default()
    }

    /// The oldest own claim that is older than the own one at the head, and needs no more than so
    /// many units.
    pub(super) fn elder(&self, head: Place, units: usize) -> Option<(Stamp, u32)> {
        if head.quiet {
            // Whoever is older goes before it.
            return None;
        }
        let claim = head.claim;
        let sizes = 0..u32::try_from(units).map_or(u32::MAX, |units| units.saturating_add(1));
        let asking = self.asking.oldest(OLDEST..claim, sizes.clone());
        asking.into_iter().chain(self.quiet.oldest(OLDEST..claim, sizes)).min()
    }

    /// Units of all that go before an own claim.
    pub(super) fn before(&self, claim: Stamp) -> u64 {
        let others = self.iter().take_while(|(place, _)| place.claim != claim);
        others.map(|(_, units)| u64::from(units)).sum()
    }

    /// The place of an own claim that did not ask.
    pub(super) fn quiet_place(&self, claim: Stamp) -> Place {
        let bound = self.bounds.partition_point(|bound| bound.0 <= claim);
        let asks = self.bounds.get(bound).map_or(self.asked, |bound| bound.1);
        Place { asks, quiet: true, claim }
    }

    /// From which claim on quiet ones go behind at least so many asks.
    fn start_of_ask(&self, asks: u64) -> Stamp {
        if asks > self.asked {
            return YOUNGEST;
        }
        self.start_of(self.bounds.partition_point(|bound| bound.1 < asks))
    }

    /// From which claim on quiet ones go behind `place`.
    fn start_behind(&self, place: Place) -> Stamp {
        let start = self.start_of_ask(place.asks);
        if place.quiet {
            place.claim.clamp(start, self.start_of_ask(place.asks.saturating_add(1)))
        } else {
            start
        }
    }

    /// The first claim of the quiet ones before the bound of this number, and behind the last one.
    fn start_of(&self, bound: usize) -> Stamp {
        bound.checked_sub(1).map_or(OLDEST, |before| self.bounds[before].0)
    }

    /// An own claim comes last, and takes younger ones along.
    pub(super) fn join(&mut self, claim: Stamp, units: u32) {
        self.part_at(claim);
        self.quiet.insert(claim, units);
        self.needed += u64::from(units);
    }

    /// Quiet claims that are older than this one keep their places; the others come last.
    fn part_at(&mut self, claim: Stamp) {
        let mut asks = None;
        while let Some(&(bound, before)) = self.bounds.back()
            && bound > claim
        {
            asks = Some(before);
            self.bounds.pop_back();
        }
        if let Some(asks) = asks
            && self.quiet.has_any(self.start_of(self.bounds.len())..claim)
        {
            self.bounds.push_back((claim, asks));
        }
    }

    /// Drops the bound behind a place where nobody is left.
    fn tidy(&mut self, claim: Stamp) {
        let bound = self.bounds.partition_point(|bound| bound.0 <= claim);
        if let Some(&(end, _)) = self.bounds.get(bound)
            && !self.quiet.has_any(self.start_of(bound)..end)
        {
            self.bounds.remove(bound);
        }
    }

    /// The largest demand of an own claim that did not ask.
    pub(super) fn largest_quiet(&self) -> u32 {
        self.quiet.largest()
    }

    /// A quiet claim asks that this site have so many units.
    pub(super) fn ask(&mut self, claim: Stamp, ensured: u32) {
        let units = self.quiet.units(claim).expect("only quiet claims ask");
        self.part_at(claim);
        if self.quiet.has_any(self.start_of(self.bounds.len())..claim) {
            self.bounds.push_back((claim, self.asked));
        }
        self.quiet.remove(claim);
        self.asked += 1;
        self.ensured = ensured.into();
        self.since = 0;
        self.placed.insert(Place { asks: self.asked, quiet: false, claim }, units);
        self.asking.insert(claim, units);
        self.asks.insert(claim, self.asked);
    }

    /// How many asks go before a want if older claims do, whatever has been decided.
    pub(super) fn asks_by_age(&self, claim: Stamp) -> u64 {
        let younger = self.asks.range(claim..).map(|(_, ask)| ask - 1);
        younger.min().unwrap_or(self.asked)
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

    /// The oldest quiet claim behind `place` that cannot count on what there is.
    pub(super) fn uncovered(&self, place: Place, owned: usize) -> Option<Stamp> {
        let larger = |units: u64| u32::try_from(units).unwrap_or(u32::MAX).saturating_add(1);
        let here = larger(self.here(owned));
        if self.largest_quiet() < here {
            return None;
        }
        let from = self.start_behind(place);
        let tail = self.start_of_ask(self.asked);
        // Who is not in the tail cannot count on what was asked for later.
        let found = self.quiet.oldest(from..tail, here..u32::MAX);
        let sure = larger(self.sure(owned));
        let found = found.or_else(|| self.quiet.oldest(from.max(tail)..YOUNGEST, sure..u32::MAX));
        found.map(|(claim, _)| claim)
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

    /// Takes out an own claim.
    pub(super) fn leave(&mut self, claim: Stamp) {
        let units = if let Some(asks) = self.asks.remove(&claim) {
            self.placed.remove(&Place { asks, quiet: false, claim });
            self.asking.remove(claim)
        } else {
            let units = self.quiet.remove(claim);
            self.tidy(claim);
            units
        };
        self.needed -= u64::from(units.unwrap_or_default());
    }

    /// Asserts that what is counted is what is there.
    pub(super) fn audit(&self) {
        let (mut needed, mut wanted) = (0, 0);
        let mut by_site: BTreeMap<SiteId, u32> = BTreeMap::new();
        for (place, units) in self.iter() {
            if place.claim.site == self.me {
                needed += u64::from(units);
                continue;
            }
            wanted += u64::from(units);
            *by_site.entry(place.claim.site).or_default() += units;
        }
        assert_eq!((self.needed, self.wanted), (needed, wanted), "units that are waited for");
        assert_eq!(self.by_site, by_site, "who waits");
        let asking = self.asks.iter().map(|(&claim, &asks)| {
            let place = Place { asks, quiet: false, claim };
            (claim, self.placed.get(&place).copied().unwrap_or_default())
        });
        assert!(self.asking.iter().eq(asking), "who asked has the place of that ask");
        self.asking.audit();
        self.quiet.audit();
        let grows = self.bounds.iter().is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1);
        assert!(grows, "younger claims go behind more asks");
        assert!(self.bounds.back().is_none_or(|last| last.1 < self.asked), "the tail is last");
        let places = || self.quiet.iter().map(|(claim, _)| self.quiet_place(claim));
        assert!(places().is_sorted(), "quiet claims go by their age");
        let bounds: BTreeSet<u64> = self.bounds.iter().map(|bound| bound.1).collect();
        let asks = places().map(|place| place.asks).filter(|&asks| asks < self.asked);
        let asks: BTreeSet<u64> = asks.collect();
        assert_eq!(bounds, asks, "every bound has somebody before it");
    }
}
