//! Baldoni 1994, figure 2, to the letter where the letter is meant.
//!
//! # Idea
//!
//! The published listing, transcribed with its names, for the checker to refute. A handler that
//! waits for an answer serves nobody else: with three sites and two units, two arbiters that wait
//! for each other's yield stand still for ever after 9 steps; the checker sees it after 13, when
//! all messages have arrived. Each fault of the listing is a [`Fault`] that can be left out, so
//! that each can be shown alone.
//!
//! # Source
//!
//! Baldoni 1994, figure 2.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | arbiter | may I? |
//! | `Grant` | arbiter | claimant | you may |
//! | `Inquire` | arbiter | claimant | an older request came: are you outside? |
//! | `Yield` | claimant | arbiter | I am, have the grant back |
//! | `Release` | claimant | arbiter | I am done |
//!
//! # Cost
//!
//! 3 for each arbiter but the site itself, and up. The 5 that are printed as the most are not.
//!
//! # Assumes
//!
//! First-in first-out links; one pool; one claim per site at a time. And still it stands still, and
//! with other bounds it is not safe either.
//!
//! # Why it is safe
//!
//! It is not: see [`quorum`](super::quorum) for the repair.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::quorum::{price, request_sets};
use crate::parts::SiteSet;
use crate::protocol::{Blocker, EffectsOf, PeerFault, Profile, Protocol, Rejection, Service};
use crate::types::{Clock, Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// A fault of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A site whose handler waits in its `select` serves nothing else, in no role. Without it, such
    /// a site still answers as a claimant.
    DeafSelect,
    /// `Grant`, `Inquire` and `Yield` do not say which request they are about.
    Untagged,
    /// `get_timestamp()` stands inside the loop that sends: each arbiter sees another stamp.
    StampPerMessage,
    /// "Act like step XX" after a release: the head is granted without the test.
    UncheckedRelease,
    /// The own request is put back in the queue when the site is outside its critical section, even
    /// if it has been there already.
    OwnRecallAlways,
    /// Condition (iii) speaks of M + 1 different sites. Where there are no more than M it asks for
    /// nothing, and a site may ask itself alone.
    VacuousSets,
    /// Received stamps do not move the clock; the paper never says that they do.
    DeafClock,
}

/// A way to read the listing.
pub trait Reading: Clone + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// The faults that are kept.
    const FAULTS: &'static [Fault];
}

/// Handlers are atomic, as the caption says, and messages are as printed. Slips of the pen are not
/// held against the listing here: one stamp per request, and the whole loop after a release.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Atomic;

impl Reading for Atomic {
    const NAME: &'static str = "quorum-as-printed";
    const SUMMARY: &'static str = "the published listing: deadlocks";
    const FAULTS: &'static [Fault] = &[Fault::DeafSelect, Fault::Untagged];
}

/// The listing's local context, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumAsPrinted<R = Atomic> {
    i: SiteId,
    sites: u16,
    m: Units,
    /// Whom it asks.
    r: Vec<SiteId>,
    requesting: bool,
    inside: bool,
    grant: SiteSet,
    /// Granted requests by process name.
    lambda: BTreeMap<SiteId, (Stamp, Units)>,
    q: BTreeSet<(Stamp, Units)>,
    /// The last stamp taken or seen.
    h: u64,
    /// The claim that `requesting` or `inside` is about, and what it asks for.
    claim: Option<(Stamp, Units)>,
    /// The handler that waits, if one does.
    select: Option<Select>,
    /// Messages that nobody has served yet.
    inbox: VecDeque<(SiteId, Message)>,
    reading: PhantomData<R>,
}

/// A handler of a request that waits for a release or a yield.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Select {
    /// From whom.
    w: SiteId,
    /// The request that it handles.
    request: Stamp,
    /// Members of Λ that it has still to look at.
    rest: VecDeque<SiteId>,
}

/// What sites say to each other. A stamp that may be missing is not in the listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A request.
    Request {
        /// Its stamp.
        ts: Stamp,
        /// Its units.
        k: Units,
    },
    /// You may.
    Grant {
        /// The request.
        ts: Option<Stamp>,
    },
    /// Are you outside?
    Inquire {
        /// The request.
        ts: Option<Stamp>,
    },
    /// I am, have the grant back.
    Yield {
        /// The request.
        ts: Option<Stamp>,
    },
    /// I am done.
    Release {
        /// The request.
        ts: Stamp,
    },
}

