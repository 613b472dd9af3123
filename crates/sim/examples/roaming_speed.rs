//! Times `roaming` through `step()`.
//!
//! `cargo run --release -p kofm-sim --example roaming_speed`

#![expect(clippy::disallowed_methods, reason = "wall time is what this measures")]

use std::collections::VecDeque;
use std::time::Instant;

use kofm_core::protocols::roaming::{Roaming, Sound};
use kofm_core::{
    Clock, Cluster, Demand, Effect, Effects, EffectsOf, Input, PoolId, Protocol, SiteId, Stamp,
    Units, step,
};

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
    for waiting in [1_000, 10_000, WAITING] {
        println!(
            "{waiting} waiting claims beside another site's: {} ns to serve each",
            contended(waiting)
        );
    }
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
            if let Effect::Grant { claim, .. } = effect {
                last = claim;
            }
        }
    }
    (made, start.elapsed().as_nanos() / u128::from(WAITING))
}

/// Nanoseconds to serve a claim where many small ones wait and behind them many large ones, while
/// another site asks for units all the time.
fn contended(waiting: u32) -> u128 {
    let cluster = Cluster::new(2, 8);
    let site = |me| (Roaming::<Sound>::new(SiteId(me), &cluster), Clock::default());
    let mut sites = [0, 1].map(site);
    let (mut out, mut mail) = (Effects::default(), VecDeque::new());
    let mut held: VecDeque<(Stamp, u32)> = VecDeque::new();
    let asks = (0..waiting).map(|i| (0, if i < waiting / 2 { 1 } else { 4 }));
    // Whoever is served asks again, at the end of its line.
    let mut todo: VecDeque<(usize, u32)> = asks.chain([(1, 1), (1, 2), (1, 3)]).collect();
    let mut start = Instant::now();
    let mut served = 0;
    while served < ROUNDS / 5 {
        let (to, input) = if let Some((site, units)) = todo.pop_front() {
            let claim = sites[site].1.next_stamp(sites[site].0.me());
            if todo.is_empty() && served == 0 {
                start = Instant::now();
            }
            (claim.site, Input::Claim { claim, demand: Demand::one(PoolId(0), units) })
        } else if let Some((from, to, clock, message)) = mail.pop_front() {
            (to, Input::Deliver { from, clock, message })
        } else if let Some((claim, units)) = held.pop_front() {
            todo.push_back((claim.site.index(), units));
            served += 1;
            (claim.site, Input::Release { claim, part: None })
        } else {
            panic!("everybody is served in the end");
        };
        let (site, clock) = &mut sites[to.index()];
        step(site, clock, input, &mut out).expect("nobody makes faults");
        for effect in out.drain() {
            match effect {
                Effect::Send { to: other, clock, message, .. } => {
                    mail.push_back((to, other, clock, message));
                }
                Effect::Grant { claim, units, .. } => {
                    held.push_back((claim, u32::try_from(units.len()).expect("a few")));
                }
                Effect::Reject { .. }
                | Effect::Revoke { .. }
                | Effect::Arm { .. }
                | Effect::Disarm { .. } => {}
            }
        }
    }
    start.elapsed().as_nanos() / u128::from(served)
}

fn claim(
    site: &mut Roaming,
    clock: &mut Clock,
    out: &mut EffectsOf<Roaming>,
    demand: Demand,
) -> Stamp {
    let claim = clock.next_stamp(site.me());
    step(site, clock, Input::Claim { claim, demand }, out).expect("clients make no faults");
    out.drain();
    claim
}
