//! What goes round: tokens and the controller, and the gate at the root.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Bits, Own, Rules, Tally, Tree, Turn};
use crate::protocol::EffectsOf;
use crate::types::{PoolId, SiteId, Stamp, Units};

/// One thing that is passed on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Item {
    /// A unit, the pusher or the priority token, by number.
    Token(u32),
    /// The controller.
    Control(Control),
    /// For the root: somebody waits.
    Wake,
    /// Back along the ring: units that rest may come on.
    Want {
        /// Of this pool.
        pool: PoolId,
        /// So many.
        units: u32,
        /// It goes so far.
        hops: u16,
    },
}

impl Item {
    /// The token that it is.
    pub const fn token(&self) -> Option<u32> {
        match self {
            Self::Token(token) => Some(*token),
            Self::Control(_) | Self::Wake | Self::Want { .. } => None,
        }
    }
}

/// The controller: what it has counted so far, and what it tells everybody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Control {
    /// Which circulation it is of.
    pub colour: u64,
    /// Tokens that it has passed.
    pub seen: Tally,
    /// Tokens that are to be purged.
    pub purge: Bits,
    /// Those of them that are in use.
    pub busy: Bits,
    /// Sites that it has visited.
    pub sites: u16,
    /// It was sent again after a timeout and has not seen everything.
    pub part: bool,
    /// It has met a site whose tree has changed.
    pub tainted: bool,
    /// It has met a site that has just started again: units may be in use that nobody knows of.
    pub newborn: bool,
    /// It renews the right to use units.
    pub renews: bool,
    /// The last circulation found somebody waiting: nothing may rest.
    pub scarce: bool,
    /// Somebody waits.
    pub waiting: bool,
    /// Something has happened since the last circulation.
    pub moved: bool,
}

impl Control {
    fn new(colour: u64, tokens: u32) -> Self {
        Self {
            colour,
            seen: Tally::none(tokens),
            purge: Bits::none(tokens),
            busy: Bits::none(tokens),
            sites: 0,
            part: false,
            tainted: false,
            newborn: false,
            renews: false,
            scarce: false,
            waiting: false,
            moved: false,
        }
    }

    /// One that an earlier time has left, with nothing counted.
    pub(super) fn stale(colour: u64, tokens: u32) -> Self {
        Self::new(colour, tokens)
    }

    /// Whether its sets are those of a cluster with so many tokens.
    pub(super) fn fits(&self, tokens: u32) -> bool {
        self.seen.fits(tokens) && self.purge.fits(tokens) && self.busy.fits(tokens)
    }

    /// Any controller.
    pub(super) fn garbage(colours: u64, tokens: u32, draw: &mut dyn FnMut() -> u64) -> Self {
        let mut coin = || draw().is_multiple_of(2);
        let (part, tainted, renews, scarce) = (coin(), coin(), coin(), coin());
        let (waiting, moved) = (coin(), coin());
        Self {
            colour: draw() % colours,
            seen: Tally::garbage(tokens, draw),
            purge: Bits::garbage(tokens, draw),
            busy: Bits::garbage(tokens, draw),
            sites: u16::try_from(draw() % 8).unwrap_or(0),
            part,
            tainted,
            newborn: false,
            renews,
            scarce,
            waiting,
            moved,
        }
    }
}

/// What the root keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Root {
    /// Tokens that are being purged.
    pub(super) purge: Bits,
    /// Tokens that passed from the last channel to the first in this circulation.
    pub(super) wrapped: Tally,
    /// What is held back for the first channel, in order.
    pub(super) gate: Vec<Item>,
    /// Beats since it was opened.
    pub(super) closed: u16,
    /// Circulations for which it stays open.
    pub(super) hurry: u8,
    /// Somebody waits.
    pub(super) wanted: bool,
    /// Somebody said so since this circulation began, which may have missed him.
    pub(super) woken: bool,
    /// The last circulation found somebody waiting.
    pub(super) scarce: bool,
    /// Beats since the controller was here.
    pub(super) silence: u16,
    /// Beats since the tree changed or something was lost.
    pub(super) calm: u16,
    /// The last circulation went through more than half of the sites.
    pub(super) quorate: bool,
    /// The last circulation found everything right.
    pub(super) sure: bool,
}

impl Root {
    /// Circulations without any movement for which the gate stays open while somebody waits: the
    /// pusher and the priority token have been everywhere by then.
    pub(super) const HURRY: u8 = 3;

