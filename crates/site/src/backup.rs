//! The configuration that a cluster keeps, as a document: to make it again elsewhere.
//!
//! Requests, leases and sites are not in it. Of principals it has the hashes of their tokens, so
//! that these stay good.

use std::collections::{BTreeMap, BTreeSet};

use kofm_core::quorums::Arbitration;
use serde::{Deserialize, Serialize};

use crate::api::{self, Code, Members, OnExpiry, UnitsSpec};
use crate::config::{
    MAX_GANG, MAX_POOLS, MAX_SEMAPHORES, MAX_UNITS, PoolConfig, Scope, SemaphoreConfig, check_name,
    is_seat, protocol_named, semaphore_protocol_named, unit_name,
};
use crate::plan::{Plan, PlannedPool};
use crate::rules::{Credential, MAX_PRINCIPALS, Principal, Rule, hex};

/// The form of the document, which changes with its fields.
const FORM: u32 = 1;

/// The document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Backup {
    /// Its form.
    pub backup: u32,
    /// The cluster that it is of.
    pub cluster: String,
    /// Pools by name.
    pub pools: BTreeMap<String, SavedPool>,
    /// Semaphores by name, with the values that they began with.
    pub semaphores: BTreeMap<String, SavedSemaphore>,
    /// Gangs by name.
    pub gangs: BTreeMap<String, Members>,
    /// Principals by name.
    pub principals: BTreeMap<String, SavedPrincipal>,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SavedPool {
    units: UnitsSpec,
    protocol: String,
    on_expiry: OnExpiry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    arbitration: Option<Arbitration>,
    /// Names of the sites that share it, if not all do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    sites: BTreeSet<String>,
    /// Names of the zones whose sites share it, if not all do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    zones: BTreeSet<String>,
    /// Units that people took out, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    quarantined: BTreeMap<String, String>,
}

/// One semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SavedSemaphore {
    value: u32,
    protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    arbitration: Option<Arbitration>,
}

/// One principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SavedPrincipal {
    /// SHA-256 of its token, in hexadecimal. A principal has this or one of the next three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_sha256: Option<String>,
    /// SHA-256 of the public key of its certificate, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_sha256: Option<String>,
    /// The number of its user on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
    /// The network of its addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    allow: Vec<String>,
    made_ms: u64,
}

fn malformed(mut text: String) -> api::Error {
    text.push_str("; nothing was changed");
    api::Error::new(Code::Malformed, text)
}

impl SavedPool {
    fn of(pool: &PlannedPool) -> Option<Self> {
        let PoolConfig { units, names, protocol, on_expiry, arbitration, scope } = pool.wanted()?;
        let Scope { sites, zones } = scope;
        let out = pool.out.iter().filter(|it| *it.0 < units);
        let quarantined =
            out.map(|(&number, reason)| (unit_name(&names, number), reason.clone())).collect();
        let units = if names.is_empty() {
            UnitsSpec::Count(units)
        } else {
            UnitsSpec::Names(names.into_iter().take(units as usize).collect())
        };
        let protocol = protocol.name().to_owned();
        Some(Self { units, protocol, on_expiry, arbitration, sites, zones, quarantined })
    }

    fn config(&self, name: &str) -> Result<PoolConfig, String> {
        let (units, names) = match &self.units {
            UnitsSpec::Count(units) => (*units, Vec::new()),
            UnitsSpec::Names(names) => {
                (u32::try_from(names.len()).unwrap_or(u32::MAX), names.clone())
            }
        };
        if !(1..=MAX_UNITS).contains(&units) {
            return Err(format!("pool `{name}`: units are 1 to {MAX_UNITS}"));
        }
        names.iter().try_for_each(|unit| check_name(unit))?;
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return Err(format!("pool `{name}`: two units have the same name"));
        }
        let (on_expiry, arbitration) = (self.on_expiry, self.arbitration.clone());
        let protocol = protocol_named(&self.protocol)?;
        let scope = Scope { sites: self.sites.clone(), zones: self.zones.clone() };
        let config = PoolConfig { units, names, protocol, on_expiry, arbitration, scope };
        config.check_scope(name).map(|()| config)
    }
}

impl SavedPrincipal {
    fn of(it: &Principal) -> Self {
        let allow = it.rules.iter().map(ToString::to_string).collect();
        let mut saved = Self {
            token_sha256: None,
            certificate_sha256: None,
            user: None,
            network: None,
            allow,
            made_ms: it.made_ms,
        };
        match &it.credential {
            Credential::Token(hash) => saved.token_sha256 = Some(hex(hash)),
            Credential::Certificate(key) => saved.certificate_sha256 = Some(hex(key)),
            Credential::User(uid) => saved.user = Some(*uid),
            Credential::Network(network) => saved.network = Some(network.to_string()),
        }
        saved
    }

