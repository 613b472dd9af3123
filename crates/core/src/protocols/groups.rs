//! Groups that share processes take turns.
//!
//! # Idea
//!
//! Each site is a process with needs; see [`Grouping`](crate::Grouping). A claim says that the
//! process is ready to work, for whichever of its groups comes first. Between two groups that
//! cannot work at the same time an arc says which goes first, and a group that has worked goes
//! last. A process gives the fork that it shares with a competitor to whoever leads, promises
//! itself to the one group that leads everybody once it has all its forks, and works when every
//! other member has promised too. It lets go when every member has finished.
//!
//! Adjacent groups therefore work strictly in turn, and a group that is not ready holds up its
//! neighbours: a rota, not a queue. Where groups work as they please, use
//! [`groups_hungry`](super::groups_hungry) or [`gang`](super::gang).
//!
//! # Source
//!
//! Cheng, Wada, Inoue, Zhang and Noguchi 1999, appendix. As printed it deadlocks; see
//! [`groups_as_printed`](super::groups_as_printed). What differs here: a process promises itself
//! only to a group that leads its other groups too; nobody works without such a promise of their
//! own; promises are forgotten when they are used; and members leave together, without which two
//! groups that share a process can overlap.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | process | competitor | give me our fork |
//! | `Fork` | competitor | process | here it is |
//! | `Inform` | member | member | I have everything and am yours |
//! | `Done` | member | member | my part is finished |
//! | `Turn` | process | competitor | my group has worked, yours lead it now |
//!
//! # Cost
//!
//! For one work of a group of n members with m pairs of a member and a competitor: m turns, n(n−1)
//! informs and n(n−1) dones at least; requests and forks at most twice the number of the
//! competitor's groups for each pair, once every group has worked:
//! [`Grouping::price`](crate::Grouping::price). The paper's 3m + n(n−1) counts each competitor as
//! if it were in one group, and no end.
//!
//! # Assumes
//!
//! First-in first-out links, and that every process becomes ready again. Members of one group do
//! not compete. One claim per process at a time.
//!
//! # Why it is safe
//!
//! A fork is in one place, and whoever has promised itself keeps every fork until the end: two
//! competitors never work at once. A group leads everybody at all its members before one of them
//! works, and stays so until all have finished; of two adjacent groups one does not lead. A promise
//! holds until it is used, because an own arc turns only when the process itself has worked, and
//! each member uses one promise of each other member for one work.
//!
//! It is live because arcs among groups form no cycle: whoever works becomes last. Some group leads
//! everybody; its members get their forks, since a competitor may keep one only if a group of its
//! own leads. The groups ahead of a waiting group only become fewer.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::grouping::GroupId;
use crate::parts::{Arcs, SiteSet};
use crate::protocol::{
    Blocker, Census, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// What may be left out, to see whether it is missed.
pub trait Rules: Clone + core::fmt::Debug + Eq + core::hash::Hash + Send + 'static {
    /// A process promises itself only to a group that leads its other groups too.
    const LEADS_OWN: bool = true;
    /// A promise is forgotten when it is used.
    const FORGETS: bool = true;
    /// Members leave together.
    const BARRIER: bool = true;
    /// Nothing is left out.
    const SOUND: bool = Self::LEADS_OWN && Self::FORGETS && Self::BARRIER;
}

/// Nothing is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Groups<R = Sound> {
    arcs: Arcs,
    /// By competitor.
    forks: Box<[Fork]>,
    /// By own group, the members whose promise is here and not used yet.
    informed: Box<[SiteSet]>,
    /// The claim that waits for a promise.
    hungry: Option<Stamp>,
    work: Option<Work>,
    rules: core::marker::PhantomData<R>,
}

/// What this process knows of the fork that it shares with a competitor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fork {
    here: bool,
    /// This process has asked for it.
    wanted: bool,
    /// The claim that the competitor asks for and has to wait.
    asked: Option<Stamp>,
}

/// What this process has promised itself to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    group: usize,
    claim: Stamp,
    /// Nobody waits for the claim any more, but a promise is a promise.
    given_up: bool,
    stage: Stage,
    /// Members whose part is finished.
    done: SiteSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Promised,
    Working,
    Finished,
}

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Give me our fork.
    Request {
        /// What it is for.
        claim: Stamp,
    },
    /// Here it is.
    Fork,
    /// I have everything, and work for nobody else.
    Inform {
        /// The group that I have promised myself to.
        group: GroupId,
    },
    /// My part of the work is finished.
    Done {
        /// The group's work.
        group: GroupId,
    },
    /// A group of mine has worked; yours lead it from now on.
    Turn {
        /// Which.
        group: GroupId,
    },
}

impl<R: Rules> Groups<R> {
    /// The arcs as this process knows them, for people to look at.
    pub const fn arcs(&self) -> &Arcs {
        &self.arcs
    }

    fn ask_for_forks(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        for (fork, &rival) in self.forks.iter_mut().zip(self.arcs.rivals()) {
            if !fork.here && !fork.wanted {
                fork.wanted = true;
                out.send(rival, claim, Message::Request { claim });
            }
        }
    }

