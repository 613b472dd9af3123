//! Types of the HTTP API of a kofm site, shared by sites and clients. API types are not protocol
//! types.

mod access;
pub mod boottime;
mod done;
pub mod duration;
mod errors;
#[cfg(feature = "fast")]
pub mod fast;
mod gangs;
mod lease_names;
pub mod moment;
mod semaphores;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::access::{
    AuditCheck, AuditEntry, CreateToken, MadeToken, Principal, PutRules, TokenView,
};
pub use self::done::{Added, MemberChanged, Released, Removed, RuleView};
pub use self::errors::{Code, Error, Health, Problem};
pub use self::gangs::{
    FailedMember, Gang, GangMembers, JoinGang, Joined, Members, PutGang, StartGang, Started,
};
pub use self::lease_names::{is_lease_name, lease_name};
pub use self::semaphores::{AddSpec, Head, PutSemaphore, Semaphore, TakeSpec, Taken};

/// What is asked: pool and units.
pub type Want = BTreeMap<String, u32>;
/// What was granted: names of units, by pool; numbers where the pool has no names.
pub type Units = BTreeMap<String, Vec<String>>;

/// The body of `POST /v1/requests`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Submit {
    /// Units of each pool, granted all or nothing.
    pub want: Want,
    /// How long a lease lives without a renewal. Default 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<WrittenDuration>"))]
    pub ttl: Option<Duration>,
    /// How long to wait at most; zero tries once. Default for ever.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<WrittenDuration>"))]
    pub wait: Option<Duration>,
    /// The client's own name for the request: posted twice, it is one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Who asks, shown to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What for, shown to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The principal that asks. The site sets it: a client must not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub principal: Option<String>,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits.
    Queued,
    /// It has its units.
    Granted,
    /// It gave them back.
    Released,
    /// Its lease was not renewed in time.
    Expired,
    /// The client gave up.
    Cancelled,
    /// It could not be granted: its wait ran out, or the site stopped.
    Failed,
}

impl State {
    /// Whether nothing more will happen to it.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Granted)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Request {
    /// Its name.
    pub id: String,
    /// Where it stands.
    pub state: State,
    /// What it asks for.
    pub want: Want,
    /// Who asks.
    pub owner: Option<String>,
    /// What for.
    pub reason: Option<String>,
    /// Its place among those that wait for the same pools, from 1; none where it does not wait.
    pub position: Option<u64>,
    /// What it waits for.
    pub blocked_by: Vec<Blocker>,
    /// What it was granted.
    pub lease: Option<Lease>,
    /// Why it ended, or what stands in the way beside the blockers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why it failed, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The site that it waits at.
    pub site: String,
    /// How long it has waited, or did.
    pub waited_ms: u64,
    /// Its claim, where it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// The principal that asked, if clients have credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// The place of a waiting request in the order of all: the smaller one is older and goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Claim {
    /// Lamport time at the claim.
    pub time: u64,
    /// The number of the site that claims.
    pub site: u16,
}

/// One thing that a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocker {
    /// Where it is.
    pub site: String,
    /// Whose it is; none where the site has not said.
    pub owner: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pool in question.
    pub pool: String,
    /// How many of its units.
    pub units: u32,
    /// The name of the lease that has them; none if the blocker waits, or has not answered.
    pub lease: Option<String>,
    /// `held`, `queued` or `unanswered`.
    pub state: String,
    /// When the lease ends if it is not renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// A granted request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lease {
    /// A secret: a client that has it may renew and release. Empty in lists.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The short name, which lists and events show. Operators release by it.
    #[serde(default)]
    pub name: String,
    /// The request that it comes from.
    pub request: String,
    /// Names of the units, by pool; numbers where the pool has no names.
    pub units: Units,
    /// Larger than that of every earlier lease of one of these units.
    pub fence: u64,
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// How long it still lives without a renewal.
    pub expires_in_ms: u64,
    /// The site that gave it.
    pub site: String,
    /// The cluster's configuration under which it was given.
    pub epoch: u64,
    /// `live`, or after its end `held` or `quarantined`: a person must release it.
    pub state: String,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it has been held.
    pub held_ms: u64,
    /// The principal that asked, if clients have credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// A pool, counted over all sites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// M.
    pub units: u32,
    /// Units in leases.
    pub held: u32,
    /// Units that nobody has.
    pub free: u32,
    /// Units kept back for a person: those of leases that ended badly, those that a person has
    /// quarantined and nobody holds any more, and those that a dead site may still use.
    pub quarantined: u32,
    /// Requests that wait for it.
    pub waiting: u64,
    /// How it is shared.
    pub protocol: String,
    /// What happens to a lease that is not renewed.
    pub on_expiry: OnExpiry,
    /// The names of its units, where it has names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The names of the sites that share it, if only some do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
    /// The zones whose sites share it, if only some do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Units that were looked for at all sites and are nowhere, or at two: a mistake of ours. Told
    /// of one pool only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unaccounted: Vec<String>,
    /// Units that people have quarantined, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantine: Vec<Quarantined>,
}