    pub(super) fn new(tokens: u32) -> Self {
        Self {
            purge: Bits::none(tokens),
            wrapped: Tally::none(tokens),
            gate: Vec::new(),
            closed: 0,
            hurry: 0,
            wanted: false,
            woken: false,
            scarce: false,
            silence: 0,
            calm: u16::MAX,
            quorate: true,
            sure: false,
        }
    }

    /// As far as is known anything may be anywhere.
    pub(super) fn forget(&mut self) {
        self.purge.clear();
        self.wrapped.clear();
        self.gate.clear();
        *self = Self {
            purge: self.purge.clone(),
            wrapped: self.wrapped.clone(),
            gate: Vec::new(),
            closed: 0,
            hurry: 0,
            wanted: false,
            woken: false,
            scarce: false,
            silence: 0,
            calm: 0,
            quorate: false,
            sure: false,
        };
    }
}

impl<R: Rules> Tree<R> {
    pub(super) fn is_root(&self) -> bool {
        self.place.parent == self.me
    }

    /// The first state of a cluster: all tokens at the root, about to leave.
    pub(super) fn begin(&mut self) {
        // Not the colour that the others have, who have seen none yet.
        self.colour = 1;
        let mut control = Control::new(self.colour, self.tokens());
        control.renews = true;
        self.root.sure = true;
        self.root.closed = R::pace(self.sites).gate;
        let units = 0..self.units();
        let tokens = core::iter::once(self.priority_token()).chain(units).chain([self.pusher()]);
        self.root.gate = tokens.map(Item::Token).chain([Item::Control(control)]).collect();
    }

    pub(super) fn receive(
        &mut self,
        from: SiteId,
        item: Item,
        turn: &mut Turn,
        out: &mut EffectsOf<Self>,
    ) {
        match item {
            Item::Token(token) => self.on_token(from, token, turn),
            Item::Control(control) => self.on_control(from, control, turn, out),
            Item::Wake if self.is_root() => self.woken(),
            // Only what comes from below goes up: wakes do not run in circles.
            Item::Wake if from != self.place.parent => {
                turn.mail.push((self.place.parent, Item::Wake));
            }
            Item::Wake => {}
            Item::Want { pool, units, hops } => self.on_want(from, pool, units, hops, turn),
        }
        self.serve(turn, out);
    }

    fn on_token(&mut self, from: SiteId, token: u32, turn: &mut Turn) {
        if R::LEASE && self.lease > R::pace(self.sites).lease {
            return;
        }
        if self.is_root() && self.root.purge.has(token) && R::ROOT_PURGES {
            return;
        }
        // What comes from outside the tree goes on as if it came from the first channel.
        let from = if self.channels.contains(&from) { from } else { self.channels[0] };
        if token == self.pusher() {
            self.push(turn);
            self.pass(token, from, turn);
        } else if token == self.priority_token() {
            match self.oldest_waiting() {
                Some(claim) if self.priority.is_none() && self.licensed => {
                    self.priority = Some((from, claim));
                }
                Some(_) | None if self.priority.is_some() && !R::COUNTS_PASSED => {
                    let (to, _) = self.after(from);
                    self.forward(to, Item::Token(token), turn);
                }
                Some(_) | None => self.pass(token, from, turn),
            }
        } else {
            let pool = self.pool(token);
            let lacks = u64::from(self.kept(pool)) < self.needed[pool.index()];
            let new = !self.spare.contains_key(&token)
                && !self.parked.contains_key(&token)
                && !self.used.contains_key(&token);
            if lacks && new && self.licensed {
                self.spare.insert(token, from);
                self.moved = R::GATED;
                if !self.is_scarce() {
                    turn.wake = self.oldest_waiting();
                }
            } else if R::PARKS && new && !self.is_scarce() && self.rests(token, from) {
                self.parked.insert(token, from);
            } else {
                self.pass(token, from, turn);
            }
        }
    }

    fn is_scarce(&self) -> bool {
        if self.is_root() { self.root.scarce } else { self.scarce }
    }

    /// Whether a unit rests here: those of a pool are spread over all sites, in the order in which
    /// they are visited. And only when the tour comes here first: what was asked for and comes back
    /// from a child has to go on.
    fn rests(&self, token: u32, from: SiteId) -> bool {
        let unit = self.unit(token);
        let i = unit.pool.index();
        let units = u64::from(self.pools[i + 1] - self.pools[i]).max(1);
        let home = u64::from(unit.number) * u64::from(self.sites) / units;
        let first = if self.is_root() { self.after(from).1 } else { from == self.channels[0] };
        first && home == u64::from(self.rank)
    }

