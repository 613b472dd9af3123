//! Small stories, message by message.

use std::collections::BTreeSet;

use kofm_core::epoch::{Standing, Survey};
use kofm_core::protocols::roaming::{Message, Roaming, Rules, Sound};
use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, Input, PoolId, Protocol, SiteId, Stamp, Unit, Units,
    step,
};

use crate::{ByAge, EldersLast};

/// Sites whose messages are delivered when the story says so.
struct Story<R: Rules> {
    sites: Vec<(Roaming<R>, Clock)>,
    /// Messages on their way, first in first out on each link.
    mail: Vec<(SiteId, SiteId, Clock, Message)>,
    granted: BTreeSet<Stamp>,
}

impl<R: Rules> Story<R> {
    fn new(cluster: &Cluster, survey: &Survey) -> Self {
        let site = |me| (Roaming::resume(me, cluster, survey), Clock::default());
        Self {
            sites: cluster.all().map(site).collect(),
            mail: Vec::new(),
            granted: BTreeSet::new(),
        }
    }

    fn step(&mut self, site: u16, input: Input<Message, <Roaming<R> as Protocol>::Timer>) {
        let me = SiteId(site);
        let (protocol, clock) = &mut self.sites[usize::from(site)];
        let mut out = Effects::default();
        step(protocol, clock, input, &mut out).unwrap();
        protocol.audit();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, clock, message, .. } => self.mail.push((me, to, clock, message)),
                Effect::Grant { claim, .. } => {
                    self.granted.insert(claim);
                }
                Effect::Arm { .. } => {}
                other @ (Effect::Reject { .. } | Effect::Revoke { .. } | Effect::Disarm { .. }) => {
                    panic!("{other:?}")
                }
            }
        }
    }

    fn claim(&mut self, site: u16, units: u32) -> Stamp {
        let (protocol, clock) = &self.sites[usize::from(site)];
        let claim = protocol.next_stamp(*clock);
        let demand: Demand = [(PoolId(0), Units(units))].into_iter().collect();
        self.step(site, Input::Claim { claim, demand });
        claim
    }

    fn release(&mut self, claim: Stamp) {
        self.step(claim.site.0, Input::Release { claim, part: None });
    }

    /// Delivers the first message between two sites.
    fn deliver(&mut self, from: u16, to: u16) {
        let link = |mail: &(SiteId, SiteId, Clock, Message)| (mail.0.0, mail.1.0) == (from, to);
        let i = self.mail.iter().position(link).expect("there is one");
        let (from, to, clock, message) = self.mail.remove(i);
        self.step(to.0, Input::Deliver { from, clock, message });
    }

    fn deliver_all(&mut self) {
        while let Some((from, to, ..)) = self.mail.first() {
            self.deliver(from.0, to.0);
        }
    }
}

/// At site 1 a claim counts on the unit that is in use there, and a younger one asks for two. An
/// ask of site 2 was heard before, and takes that unit. So the older one asks, and is behind the
/// younger one when a unit comes.
fn an_elder_has_asked_late<R: Rules>() -> (Story<R>, [Stamp; 4]) {
    let mut story = Story::<R>::new(&Cluster::new(3, 3), &Survey::default());
    let far = story.claim(0, 1);
    let first = story.claim(2, 2);
    let near = story.claim(1, 1);
    let elder = story.claim(1, 1);
    let younger = story.claim(1, 2);
    assert!(first < elder && elder < younger);
    story.deliver(2, 0);
    story.deliver_all();
    story.release(near);
    story.deliver_all();
    assert!(story.granted.contains(&first) && !story.granted.contains(&elder));
    story.release(far);
    story.deliver_all();
    (story, [first, elder, younger, far])
}

