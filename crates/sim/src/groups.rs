//! What is promised of groups, judged by what clients see: who works, for which group.

use kofm_core::parts::SiteSet;
use kofm_core::{Cluster, GroupId, Grouping, Protocol, Service, SiteId, Stamp};

use crate::world::Violation;

/// Watches the groups of a cluster.
#[derive(Clone, Debug)]
pub struct Watch {
    grouping: Grouping,
    rivals: Vec<(SiteId, SiteId)>,
    /// By process, its competitors, and its groups.
    competitors: Vec<Vec<SiteId>>,
    groups_of: Vec<Vec<GroupId>>,
    /// By group, those that cannot work at the same time.
    adjacent: Vec<Vec<GroupId>>,
    /// Whether the work of a group lasts until its last member has finished.
    strict: bool,
}

impl Watch {
    /// Watches these groups, by the four properties of Definition 1 of Cheng 1999. If `strict`, the
    /// work of a group lasts until its last member has finished, and two groups that share a
    /// process do not overlap before; otherwise it ends for each member by itself.
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
            competitors: (0..grouping.processes()).map(|i| grouping.rivals(SiteId(i))).collect(),
            groups_of: (0..grouping.processes()).map(|i| grouping.of(SiteId(i))).collect(),
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
        let at_work = |group| self.at_work(group, begun, works);
        if !at_work(group) {
            return Ok(());
        }
        let mut others = self.adjacent[group.index()].iter().filter(|&&other| at_work(other));
        others.try_for_each(|&other| self.judge_pair(group, other, begun, works))
    }

    fn at_work<'a>(
        &self,
        group: GroupId,
        begun: &[SiteSet],
        works: &impl Fn(SiteId) -> &'a [GroupId],
    ) -> bool {
        let mut members = self.grouping.members(group).iter();
        !begun[group.index()].is_empty() || members.any(|&site| works(site).contains(&group))
    }

    /// Definition 1 (1) and (3), for the groups of a process: while a group works, every member
    /// that has not finished has all that it needs. `has` says whether the first process has what
    /// both need.
    pub fn judge_needs<'a>(
        &self,
        process: SiteId,
        begun: &[SiteSet],
        works: &impl Fn(SiteId) -> &'a [GroupId],
        has: &impl Fn(SiteId, SiteId) -> bool,
    ) -> Result<(), Violation> {
        let mut groups = self.groups_of[process.index()].iter();
        groups.try_for_each(|&group| self.judge_needs_of(group, begun, works, has))
    }

    fn judge_needs_of<'a>(
        &self,
        group: GroupId,
        begun: &[SiteSet],
        works: &impl Fn(SiteId) -> &'a [GroupId],
        has: &impl Fn(SiteId, SiteId) -> bool,
    ) -> Result<(), Violation> {
        if !self.at_work(group, begun, works) {
            return Ok(());
        }
        let started = &begun[group.index()];
        for &site in self.grouping.members(group) {
            let working = works(site).contains(&group);
            if !working && (started.is_empty() || started.contains(site)) {
                continue;
            }
            let mut rivals = self.competitors[site.index()].iter();
            if let Some(rival) = rivals.find(|&&rival| !has(site, rival)) {
                let detail = format!(
                    "{group} works, and its member {site} has not what it shares with {rival}"
                );
                return Err(Violation::new("resources", detail));
            }
        }
        Ok(())
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

/// What clients have seen of the groups of a run.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    watch: Watch,
    begun: Vec<SiteSet>,
    /// By site, the claims that wait, with the group that they are for, if they say so.
    waits: Vec<Vec<(Stamp, Option<GroupId>)>>,
    /// By site, the groups that it works for.
    works: Vec<Vec<GroupId>>,
}

impl Seen {
    pub(crate) fn new(grouping: &Grouping) -> Self {
        let watch = Watch::new(grouping, true);
        let processes = usize::from(grouping.processes());
        Self {
            begun: watch.nobody(),
            waits: vec![Vec::new(); processes],
            works: vec![Vec::new(); processes],
            watch,
        }
    }

    pub(crate) fn claimed(&mut self, claim: Stamp, group: Option<GroupId>) {
        self.waits[claim.site.index()].push((claim, group));
    }

