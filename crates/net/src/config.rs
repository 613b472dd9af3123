//! What a site is told before it starts: `Config`, and how it is read from TOML.
//!
//! Every mistake in a file is reported with its line, not only the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use kofm_core::quorums::{Arbitration, Construction, RequestSets};
use kofm_core::{Cluster, Kind, PoolId, Service, SiteId};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::api::{Members, OnExpiry};
use crate::engine::{runs_in_a_site, serves_rota};

/// Sites in a cluster.
pub const MAX_SITES: usize = 1000;
/// Pools in a cluster.
pub const MAX_POOLS: usize = 20_000;
/// Semaphores in a cluster.
pub const MAX_SEMAPHORES: usize = 20_000;
/// Units in a pool.
pub const MAX_UNITS: u32 = 1_000_000;

/// One site of a cluster. Everything but `site` and the addresses it listens on is the same at all
/// sites: they compare it when they meet, and refuse each other where it differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The cluster's name: sites of different clusters refuse each other.
    pub cluster: String,
    /// This site's name; one of the members.
    pub site: String,
    /// All sites and where the others reach them, `host:port`.
    pub members: BTreeMap<String, String>,
    /// Where this site listens for the others. Default: its address among the members.
    pub listen: Option<String>,
    /// Where clients are answered, `host:port`.
    pub http: Option<String>,
    /// A Unix socket for clients on this machine.
    pub socket: Option<PathBuf>,
    /// Where the incarnation is kept. Needed as soon as there are other sites.
    pub state_dir: Option<PathBuf>,
    /// A file with the tokens that clients must show one of; see [`crate::Access::read`]. Without
    /// it everybody is answered who can connect.
    pub token_file: Option<PathBuf>,
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
    /// How long a site may grant after it last reached a majority of the members, or etcd. Client
    /// leases end with it, and what a dead site gave away comes back after it.
    pub site_lease: Duration,
    /// The members of an etcd that keeps the cluster's epoch, `http://host:port` each. Without
    /// it a majority of the sites does.
    pub etcd: Vec<String>,
    /// What survives a crash of this site.
    pub durability: Durability,
    /// The numbers of the members, where the cluster has given them; otherwise their places.
    pub(crate) numbers: BTreeMap<String, SiteId>,
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

/// What is joined where the gangs of a rota take turns, whichever comes next.
pub(crate) const ROTA: &str = "rota";
/// Gangs of a rota at most.
const MAX_ROTA: usize = 1_000;

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

/// What a site writes to its disk about leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// All of them when it stops, none when it crashes.
    #[default]
    None,
    /// Each grant, before its client hears of it.
    Grant,
}

const MIN_SITE_LEASE: Duration = Duration::from_secs(1);
const SITE_LEASE: Duration = Duration::from_secs(5);
const MAX_SITE_LEASE: Duration = Duration::from_mins(10);

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
}

impl PoolConfig {
    /// So many numbered units, shared by the default protocol.
    pub fn new(units: u32) -> Self {
        let (names, on_expiry) = (Vec::new(), OnExpiry::Release);
        Self { units, names, protocol: default_protocol(), on_expiry, arbitration: None }
    }

    /// What people call a unit.
    pub fn unit_name(&self, number: u32) -> String {
        let name = usize::try_from(number).ok().and_then(|number| self.names.get(number));
        name.cloned().unwrap_or_else(|| number.to_string())
    }
}

/// The protocol of pools that name none. `roaming` costs less, but see what is known to be wrong
/// with it in `docs/failure-model.md`.
pub fn default_protocol() -> Kind {
    Kind::Permission
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
    Err(format!("`{name}` is no name; use up to 64 letters, digits, `-`, `_` and `.`"))
}

/// What the name of a hidden pool begins with: one unit for each site, which gangs take so that a
/// member is in one gang at a time. No other pool can be called so.
pub(crate) const SEAT: &str = "@";

impl Config {
    /// The same with a seat for each member.
    pub(crate) fn with_seats(mut self) -> Self {
        for member in self.members.keys() {
            self.pools.entry(format!("{SEAT}{member}")).or_insert_with(|| PoolConfig::new(1));
        }
        self
    }

