//! Groups that share processes, each when it wants to.
//!
//! # Idea
//!
//! A claim names the group that a process is ready to work for, and a process may have one for each
//! of its groups. The arcs are those of [`groups`](super::groups), but only groups that want to
//! work are compared: an idle group holds up nobody. Of its hungry groups a process serves the one
//! that leads the others, its *top*. It asks for its forks in the name of that group, gives a fork
//! to whoever asks for a group that leads its top, and once it has all of them tells the first
//! member of the group, who leads it, that it is *ready*. When a group that leads turns up, it
//! takes that word back, and gives up nothing before the leader has confirmed; the leader starts
//! the work when all are ready. So one process decides whether a work begins or a word is taken
//! back.
//!
//! # Source
//!
//! Cheng et al. 1999, §5, which describes it in words. What is described fails in every reading,
//! see [`groups_hungry_as_printed`](super::groups_hungry_as_printed); what stays of it is the aim,
//! the arcs and the forks.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | process | competitor | give me our fork, for this group |
//! | `Fork` | competitor | process | here it is |
//! | `Ready` | member | leader | I have everything and am yours |
//! | `Cancel` | member | leader | let me go, if it is not too late |
//! | `Cancelled` | leader | member | you are free |
//! | `Start` | leader | member | everybody is ready: work |
//! | `Done` | member | leader | my part is finished |
//! | `Over` | leader | member | everybody has finished |
//! | `Turn` | process | competitor | my group has worked, yours lead it now |
//!
//! # Cost
//!
//! 4(n−1) for a group of n members that still has its forks and worked last, and a turn more for
//! each pair of a member and a competitor where it did not. There is no upper bound for a single
//! work: each group that leads and wants to work may take the forks once.
//!
//! # Assumes
//!
//! First-in first-out links. Members of one group do not compete. One claim for each process and
//! group at a time. For liveness: once a member claims for a group, the others do in the end.
//! Without that, a group that leads keeps its processes, and groups that share them starve: `kofm
//! check --endless` shows the run, and with `--arrive` that there is none.
//!
//! # Why it is safe
//!
//! A process that is ready keeps its forks and serves nobody else until its leader has confirmed
//! that it is not: so when the leader starts, every member has all its forks, and keeps them until
//! everybody has finished. Two competitors share a fork, and two groups with a common process share
//! its readiness: neither pair can be started both.
//!
//! It is live because whoever works lets everybody lead: arcs among groups form no cycle. Of the
//! groups of which a member is hungry one leads all hungry neighbours, and its members all come.
//! They serve it, competitors give way to it, and no process takes a word back that was given to
//! it.

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
    /// Readiness is taken back for a group of a competitor that leads.
    const REVOKES: bool = true;
    /// A process is ready until its leader confirms that it is not.
    const CONFIRMS: bool = true;
    /// Members leave together.
    const BARRIER: bool = true;
    /// Nothing is left out.
    const SOUND: bool = Self::REVOKES && Self::CONFIRMS && Self::BARRIER;
}

/// Nothing is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupsHungry<R = Sound> {
    arcs: Arcs,
    /// By competitor.
    forks: Box<[Fork]>,
    /// By own group, the claim that waits.
    hungry: Box<[Option<Stamp>]>,
    /// The own group that was told that this process is ready.
    ready: Option<Ready>,
    work: Option<Work>,
    /// By own group, what its leader knows; unused where somebody else leads.
    desks: Box<[Desk]>,
    rules: core::marker::PhantomData<R>,
}

/// What this process knows of the fork that it shares with a competitor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fork {
    here: bool,
    /// The own group in whose name it was asked for.
    wanted: Option<usize>,
    /// The group and claim that the competitor asks for.
    asked: Option<(GroupId, Stamp)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ready {
    group: usize,
    /// The word was taken back, and the leader has not said yet whether in time.
    cancelling: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    group: usize,
    /// None where the claim was given up when it was too late.
    claim: Option<Stamp>,
    finished: bool,
}

/// What the leader of a group knows of its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Desk {
    ready: SiteSet,
    done: SiteSet,
}

/// What processes say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Give me our fork.
    Request {
        /// For which group.
        group: GroupId,
        /// For which claim.
        claim: Stamp,
    },
    /// Here it is.
    Fork,
    /// A member speaks to the leader of a group.
    ToLeader {
        /// Which group.
        group: GroupId,
        /// What it says.
        word: Word,
    },
    /// The leader of a group speaks to a member.
    ToMember {
        /// Which group.
        group: GroupId,
        /// What it says.
        order: Order,
    },
    /// A group of mine has worked; yours lead it from now on.
    Turn {
        /// Which.
        group: GroupId,
    },
}

