//! What a site's core is asked, by its own process or by another site, and what it answers.

use std::collections::BTreeMap;
use std::time::Duration;

use kofm_core::{SiteId, Stamp};
use serde::{Deserialize, Serialize};

use super::{
    Blocker, Claim, Happening, Head, Joined, Lease, LedgerAsk, MemberChange, Members, Report,
    Request, Submit, Taken, Want,
};
use crate::plan::{PlannedPool, PlannedSemaphore};
use crate::rules::PrincipalChange;

/// What the site where members meet is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinCall {
    pub name: String,
    pub members: Members,
    pub member: String,
    pub token: String,
    pub run: Option<String>,
    pub ttl: Duration,
    pub owner: Option<String>,
    #[serde(default)]
    pub principal: Option<String>,
    pub leave: bool,
    pub code: Option<u8>,
    pub confirm: Option<String>,
    /// Answer when there is news, and not before.
    pub wait: bool,
}

/// A question to the site's core, or to another site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    Submit {
        spec: Submit,
        fresh: bool,
        hold: Hold,
        /// How long to keep the answer back while it waits; none answers as soon as that is sure.
        patience: Option<Duration>,
    },
    /// Takes an id, unless it is known; see [`Answer::Reserved`].
    Reserve(String),
    Unreserve(String),
    /// Another site has taken an id at that time, or looks for it; see [`Answer::Reserved`].
    Knows {
        id: String,
        taken: Option<(u64, SiteId)>,
    },
    Watch {
        id: String,
        wait: Duration,
    },
    Cancel(String),
    Renew(String),
    Release(String),
    ReleaseRequest(String),
    /// Leases in the order of their fences and requests, those after one of them: not more than
    /// one answer may have.
    Leases {
        after: Option<(u64, String)>,
    },
    /// Waiting requests, oldest first, those after a claim: not more than one answer may have.
    Queue {
        after: Option<Claim>,
    },
    Usage,
    /// Who is in the way of a claim, in these pools.
    Ahead {
        want: Want,
        claim: Stamp,
    },
    /// Units of these pools that are held, or due to requests that asked before this claim.
    InUse {
        want: Want,
        claim: Option<Stamp>,
    },
    /// What happened, or what was used.
    Ledger(LedgerAsk),
    /// P: takes from a semaphore, and waits for its turn and for units.
    Take {
        /// Names it, so that it can be given up.
        key: u64,
        name: String,
        units: u32,
        wait: Option<Duration>,
        owner: Option<String>,
        /// A hash of the id that its client gave it.
        id: Option<u128>,
    },
    /// Whoever waits under this key is gone.
    GiveUp(u64),
    /// V: adds to a semaphore.
    Add {
        name: String,
        units: u32,
        /// A hash of the id that its client gave it.
        id: Option<u128>,
    },
    Semaphores,
    Gangs,
    /// Gangs of the rota that somebody here waits or works for.
    Rota,
    /// Makes a gang or gives it other members; without any it is removed.
    SetGang {
        name: String,
        members: Members,
    },
    /// A member of a gang says that it is there, or done.
    Join(JoinCall),
    /// What happened from the event of this number on, or the next thing that happens within
    /// `wait`; without a number, only the latter.
    Events {
        from: Option<u64>,
        wait: Duration,
    },
    /// Whether nobody at this site holds or waits for a pool.
    IsIdle(String),
    /// Which units of a pool are at this site.
    Count(String),
    /// Makes or removes a semaphore, with the next epoch.
    PlanSemaphore {
        name: String,
        semaphore: Option<PlannedSemaphore>,
    },
    /// Makes, changes or removes a pool, with the next epoch.
    Plan {
        name: String,
        pool: Option<PlannedPool>,
    },
    /// Quarantines a unit of a pool for a reason, with the next epoch; without one it is returned.
    Quarantine {
        pool: String,
        unit: String,
        reason: Option<String>,
    },
    /// Changes a principal, with the next epoch.
    Principal {
        name: String,
        change: PrincipalChange,
    },
    /// Whose a lease or request is, by its id.
    Holder(String),
    /// Changes the part that a site has in the cluster, with the next epoch.
    Member {
        name: String,
        change: MemberChange,
    },
    /// Adds what a backup has and the cluster lacks, with the next epoch; JSON.
    Restore(String),
    /// Whoever made the call of this number over the same fast connection waits no more. It is the
    /// last, and no other site can say it.
    #[serde(skip)]
    Abandon(u64),
}

/// Whose a lease or request is, and the pools that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub principal: Option<String>,
    pub pools: Vec<String>,
}

/// How a grant is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// By renewals.
    Lease,
    /// For ever: holder and site are one process.
    Embedded,
    /// For ever: the units are taken out of their pool.
    Drain,
}

/// What comes back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Request(Box<Request>),
    Lease(Box<Lease>),
    Holder(Holder),
    Known(bool),
    /// When an id was taken here, by a clock that is behind no time it has heard of: so of two
    /// sites that take the same one, one hears of the other, and both know who was first. Zero
    /// where there is such a request, none where nobody took it before the one who asks.
    Reserved(Option<u64>),
    Leases(Vec<Lease>),
    Queue(Vec<Request>),
    Usage(Vec<Usage>),
    /// Units of one pool, by number: a unit is at one site, or on its way to one.
    Counted(Vec<u32>),
    Ahead {
        list: Vec<Blocker>,
        older: u64,
    },
    InUse {
        epoch: u64,
        pools: BTreeMap<String, u32>,
    },
    History(Vec<Happening>),
    UsageReport(Report),
    Taken(Taken),
    Semaphores(Vec<SemaphoreShare>),
    Gangs(BTreeMap<String, Members>),
    Rota(Vec<(String, bool)>),
    Joined(Box<Joined>),
    Events(Events),
}

/// Some events of a site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Events {
    /// The number of the event after these.
    pub next: u64,
    /// The number of the next event that will happen.
    pub end: u64,
    /// Events before these are missing: they are not remembered, or are of an earlier start.
    pub gap: bool,
    pub list: Vec<Happening>,
}

/// What one site knows of one semaphore.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SemaphoreShare {
    pub name: String,
    pub protocol: String,
    /// The value that it began with, or with which its epoch did.
    pub first: u64,
    /// The epoch.
    pub epoch: u64,
    /// Units that each site has added and taken since, as far as this site knows.
    pub sites: Vec<(SiteId, u64, u64)>,
    pub waiting: u64,
    pub head: Option<Head>,
    pub unsure: Vec<String>,
}

/// What one site has of one pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    pub pool: String,
    pub waiting: u64,
    pub units: Vec<UsedUnit>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct UsedUnit {
    pub number: u32,
    pub fence: u64,
    pub quarantined: bool,
    /// Taken out of the pool.
    pub drained: bool,
}
