//! The words every protocol speaks: sites, pools, units, stamps, demands.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::grouping::{Grouping, GroupingError};
use crate::parts::SiteSet;
use crate::quorums::Arbitration;
use crate::readings::Fault;
use crate::topology::Topology;

/// One member of the cluster, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteId(pub u16);

impl SiteId {
    /// The site's place in a table that has one entry per site.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// One pool, numbered from 0; its name is the site's business.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId(pub u16);

impl PoolId {
    /// The pool's place in a table that has one entry per pool.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// A number of units. Arithmetic panics on overflow in every profile: a wrong count of units is
/// a bug that must stop the site, not wrap.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Units(pub u32);

impl Units {
    /// No units.
    pub const ZERO: Self = Self(0);

    /// Whether there are none.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The difference, or zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Units {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect("a pool has fewer than 2^32 units"))
    }
}

impl AddAssign for Units {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Units {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.checked_sub(other.0).expect("no more units are given back than were counted"))
    }
}

impl SubAssign for Units {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Units {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A claim's identity and its place in the queue: Lamport time, then site. Taken once, when the
/// claim is made; smaller is older and goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Lamport time at the claim.
    pub time: u64,
    /// The site that claims.
    pub site: SiteId,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.time, self.site)
    }
}

/// Orders the grants that reuse a unit: a Lamport time that every grant advances.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One named unit of a pool, numbered from 0 within it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Unit {
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Its number in that pool.
    pub number: u32,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.number)
    }
}

/// Two Lamport counters. One pair per site, shared by everything that the site claims: a clock per
/// pool lets two demands be ordered differently by two pools, and deadlocks.
///
/// Claims advance the first, grants the second. A grant must raise the fence, but must not make
/// the next claim of its site younger than it would have been; and as nothing ever depends on the
/// second, the checker need not tell apart worlds that differ only in their fences.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Clock {
    /// The largest time of a stamp that this site took or heard of.
    pub time: u64,
    /// The largest fence that this site gave out or heard of.
    pub fence: u64,
}

impl Clock {
    /// No honest clock gets here; a larger one is a peer's fault and is refused.
    pub const LIMIT: u64 = 1 << 62;

    /// The stamp that the next claim of `site` takes.
    pub const fn next_stamp(self, site: SiteId) -> Stamp {
        Stamp { time: self.time + 1, site }
    }

    /// Takes over what was seen elsewhere.
    pub fn merge(&mut self, seen: Self) {
        self.time = self.time.max(seen.time);
        self.fence = self.fence.max(seen.fence);
    }

    /// Whether an honest site can have sent this.
    pub const fn is_plausible(self) -> bool {
        self.time < Self::LIMIT && self.fence < Self::LIMIT
    }
}

/// What is asked at once: pool and units, granted all or nothing. Sorted by pool, each pool at
/// most once, no zero. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Demand(Arc<[(PoolId, Units)]>);

impl Demand {
    /// Units of a single pool.
    pub fn one(pool: PoolId, units: u32) -> Self {
        core::iter::once((pool, Units(units))).collect()
    }

    /// What is wanted of `pool`; zero where it is not named.
    pub fn units(&self, pool: PoolId) -> Units {
        self.0.binary_search_by_key(&pool, |part| part.0).map_or(Units::ZERO, |i| self.0[i].1)
    }

    /// The parts, in the order of their pools.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (PoolId, Units)> + '_ {
        self.0.iter().copied()
    }

    /// The pools named, in order.
    pub fn pools(&self) -> impl ExactSizeIterator<Item = PoolId> + '_ {
        self.0.iter().map(|part| part.0)
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `part` asks for no more than this, pool by pool.
    pub fn covers(&self, part: &Self) -> bool {
        part.parts().all(|(pool, units)| units <= self.units(pool))
    }

    /// What is left after `part` is given back; `None` where `part` is more than this.
    #[must_use]
    pub fn minus(&self, part: &Self) -> Option<Self> {
        self.covers(part)
            .then(|| self.parts().map(|(pool, units)| (pool, units - part.units(pool))).collect())
    }
}

impl FromIterator<(PoolId, Units)> for Demand {
    /// Pools named twice are added up, zeros are dropped.
    fn from_iter<I: IntoIterator<Item = (PoolId, Units)>>(parts: I) -> Self {
        let mut list: Vec<(PoolId, Units)> = Vec::new();
        for (pool, units) in parts {
            match list.binary_search_by_key(&pool, |part| part.0) {
                Ok(i) => list[i].1 += units,
                Err(i) => list.insert(i, (pool, units)),
            }
        }
        list.retain(|part| !part.1.is_zero());
        Self(list.into())
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (pool, units)) in self.parts().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{pool}:{units}")?;
        }
        Ok(())
    }
}

impl Serialize for Demand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Demand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Vec::<(PoolId, Units)>::deserialize(deserializer)?;
        // Whoever wrote it may be wrong, and the rest of the code relies on the order.
        let sorted = parts.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !sorted || parts.iter().any(|part| part.1.is_zero()) {
            return Err(serde::de::Error::custom("pools out of order, repeated or with no units"));
        }
        Ok(Self(parts.into()))
    }
}