    /// Promises this process to the group that leads everybody, if there is one and it has all its
    /// forks.
    fn promise(&mut self, out: &mut EffectsOf<Self>) {
        let Some(claim) = self.hungry else { return };
        if self.work.is_some() || self.forks.iter().any(|fork| !fork.here) {
            return;
        }
        let mut own = 0..self.arcs.groups().len();
        let leads = |own: &usize| {
            let own = *own;
            if R::LEADS_OWN { self.arcs.leads_all(own) } else { self.arcs.leads_rivals(own) }
        };
        let Some(group) = own.rfind(leads) else { return };
        self.hungry = None;
        let done = SiteSet::new();
        self.work = Some(Work { group, claim, given_up: false, stage: Stage::Promised, done });
        self.tell_members(|group| Message::Inform { group }, out);
        self.begin(out);
    }

    fn tell_members(&self, message: fn(GroupId) -> Message, out: &mut EffectsOf<Self>) {
        let work = self.work.as_ref().expect("only whoever has promised tells members");
        let name = self.arcs.groups()[work.group];
        for member in self.arcs.others(work.group) {
            out.send(member, work.claim, message(name));
        }
    }

    /// Begins to work once every member has promised.
    fn begin(&mut self, out: &mut EffectsOf<Self>) {
        let Some(work) = self.work.as_mut().filter(|work| work.stage == Stage::Promised) else {
            return;
        };
        let informed = &mut self.informed[work.group];
        if !self.arcs.others(work.group).all(|member| informed.contains(member)) {
            return;
        }
        if R::FORGETS {
            *informed = SiteSet::new();
        }
        work.stage = Stage::Working;
        let group = self.arcs.groups()[work.group];
        let claim = work.claim;
        if work.given_up {
            self.finish_part(out);
        } else {
            out.grant_named(claim, self.arcs.grouping().units(self.me(), group));
        }
    }

    fn finish_part(&mut self, out: &mut EffectsOf<Self>) {
        if let Some(work) = &mut self.work {
            work.stage = Stage::Finished;
            if !R::BARRIER {
                work.done = self.arcs.others(work.group).collect();
                return self.leave(out);
            }
            self.tell_members(|group| Message::Done { group }, out);
            self.leave(out);
        }
    }

    /// Lets go once every member has finished.
    fn leave(&mut self, out: &mut EffectsOf<Self>) {
        let Some(work) = self.work.as_ref().filter(|work| work.stage == Stage::Finished) else {
            return;
        };
        if !self.arcs.others(work.group).all(|member| work.done.contains(member)) {
            return;
        }
        let (own, claim) = (work.group, work.claim);
        let group = self.arcs.groups()[own];
        self.work = None;
        self.arcs.give_way(own);
        for &rival in self.arcs.rivals() {
            out.send(rival, claim, Message::Turn { group });
        }
        for (fork, &rival) in self.forks.iter_mut().zip(self.arcs.rivals()) {
            if let Some(asked) = fork.asked.take() {
                fork.here = false;
                out.send(rival, asked, Message::Fork);
            }
        }
        if let Some(next) = self.hungry {
            self.ask_for_forks(next, out);
            self.promise(out);
        }
    }

    fn on_request(
        &mut self,
        rival: usize,
        claim: Stamp,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let site = self.arcs.rivals()[rival];
        if claim.site != site {
            return Err(PeerFault::ForeignClaim(claim));
        }
        let fork = &mut self.forks[rival];
        if !fork.here || fork.asked.is_some() {
            return Err(PeerFault::Unexpected("a fork was asked for that is not to be had"));
        }
        let mut own = 0..self.arcs.groups().len();
        let mut ahead = || own.any(|own| self.arcs.leads_rival(own, rival));
        if self.work.is_some() || (self.hungry.is_some() && ahead()) {
            fork.asked = Some(claim);
            return Ok(());
        }
        fork.here = false;
        out.send(site, claim, Message::Fork);
        if let Some(claim) = self.hungry {
            fork.wanted = true;
            out.send(site, claim, Message::Request { claim });
        }
        Ok(())
    }

    /// The place of a group that both this process and the sender belong to.
    fn common(&self, from: SiteId, group: GroupId) -> Result<usize, PeerFault> {
        let own = self.arcs.own(group).filter(|_| from != self.me());
        own.filter(|&own| self.arcs.others(own).any(|member| member == from))
            .ok_or(PeerFault::Unexpected("a group that not both are in"))
    }
}

