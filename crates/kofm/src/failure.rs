//! Why a command could not do its work, and the exit code that says so.

use std::process::ExitCode;

/// Wrong usage: a flag, a file or a combination that makes no sense.
pub(crate) const USAGE: u8 = 64;

/// A sentence for a person, and an exit code for a program.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The user asked for something that cannot be.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    /// The work was done, and the answer is no.
    pub(crate) fn negative(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// Says it, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("kofm: {}", self.message);
        ExitCode::from(self.code)
    }
}
