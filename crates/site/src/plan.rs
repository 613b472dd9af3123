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
    Config, PoolConfig, SEAT, SemaphoreConfig, semaphore_protocol_named, unit_name,
};
use crate::engine::{heals, runs_in_a_site};
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
const FORM: [u8; 5] = *b"kofm\x05";

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
        }
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
            self.protocol != new.protocol || (!new.names.is_empty() && renamed)
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
        let mut next: BTreeMap<&str, u16> = BTreeMap::new();
        for (name, pool) in &config.pools {
            let number = next.entry(pool.protocol.name()).or_default();
            plan.pools.insert(name.clone(), PlannedPool::new(PoolId(*number), pool));
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

    /// What has each number among the pools or semaphores of one protocol.
    fn names_of(&self, kind: Kind) -> Vec<Option<String>> {
        let pools = self.pools_of(kind).into_iter().map(|it| it.map(|it| it.0));
        let semaphores = self.semaphores_of(kind).into_iter().map(|it| it.map(|it| it.0));
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

    /// Makes a pool, or changes it.
    pub fn put(&mut self, name: &str, pool: &PoolConfig) {
        let protocol = pool.protocol.name();
        let same = self.pools.get(name).filter(|old| old.protocol == protocol).map(|old| old.id);
        let others = self.pools.values().filter(|other| other.protocol == protocol);
        let taken: BTreeSet<PoolId> = others.map(|other| other.id).collect();
        let free = || (0..u16::MAX).map(PoolId).find(|id| !taken.contains(id));
        let id = same.or_else(free).unwrap_or(PoolId(u16::MAX));
        let old = self.pools.get(name).filter(|_| same.is_some());
        let mut made = PlannedPool::new(id, pool);
        // Those who hold units keep them, so that a pool is made smaller only in what is shown.
        if let Some(old) = old.filter(|old| made.target <= old.units && same_names(old, &made)) {
            made.units = old.units;
            made.names.clone_from(&old.names);
        }
        if let Some(old) = old {
            made.out = still_out(old, &made);
        }
        self.pools.insert(name.to_owned(), made);
    }

    /// The pools of one protocol by their numbers; nothing where one was removed.
    pub fn pools_of(&self, kind: Kind) -> Vec<Option<(String, PoolConfig)>> {
        let pools = self.pools.iter().filter(|it| it.1.protocol == kind.name());
        let pools: Vec<_> = pools.collect();
        let count = pools.iter().map(|it| it.1.id.index() + 1).max().unwrap_or(0);
        let mut list = vec![None; count];
        for (name, pool) in pools {
            list[pool.id.index()] = pool.config().map(|config| (name.clone(), config));
        }
        list
    }

    /// Which pools of each protocol are still there in the next plan, by number.
    pub fn stay(&self, next: &Self) -> Vec<Vec<bool>> {
        let stay = |kind: Kind| {
            let theirs = next.names_of(kind);
            let ours = self.names_of(kind).into_iter().enumerate();
            ours.map(|(id, it)| it.is_some() && theirs.get(id) == Some(&it)).collect()
        };
        kinds().into_iter().map(stay).collect()
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
    let numbers: Vec<ProtocolId> = kinds().into_iter().map(Kind::id).collect();
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
    record.surveys = in_order(&numbers, record.surveys)?;
    Ok(record)
}

/// Surveys in the order of [`kinds`], from those of protocols with these numbers.
fn in_order(numbers: &[ProtocolId], surveys: Vec<Survey>) -> Result<Vec<Survey>, String> {
    if surveys.is_empty() {
        return Ok(surveys);
    }
    let mut by_id: BTreeMap<ProtocolId, Survey> = numbers.iter().copied().zip(surveys).collect();
    let known = kinds().into_iter().map(|kind| by_id.remove(&kind.id()).unwrap_or_default());
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
        let absent: SiteSet =
            (0..sites).map(SiteId).filter(|&site| !members.contains(site)).collect();
        let cluster = |kind: Kind| {
            if kind.profile().serves == Service::Semaphore {
                let list = self.semaphores_of(kind);
                let said = (0..).map(PoolId).zip(&list);
                let said =
                    said.filter_map(|(id, it)| Some((id, it.as_ref()?.1.arbitration.clone()?)));
                let values = list.iter().map(|it| Units(it.as_ref().map_or(0, |it| it.1.value)));
                let (arbitration, pools) = (said.collect(), values.collect());
                return Cluster {
                    arbitration,
                    pools,
                    absent: absent.clone(),
                    ..Cluster::new(sites, 1)
                };
            }
            let pools = self.pools_of(kind);
            let shared = self.pools.values().filter(|pool| pool.protocol == kind.name());
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
                absent: absent.clone(),
                root: self.root,
                out: out.collect(),
                ..Cluster::new(sites, 1)
            }
        };
        kinds().into_iter().map(cluster).collect()
    }

    /// Those that vote come first: while the cluster goes on, most of them are there.
    fn keepers(&self, members: &SiteSet) -> SiteSet {
        keepers::among(members, &self.voters.keys().copied().collect())
    }

    fn keeps(&self) -> BTreeSet<(usize, PoolId)> {
        let kinds = kinds();
        let pools = self.pools.values().filter(|pool| pool.keeps());
        let place = |pool: &PlannedPool| {
            let book = kinds.iter().position(|kind| kind.name() == pool.protocol)?;
            (!heals(kinds[book])).then_some((book, pool.id))
        };
        pools.filter_map(place).collect()
    }

    fn carry(&self, next: &Self, mut surveys: Vec<Survey>) -> Vec<Survey> {
        for (survey, kind) in surveys.iter_mut().zip(kinds()) {
            // Whoever waits for more than is left would wait for ever, and others behind it.
            let short = next.pools.values().filter(|pool| pool.protocol == kind.name());
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
        let names: Vec<_> = plan.pools_of(kind).into_iter().flatten().map(|it| it.0).collect();
        assert_eq!(names, ["b", "d", "a"]);
        assert_eq!((plan.pools["b"].units, plan.pools["b"].target), (4, 1));
        plan.put("b", &PoolConfig::new(6));
        assert_eq!((plan.pools["b"].units, plan.pools["b"].target), (6, 6));
        // A number that is free again is given again.
        plan.pools.remove("d");
        plan.put("e", &PoolConfig::new(3));
        assert_eq!(plan.pools["e"].id, PoolId(1));
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
