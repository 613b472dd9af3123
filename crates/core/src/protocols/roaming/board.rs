//! The switchboard of a pool: it decides which site gives units to whom.
//!
//! Every pool has one, at a site that its number decides. Who lacks units asks there; the board
//! picks sites that have some, and tells them. From then on it counts the units where they will be,
//! not where they are: whoever is told to give does so in its turn, and nobody has to report. So
//! what the board counts is exact, only early. It grants nothing and holds no lock.
//!
//! What it can only guess is which units are free, now or first. It takes those that it was told
//! are idle; then units of a site whose own claims use many, of which one will be free soon, if it
//! has not taken some of those lately; then the units of the claim that it sent some to longest
//! ago, if those are as many as are asked for: units that came together are released together, and
//! who collects from two sites leaves the first unit idle until the second comes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::posts::{Posts, Wishes};
use super::{Home, Seek};
use crate::types::{SiteId, Stamp};

/// What a board knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Board {
    posts: Posts,
    /// What was sent somewhere and is not known to be idle, in order.
    sent: BTreeMap<u64, Sent>,
    /// The same by the number of units.
    by_size: BTreeSet<(u32, u64)>,
    /// The same by site.
    by_site: BTreeSet<(SiteId, u64)>,
    /// The number of the next.
    next: u64,
    /// All units.
    total: u32,
    /// Claims that wait for units of their own site, and would take so many idle ones of others.
    hopes: Wishes,
    /// Claims that seek, one of a site at a time, and how many units each lacks.
    seekers: Wishes,
    /// As an epoch begins: which sites were to give units to whom, as far as they had heard.
    promised: BTreeMap<Stamp, BTreeMap<SiteId, u32>>,
}

/// Units that were sent to a site together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    site: SiteId,
    units: u32,
}

/// A decision: a site gives so many units to a claim.
pub(super) type Gift = (Stamp, SiteId, u32);

impl Board {
    pub(super) const fn new() -> Self {
        Self {
            posts: Posts::new(),
            sent: BTreeMap::new(),
            by_size: BTreeSet::new(),
            by_site: BTreeSet::new(),
            next: 0,
            total: 0,
            hopes: Wishes::new(),
            seekers: Wishes::new(),
            promised: BTreeMap::new(),
        }
    }

    /// In the last epoch a site was to give units to a claim.
    pub(super) fn promise(&mut self, claim: Stamp, site: SiteId, units: u32) {
        let promised = self.promised.entry(claim).or_default().entry(site).or_default();
        *promised = promised.saturating_add(units);
    }

    /// All who waited in the last epoch have come.
    pub(super) fn is_restored(&mut self) {
        self.promised.clear();
    }

    /// Units are at a site as the epoch begins, some of them idle.
    pub(super) fn found(&mut self, site: SiteId, units: u32, idle: u32) {
        self.posts.change(site, |post| {
            post.units += units;
            post.idle += idle;
        });
        self.total += units;
    }

    /// Whether nobody seeks.
    pub(super) fn is_empty(&self) -> bool {
        self.seekers.is_empty()
    }

    /// Whether somebody would take idle units.
    pub(super) fn is_eager(&self) -> bool {
        !self.hopes.is_empty() || !self.seekers.is_empty()
    }

    /// How many asks came from a site.
    pub(super) fn heard(&self, site: SiteId) -> u64 {
        self.posts.get(site).map_or(0, |post| post.heard)
    }

    /// Units that a site has when all is done that was decided.
    pub(super) fn units(&self, site: SiteId) -> u32 {
        self.posts.get(site).map_or(0, |post| post.units)
    }

    /// An ask came from a site.
    pub(super) fn hear(&mut self, site: SiteId) {
        self.posts.change(site, |post| post.heard += 1);
    }

    /// A site says how many units are idle there.
    pub(super) fn note(&mut self, site: SiteId, spare: u32) {
        self.posts.change(site, |post| post.idle = spare.min(post.units));
        self.trim(site);
        if spare > 0 {
            // No claim waits there.
            self.hopes.remove_site(site);
        }
    }

