//! What the members of an epoch share: sites by number, and pools.

use std::collections::{BTreeMap, BTreeSet};

use kofm_core::epoch::{self, Standing, Survey, keepers};
use kofm_core::parts::SiteSet;
use kofm_core::quorums::Arbitration;
use kofm_core::voting::Electorate;
use kofm_core::{Cluster, Demand, Kind, PoolId, ProtocolId, Service, SiteId, Unit, Units};
use serde::{Deserialize, Serialize};

use crate::api::{self, Code, KeyId, Members, OnExpiry};
use crate::config::{
    Config, PoolConfig, SEAT, Scope, SemaphoreConfig, semaphore_protocol_named, unit_name,
};
use crate::engine::{heals, runs_in_a_site};
use crate::keeper::Facts;
use crate::paper::PaperKey;
use crate::rules::Principals;

/// Semaphores that a protocol may have over the life of a cluster.
const MAX_NUMBERS: u16 = 60_000;
/// Units that may be quarantined by people, in all pools together: every site keeps the reasons,
/// and so does the store.
const MAX_OUT: usize = 1000;
/// Machines that have been admitted and have not come yet.
const MAX_AWAITED: usize = 64;
/// Bytes of a reason.
const MAX_REASON: usize = 200;
/// Units whose names are told in an error.
const SOME: u32 = 8;
/// What a record in the store begins with: its form, which changes with what a plan contains.
const FORM: [u8; 5] = *b"kofm\x07";

/// The configuration of a cluster, as an epoch has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plan {
    /// The name of the cluster.
    pub cluster: String,
    /// Every site that may be a member: its name, and where the others reach it.
    pub sites: BTreeMap<SiteId, (String, String)>,
    /// The pools, by name.
    pub pools: BTreeMap<String, PlannedPool>,
    /// The semaphores, by name.
    pub semaphores: BTreeMap<String, PlannedSemaphore>,
    /// The gangs, by name.
    pub gangs: BTreeMap<String, Members>,
    /// Principals with their rules, by name.
    pub principals: Principals,
    /// The root of the tree, where one was chosen.
    pub root: Option<SiteId>,
    /// How many semaphores each protocol has had: their numbers are not used again, because sites
    /// remember what they took under them.
    pub numbered: BTreeMap<String, u16>,
    /// The largest number that was given to a site that came later.
    pub last: u16,
    /// Who decides the next epoch; empty where etcd does, or one process.
    pub voters: Electorate,
    /// Sites that take no new requests.
    pub draining: BTreeSet<SiteId>,
    /// Names of sites that were removed. Their certificates are good no more.
    pub removed: BTreeSet<String>,
    /// The keys of sites, by name. Where there are any, no other key is believed, and no site
    /// comes without one; otherwise the authority that signed their certificates counts.
    pub keys: BTreeMap<String, KeyId>,
    /// What proves that a site of this cluster granted a lease; drawn with the first epoch.
    pub key: PaperKey,
    /// The zones and versions of sites.
    pub facts: BTreeMap<SiteId, Facts>,
    /// The scopes of pools that not all sites share, each with its protocol. One that no pool has
    /// any more stays until its place is needed: surveys and quarantines go by places.
    pub scopes: Vec<(String, Scope)>,
}

/// The pools that one protocol shares out among the same sites. They have a value of the protocol
/// of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The protocol.
    pub kind: Kind,
    /// Zero for the pools that all sites share; otherwise the place of their scope, from 1 on.
    pub scope: u8,
}

impl Group {
    /// Its number in frames and files: that of the protocol, and the scope in the upper byte.
    pub fn id(self) -> ProtocolId {
        ProtocolId(self.kind.id().0 | u16::from(self.scope) << 8)
    }
}

/// The groups of pools that all sites share, in the order in which a demand over several is
/// granted. Those of some sites come after them.
pub fn common() -> impl Iterator<Item = Group> {
    kinds().into_iter().map(|kind| Group { kind, scope: 0 })
}

/// One semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlannedSemaphore {
    /// Its number among those that its protocol ever had.
    pub id: PoolId,
    /// The value that it began with.
    pub value: u32,
    pub protocol: String,
    pub arbitration: Option<Arbitration>,
}

