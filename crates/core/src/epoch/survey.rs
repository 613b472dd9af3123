//! What members tell each other at a change of epoch, and what they agree on.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;

use serde::{Deserialize, Serialize};

use super::accounts::Books;
use super::conclude::conclude;
use super::keepers;
use super::leave::{Handed, Moved, Ticket};
use super::rules::Sound;
use crate::parts::SiteSet;
use crate::types::{Clock, Cluster, Demand, PoolId, SiteId, Stamp, Unit, Units};

/// A live claim as its site knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Standing {
    /// What it asks for, or still holds.
    pub demand: Demand,
    /// Its units by name where it is held, as the grant listed them; empty where they have none.
    /// Nothing where it waits.
    pub held: Option<Vec<Unit>>,
    /// The lease of a held claim that another life of some site granted; nothing for the others.
    pub adopted: Option<Adopted>,
    /// The facts with which another site goes on with a held claim, where only a person may free
    /// its units.
    pub kept: Option<Kept>,
}

impl Standing {
    /// A claim that waits.
    pub const fn waiting(demand: Demand) -> Self {
        Self { demand, held: None, adopted: None, kept: None }
    }

    /// A claim that holds these units.
    pub const fn holding(demand: Demand, units: Vec<Unit>) -> Self {
        Self { demand, held: Some(units), adopted: None, kept: None }
    }
}

/// A lease, by the site that granted it and the fence that it got. No two leases share both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The site that granted it.
    pub giver: SiteId,
    /// Larger than the fence of every earlier grant of its units.
    pub fence: u64,
}

/// Facts that the members keep of a lease that goes on after the life that granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Adopted {
    /// The lease.
    pub lease: LeaseKey,
    /// The quarantine in which its units were withheld. While the record has that quarantine, a
    /// lease with a larger fence may still turn up, so the units are not granted again. Zero where
    /// a new life of the same site brought the lease back.
    pub since: u64,
}

/// Written beside a claim of a lease that must not be lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Kept {
    /// The lease.
    pub lease: LeaseKey,
    /// All that its new site has to know of it, for the driver. Empty if no site knows more than
    /// that the units may be in use.
    pub facts: Vec<u8>,
}

/// A lease as a keeper has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Copy {
    /// The lease and its units.
    pub paper: Paper,
    /// See [`Kept::facts`].
    pub facts: Vec<u8>,
}

/// A lease that its holder presents to a member, because the site that granted it is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Paper {
    /// The lease.
    pub lease: LeaseKey,
    /// Its units, for each protocol that it has units of.
    pub parts: Vec<PaperPart>,
}

/// The part of a lease that one protocol granted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PaperPart {
    /// The protocol's place in [`Plan::clusters`].
    pub book: u16,
    /// The claim that was granted.
    pub claim: Stamp,
    /// All its units by name.
    pub units: Vec<Unit>,
}

/// What one site knows for certain of the pools that one protocol shares out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Book {
    /// Its own live claims.
    pub claims: BTreeMap<Stamp, Standing>,
    /// The named units that lie with it unused; nothing where units are only counted.
    pub idle: Option<Vec<Unit>>,
    /// The claims that wait for units which this site has or gets, by pool, in the order in which
    /// it serves them, each with its units; empty where the protocol orders claims by their stamps.
    pub lines: BTreeMap<PoolId, Vec<(Stamp, Units)>>,
    /// The names with which those of its waiting claims were made that have another one now.
    pub origins: BTreeMap<Stamp, Stamp>,
    /// The accounts of semaphores, as far as this site knows. Of a site that comes back, its own
    /// account as its disk has it; nothing where it has forgotten, or where the protocol shares
    /// pools.
    pub accounts: Option<Books>,
}

/// What is known of the semaphores of one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Counts {
    /// What each site did that was ever a member.
    pub accounts: Books,
    /// Those that may have done more since: they departed, too few keepers were left to know what
    /// they had done, and they have not come back with a disk that does.
    pub unsure: SiteSet,
    /// The units that are certainly left as the epoch begins.
    pub values: BTreeMap<PoolId, u64>,
}

/// What a site tells when it has frozen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Report {
    /// The life that tells it.
    pub incarnation: u64,
    /// Its clock.
    pub clock: Clock,
    /// One for each protocol, in the order of [`Plan::clusters`].
    pub books: Vec<Book>,
    /// Leases of departed sites that holders have presented here.
    pub papers: Vec<Paper>,
    /// Leases of other members that this one keeps copies of, by the member that has them. All of
    /// them are of this epoch: the record has the earlier ones.
    pub copies: BTreeMap<SiteId, Vec<Copy>>,
    /// Leases that the record has, and that their site has said are over.
    pub over: BTreeSet<LeaseKey>,
    /// The site comes back with everything that its last life had granted.
    pub remembers: bool,
    /// Claims that waited at departed sites, as clients have presented them here.
    pub tickets: Vec<Ticket>,
    /// The requests that it hands over, if it leaves with this change: all its others are over.
    pub leaves: Option<Vec<Handed>>,
}