    /// A cluster of one site that nobody listens to: add pools, and start it.
    pub fn single(site: &str) -> Self {
        Self {
            cluster: "local".into(),
            site: site.into(),
            members: BTreeMap::from([(site.into(), String::new())]),
            listen: None,
            http: None,
            socket: None,
            state_dir: None,
            token_file: None,
            pools: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            gangs: BTreeMap::new(),
            tree_root: None,
            rota: None,
            site_lease: SITE_LEASE,
            etcd: Vec::new(),
            durability: Durability::None,
            numbers: BTreeMap::new(),
        }
    }

    /// This site's number: its place among the names of all.
    pub fn me(&self) -> SiteId {
        self.number_of(&self.site).unwrap_or(SiteId(0))
    }

    /// A site's number.
    pub fn number_of(&self, site: &str) -> Option<SiteId> {
        if !self.numbers.is_empty() {
            return self.numbers.get(site).copied();
        }
        let place = self.members.keys().position(|name| name == site)?;
        u16::try_from(place).ok().map(SiteId)
    }

    /// A digest of what must be the same at all sites. Pools and semaphores are not in it: the
    /// cluster agrees on them itself.
    pub fn table(&self) -> u64 {
        // With etcd, sites come and go.
        let fixed = self.etcd.is_empty();
        let names: Vec<&String> = self.members.keys().filter(|_| fixed).collect();
        let text = format!("{names:?}{:?}{:?}", self.site_lease, self.rota);
        // FNV-1a: against mistakes, not against malice.
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Reads a configuration file.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        let mut reader = Reader { text, mistakes: Vec::new() };
        let config = reader.config();
        reader.mistakes.sort_by_key(|mistake| mistake.line);
        if reader.mistakes.is_empty() {
            return Ok(config);
        }
        Err(Mistakes(reader.mistakes))
    }
}

/// Members of a gang at most.
pub(crate) const MAX_GANG: usize = 64;

/// What may stand at the top of a file.
const KEYS: [&str; 17] = [
    "cluster",
    "site",
    "members",
    "listen",
    "http",
    "socket",
    "state_dir",
    "token_file",
    "pools",
    "semaphores",
    "gangs",
    "rota",
    "tree_root",
    "protocol",
    "site_lease",
    "etcd",
    "durability",
];

/// All that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.0.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}line {}: {}", mistake.line, mistake.text)?;
        }
        Ok(())
    }
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub text: String,
}

struct Reader<'a> {
    text: &'a str,
    mistakes: Vec<Mistake>,
}

