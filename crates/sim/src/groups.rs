//! What is promised of groups, judged by what clients see: who works, for which group.

use kofm_core::parts::SiteSet;
use kofm_core::{GroupId, Grouping, SiteId};

use crate::world::Violation;

/// Watches the groups of a cluster.
#[derive(Clone, Debug)]
pub struct Watch {
    grouping: Grouping,
    rivals: Vec<(SiteId, SiteId)>,
    /// By group, those that cannot work at the same time.
    adjacent: Vec<Vec<GroupId>>,
    /// Whether members have to leave together.
    strict: bool,
}

impl Watch {
    /// Watches these groups. If `strict`, two groups that share a process do not overlap even where
    /// some members have finished; the published listings do not get as far as to promise that.
    pub fn new(grouping: &Grouping, strict: bool) -> Self {
        let processes = (0..grouping.processes()).map(SiteId);
        let rivals = processes.flat_map(|i| {
            grouping.rivals(i).into_iter().filter(move |&j| i < j).map(move |j| (i, j))
        });
        // Two groups are adjacent where they share a process or where members compete.
        let near = |group: GroupId| {
            let mut list: Vec<GroupId> = grouping
                .members(group)
                .iter()
                .flat_map(|&member| grouping.rivals(member).into_iter().chain([member]))
                .flat_map(|process| grouping.of(process))
                .filter(|&other| other != group)
                .collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        Self {
            rivals: rivals.collect(),
            adjacent: grouping.all().map(near).collect(),
            grouping: grouping.clone(),
            strict,
        }
    }

    /// The groups.
    pub const fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// Nobody has begun: for each group, the members that have begun the work that goes on.
    pub fn nobody(&self) -> Vec<SiteSet> {
        self.grouping.all().map(|_| SiteSet::new()).collect()
    }

    /// A member begins to work for a group: once in each work, and only when all others that have
    /// still to begin wait for the same.
    pub fn begin(
        &self,
        begun: &mut [SiteSet],
        site: SiteId,
        group: GroupId,
        waits: impl Fn(SiteId) -> bool,
        works: impl Fn(SiteId) -> Option<GroupId>,
    ) -> Result<(), Violation> {
        let members = self.grouping.members(group);
        if !members.contains(&site) {
            let detail = format!("{site} works for {group}, which it is not in");
            return Err(Violation::new("membership", detail));
        }
        let set = &mut begun[group.index()];
        if !set.insert(site) {
            let detail = format!("{site} works for {group} again before the others did once");
            return Err(Violation::new("in step", detail));
        }
        for &other in members.iter().filter(|&&other| !set.contains(other)) {
            if let Some(elsewhere) = works(other).filter(|&elsewhere| elsewhere != group) {
                let detail = format!(
                    "{site} works for {group}, but its member {other} works for {elsewhere}"
                );
                return Err(Violation::new("one group at a time", detail));
            }
            if !waits(other) {
                let detail = format!("{site} works for {group}, but {other} is not ready for it");
                return Err(Violation::new("together", detail));
            }
        }
        if members.iter().all(|&member| set.contains(member)) {
            *set = SiteSet::new();
        }
        Ok(())
    }

    /// What must hold at any moment.
    pub fn judge<'a>(
        &self,
        begun: &[SiteSet],
        works: impl Fn(SiteId) -> &'a [GroupId],
    ) -> Result<(), Violation> {
        for &(a, b) in &self.rivals {
            if !works(a).is_empty() && !works(b).is_empty() {
                let detail = format!("{a} and {b} both use the resource that they compete for");
                return Err(Violation::new("exclusion", detail));
            }
        }
        for site in (0..self.grouping.processes()).map(SiteId) {
            if let [one, other, ..] = works(site) {
                let detail = format!("{site} works for {one} and {other} at the same time");
                return Err(Violation::new("one group at a time", detail));
            }
        }
        self.grouping.all().try_for_each(|group| self.judge_group(group, begun, &works))
    }

    /// That no adjacent group works while this one does. A group works from when its first member
    /// begins until its last one has finished.
    pub fn judge_group<'a>(
        &self,
        group: GroupId,
        begun: &[SiteSet],
        works: &impl Fn(SiteId) -> &'a [GroupId],
    ) -> Result<(), Violation> {
        let at_work = |group: GroupId| {
            let mut members = self.grouping.members(group).iter();
            !begun[group.index()].is_empty() || members.any(|&site| works(site).contains(&group))
        };
        if !at_work(group) {
            return Ok(());
        }
        let mut others = self.adjacent[group.index()].iter().filter(|&&other| at_work(other));
        others.try_for_each(|&other| self.judge_pair(group, other, begun, works))
    }

    fn judge_pair<'a>(
        &self,
        group: GroupId,
        other: GroupId,
        begun: &[SiteSet],
        works: &impl Fn(SiteId) -> &'a [GroupId],
    ) -> Result<(), Violation> {
        for (counting, elsewhere) in [(group, other), (other, group)] {
            let started = &begun[counting.index()];
            let away = |site: &&SiteId| {
                !started.is_empty()
                    && !started.contains(**site)
                    && works(**site).contains(&elsewhere)
            };
            if let Some(site) = self.grouping.members(counting).iter().find(away) {
                let detail = format!(
                    "{site} works for {elsewhere}, while {counting} works and counts it in"
                );
                return Err(Violation::new("one group at a time", detail));
            }
        }
        if !self.strict {
            return Ok(());
        }
        let detail = format!("{group} and {other} work at the same time");
        Err(Violation::new("overlap", detail))
    }
}
