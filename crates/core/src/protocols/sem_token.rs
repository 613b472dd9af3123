//! A semaphore whose count of what was taken travels with a token.
//!
//! # Idea
//!
//! One token carries the number of units ever taken. Whoever has it, has its turn: it waits until
//! enough was added, takes its units, and passes the token on to whoever asked for it next. V tells
//! everybody. Requests for the token follow pointers to whoever asked last, and every site that
//! passes a request on points to its asker from then on, so that ways stay short. When nobody asks,
//! nobody says anything.
//!
//! # Source
//!
//! Raynal 1992 (RR-1604), §3.2, with the resets of §3.5.1; the token's ways are those of Naimi and
//! Tréhel 1987 (An improvement of the log n distributed algorithm for mutual exclusion).
//!
//! # Messages
//!
//! | message | from | to | meaning |
//! | --- | --- | --- | --- |
//! | `Request` | claimant | last asker, as known | let me have the token after you |
//! | `Token` | who has it | who asked next | your turn; so many units were taken |
//! | `Incr` | whoever adds | everybody | there are so many more |
//! | `Reset` | who has the token | everybody | lower what you count as added |
//! | `Ack` | everybody | who has the token | done |
//!
//! # Cost
//!
//! P: the hops of its request and one for the token, none where the token is at hand already; of
//! the order of log n on average, n at most. V: n−1. A reset, once in 2^40 units: 2(n−1).
//!
//! # Assumes
//!
//! Reliable links between sites that do not crash. They need not keep order.
//!
//! # Why it is safe
//!
//! There is one token, its count changes only where it is, so in its turn a site knows exactly what
//! was taken, and it knows of no more additions than were made. A site that asks makes itself the
//! end of the queue; a request that reaches an end puts its asker behind it and makes it the new
//! end, and pointers lead to an end from everywhere. So every request finds a place, and nobody's
//! place is ever taken by another.
//!
//! A reset lowers the count in the token and the additions at every site by the same amount. The
//! token stays until all sites have done it, or it could arrive with its new count where the old
//! additions are still counted. Additions go below zero where those that were taken have not been
//! heard of: they are signed.
//!
//! # Order
//!
//! A strict queue. Of two claims that a site can choose between, its own next and that of the next
//! asker, the older one goes first; nobody passes whoever is before it. But places in the queue are
//! given when requests reach its end, and not by stamp: nobody knows of requests on their way. The
//! site that has its turn keeps it until there are enough units for its claim, and everybody else
//! waits behind it, even for units that are there: P(2) on a semaphore of 1 holds up P(1).
//!
//! # Differs from the paper
//!
//! Several claims per site; each visit of the token serves the oldest of them, and those that are
//! older than the next asker's. A site whose claims were all withdrawn passes the token on.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::parts::semaphores::{
    LIMIT, Out, Rules, SELDOM, Semaphore, Slip, Sound, at_least_one, check_added, missing, moved,
    room,
};
use crate::parts::{Semaphores, SiteSet};
use crate::protocol::{Blocker, Head, PeerFault, Price, Profile, SURVIVES, Service};
use crate::types::{Cluster, PoolId, SiteId, Stamp, Units};

/// The protocol.
pub type SemToken = Semaphores<ByToken>;

/// One semaphore at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ByToken<R = Sound> {
    me: SiteId,
    members: SiteSet,
    pool: PoolId,
    initial: i64,
    /// Units added, as far as heard here, since the last reset.
    added: i64,
    /// Own claims that wait.
    claims: BTreeMap<Stamp, Units>,
    /// Who asked last, as far as known; nobody where it was this site, or nobody has asked since
    /// it got the token.
    last: Option<SiteId>,
    /// Whom this site asked for the token, while it waits for it.
    asked: Option<SiteId>,
    /// Who gets the token next, and the claim that it asked for.
    next: Option<Stamp>,
    token: Option<Token>,
    /// Counters are set back by this much once they have reached it.
    reset: i64,
    rules: PhantomData<R>,
}

/// The token at the site that has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Token {
    /// Units taken since the last reset.
    taken: i64,
    /// The own claim whose turn it is.
    turn: Option<Stamp>,
    /// Who has not acknowledged the reset that is under way.
    missing: SiteSet,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// The site of this claim wants the token.
    Request {
        /// The claim.
        claim: Stamp,
    },
    /// Here it is.
    Token {
        /// Units taken since the last reset.
        taken: i64,
    },
    /// Somebody has added units.
    Incr {
        /// How many.
        units: Units,
    },
    /// Count so many additions less.
    Reset {
        /// How many.
        units: i64,
    },
    /// Done.
    Ack,
}

