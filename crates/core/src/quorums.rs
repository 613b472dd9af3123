//! Whom a site asks: sets of arbiters, any M + 1 of which have one in common.
//!
//! # Idea
//!
//! If claims together want more than M units, then some M + 1 of them do. Give every site a set of
//! arbiters to ask such that any M + 1 sets share an arbiter: he sees all M + 1 claims, and lets
//! no more than M units through. The smaller the sets, the fewer the messages; but shared arbiters
//! must exist, and not be the same few for everybody.
//!
//! # Constructions
//!
//! | name | set of a site | members, roughly | source |
//! | --- | --- | --- | --- |
//! | `broadcast` | everybody | N | Raynal 1990 |
//! | `threshold` | a fixed group, enough of it | n, of which M/(M+1) | |
//! | `uniform` | a stretch of the ring | N·M/(M+1) | |
//! | `tournament` | the next half of the ring, M = 1 | N/2 | Baldoni 1994 (v) |
//! | `projective` | a hyperplane | N^(M/(M+1)) | Maekawa 1985 for M = 1 |
//! | `grid` | whoever shares a coordinate | (M+1)·N^(M/(M+1)) | Baldoni 1994 |
//! | `cyclic` | a pattern on the ring, N ≤ 21, M ≤ 3 | the fewest of that kind | found by search |
//!
//! Sets may also be written down, one for each site: see [`Terms::sets`].
//!
//! # How many have to meet
//!
//! Any `min(N, M + 1)` sets. Baldoni's condition speaks of M + 1 different sites, which says
//! nothing where there are only M of them; but two sites that want M units each are in conflict
//! however many units there are. With N ≤ M all sets have to share an arbiter.
//!
//! # Crashes
//!
//! A site that waits for its whole set waits for ever for a dead arbiter: as printed, no crash is
//! survived. A set that is larger than it must be may do without some grants: `threshold`,
//! `uniform` and `projective` can be built for a budget of F crashes, and then every site asks its
//! whole set and enters with all grants but F. Nothing survives more than ⌈n/(M+1)⌉ − 1 of n.
//!
//! # Arbiters
//!
//! Every site is an arbiter, unless some are named. The fewer they are, the smaller the sets and
//! the busier the arbiters, down to one master that everybody asks: that is for the owner of a pool
//! to decide. Only `threshold` with a crash budget takes no more sites than it needs, the first
//! ones: pools that are to burden different sites name their arbiters.
//!
//! ```
//! use kofm_core::SiteId;
//! use kofm_core::quorums::{QuorumError, RequestSets, Terms};
//!
//! let plane = RequestSets::new(&Terms::new(7, 1))?;
//! assert_eq!(plane.of(SiteId(4)).arbiters.len(), 3);
//!
//! let group = RequestSets::new(&Terms { crashes: 1, ..Terms::new(7, 1) })?.of(SiteId(4));
//! assert_eq!((group.arbiters.len(), group.grants), (3, 2));
//! # Ok::<(), QuorumError>(())
//! ```
//!
//! Whether sets do meet is checked in the tests, exactly for small clusters and by samples for
//! large ones; no construction is trusted.

mod census;
mod comparison;
mod construction;
mod cyclic;
mod error;
mod field;
mod given;
mod grid;
mod projective;
mod ring;
mod shape;
mod singer;
#[cfg(test)]
mod tests;
mod thousandths;

use alloc::sync::Arc;
use alloc::vec::Vec;

pub use census::Census;
pub use comparison::{Comparison, Fewer, Row, compare};
pub use construction::Construction;
pub use error::QuorumError;
use given::Given;
use shape::{Shape, Task};
pub use thousandths::Thousandths;

use serde::{Deserialize, Serialize};

use crate::types::{Cluster, PoolId, SiteId, Units};

/// What the owner of a pool may say about its arbiters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Arbitration {
    /// How the sets are made; without a name the one with the fewest messages.
    pub construction: Option<Construction>,
    /// How many arbiters may be dead while everybody else still gets grants.
    pub crashes: u16,
    /// Who arbitrates; without a list every site does.
    pub arbiters: Option<Vec<SiteId>>,
}

/// What request sets are wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How many sites ask, at least one.
    pub sites: u16,
    /// How many units they share, at least one.
    pub units: u32,
    /// How many arbiters may be dead while everybody else still gets grants.
    pub crashes: u16,
    /// How the sets are made; without a name the one with the fewest messages.
    pub construction: Option<Construction>,
    /// Who arbitrates; without a list every site does.
    pub arbiters: Option<Vec<SiteId>>,
    /// The set of each site, if they are not made but given.
    pub sets: Option<Vec<Vec<SiteId>>>,
}

impl Terms {
    /// All sites are arbiters, no crashes, the best construction.
    pub const fn new(sites: u16, units: u32) -> Self {
        Self { sites, units, crashes: 0, construction: None, arbiters: None, sets: None }
    }

    /// The terms of a pool that exists.
    pub fn of(cluster: &Cluster, pool: PoolId) -> Self {
        let Units(units) = cluster.pools[pool.index()];
        let mut terms = Self::new(cluster.sites, units);
        if let Some(said) = cluster.arbitration.get(&pool) {
            terms.crashes = said.crashes;
            terms.construction = said.construction;
            terms.arbiters.clone_from(&said.arbiters);
        }
        terms.sets = cluster.sets.get(&pool).cloned();
        if !cluster.absent.is_empty() {
            let here = |site: &SiteId| !cluster.absent.contains(*site);
            let named = terms.arbiters.iter().flatten().copied().filter(here).collect::<Vec<_>>();
            // Somebody has to arbitrate, also where all who were named are gone.
            let arbiters = if named.is_empty() { cluster.all().collect() } else { named };
            terms.arbiters = Some(arbiters);
        }
        terms
    }