    /// Claims may have what rests here.
    pub(super) fn take_parked(&mut self) {
        for (token, from) in core::mem::take(&mut self.parked) {
            let pool = self.pool(token);
            if u64::from(self.kept(pool)) < self.needed[pool.index()] {
                self.spare.insert(token, from);
            } else {
                self.parked.insert(token, from);
            }
        }
    }

    /// Somebody waits: nothing rests.
    fn unpark(&mut self, turn: &mut Turn) {
        for (token, from) in core::mem::take(&mut self.parked) {
            self.pass(token, from, turn);
        }
    }

    /// Asks for what rests behind this site on the ring.
    pub(super) fn ask_back(&self, claim: Stamp, turn: &mut Turn) {
        let Some(Own::Waiting(demand)) = self.claims.get(&claim) else { return };
        if !R::PARKS || self.is_scarce() || self.channels[0] == self.me {
            return;
        }
        // Of many channels only two: each brings as many units as are needed.
        let mut back = alloc::vec![self.channels[self.channels.len() - 1]];
        if self.channels.len() > 1 {
            back.push(self.channels[0]);
        }
        for (pool, units) in demand.parts() {
            let units = units.0.saturating_sub(self.kept(pool));
            if units > 0 {
                let want = Item::Want { pool, units, hops: self.sites.saturating_mul(2) };
                turn.mail.extend(back.iter().map(|&to| (to, want.clone())));
            }
        }
    }

    /// Lets go of what rests here and goes to `from` next; the rest of the wish goes further back.
    fn on_want(&mut self, from: SiteId, pool: PoolId, units: u32, hops: u16, turn: &mut Turn) {
        let Some(at) = self.channels.iter().position(|&one| one == from) else { return };
        let before = self.channels[(at + self.channels.len() - 1) % self.channels.len()];
        let range = self.pools[pool.index()]..self.pools[pool.index() + 1];
        let resting = self.parked.range(range).filter(|&(_, &origin)| origin == before);
        let resting: Vec<u32> = resting.map(|(&token, _)| token).take(units as usize).collect();
        for &token in &resting {
            self.parked.remove(&token);
            self.pass(token, before, turn);
        }
        let units = units.saturating_sub(u32::try_from(resting.len()).unwrap_or(u32::MAX));
        if self.is_root() {
            self.woken();
        }
        if units > 0 && hops > 0 {
            turn.mail.push((before, Item::Want { pool, units, hops: hops - 1 }));
        }
    }

    /// Lets go of everything that is not enough yet, but for what the claim with priority has.
    fn push(&mut self, turn: &mut Turn) {
        if !R::SPARES_PRIORITY && self.priority.is_none() {
            return;
        }
        let demand = self.priority.and_then(|(_, claim)| match self.claims.get(&claim) {
            Some(Own::Waiting(demand)) if R::SPARES_PRIORITY => Some(demand.clone()),
            _ => None,
        });
        let mut kept = alloc::vec![0; self.needed.len()];
        for (token, from) in core::mem::take(&mut self.spare) {
            let pool = self.pool(token);
            let keeps = demand.as_ref().map_or(Units::ZERO, |demand| demand.units(pool));
            if kept[pool.index()] < keeps.0 {
                kept[pool.index()] += 1;
                self.spare.insert(token, from);
            } else {
                self.moved = R::GATED;
                self.pass(token, from, turn);
            }
        }
    }

    /// The channel after one, and whether that is from the last to the first.
    fn after(&self, from: SiteId) -> (SiteId, bool) {
        let at = self.channels.iter().position(|&one| one == from).unwrap_or(0);
        let last = at + 1 >= self.channels.len();
        (self.channels[if last { 0 } else { at + 1 }], last)
    }

    /// Sends a token on its way.
    pub(super) fn pass(&mut self, token: u32, from: SiteId, turn: &mut Turn) {
        let (to, wraps) = self.after(from);
        if wraps && self.is_root() {
            self.root.wrapped.add(token);
        }
        self.forward(to, Item::Token(token), turn);
    }

    fn forward(&mut self, to: SiteId, item: Item, turn: &mut Turn) {
        let gated = self.is_root() && to == self.channels[0] && (R::GATED || to == self.me);
        if !gated {
            turn.mail.push((to, item));
        } else if self.root.gate.len() < 4 * self.tokens() as usize + 64 {
            self.root.gate.push(item);
        }
    }

