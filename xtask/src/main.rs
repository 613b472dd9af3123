//! Tasks of the project: `cargo xtask reference`.

mod reference;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask reference   mean messages and waits beside the reference for Raynal 1990, cell by cell";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("reference") {
        return reference::run();
    }
    eprintln!("{HELP}");
    ExitCode::from(64)
}