/// People read these in traces, inside derived output: there they look as they do elsewhere.
macro_rules! debug_as_display {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_as_display!(SiteId, PoolId, Units, Stamp, Fence, Unit, Demand);

/// What every site knows of the cluster when a protocol starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cluster {
    /// How many sites there are, at least one, with those that are absent.
    pub sites: u16,
    /// Units in each pool, by `PoolId`.
    pub pools: Vec<Units>,
    /// Who can talk to whom.
    pub topology: Topology,
    /// Whom to ask for units of a pool, where its owner has a say in it; see
    /// [`RequestSets`](crate::quorums::RequestSets). Only protocols with arbiters look here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arbitration: BTreeMap<PoolId, Arbitration>,
    /// The request set of each site for units of a pool, if they are given. No configuration of
    /// sites has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<PoolId, Vec<Vec<SiteId>>>,
    /// Sites that take no part: they left, or have not come yet. A site keeps its number for ever,
    /// because stamps contain it.
    #[serde(default, skip_serializing_if = "SiteSet::is_empty")]
    pub absent: SiteSet,
    /// The site that is the root where one is needed, as long as it lives; otherwise the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<SiteId>,
    /// Who works with whom, for protocols that serve groups; see [`Cluster::grouping`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Grouping>,
    /// Units that are out of use: nobody is granted one, and whoever holds one keeps it. Only
    /// protocols whose units have names look here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub out: BTreeSet<Unit>,
    /// Pools whose leases end only by their holder or a person: see
    /// [`Plan::keeps`](crate::epoch::Plan::keeps). Protocols do not look here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keeps: BTreeSet<PoolId>,
    /// The faults that a published listing is run with; as printed where nothing is said. No
    /// configuration of sites has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<BTreeSet<Fault>>,
    /// The x of raz(x), for semaphores that reset their counters; no configuration of sites has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<u32>,
}

impl Cluster {
    /// `sites` sites, all connected, that share one pool of `units`.
    pub fn new(sites: u16, units: u32) -> Self {
        Self {
            sites,
            pools: alloc::vec![Units(units)],
            topology: Topology::Full,
            arbitration: BTreeMap::new(),
            sets: BTreeMap::new(),
            absent: SiteSet::new(),
            root: None,
            groups: None,
            out: BTreeSet::new(),
            keeps: BTreeSet::new(),
            reading: None,
            reset: None,
        }
    }

    /// The units of a pool that may be granted; nothing where there is no such pool.
    pub fn usable(&self, pool: PoolId) -> Option<Units> {
        let units = *self.pools.get(pool.index())?;
        let out = self.out.range(Unit { pool, number: 0 }..Unit { pool, number: units.0 });
        Some(units.saturating_sub(Units(u32::try_from(out.count()).unwrap_or(u32::MAX))))
    }

    /// The processes of a grouping, one per site, and its resources as the units of one pool.
    pub fn of_groups(groups: Grouping) -> Self {
        let (sites, units) = (groups.processes(), groups.resources());
        Self { groups: Some(groups), ..Self::new(sites, units) }
    }

    /// Who works with whom: as given, or else the usual for so many sites and units. Whoever makes
    /// a cluster for a protocol that serves groups asks this first.
    pub fn grouping(&self) -> Result<Grouping, GroupingError> {
        let units = self.pools.first().map_or(1, |units| units.0);
        match &self.groups {
            Some(groups) if groups.processes() != self.sites || groups.resources() > units => {
                Err(GroupingError::Size)
            }
            Some(groups) => Ok(groups.clone()),
            None => Grouping::usual(self.sites, units),
        }
    }

    /// All sites that take part, in order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = SiteId> + use<> {
        let absent = self.absent.clone();
        (0..self.sites).map(SiteId).filter(move |&site| !absent.contains(site))
    }

    /// All that take part but `me`.
    pub fn others(&self, me: SiteId) -> impl Iterator<Item = SiteId> + use<> {
        self.all().filter(move |&site| site != me)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_demand_is_sorted_and_adds_up() {
        let demand: Demand = [(PoolId(2), Units(1)), (PoolId(0), Units(3)), (PoolId(2), Units(1))]
            .into_iter()
            .collect();
        assert_eq!(
            demand.parts().collect::<Vec<_>>(),
            vec![(PoolId(0), Units(3)), (PoolId(2), Units(2))]
        );
        assert_eq!(demand.units(PoolId(1)), Units::ZERO);
    }

    #[test]
    fn giving_back_more_than_held_is_refused() {
        let held = Demand::one(PoolId(0), 2);
        assert_eq!(held.minus(&Demand::one(PoolId(0), 3)), None);
        assert_eq!(held.minus(&Demand::one(PoolId(0), 2)).map(|left| left.is_empty()), Some(true));
    }
}