impl<R: Rules> Protocol for Groups<R> {
    const NAME: &'static str = "groups";
    const PROFILE: Profile = Profile {
        source: "Cheng et al. 1999, appendix, corrected",
        summary: "groups that share processes take turns; fixed groups, equally busy",
        serves: Service::Group,
        as_printed: false,
        full_service: false,
        gathers: false,
        arbitrated: false,
        // It depends on the groups: see Grouping::price.
        price: |_, _| Price { min: 0, max: None },
        survives: &["pause", "partition"],
    };

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let grouping = cluster.grouping().expect("checked by whoever made the cluster");
        let arcs = Arcs::new(me, &grouping);
        let fork = |&rival: &SiteId| {
            let here = grouping.fork_holder(me, rival) == me;
            Fork { here, wanted: false, asked: None }
        };
        let forks = arcs.rivals().iter().map(fork).collect();
        let informed = vec![SiteSet::new(); arcs.groups().len()].into();
        Self { arcs, forks, informed, hungry: None, work: None, rules: core::marker::PhantomData }
    }

    fn me(&self) -> SiteId {
        self.arcs.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        (pool == PoolId(0)).then(|| Units(self.arcs.grouping().resources()))
    }

    fn on_claim(&mut self, claim: Stamp, _demand: Demand, out: &mut EffectsOf<Self>) {
        let busy = self.work.as_ref().is_some_and(|work| work.stage != Stage::Finished);
        if self.hungry.is_some() || busy {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.hungry = Some(claim);
        self.ask_for_forks(claim, out);
        self.promise(out);
    }

    /// A process gives back everything or nothing.
    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let works = |work: &Work| work.claim == claim && work.stage == Stage::Working;
        if part.is_none() && self.work.as_ref().is_some_and(works) {
            self.finish_part(out);
        }
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if let Some(work) = self.work.as_mut().filter(|work| work.claim == claim) {
            work.given_up |= work.stage == Stage::Promised;
        }
        if self.hungry == Some(claim) {
            self.hungry = None;
            if self.work.is_none() {
                for (fork, &rival) in self.forks.iter_mut().zip(self.arcs.rivals()) {
                    if let Some(asked) = fork.asked.take() {
                        fork.here = false;
                        out.send(rival, asked, Message::Fork);
                    }
                }
            }
        }
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let rival = self.arcs.rival(from).ok_or(PeerFault::UnknownSite(from));
        match message {
            Message::Request { claim } => return self.on_request(rival?, claim, out),
            Message::Fork => {
                let fork = &mut self.forks[rival?];
                if !fork.wanted {
                    return Err(PeerFault::Unexpected("a fork that nobody asked for"));
                }
                *fork = Fork { here: true, wanted: false, asked: None };
                self.promise(out);
            }
            Message::Inform { group } => {
                let own = self.common(from, group)?;
                if !self.informed[own].insert(from) {
                    return Err(PeerFault::Unexpected(
                        "a second promise before the first was used",
                    ));
                }
                self.begin(out);
            }
            Message::Done { group } => {
                let own = self.common(from, group)?;
                let work = self.work.as_mut().filter(|work| work.group == own);
                if !work.is_some_and(|work| work.done.insert(from)) {
                    return Err(PeerFault::Unexpected("finished with what was never begun"));
                }
                self.leave(out);
            }
            Message::Turn { group } => {
                let rival = rival?;
                if self.arcs.any_leads(rival, group) != Some(false) {
                    return Err(PeerFault::Unexpected("a turn that was not its to give"));
                }
                self.arcs.turn(rival, group);
                self.promise(out);
            }
        }
        Ok(())
    }

    fn census(&self) -> Census {
        let forks = self.forks.iter().map(|fork| fork.here);
        self.arcs.census(forks)
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let one = |site| Blocker { site, pool: PoolId(0), units: Units(1), claim: None };
        if let Some(work) = self.work.as_ref().filter(|work| work.claim == claim) {
            let missing = |member: &SiteId| !self.informed[work.group].contains(*member);
            let waits = work.stage == Stage::Promised;
            return self.arcs.others(work.group).filter(|m| waits && missing(m)).map(one).collect();
        }
        if self.hungry != Some(claim) {
            return Vec::new();
        }
        if let Some(work) = &self.work {
            // The last work of this process is not over yet.
            return self
                .arcs
                .others(work.group)
                .filter(|m| !work.done.contains(*m))
                .map(one)
                .collect();
        }
        let forks = self.forks.iter().zip(self.arcs.rivals());
        let missing: Vec<Blocker> =
            forks.filter(|(fork, _)| !fork.here).map(|(_, &rival)| one(rival)).collect();
        if !missing.is_empty() {
            return missing;
        }
        let own = 0..self.arcs.groups().len();
        let first = own.clone().find(|&k| own.clone().all(|l| self.arcs.leads_own(k, l)));
        let first = first.expect("arcs among the groups of one process form no cycle");
        let rivals = self.arcs.rivals().iter().enumerate();
        rivals.filter(|&(j, _)| !self.arcs.leads_rival(first, j)).map(|(_, &j)| one(j)).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.hungry.is_none()
            && self.work.is_none()
            && self.forks.iter().all(|fork| fork.asked.is_none())
            && self.informed.iter().all(SiteSet::is_empty)
    }

    fn audit(&self) {
        if !R::SOUND {
            return;
        }
        if let Some(work) = &self.work {
            assert!(self.arcs.leads_all(work.group), "whoever has promised leads everybody");
            assert!(self.forks.iter().all(|fork| fork.here), "and keeps every fork");
        }
        for fork in &self.forks {
            assert!(fork.here || fork.asked.is_none(), "only a fork that is here can be asked for");
            assert!(!fork.here || !fork.wanted, "nobody asks for what is here");
        }
    }
}
