//! Tasks of the project: `cargo xtask reference`, `cargo xtask chaos`.

mod chaos;
mod reference;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask reference   mean messages and waits beside the reference for Raynal 1990, cell by cell
cargo xtask chaos       real sites in network namespaces, killed, stopped and cut off";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("reference") => reference::run(),
        Some("chaos") => chaos::run(&args[1..]),
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(64)
        }
    }
}
