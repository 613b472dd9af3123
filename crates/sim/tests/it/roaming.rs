use kofm_core::protocols::roaming::Roaming;
use kofm_core::topology::Topology;
use kofm_core::{Cluster, Demand, PoolId, Units};
use kofm_sim::exhaustive::explore;
use kofm_sim::world::Script;

fn world(sites: u16, pools: &[u32], rounds: &[u32], demands: &[&[u32]]) -> (Cluster, Script) {
    let pools = pools.iter().copied().map(Units).collect();
    let cluster = Cluster { sites, pools, topology: Topology::Full };
    let demand = |parts: &&[u32]| -> Demand {
        (0..).map(PoolId).zip(parts.iter().copied().map(Units)).collect()
    };
    let script = Script {
        rounds: rounds.to_vec(),
        demands: demands.iter().map(demand).collect(),
        slots: 1,
        withdraw: false,
        partial: false,
    };
    (cluster, script)
}

fn states(name: &str, (cluster, script): &(Cluster, Script)) -> u64 {
    let found = explore::<Roaming>(cluster, script, 3_000_000, |_| {});
    if let Some((violation, steps)) = found.violation {
        for step in &steps { eprintln!("{step:?}"); }
        panic!("{name}: {violation:?}");
    }
    eprintln!("{name}: {} states, complete {}", found.states, found.complete);
    found.states
}

#[test]
fn small_worlds() {
    states("2x1", &world(2, &[1], &[2, 2], &[&[1]]));
    states("3x1", &world(3, &[1], &[1, 1, 1], &[&[1]]));
    let mut w = world(2, &[2], &[2, 2], &[&[1], &[2]]);
    w.1.withdraw = true;
    w.1.partial = true;
    states("2x2 wp", &w);
    w.1.slots = 2;
    states("2x2 wp slots", &w);
    states("2x3", &world(2, &[3], &[2, 2], &[&[1], &[2], &[3]]));
    states("3x2", &world(3, &[2], &[1, 1, 1], &[&[1], &[2]]));
    let mut w = world(3, &[1], &[2, 1, 1], &[&[1]]);
    w.1.withdraw = true;
    states("3x1 w", &w);
    let mut w = world(2, &[1, 1], &[2, 2], &[&[1], &[0, 1], &[1, 1]]);
    w.1.withdraw = true;
    states("2 AND", &w);
    w.1.slots = 2;
    states("2 AND slots", &w);
    states("3 AND", &world(3, &[1, 1], &[1, 1, 1], &[&[1], &[0, 1], &[1, 1]]));
    states("3x3", &world(3, &[3], &[1, 1, 1], &[&[1], &[2], &[3]]));
    states("3 2+1", &world(3, &[2, 1], &[1, 1, 1], &[&[1,1], &[2, 1], &[2]]));
}
