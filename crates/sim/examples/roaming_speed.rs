//! Times `roaming` through `step()`.
//!
//! `cargo run --release -p kofm-sim --example roaming_speed`

#![expect(clippy::disallowed_methods, reason = "wall time is what this measures")]

use std::time::Instant;

use kofm_core::protocols::roaming::Roaming;
use kofm_core::{Clock, Cluster, Demand, Effects, Input, PoolId, Protocol, SiteId, Units, step};

const ROUNDS: u32 = 1_000_000;
const WAITING: u32 = 100_000;

fn main() {
    for (sites, pools) in [(3, 1), (100, 1), (1_000, 1), (3, 1_000)] {
        println!(
            "{sites} sites, {pools} pools: {} ns per local claim and release",
            local(sites, pools, 0)
        );
    }
    println!("beside {WAITING} that wait in another pool: {} ns", local(3, 2, WAITING));
    let (claim, serve) = waiting();
    println!("{WAITING} waiting claims: {claim} ns to make each, {serve} ns to serve each");
}

fn cluster(sites: u16, pools: usize) -> Cluster {
    Cluster { pools: vec![Units(8 * u32::from(sites)); pools], ..Cluster::new(sites, 1) }
}

/// Nanoseconds for a claim and its release that the site serves alone.
fn local(sites: u16, pools: usize, waiting: u32) -> u128 {
    let me = SiteId(0);
    let mut site = Roaming::new(me, &cluster(sites, pools));
    let (mut clock, mut out) = (Clock::default(), Effects::default());
    for _ in 0..waiting {
        claim(&mut site, &mut clock, &mut out, Demand::one(PoolId(1), 8));
    }
    let demand = Demand::one(PoolId(0), 1);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let claim = claim(&mut site, &mut clock, &mut out, demand.clone());
        let release = Input::Release { claim, part: None };
        step(&mut site, &mut clock, release, &mut out).expect("clients make no faults");
        out.drain();
    }
    start.elapsed().as_nanos() / u128::from(ROUNDS)
}

/// Nanoseconds to make a claim behind many others, and to serve one of them.
fn waiting() -> (u128, u128) {
    let mut site = Roaming::new(SiteId(0), &cluster(1, 1));
    let (mut clock, mut out) = (Clock::default(), Effects::default());
    let demand = Demand::one(PoolId(0), 8);
    let mut last = claim(&mut site, &mut clock, &mut out, demand.clone());
    let start = Instant::now();
    for _ in 0..WAITING {
        claim(&mut site, &mut clock, &mut out, demand.clone());
    }
    let made = start.elapsed().as_nanos() / u128::from(WAITING);
    let start = Instant::now();
    for _ in 0..WAITING {
        let release = Input::Release { claim: last, part: None };
        step(&mut site, &mut clock, release, &mut out).expect("clients make no faults");
        for effect in out.drain() {
            if let kofm_core::Effect::Grant { claim, .. } = effect {
                last = claim;
            }
        }
    }
    (made, start.elapsed().as_nanos() / u128::from(WAITING))
}

fn claim(
    site: &mut Roaming,
    clock: &mut Clock,
    out: &mut kofm_core::EffectsOf<Roaming>,
    demand: Demand,
) -> kofm_core::Stamp {
    let claim = clock.next_stamp(site.me());
    step(site, clock, Input::Claim { claim, demand }, out).expect("clients make no faults");
    out.drain();
    claim
}