impl PlannedSemaphore {
    /// Nothing where a site of a later version made it.
    pub fn config(&self) -> Option<SemaphoreConfig> {
        let protocol = semaphore_protocol_named(&self.protocol).ok()?;
        let (value, arbitration) = (self.value, self.arbitration.clone());
        Some(SemaphoreConfig { value, protocol, arbitration })
    }
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlannedPool {
    /// Its number among the pools of its protocol, as long as it lives.
    pub id: PoolId,
    /// What the protocol shares out: the most that it ever had.
    pub units: u32,
    /// What people see; the difference is taken out as it becomes free.
    pub target: u32,
    pub names: Vec<String>,
    pub protocol: String,
    pub on_expiry: u8,
    pub arbitration: Option<Arbitration>,
    /// Takes no new requests: it is about to change.
    pub closed: bool,
    /// Units that people have quarantined, and why. Nobody is granted one of them.
    pub out: BTreeMap<u32, String>,
    /// The sites that share it.
    pub scope: Scope,
    /// The place of its scope; see [`Group::scope`].
    pub group: u8,
}

impl PlannedPool {
    pub fn new(id: PoolId, pool: &PoolConfig) -> Self {
        Self {
            id,
            units: pool.units,
            target: pool.units,
            names: pool.names.clone(),
            protocol: pool.protocol.name().to_owned(),
            on_expiry: match pool.on_expiry {
                OnExpiry::Release => 0,
                OnExpiry::Hold => 1,
                OnExpiry::Quarantine => 2,
            },
            arbitration: pool.arbitration.clone(),
            closed: false,
            out: BTreeMap::new(),
            scope: pool.scope.clone(),
            group: 0,
        }
    }

    /// Whether it is one of this group.
    fn is_of(&self, group: Group) -> bool {
        self.protocol == group.kind.name() && self.group == group.scope
    }

    /// Whether only its holder or a person frees a unit.
    pub const fn keeps(&self) -> bool {
        self.on_expiry != 0
    }

    /// What people have asked for.
    pub fn wanted(&self) -> Option<PoolConfig> {
        self.config().map(|config| PoolConfig { units: self.target, ..config })
    }

    /// Whether it would be gone or another pool then, for which nobody may use it. Fewer units, or
    /// more of them, make it none.
    pub fn moves_to(&self, new: Option<&Self>) -> bool {
        new.is_none_or(|new| {
            let renamed = self.names.is_empty() || !new.names.starts_with(&self.names);
            let moved = self.protocol != new.protocol || self.scope != new.scope;
            moved || (!new.names.is_empty() && renamed)
        })
    }

    /// The most that a demand may name.
    pub fn usable(&self) -> u32 {
        self.target.saturating_sub(u32::try_from(self.out.len()).unwrap_or(u32::MAX))
    }

    /// The unit of that name; its number, where it has none.
    fn unit_named(&self, name: &str) -> Option<u32> {
        let named = self.names.iter().position(|it| it == name);
        let named = named.and_then(|number| u32::try_from(number).ok());
        let number = || name.parse().ok().filter(|&number: &u32| number < self.units);
        // One that has a name is called by it.
        let number = || number().filter(|&number| unit_name(&self.names, number) == name);
        named.or_else(number)
    }

    /// As the protocol has it; nothing where a site of a later version made it.
    pub fn config(&self) -> Option<PoolConfig> {
        Some(PoolConfig {
            units: self.units,
            names: self.names.clone(),
            protocol: Kind::named(&self.protocol).filter(|&kind| runs_in_a_site(kind))?,
            on_expiry: match self.on_expiry {
                0 => OnExpiry::Release,
                1 => OnExpiry::Hold,
                _ => OnExpiry::Quarantine,
            },
            arbitration: self.arbitration.clone(),
            scope: self.scope.clone(),
        })
    }
}

/// The protocols that sites run, in the order in which a demand over several is granted. An epoch
/// has an engine for each.
pub fn kinds() -> Vec<Kind> {
    let shared = |kind: &Kind| matches!(kind.profile().serves, Service::Pool | Service::Semaphore);
    Kind::IN_SITES.iter().copied().filter(shared).collect()
}

impl Plan {
    /// What a cluster begins with.
    pub fn first(config: &Config) -> Self {
        let sites = config.members.iter().filter_map(|(name, address)| {
            Some((config.number_of(name)?, (name.clone(), address.clone())))
        });
        let mut plan = Self { sites: sites.collect(), ..Self::default() };
        let mut next: BTreeMap<Group, u16> = BTreeMap::new();
        for (name, pool) in &config.pools {
            // A file with more scopes than there may be is refused before.
            let Some(scope) = plan.place_scope(pool) else { continue };
            let number = next.entry(Group { kind: pool.protocol, scope }).or_default();
            let made = PlannedPool { group: scope, ..PlannedPool::new(PoolId(*number), pool) };
            plan.pools.insert(name.clone(), made);
            *number += 1;
        }
        for (name, semaphore) in &config.semaphores {
            plan.put_semaphore(name, semaphore);
        }
        plan.gangs.clone_from(&config.gangs);
        plan.root = config.tree_root.as_ref().and_then(|name| config.number_of(name));
        plan
    }

    /// Adds a site. Numbers are never used again: stamps contain them.
    pub fn give_number(&mut self, name: &str, address: String) {
        let largest = self.sites.keys().map(|site| site.0).max().unwrap_or(0);
        self.last = self.last.max(largest) + 1;
        self.sites.insert(SiteId(self.last), (name.to_owned(), address));
    }