    /// Counts what came from a channel.
    fn count_from(&self, from: SiteId, seen: &mut Tally) {
        if !R::COUNTS {
            return;
        }
        let spare = self.spare.iter().chain(&self.parked);
        let spare = spare.filter(|&(_, &origin)| origin == from).map(|(t, _)| *t);
        let used = self.used.iter().filter(|&(_, &(origin, _))| origin == from).map(|(t, _)| *t);
        spare.chain(used).for_each(|token| seen.add(token));
        if self.priority.is_some_and(|(origin, _)| origin == from) {
            seen.add(self.priority_token());
        }
    }

    /// Drops what is to be purged; says in `busy` what is in use.
    fn purge(&mut self, purge: &Bits, busy: &mut Bits) {
        if purge.is_empty() {
            return;
        }
        self.spare.retain(|&token, _| !purge.has(token));
        self.parked.retain(|&token, _| !purge.has(token));
        if purge.has(self.priority_token()) {
            self.priority = None;
        }
        if R::BUSY {
            for &token in self.used.keys().filter(|&&token| purge.has(token)) {
                busy.set(token, true);
            }
        } else {
            self.used.retain(|&token, _| !purge.has(token));
        }
    }

    fn on_control(
        &mut self,
        from: SiteId,
        mut control: Control,
        turn: &mut Turn,
        out: &mut EffectsOf<Self>,
    ) {
        if !self.channels.contains(&from) {
            return;
        }
        let awaited = from == self.channels[self.next] && control.colour == self.colour;
        if self.is_root() {
            if awaited {
                self.back_at_root(from, control, turn, out);
            }
            return;
        }
        if awaited && self.next != 0 {
            self.next = (self.next + 1) % self.channels.len();
            self.purge(&control.purge.clone(), &mut control.busy);
        } else if from == self.channels[0] {
            // The same colour again is a copy; it goes where the first one went.
            if control.colour != self.colour {
                self.colour = control.colour;
                self.next = 1 % self.channels.len();
                self.purge(&control.purge.clone(), &mut control.busy);
                control.sites = control.sites.saturating_add(1);
                self.rank = control.sites;
                control.waiting |= R::GATED && self.oldest_waiting().is_some();
                control.moved |= core::mem::take(&mut self.moved);
                self.scarce = control.scarce;
                if control.renews {
                    self.lease = 0;
                    self.licensed = true;
                }
            }
        } else {
            return;
        }
        if self.scarce {
            self.unpark(turn);
        }
        self.count_from(from, &mut control.seen);
        control.tainted |= self.changed;
        control.newborn |= self.newborn > 0;
        if self.next == 0 {
            self.changed = false;
        }
        self.forward(self.channels[self.next], Item::Control(control), turn);
    }

    fn back_at_root(
        &mut self,
        from: SiteId,
        mut control: Control,
        turn: &mut Turn,
        out: &mut EffectsOf<Self>,
    ) {
        if R::COUNTS_OWN {
            self.count_from(from, &mut control.seen);
        }
        self.root.silence = 0;
        self.next = (self.next + 1) % self.channels.len();
        if self.next != 0 {
            if !R::COUNTS_OWN {
                self.count_from(from, &mut control.seen);
            }
            self.forward(self.channels[self.next], Item::Control(control), turn);
            return;
        }
        self.colour = self.next_colour();
        let stirred = self.decide(&control, turn, out);
        if R::GATED {
            self.set_pace(&control, stirred, turn);
        }
        self.root.wrapped.clear();
        let mut fresh = self.control();
        if !R::COUNTS_OWN {
            self.count_from(from, &mut fresh.seen);
        }
        self.forward(self.channels[0], Item::Control(fresh), turn);
    }

    /// The colour after this one, also if a fault has left one that does not exist.
    pub(super) const fn next_colour(&self) -> u64 {
        (self.colour % self.colours + 1) % self.colours
    }

    /// How soon the next circulation begins, and whether units may rest in it.
    fn set_pace(&mut self, control: &Control, mut stirred: bool, turn: &mut Turn) {
        stirred |= self.root.woken | control.moved | core::mem::take(&mut self.moved);
        self.root.scarce = control.waiting || self.oldest_waiting().is_some();
        self.root.wanted = self.root.scarce | core::mem::take(&mut self.root.woken);
        if self.root.scarce {
            self.unpark(turn);
        }
        self.root.hurry = match (self.root.wanted, stirred) {
            (true, true) => Root::HURRY,
            (true, false) => self.root.hurry.saturating_sub(1),
            (false, _) => u8::from(!self.root.purge.is_empty()),
        };
    }

