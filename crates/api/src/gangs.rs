//! Gangs, and the calls by which their members join.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

#[cfg(feature = "schema")]
use crate::WrittenDuration;
use crate::{Request, Units, Want, text_duration};

/// The body of `PUT /v1/gangs/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutGang {
    /// What each member needs, by its site.
    #[cfg_attr(feature = "schema", schemars(with = "WrittenMembers"))]
    pub members: GangMembers,
}

/// What each member of a gang needs, by its site.
pub type Members = BTreeMap<String, Want>;

/// Members of a gang: `{"s0":{"gpu":1}}`, or `[{"site":"s0","want":{"gpu":1}}]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GangMembers(pub Members);

/// How the members of a gang may be written.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "GangMembers"))]
#[serde(untagged)]
enum WrittenMembers {
    List(Vec<WrittenMember>),
    Map(BTreeMap<String, Want>),
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "GangMember"))]
#[serde(deny_unknown_fields)]
struct WrittenMember {
    site: String,
    #[serde(default)]
    want: Want,
}

impl<'de> Deserialize<'de> for GangMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = match WrittenMembers::deserialize(deserializer)? {
            WrittenMembers::Map(map) => return Ok(Self(map)),
            WrittenMembers::List(list) => list,
        };
        let mut members = BTreeMap::new();
        for member in list {
            let twice = format!(
                "member `{}` is given twice; write each site once, with all its pools",
                member.site
            );
            if members.insert(member.site, member.want).is_some() {
                return Err(serde::de::Error::custom(twice));
            }
        }
        Ok(Self(members))
    }
}

/// A gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gang {
    /// Its name.
    pub name: String,
    /// What each member needs, by its site.
    pub members: BTreeMap<String, Want>,
    /// `idle`, `queued` or `running`.
    pub state: String,
}

/// The body of `POST /v1/gangs/{name}/start`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StartGang {
    /// How long the lease lives without a renewal. Default 30 s.
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
    /// The principal that asks. The site sets it: a client must not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub principal: Option<String>,
}

/// A gang that starts, or waits to: its request, and once granted what each member gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Started {
    /// The request: one lease for all members.
    #[serde(flatten)]
    pub request: Request,
    /// The gang.
    pub gang: String,
    /// What each member needs.
    pub members: BTreeMap<String, Want>,
    /// The units of each member, by pool.
    pub shares: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// Whether all sites live in one process, so that one command can start all members there.
    pub together: bool,
}

/// The body of `POST /v1/gangs/{name}/join`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinGang {
    /// The member that is there.
    pub member: String,
    /// Who speaks for it: a name of its own.
    pub token: String,
    /// The run, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// How long the member may be silent. Default 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<WrittenDuration>"))]
    pub ttl: Option<Duration>,
    /// Who asks, shown to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The member is done, or gives up.
    #[serde(default)]
    pub leave: bool,
    /// With `leave`: how the member's command ended, if not with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// The member can start: `confirm` of the answer that it confirms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
    /// How long to wait for news before the answer. Default not at all.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<WrittenDuration>"))]
    pub wait: Option<Duration>,
    /// The principal that asks. The site sets it: a client must not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub principal: Option<String>,
}

/// Where a member of a gang stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Joined {
    /// The gang.
    pub gang: String,
    /// The member.
    pub member: String,
    /// The run that it takes part in.
    pub run: String,
    /// `gathering` while members are missing; `queued`; `granted` while members have to confirm;
    /// `running`; `done` once the member has left and others run; `ended` once all have left. In
    /// fixed gangs `waiting` before `running`.
    pub state: String,
    /// Members that are not there.
    pub missing: Vec<String>,
    /// What the member got.
    pub units: Units,
    /// Larger than that of every earlier lease of one of these units.
    pub fence: Option<u64>,
    /// The lease of the whole gang.
    pub lease: Option<String>,
    /// How long the member may be silent.
    pub ttl_ms: u64,
    /// How long it may go on working without another word, counted from when it asked.
    pub expires_in_ms: u64,
    /// With `granted`: what the member sends back as `confirm` once it can start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
    /// The first member that did not end with 0. The others stop, and end with its code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedMember>,
}

/// A member of a gang that did not end well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailedMember {
    /// The member.
    pub member: String,
    /// The exit code of its command.
    pub code: u8,
}

impl Joined {
    /// A member without a run yet.
    pub fn new(gang: &str, member: &str, state: String, ttl: Duration) -> Self {
        Self {
            gang: gang.to_owned(),
            member: member.to_owned(),
            run: String::new(),
            state,
            missing: Vec::new(),
            units: BTreeMap::new(),
            fence: None,
            lease: None,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            expires_in_ms: 0,
            confirm: None,
            failed: None,
        }
    }
}
