//! Another checker, stateright, over the same worlds: it must see as many states.

use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::permission_lazy::PermissionLazy;
use kofm_core::protocols::permission_lazy_as_printed::PermissionLazyAsPrinted;
use kofm_core::{Cluster, Effects, Kind, Protocol};
use kofm_sim::chosen::explore;
use kofm_sim::world::{Action, Script, World};
use stateright::{Checker, Model, Property};

use crate::exhaustive::{all_states, ks};

/// A cluster and what its clients may do, as stateright wants it.
#[derive(Clone)]
struct Bounded<P> {
    cluster: Cluster,
    script: Script,
    protocol: std::marker::PhantomData<P>,
}

impl<P: Protocol + Sync> Model for Bounded<P>
where
    P::Message: Sync,
    P::Timer: Sync,
{
    type State = World<P>;
    type Action = Action<P::Timer>;

    fn init_states(&self) -> Vec<World<P>> {
        vec![World::new(&self.cluster, &self.script)]
    }

    fn actions(&self, world: &World<P>, actions: &mut Vec<Self::Action>) {
        actions.extend(world.enabled(&self.script));
    }

    fn next_state(&self, world: &World<P>, action: Self::Action) -> Option<World<P>> {
        let mut next = world.clone();
        let (site, input) = next.input(action, &self.script);
        next.apply(site, input, &mut Effects::default()).unwrap();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("capacity", |model: &Self, world: &World<P>| {
            model.cluster.pools.iter().enumerate().all(|(pool, units)| {
                let held = world.locals.iter().flat_map(|local| &local.claims);
                let held = held.filter(|client| client.held).flat_map(|c| c.demand.parts());
                held.filter(|part| part.0.index() == pool).map(|part| part.1.0).sum::<u32>()
                    <= units.0
            })
        })]
    }
}

fn bounded<P: Protocol>(cluster: Cluster, script: Script) -> Bounded<P> {
    Bounded { cluster, script, protocol: std::marker::PhantomData }
}

fn agrees<P: Protocol + Sync>(cluster: &Cluster, script: &Script)
where
    P::Message: Sync,
    P::Timer: Sync,
{
    let other = bounded::<P>(cluster.clone(), script.clone()).checker().spawn_bfs().join();
    other.assert_properties();
    assert_eq!(
        other.unique_state_count() as u64,
        all_states(Kind::named(P::NAME).unwrap(), cluster, script)
    );
}

#[test]
fn stateright_sees_as_many_states() {
    agrees::<Permission>(&Cluster::new(2, 2), &Script::new(2, 3, ks(1, 2)));
    agrees::<Permission>(&Cluster::new(3, 1), &Script::new(3, 2, ks(1, 1)));
    let all = Script { slots: 2, withdraw: true, partial: true, ..Script::new(2, 2, ks(1, 2)) };
    agrees::<Permission>(&Cluster::new(2, 2), &all);
    agrees::<PermissionLazy>(&Cluster::new(2, 3), &Script::new(2, 3, ks(1, 3)));
    agrees::<PermissionLazy>(&Cluster::new(2, 2), &all);
}

#[test]
fn stateright_refutes_the_published_listing_too() {
    let (cluster, script) = (Cluster::new(2, 2), Script::new(2, 2, ks(1, 2)));
    let ours = explore(Kind::PermissionLazyAsPrinted, &cluster, &script, 1_000_000, &mut |_| {});
    let checker = bounded::<PermissionLazyAsPrinted>(cluster, script).checker().spawn_bfs().join();
    let path = checker.discovery("capacity").expect("the listing is wrong");
    assert_eq!(path.into_actions().len(), ours.violation.unwrap().1.len());
}
