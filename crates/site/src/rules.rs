//! Principals and their rights: credentials by their hashes, and rules `VERBS:PATTERN`.
//!
//! Principals are part of the cluster's record, as pools are: a change is an epoch, so it is in
//! force at all sites when its command returns.

use ::core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::{self, Code, is_lease_name};
use crate::config::check_name;
use crate::ids::is_given_id;

/// Principals in a cluster.
pub const MAX_PRINCIPALS: usize = 1000;
/// Rules of a principal.
const MAX_RULES: usize = 100;
/// Bytes of a pattern.
const MAX_PATTERN: usize = 64;
/// The first characters of every token.
const PREFIX: &str = "kofm_";
/// The first characters of the token for one lease; its id follows.
const LEASE_PREFIX: &str = "kofm_lease_";

/// A right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verb {
    /// See leases, waiting requests, history and events.
    Read,
    /// Ask for units, and renew, release and cancel what was asked for.
    Acquire,
    /// Release leases of the same principal.
    ReleaseOwn,
    /// Release leases of other principals.
    ReleaseAny,
    /// Quarantine and return units; cancel requests and renew leases of other principals.
    Operate,
    /// Everything; on the pattern `*` also members, principals, rules and the audit log.
    Admin,
}

impl Verb {
    /// All verbs, in the order of their names in documents.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Acquire, Self::ReleaseOwn, Self::ReleaseAny, Self::Operate, Self::Admin];

    /// As rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Acquire => "acquire",
            Self::ReleaseOwn => "release-own",
            Self::ReleaseAny => "release-any",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// Whether a rule with this verb grants `other`: `admin` grants all, and a principal that may
    /// acquire, or release leases of others, may release its own.
    pub const fn grants(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Admin, _) | (Self::Acquire | Self::ReleaseAny, Self::ReleaseOwn)
        ) || self as u8 == other as u8
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Verbs on all names that match a pattern, written `read,acquire:gpu-*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// What may be done.
    pub verbs: BTreeSet<Verb>,
    /// Names of pools, semaphores and gangs; `*` stands for any characters, `?` for one.
    pub pattern: String,
}

impl Rule {
    /// Whether it allows a verb on a name.
    pub fn allows(&self, verb: Verb, name: &str) -> bool {
        self.verbs.iter().any(|it| it.grants(verb)) && matches(&self.pattern, name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<&str> = self.verbs.iter().map(|verb| verb.name()).collect();
        write!(f, "{}:{}", verbs.join(","), self.pattern)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Verb::ALL.map(Verb::name).join(", ");
        let Some((verbs, pattern)) = text.split_once(':') else {
            return Err(format!(
                "`{text}` has no `:`; a rule must be VERBS:PATTERN, as in read,acquire:gpu-*"
            ));
        };
        let mut found = BTreeSet::new();
        for name in verbs.split(',') {
            let Some(verb) = Verb::ALL.into_iter().find(|verb| verb.name() == name) else {
                return Err(format!(
                    "unknown verb `{name}` in `{text}`; it must be one of {names}"
                ));
            };
            found.insert(verb);
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*?".contains(&byte);
        if pattern.is_empty() || pattern.len() > MAX_PATTERN || !pattern.bytes().all(plain) {
            return Err(format!(
                "pattern `{pattern}` in `{text}` must be 1 to {MAX_PATTERN} letters, digits, `-`, \
                 `_`, `.`, `*` and `?`"
            ));
        }
        Ok(Self { verbs: found, pattern: pattern.to_owned() })
    }
}

/// Whether a name matches a pattern with `*` and `?`, in time that grows with the product of their
/// lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The last star, and how much of the name it stands for.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            Some(_) | None => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                p = place + 1;
                n = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// The proof that a client is a principal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Credential {
    /// A token of 256 random bits, by its SHA-256. The token itself is shown once and not kept.
    Token([u8; 32]),
    /// A client certificate, by the SHA-256 of its public key.
    Certificate([u8; 32]),
    /// A user of the machine, by the number that the kernel tells the Unix socket of the site.
    User(u32),
    /// An address in a network; only for the `FleetLock` protocol, whose nodes send no token.
    Network(Network),
}

impl Credential {
    /// The credential in words; a hash by its first digits.
    pub fn show(&self) -> String {
        match self {
            Self::Token(_) => "token".to_owned(),
            Self::Certificate(key) => format!("certificate {}", &hex(key)[..16]),
            Self::User(uid) => format!("user {uid}"),
            Self::Network(network) => format!("network {network}"),
        }
    }
}

/// Addresses that begin with the same bits, written `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        let first = |address: u128, width: u32| {
            address.checked_shr(width - u32::from(self.bits)).unwrap_or(0)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                first(u32::from(own).into(), 32) == first(u32::from(other).into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                first(own.into(), 128) == first(other.into(), 128)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("network `{text}` must be an address and its first bits, as in 10.0.0.0/8");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if bits == 0 || bits > width {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

/// A named credential with its rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Principal {
    pub credential: Credential,
    pub rules: BTreeSet<Rule>,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
}

impl Principal {
    pub fn allows(&self, verb: Verb, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.allows(verb, name))
    }

    /// Whether it may change what belongs to no pool: principals, rules, members.
    pub fn rules_all(&self) -> bool {
        let whole = |rule: &Rule| rule.pattern == "*" && rule.verbs.contains(&Verb::Admin);
        self.rules.iter().any(whole)
    }
}

/// Principals by name.
pub type Principals = BTreeMap<String, Principal>;

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes everything.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// A token of 256 random bits, for one principal.
pub fn make_token(secret: [u8; 32]) -> String {
    format!("{PREFIX}{}", hex(&secret))
}

/// The token that is good for one lease, as long as that lives: its id is a secret already.
pub fn lease_token(lease: &str) -> String {
    format!("{LEASE_PREFIX}{lease}")
}

/// The lease for which a token is good.
pub fn lease_of(token: &[u8]) -> Option<&str> {
    let lease = token.strip_prefix(LEASE_PREFIX.as_bytes())?;
    let lease = std::str::from_utf8(lease).ok()?;
    // The name of a lease is public: lists show it.
    let id = lease.starts_with('L') && is_given_id(lease) && !is_lease_name(lease);
    id.then_some(lease)
}

pub fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The principal that has a credential.
pub fn find<'a>(all: &'a Principals, shown: &Credential) -> Option<(&'a str, &'a Principal)> {
    all.iter().find(|it| it.1.credential == *shown).map(|(name, it)| (name.as_str(), it))
}

