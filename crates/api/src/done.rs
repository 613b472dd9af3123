//! Short answers: the name of a thing, and what was done to it.

use serde::{Deserialize, Serialize};

/// The answer to `DELETE /v1/leases/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Released {
    /// The id or the name that the call gave.
    pub id: String,
    /// Always `released`.
    pub state: String,
}

/// The answer to a call that removes a pool, semaphore, gang or principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Removed {
    /// The name.
    pub name: String,
    /// `removed`, or `revoked` for a principal.
    pub state: String,
}

/// The answer to a change of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemberChanged {
    /// The name of the site.
    pub site: String,
    /// `removed`, `replaced`, `draining` or `member`.
    pub state: String,
}

/// The answer to `POST /v1/semaphores/{name}/v`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Added {
    /// The semaphore.
    pub name: String,
    /// The number of units that were added.
    pub m: u64,
    /// Always `added`.
    pub state: String,
}

/// A rule of a principal, in `GET /v1/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuleView {
    /// The principal.
    pub principal: String,
    /// The rule, `VERBS:PATTERN`.
    pub rule: String,
}

impl Removed {
    /// Something of this name was removed.
    pub fn new(name: &str, state: &str) -> Self {
        Self { name: name.to_owned(), state: state.to_owned() }
    }
}
