//! Raynal 1992, §3.2, to the letter, on ways for the token that stay the same.
//!
//! # Idea
//!
//! The paper asks for any mutual exclusion with a token, and puts np into the token: acquire it,
//! wait until s0 + nv − np ≥ k, add k to np, let the token go. It names two kinds of ways. On a
//! *tree* that never changes (Raymond 1989) every site knows the neighbour in whose direction the
//! token is, asks it once, and queues what its neighbours ask. On a *ring* (Le Lann 1977) the token
//! goes round forever and no site asks. [`sem_token`](super::sem_token) has the third kind, a tree
//! that changes with every request (Naimi and Tréhel 1987).
//!
//! Two readings of raz(x), §3.5.1, are wrong: a token that moves on before all sites have
//! acknowledged, and counters that stop at zero. Each is a [`Fault`].
//!
//! # Source
//!
//! Raynal 1992 (RR-1604), §3.2 and §3.5.1; Raymond 1989; Le Lann 1977.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Requete` | site | neighbour towards the token | a site on my side wants the token |
//! | `Jeton` | holder | neighbour, or the next on the ring | the token, with np |
//! | `Incr` | site that adds | every other site | m more |
//! | `Raz` | holder | every other site | count x less |
//! | `Acquit` | every other site | holder | done |
//!
//! # Cost
//!
//! P: at most twice the diameter of the tree; on a ring up to n, and as many when no site claims.
//! V: n−1.
//!
//! # Assumes
//!
//! Reliable links between sites that do not crash; one claim per site at a time.
//!
//! # Why it is safe
//!
//! There is one token, and np changes only at its holder. The site below which the token is has the
//! token or has asked for it, by induction from the leaves of the tree towards the token.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::parts::semaphores::{Out, Semaphore, at_least_one, check_added, missing, moved, room};
use crate::parts::{Semaphores, SiteSet};
use crate::protocol::{Blocker, Head, PeerFault, Price, Profile, Rejection, Service};
use crate::readings::{Fault, Faults};
use crate::types::{Cluster, PoolId, SiteId, Stamp, Units};

/// The protocol.
pub type SemTokenAsPrinted = Semaphores<FixedWays>;

/// One semaphore at one site, with the paper's names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedWays {
    i: SiteId,
    n: u16,
    pool: PoolId,
    s0: i64,
    nv: i64,
    claim: Option<(Stamp, Units)>,
    /// The token, if it is here.
    jeton: Option<Jeton>,
    /// On a tree: the neighbour in whose direction the token is, while it is not here.
    holder: SiteId,
    /// On a tree: the sites that want the token, this one included, in the order of asking.
    queue: VecDeque<SiteId>,
    asked: bool,
    faults: Faults,
    raz: Option<i64>,
}

/// The token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Jeton {
    np: i64,
    /// The claim of this site is inside.
    inside: bool,
    /// Sites that have not acknowledged a reset.
    missing: SiteSet,
}

/// Messages between sites.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A site on my side wants the token.
    Requete,
    /// The token.
    Jeton {
        /// Units taken.
        np: i64,
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

impl Semaphore for FixedWays {
    const NAME: &'static str = "sem-token-as-printed";
    const PROFILE: Profile = Profile {
        source: "Raynal 1992, §3.2; Raymond 1989; Le Lann 1977",
        summary: "a semaphore: the token goes along a fixed tree, or round a ring",
        serves: Service::Semaphore,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 0, max: Some(2 * sites) },
        survives: &["pause", "partition"],
    };

    type Message = Message;

    /// With [`Fault::Ring`] the token never rests.
    const PERPETUAL: bool = true;
    const FAULTS: &'static [Fault] = &[Fault::Ring, Fault::Unacknowledged, Fault::Unsigned];

    fn new(me: SiteId, cluster: &Cluster, pool: PoolId) -> Self {
        let jeton = Jeton { np: 0, inside: false, missing: SiteSet::new() };
        Self {
            i: me,
            n: cluster.sites,
            pool,
            s0: i64::from(cluster.pools[pool.index()].0),
            nv: 0,
            claim: None,
            jeton: (me.0 == 0).then_some(jeton),
            // The tree is a heap: site 0 is its root, where the token begins.
            holder: SiteId(me.0.saturating_sub(1) / 2),
            queue: VecDeque::new(),
            asked: false,
            faults: Faults::new(cluster.reading.as_ref(), &[]),
            raz: cluster.reset.map(i64::from),
        }
    }

    fn start_at(&mut self, value: i64) {
        self.s0 = value;
    }

    fn wake(&mut self, out: &mut Out<'_, Message>) {
        self.go_on(out);
    }

    fn claim(&mut self, claim: Stamp, k: Units, out: &mut Out<'_, Message>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.claim = Some((claim, k));
        if !self.is_ring() {
            self.queue.push_back(self.i);
        }
        self.go_on(out);
    }

    fn withdraw(&mut self, _claim: Stamp, _out: &mut Out<'_, Message>) {
        // The paper knows no withdrawal: the claim goes on.
    }

    fn add(&mut self, m: Units, out: &mut Out<'_, Message>) {
        self.nv += i64::from(m.0);
        self.tell_others(&Message::Incr { m }, out);
        self.go_on(out);
    }

    fn receive(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut Out<'_, Message>,
    ) -> Result<(), PeerFault> {
        match message {
            Message::Requete => {
                if self.is_ring() || !self.is_neighbour(from) || self.queue.contains(&from) {
                    return Err(PeerFault::Unexpected("a request that was not due"));
                }
                self.queue.push_back(from);
            }
            Message::Jeton { np } => {
                if self.jeton.is_some() || np.unsigned_abs() >= 1 << 40 {
                    return Err(PeerFault::Unexpected("a second token"));
                }
                self.jeton = Some(Jeton { np, inside: false, missing: SiteSet::new() });
                self.asked = false;
            }
            Message::Incr { m } => {
                check_added(m)?;
                self.nv = moved(self.nv, m.0.into())?;
            }
            Message::Raz => {
                let Some(x) = self.raz else {
                    return Err(PeerFault::Unexpected("no resets here"));
                };
                self.lower(x);
                if !self.faults.has(Fault::Unacknowledged) {
                    out.send(from, None, Message::Acquit);
                }
            }
            Message::Acquit => {
                let due = self.jeton.as_mut().is_some_and(|jeton| jeton.missing.remove(from));
                if !due {
                    return Err(PeerFault::Unexpected("an acknowledgement of nothing"));
                }
            }
        }
        self.go_on(out);
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some((_, k)) = self.claim.filter(|own| own.0 == claim) else { return Vec::new() };
        let here = self.head().is_some();
        let units = if here { at_least_one(missing(k, self.value())) } else { k };
        let site = if self.jeton.is_some() { self.i } else { self.holder };
        vec![Blocker { site, pool: self.pool, units, claim: None }]
    }

    fn head(&self) -> Option<Head> {
        let jeton = self.jeton.as_ref().filter(|jeton| jeton.inside)?;
        let (claim, k) = self.claim?;
        let taken = self.raz.is_none().then_some(jeton.np);
        Some(Head { claim, missing: missing(k, self.value()), taken })
    }

    fn room(&self) -> u64 {
        room(self.nv)
    }

    fn is_at_rest(&self) -> bool {
        let resets = self.jeton.as_ref().is_some_and(|jeton| !jeton.missing.is_empty());
        self.claim.is_none() && self.queue.is_empty() && !resets
    }
}

