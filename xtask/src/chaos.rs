//! `cargo xtask chaos`: real sites in network namespaces, killed, stopped and cut off.

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask chaos [--faults N] [--seed S] [--sites N] [--clients N] [--lease MS] [--etcd MEMBERS]
                  [--only CLASS,CLASS] [--durability none|grant] [--at-once N] [--apart MS]
Needs root, `ip`, `nft` (apt-get install nftables), for --etcd `etcd` (apt-get install etcd-server),
for clocks that run at other rates libfaketime (apt-get install libfaketime).
Classes: kill pause cut one-way link loss clock etcd";

/// Runs the chaos test of the binary as told.
pub(crate) fn run(args: &[String]) -> ExitCode {
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo.args(["test", "--quiet", "-p", "kofm", "--features", "kofm-net/libc-clock"]);
    cargo.args(["--test", "chaos", "--", "--ignored"]);
    cargo.args(["--nocapture", "as_told"]).env("KOFM_CHAOS_CLOCK", "1");
    for pair in args.chunks(2) {
        let known = [
            "faults",
            "seed",
            "sites",
            "clients",
            "lease",
            "etcd",
            "only",
            "durability",
            "at-once",
            "apart",
        ];
        let name = pair[0].strip_prefix("--").filter(|name| known.contains(name));
        let (Some(name), [_, value]) = (name, pair) else {
            eprintln!("{HELP}");
            return ExitCode::from(64);
        };
        let value = value.strip_suffix("ms").unwrap_or(value);
        cargo.env(format!("KOFM_CHAOS_{}", name.to_uppercase().replace('-', "_")), value);
    }
    match cargo.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("cargo: {error}");
            ExitCode::from(69)
        }
    }
}
