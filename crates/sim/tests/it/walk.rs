//! Random walks through worlds, for laws that are about single steps.

use kofm_core::{
    Cluster, Demand, Effects, InputOf, PoolId, Profile, Protocol, Service, SiteId, Units,
};
use kofm_sim::rng::Rng;
use kofm_sim::world::{Local, Script, World};

/// Called before each step with the site as it is and the input that it is about to get.
pub(crate) trait Witness<P: Protocol> {
    fn before(&mut self, world: &World<P>, local: &Local<P>, input: &InputOf<P>);
}

/// A cluster that shows everything a protocol has to do, and what its clients do there.
pub(crate) fn busy(profile: &Profile) -> (Cluster, Script) {
    let full_service = profile.full_service;
    let mut cluster = Cluster::new(3, 3);
    let mut demands: Vec<Demand> = (1..=3).map(|k| Demand::one(PoolId(0), k)).collect();
    let mut amounts = Vec::new();
    if full_service {
        cluster.pools.push(Units(2));
        demands.push(Demand::one(PoolId(1), 2));
    }
    match profile.serves {
        Service::Pool if full_service => {
            demands.push([(PoolId(0), Units(2)), (PoolId(1), Units(1))].into_iter().collect());
        }
        Service::Pool | Service::Group | Service::Gang => {}
        // As much of each as is asked for.
        Service::Semaphore => amounts.clone_from(&demands),
    }
    let script = Script {
        slots: if full_service { 3 } else { 1 },
        withdraw: full_service,
        partial: full_service,
        adds: vec![1_000; 3],
        amounts,
        ..Script::new(3, 1_000, demands)
    };
    (cluster, script)
}

/// Walks `steps` steps that the seed decides.
pub(crate) fn walk<P: Protocol>(seed: u64, steps: u32, witness: &mut impl Witness<P>) {
    let (cluster, script) = busy(&P::PROFILE);
    let mut rng = Rng::new(seed);
    let mut world = World::<P>::new(&cluster, &script);
    let mut out = Effects::default();
    for _ in 0..steps {
        let enabled = world.enabled(&script);
        // A published listing may stand still.
        if P::PROFILE.as_printed && enabled.is_empty() {
            return;
        }
        let pick = rng.below(enabled.len() as u64);
        let action = enabled[usize::try_from(pick).unwrap()];
        let (site, input) = world.input(action, &script);
        witness.before(&world, &world.locals[site.index()], &input);
        let result = world.apply(site, input, &mut out);
        out.drain();
        if P::PROFILE.as_printed && result.is_err() {
            return;
        }
        result.unwrap();
    }
}

/// All sites of the busy cluster.
pub(crate) fn sites() -> impl Iterator<Item = SiteId> {
    (0..3).map(SiteId)
}
