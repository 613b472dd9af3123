//! `cargo xtask wheel` and `cargo xtask package`: release files in `target/packages`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const OUT: &str = "target/packages";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Builds the release binary, then runs a command in the root of the repository.
fn with_binary(command: &mut Command) -> ExitCode {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "-p", "kofm"]).current_dir(root());
    let built = crate::run(&mut cargo);
    if built == ExitCode::SUCCESS { crate::run(command.current_dir(root())) } else { built }
}

/// The wheel of the Python client, and the one with the binary.
pub(crate) fn wheel() -> ExitCode {
    let args = ["clients/python/wheel.py", OUT, "--binary", "target/release/kofm"];
    with_binary(Command::new("python3").args(args))
}

/// A Debian package or a tarball.
pub(crate) fn package(kind: &str) -> ExitCode {
    with_binary(Command::new("sh").args(["dist/package.sh", kind, "target/release/kofm", OUT]))
}
