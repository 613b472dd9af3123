//! Principals and their rights: tokens by their hashes, and rules `VERBS:PATTERN`.
//!
//! Principals are part of the cluster's record, as pools are: a change is an epoch, so it is in
//! force at all sites when its command returns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::api::{self, Code};
use crate::config::check_name;

/// Principals in a cluster.
pub const MAX_PRINCIPALS: usize = 1000;
/// Rules of a principal.
const MAX_RULES: usize = 100;
/// Bytes of a pattern.
const MAX_PATTERN: usize = 64;
/// The first characters of every token.
const PREFIX: &str = "kofm_";

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

/// A named token with its rules. The token itself is shown once and not kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Principal {
    /// SHA-256 of the token, which has 256 random bits.
    pub hash: [u8; 32],
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

/// A token of 256 random bits, for one principal.
pub fn make_token(secret: [u8; 32]) -> String {
    let hex: Vec<String> = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{}", hex.concat())
}

pub fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The principal that has a token.
pub fn find<'a>(all: &'a Principals, token: &[u8]) -> Option<(&'a str, &'a Principal)> {
    let hash = hash(token);
    all.iter().find(|it| it.1.hash == hash).map(|(name, it)| (name.as_str(), it))
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
            let principal = Principal { hash: [0; 32], rules: parsed.collect(), made_ms: 0 };
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
        let principal = Principal { hash: hash(token.as_bytes()), rules, made_ms: 0 };
        let mut all = Principals::new();
        change(&mut all, "ci", PrincipalChange::Create(principal.clone())).unwrap();
        assert!(change(&mut all, "ci", PrincipalChange::Create(principal.clone())).is_err());
        assert!(change(&mut all, "a b", PrincipalChange::Create(principal)).is_err());
        assert_eq!(find(&all, token.as_bytes()).unwrap().0, "ci");
        assert!(find(&all, b"kofm_").is_none());
        let more = BTreeSet::from(["acquire:gpu".parse().unwrap()]);
        change(&mut all, "ci", PrincipalChange::Allow(more.clone())).unwrap();
        assert!(all["ci"].allows(Verb::Acquire, "gpu"));
        change(&mut all, "ci", PrincipalChange::Deny(more.clone())).unwrap();
        assert!(!all["ci"].allows(Verb::Acquire, "gpu"));
        assert!(change(&mut all, "ci", PrincipalChange::Deny(more)).is_err());
        assert!(change(&mut all, "no", PrincipalChange::Revoke).is_err());
        change(&mut all, "ci", PrincipalChange::Revoke).unwrap();
        assert!(find(&all, token.as_bytes()).is_none());
    }
}
