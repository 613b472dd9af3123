//! Raynal 1992, §3.4, as far as it is written down.
//!
//! # Idea
//!
//! The published text, transcribed with its names, for the checker to refute. It sends requests to
//! a quorum and waits for its permissions; nobody ever calls one back, so that three sites, each
//! with one permission of the two that it needs, wait for each other. The paper leaves call-back
//! to Maekawa. With it, the text's rule that every permission that returns overwrites the arbiter's
//! count takes units twice. Each fault is a [`Fault`] that can be left out, so that each can be
//! shown alone.
//!
//! # Source
//!
//! Raynal 1992 (RR-1604), §3.4 and §3.5.1.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Requete` | claimant | arbiter | may I? |
//! | `Permission` | arbiter | claimant | you may; np were taken |
//! | `Inquire` | arbiter | claimant | an older request came: are you inside? |
//! | `Yield` | claimant | arbiter | I am not, have it back |
//! | `Retour` | claimant | arbiter | I am done; np were taken |
//! | `Incr` | whoever adds | everybody | one more |
//! | `Raz` | who is inside | everybody | count x less |
//! | `Acquit` | everybody | who is inside | done |
//!
//! # Cost
//!
//! P: 3(|Q|−1) messages. V: n−1.
//!
//! # Assumes
//!
//! First-in first-out links; one claim per site at a time. And still it stands still.
//!
//! # Why it is safe
//!
//! It is not: see [`sem_quorum`](super::sem_quorum) for the repair.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::quorum::{price, request_sets};
use super::sem_quorum::one_turn;
use crate::parts::semaphores::{Out, Semaphore, at_least_one, check_added, missing, moved, room};
use crate::parts::{Semaphores, SiteSet};
use crate::protocol::{Blocker, Head, PeerFault, Profile, Rejection, Service};
use crate::readings::{Fault, Faults};
use crate::types::{Clock, Cluster, PoolId, SiteId, Stamp, Units};

/// What is written: no call-back.
const PRINTED: &[Fault] = &[Fault::NoCallBack, Fault::OneVariable];

/// The protocol.
pub type SemQuorumAsPrinted = Semaphores<Text>;

/// The text's variables, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Text {
    i: SiteId,
    n: u16,
    pool: PoolId,
    s0: i64,
    /// Whom it asks.
    q: Vec<SiteId>,
    nv: i64,
    /// The arbiter's count, and the claimant's, which begins again with each claim. With
    /// `OneVariable` the first is both.
    np: i64,
    collected: i64,
    claim: Option<(Stamp, Units)>,
    permissions: SiteSet,
    inside: bool,
    /// Acknowledgements of a reset that have not come; then what was taken is said.
    acks: SiteSet,
    taken: bool,
    /// Resets seen; what is missing in `MixedScales`.
    resets: i64,
    /// The arbiter: whom it has permitted, whether it has inquired, and who waits.
    granted: Option<(Stamp, bool)>,
    waiting: BTreeSet<Stamp>,
    faults: Faults,
    /// The x of raz(x), where it is used.
    raz: Option<i64>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// May I?
    Requete {
        /// The request.
        ts: Stamp,
    },
    /// You may.
    Permission {
        /// The request.
        ts: Stamp,
        /// The arbiter's count, and the resets that it has seen.
        np: (i64, i64),
    },
    /// Are you inside?
    Inquire {
        /// The request.
        ts: Stamp,
    },
    /// I am not.
    Yield {
        /// The request.
        ts: Stamp,
        /// The claimant's count.
        np: (i64, i64),
    },
    /// I am done.
    Retour {
        /// The request.
        ts: Stamp,
        /// The claimant's count.
        np: (i64, i64),
    },
    /// More.
    Incr {
        /// How much.
        m: Units,
    },
    /// Count less.
    Raz,
    /// Done.
    Acquit,
}

impl Semaphore for Text {
    const NAME: &'static str = "sem-quorum-as-printed";
    const PROFILE: Profile = Profile {
        source: "Raynal 1992, §3.4, as printed",
        summary: "the published text: deadlocks",
        serves: Service::Semaphore,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: true,
        price,
        survives: &["pause", "partition"],
    };

    type Message = Message;

