//! Starts with far more stale controllers than colours: sites heal from them.

use std::collections::VecDeque;

use kofm_core::protocols::tree::{Frame, Item, Rules, Tree};
use kofm_core::{Clock, Cluster, Effect, Effects, Input, Protocol, SiteId, step};
use kofm_sim::healing::Bare;

/// Two sites and what is on their links, by receiver.
struct Pair {
    sites: [(Tree<Bare>, Clock); 2],
    links: [VecDeque<(Clock, Frame)>; 2],
}

impl Pair {
    /// Controllers of consecutive colours are on their way to the child.
    fn new(colours: u64, stale: u64) -> Self {
        let cluster = Cluster::new(2, 1);
        let site = |me: u16| {
            let fresh = Tree::<Bare>::new(SiteId(me), &cluster);
            let colour = if me == 0 { 0 } else { colours - 1 };
            (fresh.left_with(colours, colour, 0).unwrap(), Clock::default())
        };
        let sites = [site(0), site(1)];
        let frame = |i| (Clock::default(), sites[0].0.stale(i % colours));
        let there = (0..stale).map(frame).collect();
        Self { sites, links: [VecDeque::new(), there] }
    }

    /// The next message to a site arrives.
    fn deliver(&mut self, site: usize) {
        let Some((clock, message)) = self.links[site].pop_front() else { return };
        let (protocol, own) = &mut self.sites[site];
        let mut out = Effects::default();
        let from = SiteId(u16::from(site == 0));
        step(protocol, own, Input::Deliver { from, clock, message }, &mut out).unwrap();
        for effect in out.drain() {
            if let Effect::Send { to, clock, message, .. } = effect {
                self.links[to.index()].push_back((clock, message));
            }
        }
    }

    fn controllers(&self) -> usize {
        let items = self.links.iter().flatten().flat_map(|(_, frame)| &frame.items);
        items.filter(|item| matches!(item, Item::Control(_))).count()
    }

    /// Lets many messages arrive: how many controllers are left, and whether the root has counted
    /// and found every token once.
    fn settle(mut self, deliveries: u64) -> (usize, bool) {
        for _ in 0..deliveries {
            self.deliver(1);
            self.deliver(0);
        }
        (self.controllers(), self.sites[0].0.is_sound() == Some(true))
    }
}

#[test]
fn sites_heal_from_any_number_of_stale_controllers() {
    let bounded = Bare::colours(2);
    assert_eq!(bounded, 18);
    for stale in [19, 1_009] {
        // One more than a multiple of the colours goes round forever where colours are few.
        let (left, _) = Pair::new(bounded, stale).settle(20 * stale);
        assert_eq!(left as u64, stale);
        let unbounded = kofm_core::protocols::tree::UNBOUNDED;
        assert_eq!(Pair::new(unbounded, stale).settle(20 * stale), (1, true), "{stale}");
    }
}

#[test]
fn a_site_has_colours_without_bound() {
    let cluster = Cluster::new(2, 1);
    let lab = Tree::<Bare>::new(SiteId(0), &cluster);
    assert_ne!(lab.clone().unbounded(), lab, "only sites do without a bound");
}

#[test]
fn a_frame_that_no_site_sends_is_refused() {
    let cluster = Cluster::new(2, 1);
    let mut site = Tree::<Bare>::new(SiteId(1), &cluster);
    let before = site.clone();
    let message = Frame { hello: None, items: vec![Item::Token(0); 1_000] };
    let input = Input::Deliver { from: SiteId(0), clock: Clock::default(), message };
    let mut out = Effects::default();
    assert!(step(&mut site, &mut Clock::default(), input, &mut out).is_err());
    assert_eq!(site, before);
}
