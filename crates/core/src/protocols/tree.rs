//! Tokens go round a tree, and heal from anything.
//!
//! # Idea
//!
//! A walk along a tree, depth first, visits every site and comes back: a ring that needs no other
//! links. Each unit is a token on that ring. A site with a claim keeps what it needs as it comes
//! by;
//! a *pusher* that goes round makes everybody let go of what is not enough yet; who has the
//! *priority* token may keep it, so the pusher starves nobody.
//!
//! A *controller* goes round too, and what it passes it counts: each token once, no matter where it
//! is. At the root the count is compared with what there should be. What is missing is made, and
//! what is there twice is purged in the next circulation and made anew. So the pool heals from any
//! contents of all memories and links.
//!
//! # Source
//!
//! Datta, Devismes, Horn, Larmore 2009, hal-00344193v4. Its listing is kept in `tree_as_printed`,
//! with the three faults that are repaired here.
//!
//! # Messages
//!
//! A message is a frame: what goes to one neighbour at once, in order.
//!
//! | item | from | to | meaning |
//! | --- | --- | --- | --- |
//! | token | any site | the next on the ring | a unit, the pusher or the priority token |
//! | controller | any site | the next on the ring | the count so far, and what is to be purged |
//! | wake | claimant | the root, hop by hop | somebody waits: open the gate |
//! | want | claimant | back along the ring | units of this pool that rest may come |
//! | hello | neighbour | neighbour | where I am in the tree; a challenge and its echo |
//!
//! # Cost
//!
//! Tokens circulate whether they are wanted or not, and no message belongs to a claim but the
//! wakes. While nobody waits the root holds everything back and lets it go round together, once in
//! [`Pace::gate`] beats: 2(n−1) frames each time, and two hellos per link and two beats. The first
//! claim opens the gate. It closes when nobody waits, or when nothing moves because all is in use.
//! Units do not even go round then: each rests at a site, spread over all of them. A claim takes
//! those of its own site at once, and asks for others back along the ring, so that the next one
//! behind comes on. As soon as a circulation finds somebody waiting, nothing rests.
//!
//! # Assumes
//!
//! Links that keep the order and duplicate nothing. Sites may crash, restart without memory, and
//! be cut off; messages may be lost; more than half of the sites must be connected for units to be
//! used. Beats differ by at most a fifth between sites, and a controller needs less than
//! [`Pace::timeout`] beats to go round: safety in the face of crashes and cuts rests on that, as
//! all
//! leases do. Healing does not.
//!
//! # Why it is safe
//!
//! Exactly one token of each unit: who does not have it does not use it. From a right state only
//! the root makes or purges tokens, and it does neither: on a ring with first-in first-out links
//! the controller passes every token exactly once, or the token passes the root, which counts it
//! then (`wrapped`). A token that rests at a site is counted with the link that it came from.
//!
//! From a wrong state: controllers have colours, and with more colours than stale controllers one
//! circulation is soon a true one. One controller more than there are colours, of consecutive
//! colours, go round forever: `kofm check --protocol tree --from any` proves the one and shows the
//! other. Checker and simulator use 18(n−1) colours, the paper's number for CMAX = 8 messages on a
//! link; sites count circulations in 64 bits and need no CMAX. The count of a true circulation is
//! right, and so is the verdict; a purge leaves none of a token behind, since what is ahead of the
//! controller reaches the root, which drops it.
//!
//! Nobody starves: no token overtakes the priority token, and who has that keeps all it needs. A
//! claim is passed by at most 2ℓ(2n−3) grants of others.
//!
//! # What the paper leaves out
//!
//! Tokens have names: the count is kept for each, only what is wrong is purged, and units that are
//! in order go on being used meanwhile. A purge waits for a token that is in use (`busy`). A
//! controller that was sent again after a timeout has not counted everything and decides nothing
//! (`part`). Sites have several claims, and claims name several pools.
//!
//! The tree itself grows from hellos, breadth first, with the lowest live site as its root. When it
//! changes, tokens that lost their way go on from the parent, and the circulation decides nothing
//! (`tainted`). Lost units are made anew only when nobody can still use them: a site that no
//! circulation has reached for a while gives up what it has (`lease`), and the root waits longer
//! than that (`calm`). Only a circulation through more than half of the sites renews leases and
//! makes units. A hello carries a challenge, and the echo of the other side's: so a link that was
//! stuck delivers nothing that is older than a few beats.
//!
//! After memory was corrupted more than ℓ units may be in use until the count has been made right
//! and those who use them let go. Nothing can prevent that.

