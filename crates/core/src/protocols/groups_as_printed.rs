//! Cheng et al. 1999, appendix, to the letter where the letter is meant.
//!
//! # Idea
//!
//! The published listing, transcribed with its names, for the checker to refute. The listing leaves
//! open what it means in three places, and no reading works; each is a [`Reading`]. In the kindest
//! one a process tells a group that it has everything although another group of its own goes first:
//! on the paper's own Figure 9, after 10 steps a member that one group counts in works for another.
//!
//! Two slips of the pen are not held against it here: `x := true` in a condition is a comparison,
//! and the second assignment after the work turns the arc around instead of setting the same end
//! again. `repeat` is left out: no process is made to work twice for one claim. And only a process
//! that is hungry works, which three of the handlers do not test: with [`Reading::DRAFTS`] they do
//! not, and the work of such a process takes no time.
//!
//! # Source
//!
//! Cheng, Wada, Inoue, Zhang and Noguchi 1999, appendix.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | process | competitor | give me our fork |
//! | `Fork` | competitor | process | here it is |
//! | `Inform` | member | member | I have all my resources |
//! | `Turn` | process | competitor | my group has worked, yours lead it now |
//!
//! # Cost
//!
//! 3m + n(n−1) is printed as the most; it is not, see [`groups`](super::groups).
//!
//! # Assumes
//!
//! First-in first-out links; members of one group do not compete. And still it stands still, or
//! lets a process work for two groups.
//!
//! # Why it is safe
//!
//! It is not: see [`groups`](super::groups) for the repair.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::grouping::GroupId;
use crate::parts::{Arcs, SiteSet};
use crate::protocol::{
    Blocker, Census, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// Whether the members who have to inform include the process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It means the others.
    Excluded,
    /// It means everybody, and whoever informs all has informed itself.
    Informed,
    /// It means everybody, as the paper counts informs, and nobody sends to itself.
    Forgotten,
}

/// A way to read the listing.
pub trait Reading: Clone + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// Whether a process that works handles no messages.
    const BLOCKING: bool;
    /// Who has to inform.
    const OWN: Own;
    /// Whether `else send request` belongs to the nearest `if`, as in most languages.
    const NEAREST_ELSE: bool = false;
    /// Whether a process works although it does not want to.
    const DRAFTS: bool = false;
}

/// The kindest reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kindest;

impl Reading for Kindest {
    const NAME: &'static str = "groups-as-printed";
    const SUMMARY: &'static str = "the published listing: a process works for two groups";
    const BLOCKING: bool = true;
    const OWN: Own = Own::Excluded;
}

/// The listing's variables, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupsAsPrinted<R = Kindest> {
    x: Arcs,
    y: Box<[bool]>,
    z: Box<[bool]>,
    hungry: bool,
    informed: Box<[SiteSet]>,
    inform: Box<[bool]>,
    /// The claim that made it hungry.
    claim: Option<Stamp>,
    /// The group that it works for.
    access: Option<usize>,
    /// Messages that wait while it works.
    inbox: VecDeque<(SiteId, Message)>,
    reading: PhantomData<R>,
}

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Give me our fork.
    Request,
    /// Here it is.
    Fork,
    /// I have all my resources.
    Inform(GroupId),
    /// My group has worked.
    Turn(GroupId),
}

impl<R: Reading> GroupsAsPrinted<R> {
    fn all_forks(&self) -> bool {
        self.y.iter().all(|&y| y)
    }

    /// Of several groups that qualify the last: the listing says that there is one, not which.
    fn exists(&self, qualifies: impl Fn(usize) -> bool) -> Option<usize> {
        (0..self.x.groups().len()).rev().find(|&k| qualifies(k))
    }

    fn all_informed(&self, k: usize) -> bool {
        let own = R::OWN == Own::Excluded || self.informed[k].contains(self.me());
        own && self.x.others(k).all(|h| self.informed[k].contains(h))
    }

    fn send_inform(&mut self, k: usize, out: &mut EffectsOf<Self>) {
        if !self.hungry && !R::DRAFTS {
            return;
        }
        let group = self.x.groups()[k];
        for h in self.x.others(k) {
            out.send(h, self.claim, Message::Inform(group));
        }
        if R::OWN == Own::Informed {
            let me = self.me();
            self.informed[k].insert(me);
        }
        self.inform[k] = true;
    }

    fn send_requests(&self, out: &mut EffectsOf<Self>) {
        for (&y, &j) in self.y.iter().zip(self.x.rivals()) {
            if !y {
                out.send(j, self.claim, Message::Request);
            }
        }
    }

    fn access(&mut self, k: usize, out: &mut EffectsOf<Self>) {
        if !self.hungry && !R::DRAFTS {
            return;
        }
        if !self.inform[k] {
            self.send_inform(k, out);
        }
        self.access = Some(k);
        match self.claim.filter(|_| self.hungry) {
            Some(claim) => {
                let group = self.x.groups()[k];
                out.grant_named(claim, self.x.grouping().units(self.me(), group));
            }
            None => self.end_access(out),
        }
    }

