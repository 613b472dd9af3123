//! Datta, Devismes, Horn and Larmore 2009, to the letter.
//!
//! # Idea
//!
//! The two listings as handlers, one for the root and one for everybody else. Lines that the
//! available text has lost (the counters are set to zero after each circulation, `else` before the
//! tokens are made, `Prio` is erased on the way back) are put back where the proofs cite them.
//! What is left is wrong in three places:
//!
//! 1. The root decides before it has counted the tokens that it holds itself (lines 66 to 72). With
//!    two sites and one unit, two hold it: `kofm check --protocol tree-as-printed --sites 2
//!    --units 1 --rounds 1`.
//! 2. Who has the priority token yields to the pusher, and nobody else does (`Prio ≠ ⊥`, lines 21
//!    and 17). Three sites that want both of two units wait for ever: `kofm check --protocol
//!    tree-as-printed-pusher --sites 3 --units 2 --k 2 --rounds 1`.
//! 3. A priority token that the root passes straight on is not counted (line 40). Of two, one is
//!    overlooked: `kofm check --protocol tree-as-printed-priority --sites 2 --units 1 --rounds 1`.
//!
//! The second and the third name run the listing with the other two faults repaired; the third
//! begins with two priority tokens, as a fault may leave them.
//!
//! The paper builds the listing in stages, and the first two are readings of it: units alone
//! (`no-pusher`, Figure 2: claims that hold some units each wait forever), and units with a pusher
//! (`no-priority`, Figure 3: a claim for two units is passed over forever). In both the tokens are
//! there from the start and no controller counts them. With `whole-pass` the tests of lines 78 to
//! 98 run after a pass over all channels, as the text has it, instead of after each message.
//!
//! # Source
//!
//! hal-00344193v4, algorithms 1 and 2.
//!
//! # Messages
//!
//! | message | meaning |
//! | --- | --- |
//! | `ResT` | a unit |
//! | `PushT` | let go of what is not enough |
//! | `PrioT` | you may keep it |
//! | `Ctrl` | the count so far |
//!
//! # Cost
//!
//! ℓ+3 messages are always on their way.
//!
//! # Assumes
//!
//! Reliable first-in first-out links along a tree; here the breadth-first tree from site 0.
//!
//! # Why it is safe
//!
//! It is not: see [`tree`](super::tree) for the repair.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::tree::fixed_channels;
use crate::protocol::{
    Blocker, Census, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::readings::{Fault, Faults};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// Which of the faults are left in.
pub trait Reading: Clone + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// The faults that it has unless the cluster names others.
    const PRINTED: &'static [Fault];
    /// Priority tokens at the start, where tokens are there from the start.
    const START: Option<u8> = None;
}

/// As printed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Letter;

impl Reading for Letter {
    const NAME: &'static str = "tree-as-printed";
    const SUMMARY: &'static str = "the published listing: over-allocates";
    const PRINTED: &'static [Fault] =
        &[Fault::CountsLate, Fault::PriorityYields, Fault::PassesUncounted];
}

/// The listing at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreeAsPrinted<L = Letter> {
    me: SiteId,
    units: u32,
    /// n, for the modulus and the timeout.
    sites: u16,
    root: bool,
    /// Δ channels, of which 0 is the parent's, but for the root.
    channels: Vec<SiteId>,
    my_c: u32,
    succ: usize,
    r_set: Vec<usize>,
    need: u32,
    state: State,
    prio: Option<usize>,
    reset: bool,
    s_token: u32,
    s_push: u32,
    s_prio: u32,
    /// The last circulation found what there should be. Not in the listing, and never read by it.
    sure: bool,
    begun: bool,
    /// The channel and the kind of the last message of this pass over the channels, where the
    /// tests run only at its end.
    pass: Option<usize>,
    faults: Faults,
    reading: PhantomData<L>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Out,
    Req(Stamp),
    In(Stamp),
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A unit.
    ResT,
    /// The pusher.
    PushT,
    /// The priority token.
    PrioT,
    /// The controller.
    Ctrl {
        /// Its colour.
        c: u32,
        /// Whether tokens are to be erased.
        r: bool,
        /// Units that it passed.
        pt: u32,
        /// Priority tokens that it passed.
        ppr: u32,
    },
}

