//! Copies of leases that only a person may end: which members have them, and when they suffice.
//!
//! # Rules
//!
//! - The *keepers* of an epoch are named by its plan: the voters, or a few members. A lease is
//!   *kept* when the record of the epoch has it, or when a majority of the keepers has a copy, the
//!   site of the lease included where it is one of them. Its client hears of it only then.
//! - A keeper takes and acknowledges copies of its own epoch only, and none after its report.
//! - The report of a keeper has its copies. The report of the site itself has its leases, so the
//!   record has all leases of those who stay, and with each record keepers begin with no copies.
//! - When a site departs, its leases in the last record that no keeper knows to be over, and the
//!   copies in the reports, are written beside the units that are withheld. They are evidence for
//!   withholding, never a right: when the quarantine ends, a lease goes on at a member with those
//!   of its units that are still withheld, and with no others. If two leases name a unit, the one
//!   with the larger fence has it.
//! - If n keepers are members, and q are the majority of all keepers, copies are complete where
//!   n − q + 1 of those members report in the life that they had. Otherwise each unit of such a
//!   pool that is still withheld when the quarantine ends becomes a lease of which nothing else is
//!   known, for a person to release.
//! - A site that comes back in time and remembers all that it had granted knows better than any
//!   copy: a lease that it does not bring is over.
//!
//! # Why it is safe
//!
//! A keeper that acknowledged a copy reports it, or does not report at all in that life. If
//! n − q + 1 keepers report, one of the q that have the copy is among them, and it is not the site
//! that is gone. So the next record knows of every lease whose client has heard of it. From then
//! on the record has it, and a majority of the voters has the record on their disks. A lease
//! leaves a record only as a claim of a member, by the word of its site that it is over, or because
//! a lease of the same units with a larger fence is known. The site grants units again only after
//! their last lease is over, so a larger fence says that the smaller one is over.
//!
//! A copy of a lease that is over, whose end no keeper has heard of, withholds units too long, at
//! most until a person releases them. It can do no more, because it gets only withheld units.
//!
//! # Price
//!
//! For each grant a message to each other keeper, and its answer: one round trip to the fastest
//! ones. Ends are sent to the same sites, and no client waits for that.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{Effect, Epochs, Message, Phase};
use crate::epoch::rules::{Rules, Slip};
use crate::epoch::survey::{Copy, LeaseKey, Plan, Record, Report};
use crate::parts::SiteSet;
use crate::types::SiteId;

/// Leases of one member of which a keeper has copies, and that a member has copied.
pub const MAX_COPIES: usize = 10_000;
/// Copies in one message.
const BATCH: usize = 200;

/// What one member knows of copies in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Copies {
    /// The leases in the record, by the member that has them, but for those that are over.
    recorded: BTreeSet<(SiteId, LeaseKey)>,
    /// Those that are over.
    over: BTreeSet<LeaseKey>,
    /// Copies of other members' leases.
    others: BTreeMap<SiteId, BTreeMap<LeaseKey, Copy>>,
    /// Leases of this member, and which keepers have said that they have a copy.
    own: BTreeMap<LeaseKey, SiteSet>,
}

impl Copies {
    /// As an epoch begins.
    pub(super) fn begin<C>(record: &Record<C>) -> Self {
        let claims = record.surveys.iter().flat_map(|survey| &survey.claims);
        let kept = claims.filter_map(|(claim, it)| Some((claim.site, it.kept.as_ref()?.lease)));
        Self { recorded: kept.collect(), ..Self::default() }
    }

    /// Writes them into a report.
    pub(super) fn tell(&self, report: &mut Report) {
        report.over.clone_from(&self.over);
        report.copies = self
            .others
            .iter()
            .map(|(&site, copies)| (site, copies.values().cloned().collect()))
            .collect();
    }

    /// A member has said that a lease is over.
    fn end(&mut self, site: SiteId, lease: LeaseKey) {
        if self.recorded.remove(&(site, lease)) {
            self.over.insert(lease);
        }
        if let Some(copies) = self.others.get_mut(&site) {
            copies.remove(&lease);
        }
    }

    /// Whether a copy is taken.
    fn take(&mut self, site: SiteId, copy: Copy) -> bool {
        let copies = self.others.entry(site).or_default();
        let lease = copy.paper.lease;
        if copies.len() >= MAX_COPIES && !copies.contains_key(&lease) {
            return false;
        }
        copies.insert(lease, copy);
        true
    }
}

impl<C: Plan, R: Rules> Epochs<C, R> {
    /// The sites that keep copies in this epoch.
    pub fn keepers(&self) -> SiteSet {
        self.record.plan.keepers(&self.record.sites())
    }