    fn read(&self, name: &str) -> Result<Principal, String> {
        let hash = |field: &str, text: &str| {
            let digit =
                |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
            let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
            let bytes = Some(text.as_bytes()).filter(|it| it.len() == 64);
            let bytes = bytes.and_then(|it| it.chunks(2).map(pair).collect::<Option<Vec<u8>>>());
            let hash = bytes.and_then(|it| <[u8; 32]>::try_from(it).ok());
            hash.ok_or_else(|| format!("principal `{name}`: `{field}` is 64 hexadecimal digits"))
        };
        let credential =
            match (&self.token_sha256, &self.certificate_sha256, self.user, &self.network) {
                (Some(text), None, None, None) => Credential::Token(hash("token_sha256", text)?),
                (None, Some(text), None, None) => {
                    Credential::Certificate(hash("certificate_sha256", text)?)
                }
                (None, None, Some(uid), None) => Credential::User(uid),
                (None, None, None, Some(text)) => Credential::Network(text.parse()?),
                _ => {
                    return Err(format!(
                        "principal `{name}` must have one of `token_sha256`, \
                         `certificate_sha256`, `user` and `network`"
                    ));
                }
            };
        let rules = self.allow.iter().map(|text| text.parse::<Rule>());
        let rules = rules.collect::<Result<_, _>>()?;
        Ok(Principal { credential, rules, made_ms: self.made_ms })
    }
}

impl Backup {
    /// The configuration in this plan.
    pub fn of(cluster: &str, plan: &Plan) -> Self {
        let pools = plan.pools.iter().filter(|it| !is_seat(it.0) && !it.1.closed);
        let semaphore = |it: SemaphoreConfig| SavedSemaphore {
            value: it.value,
            protocol: it.protocol.name().to_owned(),
            arbitration: it.arbitration,
        };
        let semaphores = plan.semaphores.iter();
        let principals = plan.principals.iter();
        Self {
            backup: FORM,
            cluster: cluster.to_owned(),
            pools: pools.filter_map(|it| Some((it.0.clone(), SavedPool::of(it.1)?))).collect(),
            semaphores: semaphores
                .filter_map(|it| Some((it.0.clone(), semaphore(it.1.config()?))))
                .collect(),
            gangs: plan.gangs.clone(),
            principals: principals
                .map(|(name, it)| (name.clone(), SavedPrincipal::of(it)))
                .collect(),
        }
    }

    /// Reads a document.
    pub fn read(text: &str) -> Result<Self, api::Error> {
        let read: Self = serde_json::from_str(text)
            .map_err(|error| malformed(format!("not a document of `kofm backup`: {error}")))?;
        if read.backup != FORM {
            let form = read.backup;
            let text = format!("the backup has form {form}, and this version of kofm reads {FORM}");
            return Err(malformed(text));
        }
        Ok(read)
    }

    /// Units in all pools of the plan, with this.
    pub fn units(&self, plan: &Plan) -> u64 {
        let fresh = self.pools.iter().filter(|it| !plan.pools.contains_key(it.0));
        let fresh = fresh.map(|it| match &it.1.units {
            UnitsSpec::Count(units) => u64::from(*units),
            UnitsSpec::Names(names) => names.len() as u64,
        });
        plan.pools.values().map(|it| u64::from(it.units)).sum::<u64>() + fresh.sum::<u64>()
    }

