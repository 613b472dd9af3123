//! Cheng et al. 1999, §5, as described.
//!
//! # Idea
//!
//! The published variation for groups that want to work at times of their own, for the checker to
//! refute. A process informs the hungry group that goes first; if one that goes before it becomes
//! hungry, it cancels; a member that has not informed yet answers with a delete, which all members
//! obey. The paper argues that links keep their order, so everybody sees an inform and its delete
//! alike. But they come over different links: with a group of three and no competition at all, an
//! inform that was deleted arrives late, and a member works while the one that it counts in works
//! for another group.
//!
//! Where the text is silent it is read kindly: a process stays hungry while one of its groups is,
//! and looks for its resources again before it works. Where the text leaves something open there
//! is a [`Reading`] for each way: all fail.
//!
//! # Source
//!
//! Cheng, Wada, Inoue, Zhang and Noguchi 1999, §5.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request`, `Fork`, `Turn` | | | as in [`groups_as_printed`](super::groups_as_printed) |
//! | `Inform` | member | member | I have all my resources |
//! | `Cancel` | member | member | another group of mine goes first |
//! | `Delete` | member | member | forget that process's inform |
//!
//! # Cost
//!
//! The paper states none.
//!
//! # Assumes
//!
//! First-in first-out links; members of one group do not compete.
//!
//! # Why it is safe
//!
//! It is not: see [`groups_hungry`](super::groups_hungry) for the repair.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::grouping::{GroupId, Grouping};
use crate::parts::{Arcs, SiteSet};
use crate::protocol::{
    Blocker, Census, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// A way to read what §5 leaves open.
pub trait Reading: Clone + core::fmt::Debug + Eq + core::hash::Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// A process that has informed a group gives nothing away.
    const HOLDS: bool = false;
    /// A process informs a group only if it leads the competitors' groups too, as in the appendix.
    const LEADS: bool = false;
    /// A hungry process keeps what a group leads for that wants nothing, as in the appendix.
    const KEEPS: bool = false;
}

/// As described, read kindly.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kindest;

impl Reading for Kindest {
    const NAME: &'static str = "groups-hungry-as-printed";
    const SUMMARY: &'static str = "the published variation: a group works without a resource";
}

/// The variables of the paper, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupsHungryAsPrinted<R = Kindest> {
    x: Arcs,
    y: Box<[bool]>,
    z: Box<[bool]>,
    /// By own group, the claim that made it hungry.
    hungry: Box<[Option<Stamp>]>,
    informed: Box<[SiteSet]>,
    /// The group that was informed, and whether that was cancelled.
    inform: Option<(usize, bool)>,
    /// The group that it works for.
    access: Option<usize>,
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
    /// Another group of mine goes first.
    Cancel(GroupId),
    /// Forget the inform of that process.
    Delete(GroupId, SiteId),
    /// My group has worked.
    Turn(GroupId),
}

impl<R: Reading> GroupsHungryAsPrinted<R> {
    /// The hungry group with the most privileges.
    fn top(&self) -> Option<usize> {
        let hungry = || (0..self.hungry.len()).filter(|&k| self.hungry[k].is_some());
        hungry().find(|&k| hungry().all(|l| self.x.leads_own(k, l)))
    }

    fn tell(&self, k: usize, message: &Message, out: &mut EffectsOf<Self>) {
        for h in self.x.others(k) {
            out.send(h, self.hungry[k], message.clone());
        }
    }

    /// Informs the group that goes first, or cancels for it; and works where everybody has
    /// informed.
    fn go_on(&mut self, out: &mut EffectsOf<Self>) {
        let Some(top) = self.top().filter(|_| self.access.is_none()) else { return };
        let ready = self.y.iter().all(|&y| y) && (!R::LEADS || self.x.leads_rivals(top));
        if !ready {
            return;
        }
        match self.inform {
            None => {
                self.inform = Some((top, false));
                self.tell(top, &Message::Inform(self.x.groups()[top]), out);
            }
            Some((k, false)) if k != top && !self.all_informed(k) => {
                self.inform = Some((k, true));
                self.tell(k, &Message::Cancel(self.x.groups()[k]), out);
            }
            Some(_) => {}
        }
        if let Some((k, _)) = self.inform.filter(|&(k, _)| self.all_informed(k))
            && let Some(claim) = self.hungry[k]
        {
            self.access = Some(k);
            let group = self.x.groups()[k];
            out.grant_named(claim, self.x.grouping().units(self.me(), group));
        }
    }

