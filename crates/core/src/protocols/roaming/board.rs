//! The switchboard of a pool: it knows where every unit is, and sends claims there.
//!
//! Every pool has one, at a site that its number decides. Who lacks units asks there; the board
//! tells a site that has some to give them to the claim, and hears when they have arrived. So at
//! any time it knows of each unit the site that has it or has just given it away, and which claims
//! it has sent there. It grants nothing: the sites do, and serve by age what the board sends them.
//!
//! Three things make it quick. Idle units go first. A claim may be sent behind another one that
//! uses units, and then gets them in one message when they are released; but only behind one that
//! has as many as it needs, because units of one claim are released together, and a claim that
//! collects from two leaves the first idle until the second comes. All others wait at the board,
//! in order, for units that nobody was sent for: those come to the board when they are released.
//!
//! It counts, and does not guess: of each site, the units that it has and those that claims were
//! sent for. Both differ from the truth only by what is on its way, and in the right direction: who
//! sends a claim back had no unit for it when the board believed so, too. It is not sent there
//! again before a unit has come there. Otherwise the two would exchange it without end while a
//! holder keeps the unit, and its site has nothing to tell.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::Rules;
use crate::types::{SiteId, Stamp};

/// What a board knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Board {
    /// Each site that has units or was sent claims.
    posts: BTreeMap<SiteId, Post>,
    /// Claims that use units, by site.
    users: BTreeMap<(SiteId, Stamp), User>,
    /// The users that somebody may be sent behind, by their units: nobody was yet.
    open: BTreeSet<(u32, Stamp)>,
    /// Claims that were sent somewhere and have not got everything, with the places.
    sent: BTreeMap<Stamp, VecDeque<Place>>,
    /// Claims that wait here.
    held: BTreeMap<Stamp, u32>,
    /// Those of the claims sent that need nothing any more, and are sent nowhere else.
    sated: BTreeSet<Stamp>,
    /// Claims that seek.
    seekers: BTreeMap<Stamp, Seeker>,
}

/// A claim that has waited for long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seeker {
    lack: u32,
    /// The sites that have been told of it, and whether since it last sought.
    told: BTreeMap<SiteId, bool>,
}

/// What the board knows of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Post {
    /// Units that it has, as far as the board has heard: below zero where it heard first that a
    /// unit left, and not yet that it came.
    units: i64,
    /// Units that it said are idle.
    spare: u32,
    /// The claims that were sent there.
    guests: BTreeMap<Stamp, Guest>,
    /// Claims that it sent back, and no unit has come there since they were sent: they may be sent
    /// there for less than this.
    refused: BTreeMap<Stamp, u32>,
}

/// A claim at a site that it was sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Guest {
    units: u32,
    /// Whether it was sent before the last unit came there, and may have been there too early.
    early: bool,
}

/// A claim that has units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct User {
    units: u32,
    /// Those that nobody was sent for.
    free: u32,
    /// The number under which it is among the open ones, if it is.
    open: Option<u32>,
}

/// One unit that a claim was sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    site: SiteId,
    /// The claim that had it then.
    user: Option<Stamp>,
}

impl Post {
    /// Units that are there and that nobody was sent for.
    fn room(&self) -> u32 {
        self.units().saturating_sub(self.wanted())
    }

    /// Units that claims were sent for.
    fn wanted(&self) -> u32 {
        self.guests.values().map(|guest| guest.units).sum()
    }

    /// How many units more a claim may be sent there for.
    fn limit(&self, claim: Stamp) -> u32 {
        let Some(refused) = self.refused.get(&claim) else { return u32::MAX };
        let here = self.guests.get(&claim).map_or(0, |guest| guest.units);
        refused.saturating_sub(here + 1)
    }

    /// There may be a unit for those that were refused.
    fn invite(&mut self) {
        self.refused.clear();
        self.guests.values_mut().for_each(|guest| guest.early = true);
    }

    fn units(&self) -> u32 {
        u32::try_from(self.units.max(0)).unwrap_or(u32::MAX)
    }

    fn idle(&self) -> u32 {
        self.spare.min(self.room())
    }
}

impl Board {
    pub(super) const fn new() -> Self {
        Self {
            posts: BTreeMap::new(),
            users: BTreeMap::new(),
            open: BTreeSet::new(),
            sent: BTreeMap::new(),
            held: BTreeMap::new(),
            sated: BTreeSet::new(),
            seekers: BTreeMap::new(),
        }
    }

    /// A unit is at a site as the epoch begins.
    pub(super) fn found(&mut self, site: SiteId, idle: bool) {
        let post = self.posts.entry(site).or_default();
        post.units += 1;
        post.spare += u32::from(idle);
    }