impl<R: Rules> Semaphore for ByToken<R> {
    const NAME: &'static str = "sem-token";
    const PROFILE: Profile = Profile {
        source: "Raynal 1992, §3.2; Naimi and Tréhel 1987",
        summary: "a semaphore: P fetches a token, V tells every site; few messages per P",
        serves: Service::Semaphore,
        as_printed: false,
        full_service: true,
        gathers: false,
        arbitrated: false,
        price: |sites, _| Price { min: 0, max: Some(sites) },
        survives: SURVIVES,
    };

    type Message = Message;

    fn new(me: SiteId, cluster: &Cluster, pool: PoolId) -> Self {
        // Different semaphores begin at different sites, so that no site has all the tokens.
        let members = cluster.all().count().max(1);
        let home = cluster.all().nth(pool.index() % members).unwrap_or(me);
        let token = Token { taken: 0, turn: None, missing: SiteSet::new() };
        Self {
            me,
            members: cluster.all().collect(),
            pool,
            initial: i64::from(cluster.pools[pool.index()].0),
            added: 0,
            claims: BTreeMap::new(),
            last: (me != home).then_some(home),
            asked: None,
            next: None,
            token: (me == home).then_some(token),
            reset: cluster.reset.map_or(R::RESET, i64::from),
            rules: PhantomData,
        }
    }

    fn start_at(&mut self, value: i64) {
        self.initial = value;
    }

    fn claim(&mut self, claim: Stamp, units: Units, out: &mut Out<'_, Message>) {
        self.claims.insert(claim, units);
        if self.token.is_some() {
            self.settle(out);
        } else if self.asked.is_none() {
            self.ask(claim, out);
        }
    }

    fn withdraw(&mut self, claim: Stamp, out: &mut Out<'_, Message>) {
        if self.claims.remove(&claim).is_none() {
            return;
        }
        if let Some(token) = &mut self.token
            && token.turn == Some(claim)
            && R::SLIP != Some(Slip::KeepsTheTurn)
        {
            token.turn = None;
        }
        self.settle(out);
    }

    fn add(&mut self, units: Units, out: &mut Out<'_, Message>) {
        if R::SLIP != Some(Slip::AddsForOthers) {
            self.added += i64::from(units.0);
        }
        if R::SLIP != Some(Slip::AddsInSilence) {
            self.tell_others(&Message::Incr { units }, out);
        }
        self.settle(out);
    }

    fn receive(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut Out<'_, Message>,
    ) -> Result<(), PeerFault> {
        match message {
            Message::Request { claim } => self.on_request(claim, out)?,
            Message::Token { taken } => {
                if self.asked.is_none() {
                    return Err(PeerFault::Unexpected("a token that was not asked for"));
                }
                if !(0..LIMIT).contains(&taken) {
                    return Err(PeerFault::Unexpected("a count that no token can have"));
                }
                self.asked = None;
                self.token = Some(Token { taken, turn: None, missing: SiteSet::new() });
                // It came for these, whoever has asked meanwhile.
                self.take_turn();
            }
            Message::Incr { units } => {
                check_added(units)?;
                let more = moved(self.added, units.0.into())?;
                if R::SLIP != Some(Slip::DeafInTurn) || self.head().is_none() {
                    self.added = more;
                }
            }
            Message::Reset { units } => {
                if self.token.is_some() && R::SLIP.is_none() {
                    return Err(PeerFault::Unexpected("a reset by a site without the token"));
                }
                if units != self.reset {
                    return Err(PeerFault::Unexpected("a reset by another amount"));
                }
                let less = moved(self.added, -units)?;
                self.added = if R::SLIP == Some(Slip::Unsigned) { less.max(0) } else { less };
                if R::SLIP != Some(Slip::NoAcknowledgement) {
                    out.send(from, None, Message::Ack);
                }
            }
            Message::Ack => {
                let expected = self.token.as_mut().is_some_and(|token| token.missing.remove(from));
                if !expected {
                    return Err(PeerFault::Unexpected("an acknowledgement of nothing"));
                }
                self.finish_reset();
            }
        }
        self.settle(out);
        Ok(())
    }