    /// Lets a machine with this key come under a name that no site has or had.
    pub fn admit(&mut self, name: &str, key: KeyId) -> Result<(), api::Error> {
        if self.removed.contains(name) || self.site_named(name).is_some() {
            let text = format!("the cluster has or had a site {name}; a name must be new");
            return Err(api::Error::new(Code::InUse, text));
        }
        // Elsewhere the authority's signature is enough.
        if self.keys.is_empty() {
            return Ok(());
        }
        let here: BTreeSet<&String> = self.sites.values().map(|it| &it.0).collect();
        let mut awaited = self.keys.keys().filter(|it| !here.contains(it));
        if let Some(first) = awaited.next()
            && awaited.count() + 1 >= MAX_AWAITED
            && !self.keys.contains_key(name)
        {
            let text = format!(
                "{MAX_AWAITED} machines have joined and never come; give one up: `kofm member rm \
                 {first}`"
            );
            return Err(api::Error::new(Code::TooMany, text));
        }
        // One that never came is forgotten with its key.
        self.keys.insert(name.to_owned(), key);
        Ok(())
    }

    /// The site of this name, and its address.
    pub fn site_named(&self, name: &str) -> Option<(SiteId, String)> {
        let found = self.sites.iter().find(|it| it.1.0 == name);
        found.map(|(&site, it)| (site, it.1.clone()))
    }

    /// Takes a site out. Its number is not used again.
    pub fn take_out(&mut self, site: SiteId) {
        let largest = self.sites.keys().map(|site| site.0).max().unwrap_or(0);
        self.last = self.last.max(largest);
        if let Some((name, _)) = self.sites.remove(&site) {
            self.keys.remove(&name);
        }
        self.draining.remove(&site);
        self.facts.remove(&site);
    }

    /// The zone of a site; empty if its configuration names none.
    pub fn zone_of(&self, site: SiteId) -> &str {
        self.facts.get(&site).map_or("", |facts| &facts.zone)
    }

    /// Makes a gang or gives it other members; without any it is removed.
    pub fn put_gang(&mut self, name: String, members: Members) {
        if members.is_empty() {
            self.gangs.remove(&name);
        } else {
            self.gangs.insert(name, members);
        }
    }

    /// Makes a semaphore, or makes it anew; false where there were too many.
    pub fn put_semaphore(&mut self, name: &str, semaphore: &SemaphoreConfig) -> bool {
        let SemaphoreConfig { value, protocol, ref arbitration } = *semaphore;
        let protocol = protocol.name().to_owned();
        let next = self.numbered.entry(protocol.clone()).or_default();
        if *next >= MAX_NUMBERS {
            return false;
        }
        let (id, arbitration) = (PoolId(*next), arbitration.clone());
        *next += 1;
        self.semaphores
            .insert(name.to_owned(), PlannedSemaphore { id, value, protocol, arbitration });
        true
    }

    /// The semaphores of one protocol by their numbers; nothing where one was removed.
    pub fn semaphores_of(&self, kind: Kind) -> Vec<Option<(String, SemaphoreConfig)>> {
        let count = self.numbered.get(kind.name()).copied().unwrap_or_default();
        let mut list = vec![None; count.into()];
        for (name, it) in self.semaphores.iter().filter(|it| it.1.protocol == kind.name()) {
            if let Some(place) = list.get_mut(it.id.index()) {
                *place = it.config().map(|config| (name.clone(), config));
            }
        }
        list
    }

    /// What has each number among the pools or semaphores of one group.
    fn names_of(&self, group: Group) -> Vec<Option<String>> {
        let pools = self.pools_of(group).into_iter().map(|it| it.map(|it| it.0));
        let semaphores = Some(group.kind).filter(|_| group.scope == 0);
        let semaphores = semaphores.map(|kind| self.semaphores_of(kind)).unwrap_or_default();
        let semaphores = semaphores.into_iter().map(|it| it.map(|it| it.0));
        pools.chain(semaphores).collect()
    }

    /// Quarantines a unit, or gives it another reason; without one it is returned.
    pub fn quarantine(
        &mut self,
        name: &str,
        unit: &str,
        reason: Option<String>,
    ) -> Result<(), api::Error> {
        let all: usize = self.pools.values().map(|pool| pool.out.len()).sum();
        let known = self.pools.get_mut(name).filter(|_| !name.starts_with(SEAT));
        let Some(pool) = known else {
            return Err(api::Error::unknown_pool(name));
        };
        if pool.protocol != Kind::Roaming.name() {
            let text = format!(
                "units are quarantined one by one in pools with `{}`, and `{name}` is shared by \
                 `{}`; make it smaller instead, with `kofm pool set`",
                Kind::Roaming.name(),
                pool.protocol
            );
            return Err(api::Error::new(Code::Unsupported, text));
        }
        let Some(number) = pool.unit_named(unit) else {
            let some = (0..pool.units.min(SOME)).map(|number| unit_name(&pool.names, number));
            let some = some.collect::<Vec<_>>().join(", ");
            let more = if pool.units > SOME { ", …" } else { "" };
            let text = format!("pool `{name}` has no unit `{unit}`; its units are {some}{more}");
            return Err(api::Error::new(Code::NotFound, text));
        };
        let Some(reason) = reason else {
            let was = pool.out.remove(&number);
            let text = format!("unit `{unit}` of pool `{name}` is not quarantined");
            return was.map(drop).ok_or_else(|| api::Error::new(Code::NotFound, text));
        };
        let printable = !reason.chars().any(char::is_control);
        if reason.trim().is_empty() || reason.len() > MAX_REASON || !printable {
            let text = format!("`reason` is 1 to {MAX_REASON} bytes of printable text");
            return Err(api::Error::new(Code::Malformed, text));
        }
        if all >= MAX_OUT && !pool.out.contains_key(&number) {
            let text = format!("{MAX_OUT} units are quarantined; return some, or shrink the pool");
            return Err(api::Error::new(Code::TooMany, text));
        }
        pool.out.insert(number, reason);
        Ok(())
    }

