//! How the program ends: a code of the contract and one line for people.

use kofm_net::api::{Code, Error};
use kofm_net::client::ClientError;

/// Wrong usage.
pub(crate) const USAGE: u8 = 64;
/// Infeasible: k larger than M, unknown pool, malformed demand.
pub(crate) const INFEASIBLE: u8 = 65;
/// No site reachable.
pub(crate) const UNREACHABLE: u8 = 69;
/// The system has no more of something.
pub(crate) const SYSTEM: u8 = 71;
/// Busy, with `--wait 0`.
pub(crate) const BUSY: u8 = 75;
/// The lease was lost.
pub(crate) const LOST: u8 = 76;
/// Not allowed.
pub(crate) const DENIED: u8 = 77;
/// The configuration is wrong.
pub(crate) const CONFIG: u8 = 78;
/// `--wait` ran out.
pub(crate) const TIMEOUT: u8 = 124;

/// An end other than success.
#[derive(Debug)]
pub(crate) struct Exit {
    pub code: u8,
    /// Empty where there is nothing to say.
    pub message: String,
}

impl Exit {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The user asked for something that cannot be.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// The work was done, and the answer is no.
    pub(crate) fn negative(message: impl Into<String>) -> Self {
        Self::new(1, message)
    }

    /// The answer is no, and has been printed.
    pub(crate) fn silent() -> Self {
        Self::negative("")
    }
}

impl From<ClientError> for Exit {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(error) => error.into(),
            ClientError::Forbidden(text) => Self::new(DENIED, text),
            error @ (ClientError::Unreachable(_) | ClientError::Nonsense(_) | _) => {
                Self::new(UNREACHABLE, error.to_string())
            }
        }
    }
}

impl From<Error> for Exit {
    fn from(error: Error) -> Self {
        let code = match error.error {
            Code::Busy | Code::InUse | Code::TooMany => BUSY,
            Code::Timeout => TIMEOUT,
            Code::Gone => LOST,
            Code::Forbidden | Code::Unauthorized => DENIED,
            Code::Draining | Code::Unreachable => UNREACHABLE,
            Code::UnknownPool
            | Code::UnknownSemaphore
            | Code::UnknownGang
            | Code::UnknownRequest
            | Code::NotFound
            | Code::Infeasible
            | Code::Malformed
            | Code::Unsupported
            | Code::Method
            | Code::MediaType => INFEASIBLE,
        };
        Self::new(code, error.message)
    }
}

impl From<std::io::Error> for Exit {
    fn from(error: std::io::Error) -> Self {
        Self::new(SYSTEM, error.to_string())
    }
}
