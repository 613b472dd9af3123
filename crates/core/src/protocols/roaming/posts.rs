//! The knowledge that the directory of a pool has of the sites, with the indexes for its decisions.
//!
//! A decision takes time that grows with the logarithm of the number of sites, and with the number
//! of sites that it names, not with all.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::types::{SiteId, Stamp};

/// The board's knowledge of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Post {
    /// Units that it has when all is done that was decided.
    pub(super) units: u32,
    /// Those of them that are idle, as far as the board knows.
    pub(super) idle: u32,
    /// Those of them that were sent there and are not known to be idle.
    pub(super) sent: u32,
    /// Asks that came from there.
    pub(super) heard: u64,
    /// Units that it was told to give, all in all.
    pub(super) told: u64,
    /// The next sending when it was last told to give units that its own claims use.
    pub(super) parted: u64,
    /// How many idle units it is to send to the directory.
    pub(super) watched: u32,
}

impl Post {
    /// Units that are neither idle nor on their way: claims of the site itself use them.
    pub(super) const fn used(&self) -> u32 {
        self.units.saturating_sub(self.idle).saturating_sub(self.sent)
    }
}

/// All sites that the board has heard of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Posts {
    all: BTreeMap<SiteId, Post>,
    /// Idle units of all sites.
    idle: u32,
    /// Sites with idle units, by their number.
    stocks: BTreeSet<(u32, SiteId)>,
    /// Sites whose own claims use units.
    users: BTreeSet<SiteId>,
    /// The same by the number of units; the one that has not parted with any for longest first.
    rested: BTreeMap<u32, BTreeSet<(u64, Reverse<SiteId>)>>,
    /// Sites that are not watched: with units, and without.
    rich: BTreeSet<SiteId>,
    poor: BTreeSet<SiteId>,
}

impl Posts {
    pub(super) const fn new() -> Self {
        Self {
            all: BTreeMap::new(),
            idle: 0,
            stocks: BTreeSet::new(),
            users: BTreeSet::new(),
            rested: BTreeMap::new(),
            rich: BTreeSet::new(),
            poor: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, site: SiteId) -> Option<&Post> {
        self.all.get(&site)
    }

    /// Changes what is known of a site, and the indexes with it.
    pub(super) fn change<T>(&mut self, site: SiteId, change: impl FnOnce(&mut Post) -> T) -> T {
        let known = self.all.contains_key(&site);
        let post = self.all.entry(site).or_default();
        let old = post.clone();
        let result = change(post);
        let new = post.clone();
        if old.idle != new.idle {
            self.idle = self.idle - old.idle + new.idle;
            self.stocks.remove(&(old.idle, site));
            if new.idle > 0 {
                self.stocks.insert((new.idle, site));
            }
        }
        let (was, is) = ((old.used(), old.parted), (new.used(), new.parted));
        if was != is {
            if let Some(list) = self.rested.get_mut(&was.0) {
                list.remove(&(was.1, Reverse(site)));
                if list.is_empty() {
                    self.rested.remove(&was.0);
                }
            }
            if is.0 > 0 {
                self.rested.entry(is.0).or_default().insert((is.1, Reverse(site)));
                self.users.insert(site);
            } else {
                self.users.remove(&site);
            }
        }
        let list = |post: &Post| (post.watched == 0).then_some(post.units > 0);
        let (was, is) = (list(&old).filter(|_| known), list(&new));
        if was != is {
            match was {
                Some(true) => self.rich.remove(&site),
                Some(false) => self.poor.remove(&site),
                None => false,
            };
            match is {
                Some(true) => self.rich.insert(site),
                Some(false) => self.poor.insert(site),
                None => false,
            };
        }
        result
    }

    /// Idle units of all sites but one.
    pub(super) fn idle_beside(&self, site: SiteId) -> u32 {
        self.idle - self.get(site).map_or(0, |post| post.idle)
    }

    /// The site to take `count` idle units from, if one has them, but not `to`. Sites with at least
    /// `spare` units beyond that give first, the richest of them, so that stocks even out;
    /// otherwise the smallest stock that is large enough.
    pub(super) fn stock(&self, to: SiteId, count: u32, spare: u32) -> Option<SiteId> {
        let other = |it: &&(u32, SiteId)| it.1 != to;
        let &(most, _) = self.stocks.iter().rev().find(other)?;
        let from = if most >= count.saturating_add(spare) { most } else { count };
        self.stocks.range((from, SiteId(0))..).find(other).map(|it| it.1)
    }

    /// Sites with idle units, those with most first, but not `to`.
    pub(super) fn stocks(&self, to: SiteId) -> impl Iterator<Item = (SiteId, u32)> + '_ {
        let below = move |units: u32| {
            self.stocks.range(..(units, SiteId(0))).next_back().map(|stock| stock.0)
        };
        let sizes = core::iter::successors(self.stocks.last().map(|it| it.0), move |it| below(*it));
        let same = |units: u32| self.stocks.range((units, SiteId(0))..=(units, SiteId(u16::MAX)));
        sizes.flat_map(same).filter(move |it| it.1 != to).map(|&(units, site)| (site, units))
    }