/// What members say to the leader of their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Word {
    /// I have everything and am yours.
    Ready,
    /// Let me go, if it is not too late.
    Cancel,
    /// My part is finished.
    Done,
}

/// What the leader of a group says to its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Order {
    /// You are free.
    Cancelled,
    /// Everybody is ready: work.
    Start,
    /// Everybody has finished.
    Over,
}

impl<R: Rules> GroupsHungry<R> {
    fn leader(&self, own: usize) -> SiteId {
        self.arcs.grouping().members(self.arcs.groups()[own])[0]
    }

    /// The hungry group that leads the other hungry groups of this process.
    fn top(&self) -> Option<usize> {
        let hungry = || (0..self.hungry.len()).filter(|&own| self.hungry[own].is_some());
        hungry().find(|&own| hungry().all(|other| self.arcs.leads_own(own, other)))
    }

    /// Whether a competitor asks for its fork in the name of a group that goes first.
    fn beaten(&self, rival: usize, top: Option<usize>) -> bool {
        let Some((group, _)) = self.forks[rival].asked else { return false };
        top.is_none_or(|top| self.arcs.leads_copy(top, rival, group) == Some(false))
    }

    /// Does whatever there is to do. Runs after everything that happens.
    fn settle(&mut self, out: &mut EffectsOf<Self>) {
        if self.work.is_some() {
            return;
        }
        let top = self.top();
        if let Some(ready) = self.ready {
            let beaten = (0..self.forks.len()).any(|rival| self.beaten(rival, top)) && R::REVOKES;
            if !ready.cancelling && (top != Some(ready.group) || beaten) {
                self.ready = Some(Ready { cancelling: true, ..ready });
                self.tell_leader(ready.group, Word::Cancel, out);
                if !R::CONFIRMS && self.ready.take().is_some() {
                    self.settle(out);
                }
            }
            return;
        }
        for rival in 0..self.forks.len() {
            if self.beaten(rival, top) && self.forks[rival].here {
                let serves = self.forks[rival].asked.take().map(|asked| asked.1);
                self.forks[rival].here = false;
                out.send(self.arcs.rivals()[rival], serves, Message::Fork);
            }
        }
        let Some(top) = top else { return };
        let (group, claim) = (self.arcs.groups()[top], self.hungry[top].expect("top is hungry"));
        for (fork, &rival) in self.forks.iter_mut().zip(self.arcs.rivals()) {
            if !fork.here && fork.wanted != Some(top) {
                fork.wanted = Some(top);
                out.send(rival, claim, Message::Request { group, claim });
            }
        }
        if self.forks.iter().all(|fork| fork.here) {
            self.ready = Some(Ready { group: top, cancelling: false });
            self.tell_leader(top, Word::Ready, out);
        }
    }

    fn tell_leader(&mut self, own: usize, word: Word, out: &mut EffectsOf<Self>) {
        let (leader, group) = (self.leader(own), self.arcs.groups()[own]);
        if leader == self.me() {
            let said = self.at_desk(own, leader, word, out);
            assert!(said.is_ok() || !R::SOUND, "a leader knows what it does itself");
        } else {
            let serves = self.serves(own);
            out.send(leader, serves, Message::ToLeader { group, word });
        }
    }

    fn tell_member(&mut self, own: usize, to: SiteId, order: Order, out: &mut EffectsOf<Self>) {
        let group = self.arcs.groups()[own];
        if to == self.me() {
            let done = self.at_work(own, order, out);
            assert!(done.is_ok() || !R::SOUND, "a leader knows what it does itself");
        } else {
            let serves = self.serves(own);
            out.send(to, serves, Message::ToMember { group, order });
        }
    }

    /// The claim that what is said about a group is charged to.
    fn serves(&self, own: usize) -> Option<Stamp> {
        let work = self.work.as_ref().filter(|work| work.group == own);
        work.and_then(|work| work.claim).or(self.hungry[own])
    }

    fn tell_all(&mut self, own: usize, order: Order, out: &mut EffectsOf<Self>) {
        let others: Vec<SiteId> = self.arcs.others(own).collect();
        for member in others {
            self.tell_member(own, member, order, out);
        }
        self.tell_member(own, self.me(), order, out);
    }