/// The principal with the smallest network that has an address.
pub fn find_network(all: &Principals, address: IpAddr) -> Option<(&str, &Principal)> {
    let bits = |it: &Principal| match &it.credential {
        Credential::Network(network) if network.contains(address) => Some(network.bits),
        Credential::Network(_)
        | Credential::Token(_)
        | Credential::Certificate(_)
        | Credential::User(_) => None,
    };
    let found = all.iter().filter_map(|(name, it)| Some((bits(it)?, name.as_str(), it)));
    found.max_by_key(|it| it.0).map(|(_, name, it)| (name, it))
}

/// A change of the principals.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PrincipalChange {
    Create(Principal),
    Revoke,
    /// Adds rules.
    Allow(BTreeSet<Rule>),
    /// Takes rules away.
    Deny(BTreeSet<Rule>),
}

/// Changes the principals, or says why not.
pub fn change(all: &mut Principals, name: &str, change: PrincipalChange) -> Result<(), api::Error> {
    let unknown = || {
        let text = format!("unknown principal `{name}`; `kofm token ls` lists them");
        api::Error::new(Code::NotFound, text)
    };
    let rules = match change {
        PrincipalChange::Create(principal) => {
            check_name(name).map_err(|text| api::Error::new(Code::Malformed, text))?;
            if all.contains_key(name) || name == TOKEN_FILE {
                let text = format!("principal `{name}` exists; revoke it or choose another name");
                return Err(api::Error::new(Code::InUse, text));
            }
            if let Some((other, it)) = find(all, &principal.credential) {
                let shown = it.credential.show();
                let text = format!(
                    "principal `{other}` has the credential `{shown}`; revoke it, or give it more \
                     rules with `kofm allow {other}`"
                );
                return Err(api::Error::new(Code::InUse, text));
            }
            if all.len() >= MAX_PRINCIPALS {
                let text = format!("there are {MAX_PRINCIPALS} principals; revoke some");
                return Err(api::Error::new(Code::TooMany, text));
            }
            let count = principal.rules.len();
            all.insert(name.to_owned(), principal);
            count
        }
        PrincipalChange::Revoke => {
            all.remove(name).ok_or_else(unknown)?;
            0
        }
        PrincipalChange::Allow(rules) => {
            let principal = all.get_mut(name).ok_or_else(unknown)?;
            principal.rules.extend(rules);
            principal.rules.len()
        }
        PrincipalChange::Deny(rules) => {
            let principal = all.get_mut(name).ok_or_else(unknown)?;
            if let Some(rule) = rules.iter().find(|rule| !principal.rules.contains(*rule)) {
                let text =
                    format!("principal `{name}` has no rule `{rule}`; `kofm rules` lists them");
                return Err(api::Error::new(Code::NotFound, text));
            }
            principal.rules.retain(|rule| !rules.contains(rule));
            principal.rules.len()
        }
    };
    if rules > MAX_RULES {
        let text = format!("principal `{name}` must have at most {MAX_RULES} rules");
        return Err(api::Error::new(Code::TooMany, text));
    }
    Ok(())
}