    /// Sites whose own claims use units, and how many, but not `to`.
    pub(super) fn users(&self, to: SiteId) -> impl Iterator<Item = (SiteId, u32)> + '_ {
        let others = self.users.iter().copied().filter(move |site| *site != to);
        others.map(|site| (site, self.get(site).map_or(0, Post::used)))
    }

    /// For each number of units that own claims of a site use, from `count` on: the site that has
    /// not parted with any for longest, and since which sending. Not `to`.
    pub(super) fn rested(
        &self,
        to: SiteId,
        count: u32,
    ) -> impl Iterator<Item = (u32, u64, SiteId)> + '_ {
        self.rested.range(count..).filter_map(move |(&used, list)| {
            let longest = list.iter().find(|it| it.1.0 != to);
            longest.map(|&(parted, Reverse(site))| (used, parted, site))
        })
    }

    /// Sites that have units and are not watched.
    pub(super) fn unwatched_with_units(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.rich.iter().copied()
    }

    /// Sites that are not watched, in order.
    pub(super) fn unwatched(&self) -> BTreeSet<SiteId> {
        self.rich.union(&self.poor).copied().collect()
    }

    /// All sites, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SiteId, &Post)> {
        self.all.iter().map(|(&site, post)| (site, post))
    }

    /// Asserts that the indexes are what the posts say.
    pub(super) fn audit(&self) {
        let sum: u32 = self.all.values().map(|post| post.idle).sum();
        assert_eq!(self.idle, sum, "idle units");
        let idle = self.iter().filter(|it| it.1.idle > 0).map(|(site, post)| (post.idle, site));
        assert_eq!(self.stocks, idle.collect(), "sites by idle units");
        let users: Vec<(SiteId, &Post)> = self.iter().filter(|it| it.1.used() > 0).collect();
        let sites = users.iter().map(|it| it.0).collect();
        assert_eq!(self.users, sites, "sites that use units");
        let mut rested: BTreeMap<u32, BTreeSet<(u64, Reverse<SiteId>)>> = BTreeMap::new();
        for (site, post) in users {
            rested.entry(post.used()).or_default().insert((post.parted, Reverse(site)));
        }
        assert_eq!(self.rested, rested, "sites by the units that they use");
        let calm = |rich: bool| {
            let list = self.iter().filter(move |it| it.1.watched == 0 && (it.1.units > 0) == rich);
            list.map(|it| it.0).collect::<BTreeSet<_>>()
        };
        assert_eq!((&self.rich, &self.poor), (&calm(true), &calm(false)), "unwatched sites");
    }
}

/// Claims that would take idle units, at most one of each site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Wishes {
    by_age: BTreeMap<Stamp, u32>,
    by_site: BTreeMap<SiteId, Stamp>,
    /// Units that all of them would take.
    sum: u64,
}

