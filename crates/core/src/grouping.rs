//! Who works with whom, and what each needs: the structure that group protocols run on.
//!
//! Each site is one process. It needs some resources, all of them at once; two processes that need
//! the same one compete. Groups are sets of processes, and a process may be in several. A group
//! works only when every member has everything, and a process works for one group at a time.
//!
//! Resources are the units of pool 0, by number. A grant to a process names its resources and, as
//! unit s of pool 1 + g, its seat in the group g that it is to work for.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::types::{Demand, PoolId, SiteId, Unit, Units};

/// One group, numbered from 0; of two that have never worked, the smaller goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The group's place in a table that has one entry per group.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The pool whose units are the seats of this group.
    pub const fn seats(self) -> PoolId {
        PoolId(self.0 + 1)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Processes with their needs, and groups with their members. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Plan", into = "Plan")]
pub struct Grouping(Arc<Plan>);

/// A grouping as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Plan {
    needs: Vec<Vec<u32>>,
    members: Vec<Vec<SiteId>>,
    /// Pairs of competitors, the holder of their fork first, where it is not the smaller one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    forks: Vec<(SiteId, SiteId)>,
    /// Pairs of copies that cannot work at once, the one that leads first, where that is not the
    /// smaller group. A copy is a process in one of its groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    arcs: Vec<(Copied, Copied)>,
}

/// A process in one of its groups.
pub type Copied = (SiteId, GroupId);

/// Why a grouping makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupingError {
    /// Too few or too many processes, groups or resources for the cluster.
    Size,
    /// A group without members.
    Nobody(GroupId),
    /// A group that names a process that does not exist.
    UnknownProcess(GroupId, SiteId),
    /// A group that names a process twice.
    Twice(GroupId, SiteId),
    /// A process that belongs to no group.
    Idle(SiteId),
    /// A process that needs nothing, or the same thing twice.
    Needs(SiteId),
    /// Two members of one group that need the same resource: they could never work together.
    Rivals(GroupId, SiteId, SiteId),
    /// A fork between processes that do not compete.
    Fork(SiteId, SiteId),
    /// An arc between processes that do not compete, or groups that they are not in.
    Arc(SiteId, SiteId),
    /// More pairs of competitors than a cluster can keep books of.
    TooManyRivals,
}

impl fmt::Display for GroupingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => write!(
                f,
                "there must be 1 to {} processes, one for each site, as many groups at most, and \
                 no more resources than units",
                Grouping::MOST
            ),
            Self::Nobody(group) => write!(f, "group {group} has no members"),
            Self::UnknownProcess(group, site) => {
                write!(f, "group {group} names process {site}, which does not exist")
            }
            Self::Twice(group, site) => write!(f, "group {group} names process {site} twice"),
            Self::Idle(site) => write!(f, "process {site} is in no group"),
            Self::Needs(site) => {
                write!(
                    f,
                    "process {site} needs nothing, or something twice: name each resource once"
                )
            }
            Self::Rivals(group, a, b) => write!(
                f,
                "{a} and {b} of group {group} need the same resource: they can never work together"
            ),
            Self::Fork(a, b) => write!(f, "{a} and {b} do not compete: there is no fork"),
            Self::Arc(a, b) => {
                write!(f, "{a} and {b} have no two groups that compete: there is no arc")
            }
            Self::TooManyRivals => {
                write!(f, "more than {} pairs of competitors", Grouping::RIVALS)
            }
        }
    }
}

impl TryFrom<Plan> for Grouping {
    type Error = GroupingError;
    fn try_from(plan: Plan) -> Result<Self, GroupingError> {
        let mut grouping = Self::new(plan.needs, plan.members)?;
        for (holder, other) in plan.forks {
            grouping = grouping.with_fork(holder, other)?;
        }
        for ((a, g), (b, h)) in plan.arcs {
            grouping = grouping.with_arc((a, Some(g)), (b, Some(h)))?;
        }
        Ok(grouping)
    }
}

impl From<Grouping> for Plan {
    fn from(grouping: Grouping) -> Self {
        Arc::unwrap_or_clone(grouping.0)
    }
}

