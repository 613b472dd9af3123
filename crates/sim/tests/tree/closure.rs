//! Everything that can happen from a right start: tokens stay right, nobody is left waiting.

use kofm_core::protocols::tree::Tree;
use kofm_core::{Cluster, Demand, PoolId};
use kofm_sim::exhaustive::explore;
use kofm_sim::world::Script;

#[test]
fn probe() {
    for (n, l, k, rounds) in
        [(1, 1, 1, 2), (2, 1, 1, 1), (2, 1, 1, 2), (2, 2, 2, 1), (3, 1, 1, 1), (3, 2, 2, 1)]
    {
        let cluster = Cluster::new(n, l);
        let demands = (1..=k).map(|k| Demand::one(PoolId(0), k)).collect();
        let script = Script::new(n, rounds, demands);
        let t = std::time::Instant::now();
        let found = explore::<Tree>(&cluster, &script, 3_000_000, |_| {});
        println!(
            "{n} {l} {k} {rounds}: {} states, complete {}, depth {} {:?}",
            found.states,
            found.complete,
            found.depth,
            t.elapsed()
        );
        if let Some((v, steps)) = found.violation {
            println!("{v:?}");
            for s in steps {
                println!("{}", s.text());
            }
            break;
        }
    }
}
