//! Tasks of the project; `cargo xtask` lists them.

mod chaos;
mod deny;
mod package;
#[cfg(test)]
mod prose;
mod reference;
mod sbom;
#[cfg(test)]
mod tidy;

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask reference     mean messages and waits beside the reference for Raynal 1990, cell by cell
cargo xtask chaos         real sites in network namespaces, killed, stopped and cut off
cargo xtask fuzz ROUNDS   wrong calls and frames, many more than the tests try
cargo xtask fuzz decoders ROUNDS   wrong bytes for each decoder
cargo xtask wheel         wheels of the Python client and of the binary, in target/packages
cargo xtask package KIND  deb or tarball, in target/packages
cargo xtask deny          licences, bans and sources of all crates; advisories, by cargo-deny
cargo xtask sbom          every crate that is built into kofm, as CycloneDX JSON";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["reference"] => reference::run(),
        ["chaos", ..] => chaos::run(&args[1..]),
        ["fuzz", rounds] if rounds.parse::<u64>().is_ok() => {
            let args = ["test", "--release", "-p", "kofm-net", "--test", "fuzz"];
            run(Command::new("cargo").args(args).env("KOFM_FUZZ", rounds))
        }
        ["fuzz", "decoders", rounds] if rounds.parse::<u64>().is_ok() => {
            let args = ["test", "--release", "-p", "kofm-net", "--lib", "decoders", "--"];
            let shown = ["--nocapture"];
            run(Command::new("cargo").args(args).args(shown).env("KOFM_DECODERS", rounds))
        }
        ["deny"] => deny::run(),
        ["sbom"] => sbom::run(),
        ["wheel"] => package::wheel(),
        ["package", kind @ ("deb" | "tarball")] => package::package(kind),
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(64)
        }
    }
}

fn run(command: &mut Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{command:?}: {error}");
            ExitCode::FAILURE
        }
    }
}
