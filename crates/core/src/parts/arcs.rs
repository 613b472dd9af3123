//! Which of two groups goes first, where both need the same process or the same resource.
//!
//! A process stands once for each of its groups, as a *copy*. Between two copies that cannot work
//! at the same time there is an arc, and it points at one of them: that one *leads*. Each end keeps
//! its own note of the arc. A group that has worked lets everybody else lead, so that the arcs
//! among groups never form a cycle, and every group comes to lead all others again.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::grouping::{GroupId, Grouping};
use crate::protocol::Census;
use crate::types::SiteId;

/// The arcs of one process, as it knows them. Own groups are named by their place in its list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arcs {
    place: Place,
    /// Whether own group k leads copy c, at k × copies + c. A group leads itself.
    leads: Box<[bool]>,
}

/// Where a process stands; it never changes, so it is not worth hashing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place(Arc<Stand>);

impl Hash for Place {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[derive(Debug, PartialEq, Eq)]
struct Stand {
    me: SiteId,
    grouping: Grouping,
    /// Its groups, in order.
    groups: Vec<GroupId>,
    rivals: Vec<SiteId>,
    /// Copies: its own in the order of its groups, then those of its rivals.
    copies: Vec<(SiteId, GroupId)>,
    /// Where the copies of each rival begin, and of nobody at the end.
    begins: Vec<usize>,
}

impl Arcs {
    /// The arcs of `me` before any group has worked: the smaller group leads, unless the grouping
    /// says otherwise.
    pub fn new(me: SiteId, grouping: &Grouping) -> Self {
        let groups = grouping.of(me);
        let rivals = grouping.rivals(me);
        let mut copies: Vec<_> = groups.iter().map(|&group| (me, group)).collect();
        let mut begins = vec![copies.len()];
        for &rival in &rivals {
            copies.extend(grouping.of(rival).into_iter().map(|group| (rival, group)));
            begins.push(copies.len());
        }
        let row =
            |&own: &GroupId| copies.iter().map(move |&copy| grouping.leads_first((me, own), copy));
        let leads = groups.iter().flat_map(row).collect();
        let stand = Stand { me, grouping: grouping.clone(), groups, rivals, copies, begins };
        Self { place: Place(Arc::new(stand)), leads }
    }

    /// The process.
    pub fn me(&self) -> SiteId {
        self.place.0.me
    }

    /// The structure that it is part of.
    pub fn grouping(&self) -> &Grouping {
        &self.place.0.grouping
    }

    /// The groups that the process belongs to.
    pub fn groups(&self) -> &[GroupId] {
        &self.place.0.groups
    }

    /// Its competitors.
    pub fn rivals(&self) -> &[SiteId] {
        &self.place.0.rivals
    }

    /// For judges: the competitors whose forks are here.
    pub fn census(&self, here: impl Iterator<Item = bool>) -> Census {
        let forks = self.rivals().iter().zip(here).filter(|(_, here)| *here);
        Census { tokens: forks.map(|(rival, _)| rival.0.into()).collect(), ..Census::default() }
    }

    /// The place of a competitor in the list of competitors.
    pub fn rival(&self, site: SiteId) -> Option<usize> {
        self.rivals().binary_search(&site).ok()
    }

    /// The place of a group in the list of own groups.
    pub fn own(&self, group: GroupId) -> Option<usize> {
        self.groups().binary_search(&group).ok()
    }

    /// The other members of an own group.
    pub fn others(&self, own: usize) -> impl Iterator<Item = SiteId> + '_ {
        let (me, group) = (self.me(), self.groups()[own]);
        self.grouping().members(group).iter().copied().filter(move |&site| site != me)
    }

    fn row(&self, own: usize) -> &[bool] {
        let copies = self.place.0.copies.len();
        &self.leads[own * copies..][..copies]
    }

    /// Whether an own group leads another one of this process.
    pub fn leads_own(&self, own: usize, other: usize) -> bool {
        self.row(own)[other]
    }

    /// Whether an own group leads everybody.
    pub fn leads_all(&self, own: usize) -> bool {
        self.row(own).iter().all(|&leads| leads)
    }

    /// Whether an own group leads every copy of every competitor, whatever holds between the
    /// process's own groups.
    pub fn leads_rivals(&self, own: usize) -> bool {
        self.row(own)[self.groups().len()..].iter().all(|&leads| leads)
    }

    /// Whether an own group leads every copy of a competitor.
    pub fn leads_rival(&self, own: usize, rival: usize) -> bool {
        let begins = &self.place.0.begins;
        self.row(own)[begins[rival]..begins[rival + 1]].iter().all(|&leads| leads)
    }

    /// Whether an own group leads some copy of a competitor.
    pub fn leads_some(&self, own: usize, rival: usize) -> bool {
        let begins = &self.place.0.begins;
        self.row(own)[begins[rival]..begins[rival + 1]].iter().any(|&leads| leads)
    }

    /// Whether an own group leads this copy of a competitor; none where there is no such copy.
    pub fn leads_copy(&self, own: usize, rival: usize, group: GroupId) -> Option<bool> {
        Some(self.row(own)[self.copy(rival, group)?])
    }

    fn copy(&self, rival: usize, group: GroupId) -> Option<usize> {
        let begins = &self.place.0.begins;
        let copies = &self.place.0.copies[begins[rival]..begins[rival + 1]];
        copies.iter().position(|copy| copy.1 == group).map(|place| begins[rival] + place)
    }

    /// Whether some own group leads this copy of a competitor; none where there is no such copy.
    pub fn any_leads(&self, rival: usize, group: GroupId) -> Option<bool> {
        let copy = self.copy(rival, group)?;
        let copies = self.place.0.copies.len();
        Some(self.leads.iter().skip(copy).step_by(copies).any(|&leads| leads))
    }

    /// A competitor has worked for a group and lets every own group lead it.
    pub fn turn(&mut self, rival: usize, group: GroupId) {
        if let Some(copy) = self.copy(rival, group) {
            let copies = self.place.0.copies.len();
            self.leads.iter_mut().skip(copy).step_by(copies).for_each(|leads| *leads = true);
        }
    }

    /// An own group has worked and lets everybody lead it. The competitors have to be told.
    pub fn give_way(&mut self, own: usize) {
        let copies = self.place.0.copies.len();
        for copy in (0..copies).filter(|&copy| copy != own) {
            self.leads[own * copies + copy] = false;
        }
        for other in (0..self.groups().len()).filter(|&other| other != own) {
            self.leads[other * copies + own] = true;
        }
    }

    /// Every arc: the own group, the copy at its other end, and whether the own group leads.
    pub fn list(&self) -> impl Iterator<Item = (GroupId, (SiteId, GroupId), bool)> + '_ {
        let stand = &self.place.0;
        stand.groups.iter().enumerate().flat_map(move |(own, &group)| {
            let ends = stand.copies.iter().zip(self.row(own));
            ends.filter(move |(copy, _)| **copy != (stand.me, group))
                .map(move |(&copy, &leads)| (group, copy, leads))
        })
    }
}
