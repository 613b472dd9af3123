//! What the core of a site is told before it starts: members, pools, semaphores, gangs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kofm_core::quorums::Arbitration;
use kofm_core::{Kind, Service, SiteId};
use serde::{Deserialize, Serialize};

use crate::api::{Members, OnExpiry};
use crate::engine::{heals, runs_in_a_site};

/// Sites in a cluster.
pub const MAX_SITES: usize = 1000;
/// Pools in a cluster.
pub const MAX_POOLS: usize = 20_000;
/// Semaphores in a cluster.
pub const MAX_SEMAPHORES: usize = 20_000;
/// Units in a pool.
pub const MAX_UNITS: u32 = 1_000_000;
/// What the core of a site is told before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This site's name; one of the members.
    pub site: String,
    /// All sites and where the others reach them, `host:port`.
    pub members: BTreeMap<String, String>,
    /// The numbers of the members, where the cluster has given them; otherwise their places.
    pub numbers: BTreeMap<String, SiteId>,
    /// The pools, by name: what a cluster begins with. It keeps later changes itself.
    pub pools: BTreeMap<String, PoolConfig>,
    /// The semaphores, by name. A pool may have the same one.
    pub semaphores: BTreeMap<String, SemaphoreConfig>,
    /// The gangs, by name.
    pub gangs: BTreeMap<String, Members>,
    /// The root of the tree for pools of that protocol, as long as it lives; otherwise the first
    /// live site is.
    pub tree_root: Option<String>,
    /// Gangs that take turns by the papers' algorithm, fixed for the life of the cluster.
    pub rota: Option<RotaConfig>,
    /// How long a site may grant after it last reached a majority of the members, or etcd.
    pub site_lease: Duration,
}

impl Config {
    /// The same with a seat for each member.
    #[must_use]
    pub fn with_seats(mut self) -> Self {
        add_seats(&mut self.pools, &self.members);
        self
    }

    /// A cluster of one site that talks to no peer.
    pub fn single(site: &str) -> Self {
        Self {
            site: site.into(),
            members: BTreeMap::from([(site.into(), String::new())]),
            numbers: BTreeMap::new(),
            pools: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            gangs: BTreeMap::new(),
            tree_root: None,
            rota: None,
            site_lease: SITE_LEASE,
        }
    }

    /// This site's number: its place among the names of all.
    pub fn me(&self) -> SiteId {
        self.number_of(&self.site).unwrap_or(SiteId(0))
    }

    /// A site's number.
    pub fn number_of(&self, site: &str) -> Option<SiteId> {
        number_of(site, &self.numbers, &self.members)
    }
}

/// A site's number: the one that the cluster gave it, or its place among the names.
pub fn number_of(
    site: &str,
    numbers: &BTreeMap<String, SiteId>,
    members: &BTreeMap<String, String>,
) -> Option<SiteId> {
    if !numbers.is_empty() {
        return numbers.get(site).copied();
    }
    let place = members.keys().position(|name| name == site)?;
    u16::try_from(place).ok().map(SiteId)
}

/// Gives each member a seat.
pub fn add_seats(pools: &mut BTreeMap<String, PoolConfig>, members: &BTreeMap<String, String>) {
    for member in members.keys() {
        pools.entry(format!("{SEAT}{member}")).or_insert_with(|| PoolConfig::new(1));
    }
}

/// Whether a pool is the seat of a site.
pub fn is_seat(pool: &str) -> bool {
    pool.starts_with(SEAT)
}

/// Gangs that share members and take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotaConfig {
    /// How they do.
    pub protocol: Kind,
    /// What each site needs to work, each of which one site at a time can have.
    pub needs: BTreeMap<String, Vec<String>>,
    /// The sites of each gang.
    pub gangs: BTreeMap<String, Vec<String>>,
}

/// The group that a request names to join the fixed gang whose turn is next.
pub const ROTA: &str = "fixed_gangs";
/// One semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreConfig {
    /// The value that it begins with.
    pub value: u32,
    /// How it is shared.
    pub protocol: Kind,
    /// Who decides, where the protocol asks arbiters; without it the best that there is.
    pub arbitration: Option<Arbitration>,
}

impl SemaphoreConfig {
    /// A semaphore of this value, shared by the default protocol.
    pub const fn new(value: u32) -> Self {
        Self { value, protocol: DEFAULT_SEMAPHORE, arbitration: None }
    }
}

/// The protocol of semaphores that name none: the fewest messages for a P.
pub const DEFAULT_SEMAPHORE: Kind = Kind::SemToken;

