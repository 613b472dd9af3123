//! What a P costs with a token, for 3 to 1,000 sites: `cargo run --release -p kofm-sim --example
//! semaphore_token`.
//!
//! A P needs the hops of its request and one for the token; a request finds the last in the queue
//! in about log n hops on average. The other two protocols stand beside it.

use kofm_core::protocols::sem_permission::SemPermission;
use kofm_core::protocols::sem_quorum::SemQuorum;
use kofm_core::protocols::sem_token::SemToken;
use kofm_core::{Cluster, Protocol};
use kofm_sim::report::Report;
use kofm_sim::seeded::{Blind, Setup, run};
use kofm_sim::span::Span;

const SITES: [u16; 10] = [3, 5, 10, 20, 50, 100, 200, 300, 500, 1_000];

fn main() {
    println!("messages per P; V is n-1 with all three (mean over 3 seeds, think ~10n and ~1)\n");
    println!("         ------ sem-token, rare ------  --- sem-token, crowded ---");
    println!(
        "   sites     mean   most   mean/log2 n     mean   most   mean/log2 n  permission  quorum"
    );
    for sites in SITES {
        let rare = Span::Exponential(10.0 * f64::from(sites));
        let (calm, busy) = (token(sites, rare), token(sites, Span::Exponential(1.0)));
        let log = f64::from(sites).log2();
        let others = 2 * (sites - 1);
        let quorum = cost::<SemQuorum>(sites, rare, 1).0;
        assert_eq!(cost::<SemPermission>(3, rare, 1), (4.0, 4), "2(n-1), always");
        print!("  {sites:>6}");
        for (mean, most) in [calm, busy] {
            print!("  {mean:>7.2}  {most:>5}  {:>12.2}", mean / log);
        }
        println!("  {others:>10}  {quorum:>6.1}");
    }
}

fn token(sites: u16, think: Span) -> (f64, u32) {
    let costs: Vec<(f64, u32)> = (1..=3).map(|seed| cost::<SemToken>(sites, think, seed)).collect();
    let mean = costs.iter().map(|cost| cost.0).sum::<f64>() / costs.len() as f64;
    (mean, costs.iter().map(|cost| cost.1).max().unwrap_or(0))
}

fn cost<P: Protocol>(sites: u16, think: Span, seed: u64) -> (f64, u32) {
    let requests = 2_000.max(u64::from(sites) * 3);
    let setup = Setup { think, requests, seed, ..Setup::new(Cluster::new(sites, 3)) };
    let report: Report = run::<P>(&setup, &mut Blind);
    assert!(report.is_clean(), "{:?}", report.violations);
    let cost = report.messages_per_grant();
    (cost.mean, cost.max)
}