#[test]
fn an_older_claim_of_the_same_site_goes_first() {
    let (mut story, [first, elder, younger, _]) = an_elder_has_asked_late::<Sound>();
    assert!(story.granted.contains(&elder) && !story.granted.contains(&younger));
    story.release(elder);
    story.release(first);
    story.deliver_all();
    assert!(story.granted.contains(&younger));
    let (story, [_, elder, ..]) = an_elder_has_asked_late::<EldersLast>();
    assert!(!story.granted.contains(&elder), "without that rule it waits for the younger one");
}

/// Site 1 has been quiet, so the stamp of its claim is older than that of one that was made before
/// it at site 0 and is decided already. Each site has one unit, and both claims need two.
fn a_quiet_site_asks_late<R: Rules>() -> (Story<R>, [Stamp; 2]) {
    let mut story = Story::<R>::new(&Cluster::new(2, 2), &Survey::default());
    let busy = story.claim(0, 1);
    story.release(busy);
    let first = story.claim(0, 2);
    let late = story.claim(1, 2);
    assert!(late < first);
    story.deliver_all();
    (story, [first, late])
}

#[test]
fn whoever_is_heard_first_goes_first() {
    let (mut story, [first, late]) = a_quiet_site_asks_late::<Sound>();
    assert!(story.granted.contains(&first) && !story.granted.contains(&late));
    story.release(first);
    story.deliver_all();
    assert!(story.granted.contains(&late));
    // By their stamps site 1 keeps its unit for the late claim, and site 0 keeps one to send it
    // there with that of site 1, which was told to give it.
    let (story, claims) = a_quiet_site_asks_late::<ByAge>();
    assert!(claims.iter().all(|claim| !story.granted.contains(claim)), "a circle");
}

/// Site 1 hopes for more units than its three, and site 2 has said that one lies idle there, before
/// it heard that the first claim of site 0, which needs all four, is to have that one. The next
/// unit of site 2 comes behind that claim. Found by one of fifty million claims: it was given to
/// who hoped, then site 3 was sent to site 1 for it, was older than the first claim, and took
/// what that one was waiting for.
#[test]
fn who_hopes_is_given_what_is_there() {
    let mut survey = Survey::default();
    let unit = |number| Unit { pool: PoolId(0), number };
    survey.idle.insert(unit(0), SiteId(0));
    let held = Stamp { time: 0, site: SiteId(1) };
    let units = Some([1, 2, 3].map(unit).to_vec());
    survey
        .claims
        .insert(held, Standing { held: units, ..Standing::waiting(Demand::one(PoolId(0), 3)) });
    let mut story = Story::<Sound>::new(&Cluster::new(4, 4), &survey);
    let hopeful = story.claim(1, 3);
    let one = story.claim(2, 1);
    story.deliver(2, 0);
    let two = story.claim(2, 1);
    story.deliver(1, 0);
    let first = story.claim(0, 4);
    story.deliver(2, 0);
    // Site 2 gets its unit, serves both claims with it, and has it idle.
    story.deliver(0, 2);
    story.release(one);
    story.release(two);
    story.deliver(2, 0);
    let old = story.claim(3, 1);
    assert!(old < first);
    story.deliver_all();
    for claim in [held, hopeful] {
        story.release(claim);
        story.deliver_all();
    }
    assert!(story.granted.contains(&first), "it waits for what was decided before it, no more");
    story.release(first);
    story.deliver_all();
    assert!(story.granted.contains(&old));
}

/// A claim that needs units which a departed site may still use does not stop the others.
#[test]
fn who_wants_more_than_there_is_now_steps_aside() {
    let mut survey = Survey::default();
    survey.withheld.insert(PoolId(0), Units(1));
    survey.withheld_units.insert(Unit { pool: PoolId(0), number: 1 });
    let mut story = Story::<Sound>::new(&Cluster::new(2, 2), &survey);
    let large = story.claim(1, 2);
    story.deliver_all();
    let small = story.claim(1, 1);
    story.deliver_all();
    assert!(story.granted.contains(&small) && !story.granted.contains(&large));
    let blockers = story.sites[1].0.explain(large);
    assert_eq!(blockers.len(), 1, "the pool that has not so many now");
}