    /// Adds all that the plan lacks. It is refused if something else has one of these names, so
    /// that nothing that is in use changes.
    pub fn restore(&self, plan: &mut Plan) -> Result<(), api::Error> {
        let here = Self::of(&self.cluster, plan);
        let other = |kind: &str, name: &str| {
            let text = format!(
                "the cluster has another {kind} `{name}` than the backup: remove it, or take it \
                 out of the backup; nothing was changed"
            );
            Err(api::Error::new(Code::InUse, text))
        };
        let names = self.pools.keys().chain(self.semaphores.keys());
        let mut names = names.chain(self.gangs.keys()).chain(self.principals.keys());
        names.try_for_each(|name| check_name(name)).map_err(malformed)?;
        for (name, pool) in &self.pools {
            match here.pools.get(name) {
                Some(it) if it == pool => continue,
                Some(_) => return other("pool", name),
                None if plan.pools.contains_key(name) => return other("pool", name),
                None => {}
            }
            if !plan.put(name, &pool.config(name).map_err(malformed)?) {
                return Err(malformed(
                    "pools are shared by more than 255 sets of sites".to_owned(),
                ));
            }
            for (unit, reason) in &pool.quarantined {
                plan.quarantine(name, unit, Some(reason.clone()))
                    .map_err(|error| malformed(error.message))?;
            }
        }
        for (name, it) in &self.semaphores {
            match here.semaphores.get(name) {
                Some(old) if old == it => continue,
                Some(_) => return other("semaphore", name),
                None => {}
            }
            let protocol = semaphore_protocol_named(&it.protocol).map_err(malformed)?;
            let (value, arbitration) = (it.value, it.arbitration.clone());
            plan.put_semaphore(name, &SemaphoreConfig { value, protocol, arbitration });
        }
        for (name, members) in &self.gangs {
            match plan.gangs.get(name) {
                Some(old) if old == members => continue,
                Some(_) => return other("gang", name),
                None => {}
            }
            if members.is_empty() || members.len() > MAX_GANG {
                return Err(malformed(format!("gang `{name}`: it has 1 to {MAX_GANG} members")));
            }
            plan.put_gang(name.clone(), members.clone());
        }
        for (name, it) in &self.principals {
            match here.principals.get(name) {
                Some(old) if old == it => continue,
                Some(_) => return other("principal", name),
                None => {}
            }
            plan.principals.insert(name.clone(), it.read(name).map_err(malformed)?);
        }
        let sums = [
            ("pools", plan.pools.len(), MAX_POOLS),
            ("semaphores", plan.semaphores.len(), MAX_SEMAPHORES),
            ("principals", plan.principals.len(), MAX_PRINCIPALS),
        ];
        for (what, sum, most) in sums {
            if sum > most {
                let text = format!("there would be {sum} {what}; {most} are the most");
                return Err(malformed(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::rules;

    fn plan() -> Plan {
        let mut plan = Plan::first(&Config::single("a"));
        plan.put("gpu", &PoolConfig { names: vec!["x".into(), "y".into()], ..PoolConfig::new(2) });
        plan.put("licence", &PoolConfig::new(9));
        plan.put("licence", &PoolConfig::new(7));
        plan.quarantine("gpu", "y", Some("ECC".into())).unwrap();
        assert!(plan.put_semaphore("slots", &SemaphoreConfig::new(4)));
        plan.put_gang("pair".into(), [("a".into(), [("gpu".into(), 1)].into())].into());
        for (name, credential) in [
            ("ci", Credential::Token(rules::hash(b"token"))),
            ("build", Credential::Certificate([0xa7; 32])),
            ("alice", Credential::User(1000)),
            ("nodes", Credential::Network("10.0.0.0/8".parse().unwrap())),
        ] {
            let rules = BTreeSet::from(["acquire:gpu*".parse().unwrap()]);
            plan.principals.insert(name.into(), Principal { credential, rules, made_ms: 5 });
        }
        plan
    }

    #[test]
    fn a_restored_configuration_is_that_of_the_backup() {
        let saved = Backup::of("lab", &plan());
        let text = serde_json::to_string(&saved).unwrap();
        let read = Backup::read(&text).unwrap();
        assert_eq!(read, saved);
        let mut fresh = Plan::first(&Config::single("z"));
        assert_eq!(read.units(&fresh), 9);
        read.restore(&mut fresh).unwrap();
        assert_eq!(Backup::of("lab", &fresh), saved);
        assert_eq!(fresh.principals, plan().principals);
        // Repeated, it changes nothing.
        let before = fresh.clone();
        read.restore(&mut fresh).unwrap();
        assert_eq!(fresh, before);
    }

    #[test]
    fn nothing_that_differs_is_overwritten_and_nonsense_is_refused() {
        let saved = Backup::of("lab", &plan());
        let refused = |saved: &Backup, hint: &str| {
            let mut plan = plan();
            plan.put("gpu", &PoolConfig::new(3));
            let error = saved.restore(&mut plan).unwrap_err();
            assert!(error.message.contains(hint), "{error:?}");
            assert!(error.message.contains("nothing was changed"), "{error:?}");
        };
        refused(&saved, "another pool `gpu`");
        let mut other = saved.clone();
        other.pools.clear();
        other.semaphores.get_mut("slots").unwrap().value = 5;
        refused(&other, "another semaphore `slots`");
        let mut wrong = Backup { pools: BTreeMap::new(), ..saved.clone() };
        wrong.pools.insert("no name".into(), saved.pools["gpu"].clone());
        refused(&wrong, "name");
        let mut wrong = Backup { pools: BTreeMap::new(), ..saved.clone() };
        let none = SavedPool { units: UnitsSpec::Count(0), ..saved.pools["licence"].clone() };
        wrong.pools.insert("none".into(), none);
        refused(&wrong, "units are 1 to");
        for text in ["", "{}", "[1]", &serde_json::to_string(&saved).unwrap().replace("gpu", "\n")]
        {
            assert!(Backup::read(text).is_err(), "{text}");
        }
        let newer = serde_json::to_string(&Backup { backup: 2, ..saved }).unwrap();
        assert!(Backup::read(&newer).unwrap_err().message.contains("form 2"));
    }
}
