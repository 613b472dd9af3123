//! How often a waiting claim is passed: at most 2ℓ(2n−3) times.

use std::collections::VecDeque;

use kofm_core::protocols::tree::{Frame, Item, Rules, Sound, Timer, Tree};
use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, Input, InputOf, PoolId, Protocol, SiteId, Stamp, step,
};
use kofm_sim::healing::{Bare, Shape, passed};
use kofm_sim::rng::Rng;

use super::closure::Loose;

fn holds<R: Rules>(seeds: u64) {
    for seed in 0..seeds {
        let mut rng = Rng::new(seed ^ 0x3A17);
        let sites = u16::try_from(rng.between(2, 9)).unwrap();
        let units = u32::try_from(rng.between(1, 6)).unwrap();
        let shape = [Shape::Path, Shape::Star, Shape::Random][(seed % 3) as usize];
        let most = passed::<R>(sites, shape, units, seed);
        let bound = 2 * units * (2 * u32::from(sites) - 3);
        assert!(most <= bound, "{sites} {shape:?} {units} {seed}: {most} > {bound}");
    }
}

#[test]
fn a_claim_is_passed_at_most_2l_2n_minus_3_times() {
    holds::<Sound>(1_200);
    holds::<Bare>(1_200);
}

/// Two sites whose messages are delivered by hand: to the root first, to its child second.
struct Pair {
    sites: [(Tree<Loose>, Clock); 2],
    links: [VecDeque<(Clock, Frame)>; 2],
    granted: Vec<Stamp>,
}

impl Pair {
    fn new(units: u32) -> Self {
        let cluster = Cluster::new(2, units);
        let site = |me| (Tree::new(SiteId(me), &cluster), Clock::default());
        let mut pair =
            Self { sites: [site(0), site(1)], links: Default::default(), granted: Vec::new() };
        pair.take(0, Input::Fire { timer: Timer::Beat });
        pair
    }

    fn take(&mut self, site: u16, input: InputOf<Tree<Loose>>) {
        let (protocol, clock) = &mut self.sites[usize::from(site)];
        let mut out = Effects::default();
        step(protocol, clock, input, &mut out).unwrap();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, clock, message, .. } => {
                    self.links[to.index()].push_back((clock, message));
                }
                Effect::Grant { claim, .. } => self.granted.push(claim),
                Effect::Reject { .. }
                | Effect::Revoke { .. }
                | Effect::Arm { .. }
                | Effect::Disarm { .. } => {}
            }
        }
    }

    fn claim(&mut self, site: u16, units: u32) -> Stamp {
        let (protocol, clock) = &self.sites[usize::from(site)];
        let claim = protocol.next_stamp(*clock);
        self.take(site, Input::Claim { claim, demand: Demand::one(PoolId(0), units) });
        claim
    }

    /// Delivers the next messages to a site until one brings this token there, that one included.
    fn bring(&mut self, site: u16, token: u32) {
        loop {
            let (clock, message) = self.links[usize::from(site)].pop_front().unwrap();
            let arrives = message.items.contains(&Item::Token(token));
            self.take(site, Input::Deliver { from: SiteId(1 - site), clock, message });
            if arrives {
                break;
            }
        }
    }

    /// A claim for one unit that is granted with this token, and released.
    fn is_served(&mut self, site: u16, token: u32) {
        let claim = self.claim(site, 1);
        self.bring(site, token);
        assert_eq!(self.granted.pop(), Some(claim));
        self.take(site, Input::Release { claim, part: None });
    }
}

#[test]
fn the_papers_bound_is_too_small_for_two_sites() {
    let (pusher, priority) = (2, 3);
    let mut pair = Pair::new(2);
    // Who is served first puts the priority token behind the pusher.
    let first = pair.claim(1, 2);
    pair.bring(1, 1);
    pair.take(1, Input::Release { claim: first, part: None });
    pair.bring(0, 1);
    pair.bring(1, priority);
    pair.bring(0, priority);
    pair.granted.clear();

    // The root asks for both units. Its child gets the first, and the second, and keeps that.
    pair.claim(0, 2);
    pair.is_served(1, 0);
    let second = pair.claim(1, 1);
    pair.bring(1, 1);
    assert_eq!(pair.granted.pop(), Some(second));
    // The first unit comes to the root, and the pusher takes it away from there.
    pair.bring(0, 0);
    pair.bring(1, pusher);
    pair.bring(0, pusher);
    pair.take(1, Input::Release { claim: second, part: None });
    pair.is_served(1, 0);
    // Three claims have passed the root's. ℓ(2n−3)² would be 2, and 2ℓ(2n−3) is 4.
    assert!(pair.granted.is_empty());
}
