//! Reads a configuration file, and says of every mistake in which line it is and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use kofm_core::quorums::{Arbitration, Construction, RequestSets};
use kofm_core::{Cluster, Kind, PoolId, SiteId};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{
    Config, Durability, EtcdAuth, MAX_GANG, MAX_POOLS, MAX_ROTA, MAX_SEMAPHORES, MAX_SITE_LEASE,
    MAX_SITES, MAX_UNITS, MIN_HISTORY, MIN_SITE_LEASE, Mistake, Mistakes, PoolConfig, ROTA,
    RotaConfig, SemaphoreConfig, check_name, default_protocol, is_address, protocol_named,
    semaphore_protocol_named,
};
use crate::api::{Members, OnExpiry};
use crate::https::HttpsConfig;
use crate::tls::TlsConfig;
use kofm_site::engine::serves_rota;

/// What may stand at the top of a file.
const KEYS: [&str; 28] = [
    "cluster",
    "site",
    "members",
    "listen",
    "http",
    "socket",
    "state_dir",
    "token_file",
    "insecure",
    "http_names",
    "pools",
    "semaphores",
    "gangs",
    "fixed_gangs",
    "rota",
    "tree_root",
    "protocol",
    "site_lease",
    "etcd",
    "etcd_auth",
    "durability",
    "history_keep",
    "history_max",
    "tls",
    "https",
    "certificate_lifetime",
    "voters",
    "zone",
];

/// The shortest life of a certificate for clients.
const MIN_CERTIFICATE: Duration = Duration::from_hours(1);

/// The configuration that a file has, or all that is wrong with it.
pub(super) fn read(text: &str) -> Result<Config, Mistakes> {
    let mut reader = Reader { text, mistakes: Vec::new() };
    let config = reader.config();
    reader.mistakes.sort_by_key(|mistake| mistake.line);
    if reader.mistakes.is_empty() { Ok(config) } else { Err(Mistakes(reader.mistakes)) }
}

/// Reads a size: `16MiB`, `1GiB`.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1_u64 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn is_host(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !text.is_empty() && text.bytes().all(good)
}

struct Reader<'a> {
    text: &'a str,
    mistakes: Vec<Mistake>,
}

