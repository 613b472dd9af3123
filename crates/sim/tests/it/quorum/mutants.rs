//! Mistakes that are easy to make, each caught, and by what.
//!
//! | mistake | caught by |
//! | --- | --- |
//! | never recalls a grant | progress |
//! | recalls when a claim arrives and not again | seeded runs: claims left waiting |
//! | takes a second grant for recalled | progress |
//! | lets a small claim pass an older one | progress |
//! | grants after a release without the test | capacity |
//! | a holder gives a grant back | capacity |
//! | counts a grant that was given back | capacity |
//! | one grant short | capacity |
//! | one pool of two suffices | capacity |
//! | a part given back counts as all | capacity |
//! | a withdrawal that nobody hears of | rest |
//! | yields are lost | progress |
//! | a grant is said twice | understanding |

use kofm_core::protocols::quorum::rules::{Rules, Slip};
use kofm_core::protocols::quorum::{Message, Quorum};
use kofm_core::quorums::Construction;
use kofm_core::{
    Blocker, Cluster, Demand, Effect, Effects, EffectsOf, PeerFault, PoolId, Profile, Protocol,
    SiteId, Stamp, Units,
};
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;
use kofm_sim::world::Script;

use super::{amounts, arbitrated, group, made_by, one_of_each, script, violated};

macro_rules! mutants {
    ($($slip:ident),*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $slip;

        impl Rules for $slip {
            const SLIP: Option<Slip> = Some(Slip::$slip);
        }
    )*};
}

mutants!(
    NeverRecalls,
    RecallsOnArrival,
    RemembersRecall,
    Overtakes,
    GrantsUnchecked,
    HolderYields,
    CountsYielded,
    OneGrantShort,
    OnePoolSuffices,
    ReducesToNothing,
    WithdrawsInSilence
);

/// The shortest way to what a mutant breaks, over a list of small clusters.
fn caught<R: Rules>() -> Option<(&'static str, usize)> {
    hunt::<Quorum<R>>()
}

fn hunt<P: Protocol>() -> Option<(&'static str, usize)> {
    let fano = arbitrated(7, 1, made_by(Construction::Projective));
    let pools = Cluster { pools: vec![Units(1), Units(1)], ..Cluster::new(3, 1) };
    let both = vec![one_of_each(&[0]), one_of_each(&[1]), one_of_each(&[0, 1])];
    let all = Script { withdraw: true, partial: true, ..script(&[1, 1, 1], amounts(&[1, 2])) };
    let worlds = [
        (Cluster::new(3, 1), script(&[2, 2, 2], amounts(&[1]))),
        (pools, script(&[1, 1, 1], both)),
        (fano, script(&[1, 1, 0, 1, 0, 0, 0], amounts(&[1]))),
        (Cluster::new(3, 2), script(&[1, 1, 1], amounts(&[1, 2]))),
        (arbitrated(4, 2, made_by(Construction::Uniform)), script(&[1, 1, 1, 1], amounts(&[1]))),
        (Cluster::new(3, 2), all),
    ];
    worlds.iter().find_map(|(cluster, script)| violated::<P>(cluster, script))
}

#[test]
fn every_slip_is_caught() {
    assert_eq!(caught::<NeverRecalls>(), Some(("progress", 6)));
    assert_eq!(caught::<RemembersRecall>(), Some(("progress", 15)));
    assert_eq!(caught::<Overtakes>(), Some(("progress", 14)));
    assert_eq!(caught::<GrantsUnchecked>(), Some(("capacity", 18)));
    assert_eq!(caught::<HolderYields>(), Some(("capacity", 6)));
    assert_eq!(caught::<CountsYielded>(), Some(("capacity", 6)));
    assert_eq!(caught::<OneGrantShort>(), Some(("capacity", 2)));
    assert_eq!(caught::<OnePoolSuffices>(), Some(("capacity", 6)));
    assert_eq!(caught::<ReducesToNothing>(), Some(("capacity", 13)));
    assert_eq!(caught::<WithdrawsInSilence>(), Some(("rest", 6)));
}

