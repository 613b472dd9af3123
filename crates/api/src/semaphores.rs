//! Semaphores, and the calls of P and V.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::WrittenDuration;
use crate::text_duration;

/// A semaphore, counted over all sites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Semaphore {
    /// Its name.
    pub name: String,
    /// What it began with, and all that was added, less all that was taken.
    pub value: u64,
    /// How many wait to take from it.
    pub waiting: u64,
    /// Who goes next; nobody where nobody waits, or it is about to change.
    pub head: Option<Head>,
    /// How it is shared.
    pub protocol: String,
    /// Sites that are gone and may have taken what was left: the value is what is certain, and
    /// more as soon as they are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsure: Vec<String>,
}

/// Who goes next at a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Head {
    /// Where it waits.
    pub site: String,
    /// Who it is.
    pub owner: Option<String>,
    /// What it takes.
    pub k: u32,
    /// What has to be added before it can.
    pub missing: u64,
    /// How long it has waited.
    pub waited_ms: u64,
}

/// The body of `PUT /v1/semaphores/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSemaphore {
    /// The value that it begins with.
    pub value: u64,
    /// How it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// The body of `POST /v1/semaphores/{name}/p`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TakeSpec {
    /// How many units.
    #[serde(default = "one")]
    pub k: u64,
    /// How long to wait at most; zero tries once. Default for ever.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_duration")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<WrittenDuration>"))]
    pub wait: Option<Duration>,
    /// Who asks, shown to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Calls with the same id, at whatever site, take once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The body of `POST /v1/semaphores/{name}/v`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AddSpec {
    /// How many units.
    #[serde(default = "one")]
    pub m: u64,
    /// Calls with the same id, at whatever site, add once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

const fn one() -> u64 {
    1
}

/// What a P came to: nothing but success, anything else is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Taken {
    /// The semaphore.
    pub name: String,
    /// What was taken; there is nothing to give back.
    pub k: u32,
    /// Always `taken`.
    pub state: String,
    /// How long it waited.
    pub waited_ms: u64,
}