    /// Idle units have come from a site that has so many left, and had been told to give so many
    /// when it sent them. Says how many of them go on to whom, the oldest first, and how many stay
    /// at the board's own site: what was promised in the meantime, and is not left there, goes
    /// back.
    pub(super) fn came_home(&mut self, from: SiteId, me: SiteId, home: &Home) -> (Vec<Gift>, u32) {
        let count = u32::try_from(home.units.len()).unwrap_or(u32::MAX);
        let kept = self.posts.change(from, |post| {
            post.watched = post.watched.saturating_sub(count);
            let promised = post.told.saturating_sub(home.told).saturating_sub(home.left.into());
            let promised = u32::try_from(promised).unwrap_or(u32::MAX);
            let kept = count.saturating_sub(promised).min(post.units);
            post.units -= kept;
            post.idle = post.idle.saturating_sub(kept).min(post.units);
            kept
        });
        self.trim(from);
        let (mut left, mut stay) = (kept, 0);
        let mut shares = Vec::new();
        for (claim, lack) in self.seekers.iter() {
            if left == 0 {
                break;
            }
            let units = left.min(lack);
            left -= units;
            shares.push((claim, me, units));
        }
        for &(claim, _, units) in &shares {
            self.seekers.lower(claim, units);
            stay += if claim.site == me { units } else { 0 };
        }
        let gifts: Vec<Gift> = shares.into_iter().filter(|it| it.0.site != me).collect();
        for &(claim, _, units) in &gifts {
            self.send(claim.site, units);
        }
        self.posts.change(me, |post| post.units += stay + left);
        (gifts, stay + left)
    }

    /// Decides who gives units to the site of a claim, so that it has so many; and more, if there
    /// are idle ones, or hopes for them.
    pub(super) fn ensure(&mut self, claim: Stamp, units: u32, most: u32) -> Vec<Gift> {
        let has = self.units(claim.site);
        let lack = units.saturating_sub(has);
        let wish = most.saturating_sub(has);
        if self.total <= FEW {
            return self.plan(claim, wish.max(lack));
        }
        let count = lack.max(wish.min(self.posts.idle_beside(claim.site)));
        let list = self.plan(claim, count);
        self.hopes.remove_site(claim.site);
        if wish > count {
            self.hopes.insert(claim, wish - count);
        }
        list
    }

    /// Decides who gives so many units to the site of a claim.
    fn plan(&mut self, claim: Stamp, count: u32) -> Vec<Gift> {
        let mut list: BTreeMap<SiteId, u32> = BTreeMap::new();
        let mut left = count;
        for (site, promised) in self.promised.remove(&claim).into_iter().flatten() {
            let units = promised.min(left).min(self.units(site));
            if units > 0 {
                self.take(site, None, units);
                list.insert(site, units);
                left -= units;
            }
        }
        for (site, sent, units) in self.choose(claim.site, left) {
            self.take(site, sent, units);
            *list.entry(site).or_default() += units;
        }
        self.send(claim.site, list.values().sum());
        list.into_iter().map(|(site, units)| (claim, site, units)).collect()
    }

    /// Gives idle units of the board's own site to claims of others that would take so many, the
    /// oldest first.
    fn bestow(&mut self, me: SiteId, claims: &mut Wishes) -> Vec<Gift> {
        let mut left = self.posts.get(me).map_or(0, |post| post.idle);
        let mut gifts = Vec::new();
        for (claim, lack) in claims.iter().filter(|it| it.0.site != me) {
            if left == 0 {
                break;
            }
            let units = left.min(lack);
            left -= units;
            gifts.push((claim, me, units));
        }
        for &(claim, _, units) in &gifts {
            self.take(me, None, units);
            self.send(claim.site, units);
            claims.lower(claim, units);
        }
        gifts
    }

    /// Gives idle units of the board's own site to those who hope for some, the oldest first. Idle
    /// ones of others may be promised already, in wants that they have not heard: who waits for
    /// such a unit would wait for others who were told to wait for its site.
    pub(super) fn fulfil(&mut self, me: SiteId) -> Vec<Gift> {
        let mut hopes = core::mem::take(&mut self.hopes);
        let gifts = self.bestow(me, &mut hopes);
        self.hopes = hopes;
        gifts
    }