impl Report {
    /// Of a site that has nothing.
    pub const fn empty(incarnation: u64) -> Self {
        let clock = Clock { time: 0, fence: 0 };
        Self {
            incarnation,
            clock,
            books: Vec::new(),
            papers: Vec::new(),
            copies: BTreeMap::new(),
            over: BTreeSet::new(),
            remembers: false,
            tickets: Vec::new(),
            leaves: None,
        }
    }
}

/// From what a protocol starts an epoch: the same at every member.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Survey {
    /// The live claims of all members. Every claim of the epoch is younger than these.
    pub claims: BTreeMap<Stamp, Standing>,
    /// Where named units lie unused. Units that are not here, not held and not withheld are the
    /// protocol's to place.
    pub idle: BTreeMap<Unit, SiteId>,
    /// In which order each member would have served the claims that wait, by pool: see
    /// [`Book::lines`]. A claim that is in none of these lines has its stamp for a place.
    pub lines: BTreeMap<PoolId, BTreeMap<SiteId, Vec<(Stamp, Units)>>>,
    /// The names with which those waiting claims were made that have another one now.
    pub origins: BTreeMap<Stamp, Stamp>,
    /// Waiting claims of members that have another name since this epoch, by their old names.
    pub renamed: BTreeMap<Stamp, Stamp>,
    /// How many units of a pool departed sites may still use.
    pub withheld: BTreeMap<PoolId, Units>,
    /// Those of them that have names.
    pub withheld_units: BTreeSet<Unit>,
    /// Where the protocol serves semaphores: what was done with them. Nobody gives back what was
    /// taken, so what a departed site may have taken is not there until it says otherwise.
    pub counts: Option<Counts>,
    /// The members that keep copies of what others must not lose.
    pub keepers: SiteSet,
    /// Where the clocks of all members start.
    pub clock: Clock,
}

impl Survey {
    /// The units of a pool that the members share.
    pub fn usable(&self, cluster: &Cluster, pool: PoolId) -> Units {
        let withheld = self.withheld.get(&pool).copied().unwrap_or_default();
        cluster.pools[pool.index()].saturating_sub(withheld)
    }

    /// The units that are certainly left of a semaphore; its first value where nothing is known.
    pub fn value(&self, pool: PoolId) -> Option<u64> {
        self.counts.as_ref()?.values.get(&pool).copied()
    }

    /// The accounts as the epoch begins.
    pub fn accounts(&self) -> &Books {
        const NONE: &Books = &Books::new();
        self.counts.as_ref().map_or(NONE, |counts| &counts.accounts)
    }

    /// The claims of one site, oldest first.
    pub fn of(&self, site: SiteId) -> impl Iterator<Item = (Stamp, &Standing)> + '_ {
        let all = self.claims.iter().map(|(&claim, standing)| (claim, standing));
        all.filter(move |(claim, _)| claim.site == site)
    }

    /// The units that claims hold of a pool.
    pub fn held(&self, pool: PoolId) -> Units {
        let held = self.claims.values().filter(|standing| standing.held.is_some());
        held.map(|standing| standing.demand.units(pool)).sum()
    }
}

/// What sites that departed together may still use, until their leases are over.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Quarantine {
    /// The sites, with the incarnations that departed.
    pub sites: BTreeMap<SiteId, u64>,
    /// One for each protocol.
    pub books: Vec<Withheld>,
    /// Leases of theirs that only a person may end, each with the site that had it. They go on
    /// when the quarantine ends.
    pub copies: Vec<(SiteId, Copy)>,
    /// Those of the sites that may have had more such leases: too few keepers were left.
    pub unsure: SiteSet,
}

/// What they may use of the pools of one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Withheld {
    /// How many, where units are only counted.
    pub counted: BTreeMap<PoolId, Units>,
    /// Which, where they have names.
    pub named: BTreeSet<Unit>,
}

/// One epoch: who is in it, what they share, and how they start. The store keeps the newest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Record<C> {
    /// Its number.
    pub epoch: u64,
    /// Who is in it, each with its incarnation.
    pub members: BTreeMap<SiteId, u64>,
    /// The newest life of each site that ever was a member. One that departed never comes back: it
    /// may not know yet, and have claims that nobody was told of.
    pub lives: BTreeMap<SiteId, u64>,
    /// What they share.
    pub plan: C,
    /// What departed sites may still use, by the epoch that began without them.
    pub quarantine: BTreeMap<u64, Quarantine>,
    /// How the protocols start, in the order of [`Plan::clusters`].
    pub surveys: Vec<Survey>,
    /// Requests of sites that have left with this epoch, and where they go on.
    pub moves: Vec<Moved>,
}