/// The root's timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TimeOut;

impl<L: Reading> Protocol for TreeAsPrinted<L> {
    const NAME: &'static str = L::NAME;
    const PROFILE: Profile = Profile {
        source: "Datta, Devismes, Horn, Larmore 2009",
        summary: L::SUMMARY,
        as_printed: true,
        serves: Service::Pool,
        full_service: false,
        gathers: true,
        arbitrated: false,
        price: |_, _| Price { min: 0, max: None },
        survives: &[],
    };

    type Message = Message;
    type Timer = TimeOut;

    const PERPETUAL: bool = true;
    const FAULTS: &'static [Fault] = &[
        Fault::CountsLate,
        Fault::PriorityYields,
        Fault::PassesUncounted,
        Fault::WholePass,
        Fault::NoPriority,
        Fault::NoPusher,
    ];

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let channels = fixed_channels(me, cluster);
        let root = me.0 == 0;
        let units = cluster.pools.first().map_or(0, |units| units.0);
        let mut new = Self {
            me,
            units,
            sites: cluster.sites,
            root,
            channels,
            my_c: 0,
            succ: 0,
            r_set: Vec::new(),
            need: 0,
            state: State::Out,
            prio: None,
            reset: false,
            s_token: 0,
            s_push: 0,
            s_prio: 0,
            sure: false,
            begun: false,
            pass: None,
            faults: Faults::new(cluster.reading.as_ref(), L::PRINTED),
            reading: PhantomData,
        };
        if !root {
            new.my_c = new.modulus() - 1;
        }
        new
    }

    fn me(&self) -> SiteId {
        self.me
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        (pool.0 == 0).then_some(Units(self.units))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        if self.state != State::Out {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.state = State::Req(claim);
        self.need = demand.units(PoolId(0)).0;
        self.after_event(out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        if self.state != State::In(claim) || part.is_some() {
            return;
        }
        self.let_go(out);
        self.state = State::Out;
        self.after_event(out);
    }

    fn on_withdraw(&mut self, _claim: Stamp, _out: &mut EffectsOf<Self>) {}

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let channel = self.channels.iter().position(|&site| site == from);
        let q = channel.ok_or(PeerFault::UnknownSite(from))?;
        // In a pass each channel is asked for a message of each kind, one kind after the other.
        let kind = match message {
            Message::ResT => 0,
            Message::PushT => 1,
            Message::PrioT => 2,
            Message::Ctrl { .. } => 3,
        };
        let turn = 4 * q + kind;
        if self.faults.has(Fault::WholePass) && self.pass.is_some_and(|last| turn <= last) {
            self.end_of_pass(out);
            self.pass = None;
        }
        match message {
            Message::ResT | Message::PushT | Message::PrioT if self.root && self.reset => {}
            Message::ResT => {
                let wanted = (self.r_set.len() as u64) < u64::from(self.need);
                if matches!(self.state, State::Req(_)) && wanted {
                    self.r_set.push(q);
                    self.r_set.sort_unstable();
                } else {
                    self.pass_res(q, out);
                }
            }
            Message::PushT => {
                let has_prio = self.prio.is_some();
                let yields =
                    if self.faults.has(Fault::PriorityYields) { has_prio } else { !has_prio };
                let enough = self.r_set.len() as u64 >= u64::from(self.need);
                let served = match self.state {
                    State::Out => false,
                    State::Req(_) => enough,
                    State::In(_) => true,
                };
                if yields && !served {
                    self.let_go(out);
                }
                if self.root && q + 1 == self.channels.len() {
                    self.s_push = (self.s_push + 1).min(2);
                }
                self.send_next(q, Message::PushT, out);
            }
            Message::PrioT if self.prio.is_none() => self.prio = Some(q),
            Message::PrioT => {
                if !self.faults.has(Fault::PassesUncounted)
                    && self.root
                    && q + 1 == self.channels.len()
                {
                    self.s_prio = (self.s_prio + 1).min(2);
                }
                self.send_next(q, Message::PrioT, out);
            }
            Message::Ctrl { c, .. } if c >= self.modulus() => {
                return Err(PeerFault::Unexpected("a colour that does not exist"));
            }
            Message::Ctrl { c, r: _, pt, ppr } if self.root => self.at_root(q, c, pt, ppr, out),
            Message::Ctrl { c, r, pt, ppr } => self.at_other(q, c, r, pt, ppr, out),
        }
        self.pass = (turn + 1 < 4 * self.channels.len()).then_some(turn);
        if self.pass.is_none() || !self.faults.has(Fault::WholePass) {
            self.pass = None;
            self.end_of_pass(out);
        }
        Ok(())
    }

    fn on_timer(&mut self, TimeOut: TimeOut, out: &mut EffectsOf<Self>) {
        if self.channels.is_empty() {
            return;
        }
        let staged = self.is_a_stage();
        let start = if staged { Some(0) } else { L::START };
        if let (false, Some(count)) = (core::mem::replace(&mut self.begun, true), start) {
            for _ in 0..count {
                self.send(0, Message::PrioT, out);
            }
            for _ in 0..self.units {
                self.send(0, Message::ResT, out);
            }
            if !self.faults.has(Fault::NoPusher) {
                self.send(0, Message::PushT, out);
            }
        }
        if staged {
            return;
        }
        self.send(self.succ, self.ctrl(0, 0), out);
        self.restart_timer(out);
    }

    fn alarm(&self) -> Option<TimeOut> {
        self.root.then_some(TimeOut)
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        if self.state != State::Req(claim) {
            return Vec::new();
        }
        let has = u32::try_from(self.r_set.len()).unwrap_or(u32::MAX);
        let units = Units(self.need.saturating_sub(has).max(1));
        vec![Blocker { site: SiteId(0), pool: PoolId(0), units, claim: None }]
    }

    fn is_at_rest(&self) -> bool {
        self.state == State::Out
    }

    fn expected_tokens(cluster: &Cluster) -> Vec<u32> {
        let has = |fault| cluster.reading.as_ref().is_some_and(|reading| reading.contains(&fault));
        let pusher = u32::from(!has(Fault::NoPusher));
        let priority = u32::from(!has(Fault::NoPriority) && !has(Fault::NoPusher));
        vec![cluster.pools.first().map_or(0, |units| units.0), pusher, priority]
    }

    fn census(&self) -> Census {
        let mut tokens = vec![0; self.r_set.len()];
        tokens.extend(self.prio.map(|_| 2));
        Census { tokens, sure: self.sure && L::START.is_some(), circulation: self.my_c.into() }
    }

    fn tokens_in(message: &Message) -> Vec<u32> {
        match message {
            Message::ResT => vec![0],
            Message::PushT => vec![1],
            Message::PrioT => vec![2],
            Message::Ctrl { .. } => Vec::new(),
        }
    }
}