mod bits;
mod heal;
mod ring;
mod rules;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

pub use self::bits::{Bits, Tally};
pub(crate) use self::heal::fixed_channels;
pub use self::heal::{Hello, Place};
use self::heal::{Neighbour, first_root, neighbours};
use self::ring::Root;
pub use self::ring::{Control, Item};
pub use self::rules::{Pace, Rules, Sound};
use crate::protocol::{Blocker, Census, EffectsOf, PeerFault, Price, Profile, Protocol, Service};
use crate::types::{Cluster, Demand, PoolId, SiteId, Stamp, Unit, Units};

/// The protocol at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree<R = Sound> {
    me: SiteId,
    sites: u16,
    /// The root while it lives.
    first_root: SiteId,
    /// The first token of each pool, and behind them the number of all units.
    pools: Vec<u32>,
    /// Own claims, waiting and held.
    claims: BTreeMap<Stamp, Own>,
    /// What waiting claims need of each pool.
    needed: Vec<u64>,

    neighbours: Vec<Neighbour>,
    place: Place,
    /// The links of the tree: the parent's, then the children's. A root without children has
    /// itself.
    channels: Vec<SiteId>,
    /// The tree has changed here, and no circulation has been told yet.
    changed: bool,

    /// Units that are kept for waiting claims, and where they came from.
    spare: BTreeMap<u32, SiteId>,
    /// Units that rest here because nobody waits, and where they came from.
    parked: BTreeMap<u32, SiteId>,
    /// Units in use, where they came from and by which claim.
    used: BTreeMap<u32, (SiteId, Stamp)>,
    /// The priority token, where it came from, and the claim that has priority.
    priority: Option<(SiteId, Stamp)>,

    /// How many colours circulations have.
    colours: u64,
    /// The colour of the last circulation, and the channel that its controller comes back from.
    colour: u64,
    next: usize,
    /// Something happened to claims or tokens here since the last circulation.
    moved: bool,
    /// Somebody waits, as far as the last controller knew: then nothing rests.
    scarce: bool,
    /// Beats since a circulation renewed the right to use units.
    lease: u16,
    /// Whether any did since this site started.
    licensed: bool,
    /// Beats for which clients of an earlier life of this site may still use units.
    newborn: u16,
    /// How many sites the last circulation had visited before this one.
    rank: u16,
    /// For the root; at rest elsewhere.
    root: Root,
    rules: PhantomData<R>,
}

/// One of the site's own claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Own {
    Waiting(Demand),
    /// Its units, as they were granted.
    Held(Vec<Unit>),
}

/// The colours of circulations in sites: no start has as many stale controllers, so none makes the
/// root take stale ones for its own forever.
pub const UNBOUNDED: u64 = u64::MAX;

/// What goes to a neighbour at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Where the sender is.
    pub hello: Option<Hello>,
    /// What it passes on, in order.
    pub items: Vec<Item>,
}

/// The one timer: a beat, by which everything else is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timer {
    /// It is time for the upkeep.
    Beat,
}

/// What a step has to say.
#[derive(Debug, Default)]
struct Turn {
    mail: Vec<(SiteId, Item)>,
    /// Neighbours that are greeted, and whether they have to answer.
    greet: BTreeMap<SiteId, bool>,
    /// Somebody here waits, and the root should know.
    wake: Option<Stamp>,
}

impl<R: Rules> Protocol for Tree<R> {
    const NAME: &'static str = R::NAME;
    const PROFILE: Profile = Profile {
        source: "Datta, Devismes, Horn, Larmore 2009, corrected",
        summary: "tokens round a tree that heals from any state, crashes and cuts",
        as_printed: false,
        serves: Service::Pool,
        full_service: true,
        gathers: true,
        arbitrated: false,
        price: |_, _| Price { min: 0, max: None },
        survives: &["pause", "partition", "arbitrary-start", "corrupt"],
    };