    /// Where the token is, also for claims of others: that is where to ask on.
    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        let Some(&units) = self.claims.get(&claim) else {
            let ahead = self.head().filter(|_| self.next == Some(claim));
            return ahead.map_or_else(Vec::new, |head| vec![self.behind(head)]);
        };
        let blocker = |site| Blocker { site, pool: self.pool, units, claim: None };
        match (&self.token, self.head()) {
            (None, _) => self.asked.map(blocker).into_iter().collect(),
            (Some(_), Some(head)) if head.claim == claim => {
                vec![Blocker { units: at_least_one(head.missing), ..blocker(self.me) }]
            }
            (Some(_), Some(head)) => vec![self.behind(head)],
            (Some(token), None) => token.missing.iter().map(blocker).collect(),
        }
    }

    fn head(&self) -> Option<Head> {
        let token = self.token.as_ref()?;
        let claim = token.turn?;
        let units = self.claims.get(&claim).copied().unwrap_or(Units(u32::MAX));
        Some(Head {
            claim,
            missing: missing(units, self.value(token)),
            taken: (self.reset == SELDOM).then_some(token.taken),
        })
    }

    fn room(&self) -> u64 {
        room(self.added)
    }

    fn is_at_rest(&self) -> bool {
        let resets = self.token.as_ref().is_some_and(|token| !token.missing.is_empty());
        self.claims.is_empty() && self.asked.is_none() && self.next.is_none() && !resets
    }

    fn audit(&self) {
        if R::SLIP.is_some() {
            return;
        }
        let root = self.last.is_none();
        assert!(!root || self.token.is_some() || self.asked.is_some(), "ends have or want it");
        assert!(self.token.is_none() || self.asked.is_none(), "whoever has it does not ask");
        assert!(!root || self.next.is_none(), "nobody is behind the end");
        let Some(token) = &self.token else { return };
        if token.missing.is_empty() {
            assert_eq!(token.turn.is_none(), self.claims.is_empty(), "who can have a turn has it");
            assert!(token.turn.is_some() || self.next.is_none(), "the token is passed on");
        }
        assert!(self.head().is_none_or(|head| head.missing > 0), "a turn waits for units only");
    }
}

impl<R: Rules> ByToken<R> {
    /// The units there are, as far as is known here.
    fn value(&self, token: &Token) -> i64 {
        self.initial + self.added - token.taken
    }

    fn behind(&self, head: Head) -> Blocker {
        let units = at_least_one(head.missing);
        Blocker { site: self.me, pool: self.pool, units, claim: Some(head.claim) }
    }

    fn tell_others(&self, said: &Message, out: &mut Out<'_, Message>) {
        for site in self.members.iter().filter(|&site| site != self.me) {
            out.send(site, None, said.clone());
        }
    }

    /// Asks for the token and becomes the end of the queue.
    fn ask(&mut self, claim: Stamp, out: &mut Out<'_, Message>) {
        let last = self.last.take().expect("an end has the token or has asked for it");
        self.asked = Some(last);
        out.send(last, claim, Message::Request { claim });
    }

    fn on_request(&mut self, claim: Stamp, out: &mut Out<'_, Message>) -> Result<(), PeerFault> {
        if !self.members.contains(claim.site) || claim.site == self.me {
            return Err(PeerFault::ForeignClaim(claim));
        }
        match self.last.replace(claim.site) {
            Some(last) if last == claim.site => {
                self.last = Some(last);
                return Err(PeerFault::Unexpected("a request on its way back"));
            }
            Some(last) => out.send(last, claim, Message::Request { claim }),
            None => self.next = Some(claim),
        }
        Ok(())
    }

    /// Serves whose turn it is as far as there are units, and passes the token on.
    fn settle(&mut self, out: &mut Out<'_, Message>) {
        loop {
            let Some(token) = self.token.as_ref().filter(|token| token.missing.is_empty()) else {
                return;
            };
            let Some(turn) = token.turn else {
                let own = self.claims.first_key_value().map(|(&claim, _)| claim);
                match self.next {
                    Some(next) if own.is_none_or(|own| next < own) => return self.pass_on(out),
                    _ if own.is_none() => return,
                    _ => self.take_turn(),
                }
                continue;
            };
            if self.head().is_none_or(|head| head.missing > 0) {
                return;
            }
            self.take(turn, out);
        }
    }

    fn take_turn(&mut self) {
        let mut own = self.claims.keys();
        let youngest = R::SLIP == Some(Slip::OvertakesAtHome);
        let turn = if youngest { own.next_back() } else { own.next() }.copied();
        if let Some(token) = &mut self.token {
            token.turn = turn;
        }
    }