    /// What the leader of a group does when a member says something.
    fn at_desk(
        &mut self,
        own: usize,
        from: SiteId,
        word: Word,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let everybody = self.arcs.others(own).count() + 1;
        let desk = &mut self.desks[own];
        match word {
            Word::Ready => {
                if desk.done.contains(from) || !desk.ready.insert(from) {
                    return Err(PeerFault::Unexpected("ready twice"));
                }
                if desk.ready.len() == everybody {
                    desk.ready = SiteSet::new();
                    self.tell_all(own, Order::Start, out);
                }
            }
            Word::Cancel => {
                // Otherwise the start is on its way, and it is too late.
                if desk.ready.remove(from) {
                    self.tell_member(own, from, Order::Cancelled, out);
                }
            }
            Word::Done => {
                let works = self.work.as_ref().is_some_and(|work| work.group == own);
                if !works || !desk.done.insert(from) {
                    return Err(PeerFault::Unexpected("finished with what was never begun"));
                }
                if desk.done.len() == everybody {
                    desk.done = SiteSet::new();
                    self.tell_all(own, Order::Over, out);
                }
            }
        }
        Ok(())
    }

    /// What a member does when the leader of a group says something.
    fn at_work(
        &mut self,
        own: usize,
        order: Order,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let fault = Err(PeerFault::Unexpected("an order that nobody waits for"));
        match order {
            Order::Cancelled => {
                if self.ready != Some(Ready { group: own, cancelling: true }) {
                    return if R::CONFIRMS { fault } else { Ok(()) };
                }
                self.ready = None;
                self.settle(out);
            }
            Order::Start => {
                if self.ready.is_none_or(|ready| ready.group != own) && R::CONFIRMS {
                    return fault;
                }
                self.ready = None;
                let claim = self.hungry[own].take();
                self.work = Some(Work { group: own, claim, finished: false });
                match claim {
                    Some(claim) => {
                        let group = self.arcs.groups()[own];
                        out.grant_named(claim, self.arcs.grouping().units(self.me(), group));
                    }
                    None => self.finish(out),
                }
            }
            Order::Over => {
                let finished = |work: &Work| work.group == own && work.finished;
                if !self.work.as_ref().is_some_and(finished) {
                    return fault;
                }
                let claim = self.work.take().and_then(|work| work.claim);
                let group = self.arcs.groups()[own];
                for (i, &rival) in self.arcs.rivals().iter().enumerate() {
                    // Whoever leads this group already was told so.
                    if self.arcs.leads_some(own, i) {
                        out.send(rival, claim, Message::Turn { group });
                    }
                }
                self.arcs.give_way(own);
                self.settle(out);
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut EffectsOf<Self>) {
        if let Some(work) = &mut self.work {
            work.finished = true;
            let own = work.group;
            if !R::BARRIER {
                self.at_work(own, Order::Over, out).expect("it has just finished");
                return;
            }
            self.tell_leader(own, Word::Done, out);
        }
    }

    /// The place of a group that both this process and the sender belong to.
    fn common(&self, from: SiteId, group: GroupId) -> Result<usize, PeerFault> {
        let own = self.arcs.own(group);
        own.filter(|&own| self.arcs.others(own).any(|member| member == from))
            .ok_or(PeerFault::Unexpected("a group that not both are in"))
    }
}

impl<R: Rules> Protocol for GroupsHungry<R> {
    const NAME: &'static str = "groups-hungry";
    const PROFILE: Profile = Profile {
        source: "Cheng et al. 1999, §5, repaired",
        summary: "groups that share processes work when they want to; fixed groups",
        serves: Service::Group,
        as_printed: false,
        full_service: false,
        gathers: false,
        arbitrated: false,
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
            Fork { here, wanted: None, asked: None }
        };
        let forks = arcs.rivals().iter().map(fork).collect();
        let groups = arcs.groups().len();
        Self {
            arcs,
            forks,
            hungry: vec![None; groups].into(),
            ready: None,
            work: None,
            desks: vec![Desk::default(); groups].into(),
            rules: core::marker::PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.arcs.me()
    }

    /// A seat can be asked for by whoever has one.
    fn capacity(&self, pool: PoolId) -> Option<Units> {
        if pool == PoolId(0) {
            return Some(Units(self.arcs.grouping().resources()));
        }
        self.arcs.groups().iter().any(|group| group.seats() == pool).then_some(Units(1))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        let named = crate::Grouping::named(&demand);
        let Some(own) = named.and_then(|group| self.arcs.own(group)) else {
            return out.reject(claim, Rejection::Empty);
        };
        let works = |work: &Work| work.group == own && !work.finished;
        if self.hungry[own].is_some() || self.work.as_ref().is_some_and(works) {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.hungry[own] = Some(claim);
        self.settle(out);
    }

    /// A process gives back everything or nothing.
    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let works = |work: &Work| work.claim == Some(claim) && !work.finished;
        if part.is_none() && self.work.as_ref().is_some_and(works) {
            self.finish(out);
        }
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        if let Some(hungry) = self.hungry.iter_mut().find(|hungry| **hungry == Some(claim)) {
            *hungry = None;
            self.settle(out);
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
            Message::Request { group, claim } => {
                let rival = rival?;
                if self.arcs.any_leads(rival, group).is_none() {
                    return Err(PeerFault::Unexpected("a fork was asked for a group not its own"));
                }
                if claim.site != from {
                    return Err(PeerFault::ForeignClaim(claim));
                }
                // Otherwise it is a repetition, and the fork is on its way already.
                if self.forks[rival].here {
                    self.forks[rival].asked = Some((group, claim));
                    self.settle(out);
                }
            }
            Message::Fork => {
                let fork = &mut self.forks[rival?];
                if fork.here || fork.wanted.is_none() {
                    return Err(PeerFault::Unexpected("a fork that nobody asked for"));
                }
                *fork = Fork { here: true, wanted: None, asked: None };
                self.settle(out);
            }
            Message::ToLeader { group, word } => {
                let own = self.common(from, group)?;
                if self.leader(own) != self.me() {
                    return Err(PeerFault::Unexpected("said to somebody who does not lead"));
                }
                self.at_desk(own, from, word, out)?;
            }
            Message::ToMember { group, order } => {
                let own = self.common(from, group)?;
                if self.leader(own) != from {
                    return Err(PeerFault::Unexpected("an order of somebody who does not lead"));
                }
                self.at_work(own, order, out)?;
            }
            Message::Turn { group } => {
                let rival = rival?;
                if self.arcs.any_leads(rival, group).is_none() {
                    return Err(PeerFault::Unexpected("a turn of a group not its own"));
                }
                self.arcs.turn(rival, group);
                self.settle(out);
            }
        }
        Ok(())
    }

    fn census(&self) -> Census {
        let forks = self.forks.iter().map(|fork| fork.here);
        self.arcs.census(forks)
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let waits = |own: &usize| self.hungry[*own] == Some(claim);
        let Some(own) = (0..self.hungry.len()).find(waits) else { return Vec::new() };
        let pool = self.arcs.groups()[own].seats();
        let one = |site, claim| Blocker { site, pool, units: Units(1), claim };
        if let Some(work) = &self.work {
            // This process works, or waits for the others to finish.
            return vec![one(self.leader(work.group), work.claim)];
        }
        if let Some(top) = self.top().filter(|&top| top != own) {
            return vec![one(self.me(), self.hungry[top])];
        }
        let forks = self.forks.iter().zip(self.arcs.rivals());
        let missing: Vec<Blocker> = forks
            .filter(|(fork, _)| !fork.here)
            .map(|(_, &rival)| Blocker {
                site: rival,
                pool: PoolId(0),
                units: Units(1),
                claim: None,
            })
            .collect();
        if !missing.is_empty() {
            return missing;
        }
        if self.leader(own) != self.me() {
            return vec![one(self.leader(own), None)];
        }
        let ready = &self.desks[own].ready;
        self.arcs.others(own).filter(|&site| !ready.contains(site)).map(|s| one(s, None)).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.hungry.iter().all(Option::is_none)
            && self.ready.is_none()
            && self.work.is_none()
            && self.desks.iter().all(|desk| desk.ready.is_empty() && desk.done.is_empty())
            && self.forks.iter().all(|fork| fork.asked.is_none())
    }

    fn audit(&self) {
        if !R::SOUND {
            return;
        }
        assert!(
            self.ready.is_none() || self.work.is_none(),
            "a process serves one group at a time"
        );
        if self.ready.is_some() || self.work.is_some() {
            assert!(self.forks.iter().all(|fork| fork.here), "and keeps every fork meanwhile");
        }
        for fork in &self.forks {
            assert!(fork.here || fork.asked.is_none(), "only a fork that is here can be asked for");
            assert!(!fork.here || fork.wanted.is_none(), "nobody asks for what is here");
        }
    }
}