    /// The sites that are to send idle units from now on, and how many.
    pub(super) fn watch(&mut self, me: SiteId) -> Vec<(SiteId, u32)> {
        if self.hopes.is_empty() {
            return Vec::new();
        }
        let wish = self.hopes.sum();
        let sites: Vec<SiteId> =
            self.posts.unwatched_with_units().filter(|site| *site != me).collect();
        let watch = |site: SiteId| {
            self.posts.change(site, |post| {
                post.watched = wish.min(post.units);
                (site, post.watched)
            })
        };
        sites.into_iter().map(watch).collect()
    }

    /// A claim has waited for long.
    pub(super) fn seek(&mut self, Seek { claim, lack, told }: Seek) {
        let known = self.posts.change(claim.site, |post| post.told);
        // Of these wants its site has not heard, and they go before it.
        let coming = u32::try_from(known.saturating_sub(told)).unwrap_or(u32::MAX);
        self.seekers.insert(claim, lack.saturating_add(coming).min(self.total));
    }

    /// A claim seeks no more.
    pub(super) fn sate(&mut self, claim: Stamp) {
        self.seekers.remove(claim);
    }

    /// Gives idle units of the board's own site to those who seek, and says who else is to send
    /// some, how many, and for whom.
    pub(super) fn scout(&mut self, me: SiteId) -> (Vec<Gift>, Vec<Gift>) {
        let mut seekers = core::mem::take(&mut self.seekers);
        let gifts = self.bestow(me, &mut seekers);
        self.seekers = seekers;
        if self.seekers.is_empty() {
            return (gifts, Vec::new());
        }
        let lack = self.seekers.sum().min(self.total);
        // A site that has promised all its units may keep idle ones, too few for its next claim.
        let mut asked = Vec::new();
        for site in self.posts.unwatched().into_iter().filter(|site| *site != me) {
            if let Some(claim) = self.seekers.oldest_beside(site) {
                self.posts.change(site, |post| post.watched = lack);
                asked.push((claim, site, lack));
            }
        }
        (gifts, asked)
    }

    /// Asserts that no unit is counted twice or not at all.
    pub(super) fn audit(&self) {
        self.posts.audit();
        self.hopes.audit();
        self.seekers.audit();
        let all: u32 = self.posts.iter().map(|(_, post)| post.units).sum();
        assert_eq!(all, self.total, "every unit is at one site when all is done");
        for (site, post) in self.posts.iter() {
            assert!(post.idle + post.sent <= post.units, "what was sent is idle, or in use");
            let sent = self.sent.values().filter(|sent| sent.site == site);
            assert_eq!(post.sent, sent.map(|sent| sent.units).sum(), "what was sent there");
        }
        let by_size = self.sent.iter().map(|(&number, sent)| (sent.units, number));
        let by_site = self.sent.iter().map(|(&number, sent)| (sent.site, number));
        assert_eq!(self.by_size, by_size.collect(), "sendings by size");
        assert_eq!(self.by_site, by_site.collect(), "sendings by site");
    }

    /// Units leave a site, those of one sending or others.
    fn take(&mut self, site: SiteId, sent: Option<u64>, units: u32) {
        let (many, next) = (self.total > FEW, self.next);
        self.posts.change(site, |post| {
            post.units -= units;
            post.told += u64::from(units);
            if sent.is_some() {
                // At once, so that no unit is counted twice.
                post.sent -= units;
            } else {
                if many && post.idle < units {
                    post.parted = next;
                }
                post.idle = post.idle.saturating_sub(units);
            }
        });
        if let Some(sent) = sent {
            self.lower(sent, units);
        }
        self.trim(site);
    }

    /// Units go to a site.
    fn send(&mut self, site: SiteId, units: u32) {
        if units == 0 {
            return;
        }
        self.posts.change(site, |post| {
            post.units += units;
            post.sent += units;
        });
        self.sent.insert(self.next, Sent { site, units });
        self.by_size.insert((units, self.next));
        self.by_site.insert((site, self.next));
        self.next += 1;
    }

    /// Of what was sent to a site, no more is left than is not idle: the first is idle first.
    fn trim(&mut self, site: SiteId) {
        let Some(post) = self.posts.get(site) else { return };
        let mut over = post.sent.saturating_sub(post.units - post.idle.min(post.units));
        while over > 0
            && let Some(&(_, first)) = self.by_site.range((site, 0)..=(site, u64::MAX)).next()
        {
            let units = self.sent[&first].units.min(over);
            self.posts.change(site, |post| post.sent -= units);
            self.lower(first, units);
            over -= units;
        }
    }