impl fmt::Debug for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Grouping {
    /// The most processes, and the most groups.
    pub const MOST: usize = 10_000;
    /// The most pairs of competitors, each counted from both sides.
    pub const RIVALS: usize = 2_000_000;

    /// Processes by the resources that each needs, and groups by their members.
    pub fn new(
        mut needs: Vec<Vec<u32>>,
        mut members: Vec<Vec<SiteId>>,
    ) -> Result<Self, GroupingError> {
        let sizes = 1..=Self::MOST;
        if !sizes.contains(&needs.len()) || !sizes.contains(&members.len()) {
            return Err(GroupingError::Size);
        }
        for (site, list) in (0..).map(SiteId).zip(&mut needs) {
            list.sort_unstable();
            let most = u32::try_from(Self::MOST).expect("it fits");
            let twice = list.windows(2).any(|pair| pair[0] == pair[1]);
            if list.is_empty() || twice || list.iter().any(|&resource| resource >= most) {
                return Err(GroupingError::Needs(site));
            }
        }
        let mut users = vec![Vec::new(); Self::MOST];
        for (site, list) in (0..).map(SiteId).zip(&needs) {
            for &resource in list {
                users[resource as usize].push(site);
            }
        }
        let pairs: usize = users.iter().map(|users| users.len() * users.len().max(1)).sum();
        if pairs > Self::RIVALS {
            return Err(GroupingError::TooManyRivals);
        }
        let mut busy = vec![false; needs.len()];
        for (group, list) in (0..).map(GroupId).zip(&mut members) {
            if list.is_empty() {
                return Err(GroupingError::Nobody(group));
            }
            list.sort_unstable();
            let mut taken = alloc::collections::BTreeMap::new();
            for (i, &site) in list.iter().enumerate() {
                let Some(process) = busy.get_mut(site.index()) else {
                    return Err(GroupingError::UnknownProcess(group, site));
                };
                *process = true;
                if i > 0 && list[i - 1] == site {
                    return Err(GroupingError::Twice(group, site));
                }
                for &resource in &needs[site.index()] {
                    if let Some(other) = taken.insert(resource, site) {
                        return Err(GroupingError::Rivals(group, other, site));
                    }
                }
            }
        }
        if let Some(idle) = busy.iter().position(|busy| !busy) {
            let idle = u16::try_from(idle).expect("processes are fewer than 2^16");
            return Err(GroupingError::Idle(SiteId(idle)));
        }
        Ok(Self(Arc::new(Plan { needs, members, forks: Vec::new(), arcs: Vec::new() })))
    }

    /// The same, with the fork between two competitors at `holder` to begin with.
    pub fn with_fork(self, holder: SiteId, other: SiteId) -> Result<Self, GroupingError> {
        if holder == other || !self.compete(holder, other) {
            return Err(GroupingError::Fork(holder, other));
        }
        let mut plan = Arc::unwrap_or_clone(self.0);
        plan.forks.retain(|&(a, b)| (a, b) != (other, holder) && (a, b) != (holder, other));
        if holder > other {
            plan.forks.push((holder, other));
            plan.forks.sort_unstable();
        }
        Ok(Self(Arc::new(plan)))
    }

    /// The same, with arcs to begin with that point at the first of two processes: it leads, for
    /// this group of its own or for all, this group of the other or all. Arcs that disagree are not
    /// refused: they are what the paper's Figure 5 shows.
    pub fn with_arc(
        self,
        (leader, of): (SiteId, Option<GroupId>),
        (other, over): (SiteId, Option<GroupId>),
    ) -> Result<Self, GroupingError> {
        let compete = if leader == other { of != over } else { self.compete(leader, other) };
        let copies = |site: SiteId, only: Option<GroupId>| -> Vec<Copied> {
            let groups = self.of(site).into_iter();
            groups.filter(|&g| only.is_none_or(|only| only == g)).map(|g| (site, g)).collect()
        };
        let (ours, theirs) = (copies(leader, of), copies(other, over));
        if !compete || ours.is_empty() || theirs.is_empty() {
            return Err(GroupingError::Arc(leader, other));
        }
        let mut plan = Arc::unwrap_or_clone(self.0);
        for &a in &ours {
            for &b in theirs.iter().filter(|b| **b != a) {
                plan.arcs.retain(|&(x, y)| (x, y) != (a, b) && (x, y) != (b, a));
                if a.1 > b.1 {
                    plan.arcs.push((a, b));
                }
            }
        }
        plan.arcs.sort_unstable();
        Ok(Self(Arc::new(plan)))
    }