impl<R: Reading> Protocol for QuorumAsPrinted<R> {
    const NAME: &'static str = R::NAME;
    const PROFILE: Profile = Profile {
        source: "Baldoni 1994, figure 2, as printed",
        summary: R::SUMMARY,
        serves: Service::Pool,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: true,
        price,
        survives: &["pause", "partition"],
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let m = cluster.pools[0];
        let alone = has::<R>(Fault::VacuousSets) && u32::from(cluster.sites) <= m.0;
        let mut r =
            if alone { vec![me] } else { request_sets(me, cluster).swap_remove(0).arbiters };
        // The listing leaves the order open. A site that begins with itself shows most.
        r.sort_by_key(|&w| w != me);
        Self {
            i: me,
            sites: cluster.sites,
            m,
            r,
            requesting: false,
            inside: false,
            grant: SiteSet::new(),
            lambda: BTreeMap::new(),
            q: BTreeSet::new(),
            h: 0,
            claim: None,
            select: None,
            inbox: VecDeque::new(),
            reading: PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.i
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        (pool == PoolId(0)).then_some(self.m)
    }

    fn next_stamp(&self, _clock: Clock) -> Stamp {
        Stamp { time: self.h + 1, site: self.i }
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        let k = demand.units(PoolId(0));
        self.claim = Some((claim, k));
        self.requesting = true;
        self.grant = SiteSet::new();
        self.h = claim.time;
        for w in self.r.clone() {
            let ts = Stamp { time: self.h, site: self.i };
            self.send(w, claim, Message::Request { ts, k }, out);
            self.h += u64::from(has::<R>(Fault::StampPerMessage));
        }
        self.serve(out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        // The listing knows no partial release: the claim is over when all is given back.
        let whole = |k: Units| part.is_none_or(|part| part.units(PoolId(0)) == k);
        if !self.inside || !self.claim.is_some_and(|(own, k)| own == claim && whole(k)) {
            return;
        }
        self.inside = false;
        self.requesting = false;
        self.claim = None;
        for w in self.r.clone() {
            self.send(w, claim, Message::Release { ts: claim }, out);
        }
        self.serve(out);
    }

    fn on_withdraw(&mut self, _claim: Stamp, _out: &mut EffectsOf<Self>) {
        // The listing knows no withdrawal: the claim goes on.
    }

    fn on_message(
        &mut self,
        j: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        if j.0 >= self.sites || j == self.i {
            return Err(PeerFault::UnknownSite(j));
        }
        if let Message::Request { ts, .. } | Message::Release { ts } = message {
            if ts.site != j {
                return Err(PeerFault::ForeignClaim(ts));
            }
            if ts.time >= Clock::LIMIT {
                return Err(PeerFault::ClockTooFar);
            }
        }
        if let Message::Request { ts, k } = message
            && (k.is_zero() || k > self.m)
        {
            return Err(PeerFault::TooManyUnits(ts));
        }
        self.inbox.push_back((j, message));
        self.serve(out);
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        if self.inside || self.claim.is_none_or(|own| own.0 != claim) {
            return Vec::new();
        }
        let missing = self.r.iter().copied().filter(|&w| !self.grant.contains(w));
        missing.map(|site| Blocker { site, pool: PoolId(0), units: self.m, claim: None }).collect()
    }

    fn is_at_rest(&self) -> bool {
        let idle = self.claim.is_none() && self.select.is_none() && self.inbox.is_empty();
        idle && self.lambda.is_empty() && self.q.is_empty()
    }
}

impl<R: Reading> QuorumAsPrinted<R> {
    fn send(&mut self, to: SiteId, serves: Stamp, message: Message, out: &mut EffectsOf<Self>) {
        if to != self.i {
            out.send(to, serves, message);
        } else if matches!(message, Message::Grant { .. }) {
            // At once: behind other messages it would be taken for good after it was recalled.
            self.on_grant(to, out);
        } else {
            self.inbox.push_back((to, message));
        }
    }

    /// Serves what can be served: everything in order, or what the waiting handler receives.
    fn serve(&mut self, out: &mut EffectsOf<Self>) {
        while let Some(place) = self.inbox.iter().position(|(j, message)| self.admits(*j, message))
        {
            let (j, message) = self.inbox.remove(place).expect("it was found there");
            match message {
                Message::Request { ts, k } => self.on_request(ts, k, out),
                Message::Grant { ts } if self.is_mine(ts) => self.on_grant(j, out),
                Message::Inquire { ts } if self.is_mine(ts) => self.on_inquire(j, out),
                Message::Grant { .. } | Message::Inquire { .. } => {}
                Message::Yield { ts } => self.on_yield(j, ts, out),
                Message::Release { ts } => self.on_released(j, ts, out),
            }
        }
    }

    fn admits(&self, j: SiteId, message: &Message) -> bool {
        let Some(select) = &self.select else { return true };
        match message {
            Message::Release { .. } | Message::Yield { .. } => select.w == j,
            Message::Grant { .. } | Message::Inquire { .. } => !has::<R>(Fault::DeafSelect),
            Message::Request { .. } => false,
        }
    }

    fn on_request(&mut self, ts: Stamp, k: Units, out: &mut EffectsOf<Self>) {
        if !has::<R>(Fault::DeafClock) {
            self.h = self.h.max(ts.time);
        }
        self.q.insert((ts, k));
        let all = self.lambda.keys().copied().collect();
        self.for_each(ts, all, out);
    }

    /// The listing's loop over Λ, from where it stands.
    fn for_each(&mut self, ts: Stamp, mut rest: VecDeque<SiteId>, out: &mut EffectsOf<Self>) {
        while let Some(w) = rest.pop_front() {
            let Some(&(granted, k)) = self.lambda.get(&w).filter(|entry| ts < entry.0) else {
                continue;
            };
            if w != self.i {
                self.send(w, granted, Message::Inquire { ts: tag::<R>(granted) }, out);
                self.select = Some(Select { w, request: ts, rest });
                return;
            }
            if !self.inside && (self.requesting || has::<R>(Fault::OwnRecallAlways)) {
                self.grant.remove(w);
                self.lambda.remove(&w);
                self.q.insert((granted, k));
            }
        }
        self.grant_what_fits(out);
    }

    /// The handler that waited goes on.
    fn go_on(&mut self, out: &mut EffectsOf<Self>) {
        if let Some(Select { request, rest, .. }) = self.select.take() {
            self.for_each(request, rest, out);
        }
    }

    fn on_yield(&mut self, j: SiteId, ts: Option<Stamp>, out: &mut EffectsOf<Self>) {
        let waits = self.select.as_ref().is_some_and(|select| select.w == j);
        let meant = |granted: Stamp| ts.is_none_or(|ts| ts == granted);
        // Outside a select the listing has nothing that receives a yield.
        if waits && self.lambda.get(&j).is_some_and(|entry| meant(entry.0)) {
            self.q.extend(self.lambda.remove(&j));
            self.go_on(out);
        }
    }

    fn on_released(&mut self, j: SiteId, ts: Stamp, out: &mut EffectsOf<Self>) {
        self.lambda.remove(&j);
        if self.select.is_some() {
            self.go_on(out);
        } else if has::<R>(Fault::UncheckedRelease) {
            self.grant_head(out);
        } else {
            self.grant_what_fits(out);
        }
        debug_assert!(ts.site == j, "checked when it arrived");
    }

    fn grant_what_fits(&mut self, out: &mut EffectsOf<Self>) {
        loop {
            let used: Units = self.lambda.values().map(|entry| entry.1).sum();
            let Some(&(_, k)) = self.q.first() else { return };
            if used + k > self.m {
                return;
            }
            self.grant_head(out);
        }
    }

    /// Step XX.
    fn grant_head(&mut self, out: &mut EffectsOf<Self>) {
        if let Some((ts, k)) = self.q.pop_first() {
            self.lambda.insert(ts.site, (ts, k));
            self.send(ts.site, ts, Message::Grant { ts: tag::<R>(ts) }, out);
        }
    }

    fn on_grant(&mut self, j: SiteId, out: &mut EffectsOf<Self>) {
        if !self.requesting || self.inside || !self.r.contains(&j) {
            return;
        }
        self.grant.insert(j);
        if let Some((claim, _)) = self.claim
            && self.grant.len() == self.r.len()
        {
            self.inside = true;
            out.grant(claim);
        }
    }

    fn on_inquire(&mut self, j: SiteId, out: &mut EffectsOf<Self>) {
        if let Some((claim, _)) = self.claim
            && self.requesting
            && !self.inside
        {
            self.grant.remove(j);
            self.send(j, claim, Message::Yield { ts: tag::<R>(claim) }, out);
        }
    }

    /// Whether a message can be about the present request: any can if it does not say.
    fn is_mine(&self, ts: Option<Stamp>) -> bool {
        let Some(ts) = ts else { return true };
        let sent = |claim: Stamp| {
            let stamps = if has::<R>(Fault::StampPerMessage) { self.r.len() as u64 } else { 1 };
            (claim.time..claim.time + stamps).contains(&ts.time)
        };
        self.claim.is_some_and(|(claim, _)| sent(claim))
    }
}

fn has<R: Reading>(fault: Fault) -> bool {
    R::FAULTS.contains(&fault)
}

fn tag<R: Reading>(ts: Stamp) -> Option<Stamp> {
    (!has::<R>(Fault::Untagged)).then_some(ts)
}