impl<L: Reading> TreeAsPrinted<L> {
    /// One of the first two stages of the paper: no token is counted, so all are there from the
    /// start.
    const fn is_a_stage(&self) -> bool {
        self.faults.has(Fault::NoPriority) || self.faults.has(Fault::NoPusher)
    }

    /// The application acted: it is noticed now, or at the end of a pass.
    fn after_event(&mut self, out: &mut EffectsOf<Self>) {
        if !self.faults.has(Fault::WholePass) {
            self.end_of_pass(out);
        }
    }

    /// 2(n−1)(CMAX+1), with one message on a link at the start.
    fn modulus(&self) -> u32 {
        4 * (u32::from(self.sites).max(2) - 1)
    }

    fn ctrl(&self, pt: u32, ppr: u32) -> Message {
        Message::Ctrl { c: self.my_c, r: self.reset, pt, ppr }
    }

    fn restart_timer(&self, out: &mut EffectsOf<Self>) {
        // Many times what a tour takes on links of a millisecond.
        let tour = Duration::from_millis(100) + Duration::from_millis(20) * self.sites.into();
        out.arm(TimeOut, tour, tour * 2);
    }

    fn send(&self, to: usize, message: Message, out: &mut EffectsOf<Self>) {
        out.send(self.channels[to], None, message);
    }