/// A unit that a person has quarantined: nobody is granted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quarantined {
    /// Its name; its number where it has none.
    pub unit: String,
    /// Why.
    pub reason: String,
    /// Whether somebody holds it still: then it goes when that one releases it.
    pub held: bool,
}

/// The body of `PUT /v1/pools/{name}/quarantine/{unit}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutQuarantine {
    /// Why, shown to others.
    pub reason: String,
}

/// What happens to the units of a lease that is not renewed in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnExpiry {
    /// Others may have them.
    #[default]
    Release,
    /// They stay held until a person releases the lease.
    Hold,
    /// They are taken out of service until a person releases the lease.
    Quarantine,
}

impl OnExpiry {
    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "release" => Some(Self::Release),
            "hold" => Some(Self::Hold),
            "quarantine" => Some(Self::Quarantine),
            _ => None,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Hold => "hold",
            Self::Quarantine => "quarantine",
        }
    }
}

/// A change of the part that a site has in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// It is taken out for good.
    Remove,
    /// It is gone with its disk; a site of the same name may take its place.
    Replace,
    /// It takes no new requests, and its vote goes to another site.
    Drain,
    /// It takes requests again.
    Undrain,
    /// A machine with this key may come under that name.
    Admit(KeyId),
}

/// The SHA-256 of a site's public key, by which the others know the site.
pub type KeyId = [u8; 32];

/// A member of the cluster, as one site sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    /// Its name.
    pub site: String,
    /// Its number.
    pub number: u16,
    /// Where sites reach it.
    pub address: String,
    /// `self`, `up`, `away`, or `refused`: nothing can be said to it before the epoch changes.
    pub state: String,
    /// The zone in its configuration; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `voter`: decides on the next epoch, `member`, or `outside`: not in this epoch.
    #[serde(default)]
    pub role: String,
    /// The version of its program; none before it was in an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `ok`, or what is wrong in a word. For the site that is asked, as in the header
    /// `kofm-health`; for others `away`, `refused`, `changing`, `draining`,
    /// or `twin`: two processes say they are it.
    #[serde(default)]
    pub health: String,
    /// How long it has been so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// What to do, unless it is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The number of its life; none before the first contact.
    pub incarnation: Option<u64>,
    /// The cluster's epoch, as the site that is asked knows it.
    pub epoch: u64,
    /// Whether it is in that epoch.
    pub member: bool,
    /// Whether it is one of the sites that decide on the next epoch.
    #[serde(default)]
    pub voter: bool,
    /// Whether it takes no new requests, because an operator drained it.
    #[serde(default)]
    pub draining: bool,
    /// How much longer the site that is asked may grant without hearing from a majority; for
    /// others that is not known. None where all sites live in one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// How much longer units are kept back that an earlier life of it may have given away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_ms: Option<u64>,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Messages that wait for it.
    pub unacknowledged: u64,
}

/// Something that happened. It shares what it tells with its request: a site remembers thousands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Happening {
    /// When, in milliseconds of Unix time: the only clock time in the API.
    pub at_ms: u64,
    /// Its number at its site. Later ones are larger, also those of later starts of the site.
    #[serde(default)]
    pub seq: u64,
    /// `queued`, `granted`, `released`, `expired`, `cancelled`, `failed`, `refused` (it could never
    /// be granted), `held`, `quarantined`,
    /// `returned` (a unit that a person had quarantined), `pool`, `semaphore`, `taken` and `added`
    /// (of a semaphore), `peer-reset`, `epoch` (it has changed), `suspended` (no majority, nothing
    /// is granted here) or `departed` (the others went on without this site).
    pub event: Cow<'static, str>,
    /// Where.
    pub site: Arc<str>,
    /// Which request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Arc<str>>,
    /// Whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Arc<str>>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// What it asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub want: Arc<Want>,
    /// What it got.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub units: Arc<Units>,
    /// The name of its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Arc<str>>,
    /// Its fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// How long it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// How long it held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cow<'static, str>>,
    /// The principal that asked, if clients have credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Arc<str>>,
}

