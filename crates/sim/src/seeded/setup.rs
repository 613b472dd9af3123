//! What a run depends on, and what is drawn by it.

use kofm_core::{Cluster, Demand, PoolId, SiteId, Units};

use crate::faults::Fault;
use crate::rng::Rng;
use crate::span::Span;

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Sites, pools, topology.
    pub cluster: Cluster,
    /// Units per claim, from and to; cut to the pool's size.
    pub k: (u32, u32),
    /// Claims over all sites.
    pub requests: u64,
    /// Clients per site, each with one claim at a time.
    pub clients: u32,
    /// Time between a release and the next claim.
    pub think: Span,
    /// Time between a grant and its release.
    pub hold: Span,
    /// Time that a message travels.
    pub delay: Span,
    /// How long a client waits before it gives up; for ever where there is none.
    pub patience: Option<Span>,
    /// Whether holders give back their units in two parts.
    pub partial: bool,
    /// Sites that ask this many times as often.
    pub hot: Vec<(SiteId, f64)>,
    /// Whether clients have no home: each claim is made at a site drawn by how often it asks.
    pub wander: bool,
    /// Sites that hold this many times as long.
    pub long: Vec<(SiteId, f64)>,
    /// What goes wrong while claims are being made.
    pub faults: Vec<Fault>,
    /// Decides everything else.
    pub seed: u64,
}

impl Setup {
    /// The defaults: 10,000 claims for one unit, think ~10, hold ~1, delay 0.5..1.5, seed 1.
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            k: (1, 1),
            requests: 10_000,
            clients: 1,
            think: Span::Exponential(10.0),
            hold: Span::Exponential(1.0),
            delay: Span::Uniform(0.5, 1.5),
            patience: None,
            partial: false,
            hot: Vec::new(),
            wander: false,
            long: Vec::new(),
            faults: Vec::new(),
            seed: 1,
        }
    }
}

pub(super) fn factor(list: &[(SiteId, f64)], site: SiteId) -> f64 {
    list.iter().find(|entry| entry.0 == site).map_or(1.0, |entry| entry.1)
}

/// A site, by how often each asks.
pub(super) fn draw_site(setup: &Setup, rng: &mut Rng) -> SiteId {
    let weight = |site: SiteId| factor(&setup.hot, site);
    let mut at = rng.unit() * setup.cluster.all().map(weight).sum::<f64>();
    let last = SiteId(setup.cluster.sites - 1);
    let mut drawn = |&site: &SiteId| {
        at -= weight(site);
        at < 0.0
    };
    setup.cluster.all().find(|site| drawn(site)).unwrap_or(last)
}

/// One of the semaphores, and k of it.
pub(crate) fn draw_one(setup: &Setup, rng: &mut Rng) -> Demand {
    let count = setup.cluster.pools.len() as u64;
    let pool = if count > 1 { rng.below(count) } else { 0 };
    let k = rng.between(setup.k.0.into(), setup.k.1.into());
    let small = "they came from such numbers";
    Demand::one(PoolId(u16::try_from(pool).expect(small)), u32::try_from(k).expect(small))
}

/// One pool: k of it. Several: a part of them that is not empty, each with its own k.
pub(crate) fn draw_demand(setup: &Setup, rng: &mut Rng) -> Demand {
    let pools = &setup.cluster.pools;
    let amount = |units: Units, rng: &mut Rng| {
        let (low, high) = (setup.k.0.min(units.0), setup.k.1.min(units.0));
        Units(u32::try_from(rng.between(low.into(), high.into())).expect("within 32 bits"))
    };
    if let [units] = pools[..] {
        return Demand::one(PoolId(0), amount(units, rng).0);
    }
    loop {
        let mut parts = Vec::new();
        for (pool, &units) in (0..).map(PoolId).zip(pools) {
            if rng.below(2) == 0 {
                parts.push((pool, amount(units, rng)));
            }
        }
        if !parts.is_empty() {
            return parts.into_iter().collect();
        }
    }
}