/// It takes four claims and no fifth that would start another recall, too much for the checker.
#[test]
fn a_recall_that_is_not_repeated_leaves_claims_waiting() {
    let stuck = |seed| {
        let crowd = Setup {
            k: (1, 2),
            requests: 4,
            think: Span::Exponential(0.5),
            delay: Span::Uniform(0.1, 3.0),
            seed,
            ..Setup::new(arbitrated(4, 2, group(&[2, 3])))
        };
        run::<Quorum<RecallsOnArrival>>(&crowd, &mut Blind).unserved > 0
    };
    assert!((0..3_000).any(stuck));
}

/// What goes wrong on the way.
trait Post: Clone + std::fmt::Debug + Eq + std::hash::Hash + Send + 'static {
    /// How many times this message arrives.
    fn copies(message: &Message) -> usize;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct YieldsLost;

impl Post for YieldsLost {
    fn copies(message: &Message) -> usize {
        usize::from(!matches!(message, Message::Yield { .. }))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GrantsTwice;

impl Post for GrantsTwice {
    fn copies(message: &Message) -> usize {
        1 + usize::from(matches!(message, Message::Grant { .. }))
    }
}

/// The protocol with such a post.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Posted<T> {
    inner: Quorum,
    post: std::marker::PhantomData<T>,
}

impl<T: Post> Posted<T> {
    fn send_on(inner: &mut EffectsOf<Quorum>, out: &mut EffectsOf<Self>) {
        out.set_clock(inner.clock());
        for effect in inner.drain() {
            let copies = match &effect {
                Effect::Send { message, .. } => T::copies(message),
                _ => 1,
            };
            for _ in 0..copies {
                out.push(effect.clone());
            }
        }
    }
}

impl<T: Post> Protocol for Posted<T> {
    const NAME: &'static str = "quorum";
    const PROFILE: Profile = Quorum::<kofm_core::protocols::quorum::rules::Sound>::PROFILE;

    type Message = Message;
    type Timer = ();

    fn new(me: SiteId, cluster: &Cluster) -> Self {
        Self { inner: Quorum::new(me, cluster), post: std::marker::PhantomData }
    }

    fn me(&self) -> SiteId {
        self.inner.me()
    }

    fn capacity(&self, pool: PoolId) -> Option<Units> {
        self.inner.capacity(pool)
    }

    fn on_claim(&mut self, claim: Stamp, demand: Demand, out: &mut EffectsOf<Self>) {
        let mut inner = Effects::at(out.clock());
        self.inner.on_claim(claim, demand, &mut inner);
        Self::send_on(&mut inner, out);
    }

    fn on_release(&mut self, claim: Stamp, part: Option<&Demand>, out: &mut EffectsOf<Self>) {
        let mut inner = Effects::at(out.clock());
        self.inner.on_release(claim, part, &mut inner);
        Self::send_on(&mut inner, out);
    }

    fn on_withdraw(&mut self, claim: Stamp, out: &mut EffectsOf<Self>) {
        let mut inner = Effects::at(out.clock());
        self.inner.on_withdraw(claim, &mut inner);
        Self::send_on(&mut inner, out);
    }

    fn on_message(
        &mut self,
        from: SiteId,
        message: Message,
        out: &mut EffectsOf<Self>,
    ) -> Result<(), PeerFault> {
        let mut inner = Effects::at(out.clock());
        self.inner.on_message(from, message, &mut inner)?;
        Self::send_on(&mut inner, out);
        Ok(())
    }

    fn explain(&self, claim: Stamp) -> Vec<Blocker> {
        self.inner.explain(claim)
    }

    fn is_at_rest(&self) -> bool {
        self.inner.is_at_rest()
    }
}

#[test]
fn a_bad_post_is_noticed() {
    assert_eq!(hunt::<Posted<YieldsLost>>(), Some(("progress", 10)));
    assert_eq!(hunt::<Posted<GrantsTwice>>(), Some(("understanding", 6)));
}