    type Message = Frame;
    type Timer = Timer;

    const PERPETUAL: bool = true;

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        let mut pools = vec![0];
        for units in &cluster.pools {
            let first = pools.last().copied().unwrap_or(0);
            pools.push(units.0.saturating_add(first).min(Self::MOST_UNITS));
        }
        let units = pools.last().copied().unwrap_or(0);
        let (place, neighbours) = neighbours(me, cluster);
        let mut tree = Self {
            me,
            sites: cluster.sites,
            first_root: first_root(cluster),
            needed: vec![0; cluster.pools.len()],
            pools,
            claims: BTreeMap::new(),
            neighbours,
            place,
            channels: Vec::new(),
            changed: false,
            spare: BTreeMap::new(),
            parked: BTreeMap::new(),
            used: BTreeMap::new(),
            priority: None,
            colours: R::colours(cluster.sites),
            colour: 0,
            next: 0,
            moved: false,
            scarce: false,
            lease: 0,
            licensed: true,
            newborn: 0,
            // Nothing rests before a circulation has said where.
            rank: u16::MAX,
            root: Root::new(units + 2),
            rules: PhantomData,
        };
        tree.channels = tree.grown_channels();
        if tree.is_root() {
            tree.begin();
        }
        tree
    }

    fn unbounded(self) -> Self {
        Self { colours: UNBOUNDED, ..self }
    }

    fn me(&self) -> SiteId {
        self.me
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        let i = pool.index();
        (i + 1 < self.pools.len()).then(|| Units(self.pools[i + 1] - self.pools[i]))
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        for (pool, units) in demand.parts() {
            self.needed[pool.index()] += u64::from(units.0);
        }
        self.claims.insert(claim, Own::Waiting(demand));
        self.moved = R::GATED;
        let mut turn = Turn { wake: Some(claim), ..Turn::default() };
        self.take_parked();
        self.serve(&mut turn, out);
        if self.is_waiting(claim) {
            self.ask_back(claim, &mut turn);
        }
        self.finish(&mut turn, out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let Some(Own::Held(units)) = self.claims.get_mut(&claim) else { return };
        let freed = match part {
            None => core::mem::take(units),
            Some(part) => {
                let Some(freed) = split_last(units, part) else { return };
                freed
            }
        };
        if units.is_empty() {
            self.claims.remove(&claim);
        }
        let mut turn = Turn::default();
        for unit in freed {
            let token = self.token(unit);
            // After a fault it may be somebody else's, or nobody's.
            if self.used.get(&token).is_some_and(|&(_, user)| user == claim)
                && let Some((from, _)) = self.used.remove(&token)
            {
                self.pass(token, from, &mut turn);
            }
        }
        self.moved = R::GATED;
        self.finish(&mut turn, out);
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let Some(Own::Waiting(demand)) = self.claims.get(&claim) else { return };
        let demand = demand.clone();
        self.claims.remove(&claim);
        let mut turn = Turn::default();
        for (pool, units) in demand.parts() {
            self.needed[pool.index()] -= u64::from(units.0);
        }
        self.shed(&mut turn);
        self.moved = R::GATED;
        self.serve(&mut turn, out);
        self.finish(&mut turn, out);
    }

    fn on_message(
        &mut self,
        from: SiteId,
        frame: Frame,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        self.check(from, &frame)?;
        let mut turn = Turn::default();
        if let Some(hello) = frame.hello {
            self.greeted(from, hello, &mut turn);
        }
        if !R::WATCHES || self.trusts(from) {
            for item in frame.items {
                self.receive(from, item, &mut turn, out);
            }
        }
        self.finish(&mut turn, out);
        Ok(())
    }

    fn on_timer(&mut self, Timer::Beat: Timer, out: &mut EffectsOf<Self>) {
        let mut turn = Turn::default();
        let pace = R::pace(self.sites);
        out.arm(Timer::Beat, pace.beat, pace.beat * 6 / 5);
        if R::WATCHES {
            self.look_around(&mut turn);
        }
        self.newborn = self.newborn.saturating_sub(1);
        if R::LEASE {
            self.lease = self.lease.saturating_add(1);
            if self.lease > pace.lease {
                self.give_up(out);
            }
        }
        self.forget_strays(&mut turn);
        if self.is_root() {
            self.keep_going(&mut turn, out);
        }
        turn.wake = self.oldest_waiting();
        self.finish(&mut turn, out);
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some(Own::Waiting(demand)) = self.claims.get(&claim) else { return Vec::new() };
        let mut list = Vec::new();
        for (pool, units) in demand.parts() {
            let mut free = self.kept(pool);
            let mut block = |site, units, claim| {
                list.push(Blocker { site, pool, units: Units(units), claim });
            };
            for (&own, state) in &self.claims {
                let has = match state {
                    Own::Waiting(older) if own < claim => {
                        let wants = older.units(pool).0;
                        free = free.saturating_sub(wants);
                        wants
                    }
                    Own::Waiting(_) => 0,
                    Own::Held(units) => count(units, pool),
                };
                if has > 0 {
                    block(self.me, has, Some(own));
                }
            }
            if free < units.0 {
                block(self.place.root, units.0 - free, None);
            }
        }
        list
    }

    fn is_at_rest(&self) -> bool {
        self.claims.is_empty() && self.spare.is_empty() && self.priority.is_none()
    }

    fn audit(&self) {
        let mut needed = vec![0; self.needed.len()];
        for own in self.claims.values() {
            if let Own::Waiting(demand) = own {
                for (pool, units) in demand.parts() {
                    needed[pool.index()] += u64::from(units.0);
                }
            }
        }
        assert_eq!(needed, self.needed, "what waiting claims need is counted");
        assert!(self.next < self.channels.len(), "the controller is awaited from a channel");
        let ours = |site: &SiteId| self.channels.contains(site);
        let kept = || self.spare.values().chain(self.parked.values());
        assert!(kept().all(ours), "spare units came from channels");
        assert!(self.used.values().all(|(from, _)| ours(from)), "used units came from channels");
        assert!(self.priority.iter().all(|(from, _)| ours(from)), "so did the priority token");
    }

    fn alarm(&self) -> Option<Timer> {
        Some(Timer::Beat)
    }

    fn expected_tokens(cluster: &Cluster) -> Vec<u32> {
        let units: u64 = cluster.pools.iter().map(|units| u64::from(units.0)).sum();
        let units = units.min(Self::MOST_UNITS.into());
        vec![1; usize::try_from(units + 2).unwrap_or(2)]
    }

    fn census(&self) -> Census {
        let here = self.spare.keys().chain(self.parked.keys()).chain(self.used.keys());
        let mut tokens: Vec<u32> = here.copied().collect();
        tokens.extend(self.priority.map(|_| self.priority_token()));
        tokens.extend(self.root.gate.iter().filter_map(Item::token));
        let sure = self.is_root() && self.root.sure;
        Census { tokens, sure, circulation: self.colour }
    }

    fn is_sound(&self) -> Option<bool> {
        self.is_root().then_some(self.root.sure)
    }

    fn tokens_in(frame: &Frame) -> Vec<u32> {
        frame.items.iter().filter_map(Item::token).collect()
    }

    fn scramble(&mut self, draw: &mut dyn FnMut() -> u64) {
        self.garble(draw);
    }

    /// Others may have its units, or have given them up. It holds nothing, makes nothing, and uses
    /// nothing until a circulation has found it.
    fn reborn(me: SiteId, cluster: &Cluster) -> Self {
        let mut tree = Self::new(me, cluster);
        tree.root.forget();
        tree.licensed = false;
        tree.changed = true;
        tree.newborn = R::pace(cluster.sites).settle;
        if R::WATCHES {
            for neighbour in &mut tree.neighbours {
                neighbour.trusted = false;
            }
            tree.regrow(&mut Turn::default());
        }
        tree
    }

    fn garbage(&self, to: SiteId, draw: &mut dyn FnMut() -> u64) -> Option<Frame> {
        self.neighbours.iter().any(|one| one.site == to).then(|| self.garbled_frame(draw))
    }
}