    /// The same without what can be done without: for a pool whose owner's terms cannot be met with
    /// the sites that are left.
    fn lenient(self) -> Self {
        Self { crashes: 0, construction: None, sets: None, ..self }
    }
}

/// The set of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestSet {
    /// Whom it asks, in order; often itself among them.
    pub arbiters: Vec<SiteId>,
    /// How many of them have to grant.
    pub grants: usize,
}

/// The sets of all sites. Cheap to clone; a set is built when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSets {
    sites: u16,
    /// The arbiters in order, where they are not all sites.
    named: Option<Arc<[SiteId]>>,
    shape: Shape,
}

impl RequestSets {
    /// Sets on these terms, or what is wrong with them.
    pub fn new(terms: &Terms) -> Result<Self, QuorumError> {
        let Some(last) = terms.sites.checked_sub(1).map(SiteId) else {
            return Err(QuorumError::NoSites);
        };
        if terms.units == 0 {
            return Err(QuorumError::NoUnits);
        }
        if let Some(sets) = &terms.sets {
            let meet = u32::from(terms.sites).min(terms.units.saturating_add(1));
            let shape = Shape::Given(Given::new(sets, terms.sites, meet)?);
            return Ok(Self { sites: terms.sites, named: None, shape });
        }
        let named = terms.arbiters.as_deref().map(|list| in_order(list, last)).transpose()?;
        let task = Task::new(terms, named.as_deref().map(count));
        let shape = match terms.construction {
            Some(construction) => Shape::new(construction, &task)?,
            None => Shape::best(&task)?,
        };
        Ok(Self { sites: terms.sites, named, shape })
    }

    /// Whether what is said about the arbiters of a cluster can be done: the first pool where it
    /// cannot, and why. What is not said can always be done.
    pub fn check(cluster: &Cluster) -> Result<(), (PoolId, QuorumError)> {
        for &pool in cluster.arbitration.keys().chain(cluster.sets.keys()) {
            let exists = cluster.pools.get(pool.index()).is_some_and(|units| !units.is_zero());
            if exists {
                Self::new(&Terms::of(cluster, pool)).map_err(|error| (pool, error))?;
            }
        }
        Ok(())
    }

    /// Sets for the sites that take part: on the owner's terms, or where those are too few for
    /// them, the best there are.
    pub fn of_pool(cluster: &Cluster, pool: PoolId) -> Result<Self, QuorumError> {
        let terms = Terms::of(cluster, pool);
        Self::new(&terms).or_else(|error| {
            if cluster.absent.is_empty() { Err(error) } else { Self::new(&terms.lenient()) }
        })
    }

    /// The construction that was named, or chosen; none where the sets were given.
    pub const fn construction(&self) -> Option<Construction> {
        self.shape.construction()
    }

    /// How many arbiters may be dead.
    pub fn crashes(&self) -> u16 {
        u16::try_from(self.shape.crashes()).expect("fewer than there are arbiters")
    }

    /// The set of `site`.
    pub fn of(&self, site: SiteId) -> RequestSet {
        let runs = self.shape.runs(self.position(site));
        let arbiters: Vec<SiteId> = runs.into_iter().flatten().map(|at| self.arbiter(at)).collect();
        let grants = arbiters.len() - usize::from(self.crashes());
        RequestSet { arbiters, grants }
    }

    /// All sites, in order.
    pub fn sites(&self) -> impl ExactSizeIterator<Item = SiteId> + use<> {
        (0..self.sites).map(SiteId)
    }

    /// How many arbiters there are.
    fn arbiters(&self) -> u32 {
        self.named.as_deref().map_or_else(|| u32::from(self.sites), count)
    }

    fn is_arbiter(&self, site: SiteId) -> bool {
        self.named.as_ref().is_none_or(|list| list.binary_search(&site).is_ok())
    }

    /// The place of `site` among the arbiters; a site that is none shares the set of one.
    fn position(&self, site: SiteId) -> u32 {
        let Some(list) = &self.named else { return u32::from(site.0) };
        let position = list.binary_search(&site).unwrap_or_else(|_| site.index() % list.len());
        u32::try_from(position).expect("fewer than there are sites")
    }

    fn arbiter(&self, position: u32) -> SiteId {
        let all = || SiteId(u16::try_from(position).expect("fewer than there are sites"));
        self.named.as_ref().map_or_else(all, |list| list[position as usize])
    }
}

fn count(list: &[SiteId]) -> u32 {
    u32::try_from(list.len()).expect("no more than there are sites")
}

/// The list sorted, each once, all known.
fn in_order(list: &[SiteId], last: SiteId) -> Result<Arc<[SiteId]>, QuorumError> {
    if let Some(&arbiter) = list.iter().find(|&&arbiter| arbiter > last) {
        return Err(QuorumError::Stranger { arbiter, last });
    }
    let mut list = list.to_vec();
    list.sort_unstable();
    list.dedup();
    if list.is_empty() { Err(QuorumError::NoArbiters) } else { Ok(list.into()) }
}