impl<C: Plan> Record<C> {
    /// The first epoch: nobody has anything.
    pub fn first(members: BTreeMap<SiteId, u64>, plan: C) -> Self {
        let sites = members.keys().copied().collect();
        let keepers = plan.keepers(&sites);
        let survey = |_: &Cluster| Survey { keepers: keepers.clone(), ..Survey::default() };
        let surveys = plan.clusters(&sites).iter().map(survey).collect();
        let lives = members.clone();
        let (quarantine, moves) = (BTreeMap::new(), Vec::new());
        Self { epoch: 1, members, lives, plan, quarantine, surveys, moves }
    }

    /// The record that follows where no member is left to make one: whoever is there begins with
    /// what it brings, and all that the old members may have is withheld.
    #[must_use]
    pub fn revived(&self, reports: &BTreeMap<SiteId, Report>) -> Self {
        let reports = reports.iter().map(|(&site, report)| (site, report)).collect();
        conclude(self, &reports, &self.plan, 0, Sound)
    }

    /// The member at which a lease goes on that another life granted.
    pub fn home_of(&self, lease: LeaseKey) -> Option<SiteId> {
        let claims = self.surveys.iter().flat_map(|survey| &survey.claims);
        let mut its = claims.filter(|it| it.1.adopted.is_some_and(|it| it.lease == lease));
        its.next().map(|(claim, _)| claim.site)
    }

    /// Whether the next record may let this lease go on: all its units are withheld, or held by an
    /// adopted lease that must yield to it. If not, and its giver is no member, it is over.
    pub fn may_adopt(&self, paper: &Paper) -> bool {
        let contested = |book: usize, unit: &Unit| {
            let claims = self.surveys.get(book).into_iter().flat_map(|it| it.claims.values());
            let mut yields = claims.filter(|it| {
                it.adopted.is_some_and(|it| {
                    self.quarantine.contains_key(&it.since) && it.lease.fence < paper.lease.fence
                })
            });
            yields.any(|it| it.held.iter().flatten().any(|held| held == unit))
        };
        let withheld = |book: usize, unit: &Unit| {
            let mut kept = self.quarantine.values().filter_map(|it| it.books.get(book));
            kept.any(|kept| kept.named.contains(unit)) || contested(book, unit)
        };
        let may = |part: &PaperPart| {
            let book = usize::from(part.book);
            !part.units.is_empty() && part.units.iter().all(|unit| withheld(book, unit))
        };
        let known = self.home_of(paper.lease).is_some();
        !known && !paper.parts.is_empty() && paper.parts.iter().all(may)
    }

    /// The members without their incarnations.
    pub fn sites(&self) -> SiteSet {
        self.members.keys().copied().collect()
    }

    /// The members that keep copies of what others must not lose.
    pub fn keepers(&self) -> SiteSet {
        self.plan.keepers(&self.sites())
    }

    /// The clusters that its protocols start with.
    pub fn clusters(&self) -> Vec<Cluster> {
        self.plan.clusters(&self.sites())
    }
}

/// What the members of an epoch share, beside themselves.
pub trait Plan: Clone + Debug + Eq + Hash {
    /// The cluster of each protocol, in an order that never changes, with everybody absent who is
    /// not a member.
    fn clusters(&self, members: &SiteSet) -> Vec<Cluster>;

    /// Those of the members that keep copies of what others must not lose.
    fn keepers(&self, members: &SiteSet) -> SiteSet {
        keepers::among(members, &SiteSet::new())
    }

    /// The pools whose units are free again only when their holder or a person says so, each with
    /// the place of its protocol.
    fn keeps(&self) -> BTreeSet<(usize, PoolId)>;

    /// How what is known of this plan's pools is said of those of the next: pools may get other
    /// numbers or move to another protocol. As it is, they keep both. What names a pool that is
    /// gone
    /// ends by itself.
    #[must_use]
    fn carry(&self, _next: &Self, surveys: Vec<Survey>) -> Vec<Survey> {
        surveys
    }
}

/// One protocol and its pools.
impl Plan for Cluster {
    fn clusters(&self, members: &SiteSet) -> Vec<Cluster> {
        let last = members.iter().last().map_or(0, |site| site.0.saturating_add(1));
        let sites = self.sites.max(last);
        let absent = (0..sites).map(SiteId).filter(|&site| !members.contains(site)).collect();
        Vec::from([Self { sites, absent, ..self.clone() }])
    }

    fn keeps(&self) -> BTreeSet<(usize, PoolId)> {
        self.keeps.iter().map(|&pool| (0, pool)).collect()
    }
}