    /// A controller as it leaves the root.
    fn control(&self) -> Control {
        let mut control = Control::new(self.colour, self.tokens());
        control.purge.clone_from(&self.root.purge);
        control.renews = self.root.quorate;
        control.scarce = self.root.scarce;
        control
    }

    /// A circulation is over. Says whether it had to put something right.
    fn decide(&mut self, control: &Control, turn: &mut Turn, out: &mut EffectsOf<Self>) -> bool {
        let pace = R::pace(self.sites);
        let visited = u32::from(control.sites) + 1;
        let majority = 2 * visited > u32::from(self.sites) || !R::QUORUM;
        let tainted = (control.tainted | core::mem::take(&mut self.changed)) && R::TAINT;
        self.rank = 0;
        if control.newborn || self.newborn > 0 {
            self.root.calm = 0;
        }
        if tainted || (control.part && R::PART) {
            self.root.calm = 0;
            self.root.sure = false;
            self.root.quorate &= majority;
            return true;
        }
        self.root.quorate = majority;
        if majority {
            self.lease = 0;
            self.licensed = true;
        }
        // With every site in the count only what is still on a dead link can be missing in it.
        let everybody = visited == u32::from(self.sites) && self.root.calm > pace.dead + 1;
        let makes = majority && (everybody || self.root.calm >= pace.settle || !R::SETTLE);
        self.root.sure = true;
        let mut made = Vec::new();
        let counted = if R::COUNTS { self.tokens() } else { 0 };
        for token in 0..counted {
            let found = control.seen.count(token) + self.root.wrapped.count(token);
            let busy = control.busy.has(token) || self.used.contains_key(&token);
            if self.root.purge.has(token) && busy && R::BUSY {
                self.root.sure = false;
                continue;
            }
            self.root.purge.set(token, found > 1);
            if found != 1 {
                self.root.sure = false;
            }
            if found == 0 && (makes || token >= self.units()) {
                made.push(token);
            }
        }
        let mut busy = Bits::none(self.tokens());
        self.purge(&self.root.purge.clone(), &mut busy);
        if made.iter().any(|&token| token < self.units()) {
            // Who had them may have granted each of them once more than anybody has heard of.
            let mut clock = out.clock();
            clock.fence += u64::from(self.units()) * u64::from(self.sites);
            out.set_clock(clock);
        }
        let stirred = !made.is_empty() || !self.root.purge.is_empty();
        for token in made.into_iter().rev() {
            self.forward(self.channels[0], Item::Token(token), turn);
        }
        stirred
    }

    /// The root's upkeep at a beat.
    pub(super) fn keep_going(&mut self, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        let pace = R::pace(self.sites);
        self.root.silence = self.root.silence.saturating_add(1);
        self.root.calm = self.root.calm.saturating_add(1);
        self.root.closed = self.root.closed.saturating_add(1);
        if self.root.silence > pace.timeout {
            self.send_again(turn);
        }
        if self.root.closed >= pace.gate {
            self.open_gate(turn, out);
        }
    }

    /// The controller may be lost.
    pub(super) fn send_again(&mut self, turn: &mut Turn) {
        self.root.silence = 0;
        self.root.calm = 0;
        self.root.quorate = false;
        self.root.sure = false;
        let mut control = self.control();
        control.part = true;
        self.forward(self.channels[self.next], Item::Control(control), turn);
    }

    /// Somebody waits.
    pub(super) fn woken(&mut self) {
        if R::GATED {
            self.root.wanted = true;
            self.root.woken = true;
            self.root.hurry = Root::HURRY;
        }
    }

    pub(super) fn gate_is_open(&self) -> bool {
        if self.root.gate.is_empty() || !self.is_root() {
            return false;
        }
        let unit = |item: &Item| item.token().is_some_and(|token| token < self.units());
        let alone = self.channels[0] == self.me && self.oldest_waiting().is_none();
        !alone && (self.root.hurry > 0 || (self.root.wanted && self.root.gate.iter().any(unit)))
    }

    pub(super) fn open_gate(&mut self, turn: &mut Turn, out: &mut EffectsOf<Self>) {
        self.root.closed = 0;
        let to = self.channels[0];
        for item in core::mem::take(&mut self.root.gate) {
            if to == self.me {
                self.receive(to, item, turn, out);
            } else {
                turn.mail.push((to, item));
            }
        }
    }
}