/// The principal of the tokens in a site's `token_file`.
pub const TOKEN_FILE: &str = "token_file";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written() {
        for text in ["read:*", "read,acquire,release-own:gpu-*", "admin:a?c.d_e"] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        for (bad, hint) in [
            ("read", "VERBS:PATTERN"),
            ("fly:gpu", "unknown verb `fly`"),
            (":gpu", "unknown verb ``"),
            ("read:", "pattern ``"),
            ("read:a b", "pattern `a b`"),
            ("read,:gpu", "unknown verb"),
        ] {
            let error = bad.parse::<Rule>().unwrap_err();
            assert!(error.contains(hint), "{bad}: {error}");
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, good) in [
            ("*", "gpu", true),
            ("gpu", "gpu", true),
            ("gpu", "gpu-1", false),
            ("gpu-*", "gpu-1", true),
            ("gpu-*", "gpu", false),
            ("*-a*b", "x-aab", true),
            ("*-a*b", "x-aac", false),
            ("g?u", "gpu", true),
            ("g?u", "gu", false),
            ("a*a*a*a*a*a*a*a*b", &"a".repeat(64), false),
        ] {
            assert_eq!(matches(pattern, name), good, "{pattern} {name}");
        }
    }

    /// Ten lines that say who may do what, compared with the code over a generated table.
    #[test]
    fn a_table_of_rights_agrees_with_the_reference() {
        fn glob(pattern: &str, name: &str) -> bool {
            match (pattern.chars().next(), name.chars().next()) {
                (None, None) => true,
                (Some('*'), None) => glob(&pattern[1..], name),
                (Some('*'), Some(_)) => glob(&pattern[1..], name) || glob(pattern, &name[1..]),
                (Some(p), Some(n)) => (p == '?' || p == n) && glob(&pattern[1..], &name[1..]),
                (None, Some(_)) | (Some(_), None) => false,
            }
        }
        fn may(rules: &[(Vec<&str>, &str)], verb: &str, name: &str) -> bool {
            rules.iter().filter(|rule| glob(rule.1, name)).any(|(verbs, _)| {
                verbs.contains(&"admin")
                    || verbs.contains(&verb)
                    || (verb == "release-own"
                        && (verbs.contains(&"acquire") || verbs.contains(&"release-any")))
            })
        }
        let names = ["gpu", "gpu-0", "gpu-big", "licence", "a.b", "sem", "x"];
        let patterns = ["*", "gpu", "gpu-*", "g*", "*e", "a.b", "?", "*-*", "s?m", "none", "**"];
        let verbs = Verb::ALL.map(Verb::name);
        let mut random = crate::random::Random::new([7; 32]);
        let mut draw = |below: usize| usize::try_from(random.number() % below as u64).unwrap();
        let (mut yes, mut no) = (0, 0);
        for _ in 0..3000 {
            let rule = |draw: &mut dyn FnMut(usize) -> usize| {
                let count = 1 + draw(3);
                let verbs = (0..count).map(|_| verbs[draw(verbs.len())]).collect::<Vec<_>>();
                (verbs, patterns[draw(patterns.len())])
            };
            let count = draw(4);
            let rules: Vec<_> = (0..count).map(|_| rule(&mut draw)).collect();
            let parsed = rules.iter().map(|(verbs, pattern)| {
                format!("{}:{pattern}", verbs.join(",")).parse::<Rule>().unwrap()
            });
            let principal = Principal {
                credential: Credential::Token([0; 32]),
                rules: parsed.collect(),
                made_ms: 0,
            };
            for name in names {
                for verb in Verb::ALL {
                    let expected = may(&rules, verb.name(), name);
                    assert_eq!(principal.allows(verb, name), expected, "{rules:?} {verb} {name}");
                    *(if expected { &mut yes } else { &mut no }) += 1;
                }
            }
        }
        assert!(yes > 1000 && no > 1000, "{yes} {no}");
    }

    #[test]
    fn a_token_is_found_by_its_hash_only() {
        let token = make_token([7; 32]);
        assert_eq!(token.len(), PREFIX.len() + 64);
        assert_ne!(token, make_token([8; 32]));
        let rules = BTreeSet::from(["read:*".parse().unwrap()]);
        let credential = Credential::Token(hash(token.as_bytes()));
        let principal = Principal { credential: credential.clone(), rules, made_ms: 0 };
        let mut all = Principals::new();
        change(&mut all, "ci", PrincipalChange::Create(principal.clone())).unwrap();
        assert!(change(&mut all, "ci", PrincipalChange::Create(principal.clone())).is_err());
        assert!(change(&mut all, "a b", PrincipalChange::Create(principal)).is_err());
        assert_eq!(find(&all, &credential).unwrap().0, "ci");
        assert!(find(&all, &Credential::Token(hash(b"kofm_"))).is_none());
        assert!(find(&all, &Credential::Certificate(hash(token.as_bytes()))).is_none());
        let more = BTreeSet::from(["acquire:gpu".parse().unwrap()]);
        change(&mut all, "ci", PrincipalChange::Allow(more.clone())).unwrap();
        assert!(all["ci"].allows(Verb::Acquire, "gpu"));
        change(&mut all, "ci", PrincipalChange::Deny(more.clone())).unwrap();
        assert!(!all["ci"].allows(Verb::Acquire, "gpu"));
        assert!(change(&mut all, "ci", PrincipalChange::Deny(more)).is_err());
        assert!(change(&mut all, "no", PrincipalChange::Revoke).is_err());
        change(&mut all, "ci", PrincipalChange::Revoke).unwrap();
        assert!(find(&all, &credential).is_none());
    }

    #[test]
    fn one_credential_is_one_principal() {
        let mut all = Principals::new();
        let user = |uid| Principal {
            credential: Credential::User(uid),
            rules: BTreeSet::new(),
            made_ms: 0,
        };
        change(&mut all, "alice", PrincipalChange::Create(user(1000))).unwrap();
        let twice = change(&mut all, "bob", PrincipalChange::Create(user(1000))).unwrap_err();
        assert!(twice.message.contains("kofm allow alice"), "{}", twice.message);
        change(&mut all, "bob", PrincipalChange::Create(user(1001))).unwrap();
        assert_eq!(find(&all, &Credential::User(1001)).unwrap().0, "bob");
    }

    #[test]
    fn the_smallest_network_of_an_address_counts() {
        let mut all = Principals::new();
        for (name, text) in [("wide", "10.0.0.0/8"), ("near", "10.1.2.0/24"), ("six", "fd00::/8")] {
            let credential = Credential::Network(text.parse().unwrap());
            let principal = Principal { credential, rules: BTreeSet::new(), made_ms: 0 };
            change(&mut all, name, PrincipalChange::Create(principal)).unwrap();
        }
        for (address, name) in [
            ("10.1.2.9", Some("near")),
            ("::ffff:10.1.2.9", Some("near")),
            ("10.9.9.9", Some("wide")),
            ("11.0.0.1", None),
            ("fd12::1", Some("six")),
            ("fe80::1", None),
        ] {
            let found = find_network(&all, address.parse().unwrap()).map(|it| it.0);
            assert_eq!(found, name, "{address}");
        }
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/0", "x/8", "::/129", "1.2.3.4/-1"] {
            assert!(bad.parse::<Network>().unwrap_err().contains("10.0.0.0/8"), "{bad}");
        }
    }

    #[test]
    fn a_token_for_a_lease_names_it() {
        assert_eq!(lease_of(lease_token("L2-0123456789").as_bytes()), Some("L2-0123456789"));
        let name = lease_token(api::lease_name("L2-0123456789"));
        for bad in [
            name.as_str(),
            "kofm_lease_",
            "kofm_lease_R2-abc",
            "kofm_lease_x",
            "kofm_L2-abc",
            "L2-abc",
        ] {
            assert_eq!(lease_of(bad.as_bytes()), None, "{bad}");
        }
    }
}