impl FixedWays {
    const fn is_ring(&self) -> bool {
        self.faults.has(Fault::Ring)
    }

    fn is_neighbour(&self, site: SiteId) -> bool {
        let parent = |site: SiteId| (site.0 > 0).then(|| SiteId((site.0 - 1) / 2));
        parent(site) == Some(self.i) || parent(self.i) == Some(site)
    }

    fn value(&self) -> i64 {
        self.s0 + self.nv - self.jeton.as_ref().map_or(0, |jeton| jeton.np)
    }

    fn others(&self) -> impl Iterator<Item = SiteId> + use<> {
        let i = self.i;
        (0..self.n).map(SiteId).filter(move |&j| j != i)
    }

    fn tell_others(&self, message: &Message, out: &mut Out<'_, Message>) {
        for j in self.others() {
            out.send(j, None, message.clone());
        }
    }

    /// A reset lowers nv by x.
    fn lower(&mut self, x: i64) {
        self.nv -= x;
        if self.faults.has(Fault::Unsigned) {
            self.nv = self.nv.max(0);
        }
    }

    fn go_on(&mut self, out: &mut Out<'_, Message>) {
        while let Some(jeton) = self.jeton.as_mut().filter(|jeton| jeton.missing.is_empty()) {
            if jeton.inside {
                let Some(Head { claim, missing: 0, .. }) = self.head() else { return };
                self.take(claim, out);
            } else if !self.enter() {
                self.pass_on(out);
                break;
            }
        }
        if !self.is_ring() && self.jeton.is_none() && !self.asked && !self.queue.is_empty() {
            self.asked = true;
            let serves = self.claim.map(|own| own.0);
            out.send(self.holder, serves, Message::Requete);
        }
    }

    /// The claim of this site goes inside, if it is its turn.
    fn enter(&mut self) -> bool {
        let turn = if self.is_ring() {
            self.claim.is_some()
        } else {
            self.queue.pop_front_if(|next| *next == self.i).is_some()
        };
        if let Some(jeton) = self.jeton.as_mut() {
            jeton.inside = turn;
        }
        turn
    }

    /// The token goes to the next on the ring, or to the neighbour that asked first.
    fn pass_on(&mut self, out: &mut Out<'_, Message>) {
        let next = if self.is_ring() {
            Some(SiteId((self.i.0 + 1) % self.n)).filter(|&next| next != self.i)
        } else {
            self.queue.pop_front()
        };
        if let (Some(to), Some(Jeton { np, .. })) = (next, self.jeton.take_if(|_| next.is_some())) {
            self.holder = to;
            out.send(to, None, Message::Jeton { np });
        }
    }

    /// The claim has its units; the token stays for a reset.
    fn take(&mut self, claim: Stamp, out: &mut Out<'_, Message>) {
        let k = self.claim.take().map_or(0, |own| i64::from(own.1.0));
        let others: SiteSet = self.others().collect();
        let jeton = self.jeton.as_mut().expect("the claim that is inside has it");
        jeton.np += k;
        jeton.inside = false;
        out.grant(claim);
        if let Some(x) = self.raz.filter(|&x| jeton.np >= x) {
            jeton.np -= x;
            if !self.faults.has(Fault::Unacknowledged) {
                jeton.missing = others;
            }
            self.lower(x);
            self.tell_others(&Message::Raz, out);
        }
    }
}