/// How long it is where nothing is said.
pub const SITE_LEASE: Duration = Duration::from_secs(5);

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// M, from 1 to [`MAX_UNITS`].
    pub units: u32,
    /// Names of the units, one each; none where they are numbered.
    pub names: Vec<String>,
    /// How it is shared.
    pub protocol: Kind,
    /// What happens to a lease that is not renewed.
    pub on_expiry: OnExpiry,
    /// Who decides, where the protocol asks arbiters; without it the best that there is.
    pub arbitration: Option<Arbitration>,
    /// The sites that share it.
    pub scope: Scope,
}

/// Which sites share a pool: those that are named, in the zones that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Names of sites; if there are none, all sites.
    pub sites: BTreeSet<String>,
    /// Names of zones; if there are none, all zones.
    pub zones: BTreeSet<String>,
}

impl Scope {
    /// Whether every site of the cluster shares the pool.
    pub fn is_all(&self) -> bool {
        self.sites.is_empty() && self.zones.is_empty()
    }

    /// Whether the site of this name and zone does.
    pub fn has(&self, name: &str, zone: &str) -> bool {
        (self.sites.is_empty() || self.sites.contains(name))
            && (self.zones.is_empty() || self.zones.contains(zone))
    }
}

impl PoolConfig {
    /// So many numbered units, shared by the default protocol.
    pub fn new(units: u32) -> Self {
        let (names, on_expiry) = (Vec::new(), OnExpiry::Release);
        let (protocol, scope) = (default_protocol(), Scope::default());
        Self { units, names, protocol, on_expiry, arbitration: None, scope }
    }

    /// Why only some sites cannot share it, if that is so.
    pub fn check_scope(&self, name: &str) -> Result<(), String> {
        if self.scope.is_all() {
            return Ok(());
        }
        if heals(self.protocol) {
            return Err(format!(
                "pool `{name}`: all sites share a pool of `{}`; omit `sites` and `zones`, or \
                 choose another protocol",
                self.protocol.name()
            ));
        }
        if self.on_expiry != OnExpiry::Release {
            return Err(format!(
                "pool `{name}`: `sites` and `zones` must be combined with on_expiry = release only"
            ));
        }
        Ok(())
    }

    /// What people call a unit.
    pub fn unit_name(&self, number: u32) -> String {
        unit_name(&self.names, number)
    }
}

/// What people call a unit: by its name, or by its number where it has none.
pub fn unit_name(names: &[String], number: u32) -> String {
    let name = usize::try_from(number).ok().and_then(|number| names.get(number));
    name.cloned().unwrap_or_else(|| number.to_string())
}

/// The protocol of pools that name none: never more messages than `permission`, none where demand
/// stays, and a wait of about 1.3 times at most (`crates/sim/tests/roaming` holds it to that).
pub fn default_protocol() -> Kind {
    Kind::Roaming
}

/// The protocol of that name, if sites share pools by it.
pub fn protocol_named(name: &str) -> Result<Kind, String> {
    served(Service::Pool, "pools", name)
}

/// The protocol of that name, if sites share semaphores by it.
pub fn semaphore_protocol_named(name: &str) -> Result<Kind, String> {
    served(Service::Semaphore, "semaphores", name)
}

fn served(service: Service, what: &str, name: &str) -> Result<Kind, String> {
    let serves = |kind: &Kind| runs_in_a_site(*kind) && kind.profile().serves == service;
    let names = || {
        let names = Kind::ALL.iter().filter(|kind| serves(kind)).map(|kind| kind.name());
        names.collect::<Vec<&str>>().join(", ")
    };
    match Kind::named(name) {
        Some(kind) if serves(&kind) => Ok(kind),
        Some(kind) if runs_in_a_site(kind) => {
            Err(format!("protocol `{name}` is not for {what}; those have {}", names()))
        }
        Some(_) => Err(format!("protocol `{name}` is for the simulator and the checker only")),
        None => Err(format!("there is no protocol `{name}`; there are {}", names())),
    }
}

/// Whether `name` can be a pool's or a site's name.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && name.len() <= 64 && name.chars().all(good) {
        return Ok(());
    }
    Err(format!("`{name}` is not a name: it must have 1 to 64 letters, digits, `-`, `_` and `.`"))
}

/// What the name of a hidden pool begins with: one unit for each site, which gangs take so that a
/// member is in one gang at a time. No other pool can be called so.
pub const SEAT: &str = "@";

/// Members of a gang at most.
pub const MAX_GANG: usize = 64;