impl<R: Rules> Tree<R> {
    /// More units in all pools together are not circulated: the count of all is in every
    /// controller.
    pub const MOST_UNITS: u32 = 1 << 20;

    /// The same as a fault may leave it: with this number of colours, this colour, and this channel
    /// from which the controller comes back. None where there are no such colour and channel.
    pub fn left_with(self, colours: u64, colour: u64, next: usize) -> Option<Self> {
        let fits = colours > 1 && colour < colours && next < self.channels.len();
        let mut left = fits.then_some(Self { colours, colour, next, ..self })?;
        // The root of a cluster that begins has everything that goes round.
        left.root.gate.clear();
        Some(left)
    }

    /// Its colour, and the channel from which the controller comes back.
    pub const fn stance(&self) -> (u64, usize) {
        (self.colour, self.next)
    }

    /// The links of the tree: the parent's, then the children's.
    pub fn channels(&self) -> &[SiteId] {
        &self.channels
    }

    /// A controller of some colour that an earlier time has left on a link.
    pub fn stale(&self, colour: u64) -> Frame {
        let control = Item::Control(Control::stale(colour, self.tokens()));
        Frame { hello: None, items: vec![control] }
    }

    /// Items of a frame; a site sends more of them in a second frame.
    fn most_items(&self) -> usize {
        8 * self.tokens() as usize + 128
    }