    /// The groups in the order of clusters, surveys and engines.
    pub fn groups(&self) -> Vec<Group> {
        let known = |name: &str| Kind::named(name).filter(|&kind| runs_in_a_site(kind));
        let scoped = (1..).zip(&self.scopes);
        let scoped = scoped.filter_map(|(scope, it)| Some(Group { kind: known(&it.0)?, scope }));
        common().chain(scoped).collect()
    }

    /// The group of a pool.
    pub fn group_of(&self, pool: &PlannedPool) -> Option<Group> {
        Some(Group { kind: pool.config()?.protocol, scope: pool.group })
    }

    /// Whether a site shares the pools of a group.
    fn shares(&self, site: SiteId, group: Group) -> bool {
        let place = usize::from(group.scope).checked_sub(1);
        let Some((_, scope)) = place.and_then(|place| self.scopes.get(place)) else { return true };
        self.sites.get(&site).is_some_and(|it| scope.has(&it.0, self.zone_of(site)))
    }

    /// The sites that share a pool.
    pub fn sites_of(&self, scope: &Scope) -> BTreeSet<SiteId> {
        let sites = self.sites.iter();
        let shares = sites.filter(|(site, it)| scope.has(&it.0, self.zone_of(**site)));
        shares.map(|it| *it.0).collect()
    }

    /// The place of a pool's scope, found or made; none if there are too many.
    fn place_scope(&mut self, pool: &PoolConfig) -> Option<u8> {
        if pool.scope.is_all() {
            return Some(0);
        }
        let wanted = (pool.protocol.name().to_owned(), pool.scope.clone());
        let known = self.scopes.iter().position(|it| *it == wanted);
        let used = |place: usize| self.pools.values().any(|it| usize::from(it.group) == place + 1);
        let place = known.or_else(|| (0..self.scopes.len()).find(|&place| !used(place)));
        let place = place.unwrap_or(self.scopes.len());
        let number = u8::try_from(place + 1).ok()?;
        match self.scopes.get_mut(place) {
            Some(free) => *free = wanted,
            None => self.scopes.push(wanted),
        }
        Some(number)
    }

    /// Makes a pool, or changes it; false if too many different sets of sites share pools.
    pub fn put(&mut self, name: &str, pool: &PoolConfig) -> bool {
        let protocol = pool.protocol.name();
        let Some(group) = self.place_scope(pool) else { return false };
        let its = |it: &PlannedPool| it.protocol == protocol && it.group == group;
        let same = self.pools.get(name).filter(|old| its(old)).map(|old| old.id);
        let others = self.pools.values().filter(|other| its(other));
        let taken: BTreeSet<PoolId> = others.map(|other| other.id).collect();
        let free = || (0..u16::MAX).map(PoolId).find(|id| !taken.contains(id));
        let id = same.or_else(free).unwrap_or(PoolId(u16::MAX));
        let old = self.pools.get(name).filter(|_| same.is_some());
        let mut made = PlannedPool { group, ..PlannedPool::new(id, pool) };
        // Those who hold units keep them, so that a pool is made smaller only in what is shown.
        if let Some(old) = old.filter(|old| made.target <= old.units && same_names(old, &made)) {
            made.units = old.units;
            made.names.clone_from(&old.names);
        }
        if let Some(old) = old {
            made.out = still_out(old, &made);
        }
        self.pools.insert(name.to_owned(), made);
        true
    }

    /// The pools of one group by their numbers; nothing where one was removed.
    pub fn pools_of(&self, group: Group) -> Vec<Option<(String, PoolConfig)>> {
        let pools = self.pools.iter().filter(|it| it.1.is_of(group));
        let pools: Vec<_> = pools.collect();
        let count = pools.iter().map(|it| it.1.id.index() + 1).max().unwrap_or(0);
        let mut list = vec![None; count];
        for (name, pool) in pools {
            list[pool.id.index()] = pool.config().map(|config| (name.clone(), config));
        }
        list
    }

