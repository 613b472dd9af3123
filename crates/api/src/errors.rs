//! Errors, and the health of a site in sentences.

use serde::{Deserialize, Serialize};

/// An error of the API. What it says is definite: nothing was changed, unless its text says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Error {
    /// For programs.
    pub error: Code,
    /// What is wrong and what to do.
    pub message: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// How a site is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// `ok`, or the verdict in a word, as in the header `kofm-health`: `draining`, `minority`,
    /// `changing`, `disk`, `missing=SITE,…` or `insecure`.
    pub health: String,
    /// The site that says it.
    pub site: String,
    /// The cluster's epoch, as the site knows it.
    pub epoch: u64,
    /// The problems, the worst first.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The verdict in a word.
    pub code: String,
    /// The problem in a sentence.
    pub message: String,
    /// The next step.
    pub action: String,
}

/// An error of the API, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// No such pool.
    UnknownPool,
    /// No such request, or forgotten.
    UnknownRequest,
    /// No such path.
    NotFound,
    /// The demand can never be granted.
    Infeasible,
    /// `wait` was zero and the units are not free.
    Busy,
    /// The body is not what it should be.
    Malformed,
    /// The lease is over.
    Gone,
    /// The credential lacks the right, or a foreign web page asks.
    Forbidden,
    /// No valid credential.
    Unauthorized,
    /// A body that a browser sends must be JSON, and say so.
    MediaType,
    /// More than this site takes on.
    TooMany,
    /// The site stops.
    Draining,
    /// The site that has to answer does not.
    Unreachable,
    /// Not with this cluster.
    Unsupported,
    /// The pool is in use.
    InUse,
    /// The wrong method for this path.
    Method,
    /// No such semaphore.
    UnknownSemaphore,
    /// No such gang.
    UnknownGang,
    /// `wait` has run out.
    Timeout,
}

impl Error {
    /// An error with this text.
    pub fn new(error: Code, message: impl Into<String>) -> Self {
        Self { error, message: message.into() }
    }

    /// There is no pool of this name.
    pub fn unknown_pool(name: &str) -> Self {
        Self::new(
            Code::UnknownPool,
            format!("there is no pool `{name}`; `kofm pool ls` lists them"),
        )
    }
}