    /// Whether no claim waits here or is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.sent.is_empty()
    }

    /// Whether claims wait here.
    pub(super) fn is_crowded(&self) -> bool {
        !self.held.is_empty()
    }

    /// A claim lacks units.
    pub(super) fn hold(&mut self, claim: Stamp, count: u32) {
        let held = self.held.entry(claim).or_default();
        *held = held.saturating_add(count);
    }

    /// A site has so many idle units.
    pub(super) fn note(&mut self, site: SiteId, spare: u32) {
        self.posts.entry(site).or_default().spare = spare;
    }

    /// The switchboard's own site has so many units now.
    pub(super) fn made(&mut self, me: SiteId, units: u32) {
        let post = self.posts.entry(me).or_default();
        if i64::from(units) > post.units {
            post.invite();
        }
        post.units = units.into();
    }

    /// Whether `site` was sent a claim for so many units.
    pub(super) fn has_sent(&self, claim: Stamp, site: SiteId, count: u64) -> bool {
        let places = self.sent.get(&claim).into_iter().flatten();
        places.filter(|place| place.site == site).count() as u64 >= count
    }

    /// A unit of `from` has gone to the site of a claim that was sent for it.
    pub(super) fn moved(&mut self, from: SiteId, claim: Stamp) {
        let Some(place) = self.end(claim, from) else { return };
        self.gained(claim.site);
        if let Some(user) = place.user {
            self.lower(user);
        }
        self.left(from);
        let user = self.users.entry((claim.site, claim)).or_default();
        user.units += 1;
        user.free += 1;
        self.sort(claim);
    }

    /// A claim could not be served where it was sent to. Says how much of its ask that ends.
    pub(super) fn bounced<R: Rules>(&mut self, site: SiteId, claim: Stamp, count: u32) -> u32 {
        let sated = self.sated.contains(&claim);
        let post = self.posts.entry(site).or_default();
        post.spare = 0;
        if sated {
            post.invite();
        } else if let Some(guest) = post.guests.get(&claim)
            && !(guest.early && R::EXCUSES_THE_EARLY)
            && R::REMEMBERS_REFUSALS
        {
            if post.refused.len() >= MAX_REFUSED {
                post.refused.clear();
            }
            post.refused.insert(claim, guest.units);
        }
        let mut back = 0;
        while back < count
            && let Some(place) = self.end(claim, site)
        {
            back += 1;
            if let Some(user) = place.user
                && let Some(entry) = self.users.get_mut(&(user.site, user))
            {
                entry.free = entry.units.min(entry.free + 1);
                self.sort(user);
            }
        }
        if sated {
            return back;
        }
        self.hold(claim, back);
        0
    }

    /// A claim has waited for long. Each site seeks for one at a time.
    pub(super) fn seek(&mut self, claim: Stamp, lack: u32) {
        self.seekers.retain(|other, _| other.site != claim.site || *other == claim);
        let new = Seeker { lack, told: BTreeMap::new() };
        let seeker = self.seekers.entry(claim).or_insert(new);
        seeker.lack = lack;
        seeker.told.values_mut().for_each(|told| *told = false);
    }

    /// Who is to be told of which claim: the sites that have units nobody was sent for.
    pub(super) fn scout(&mut self, me: SiteId) -> Vec<(Stamp, u32, SiteId)> {
        let mut list = Vec::new();
        for (&claim, seeker) in &mut self.seekers {
            let posts = self.posts.iter().filter(|(_, post)| post.room() > 0);
            for site in posts.map(|post| *post.0).filter(|&site| site != claim.site) {
                if site != me && seeker.told.insert(site, true) != Some(true) {
                    list.push((claim, seeker.lack, site));
                }
            }
        }
        list
    }

    /// A claim needs nothing any more. Says who is to forget it, and how many units of what it
    /// asked for were not sent for.
    pub(super) fn sated(&mut self, claim: Stamp) -> (BTreeSet<SiteId>, u32) {
        let seeker = self.seekers.remove(&claim);
        let told = seeker.into_iter().flat_map(|seeker| seeker.told.into_keys());
        let mut told: BTreeSet<SiteId> = told.collect();
        if let Some(places) = self.sent.get(&claim) {
            told.extend(places.iter().map(|place| place.site));
            self.sated.insert(claim);
        }
        (told, self.held.remove(&claim).unwrap_or_default())
    }

    /// A unit has gone from one site to another, where a claim sought it.
    pub(super) fn strayed(&mut self, from: SiteId, to: SiteId) {
        self.left(from);
        self.gained(to);
    }

    /// A site has a unit more.
    fn gained(&mut self, site: SiteId) {
        let post = self.posts.entry(site).or_default();
        post.units += 1;
        post.invite();
    }

    /// A unit that a claim released has come from there to `home`, or stays idle.
    pub(super) fn released(&mut self, claim: Stamp, home: Option<SiteId>) {
        self.lower(claim);
        if let Some(home) = home {
            self.left(claim.site);
            self.gained(home);
        }
    }

    /// A site has a unit less. Of the claims there, no more units are known than it has.
    fn left(&mut self, site: SiteId) {
        let post = self.posts.entry(site).or_default();
        post.units -= 1;
        let units = post.units();
        let there = self.users.range((site, OLDEST)..=(site, YOUNGEST));
        let used: u32 = there.clone().map(|(_, user)| user.units).sum();
        if used > units
            && let Some((&(_, oldest), _)) = there.clone().next()
        {
            self.lower(oldest);
        }
    }

    /// Takes away one of the places that a claim was sent to.
    fn end(&mut self, claim: Stamp, site: SiteId) -> Option<Place> {
        let places = self.sent.get_mut(&claim)?;
        let i = places.iter().position(|place| place.site == site)?;
        let place = places.remove(i)?;
        if places.is_empty() {
            self.sent.remove(&claim);
            self.sated.remove(&claim);
        }
        let post = self.posts.entry(site).or_default();
        if let Some(guest) = post.guests.get_mut(&claim) {
            guest.units -= 1;
            if guest.units == 0 {
                post.guests.remove(&claim);
            }
        }
        self.sort(claim);
        Some(place)
    }

    /// A claim has a unit less.
    fn lower(&mut self, claim: Stamp) {
        let Some(user) = self.users.get_mut(&(claim.site, claim)) else { return };
        user.units -= 1;
        user.free = user.free.min(user.units);
        let gone = user.units == 0;
        self.sort(claim);
        if gone {
            self.users.remove(&(claim.site, claim));
        }
    }

    /// Keeps `open` right.
    fn sort(&mut self, claim: Stamp) {
        let Some(user) = self.users.get_mut(&(claim.site, claim)) else { return };
        let nobody = user.free == user.units && !self.sent.contains_key(&claim);
        let open = (nobody && user.units > 0).then_some(user.units);
        let before = core::mem::replace(&mut user.open, open);
        if before == open {
            return;
        }
        if let Some(units) = before {
            self.open.remove(&(units, claim));
        }
        if let Some(units) = open {
            self.open.insert((units, claim));
        }
    }

    /// Sends on the claims whose turn has come: claim, site and units. With `any`, claims wait for
    /// younger ones too, which is wrong.
    pub(super) fn place(&mut self, any: bool) -> BTreeMap<(Stamp, SiteId), u32> {
        let mut list = BTreeMap::new();
        let mut reserved = 0;
        let held: Vec<(Stamp, u32)> = self.held.iter().map(|(&c, &n)| (c, n)).collect();
        for (claim, count) in held {
            let places = self.choose(claim, count, any, &mut reserved);
            let left = count - u32::try_from(places.len()).expect("no more than was asked");
            if left == 0 {
                self.held.remove(&claim);
            } else {
                self.held.insert(claim, left);
            }
            for place in places {
                self.send(claim, place);
                *list.entry((claim, place.site)).or_default() += 1;
            }
        }
        list
    }

    /// Ends asks for more units than are elsewhere: their site has got the rest in the meantime, or
    /// will know better. Where claims were sent to that site it may have given units away.
    pub(super) fn end_superfluous(&mut self, capacity: u32) -> Vec<(Stamp, u32)> {
        let mut list = Vec::new();
        for (&claim, &held) in &self.held {
            let post = self.posts.get(&claim.site);
            if post.is_some_and(|post| !post.guests.is_empty()) {
                continue;
            }
            let elsewhere = capacity - post.map_or(0, Post::units).min(capacity);
            let sent = self.sent.get(&claim).map_or(0, VecDeque::len);
            let asked = u64::from(held) + sent as u64;
            let excess = asked.saturating_sub(elsewhere.into()).min(held.into());
            if excess > 0 {
                list.push((claim, u32::try_from(excess).expect("no more than is held")));
            }
        }
        for &(claim, excess) in &list {
            let left = self.held[&claim] - excess;
            if left == 0 {
                self.held.remove(&claim);
            } else {
                self.held.insert(claim, left);
            }
        }
        list
    }

    fn send(&mut self, claim: Stamp, place: Place) {
        let post = self.posts.entry(place.site).or_default();
        post.guests.entry(claim).or_default().units += 1;
        if place.user.is_none() {
            post.spare = post.spare.saturating_sub(1);
        }
        self.sent.entry(claim).or_default().push_back(place);
        self.sort(claim);
        if let Some(user) = place.user
            && let Some(entry) = self.users.get_mut(&(user.site, user))
        {
            entry.free = entry.free.saturating_sub(1);
            self.sort(user);
        }
    }

    /// Where to send a claim: for all its units, or for none of them.
    fn choose(&self, claim: Stamp, count: u32, any: bool, reserved: &mut u32) -> Vec<Place> {
        let k = count as usize;
        let others = self.posts.iter().filter(|(site, _)| **site != claim.site);
        let idle = |(&site, post): (&SiteId, &Post)| (site, post.idle().min(post.limit(claim)));
        let mut stocks: Vec<(SiteId, u32)> = others.clone().map(idle).collect();
        stocks.retain(|stock| stock.1 > 0);
        let total: u32 = stocks.iter().map(|stock| stock.1).sum();
        // The rich give first, so that stocks even out and few claims find none at their site.
        // Otherwise the smallest stock that is large enough; else the largest.
        stocks.sort_by_key(|&(_, units)| match units.checked_sub(count) {
            Some(left) if left >= RICH => (0, u32::MAX - left),
            Some(left) => (1, left),
            None => (2, count - units),
        });
        let idle =
            stocks.iter().flat_map(|&(site, n)| (0..n).map(move |_| Place { site, user: None }));
        // Where many wait, what was said to be idle is often used by now, and a claim that collects
        // from two sites leaves the first unit idle until the second comes.
        let whole = stocks.first().is_some_and(|stock| stock.1 >= count);
        if (whole || self.held.len() <= FEW) && total >= count + *reserved {
            return idle.take(k).collect();
        }
        let fits = self.open.range((count, OLDEST)..=(count, YOUNGEST));
        let fit = fits.map(|fit| fit.1).filter(|user| user.site != claim.site).find(|user| {
            let post = &self.posts[&user.site];
            post.room().min(post.limit(claim)) >= count
        });
        if let Some(user) = fit {
            let place = Place { site: user.site, user: Some(user) };
            return (0..k).map(|_| place).collect();
        }
        if self.sent.first_key_value().is_some_and(|sent| any || *sent.0 < claim) {
            *reserved = total.min(count + *reserved);
            return Vec::new();
        }
        // Nobody older is on the way, so it must not wait for anybody.
        let large = self.users.iter().filter(|((site, _), user)| {
            let post = &self.posts[site];
            let units = user.units.min(post.units()).min(post.limit(claim));
            *site != claim.site && units >= count
        });
        let both = large.min_by_key(|(_, user)| user.units);
        if let Some((&(site, user), _)) = both
            && !self.sent.contains_key(&claim)
        {
            let place = Place { site, user: Some(user) };
            return (0..k).map(|_| place).collect();
        }
        let mut list: Vec<Place> = idle.take(k).collect();
        let users = self.users.iter().filter(|(user, _)| user.0 != claim.site);
        let mut users: Vec<(Stamp, &User)> = users.map(|(user, entry)| (user.1, entry)).collect();
        users.sort_by_key(|&(user, entry)| (entry.free.abs_diff(count), user));
        let room = |(&site, post): (&SiteId, &Post)| (site, post.room().min(post.limit(claim)));
        let mut room: BTreeMap<SiteId, u32> = others.clone().map(room).collect();
        for place in &list {
            room.entry(place.site).and_modify(|room| *room -= 1);
        }
        for (user, entry) in users {
            let free = room.get_mut(&user.site);
            let Some(free) = free else { continue };
            let n = entry.free.min(*free).min(count - u32::try_from(list.len()).unwrap_or(count));
            *free -= n;
            list.extend((0..n).map(|_| Place { site: user.site, user: Some(user) }));
        }
        for (site, room) in room {
            let n = room.min(count - u32::try_from(list.len()).unwrap_or(count));
            list.extend((0..n).map(|_| Place { site, user: None }));
        }
        // Younger ones were sent for all units: it goes first.
        for (&site, post) in others {
            let here = |place: &&Place| place.site == site;
            let before = self.sent.get(&claim).map_or(0, |sent| sent.iter().filter(here).count());
            let have = before + list.iter().filter(here).count();
            let more = (post.units() as usize).saturating_sub(have);
            let more = more.min(post.limit(claim) as usize);
            let n = more.min(k - list.len());
            list.extend((0..n).map(|_| Place { site, user: None }));
        }
        list
    }
}

/// While no more claims wait at the board, units of one claim are collected from several sites.
const FEW: usize = 2;

/// Refusals of one site that are remembered; most are forgotten soon, when a unit comes there.
const MAX_REFUSED: usize = 1_000;

/// Who keeps so many units beyond what a claim gets can spare them.
const RICH: u32 = 2;

const OLDEST: Stamp = Stamp { time: 0, site: SiteId(0) };
const YOUNGEST: Stamp = Stamp { time: u64::MAX, site: SiteId(u16::MAX) };