    /// Which pools of each group are still there in the next plan, by number.
    pub fn stay(&self, next: &Self) -> Vec<Vec<bool>> {
        let scope = |plan: &Self, group: Group| {
            let place = usize::from(group.scope).checked_sub(1)?;
            plan.scopes.get(place).cloned()
        };
        let stay = |group: Group| {
            let same = scope(self, group) == scope(next, group);
            let theirs = if same { next.names_of(group) } else { Vec::new() };
            let ours = self.names_of(group).into_iter().enumerate();
            ours.map(|(id, it)| it.is_some() && theirs.get(id) == Some(&it)).collect()
        };
        self.groups().into_iter().map(stay).collect()
    }
}

/// Whether a pool keeps the names that it has.
fn same_names(old: &PlannedPool, new: &PlannedPool) -> bool {
    new.names.is_empty() || old.names == new.names
}

/// What stays quarantined when a pool changes. Where other units take the place of the old ones,
/// those of the same name are the same.
fn still_out(old: &PlannedPool, new: &PlannedPool) -> BTreeMap<u32, String> {
    let same = new.names.is_empty() || new.names.starts_with(&old.names);
    let number = |number: u32| {
        if same {
            return Some(number).filter(|&number| number < new.units);
        }
        new.unit_named(&unit_name(&old.names, number))
    };
    let out = old.out.iter();
    out.filter_map(|(&unit, reason)| Some((number(unit)?, reason.clone()))).collect()
}

/// A record as the store keeps it.
pub fn pack(record: &epoch::Record<Plan>) -> Vec<u8> {
    // Surveys have the order of the protocols in this version; others may differ.
    let numbers: Vec<ProtocolId> = record.plan.groups().into_iter().map(Group::id).collect();
    let body = postcard::to_extend(&(numbers, record), FORM.to_vec());
    body.expect("a record is plain values")
}

/// A record as the store decides on it.
pub fn decree(record: &epoch::Record<Plan>) -> crate::store::Record {
    let (epoch, voters) = (record.epoch, record.plan.voters.clone());
    crate::store::Record { epoch, voters, body: pack(record) }
}

/// A record from the store; why it cannot be read otherwise.
pub fn unpack(bytes: &[u8]) -> Result<epoch::Record<Plan>, String> {
    let body = bytes.strip_prefix(&FORM).ok_or_else(|| {
        "the record was written by another version of kofm: start all sites with the same one, \
         and where an older one was used before, with a fresh state_dir"
            .to_owned()
    })?;
    let (numbers, mut record): (Vec<ProtocolId>, epoch::Record<Plan>) =
        postcard::from_bytes(body).map_err(|error| format!("the record is damaged: {error}"))?;
    record.surveys = in_order(&record.plan.groups(), &numbers, record.surveys)?;
    Ok(record)
}

/// Surveys in the order of these groups, from those of groups with these numbers.
fn in_order(
    groups: &[Group],
    numbers: &[ProtocolId],
    surveys: Vec<Survey>,
) -> Result<Vec<Survey>, String> {
    if surveys.is_empty() {
        return Ok(surveys);
    }
    let mut by_id: BTreeMap<ProtocolId, Survey> = numbers.iter().copied().zip(surveys).collect();
    let known = groups.iter().map(|group| by_id.remove(&group.id()).unwrap_or_default());
    let known = known.collect();
    match by_id.iter().find(|(_, survey)| !survey.claims.is_empty()) {
        Some((id, _)) => Err(format!(
            "the record has claims of protocol number {}, which this version of kofm lacks",
            id.0
        )),
        None => Ok(known),
    }
}

/// What is left of a demand, where some pools are gone.
pub fn rest(stay: &[bool], demand: &Demand) -> Demand {
    demand.parts().filter(|it| stay.get(it.0.index()) == Some(&true)).collect()
}

impl epoch::Plan for Plan {
    fn clusters(&self, members: &SiteSet) -> Vec<Cluster> {
        let last = self.sites.keys().copied().chain(members.iter()).max();
        let sites = last.map_or(1, |site| site.0.saturating_add(1));
        let cluster = |group: Group| {
            let kind = group.kind;
            let there = |site: SiteId| members.contains(site) && self.shares(site, group);
            let absent: SiteSet = (0..sites).map(SiteId).filter(|&site| !there(site)).collect();
            if kind.profile().serves == Service::Semaphore {
                let list = self.semaphores_of(kind);
                let said = (0..).map(PoolId).zip(&list);
                let said =
                    said.filter_map(|(id, it)| Some((id, it.as_ref()?.1.arbitration.clone()?)));
                let values = list.iter().map(|it| Units(it.as_ref().map_or(0, |it| it.1.value)));
                let (arbitration, pools) = (said.collect(), values.collect());
                return Cluster { arbitration, pools, absent, ..Cluster::new(sites, 1) };
            }
            let pools = self.pools_of(group);
            let shared = self.pools.values().filter(|pool| pool.is_of(group));
            let out = shared
                .flat_map(|pool| pool.out.keys().map(|&number| Unit { pool: pool.id, number }));
            let said = (0..).map(PoolId).zip(&pools);
            let said = said.filter_map(|(id, it)| Some((id, it.as_ref()?.1.arbitration.clone()?)));
            Cluster {
                arbitration: said.collect(),
                // Nobody can ask for the unit of a pool that is not there.
                pools: pools
                    .iter()
                    .map(|it| Units(it.as_ref().map_or(1, |it| it.1.units)))
                    .collect(),
                absent,
                root: self.root,
                out: out.collect(),
                ..Cluster::new(sites, 1)
            }
        };
        self.groups().into_iter().map(cluster).collect()
    }