    /// How many keepers have to have a copy, and how many are known to have one of this lease.
    pub fn copies_of(&self, lease: LeaseKey) -> (usize, usize) {
        let keepers = self.keepers();
        let own = usize::from(keepers.contains(self.me));
        let there = self.copies.own.get(&lease).map_or(0, SiteSet::len);
        let few = usize::from(self.rules.slips(Slip::KeptByTooFew));
        (majority(&keepers).saturating_sub(few), own + there)
    }

    /// Whether the loss of a minority of the keepers cannot lose a lease of this site. Nothing is
    /// copied where there is but one site.
    pub fn is_kept(&self, lease: LeaseKey) -> bool {
        let (needed, there) = self.copies_of(lease);
        let copied = there >= needed && (needed == 0 || self.copies.own.contains_key(&lease));
        copied
            || self.copies.recorded.contains(&(self.me, lease))
            || self.rules.slips(Slip::PromisesUnkept)
    }

    /// Leases of this site that are copied in this epoch.
    pub fn copied(&self) -> usize {
        self.copies.own.len()
    }

    pub(super) fn keep(&mut self, copies: Vec<Copy>, over: &[LeaseKey], out: &mut Vec<Effect<C>>) {
        if self.phase != Phase::Running {
            return;
        }
        let (me, epoch) = (self.me, self.record.epoch);
        let mut ended = Vec::new();
        for &lease in over {
            let copied = self.copies.own.remove(&lease).is_some();
            if self.copies.recorded.remove(&(me, lease)) || copied {
                ended.push(lease);
            }
        }
        let mut list = Vec::new();
        for copy in copies {
            let lease = copy.paper.lease;
            if self.copies.own.len() < MAX_COPIES || self.copies.own.contains_key(&lease) {
                self.copies.own.entry(lease).or_default();
                list.push(copy);
            }
        }
        let kept: Vec<LeaseKey> = list.iter().map(|copy| copy.paper.lease).collect();
        let kept: Vec<LeaseKey> = kept.into_iter().filter(|lease| self.is_kept(*lease)).collect();
        let keepers = self.keepers();
        let here = self.record.members.keys().filter(|&&to| to != me && keepers.contains(to));
        let mut ended = Some(ended);
        let mut list = list.into_iter().peekable();
        while list.peek().is_some() || ended.as_ref().is_some_and(|it| !it.is_empty()) {
            let copies: Vec<Copy> = list.by_ref().take(BATCH).collect();
            let over = ended.take().unwrap_or_default();
            for &to in here.clone() {
                let (copies, over) = (copies.clone(), over.clone());
                out.push(Effect::Send { to, message: Message::Copies { epoch, copies, over } });
            }
        }
        if !kept.is_empty() {
            out.push(Effect::Kept(kept));
        }
    }

    pub(super) fn on_copies(
        &mut self,
        from: SiteId,
        epoch: u64,
        copies: Vec<Copy>,
        over: &[LeaseKey],
        out: &mut Vec<Effect<C>>,
    ) {
        let started = matches!(self.phase, Phase::Installed | Phase::Running);
        let open = started && self.report.is_none() || self.rules.slips(Slip::AcksAfterReport);
        let known = self.record.epoch;
        let now = epoch == known || epoch < known && self.rules.slips(Slip::AcksOldEpoch);
        if self.phase == Phase::Outside || !open || !now {
            return;
        }
        for &lease in over {
            self.copies.end(from, lease);
        }
        let mut leases = Vec::new();
        for copy in copies {
            let lease = copy.paper.lease;
            if self.copies.take(from, copy) {
                leases.push(lease);
            }
        }
        if !leases.is_empty() {
            out.push(Effect::Send { to: from, message: Message::Kept { epoch, leases } });
        }
    }

    pub(super) fn on_kept(
        &mut self,
        from: SiteId,
        epoch: u64,
        leases: &[LeaseKey],
        out: &mut Vec<Effect<C>>,
    ) {
        if epoch != self.record.epoch || !self.keepers().contains(from) {
            return;
        }
        let mut kept = Vec::new();
        for &lease in leases {
            let before = self.is_kept(lease);
            let Some(there) = self.copies.own.get_mut(&lease) else { continue };
            there.insert(from);
            if !before && self.is_kept(lease) {
                kept.push(lease);
            }
        }
        if !kept.is_empty() {
            out.push(Effect::Kept(kept));
        }
    }
}

/// How many of them are more than half.
pub(in crate::epoch) fn majority(keepers: &SiteSet) -> usize {
    if keepers.is_empty() { 0 } else { keepers.len() / 2 + 1 }
}