/// A page of `GET /v1/history?limit=N&after=CURSOR`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryPage {
    /// Events, the oldest first.
    pub history: Vec<Happening>,
    /// The cursor of the next page, which has earlier events; none on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What one owner, pool or unit used, in `GET /v1/usage`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageRow {
    /// Who asked; empty if the requests did not say. Only by owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The pool. Only by pool and by unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The unit. Only by unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Leases that were granted.
    pub leases: u64,
    /// Units times the hours for which they were held.
    pub unit_hours: f64,
    /// The part of all unit-hours of the answer, from 0 to 1.
    pub share: f64,
    /// The part of what was there to hold, from 0 to 1: of all pools, of the pool, or of the unit.
    pub utilisation: f64,
    /// Half of the leases waited for at most this long.
    pub wait_p50_ms: Option<u64>,
    /// 95 of 100 leases waited for at most this long.
    pub wait_p95_ms: Option<u64>,
    /// Half of the leases that ended were held for at most this long.
    pub hold_p50_ms: Option<u64>,
    /// 95 of 100 leases that ended were held for at most this long.
    pub hold_p95_ms: Option<u64>,
    /// Leases that were not renewed in time.
    pub expired: u64,
    /// Requests that were not granted: their wait ran out, or the units were busy.
    pub failed: u64,
    /// Requests that clients gave up.
    pub cancelled: u64,
    /// Requests that could never be granted.
    pub refused: u64,
    /// The length of the time that was looked at: less than was asked for if the history is
    /// shorter.
    pub window_ms: u64,
}

/// The place of an event in the history of the cluster: its time, site and number.
pub type Place = (u64, String, u64);

impl Happening {
    /// Its place in the history of the cluster.
    pub fn place(&self) -> Place {
        (self.at_ms, self.site.to_string(), self.seq)
    }
}

/// The body of `PUT /v1/pools/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutPool {
    /// How many, or their names.
    pub units: UnitsSpec,
    /// How it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// What happens to a lease that is not renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<OnExpiry>,
    /// The sites that share it; an empty list means all of them, and without one it stays as it
    /// is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sites: Option<Vec<String>>,
    /// The zones whose sites share it; the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<String>>,
}

/// The units of a pool: a number, or their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum UnitsSpec {
    /// So many, numbered from 0.
    Count(u32),
    /// These.
    Names(Vec<String>),
}

/// The units of each member: in the order of the members, each takes what it needs.
pub fn shares(
    members: &BTreeMap<String, Want>,
    units: &BTreeMap<String, Vec<String>>,
) -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let mut left: BTreeMap<&String, _> = units.iter().map(|it| (it.0, it.1.iter())).collect();
    let mut take = |pool: &String, count: u32| -> Vec<String> {
        left.get_mut(pool).map(|it| it.take(count as usize).cloned().collect()).unwrap_or_default()
    };
    let mut share = |want: &Want| want.iter().map(|it| (it.0.clone(), take(it.0, *it.1))).collect();
    members.iter().map(|(member, want)| (member.clone(), share(want))).collect()
}

/// What a member of a gang needs, written `POOL:K,POOL`; nothing of it where that makes no sense.
pub fn parse_want(text: &str) -> Option<Want> {
    let mut want = Want::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (pool, units) = part.rsplit_once(':').unwrap_or((part, "1"));
        let units = units.parse().ok().filter(|&units: &u32| units > 0)?;
        if pool.is_empty() || want.insert(pool.to_owned(), units).is_some() {
            return None;
        }
    }
    Some(want)
}

#[cfg(feature = "schema")]
use self::text_duration::WrittenDuration;

mod text_duration {
    use serde::Serializer;
    use serde::de::Error;

    use super::{Deserialize, Deserializer, Duration, duration};

    /// A duration, as `500ms`, `30s`, `5m`, `2h` or `1d`, or in milliseconds.
    #[derive(Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "schema", schemars(rename = "Duration"))]
    #[serde(untagged)]
    pub(super) enum WrittenDuration {
        /// A number with a unit, or 0.
        Text(#[cfg_attr(feature = "schema", schemars(regex(pattern = DURATION)))] String),
        /// Milliseconds.
        Millis(u64),
    }

    #[cfg(feature = "schema")]
    const DURATION: &str = r"^(0|[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d))$";

    #[expect(clippy::ref_option, reason = "serde asks for it")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_str(&duration::show(*time)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        match Option::<WrittenDuration>::deserialize(deserializer)? {
            None => Ok(None),
            Some(WrittenDuration::Millis(ms)) => Ok(Some(Duration::from_millis(ms))),
            Some(WrittenDuration::Text(text)) => {
                duration::parse(&text).map(Some).map_err(D::Error::custom)
            }
        }
    }
}
