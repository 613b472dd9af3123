//! Raynal 1990 §3, as printed.
//!
//! # Idea
//!
//! The published listing, with its own variables: each site counts in `used` what the others use at
//! most, and enters when that leaves enough. It is right for two sites and more. A site that is
//! alone is never granted, since the test runs only when an answer arrives.
//!
//! | the listing | [`permission`](super::permission) |
//! | --- | --- |
//! | `used_i[j]` | the claims of site j in the ledger of site i, listed instead of counted |
//! | `delayed_i[j]` | the claims that counted one of ours and get a `Free` when it ends |
//! | `prio_i` | the order of the line of a pool: claims by stamp |
//! | `maxh_i`, `h_i` | the site's clock, merged with every message |
//! | `scdem_i`, `ok_i` | a claim waits, or is held |
//! | statement XX | an answer counts a claim once |
//!
//! With several pools it is §6: each type of resource has its own `used`, `delayed`, `scdem` and
//! `ok`, and a claim is granted when all its types are. The paper leaves open whether a type has a
//! clock of its own. If it has ([`Fault::ClockPerType`]), two claims for two types are ordered one
//! way by the first type and the other way by the second, and wait for each other.
//!
//! # Source
//!
//! Raynal 1990, §3 and §6.
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Req` | claimant | every other site | what do you use? |
//! | `Free` | asked site | claimant | this number of units is not used here, or not any more |
//!
//! # Cost
//!
//! 2(n−1) to 3(n−1).
//!
//! # Assumes
//!
//! More than one site, one claim at a time.
//!
//! # Why it is safe
//!
//! `used_i[j]` is never less than what site j uses: it grows by M with every request, and an answer
//! lowers it by what the site does not use. See [`permission`](super::permission) for liveness.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::parts::SiteSet;
use crate::protocol::{
    Blocker, EffectsOf, PeerFault, Price, Profile, Protocol, Rejection, Service,
};
use crate::readings::{Fault, Faults};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

/// A section of the paper.
pub trait Section: Clone + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str;
    /// Where it is printed.
    const SOURCE: &'static str;
    /// One line for people.
    const SUMMARY: &'static str;
    /// Whether a site that is known to be using is not asked: §5.1.
    const LAZY: bool;
    /// The faults that it has as printed.
    const PRINTED: &'static [Fault];
    /// The faults that it may be read with.
    const FAULTS: &'static [Fault];
}

/// §3.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Basic;

impl Section for Basic {
    const NAME: &'static str = "permission-as-printed";
    const SOURCE: &'static str = "Raynal 1990, §3 and §6, as printed";
    const SUMMARY: &'static str = "the published listing: never grants to a site that is alone";
    const LAZY: bool = false;
    const PRINTED: &'static [Fault] = &[];
    const FAULTS: &'static [Fault] = &[Fault::ClockPerType, Fault::TypeByType];
}

/// The protocol.
pub type PermissionAsPrinted = Listing<Basic>;

/// The listing's local context, with its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listing<S> {
    i: SiteId,
    n: u16,
    /// By type of resource.
    types: Vec<Type>,
    /// One clock, or one for each type.
    clocks: Vec<Lamport>,
    /// The claim that `scdem` or `ok` is about.
    claim: Option<Stamp>,
    granted: bool,
    faults: Faults,
    section: PhantomData<S>,
}

/// The paper's h and maxh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lamport {
    h: u64,
    maxh: u64,
}

/// The variables of a site about a type of resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Type {
    m: u32,
    k: u32,
    scdem: bool,
    ok: bool,
    used: Vec<u32>,
    /// §5.1: the sites that were asked for this claim.
    asked: SiteSet,
    delayed: SiteSet,
    /// A repair of §5.1: late requests that are answered at the release.
    late: SiteSet,
}

/// The messages of the listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A request with the listing's own clock.
    Req {
        /// The type of resource.
        r: PoolId,
        /// The clock.
        h: u64,
    },
    /// So many units are free.
    Free {
        /// The type of resource.
        r: PoolId,
        /// How many.
        y: u32,
    },
}

impl<S: Section> Protocol for Listing<S> {
    const NAME: &'static str = S::NAME;
    const PROFILE: Profile = Profile {
        source: S::SOURCE,
        summary: S::SUMMARY,
        serves: Service::Pool,
        as_printed: true,
        full_service: false,
        gathers: false,
        arbitrated: false,
        price: if S::LAZY {
            |sites, _| Price { min: 0, max: Some(3 * (sites - 1)) }
        } else {
            |sites, _| Price { min: 2 * (sites - 1), max: Some(3 * (sites - 1)) }
        },
        survives: &["pause", "partition"],
    };

    type Message = Message;
    type Timer = ();

    const FAULTS: &'static [Fault] = S::FAULTS;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let faults = Faults::new(cluster.reading.as_ref(), S::PRINTED);
        let known = |units: &Units| Type {
            m: units.0,
            k: 0,
            scdem: false,
            ok: false,
            used: vec![0; usize::from(cluster.sites)],
            asked: SiteSet::new(),
            delayed: SiteSet::new(),
            late: SiteSet::new(),
        };
        let clocks = if faults.has(Fault::ClockPerType) { cluster.pools.len() } else { 1 };
        Self {
            i: me,
            n: cluster.sites,
            types: cluster.pools.iter().map(known).collect(),
            clocks: vec![Lamport::default(); clocks],
            claim: None,
            granted: false,
            faults,
            section: PhantomData,
        }
    }

    fn me(&self) -> SiteId {
        self.i
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.types.get(pool.index()).map(|one| Units(one.m))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        if self.claim.is_some() {
            return out.reject(claim, Rejection::OneAtATime);
        }
        self.claim = Some(claim);
        for clock in &mut self.clocks {
            clock.h = clock.maxh + 1;
        }
        for (r, units) in demand.parts() {
            let one = &mut self.types[r.index()];
            (one.k, one.scdem) = (units.0, true);
            for j in self.others() {
                let one = &mut self.types[r.index()];
                if !S::LAZY || one.used[j.index()] == 0 {
                    self.ask(r, j, out);
                } else {
                    one.asked.remove(j);
                }
            }
        }
        if S::LAZY {
            self.test(out);
        }
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        // The listing knows no partial release: the claim is over when all is given back.
        let mut types = (0..).map(PoolId).zip(&self.types);
        let whole = types.all(|(r, one)| part.is_none_or(|part| part.units(r).0 == one.k));
        if self.claim != Some(claim) || !self.granted || !whole {
            return;
        }
        self.claim = None;
        self.granted = false;
        for (r, one) in (0..).map(PoolId).zip(&mut self.types) {
            one.ok = false;
            let k = core::mem::take(&mut one.k);
            for j in core::mem::take(&mut one.delayed).iter() {
                out.send(j, None, Message::Free { r, y: k });
            }
            for j in core::mem::take(&mut one.late).iter() {
                out.send(j, None, Message::Free { r, y: one.m });
            }
        }
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
        if j.0 >= self.n || j == self.i {
            return Err(PeerFault::UnknownSite(j));
        }
        let (Message::Req { r, .. } | Message::Free { r, .. }) = message;
        if r.index() >= self.types.len() {
            return Err(PeerFault::UnknownPool(r));
        }
        match message {
            Message::Req { h, .. } => {
                if h >= crate::Clock::LIMIT {
                    return Err(PeerFault::ClockTooFar);
                }
                self.on_req(r, h, j, out);
            }
            Message::Free { y, .. } => {
                let one = &mut self.types[r.index()];
                let used = one.used[j.index()].checked_sub(y);
                one.used[j.index()] = used.ok_or(PeerFault::Unexpected("more freed than used"))?;
                let known = one.used[j.index()] == 0 && !one.asked.contains(j);
                if S::LAZY && one.scdem && known {
                    self.ask(r, j, out);
                }
                self.test(out);
            }
        }
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        if self.claim != Some(claim) {
            return Vec::new();
        }
        let types = (0..).map(PoolId).zip(&self.types).filter(|(_, one)| one.scdem);
        let using = types.flat_map(|(pool, one)| {
            let sites = self.others().map(move |site| (site, Units(one.used[site.index()])));
            let using = sites.filter(|(_, units)| !units.is_zero());
            using.map(move |(site, units)| Blocker { site, pool, units, claim: None })
        });
        using.collect()
    }

    fn is_at_rest(&self) -> bool {
        let idle = |one: &Type| {
            one.delayed.is_empty() && one.late.is_empty() && one.used.iter().all(|&used| used == 0)
        };
        self.claim.is_none() && self.types.iter().all(idle)
    }
}

impl<S: Section> Listing<S> {
    fn others(&self) -> impl Iterator<Item = SiteId> + use<S> {
        let me = self.i;
        (0..self.n).map(SiteId).filter(move |&j| j != me)
    }

    /// The clock of a type.
    fn clock(&mut self, r: PoolId) -> &mut Lamport {
        let i = r.index().min(self.clocks.len() - 1);
        &mut self.clocks[i]
    }

    fn ask(&mut self, r: PoolId, j: SiteId, out: &mut EffectsOf<Self>) {
        let (claim, h) = (self.claim, self.clock(r).h);
        let one = &mut self.types[r.index()];
        one.used[j.index()] += one.m;
        if S::LAZY {
            one.asked.insert(j);
        }
        out.send(j, claim, Message::Req { r, h });
    }

    fn on_req(&mut self, r: PoolId, h: u64, j: SiteId, out: &mut EffectsOf<Self>) {
        let (i, clock) = (self.i, self.clock(r));
        clock.maxh = clock.maxh.max(h);
        let before = (clock.h, i) < (h, j);
        let late = !self.faults.has(Fault::LateFree) && S::LAZY;
        let user_first = self.faults.has(Fault::UserFirst);
        let one = &mut self.types[r.index()];
        let prio = (one.scdem || one.ok) && before || one.ok && user_first;
        if prio && (S::LAZY || !one.delayed.contains(j)) {
            if one.k != one.m {
                out.send(j, None, Message::Free { r, y: one.m - one.k });
            }
            one.delayed.insert(j);
        } else if one.ok && !prio && late {
            // The user with the larger stamp does not know what the late one counts.
            one.late.insert(j);
        } else {
            // Statement XX: the first answer to this site told it already what is used here.
            out.send(j, None, Message::Free { r, y: one.m });
        }
    }

    /// Whether the units of a type are enough.
    fn fits(one: &Type) -> bool {
        let used: u64 = one.used.iter().map(|&used| u64::from(used)).sum();
        used + u64::from(one.k) <= u64::from(one.m)
    }

    fn test(&mut self, out: &mut EffectsOf<Self>) {
        let Some(claim) = self.claim.filter(|_| !self.granted) else { return };
        let all = self.types.iter().all(|one| !one.scdem || Self::fits(one));
        for one in self.types.iter_mut().filter(|one| one.scdem) {
            if all || self.faults.has(Fault::TypeByType) && Self::fits(one) {
                (one.scdem, one.ok) = (false, true);
            }
        }
        if self.types.iter().all(|one| !one.scdem) {
            self.granted = true;
            out.grant(claim);
        }
    }
}