    /// Whether a copy of a process leads another one before any group has worked.
    pub fn leads_first(&self, a: Copied, b: Copied) -> bool {
        let said = |a, b| self.0.arcs.binary_search(&(a, b)).is_ok();
        said(a, b) || a.1 <= b.1 && !said(b, a)
    }

    /// What is assumed where nobody says otherwise: neighbours work in pairs, around, and process i
    /// needs resource i mod `units`. With four processes and two resources that is the paper's
    /// Figure 9. Where neighbours need the same resource they cannot be a pair; with one resource
    /// everybody works alone.
    pub fn usual(sites: u16, units: u32) -> Result<Self, GroupingError> {
        let needs: Vec<Vec<u32>> =
            (0..sites).map(|site| vec![u32::from(site) % units.max(1)]).collect();
        let mut members: Vec<Vec<SiteId>> = Vec::new();
        let mut paired = vec![false; usize::from(sites)];
        for i in 0..sites {
            let next = (i + 1) % sites;
            let mut pair = vec![SiteId(i), SiteId(next)];
            pair.sort_unstable();
            if needs[usize::from(i)] != needs[usize::from(next)] && !members.contains(&pair) {
                paired[usize::from(i)] = true;
                paired[usize::from(next)] = true;
                members.push(pair);
            }
        }
        let alone = (0..sites).filter(|&site| !paired[usize::from(site)]);
        members.extend(alone.map(|site| vec![SiteId(site)]));
        Self::new(needs, members)
    }

    /// How many processes there are: one per site.
    pub fn processes(&self) -> u16 {
        u16::try_from(self.0.needs.len()).expect("checked when made")
    }

    /// How many resources are spoken of.
    pub fn resources(&self) -> u32 {
        self.0.needs.iter().flatten().max().map_or(0, |last| last + 1)
    }