impl Wishes {
    pub(super) const fn new() -> Self {
        Self { by_age: BTreeMap::new(), by_site: BTreeMap::new(), sum: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Units that all of them would take.
    pub(super) fn sum(&self) -> u32 {
        u32::try_from(self.sum).unwrap_or(u32::MAX)
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Stamp, u32)> + '_ {
        self.by_age.iter().map(|(&claim, &units)| (claim, units))
    }

    /// The oldest that is not of this site.
    pub(super) fn oldest_beside(&self, site: SiteId) -> Option<Stamp> {
        self.by_age.keys().copied().find(|claim| claim.site != site)
    }

    /// A claim takes the place of the one of its site.
    pub(super) fn insert(&mut self, claim: Stamp, units: u32) {
        self.remove_site(claim.site);
        self.by_age.insert(claim, units);
        self.by_site.insert(claim.site, claim);
        self.sum += u64::from(units);
    }

    pub(super) fn remove(&mut self, claim: Stamp) {
        if let Some(units) = self.by_age.remove(&claim) {
            self.by_site.remove(&claim.site);
            self.sum -= u64::from(units);
        }
    }

    pub(super) fn remove_site(&mut self, site: SiteId) {
        if let Some(&claim) = self.by_site.get(&site) {
            self.remove(claim);
        }
    }

    /// A claim is given `units` of those that it would take.
    pub(super) fn lower(&mut self, claim: Stamp, units: u32) {
        let Some(lack) = self.by_age.get_mut(&claim) else { return };
        *lack -= units;
        self.sum -= u64::from(units);
        if *lack == 0 {
            self.remove(claim);
        }
    }

    /// Asserts that the index and the sum are what the claims say.
    pub(super) fn audit(&self) {
        let by_site = self.by_age.keys().map(|&claim| (claim.site, claim));
        assert_eq!(self.by_site, by_site.collect(), "one claim of a site");
        assert_eq!(self.sum, self.by_age.values().map(|&units| u64::from(units)).sum::<u64>());
        assert!(self.by_age.values().all(|&units| units > 0), "claims that would take no unit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same in each run.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u32) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u32::try_from(self.0 >> 33).unwrap() % end
        }
    }

    /// The site to take idle units from, by a look at all sites.
    fn stock(posts: &Posts, to: SiteId, count: u32, spare: u32) -> Option<SiteId> {
        let others = posts.iter().filter(|it| it.0 != to && it.1.idle >= count);
        let order = |(site, post): (SiteId, &Post)| match post.idle - count {
            left if left >= spare => (0, u32::MAX - left, site),
            left => (1, left, site),
        };
        others.map(order).min().map(|it| it.2)
    }

    #[test]
    fn indexes_decide_as_a_look_at_all_sites_would() {
        let (mut posts, mut dice) = (Posts::new(), Dice(1));
        for step in 0..3_000 {
            let site = SiteId(u16::try_from(dice.below(12)).unwrap());
            posts.change(site, |post| match dice.below(4) {
                0 => post.units += dice.below(5),
                1 => post.idle = dice.below(post.units + 1).min(post.units - post.sent),
                2 => post.parted = step,
                _ => post.watched = dice.below(2),
            });
            posts.audit();
            let (to, count) = (SiteId(u16::try_from(dice.below(12)).unwrap()), 1 + dice.below(6));
            assert_eq!(posts.stock(to, count, 2), stock(&posts, to, count, 2));
            let mut all: Vec<(SiteId, u32)> = posts.iter().map(|it| (it.0, it.1.idle)).collect();
            all.retain(|it| it.0 != to && it.1 > 0);
            all.sort_by_key(|it| Reverse(it.1));
            assert!(posts.stocks(to).eq(all), "those with most first, then by number");
            let age = |used: u32, parted: u64| (step - parted) * u64::from(used);
            let best = posts.rested(to, count).map(|it| (age(it.0, it.1), it.2)).max();
            let users = posts.iter().filter(|it| it.0 != to && it.1.used() >= count);
            assert_eq!(best, users.map(|it| (age(it.1.used(), it.1.parted), it.0)).max());
        }
    }

    #[test]
    fn a_site_has_one_wish() {
        let claim = |time, site| Stamp { time, site: SiteId(site) };
        let mut wishes = Wishes::new();
        wishes.insert(claim(1, 0), 3);
        wishes.insert(claim(2, 1), 4);
        wishes.insert(claim(3, 0), 5);
        assert_eq!(wishes.sum(), 9);
        assert_eq!(wishes.oldest_beside(SiteId(1)), Some(claim(3, 0)));
        wishes.lower(claim(2, 1), 4);
        wishes.lower(claim(3, 0), 1);
        assert_eq!(wishes.iter().collect::<Vec<_>>(), [(claim(3, 0), 4)]);
        wishes.remove_site(SiteId(0));
        assert!(wishes.is_empty() && wishes.sum() == 0);
        wishes.audit();
    }
}