type Table<'a> = DeTable<'a>;
type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn wrong(&mut self, span: Range<usize>, text: impl Into<String>) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        self.mistakes.push(Mistake { line, text: text.into() });
    }

    fn config(&mut self) -> Config {
        let mut config = Config::single("");
        config.members.clear();
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            self.wrong(error.span().unwrap_or(0..0), error.message());
        }
        if !errors.is_empty() {
            return config;
        }
        let table = document.get_ref();
        self.unknown_keys(table, &KEYS, "");
        if let Some(cluster) = self.string(table, "cluster") {
            config.cluster = cluster;
        }
        config.site = self.string(table, "site").unwrap_or_default();
        config.listen = self.address(table, "listen");
        config.http = self.address(table, "http");
        config.socket = self.string(table, "socket").map(PathBuf::from);
        config.state_dir = self.string(table, "state_dir").map(PathBuf::from);
        config.token_file = self.string(table, "token_file").map(PathBuf::from);
        let protocol = match self.string(table, "protocol").map(|name| protocol_named(&name)) {
            Some(Ok(kind)) => kind,
            Some(Err(text)) => {
                self.wrong(span_of(table, "protocol"), text);
                default_protocol()
            }
            None => default_protocol(),
        };
        self.members(table, &mut config);
        self.failures(table, &mut config);
        self.pools(table, protocol, &mut config);
        self.semaphores(table, &mut config);
        self.gangs(table, &mut config);
        self.rota(table, &mut config);
        config.tree_root = self.string(table, "tree_root");
        if let Some(root) = config.tree_root.as_ref().filter(|it| !config.members.contains_key(*it))
        {
            let text = format!("tree_root: there is no site `{root}`");
            self.wrong(span_of(table, "tree_root"), text);
        }
        config
    }

    fn rota(&mut self, table: &Table<'_>, config: &mut Config) {
        let Some(rota) = self.table(table, "rota") else { return };
        let span = span_of(table, "rota");
        self.unknown_keys(rota, &["protocol", "needs", "gangs"], "rota");
        let protocol = self.string(rota, "protocol");
        let protocol = protocol.as_deref().unwrap_or(Kind::GroupsHungry.name());
        let Some(protocol) = Kind::named(protocol).filter(|&kind| serves_rota(kind)) else {
            let text = "the protocol of a rota is groups or groups-hungry";
            return self.wrong(span_of(rota, "protocol"), text);
        };
        let needs = self.lists(rota, "needs");
        let gangs = self.lists(rota, "gangs");
        if !config.etcd.is_empty() {
            return self.wrong(span, "a rota is fixed, and with etcd sites come and go");
        }
        if gangs.is_empty() || gangs.len() > MAX_ROTA {
            let text =
                format!("write [rota.gangs] and NAME = [\"SITE\", …], 1 to {MAX_ROTA} of them");
            return self.wrong(span, text);
        }
        for site in needs.keys().chain(gangs.values().flatten()) {
            if !config.members.contains_key(site) {
                let text = format!("rota: there is no site `{site}`");
                self.wrong(span.clone(), text);
            }
        }
        for (name, members) in &gangs {
            if name == ROTA || config.gangs.contains_key(name) {
                self.wrong(span.clone(), format!("rota: the name `{name}` is taken"));
            }
            if let Err(text) = check_name(name) {
                self.wrong(span.clone(), text);
            }
            let mut taken = BTreeMap::new();
            for (i, site) in members.iter().enumerate() {
                if members[..i].contains(site) {
                    let text = format!("rota: gang `{name}` names `{site}` twice");
                    self.wrong(span.clone(), text);
                }
                for resource in needs.get(site).into_iter().flatten() {
                    if let Some(other) = taken.insert(resource, site) {
                        let text = format!(
                            "rota: `{other}` and `{site}` of gang `{name}` both need `{resource}`: \
                             they can never work together"
                        );
                        self.wrong(span.clone(), text);
                    }
                }
            }
            if members.is_empty() {
                self.wrong(span.clone(), format!("rota: gang `{name}` has no members"));
            }
        }
        config.rota = Some(RotaConfig { protocol, needs, gangs });
    }

    /// Lists of names, each under a name.
    fn lists(&mut self, table: &Table<'_>, key: &str) -> BTreeMap<String, Vec<String>> {
        let mut lists = BTreeMap::new();
        for (name, value) in self.table(table, key).into_iter().flatten() {
            let items = value.get_ref().as_array().map(|items| {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                texts.collect::<Option<Vec<String>>>()
            });
            match items.flatten() {
                Some(items) => drop(lists.insert(name.get_ref().to_string(), items)),
                None => self.wrong(value.span(), "write a list of names: [\"a\", \"b\"]"),
            }
        }
        lists
    }

    fn gangs(&mut self, table: &Table<'_>, config: &mut Config) {
        for (name, value) in self.table(table, "gangs").into_iter().flatten() {
            if let Err(text) = check_name(name.get_ref()) {
                self.wrong(name.span(), text);
            }
            let name = name.get_ref();
            let Some(list) = value.get_ref().as_table() else {
                let text = format!("write [gangs.{name}], and SITE = \"POOL:K\" for each member");
                self.wrong(value.span(), text);
                continue;
            };
            let mut members = Members::new();
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for (site, value) in list {
                let want = value.get_ref().as_str().and_then(crate::api::parse_want);
                let Some(want) = want else {
                    let text = "what a member needs is written \"POOL:K\", more with commas";
                    self.wrong(value.span(), text);
                    continue;
                };
                // With etcd, sites come and go.
                if config.etcd.is_empty() && !config.members.contains_key(site.get_ref().as_ref()) {
                    let text = format!("gang `{name}`: there is no site `{}`", site.get_ref());
                    self.wrong(site.span(), text);
                }
                for (pool, units) in &want {
                    *sums.entry(pool.clone()).or_default() += u64::from(*units);
                }
                members.insert(site.get_ref().to_string(), want);
            }
            for (pool, sum) in sums {
                let text = match config.pools.get(&pool) {
                    None => format!("gang `{name}`: there is no pool `{pool}`"),
                    Some(it) if u64::from(it.units) < sum => format!(
                        "gang `{name}`: its members ask for {sum} units of pool `{pool}` together, \
                         which has {}",
                        it.units
                    ),
                    Some(_) => continue,
                };
                self.wrong(value.span(), text);
            }
            if list.is_empty() || list.len() > MAX_GANG {
                let text = format!("gang `{name}`: a gang has 1 to {MAX_GANG} members");
                self.wrong(value.span(), text);
            }
            config.gangs.insert(name.to_string(), members);
        }
    }

    fn semaphores(&mut self, table: &Table<'_>, config: &mut Config) {
        let Some(semaphores) = self.table(table, "semaphores") else { return };
        if semaphores.len() > MAX_SEMAPHORES {
            let text = format!("more than {MAX_SEMAPHORES} semaphores");
            self.wrong(span_of(table, "semaphores"), text);
        }
        for (name, value) in semaphores {
            if let Err(text) = check_name(name.get_ref()) {
                self.wrong(name.span(), text);
            }
            let mut semaphore = SemaphoreConfig::new(0);
            let number = if let Some(table) = value.get_ref().as_table() {
                let known = ["value", "protocol", "construction", "crashes", "arbiters"];
                self.unknown_keys(table, &known, name.get_ref());
                if let Some(name) = self.string(table, "protocol") {
                    match semaphore_protocol_named(&name) {
                        Ok(kind) => semaphore.protocol = kind,
                        Err(text) => self.wrong(span_of(table, "protocol"), text),
                    }
                }
                // Its turns are a pool of one unit.
                let mut turns = PoolConfig { protocol: semaphore.protocol, ..PoolConfig::new(1) };
                self.arbitration(table, config, &mut turns);
                semaphore.arbitration = turns.arbitration;
                table.get("value")
            } else {
                Some(value)
            };
            let integer = number.and_then(|number| number.get_ref().as_integer());
            let parsed = integer.and_then(|n| u32::from_str_radix(n.as_str(), n.radix()).ok());
            let Some(parsed) = parsed else {
                let span = number.map_or_else(|| value.span(), Spanned::span);
                let text = format!(
                    "semaphore `{}`: its `value` is a number from 0 to {}",
                    name.get_ref(),
                    u32::MAX
                );
                self.wrong(span, text);
                continue;
            };
            semaphore.value = parsed;
            config.semaphores.insert(name.get_ref().to_string(), semaphore);
        }
    }

    /// What happens when sites die.
    fn failures(&mut self, table: &Table<'_>, config: &mut Config) {
        if let Some(text) = self.string(table, "site_lease") {
            match crate::duration::parse(&text) {
                Ok(time) if (MIN_SITE_LEASE..=MAX_SITE_LEASE).contains(&time) => {
                    config.site_lease = time;
                }
                Ok(_) => self.wrong(span_of(table, "site_lease"), "site_lease is from 1s to 10m"),
                Err(text) => self.wrong(span_of(table, "site_lease"), text),
            }
        }
        if let Some(name) = self.string(table, "durability") {
            match name.as_str() {
                "none" => config.durability = Durability::None,
                "grant" => config.durability = Durability::Grant,
                _ => {
                    let text = format!("durability is none or grant, not `{name}`");
                    self.wrong(span_of(table, "durability"), text);
                }
            }
            if config.durability == Durability::Grant && config.state_dir.is_none() {
                let text = "`state_dir` is missing: grants need a place on disk";
                self.wrong(span_of(table, "durability"), text);
            }
        }
        if let Some(value) = table.get("etcd") {
            for endpoint in value.get_ref().as_array().into_iter().flatten() {
                let text = endpoint.get_ref().as_str().unwrap_or_default();
                match crate::client::Address::parse(text) {
                    Ok(_) if text.starts_with("http://") => config.etcd.push(text.to_owned()),
                    Ok(_) | Err(_) => {
                        let text = "an etcd member is written \"http://host:port\"";
                        self.wrong(endpoint.span(), text);
                    }
                }
            }
            if config.etcd.is_empty() {
                let text = "write etcd = [\"http://host:2379\", …], or leave it out";
                self.wrong(value.span(), text);
            }
        }
    }

    fn members(&mut self, table: &Table<'_>, config: &mut Config) {
        if let Some(members) = self.table(table, "members") {
            for (name, value) in members {
                if let Err(text) = check_name(name.get_ref()) {
                    self.wrong(name.span(), text);
                }
                let address = value.get_ref().as_str().unwrap_or_default();
                if !is_address(address) {
                    self.wrong(value.span(), "an address is written \"host:port\"");
                }
                config.members.insert(name.get_ref().to_string(), address.to_owned());
            }
            if members.len() > MAX_SITES {
                self.wrong(span_of(table, "members"), format!("more than {MAX_SITES} sites"));
            }
            if config.site.is_empty() && !table.contains_key("site") {
                self.wrong(span_of(table, "members"), "`site` is missing: which one is this?");
            }
        } else if config.site.is_empty() {
            config.site = "s0".into();
        }
        if config.members.is_empty() {
            config.members.insert(config.site.clone(), String::new());
        } else if !config.site.is_empty() && !config.members.contains_key(&config.site) {
            let names: Vec<&str> = config.members.keys().map(String::as_str).collect();
            let text =
                format!("site `{}` is not a member; there are {}", config.site, names.join(", "));
            self.wrong(span_of(table, "site"), text);
        }
        if config.members.len() > 1 && config.state_dir.is_none() {
            self.wrong(
                span_of(table, "members"),
                "`state_dir` is missing: with other sites, a restart must be told from a pause",
            );
        }
        if config.http.is_none() && config.socket.is_none() {
            self.wrong(
                0..0,
                "neither `http` nor `socket` is given: no client could reach this site",
            );
        }
    }

    fn pools(&mut self, table: &Table<'_>, protocol: Kind, config: &mut Config) {
        let Some(pools) = self.table(table, "pools") else {
            if !table.contains_key("pools") && !table.contains_key("semaphores") {
                self.wrong(0..0, "there are no pools; write [pools] and name = units");
            }
            return;
        };
        if pools.len() > MAX_POOLS {
            self.wrong(span_of(table, "pools"), format!("more than {MAX_POOLS} pools"));
        }
        for (name, value) in pools {
            if let Err(text) = check_name(name.get_ref()) {
                self.wrong(name.span(), text);
            }
            if let Some(mut pool) = self.pool(name.get_ref(), value, protocol) {
                if let Some(table) = value.get_ref().as_table() {
                    self.arbitration(table, config, &mut pool);
                }
                config.pools.insert(name.get_ref().to_string(), pool);
            }
        }
    }

    fn pool(&mut self, name: &str, value: &Value<'_>, protocol: Kind) -> Option<PoolConfig> {
        let mut pool = PoolConfig { protocol, ..PoolConfig::new(1) };
        match value.get_ref() {
            DeValue::Integer(_) | DeValue::Array(_) => self.units(value, &mut pool)?,
            DeValue::Table(table) => {
                let known =
                    ["units", "protocol", "on_expiry", "construction", "crashes", "arbiters"];
                self.unknown_keys(table, &known, name);
                let Some(units) = table.get("units") else {
                    self.wrong(value.span(), format!("pool `{name}` has no `units`"));
                    return None;
                };
                self.units(units, &mut pool)?;
                if let Some(name) = self.string(table, "protocol") {
                    match protocol_named(&name) {
                        Ok(kind) => pool.protocol = kind,
                        Err(text) => self.wrong(span_of(table, "protocol"), text),
                    }
                }
                if let Some(name) = self.string(table, "on_expiry") {
                    match OnExpiry::named(&name) {
                        Some(policy) => pool.on_expiry = policy,
                        None => self.wrong(
                            span_of(table, "on_expiry"),
                            format!("on_expiry is release, hold or quarantine, not `{name}`"),
                        ),
                    }
                }
            }
            DeValue::String(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
                self.wrong(
                    value.span(),
                    format!("pool `{name}`: write a number of units, or names"),
                );
                return None;
            }
        }
        Some(pool)
    }

    /// What a pool says about its arbiters, checked as a whole.
    fn arbitration(&mut self, table: &Table<'_>, config: &Config, pool: &mut PoolConfig) {
        let keys = ["construction", "crashes", "arbiters"];
        let Some(first) = keys.into_iter().find(|key| table.contains_key(*key)) else { return };
        if !pool.protocol.profile().arbitrated {
            let text = format!("`{first}` is for protocol = \"quorum\" and \"sem-quorum\"");
            return self.wrong(span_of(table, first), text);
        }
        let mut said = Arbitration::default();
        if let Some(name) = self.string(table, "construction") {
            said.construction = Construction::named(&name);
            if said.construction.is_none() {
                let names: Vec<_> = Construction::ALL.iter().map(|it| it.name()).collect();
                let text = format!("there is no construction `{name}`: use {}", names.join(", "));
                return self.wrong(span_of(table, "construction"), text);
            }
        }
        if let Some(value) = table.get("crashes") {
            let number = value.get_ref().as_integer();
            let number = number.and_then(|n| u16::from_str_radix(n.as_str(), n.radix()).ok());
            let Some(number) = number else {
                return self.wrong(value.span(), "crashes is a number of sites");
            };
            said.crashes = number;
        }
        if let Some(value) = table.get("arbiters") {
            let mut arbiters = Vec::new();
            for name in value.get_ref().as_array().into_iter().flatten() {
                let text = name.get_ref().as_str().unwrap_or_default();
                let place = config.members.keys().position(|member| member == text);
                match place.and_then(|place| u16::try_from(place).ok()) {
                    Some(place) => arbiters.push(SiteId(place)),
                    None => self.wrong(name.span(), format!("`{text}` is not a member")),
                }
            }
            said.arbiters = Some(arbiters);
        }
        let sites = u16::try_from(config.members.len()).unwrap_or(u16::MAX);
        let mut cluster = Cluster::new(sites, pool.units);
        cluster.arbitration.insert(PoolId(0), said.clone());
        if let Err((_, problem)) = RequestSets::check(&cluster) {
            return self.wrong(span_of(table, first), problem.to_string());
        }
        pool.arbitration = Some(said);
    }

    fn units(&mut self, value: &Value<'_>, pool: &mut PoolConfig) -> Option<()> {
        if let Some(names) = value.get_ref().as_array() {
            let mut seen = BTreeSet::new();
            for name in names {
                let text = name.get_ref().as_str().unwrap_or_default();
                if let Err(text) = check_name(text) {
                    self.wrong(name.span(), text);
                } else if !seen.insert(text) {
                    self.wrong(name.span(), format!("two units have the name `{text}`"));
                }
                pool.names.push(text.to_owned());
            }
        }
        let count = match value.get_ref() {
            DeValue::Array(names) => u32::try_from(names.len()).ok(),
            DeValue::Integer(number) => u32::from_str_radix(number.as_str(), number.radix()).ok(),
            DeValue::String(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Table(_) => None,
        };
        let Some(count) = count.filter(|count| (1..=MAX_UNITS).contains(count)) else {
            let text = format!("units are a number from 1 to {MAX_UNITS}, or a list of names");
            self.wrong(value.span(), text);
            return None;
        };
        pool.units = count;
        Some(())
    }

    fn table<'t, 'a>(&mut self, table: &'t Table<'a>, key: &str) -> Option<&'t Table<'a>> {
        let value = table.get(key)?;
        let inner = value.get_ref().as_table();
        if inner.is_none() {
            self.wrong(value.span(), format!("`{key}` is a table: write [{key}]"));
        }
        inner
    }

    fn string(&mut self, table: &Table<'_>, key: &str) -> Option<String> {
        let value = table.get(key)?;
        let text = value.get_ref().as_str();
        if text.is_none_or(str::is_empty) {
            self.wrong(value.span(), format!("`{key}` is a text: write {key} = \"…\""));
        }
        text.map(str::to_owned)
    }

    fn address(&mut self, table: &Table<'_>, key: &str) -> Option<String> {
        let address = self.string(table, key)?;
        if !is_address(&address) {
            self.wrong(span_of(table, key), "an address is written \"host:port\"");
        }
        Some(address)
    }

    fn unknown_keys(&mut self, table: &Table<'_>, known: &[&str], pool: &str) {
        for key in table.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let near = known.iter().copied().filter(|k| distance(k, name) <= 2);
            let hint = match near.min_by_key(|k| distance(k, name)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", known.join(", ")),
            };
            let place = if pool.is_empty() { String::new() } else { format!(" in pool `{pool}`") };
            self.wrong(key.span(), format!("unknown key `{name}`{place}; {hint}"));
        }
    }
}