    fn all_informed(&self, k: usize) -> bool {
        self.x.others(k).all(|h| self.informed[k].contains(h))
    }

    fn send_requests(&self, out: &mut EffectsOf<Self>) {
        let claim = self.top().and_then(|top| self.hungry[top]);
        for (&y, &j) in self.y.iter().zip(self.x.rivals()) {
            if !y {
                out.send(j, claim, Message::Request);
            }
        }
    }
}

impl<R: Reading> Protocol for GroupsHungryAsPrinted<R> {
    const NAME: &'static str = R::NAME;
    const PROFILE: Profile = Profile {
        source: "Cheng et al. 1999, §5",
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
            hungry: vec![None; groups].into(),
            informed: vec![SiteSet::new(); groups].into(),
            inform: None,
            access: None,
            reading: PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.x.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        if pool == PoolId(0) {
            return Some(Units(self.x.grouping().resources()));
        }
        self.x.groups().iter().any(|group| group.seats() == pool).then_some(Units(1))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        let Some(k) = Grouping::named(&demand).and_then(|group| self.x.own(group)) else {
            return out.reject(claim, Rejection::Empty);
        };
        if self.hungry[k].is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        let was_hungry = self.top().is_some();
        self.hungry[k] = Some(claim);
        if !was_hungry {
            self.send_requests(out);
        }
        self.go_on(out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let Some(k) = self.access.filter(|&k| self.hungry[k] == Some(claim) && part.is_none())
        else {
            return;
        };
        self.access = None;
        self.inform = None;
        self.x.give_way(k);
        for &j in self.x.rivals() {
            out.send(j, claim, Message::Turn(self.x.groups()[k]));
        }
        self.hungry[k] = None;
        self.informed[k] = SiteSet::new();
        for (j, &site) in self.x.rivals().iter().enumerate() {
            if core::mem::take(&mut self.z[j]) {
                self.y[j] = false;
                out.send(site, None, Message::Fork);
            }
        }
        if self.top().is_some() {
            self.send_requests(out);
        }
        self.go_on(out);
    }

    /// The paper has no way back.
    fn on_withdraw(&mut self, _claim: Stamp, _out: &mut EffectsOf<Self>) {}

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let unknown = PeerFault::UnknownSite(from);
        let rival = self.x.rival(from).ok_or_else(|| unknown.clone());
        let common = |group: GroupId| {
            let k = self.x.own(group).filter(|&k| self.x.others(k).any(|h| h == from));
            k.ok_or(unknown)
        };
        match message {
            Message::Request => {
                let j = rival?;
                let wants = self.top().is_some();
                let hungry = |k: usize| if R::KEEPS { wants } else { self.hungry[k].is_some() };
                let ahead = |k: usize| hungry(k) && self.x.leads_rival(k, j);
                let held = R::HOLDS && self.inform.is_some();
                if self.access.is_some() || held || (0..self.hungry.len()).any(ahead) {
                    self.z[j] = true;
                } else {
                    self.y[j] = false;
                    out.send(from, None, Message::Fork);
                    if self.top().is_some() {
                        out.send(from, None, Message::Request);
                    }
                }
            }
            Message::Fork => {
                self.y[rival?] = true;
                self.go_on(out);
            }
            Message::Inform(group) => {
                let k = common(group)?;
                self.informed[k].insert(from);
                self.go_on(out);
            }
            Message::Cancel(group) => {
                let k = common(group)?;
                // An inform that was used is not there any more: its cancel is discarded.
                let late = self.inform.is_some_and(|inform| inform.0 == k);
                if !late && self.informed[k].remove(from) {
                    self.tell(k, &Message::Delete(group, from), out);
                }
            }
            Message::Delete(group, site) => {
                let k = common(group)?;
                if site != self.me() {
                    self.informed[k].remove(site);
                } else if self.inform == Some((k, true)) {
                    self.inform = None;
                    self.go_on(out);
                }
            }
            Message::Turn(group) => {
                self.x.turn(rival?, group);
                self.go_on(out);
            }
        }
        Ok(())
    }

    fn census(&self) -> Census {
        self.x.census(self.y.iter().copied())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let waits = |k: &usize| self.hungry[*k] == Some(claim) && self.access != Some(*k);
        let Some(k) = (0..self.hungry.len()).find(waits) else { return Vec::new() };
        let pool = self.x.groups()[k].seats();
        let missing = self.x.others(k).filter(|&h| !self.informed[k].contains(h));
        missing.map(|site| Blocker { site, pool, units: Units(1), claim: None }).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.top().is_none() && self.access.is_none()
    }
}