    pub(crate) fn began(&mut self, claim: Stamp, group: GroupId) -> Result<(), Violation> {
        self.ended(claim);
        self.works[claim.site.index()].push(group);
        let waits = |site: SiteId| {
            let mut wishes = self.waits[site.index()].iter();
            wishes.any(|(_, wish)| wish.is_none_or(|wish| wish == group))
        };
        let works = |site: SiteId| self.works[site.index()].as_slice();
        let first = |site: SiteId| works(site).first().copied();
        self.watch.begin(&mut self.begun, claim.site, group, waits, first)?;
        if works(claim.site).len() > 1 {
            let detail = format!("{} works for {:?}", claim.site, works(claim.site));
            return Err(Violation::new("one group at a time", detail));
        }
        self.watch.judge_group(group, &self.begun, &works)
    }

    /// A process has taken a step; see [`Watch::judge_needs`].
    pub(crate) fn stepped(
        &self,
        site: SiteId,
        has: &impl Fn(SiteId, SiteId) -> bool,
    ) -> Result<(), Violation> {
        let works = |site: SiteId| self.works[site.index()].as_slice();
        self.watch.judge_needs(site, &self.begun, &works, has)
    }

    pub(crate) fn finished(&mut self, site: SiteId, group: GroupId) {
        self.works[site.index()].retain(|&other| other != group);
    }

    /// A claim waits no more.
    pub(crate) fn ended(&mut self, claim: Stamp) {
        self.waits[claim.site.index()].retain(|wait| wait.0 != claim);
    }
}

/// Whether claims of this protocol say which group they are for.
pub fn names_groups<P: Protocol>(cluster: &Cluster) -> bool {
    let seat = |grouping: Grouping| {
        let group = grouping.of(SiteId(0))[0];
        P::new(SiteId(0), cluster).capacity(group.seats()).is_some()
    };
    P::PROFILE.serves == Service::Group && cluster.grouping().is_ok_and(seat)
}

/// Who acts in a run with groups, and how often.
#[derive(Clone, Debug)]
pub(crate) struct Cast {
    grouping: Grouping,
    /// Claims that each site has still to make, where they do not name a group. Adjacent groups
    /// work in turn, so each process comes as often as all its groups together; otherwise somebody
    /// is left waiting for a group that has nobody left to work.
    left: Vec<u64>,
    /// Where claims name a group, its clients: one for each member.
    clients: Vec<(SiteId, GroupId)>,
}

impl Cast {
    pub(crate) fn new(grouping: Grouping, named: bool, requests: u64) -> Self {
        let count = |group: GroupId| grouping.members(group).len() as u64;
        let round: u64 = grouping.all().map(count).sum();
        let (rounds, mut rest) = (requests / round, requests % round);
        let mut left = vec![0; usize::from(grouping.processes())];
        // What is not a whole round goes to the first groups: they come first in every round.
        let mut more = true;
        for group in grouping.all() {
            more &= count(group) <= rest;
            rest -= if more { count(group) } else { 0 };
            for member in grouping.members(group) {
                left[member.index()] += rounds + u64::from(more);
            }
        }
        let seats = |group| grouping.members(group).iter().map(move |&member| (member, group));
        let clients = if named { grouping.all().flat_map(seats).collect() } else { Vec::new() };
        Self { grouping, left, clients }
    }

    /// The clients of named groups; empty where each site has its own.
    pub(crate) fn clients(&self) -> &[(SiteId, GroupId)] {
        &self.clients
    }

    /// The clients of a group, by the first of them.
    pub(crate) fn troupe(&self, first: u32) -> std::ops::Range<u32> {
        let members = self.grouping.members(self.clients[first as usize].1).len();
        first..first + u32::try_from(members).expect("sites fit in 16 bits")
    }

    /// The first client of the group that a client acts for.
    pub(crate) fn first(&self, client: u32) -> u32 {
        let group = self.clients[client as usize].1;
        let first = self.clients.iter().position(|other| other.1 == group);
        u32::try_from(first.expect("it is one of them")).expect("clients fit in 32 bits")
    }

    pub(crate) fn demand(&self, client: u32, site: SiteId) -> kofm_core::Demand {
        match self.clients.get(client as usize) {
            Some(&(_, group)) => self.grouping.demand_for(site, group),
            None => self.grouping.demand(site),
        }
    }

    /// Whether a site has a claim left to make; counts it.
    pub(crate) fn may_claim(&mut self, site: SiteId) -> bool {
        let left = &mut self.left[site.index()];
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }
}
