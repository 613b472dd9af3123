//! Tokens, rules and the audit log.

use serde::{Deserialize, Serialize};

/// The body of `POST /v1/tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// The principal's name.
    pub name: String,
    /// Its rules, `VERBS:PATTERN` each.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The user of the machine that it is, by number; instead of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The client certificate that it shows, PEM; instead of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The network from which its `FleetLock` nodes call, as `10.0.0.0/8`; instead of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// A principal that was made, with its token if it has one: it is shown this once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadeToken {
    /// The principal's name.
    pub name: String,
    /// The secret that it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Its credential: `token`, or a user, certificate or network.
    pub credential: String,
    /// Its rules.
    pub rules: Vec<String>,
}

/// The principal of a credential: `GET /v1/principal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Principal {
    /// Its name; none if clients need no credential.
    pub name: Option<String>,
    /// Its rules, `VERBS:PATTERN` each.
    pub rules: Vec<String>,
}

/// A principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// Its credential: `token`, or a user, certificate or network.
    pub credential: String,
    /// Its rules.
    pub rules: Vec<String>,
    /// How long ago it was made.
    pub age_ms: u64,
}

/// The body of `POST /v1/rules/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutRules {
    /// Rules to give.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Rules to take away.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// An entry of a site's audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditEntry {
    /// Its number, counted from 1.
    #[serde(rename = "n")]
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The site that was asked.
    pub site: String,
    /// The principal that asked; none if it showed no valid credential, or needed none.
    pub principal: Option<String>,
    /// The address of the client, or `unix:uid=N`.
    pub address: String,
    /// The right that the call needs, or `release`, `cancel` or `renew`.
    pub verb: String,
    /// What it concerns.
    pub object: String,
    /// Pools, semaphores, gangs and principals that it concerns.
    pub pools: Vec<String>,
    /// `ok`, `denied`, `allowed` if the result was not awaited, or the status of the answer.
    pub result: String,
}

/// What a check of an audit log found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditCheck {
    /// Entries that were checked.
    pub entries: u64,
    /// The number of the first of them: older ones were put away.
    pub first: u64,
    /// Whether all are as the site wrote them.
    pub verified: bool,
    /// Where they are not, and why.
    pub fault: Option<String>,
}