type Table<'a> = DeTable<'a>;
type Value<'a> = Spanned<DeValue<'a>>;
/// Lists of names, each under a name that stands somewhere.
type Lists = BTreeMap<String, (Range<usize>, Vec<String>)>;

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
        config.insecure = self.boolean(table, "insecure").unwrap_or_default();
        let protocol = match self.string(table, "protocol").map(|name| protocol_named(&name)) {
            Some(Ok(kind)) => kind,
            Some(Err(text)) => {
                self.wrong(span_of(table, "protocol"), text);
                default_protocol()
            }
            None => default_protocol(),
        };
        config.tls = self.tls(table);
        config.https = self.https(table);
        if let Some(zone) = self.string(table, "zone") {
            if let Err(text) = check_name(&zone) {
                self.wrong(span_of(table, "zone"), format!("zone: {text}"));
            }
            config.zone = zone;
        }
        config.etcd_auth = self.etcd_auth(table);
        self.members(table, &mut config);
        self.voters(table, &mut config);
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

    fn tls(&mut self, table: &Table<'_>) -> Option<TlsConfig> {
        let tls = self.table(table, "tls")?;
        self.unknown_keys(tls, &["ca", "cert", "key", "ca_key"], "tls");
        let mut path = |key: &str| {
            let path = self.string(tls, key).map(PathBuf::from);
            if path.is_none() && key != "ca_key" {
                self.wrong(span_of(table, "tls"), format!("tls: `{key}` must name a PEM file"));
            }
            path
        };
        let (ca, cert, key, ca_key) = (path("ca"), path("cert"), path("key"), path("ca_key"));
        Some(TlsConfig { ca: ca?, cert: cert?, key: key?, ca_key })
    }

    fn https(&mut self, table: &Table<'_>) -> Option<HttpsConfig> {
        let https = self.table(table, "https")?;
        self.unknown_keys(https, &["cert", "key"], "https");
        let mut path = |key: &str| {
            let path = self.string(https, key).map(PathBuf::from);
            if path.is_none() {
                self.wrong(span_of(table, "https"), format!("https: `{key}` must name a PEM file"));
            }
            path
        };
        let (cert, key) = (path("cert"), path("key"));
        Some(HttpsConfig { cert: cert?, key: key? })
    }

    fn etcd_auth(&mut self, table: &Table<'_>) -> EtcdAuth {
        let Some(auth) = self.table(table, "etcd_auth") else { return EtcdAuth::default() };
        self.unknown_keys(auth, &["ca", "cert", "key", "user", "password_file"], "etcd_auth");
        let mut pair = |one: &str, other: &str| {
            let (first, second) = (self.string(auth, one), self.string(auth, other));
            if first.is_some() != second.is_some() {
                let text = format!("etcd_auth: `{one}` and `{other}` must be given together");
                self.wrong(span_of(table, "etcd_auth"), text);
            }
            first.zip(second)
        };
        let own = pair("cert", "key").map(|(cert, key)| (cert.into(), key.into()));
        let user = pair("user", "password_file").map(|(user, file)| (user, file.into()));
        EtcdAuth { ca: self.string(auth, "ca").map(PathBuf::from), own, user }
    }

    fn voters(&mut self, table: &Table<'_>, config: &mut Config) {
        let Some(value) = table.get("voters") else { return };
        let Some(list) = value.get_ref().as_array().filter(|list| !list.is_empty()) else {
            return self.wrong(value.span(), "`voters` must be a list of sites: voters = [\"a\"]");
        };
        for voter in list {
            let name = voter.get_ref().as_str().unwrap_or_default();
            if config.members.contains_key(name) {
                config.voters.push(name.to_owned());
            } else {
                let text = format!("voters: site `{name}` must be in [members]");
                self.wrong(voter.span(), text);
            }
        }
        if config.state_dir.is_none() {
            self.wrong(value.span(), "`state_dir` is missing: voters must keep their promises");
        }
        if table.contains_key("etcd") || fixed_gangs_key(table).is_some() {
            self.wrong(value.span(), "`voters` must not be combined with `etcd` or [fixed_gangs]");
        }
    }

    fn rota(&mut self, table: &Table<'_>, config: &mut Config) {
        let Some(key) = fixed_gangs_key(table) else { return };
        let Some(rota) = self.table(table, key) else { return };
        let span = span_of(table, key);
        if table.contains_key("fixed_gangs") && table.contains_key("rota") {
            let text = "[rota] is an older name of [fixed_gangs]; write one of them";
            return self.wrong(span_of(table, "rota"), text);
        }
        self.unknown_keys(rota, &["protocol", "needs", "gangs"], "fixed_gangs");
        let protocol = self.string(rota, "protocol");
        let protocol = protocol.as_deref().unwrap_or(Kind::GroupsHungry.name());
        let Some(protocol) = Kind::named(protocol).filter(|&kind| serves_rota(kind)) else {
            let text = "fixed_gangs: `protocol` must be groups or groups-hungry";
            return self.wrong(span_of(rota, "protocol"), text);
        };
        let needs = self.lists(rota, "needs");
        let gangs = self.lists(rota, "gangs");
        if !config.etcd.is_empty() {
            let text = "[fixed_gangs] must not be combined with `etcd`: its sites may change";
            return self.wrong(span, text);
        }
        if gangs.is_empty() || gangs.len() > MAX_ROTA {
            let text = format!(
                "write [fixed_gangs.gangs] and NAME = [\"SITE\", …], 1 to {MAX_ROTA} of them"
            );
            return self.wrong(span, text);
        }
        let known = |site: &String| config.members.contains_key(site);
        for (site, (span, _)) in needs.iter().filter(|it| !known(it.0)) {
            self.wrong(span.clone(), format!("fixed_gangs: there is no site `{site}`"));
        }
        for (name, (span, members)) in &gangs {
            let mut mistake =
                |text: String| self.wrong(span.clone(), format!("fixed_gangs: {text}"));
            if name == ROTA || config.gangs.contains_key(name) {
                mistake(format!("the name `{name}` is taken"));
            }
            if let Err(text) = check_name(name) {
                mistake(text);
            }
            if members.is_empty() {
                mistake(format!("gang `{name}` has no members"));
            }
            let mut taken: BTreeMap<&String, &String> = BTreeMap::new();
            for (i, site) in members.iter().enumerate() {
                if !known(site) {
                    mistake(format!("there is no site `{site}`"));
                }
                if members[..i].contains(site) {
                    mistake(format!("gang `{name}` names `{site}` twice"));
                    continue;
                }
                for resource in needs.get(site).iter().flat_map(|it| &it.1) {
                    if let Some(other) = taken.insert(resource, site) {
                        mistake(format!(
                            "`{other}` and `{site}` of gang `{name}` both need `{resource}`: they \
                             can never work together"
                        ));
                    }
                }
            }
        }
        let lists = |map: Lists| map.into_iter().map(|(name, (_, list))| (name, list)).collect();
        let (needs, gangs) = (lists(needs), lists(gangs));
        config.rota = Some(RotaConfig { protocol, needs, gangs });
    }

    fn lists(&mut self, table: &Table<'_>, key: &str) -> Lists {
        let mut lists = Lists::new();
        for (name, value) in self.table(table, key).into_iter().flatten() {
            let items = value.get_ref().as_array().map(|items| {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                texts.collect::<Option<Vec<String>>>()
            });
            match items.flatten() {
                Some(items) => {
                    lists.insert(name.get_ref().to_string(), (name.span(), items));
                }
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
                    let text = "the units of a member must be written \"POOL:K\", more with commas";
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
            if config.durability == Durability::Grant && !table.contains_key("state_dir") {
                let text = "`state_dir` is missing: grants need a place on disk";
                self.wrong(span_of(table, "durability"), text);
            }
        }
        if let Some(text) = self.string(table, "history_keep") {
            match crate::duration::parse(&text) {
                Ok(age) if age >= Duration::from_hours(1) => config.history_keep = age,
                Ok(_) | Err(_) => {
                    let text = format!("history_keep: `{text}` must be a time from 1h on, as 400d");
                    self.wrong(span_of(table, "history_keep"), text);
                }
            }
        }
        if let Some(text) = self.string(table, "certificate_lifetime") {
            match crate::duration::parse(&text) {
                Ok(time) if time >= MIN_CERTIFICATE => config.certificate_lifetime = time,
                Ok(_) | Err(_) => {
                    let rule = "must be a time from 1h on, as 90d";
                    let text = format!("certificate_lifetime: `{text}` {rule}");
                    self.wrong(span_of(table, "certificate_lifetime"), text);
                }
            }
        }
        if let Some(text) = self.string(table, "history_max") {
            if let Some(bytes) = bytes_of(&text).filter(|&bytes| bytes >= MIN_HISTORY) {
                config.history_max = bytes;
            } else {
                let text = format!("history_max: `{text}` must be a size from 16MiB on, as 1GiB");
                self.wrong(span_of(table, "history_max"), text);
            }
        }
        if let Some(value) = table.get("http_names") {
            for name in value.get_ref().as_array().into_iter().flatten() {
                match name.get_ref().as_str() {
                    Some(text) if is_host(text) => config.http_names.push(text.to_owned()),
                    Some(_) | None => {
                        self.wrong(name.span(), "a name must be a host name, without a port");
                    }
                }
            }
            if config.http_names.is_empty() {
                self.wrong(value.span(), "write http_names = [\"kofm.example.org\", …]");
            }
        }
        if let Some(value) = table.get("etcd") {
            for endpoint in value.get_ref().as_array().into_iter().flatten() {
                let text = endpoint.get_ref().as_str().unwrap_or_default();
                let scheme = text.starts_with("http://") || text.starts_with("https://");
                match crate::client::Address::parse(text) {
                    Ok(_) if scheme => config.etcd.push(text.to_owned()),
                    Ok(_) | Err(_) => {
                        let text = "an etcd member must be \"http://host:port\" or \
                                    \"https://host:port\"";
                        self.wrong(endpoint.span(), text);
                    }
                }
            }
            let tls = config.etcd.iter().any(|it| it.starts_with("https://"));
            if tls && config.etcd_auth.ca.is_none() {
                let text = "etcd with https needs the authority of its certificates: \
                            [etcd_auth] ca = \"FILE\"";
                self.wrong(value.span(), text);
            }
            if !tls && config.etcd_auth != EtcdAuth::default() && !config.etcd.is_empty() {
                let text = "[etcd_auth] needs https: a password must not cross a network in clear";
                self.wrong(value.span(), text);
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
                } else if let Some((other, _)) = config.members.iter().find(|it| it.1 == address) {
                    let text = format!("site `{other}` has the same address");
                    self.wrong(value.span(), text);
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
        if config.members.len() > 1 && !table.contains_key("state_dir") {
            self.wrong(
                span_of(table, "members"),
                "`state_dir` is missing: with other sites, a restart must be told from a pause",
            );
        }
        let listen = config.listen.as_ref().or_else(|| config.members.get(&config.site));
        if config.http.as_ref().is_some_and(|it| Some(it) == listen && !it.ends_with(":0")) {
            let text = "`http` is where this site listens for the others; take another port";
            self.wrong(span_of(table, "http"), text);
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
            let given = ["pools", "semaphores", "voters"];
            if !given.iter().any(|key| table.contains_key(*key)) {
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
                    self.scope(name.get_ref(), table, config, &mut pool);
                }
                config.pools.insert(name.get_ref().to_string(), pool);
            }
        }
        let units = config.pools.values().map(|pool| u64::from(pool.units)).sum();
        if let Err(text) = config.check_sum(units) {
            self.wrong(span_of(table, "pools"), text);
        }
    }

    fn pool(&mut self, name: &str, value: &Value<'_>, protocol: Kind) -> Option<PoolConfig> {
        let mut pool = PoolConfig { protocol, ..PoolConfig::new(1) };
        match value.get_ref() {
            DeValue::Integer(_) | DeValue::Array(_) => self.units(value, &mut pool)?,
            DeValue::Table(table) => {
                let common =
                    ["units", "protocol", "on_expiry", "construction", "crashes", "arbiters"];
                let known = [&common[..], &["sites", "zones"]].concat();
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

    /// The sites that share a pool.
    fn scope(&mut self, name: &str, table: &Table<'_>, config: &Config, pool: &mut PoolConfig) {
        for key in ["sites", "zones"] {
            let Some(value) = table.get(key) else { continue };
            let list = value.get_ref().as_array().filter(|list| !list.is_empty());
            let Some(list) = list else {
                let text = format!(
                    "pool `{name}`: `{key}` must be a list of names: {key} = [\"a\"]; without it \
                     all sites share the pool"
                );
                self.wrong(value.span(), text);
                continue;
            };
            for item in list {
                let it = item.get_ref().as_str().unwrap_or_default();
                // Where sites come and go, the cluster knows who there is.
                let unknown = key == "sites" && !config.members.contains_key(it);
                let fixed = config.etcd.is_empty() && !table.contains_key("voters");
                if let Err(text) = check_name(it) {
                    self.wrong(item.span(), format!("pool `{name}`: {key}: {text}"));
                } else if unknown && fixed {
                    let names: Vec<&str> = config.members.keys().map(String::as_str).collect();
                    let text = format!(
                        "pool `{name}`: sites: `{it}` is not a member; there are {}",
                        names.join(", ")
                    );
                    self.wrong(item.span(), text);
                } else if key == "sites" {
                    pool.scope.sites.insert(it.to_owned());
                } else {
                    pool.scope.zones.insert(it.to_owned());
                }
            }
            if let Err(text) = pool.check_scope(name) {
                self.wrong(value.span(), text);
            }
        }
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

    fn boolean(&mut self, table: &Table<'_>, key: &str) -> Option<bool> {
        let value = table.get(key)?;
        let given = value.get_ref().as_bool();
        if given.is_none() {
            self.wrong(value.span(), format!("`{key}` must be true or false"));
        }
        given
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

/// The key of the fixed gangs in this file: `rota` is its older name.
fn fixed_gangs_key(table: &Table<'_>) -> Option<&'static str> {
    ["fixed_gangs", "rota"].into_iter().find(|key| table.contains_key(*key))
}

fn span_of(table: &Table<'_>, key: &str) -> Range<usize> {
    table.get(key).map_or(0..0, Spanned::span)
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