    const FAULTS: &'static [Fault] = &[
        Fault::NoCallBack,
        Fault::YieldWrites,
        Fault::OneVariable,
        Fault::MixedScales,
        Fault::OneValue,
    ];

    fn new(me: SiteId, cluster: &Cluster, pool: PoolId) -> Self {
        let faults = Faults::new(cluster.reading.as_ref(), PRINTED);
        Self {
            i: me,
            n: cluster.sites,
            pool,
            s0: i64::from(cluster.pools[pool.index()].0),
            q: request_sets(me, &one_turn(cluster, pool)).swap_remove(0).arbiters,
            nv: if faults.has(Fault::OneValue) { cluster.pools[pool.index()].0.into() } else { 0 },
            np: 0,
            collected: 0,
            claim: None,
            permissions: SiteSet::new(),
            inside: false,
            acks: SiteSet::new(),
            taken: false,
            resets: 0,
            granted: None,
            waiting: BTreeSet::new(),
            faults,
            raz: cluster.reset.map(i64::from),
        }
    }

    fn start_at(&mut self, value: i64) {
        self.s0 = value;
    }

    fn claim(&mut self, claim: Stamp, k: Units, out: &mut Out<'_, Message>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.claim = Some((claim, k));
        self.collected = if self.faults.has(Fault::OneValue) { i64::MAX } else { 0 };
        self.tell_quorum(claim, &Message::Requete { ts: claim }, out);
        self.go_on(out);
    }

    fn withdraw(&mut self, _claim: Stamp, _out: &mut Out<'_, Message>) {
        // The text knows no withdrawal: the claim goes on.
    }

    fn add(&mut self, m: Units, out: &mut Out<'_, Message>) {
        self.nv += i64::from(m.0);
        for j in self.others() {
            out.send(j, None, Message::Incr { m });
        }
        self.go_on(out);
    }

    fn receive(
        &mut self,
        j: SiteId,
        message: Message,
        out: &mut Out<'_, Message>,
    ) -> Result<(), PeerFault> {
        self.check(j, &message)?;
        self.read(j, &message, out);
        self.go_on(out);
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some((_, k)) = self.claim.filter(|own| own.0 == claim) else { return Vec::new() };
        let units = at_least_one(missing(k, self.value()));
        let blocker = |site| Blocker { site, pool: self.pool, units, claim: None };
        if self.inside {
            return vec![blocker(self.i)];
        }
        let silent = self.q.iter().copied().filter(|&j| !self.permissions.contains(j));
        silent.map(blocker).collect()
    }

    fn head(&self) -> Option<Head> {
        let (claim, k) = self.claim.filter(|_| self.inside && !self.taken)?;
        let taken =
            (self.raz.is_none() && !self.faults.has(Fault::OneValue)).then_some(self.collected);
        Some(Head { claim, missing: missing(k, self.value()), taken })
    }

    fn room(&self) -> u64 {
        room(self.nv)
    }

    fn is_at_rest(&self) -> bool {
        let idle = self.claim.is_none() && !self.taken;
        idle && self.granted.is_none() && self.waiting.is_empty()
    }
}

impl Text {
    fn others(&self) -> impl Iterator<Item = SiteId> + use<> {
        let i = self.i;
        (0..self.n).map(SiteId).filter(move |&j| j != i)
    }

    fn value(&self) -> i64 {
        if self.faults.has(Fault::OneValue) {
            self.nv.min(self.collected)
        } else {
            self.s0 + self.nv - self.collected
        }
    }

    /// The arbiter here reads at once what it is told.
    fn tell_quorum(&mut self, claim: Stamp, message: &Message, out: &mut Out<'_, Message>) {
        for j in self.q.clone() {
            if j != self.i {
                out.send(j, claim, message.clone());
            }
        }
        if self.q.contains(&self.i) {
            self.read(self.i, message, out);
        }
    }

    fn tell(
        &self,
        to: SiteId,
        claim: Stamp,
        message: Message,
        here: &mut VecDeque<Message>,
        out: &mut Out<'_, Message>,
    ) {
        if to == self.i {
            here.push_back(message);
        } else {
            out.send(to, claim, message);
        }
    }

    fn read(&mut self, from: SiteId, message: &Message, out: &mut Out<'_, Message>) {
        let mut here = VecDeque::new();
        self.read_one(from, message, &mut here, out);
        while let Some(message) = here.pop_front() {
            self.read_one(self.i, &message, &mut here, out);
        }
    }

    fn read_one(
        &mut self,
        j: SiteId,
        message: &Message,
        here: &mut VecDeque<Message>,
        out: &mut Out<'_, Message>,
    ) {
        match *message {
            Message::Requete { ts } => {
                self.waiting.insert(ts);
                self.permit(here, out);
            }
            Message::Permission { ts, np } => {
                // One that was for an earlier request cannot come: it is returned before.
                if self.claim.is_some_and(|own| own.0 == ts) {
                    self.permissions.insert(j);
                    let np = self.scaled(np);
                    let last = self.faults.has(Fault::OneValue);
                    self.collected =
                        if last { self.collected.min(np) } else { self.collected.max(np) };
                }
            }
            Message::Inquire { ts } => {
                let mine = self.claim.is_some_and(|own| own.0 == ts) && !self.inside;
                if mine && self.permissions.remove(j) {
                    // What was collected goes into np only when all permissions are there.
                    let np = (self.np, self.resets);
                    self.tell(j, ts, Message::Yield { ts, np }, here, out);
                }
            }
            Message::Yield { ts, np } => {
                if self.granted.is_some_and(|granted| granted.0 == ts) {
                    if self.faults.has(Fault::YieldWrites) {
                        self.np = self.scaled(np);
                    }
                    self.granted = None;
                    self.waiting.insert(ts);
                    self.permit(here, out);
                }
            }
            Message::Retour { ts, np } => {
                if self.granted.is_some_and(|granted| granted.0 == ts) {
                    self.np = self.scaled(np);
                    if self.faults.has(Fault::OneVariable)
                        && self.inside
                        && !self.q.contains(&self.i)
                    {
                        self.collected = self.np;
                    }
                    if self.faults.has(Fault::OneValue) {
                        self.nv = self.np;
                    }
                    self.granted = None;
                    self.permit(here, out);
                }
            }
            Message::Incr { m } => self.nv += i64::from(m.0),
            Message::Raz => {
                let x = self.raz.unwrap_or(0);
                self.nv -= x;
                self.np -= x;
                self.resets += 1;
                if !self.faults.has(Fault::MixedScales) && self.claim.is_some() {
                    self.collected -= x;
                }
                self.tell(j, Stamp { time: 0, site: j }, Message::Acquit, here, out);
            }
            Message::Acquit => {
                self.acks.remove(j);
            }
        }
    }