    /// All kinds of tokens: units, the pusher, the priority token.
    fn tokens(&self) -> u32 {
        self.units() + 2
    }

    fn units(&self) -> u32 {
        self.pools.last().copied().unwrap_or(0)
    }

    fn pusher(&self) -> u32 {
        self.units()
    }

    fn priority_token(&self) -> u32 {
        self.units() + 1
    }

    fn token(&self, unit: Unit) -> u32 {
        self.pools.get(unit.pool.index()).map_or(u32::MAX, |first| first + unit.number)
    }

    /// The pool of a unit's token.
    fn pool(&self, token: u32) -> PoolId {
        let after = self.pools.partition_point(|&first| first <= token);
        PoolId(u16::try_from(after.saturating_sub(1)).unwrap_or(u16::MAX))
    }

    fn unit(&self, token: u32) -> Unit {
        let pool = self.pool(token);
        Unit { pool, number: token - self.pools[pool.index()] }
    }

    /// How many units of a pool are kept for waiting claims.
    fn kept(&self, pool: PoolId) -> u32 {
        let i = pool.index();
        let kept = self.spare.range(self.pools[i]..self.pools[i + 1]).count();
        u32::try_from(kept).unwrap_or(u32::MAX)
    }

    fn oldest_waiting(&self) -> Option<Stamp> {
        self.claims.iter().find(|(_, own)| matches!(own, Own::Waiting(_))).map(|(&claim, _)| claim)
    }

    fn is_waiting(&self, claim: Stamp) -> bool {
        matches!(self.claims.get(&claim), Some(Own::Waiting(_)))
    }

    /// Refuses what not even a site with garbage in its memory says.
    fn check(&self, from: SiteId, frame: &Frame) -> Result<(), PeerFault> {
        if !self.neighbours.iter().any(|one| one.site == from) {
            return Err(PeerFault::UnknownSite(from));
        }
        if let Some(hello) = &frame.hello {
            for site in [hello.place.root, hello.place.parent] {
                if site.0 >= self.sites {
                    return Err(PeerFault::UnknownSite(site));
                }
            }
        }
        if frame.items.len() > self.most_items() {
            return Err(PeerFault::Unexpected("a frame with more items than a site sends"));
        }
        for item in &frame.items {
            match item {
                Item::Token(token) if *token >= self.tokens() => {
                    return Err(PeerFault::Unexpected("a token that does not exist"));
                }
                Item::Control(control) if !control.fits(self.tokens()) => {
                    return Err(PeerFault::Unexpected("a count of other tokens"));
                }
                Item::Want { pool, .. } if pool.index() >= self.needed.len() => {
                    return Err(PeerFault::UnknownPool(*pool));
                }
                Item::Token(_) | Item::Control(_) | Item::Wake | Item::Want { .. } => {}
            }
        }
        Ok(())
    }