    /// Those that vote come first: while the cluster goes on, most of them are there.
    fn keepers(&self, members: &SiteSet) -> SiteSet {
        keepers::among(members, &self.voters.keys().copied().collect())
    }

    fn keeps(&self) -> BTreeSet<(usize, PoolId)> {
        let groups = self.groups();
        let pools = self.pools.values().filter(|pool| pool.keeps());
        let place = |pool: &PlannedPool| {
            let book = groups.iter().position(|&group| pool.is_of(group))?;
            (!heals(groups[book].kind)).then_some((book, pool.id))
        };
        pools.filter_map(place).collect()
    }

    fn carry(&self, next: &Self, mut surveys: Vec<Survey>) -> Vec<Survey> {
        for (survey, group) in surveys.iter_mut().zip(self.groups()) {
            // Whoever waits for more than is left would wait for ever, and others behind it.
            let short = next.pools.values().filter(|pool| pool.is_of(group));
            let short = short.filter(|pool| !pool.out.is_empty());
            let short: Vec<(PoolId, u32)> = short.map(|pool| (pool.id, pool.usable())).collect();
            let fits = |demand: &Demand| short.iter().all(|it| demand.units(it.0).0 <= it.1);
            survey.claims.retain(|_, Standing { demand, held, .. }| held.is_some() || fits(demand));
        }
        for (survey, stay) in surveys.iter_mut().zip(self.stay(next)) {
            if stay.iter().all(|stays| *stays) {
                continue;
            }
            let stays = |pool: PoolId| stay.get(pool.index()) == Some(&true);
            survey.claims.retain(|_, Standing { demand, held, .. }| {
                let left = rest(&stay, demand);
                match held {
                    Some(units) => units.retain(|unit| stays(unit.pool)),
                    // It would never get what it asked for.
                    None if left != *demand => return false,
                    None => {}
                }
                *demand = left;
                !demand.is_empty()
            });
            survey.idle.retain(|unit, _| stays(unit.pool));
            survey.lines.retain(|&pool, _| stays(pool));
            survey.withheld.retain(|&pool, _| stays(pool));
            survey.withheld_units.retain(|unit| stays(unit.pool));
            if let Some(counts) = &mut survey.counts {
                counts.values.retain(|&pool, _| stays(pool));
                counts.accounts.retain(|&pool, _| stays(pool));
            }
        }
        surveys
    }
}

#[cfg(test)]
mod tests {
    use kofm_core::Stamp;
    use kofm_core::epoch::Plan as _;

    use super::*;

    fn plan(pools: &[(&str, u32)]) -> Plan {
        let mut config = Config::single("a");
        for (name, units) in pools {
            config.pools.insert((*name).to_owned(), PoolConfig::new(*units));
        }
        Plan::first(&config)
    }

    #[test]
    fn a_record_says_which_protocol_each_survey_is_of() {
        let mut record = epoch::Record {
            epoch: 3,
            members: BTreeMap::new(),
            lives: BTreeMap::new(),
            plan: Plan::default(),
            quarantine: BTreeMap::new(),
            surveys: vec![Survey::default(); kinds().len()],
            moves: Vec::new(),
        };
        let quorum = kinds().iter().position(|&it| it == Kind::Quorum).unwrap();
        record.surveys[quorum].clock.time = 7;
        assert_eq!(unpack(&pack(&record)).unwrap(), record);
        // Another version lists them in another order, and knows one that is gone.
        let packed = |claimed: bool| {
            let mut other = record.clone();
            other.surveys.reverse();
            other.surveys.push(Survey::default());
            if claimed {
                let standing = Standing::waiting(Demand::one(PoolId(0), 1));
                let claim = Stamp { time: 1, site: SiteId(0) };
                other.surveys[kinds().len()].claims.insert(claim, standing);
            }
            let numbers = kinds().into_iter().rev().map(Kind::id).chain([ProtocolId(9)]);
            let numbers: Vec<ProtocolId> = numbers.collect();
            postcard::to_extend(&(numbers, other), FORM.to_vec()).unwrap()
        };
        assert_eq!(unpack(&packed(false)).unwrap(), record);
        let error = unpack(&packed(true)).unwrap_err();
        assert!(error.contains("protocol number 9"), "{error}");
    }