    /// A count on its way may be from before a reset.
    fn scaled(&self, (np, resets): (i64, i64)) -> i64 {
        let behind = if self.faults.has(Fault::MixedScales) { 0 } else { self.resets - resets };
        np - behind * self.raz.unwrap_or(0)
    }

    fn permit(&mut self, here: &mut VecDeque<Message>, out: &mut Out<'_, Message>) {
        let Some(&first) = self.waiting.first() else { return };
        match &mut self.granted {
            None => {
                self.waiting.pop_first();
                self.granted = Some((first, false));
                let count = if self.faults.has(Fault::OneValue) { self.nv } else { self.np };
                let np = (count, self.resets);
                self.tell(first.site, first, Message::Permission { ts: first, np }, here, out);
            }
            Some((granted, inquired)) => {
                if !self.faults.has(Fault::NoCallBack) && first < *granted && !*inquired {
                    *inquired = true;
                    let ts = *granted;
                    self.tell(ts.site, ts, Message::Inquire { ts }, here, out);
                }
            }
        }
    }

    /// The procedure P from where it waits.
    fn go_on(&mut self, out: &mut Out<'_, Message>) {
        loop {
            let Some((claim, k)) = self.claim else { return };
            if !self.inside {
                if self.q.iter().any(|&j| !self.permissions.contains(j)) {
                    return;
                }
                self.inside = true;
            }
            if !self.taken {
                if missing(k, self.value()) > 0 {
                    return;
                }
                if self.faults.has(Fault::OneValue) {
                    self.collected = self.value() - i64::from(k.0);
                } else {
                    self.collected += i64::from(k.0);
                }
                self.taken = true;
                out.grant(claim);
                if let Some(x) = self.raz.filter(|&x| self.collected >= x) {
                    self.collected -= x;
                    self.nv -= x;
                    self.np -= x;
                    self.resets += 1;
                    self.acks = self.others().collect();
                    for j in self.others() {
                        out.send(j, claim, Message::Raz);
                    }
                }
            }
            if !self.acks.is_empty() {
                return;
            }
            self.inside = false;
            self.taken = false;
            self.claim = None;
            self.permissions = SiteSet::new();
            let np = (self.collected, self.resets);
            self.collected = 0;
            self.tell_quorum(claim, &Message::Retour { ts: claim, np }, out);
        }
    }

    /// Refuses what makes no sense, before anything is changed.
    fn check(&self, j: SiteId, message: &Message) -> Result<(), PeerFault> {
        let sane = |(np, resets): (i64, i64)| {
            let small = |x: i64| x.unsigned_abs() < 1 << 40;
            if small(np) && small(resets) {
                return Ok(());
            }
            Err(PeerFault::Unexpected("a count that nobody can have"))
        };
        let speaks = |ts: Stamp, site: SiteId| {
            if ts.site == site { Ok(()) } else { Err(PeerFault::ForeignClaim(ts)) }
        };
        match *message {
            Message::Requete { ts } if ts.time >= Clock::LIMIT => Err(PeerFault::ClockTooFar),
            Message::Requete { ts } => speaks(ts, j),
            Message::Permission { ts, np } => {
                speaks(ts, self.i)?;
                sane(np)
            }
            Message::Inquire { ts } => speaks(ts, self.i),
            Message::Yield { ts, np } | Message::Retour { ts, np } => {
                speaks(ts, j)?;
                sane(np)
            }
            Message::Incr { m } => {
                check_added(m)?;
                moved(self.nv, m.0.into()).map(|_| ())
            }
            Message::Raz if self.raz.is_none() => Err(PeerFault::Unexpected("no resets here")),
            Message::Raz => moved(self.nv, -1).map(|_| ()),
            Message::Acquit if !self.acks.contains(j) => {
                Err(PeerFault::Unexpected("an acknowledgement of nothing"))
            }
            Message::Acquit => Ok(()),
        }
    }
}