    fn send_next(&self, q: usize, message: Message, out: &mut EffectsOf<Self>) {
        self.send((q + 1) % self.channels.len(), message, out);
    }

    fn pass_res(&mut self, q: usize, out: &mut EffectsOf<Self>) {
        if self.root && q + 1 == self.channels.len() {
            self.s_token = (self.s_token + 1).min(self.units + 1);
        }
        self.send_next(q, Message::ResT, out);
    }

    fn let_go(&mut self, out: &mut EffectsOf<Self>) {
        for q in core::mem::take(&mut self.r_set) {
            self.pass_res(q, out);
        }
    }

    fn count(&self, q: usize, pt: &mut u32, ppr: &mut u32) {
        let here = self.r_set.iter().filter(|&&channel| channel == q).count();
        let here = u32::try_from(here).unwrap_or(u32::MAX);
        *pt = pt.saturating_add(here).min(self.units + 1);
        if self.prio == Some(q) {
            *ppr = ppr.saturating_add(1).min(2);
        }
    }

    fn at_root(&mut self, q: usize, c: u32, mut pt: u32, mut ppr: u32, out: &mut EffectsOf<Self>) {
        if q != self.succ || c != self.my_c {
            return;
        }
        if !self.faults.has(Fault::CountsLate) {
            self.count(q, &mut pt, &mut ppr);
        }
        self.succ = (self.succ + 1) % self.channels.len();
        if self.succ == 0 {
            self.my_c = (self.my_c + 1) % self.modulus();
            self.decide(pt, ppr, out);
            (pt, ppr) = (0, 0);
        }
        if self.faults.has(Fault::CountsLate) {
            self.count(q, &mut pt, &mut ppr);
        }
        self.send(self.succ, self.ctrl(pt, ppr), out);
        self.restart_timer(out);
    }

    fn decide(&mut self, pt: u32, ppr: u32, out: &mut EffectsOf<Self>) {
        let found = pt.saturating_add(self.s_token);
        let found_prio = ppr.saturating_add(self.s_prio);
        self.reset = found > self.units || found_prio > 1 || self.s_push > 1;
        self.sure = (found, found_prio, self.s_push) == (self.units, 1, 1);
        if self.reset {
            self.r_set.clear();
            self.prio = None;
        } else {
            if found_prio < 1 {
                self.send(0, Message::PrioT, out);
            }
            for _ in found..self.units {
                self.send(0, Message::ResT, out);
            }
            if self.s_push < 1 {
                self.send(0, Message::PushT, out);
            }
        }
        (self.s_token, self.s_push, self.s_prio) = (0, 0, 0);
    }

    fn at_other(
        &mut self,
        q: usize,
        c: u32,
        r: bool,
        mut pt: u32,
        mut ppr: u32,
        out: &mut EffectsOf<Self>,
    ) {
        let mut ok = false;
        if q == self.succ && c == self.my_c && self.succ != 0 {
            self.succ = (self.succ + 1) % self.channels.len();
            ok = true;
            if r {
                self.r_set.clear();
                self.prio = None;
            }
        }
        if q == 0 {
            ok = true;
            if c != self.my_c {
                self.succ = 1.min(self.channels.len() - 1);
                if r {
                    self.r_set.clear();
                    self.prio = None;
                }
            }
            self.my_c = c;
        }
        if ok {
            self.count(q, &mut pt, &mut ppr);
            self.send(self.succ, Message::Ctrl { c: self.my_c, r, pt, ppr }, out);
        }
    }

    /// Lines 78 to 98.
    fn end_of_pass(&mut self, out: &mut EffectsOf<Self>) {
        let enough = self.r_set.len() as u64 >= u64::from(self.need);
        if let State::Req(claim) = self.state
            && enough
        {
            self.state = State::In(claim);
            out.grant(claim);
        }
        let lacks = matches!(self.state, State::Req(_)) && !enough;
        if let Some(q) = self.prio
            && !lacks
        {
            self.prio = None;
            if self.root && q + 1 == self.channels.len() {
                self.s_prio = (self.s_prio + 1).min(2);
            }
            self.send_next(q, Message::PrioT, out);
        }
    }
}
