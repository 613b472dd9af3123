//! Passes the commit to the compiler: `KOFM_COMMIT` if it is set, otherwise what git says.

use std::path::Path;
use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo::rerun-if-env-changed=KOFM_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(told) = std::env::var("KOFM_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        println!("cargo::rustc-env=KOFM_COMMIT={told}");
        return;
    }
    // A package of this crate that is built inside another repository is not of that one's commit.
    let ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| ours);
    if ours && let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        // The log of HEAD changes with each commit and each checkout.
        if Path::new(&log).exists() {
            println!("cargo::rerun-if-changed={log}");
        }
    }
    println!("cargo::rustc-env=KOFM_COMMIT={}", commit.unwrap_or_default());
}