fn span_of(table: &Table<'_>, key: &str) -> Range<usize> {
    table.get(key).map_or(0..0, Spanned::span)
}

/// Whether it is `host:port`.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// How many letters to change, add or drop.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_file_is_read() {
        let config = Config::parse(
            r#"
            cluster = "lab"
            site = "b"
            http = "127.0.0.1:7600"
            state_dir = "/var/lib/kofm"
            [members]
            a = "10.0.0.1:7700"
            b = "10.0.0.2:7700"
            [pools]
            reboot = 2
            [pools.gpu]
            units = ["gpu-0", "gpu-1"]
            protocol = "permission"
            on_expiry = "quarantine"
            "#,
        )
        .unwrap();
        assert_eq!(config.me(), SiteId(1));
        assert_eq!(config.pools["reboot"].units, 2);
        assert_eq!(config.pools["gpu"].unit_name(1), "gpu-1");
        assert_eq!(config.pools["reboot"].unit_name(1), "1");
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let text = "site = \"c\"\nhtp = \"x\"\nhttp = \"nowhere\"\n[members]\na = \"h:1\"\n\
                    b = 7\n[pools]\nx = 0\n\"y z\" = 1\n[pools.gpu]\nunits = [\"g\", \"g\"]\n\
                    protocol = \"permision\"\non_expiry = \"never\"\n[pools.w]\nunit = 3\n";
        let mistakes = Config::parse(text).unwrap_err();
        let lines: Vec<usize> = mistakes.0.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 6, 8, 9, 11, 12, 13, 14, 15], "{mistakes}");
        assert!(mistakes.to_string().contains("did you mean `http`?"), "{mistakes}");
    }

    #[test]
    fn garbage_is_refused_not_panicked_on() {
        for text in ["[", "=", "a = [", "\u{0}", "site = 1", "pools = 3", "members = []"] {
            assert!(Config::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_published_listing_never_runs_in_a_site() {
        for kind in Kind::ALL {
            if kind.profile().as_printed {
                assert!(protocol_named(kind.name()).is_err());
                assert!(semaphore_protocol_named(kind.name()).is_err());
            }
        }
    }

    #[test]
    fn semaphores_are_read_and_their_mistakes_reported() {
        let text = |semaphores: &str| format!("http = \"127.0.0.1:1\"\n{semaphores}\n");
        let config = Config::parse(&text(
            "[semaphores]\nslots = 3\n[semaphores.items]\nvalue = 0\nprotocol = \"sem-quorum\"",
        ));
        let config = config.unwrap();
        assert_eq!(config.semaphores["slots"], SemaphoreConfig::new(3));
        assert_eq!(config.semaphores["items"].protocol, Kind::SemQuorum);
        for (bad, hint) in [
            ("[semaphores]\nx = -1", "line 3: semaphore `x`"),
            ("[semaphores]\nx = 4294967296", "from 0 to 4294967295"),
            ("[semaphores.x]\nprotocol = \"sem-token\"", "its `value`"),
            ("[semaphores.x]\nvalue = 1\nprotocol = \"permission\"", "not for semaphores"),
            ("[pools.x]\nunits = 1\nprotocol = \"sem-token\"", "not for pools"),
            ("[semaphores.x]\nvalue = 1\nvalu = 2", "did you mean `value`?"),
            ("[semaphores.x]\nvalue = 1\ncrashes = 1", "sem-quorum"),
            ("[semaphores]\n\"a b\" = 1", "is no name"),
        ] {
            let mistakes = Config::parse(&text(bad)).unwrap_err().to_string();
            assert!(mistakes.contains(hint), "{bad}: {mistakes}");
        }
    }

    #[test]
    fn a_quorum_pool_may_say_who_decides() {
        let text = |pool: &str| {
            format!(
                "http = \"127.0.0.1:1\"\nsite = \"a\"\nstate_dir = \"/tmp\"\n[members]\n\
                 a = \"h:1\"\nb = \"h:2\"\nc = \"h:3\"\n[pools.gpu]\nunits = 1\n{pool}\n"
            )
        };
        let quorum = |rest: &str| text(&format!("protocol = \"quorum\"\n{rest}"));
        let good = "construction = \"threshold\"\ncrashes = 1\narbiters = [\"a\", \"b\", \"c\"]";
        let config = Config::parse(&quorum(good)).unwrap();
        let said = config.pools["gpu"].arbitration.clone().unwrap();
        assert_eq!(said.crashes, 1);
        assert_eq!(said.arbiters, Some(vec![SiteId(0), SiteId(1), SiteId(2)]));
        for (bad, hint) in [
            (quorum("construction = \"heap\""), "there is no construction"),
            (quorum("crashes = 2"), "the most is 1"),
            (quorum("crashes = -1"), "a number of sites"),
            (quorum("arbiters = [\"z\"]"), "not a member"),
            (quorum("arbiters = []"), ""),
            (text("crashes = 1"), "protocol = \"quorum\""),
        ] {
            let mistakes = Config::parse(&bad).unwrap_err().to_string();
            assert!(mistakes.contains(hint), "{bad}: {mistakes}");
        }
    }
}