    /// All groups, in order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = GroupId> + use<> {
        (0..u16::try_from(self.0.members.len()).expect("checked when made")).map(GroupId)
    }

    /// The members of a group, in order; none where it does not exist.
    pub fn members(&self, group: GroupId) -> &[SiteId] {
        self.0.members.get(group.index()).map_or(&[], Vec::as_slice)
    }

    /// The resources that a process needs, in order.
    pub fn needs(&self, process: SiteId) -> &[u32] {
        self.0.needs.get(process.index()).map_or(&[], Vec::as_slice)
    }

    /// The groups that a process belongs to, in order.
    pub fn of(&self, process: SiteId) -> Vec<GroupId> {
        self.all().filter(|&group| self.members(group).contains(&process)).collect()
    }

    /// Whether two processes need the same resource.
    pub fn compete(&self, a: SiteId, b: SiteId) -> bool {
        self.needs(a).iter().any(|resource| self.needs(b).contains(resource))
    }

    /// The processes that compete with this one, in order.
    pub fn rivals(&self, process: SiteId) -> Vec<SiteId> {
        let others = (0..self.processes()).map(SiteId).filter(|&other| other != process);
        others.filter(|&other| self.compete(process, other)).collect()
    }

    /// Whether two groups cannot work at the same time: they share a process, or some of their
    /// members compete.
    pub fn adjacent(&self, a: GroupId, b: GroupId) -> bool {
        let clash = |&i: &SiteId| self.members(b).iter().any(|&j| i == j || self.compete(i, j));
        self.members(a).iter().any(clash)
    }

    /// Who has the fork of two competitors to begin with.
    pub fn fork_holder(&self, a: SiteId, b: SiteId) -> SiteId {
        let (low, high) = (a.min(b), a.max(b));
        if self.0.forks.contains(&(high, low)) { high } else { low }
    }

    /// What a process asks for when it wants to work for whichever group comes first.
    pub fn demand(&self, process: SiteId) -> Demand {
        Demand::one(PoolId(0), u32::try_from(self.needs(process).len()).expect("checked when made"))
    }

    /// What a process asks for when it wants to work for this group.
    pub fn demand_for(&self, process: SiteId, group: GroupId) -> Demand {
        self.demand(process).parts().chain([(group.seats(), Units(1))]).collect()
    }

    /// The group that a demand names, if it names one.
    pub fn named(demand: &Demand) -> Option<GroupId> {
        demand.pools().find(|pool| pool.0 > 0).map(|pool| GroupId(pool.0 - 1))
    }

    /// What a process is given when it begins to work for a group.
    pub fn units(&self, process: SiteId, group: GroupId) -> Vec<Unit> {
        let resources = self.needs(process).iter();
        let seat = Unit { pool: group.seats(), number: u32::from(process.0) };
        resources.map(|&number| Unit { pool: PoolId(0), number }).chain([seat]).collect()
    }

    /// The group that a grant is for.
    pub fn group_of(units: &[Unit]) -> Option<GroupId> {
        units.iter().find(|unit| unit.pool.0 > 0).map(|unit| GroupId(unit.pool.0 - 1))
    }

    /// The fewest and the most messages of one work of a group, all its members together, under
    /// [`groups`](crate::protocols::groups). Until every group has worked once it may be two more
    /// for each pair of competitors, where forks do not lie as the groups' order has it.
    pub fn price(&self, group: GroupId) -> (u64, u64) {
        let count = |n: usize| u64::try_from(n).expect("it came from memory");
        let members = self.members(group);
        let barriers = 2 * count(members.len() * (members.len() - 1));
        let rivals = || members.iter().flat_map(|&i| self.rivals(i));
        let least = count(rivals().count());
        let most: u64 = rivals().map(|j| 2 * count(self.of(j).len()) + 1).sum();
        (least + barriers, most + barriers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(list: &[u16]) -> Vec<SiteId> {
        list.iter().copied().map(SiteId).collect()
    }

    #[test]
    fn the_usual_grouping_of_four_and_two_is_figure_nine() {
        let usual = Grouping::usual(4, 2).expect("it makes sense");
        let groups: Vec<_> = usual.all().map(|group| usual.members(group).to_vec()).collect();
        assert_eq!(groups, [sites(&[0, 1]), sites(&[1, 2]), sites(&[2, 3]), sites(&[0, 3])]);
        assert_eq!(usual.rivals(SiteId(0)), sites(&[2]));
        assert!(usual.all().all(|a| usual.all().all(|b| usual.adjacent(a, b))));
        assert_eq!(usual.price(GroupId(0)), (2 + 4, 10 + 4));
    }

    #[test]
    fn every_number_of_sites_and_units_has_a_usual_grouping() {
        for n in 1..20 {
            for m in 1..20 {
                assert!(Grouping::usual(n, m).is_ok(), "{n} {m}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        let needs = || vec![vec![0], vec![1], vec![0]];
        let refused = |needs, members: &[&[u16]]| {
            Grouping::new(needs, members.iter().map(|list| sites(list)).collect()).unwrap_err()
        };
        let (g, s) = (GroupId(0), SiteId);
        assert_eq!(refused(needs(), &[]), GroupingError::Size);
        assert_eq!(refused(needs(), &[&[]]), GroupingError::Nobody(g));
        assert_eq!(refused(needs(), &[&[0, 7]]), GroupingError::UnknownProcess(g, s(7)));
        assert_eq!(refused(needs(), &[&[0, 0]]), GroupingError::Twice(g, s(0)));
        assert_eq!(refused(needs(), &[&[0, 1]]), GroupingError::Idle(s(2)));
        assert_eq!(refused(needs(), &[&[0, 2], &[1]]), GroupingError::Rivals(g, s(0), s(2)));
        assert_eq!(refused(vec![vec![], vec![1]], &[&[0, 1]]), GroupingError::Needs(s(0)));
        let fine = Grouping::new(needs(), vec![sites(&[0, 1]), sites(&[2])]).expect("fine");
        assert_eq!(fine.with_fork(s(0), s(1)).unwrap_err(), GroupingError::Fork(s(0), s(1)));
    }
}