    fn take(&mut self, turn: Stamp, out: &mut Out<'_, Message>) {
        let units = self.claims.remove(&turn).expect("whose turn it is waits");
        let token = self.token.as_mut().expect("whose turn it is has the token");
        token.turn = None;
        if R::SLIP != Some(Slip::TakesUncounted) {
            token.taken += i64::from(units.0);
        }
        let full = token.taken >= self.reset;
        out.grant(turn);
        if full {
            self.added -= self.reset;
            if R::SLIP == Some(Slip::Unsigned) {
                self.added = self.added.max(0);
            }
            self.tell_others(&Message::Reset { units: self.reset }, out);
            if R::SLIP != Some(Slip::NoAcknowledgement) {
                let others = self.members.iter().filter(|&site| site != self.me);
                self.token.as_mut().expect("it is here").missing = others.collect();
            }
            self.finish_reset();
        }
    }

    /// The token counts from zero once everybody does.
    fn finish_reset(&mut self) {
        if let Some(token) = self.token.as_mut().filter(|token| token.missing.is_empty()) {
            token.taken -= self.reset;
        }
    }

    fn pass_on(&mut self, out: &mut Out<'_, Message>) {
        let (Some(token), Some(next)) = (self.token.take(), self.next.take()) else { return };
        out.send(next.site, next, Message::Token { taken: token.taken });
        if let Some((&claim, _)) = self.claims.first_key_value() {
            self.ask(claim, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::protocol::{Effects, Input, Protocol, step};
    use crate::types::{Clock, Demand};

    /// Delivers everything until nothing is left; says who was granted.
    fn settle(
        sites: &mut [(SemToken, Clock)],
        from: SiteId,
        out: &mut Effects<crate::parts::semaphores::About<Message>, ()>,
    ) -> Vec<Stamp> {
        let mut granted = Vec::new();
        let mut todo: Vec<_> = out.drain().map(|effect| (from, effect)).collect();
        while !todo.is_empty() {
            let (from, effect) = todo.remove(0);
            match effect {
                crate::Effect::Send { to, clock: sent, message, .. } => {
                    let (protocol, clock) = &mut sites[to.index()];
                    let input = Input::Deliver { from, clock: sent, message };
                    step(protocol, clock, input, out).unwrap();
                    todo.extend(out.drain().map(|effect| (to, effect)));
                }
                crate::Effect::Grant { claim, .. } => granted.push(claim),
                crate::Effect::Reject { .. }
                | crate::Effect::Revoke { .. }
                | crate::Effect::Arm { .. }
                | crate::Effect::Disarm { .. } => unreachable!("nothing else is said"),
            }
        }
        granted
    }

    fn cluster() -> Vec<(SemToken, Clock)> {
        let cluster = Cluster::new(3, 1);
        (0..3).map(|n| (SemToken::new(SiteId(n), &cluster), Clock::default())).collect()
    }

    #[test]
    fn what_one_adds_another_takes() {
        let mut sites = cluster();
        let mut out = Effects::default();
        let (protocol, clock) = &mut sites[1];
        let claim = protocol.next_stamp(*clock);
        let demand = Demand::one(PoolId(0), 3);
        step(protocol, clock, Input::Claim { claim, demand }, &mut out).unwrap();
        assert_eq!(settle(&mut sites, SiteId(1), &mut out), []);
        let head = sites[1].0.head(PoolId(0)).unwrap();
        assert_eq!((head.claim, head.missing, head.taken), (claim, 2, Some(0)));
        let (protocol, clock) = &mut sites[2];
        let demand = Demand::one(PoolId(0), 2);
        step(protocol, clock, Input::Add { demand }, &mut out).unwrap();
        assert_eq!(settle(&mut sites, SiteId(2), &mut out), [claim]);
        assert!(sites.iter().all(|(protocol, _)| protocol.is_at_rest()));
    }

    #[test]
    fn a_counter_that_is_full_takes_no_more() {
        let mut one = ByToken::<Sound>::new(SiteId(0), &Cluster::new(2, 1), PoolId(0));
        one.added = LIMIT - 3;
        assert_eq!(one.room(), 3);
        one.added = LIMIT + 5;
        assert_eq!(one.room(), 0);
        assert_eq!(moved(2 * LIMIT - 1, 1), Err(PeerFault::Unexpected("a counter is full")));
        assert_eq!(moved(-2 * LIMIT + 1, -1), Err(PeerFault::Unexpected("a counter is full")));
    }
}