    #[test]
    fn pools_keep_their_numbers_and_holders_their_units() {
        let mut plan = plan(&[("b", 4), ("d", 2)]);
        plan.put("a", &PoolConfig::new(1));
        plan.put("b", &PoolConfig::new(1));
        let kind = crate::config::default_protocol();
        let names: Vec<_> =
            plan.pools_of(Group { kind, scope: 0 }).into_iter().flatten().map(|it| it.0).collect();
        assert_eq!(names, ["b", "d", "a"]);
        assert_eq!((plan.pools["b"].units, plan.pools["b"].target), (4, 1));
        plan.put("b", &PoolConfig::new(6));
        assert_eq!((plan.pools["b"].units, plan.pools["b"].target), (6, 6));
        // A number that is free again is given again.
        plan.pools.remove("d");
        plan.put("e", &PoolConfig::new(3));
        assert_eq!(plan.pools["e"].id, PoolId(1));
    }

    #[test]
    fn pools_of_the_same_sites_share_a_value_of_their_protocol() {
        let some = |sites: &[&str]| {
            let sites = sites.iter().map(|it| (*it).to_owned()).collect();
            PoolConfig { scope: Scope { sites, ..Scope::default() }, ..PoolConfig::new(2) }
        };
        let mut plan = plan(&[("all", 1)]);
        plan.sites = (0..3).map(|it| (SiteId(it), (format!("s{it}"), String::new()))).collect();
        let before = plan.clone();
        assert!(plan.put("x", &some(&["s0", "s1"])) && plan.put("y", &some(&["s0", "s1"])));
        assert!(plan.put("z", &some(&["s1", "s2"])));
        let groups = |plan: &Plan| ["x", "y", "z"].map(|name| plan.pools[name].group);
        assert_eq!(groups(&plan), [1, 1, 2]);
        assert_eq!(["x", "y", "z"].map(|name| plan.pools[name].id.0), [0, 1, 0]);
        let members: SiteSet = plan.sites.keys().copied().collect();
        let clusters = plan.clusters(&members);
        let absent = |place: usize| clusters[place].absent.iter().collect::<Vec<_>>();
        let first = kinds().len();
        assert_eq!((absent(first), absent(first + 1)), (vec![SiteId(2)], vec![SiteId(0)]));
        // Their numbers on the wire differ, and those of pools of all sites are the protocols'.
        let ids: BTreeSet<ProtocolId> = plan.groups().into_iter().map(Group::id).collect();
        assert_eq!(ids.len(), first + 2);
        assert!(Kind::IN_SITES.iter().all(|kind| kind.id().0 < 1 << 8));
        // A place that no pool needs is used again; pools of it are others then.
        let old = plan.clone();
        plan.pools.remove("z");
        assert!(plan.put("z", &some(&["s2"])));
        assert_eq!(groups(&plan), [1, 1, 2]);
        let stay = old.stay(&plan);
        assert_eq!((&stay[first][..], &stay[first + 1][..]), (&[true; 2][..], &[false][..]));
        let record = epoch::Record::first([(SiteId(0), 1)].into(), plan.clone());
        assert_eq!(unpack(&pack(&record)), Ok(record));
        // Bounded.
        for number in 0..300 {
            plan.put(&format!("p{number}"), &some(&[&format!("s{number}")]));
        }
        assert_eq!(plan.scopes.len(), 255);
        assert!(!plan.put("more", &some(&["nix"])) && plan.put("all", &PoolConfig::new(2)));
        assert_eq!(before.groups().len(), first);
    }

    fn named(names: &[&str]) -> PoolConfig {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        PoolConfig { units: u32::try_from(names.len()).unwrap(), names, ..PoolConfig::new(1) }
    }

    fn out(plan: &Plan, pool: &str) -> Vec<u32> {
        plan.pools[pool].out.keys().copied().collect()
    }

    #[test]
    fn what_is_quarantined_stays_so_when_its_pool_changes() {
        let mut plan = plan(&[]);
        plan.put("gpu", &named(&["a", "b", "c"]));
        plan.quarantine("gpu", "b", Some("fan".into())).unwrap();
        plan.quarantine("gpu", "b", Some("ECC".into())).unwrap();
        assert_eq!(plan.pools["gpu"].out, BTreeMap::from([(1, "ECC".to_owned())]));
        assert_eq!(plan.pools["gpu"].usable(), 2);
        plan.put("gpu", &PoolConfig::new(2));
        assert_eq!((out(&plan, "gpu"), plan.pools["gpu"].usable()), (vec![1], 1));
        plan.put("gpu", &named(&["a", "b", "c", "d"]));
        assert_eq!((out(&plan, "gpu"), plan.pools["gpu"].usable()), (vec![1], 3));
        // Other units, among them the same one in another place.
        plan.put("gpu", &named(&["x", "y", "b"]));
        assert_eq!(out(&plan, "gpu"), [2]);
        plan.put("gpu", &named(&["x", "y"]));
        assert_eq!(out(&plan, "gpu"), [0_u32; 0]);
    }