    /// Grants what can be granted, oldest first; what an older claim has is not for a younger one.
    /// Then the priority token goes on if its claim waits no longer.
    fn serve(&mut self, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        if !self.spare.is_empty() {
            let mut free: Vec<u32> =
                (0..).map(PoolId).take(self.needed.len()).map(|pool| self.kept(pool)).collect();
            let mut granted = Vec::new();
            for (&claim, own) in &self.claims {
                let Own::Waiting(demand) = own else { continue };
                if demand.parts().all(|(pool, units)| units.0 <= free[pool.index()]) {
                    granted.push((claim, demand.clone()));
                }
                for (pool, units) in demand.parts() {
                    free[pool.index()] = free[pool.index()].saturating_sub(units.0);
                }
                if free.iter().all(|&units| units == 0) {
                    break;
                }
            }
            for (claim, demand) in granted {
                self.grant(claim, &demand, out);
            }
        }
        if let Some((from, claim)) = self.priority
            && !self.is_waiting(claim)
        {
            self.priority = None;
            self.pass(self.priority_token(), from, turn);
        }
    }

    fn grant(&mut self, claim: Stamp, demand: &Demand, out: &mut EffectsOf<Self>) {
        let mut units = Vec::new();
        for (pool, k) in demand.parts() {
            self.needed[pool.index()] -= u64::from(k.0);
            let range = self.pools[pool.index()]..self.pools[pool.index() + 1];
            for _ in 0..k.0 {
                let Some((&token, &from)) = self.spare.range(range.clone()).next() else { break };
                self.spare.remove(&token);
                self.used.insert(token, (from, claim));
                units.push(self.unit(token));
            }
        }
        self.moved = R::GATED;
        out.grant_named(claim, units.clone());
        self.claims.insert(claim, Own::Held(units));
    }

    /// Passes on what is kept, but no longer needed.
    fn shed(&mut self, turn: &mut Turn) {
        for pool in (0..).map(PoolId).take(self.needed.len()) {
            let surplus = u64::from(self.kept(pool)).saturating_sub(self.needed[pool.index()]);
            let range = self.pools[pool.index()]..self.pools[pool.index() + 1];
            for _ in 0..surplus {
                let Some((&token, &from)) = self.spare.range(range.clone()).next_back() else {
                    break;
                };
                self.spare.remove(&token);
                self.pass(token, from, turn);
            }
        }
    }

    /// Opens the gate where that is due, and sends everything that this step has to say.
    fn finish(&mut self, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        if self.is_root() && turn.wake.is_some_and(|claim| self.is_waiting(claim)) {
            self.woken();
        }
        // A root that is alone has to bring its tokens to its own claims.
        for _ in 0..Root::HURRY {
            if !self.gate_is_open() {
                break;
            }
            self.open_gate(turn, out);
        }
        if let Some(claim) = turn.wake
            && R::GATED
            && !self.is_root()
            && self.is_waiting(claim)
        {
            turn.mail.push((self.place.parent, Item::Wake));
        }
        let serves = turn.wake;
        let most = if R::COALESCES { self.most_items() } else { 1 };
        while let Some(&(to, _)) = turn.mail.first() {
            let hello = turn.greet.remove(&to).map(|ask| self.hello(to, ask));
            let mut frame = Frame { hello, items: Vec::new() };
            let mut rest = Vec::new();
            let mut waking = false;
            for (other, item) in turn.mail.drain(..) {
                if other != to || frame.items.len() >= most {
                    rest.push((other, item));
                } else {
                    waking |= item == Item::Wake;
                    frame.items.push(item);
                }
            }
            turn.mail = rest;
            out.send(to, serves.filter(|_| waking), frame);
        }
        for (to, ask) in core::mem::take(&mut turn.greet) {
            out.send(to, None, Frame { hello: Some(self.hello(to, ask)), items: Vec::new() });
        }
    }
}

fn count(units: &[Unit], pool: PoolId) -> u32 {
    let count = units.iter().filter(|unit| unit.pool == pool).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Takes a part out of a grant: the units that it listed last. None where it is more than there is.
fn split_last(units: &mut Vec<Unit>, part: &Demand) -> Option<Vec<Unit>> {
    if part.parts().any(|(pool, k)| count(units, pool) < k.0) {
        return None;
    }
    let mut freed = Vec::new();
    for (pool, k) in part.parts() {
        for _ in 0..k.0 {
            if let Some(last) = units.iter().rposition(|unit| unit.pool == pool) {
                freed.push(units.remove(last));
            }
        }
    }
    Some(freed)
}
