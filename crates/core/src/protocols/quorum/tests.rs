//! What the generic suites cannot know: who explains what, and what is refused.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::protocol::{Effect, Effects, Input, step};
use crate::quorums::{Arbitration, Construction};
use crate::types::Clock;

const POOL: PoolId = PoolId(0);

/// Site 0 and site 1 of two that both ask both.
struct Pair {
    sites: Vec<(Quorum, Clock)>,
}

impl Pair {
    fn new(units: u32) -> Self {
        let construction = Some(Construction::Broadcast);
        let said = Arbitration { construction, ..Arbitration::default() };
        let arbitration = [(POOL, said)].into();
        let cluster = Cluster { arbitration, ..Cluster::new(2, units) };
        let site = |me| (Quorum::new(me, &cluster), Clock::default());
        Self { sites: cluster.all().map(site).collect() }
    }

    fn claim(&mut self, site: usize, units: u32) -> (Stamp, Vec<Message>) {
        let (protocol, clock) = &mut self.sites[site];
        let claim = protocol.next_stamp(*clock);
        (claim, self.step(site, Input::Claim { claim, demand: Demand::one(POOL, units) }).unwrap())
    }

    fn deliver(&mut self, to: usize, message: &Message) -> Result<Vec<Message>, PeerFault> {
        let from = SiteId(u16::from(to == 0));
        let (clock, message) = (Clock::default(), message.clone());
        self.step(to, Input::Deliver { from, clock, message })
    }

    /// Takes a step; says what was sent.
    fn step(&mut self, site: usize, input: Input<Message, ()>) -> Result<Vec<Message>, PeerFault> {
        let mut out = Effects::default();
        let (protocol, clock) = &mut self.sites[site];
        step(protocol, clock, input, &mut out)?;
        let sent = out.drain().filter_map(|effect| match effect {
            Effect::Send { message, .. } => Some(message),
            Effect::Grant { .. }
            | Effect::Reject { .. }
            | Effect::Revoke { .. }
            | Effect::Arm { .. }
            | Effect::Disarm { .. } => None,
        });
        Ok(sent.collect())
    }
}

#[test]
fn arbiters_say_whom_they_granted_instead() {
    let mut pair = Pair::new(2);
    let (younger, request) = pair.claim(1, 2);
    let grants = pair.deliver(0, &request[0]).unwrap();
    let older = Stamp { time: 1, site: SiteId(0) };
    assert!(older < younger);
    // Site 0 has heard of the younger claim, so its own would be younger still; site 1 hears of an
    // older one all the same, as if it had been slow.
    pair.deliver(1, &Message::Request { claim: older, pool: POOL, units: Units(1) }).unwrap();
    let blocker = |site, units, claim| Blocker { site: SiteId(site), pool: POOL, units, claim };
    let at = |pair: &Pair, site: usize, claim| pair.sites[site].0.explain(claim);
    // Its own arbiter took the grant back; the other one has not answered.
    let waits = vec![blocker(0, Units(2), None), blocker(1, Units(1), Some(older))];
    assert_eq!(at(&pair, 1, younger), waits);
    // The other arbiter's grant arrives, and is not enough.
    assert_eq!(pair.deliver(1, &grants[0]), Ok(vec![]));
    assert_eq!(at(&pair, 1, younger), [blocker(1, Units(1), Some(older))]);
    // The arbiter that is asked about a claim of another site.
    assert_eq!(at(&pair, 0, younger), []);
    let recall = Message::Inquire { claim: younger, pool: POOL, attempt: 1, older };
    let [yielded] = &pair.deliver(1, &recall).unwrap()[..] else { panic!("it yields") };
    assert_eq!(*yielded, Message::Yield { claim: younger, pool: POOL, attempt: 1 });
    assert_eq!(at(&pair, 1, younger)[0], blocker(0, Units(2), Some(older)));
}

#[test]
fn nonsense_is_refused() {
    let mut pair = Pair::new(2);
    let (claim, request) = pair.claim(0, 1);
    assert!(pair.deliver(1, &request[0]).is_ok());
    let stamp = |time, site| Stamp { time, site: SiteId(site) };
    let (pool, units) = (POOL, Units(1));
    let far = PoolId(7);
    let arbiter = [
        Message::Request { claim, pool, units },
        Message::Request { claim: stamp(4, 1), pool, units },
        Message::Request { claim: stamp(4, 0), pool: far, units },
        Message::Request { claim: stamp(4, 0), pool, units: Units(3) },
        Message::Request { claim: stamp(4, 0), pool, units: Units(0) },
        Message::Yield { claim, pool, attempt: 1 },
        Message::Reduce { claim, pool, units },
        Message::Reduce { claim, pool, units: Units(0) },
        Message::Reduce { claim: stamp(4, 0), pool, units },
        Message::Release { claim: stamp(4, 0), pool },
        Message::Grant { claim, pool, attempt: 1 },
    ];
    for message in arbiter {
        assert!(pair.deliver(1, &message).is_err(), "{message:?}");
    }
    let claimant = [
        Message::Grant { claim, pool, attempt: 0 },
        Message::Grant { claim, pool, attempt: 2 },
        Message::Grant { claim, pool: far, attempt: 1 },
        Message::Inquire { claim, pool, attempt: 1, older: stamp(0, 1) },
    ];
    for message in claimant {
        assert!(pair.deliver(0, &message).is_err(), "{message:?}");
    }
    assert!(pair.deliver(0, &Message::Grant { claim, pool, attempt: 1 }).is_ok());
    // What is late is dropped: the claim is held.
    let late = Message::Inquire { claim, pool, attempt: 1, older: stamp(0, 1) };
    assert_eq!(pair.deliver(0, &late), Ok(vec![]));
}