    #[test]
    fn a_unit_is_quarantined_by_its_name_or_its_number() {
        let mut plan = plan(&[("slot", 2), ("@a", 1)]);
        plan.put("gpu", &named(&["a", "1"]));
        let permission = PoolConfig { protocol: Kind::Permission, ..PoolConfig::new(2) };
        plan.put("seat", &permission);
        let why = |text: &str| Some(text.to_owned());
        plan.quarantine("slot", "1", why("r")).unwrap();
        plan.quarantine("gpu", "1", why("r")).unwrap();
        assert_eq!((out(&plan, "slot"), out(&plan, "gpu")), (vec![1], vec![1]));
        let before = plan.clone();
        let long = "x".repeat(MAX_REASON + 1);
        for (pool, unit, reason, code) in [
            ("nix", "0", why("r"), Code::UnknownPool),
            ("@a", "0", why("r"), Code::UnknownPool),
            ("slot", "2", why("r"), Code::NotFound),
            ("slot", "01", why("r"), Code::NotFound),
            ("slot", "", why("r"), Code::NotFound),
            ("gpu", "0", why("r"), Code::NotFound),
            ("slot", "0", why(""), Code::Malformed),
            ("slot", "0", why(" "), Code::Malformed),
            ("slot", "0", why("\n"), Code::Malformed),
            ("slot", "0", Some(long), Code::Malformed),
            ("seat", "0", why("r"), Code::Unsupported),
            ("slot", "0", None, Code::NotFound),
            ("nix", "0", None, Code::UnknownPool),
        ] {
            let refused = plan.quarantine(pool, unit, reason).map_err(|it| it.error);
            assert_eq!(refused, Err(code), "{pool} {unit}");
        }
        assert_eq!(plan, before);
        plan.quarantine("slot", "1", None).unwrap();
        assert_eq!(out(&plan, "slot"), [0_u32; 0]);
    }

    #[test]
    fn only_so_many_reasons_are_kept() {
        let mut plan = plan(&[("slot", 2000)]);
        for unit in 0..MAX_OUT {
            plan.quarantine("slot", &unit.to_string(), Some("r".into())).unwrap();
        }
        let one_more = plan.quarantine("slot", "1500", Some("r".into()));
        assert_eq!(one_more.map_err(|it| it.error), Err(Code::TooMany));
        plan.quarantine("slot", "0", Some("another".into())).unwrap();
    }

    #[test]
    fn a_record_says_what_form_it_has() {
        let mut plan = plan(&[("slot", 2)]);
        plan.quarantine("slot", "1", Some("r".into())).unwrap();
        let record = epoch::Record::first([(SiteId(0), 1)].into(), plan);
        let bytes = pack(&record);
        assert_eq!(unpack(&bytes), Ok(record.clone()));
        assert_eq!(record.clusters()[roaming()].out, [unit(1)].into());
        let older = postcard::to_stdvec(&record).unwrap();
        assert!(unpack(&older).unwrap_err().contains("another version"));
        assert!(unpack(&bytes[..bytes.len() - 1]).unwrap_err().contains("damaged"));
    }

    fn roaming() -> usize {
        kinds().iter().position(|it| *it == Kind::Roaming).unwrap()
    }

    fn unit(number: u32) -> Unit {
        Unit { pool: PoolId(0), number }
    }

    #[test]
    fn who_waits_for_more_than_is_usable_ends() {
        let old = plan(&[("a", 3)]);
        let mut next = old.clone();
        next.quarantine("a", "0", Some("r".into())).unwrap();
        let claim = |time| Stamp { time, site: SiteId(0) };
        let waits = |units| Standing::waiting(Demand::one(PoolId(0), units));
        let all = (0..3).map(unit).collect();
        let holds = Standing { held: Some(all), ..waits(3) };
        let mut surveys = vec![Survey::default(); kinds().len()];
        surveys[roaming()].claims =
            [(claim(1), waits(3)), (claim(2), waits(2)), (claim(3), holds)].into();
        let carried = old.carry(&next, surveys);
        let left: Vec<Stamp> = carried[roaming()].claims.keys().copied().collect();
        assert_eq!(left, [claim(2), claim(3)]);
    }

    #[test]
    fn what_names_a_pool_that_is_gone_ends_with_it() {
        let old = plan(&[("a", 2), ("b", 2)]);
        let mut next = old.clone();
        next.pools.remove("a");
        let place = kinds().iter().position(|it| *it == crate::config::default_protocol());
        let place = place.unwrap();
        let mut surveys = vec![Survey::default(); kinds().len()];
        let claim = |time| Stamp { time, site: SiteId(0) };
        let both: Demand = [(PoolId(0), Units(1)), (PoolId(1), Units(1))].into_iter().collect();
        let waits = Standing::waiting(both.clone());
        let holds = Standing::holding(both, Vec::new());
        surveys[place].claims = [(claim(1), waits), (claim(2), holds)].into();
        let carried = old.carry(&next, surveys);
        let left = &carried[place].claims;
        assert_eq!(left.keys().copied().collect::<Vec<_>>(), [claim(2)]);
        assert_eq!(left[&claim(2)].demand, Demand::one(PoolId(1), 1));
    }
}