    /// Of the units that were sent together, `units` are gone or idle; the site's count is lower
    /// already.
    fn lower(&mut self, number: u64, units: u32) {
        let Some(sent) = self.sent.get_mut(&number) else { return };
        self.by_size.remove(&(sent.units, number));
        sent.units -= units;
        let Sent { site, units: left } = *sent;
        if left == 0 {
            self.sent.remove(&number);
            self.by_site.remove(&(site, number));
        } else {
            self.by_size.insert((left, number));
        }
    }

    /// Where to take units from: sites, of which sending, and how many.
    fn choose(&self, to: SiteId, count: u32) -> Vec<(SiteId, Option<u64>, u32)> {
        if count == 0 {
            return Vec::new();
        }
        // The rich give first, so that stocks even out and few claims find none at their site.
        // Otherwise the smallest stock that is large enough; else the largest.
        if let Some(site) = self.posts.stock(to, count, RICH) {
            return Vec::from([(site, None, count)]);
        }
        let idle = self.posts.idle_beside(to);
        if idle < count
            && let Some(site) = self.rested(to, count)
        {
            return Vec::from([(site, None, count)]);
        }
        if idle < count
            && let Some(number) = self.one_sending(to, count, count - idle)
        {
            return Vec::from([(self.sent[&number].site, Some(number), count)]);
        }
        let sent = self.sent.iter().filter(|(_, sent)| sent.site != to);
        let sent = sent.map(|(&number, sent)| (sent.site, Some(number), sent.units));
        let idle = self.posts.stocks(to).map(|(site, units)| (site, None, units));
        // Last of all, units that claims of their own site use.
        let used = self.posts.users(to).map(|(site, units)| (site, None, units));
        let (mut left, mut list) = (count, Vec::new());
        for (site, sent, units) in idle.chain(sent).chain(used) {
            if left == 0 {
                break;
            }
            let units = units.min(left);
            left -= units;
            list.push((site, sent, units));
        }
        list
    }

    /// The site whose own claims use so many units that one of them will be free sooner than any
    /// that was sent somewhere: if there are ten of them, one is free ten times as soon.
    fn rested(&self, to: SiteId, count: u32) -> Option<SiteId> {
        if self.total <= FEW {
            return None;
        }
        let ages = self
            .posts
            .rested(to, count)
            .map(|(used, parted, site)| ((self.next - parted).saturating_mul(used.into()), site));
        let (age, site) = ages.max()?;
        let mut sent = self.sent.iter().filter(|(_, sent)| sent.site != to && sent.units >= count);
        let oldest = sent.next().map_or(0, |(number, _)| self.next - number);
        (age > oldest).then_some(site)
    }

    /// The sending to take all units from, unless others will be free much sooner: if `lack` of
    /// them are collected from several, or if a larger one is split.
    fn one_sending(&self, to: SiteId, count: u32, lack: u32) -> Option<u64> {
        let sooner = u64::from(self.total) / 2;
        let first = |units: u32| {
            let mut same = self.by_size.range((units, 0)..=(units, u64::MAX));
            same.find(|(_, number)| self.sent[number].site != to).map(|&(_, number)| number)
        };
        let mut best = first(count);
        let mut units = count;
        while let Some(&(larger, _)) = self.by_size.range((units, u64::MAX)..).next() {
            units = larger;
            let other = first(larger);
            if best.is_none_or(|best| other.is_some_and(|other| other + sooner < best)) {
                best = other.or(best);
            }
        }
        let mut sum = 0;
        let several = self.sent.iter().filter(|(_, sent)| sent.site != to).find(|(_, sent)| {
            sum += sent.units;
            sum >= lack
        });
        best.filter(|&best| count == 1 || several.is_none_or(|(&last, _)| last + sooner >= best))
    }
}

/// In pools of no more units the board is not told which are idle, and nobody hopes: what it sent
/// somewhere longest ago is idle more often than not.
pub(super) const FEW: u32 = 3;

/// Who keeps so many units beyond what a claim gets can spare them.
const RICH: u32 = 2;