    fn end_access(&mut self, out: &mut EffectsOf<Self>) {
        let Some(k) = self.access.take() else { return };
        self.x.give_way(k);
        for &j in self.x.rivals() {
            out.send(j, self.claim, Message::Turn(self.x.groups()[k]));
        }
        self.informed[k] = SiteSet::new();
        self.hungry = false;
        self.claim = None;
        for (j, &site) in self.x.rivals().iter().enumerate() {
            if core::mem::take(&mut self.z[j]) {
                self.y[j] = false;
                out.send(site, None, Message::Fork);
            }
        }
    }

    fn handle(&mut self, from: SiteId, message: Message, out: &mut EffectsOf<Self>) {
        let j = self.x.rival(from);
        match (message, j) {
            (Message::Request, Some(j)) => {
                if !self.hungry || self.exists(|k| self.x.leads_rival(k, j)).is_none() {
                    self.y[j] = false;
                    out.send(from, None, Message::Fork);
                    if self.hungry {
                        out.send(from, self.claim, Message::Request);
                    }
                } else {
                    self.z[j] = true;
                }
            }
            (Message::Fork, Some(j)) => {
                self.y[j] = true;
                if self.all_forks() {
                    if let Some(k) = self.exists(|k| self.all_informed(k)) {
                        self.access(k, out);
                    } else if let Some(k) = self.exists(|k| self.x.leads_rivals(k)) {
                        self.send_inform(k, out);
                    }
                }
            }
            (Message::Inform(group), _) => {
                if let Some(k) = self.x.own(group) {
                    self.informed[k].insert(from);
                }
                if let Some(k) = self.exists(|k| self.all_informed(k)).filter(|_| self.all_forks())
                {
                    self.access(k, out);
                }
            }
            (Message::Turn(group), Some(j)) => {
                self.x.turn(j, group);
                let leads = self.exists(|k| self.x.leads_rivals(k));
                if let Some(k) = leads.filter(|_| self.all_forks()) {
                    self.send_inform(k, out);
                }
            }
            (Message::Request | Message::Fork | Message::Turn(_), None) => {}
        }
    }

    /// Whether a site can have said this.
    fn check(&self, from: SiteId, message: &Message) -> Result<(), PeerFault> {
        let rival = self.x.rival(from);
        let fine = match *message {
            Message::Request | Message::Fork => rival.is_some(),
            Message::Turn(group) => {
                rival.is_some_and(|rival| self.x.any_leads(rival, group).is_some())
            }
            Message::Inform(group) => {
                self.x.own(group).is_some_and(|k| self.x.others(k).any(|h| h == from))
            }
        };
        if fine { Ok(()) } else { Err(PeerFault::UnknownSite(from)) }
    }
}

impl<R: Reading> Protocol for GroupsAsPrinted<R> {
    const NAME: &'static str = R::NAME;
    const PROFILE: Profile = Profile {
        source: "Cheng et al. 1999, appendix",
        summary: R::SUMMARY,
        serves: Service::Group,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: |_, _| Price { min: 0, max: None },
        survives: &[],
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let grouping = cluster.grouping().expect("checked by whoever made the cluster");
        let x = Arcs::new(me, &grouping);
        let y = x.rivals().iter().map(|&j| grouping.fork_holder(me, j) == me).collect();
        let (rivals, groups) = (x.rivals().len(), x.groups().len());
        Self {
            x,
            y,
            z: vec![false; rivals].into(),
            hungry: false,
            informed: vec![SiteSet::new(); groups].into(),
            inform: vec![false; groups].into(),
            claim: None,
            access: None,
            inbox: VecDeque::new(),
            reading: PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.x.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        (pool == PoolId(0)).then(|| Units(self.x.grouping().resources()))
    }

    fn on_claim(&mut self, claim: Stamp, _demand: Demand, out: &mut EffectsOf<Self>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.claim = Some(claim);
        self.hungry = true;
        if !self.all_forks() {
            if !R::NEAREST_ELSE {
                self.send_requests(out);
            }
        } else if let Some(k) = self.exists(|k| self.all_informed(k)) {
            self.access(k, out);
        } else if let Some(k) = self.exists(|k| self.x.leads_rivals(k)) {
            self.send_inform(k, out);
        } else if R::NEAREST_ELSE {
            self.send_requests(out);
        }
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        if part.is_some() || self.access.is_none() || self.claim != Some(claim) {
            return;
        }
        self.end_access(out);
        while let Some((from, message)) = self.inbox.pop_front() {
            self.handle(from, message, out);
        }
    }

    /// The listing has no way back.
    fn on_withdraw(&mut self, _claim: Stamp, _out: &mut EffectsOf<Self>) {}

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        self.check(from, &message)?;
        if R::BLOCKING && self.access.is_some() {
            self.inbox.push_back((from, message));
        } else {
            self.handle(from, message, out);
        }
        Ok(())
    }

    fn census(&self) -> Census {
        self.x.census(self.y.iter().copied())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        if self.claim != Some(claim) || self.access.is_some() {
            return Vec::new();
        }
        let one = |site| Blocker { site, pool: PoolId(0), units: Units(1), claim: None };
        let forks = self.y.iter().zip(self.x.rivals()).filter(|(y, _)| !**y);
        let members = (0..self.inform.len())
            .filter(|&k| self.inform[k])
            .flat_map(|k| self.x.others(k).filter(move |&h| !self.informed[k].contains(h)));
        forks.map(|(_, &j)| j).chain(members).map(one).collect()
    }

    fn is_at_rest(&self) -> bool {
        !self.hungry && self.access.is_none() && self.inbox.is_empty()
    }
}
