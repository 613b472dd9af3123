//! What no compiler checks, checked by a test.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, list: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, list);
        } else if path.extension().is_some_and(|end| end == "rs") {
            list.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let mut list = Vec::new();
    sources(&root().join("crates"), &mut list);
    sources(&root().join("xtask"), &mut list);
    list.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_protocol_tells_its_idea_source_messages_cost_and_why_it_is_safe() {
    let mut files = Vec::new();
    sources(&root().join("crates/core/src/protocols"), &mut files);
    let listed = fs::read_to_string(root().join("crates/core/src/protocols.rs")).unwrap();
    for path in files {
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        // Files below a protocol's own folder belong to it.
        if !listed.contains(&format!(" {module}::")) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for heading in ["Idea", "Source", "Messages", "Cost", "Assumes", "Why it is safe"] {
            assert!(text.contains(&format!("//! # {heading}\n")), "{module} has no {heading}");
        }
    }
}

#[test]
fn programs_with_the_client_build_25_crates() {
    let args = ["tree", "-p", "kofm-client", "-e", "normal,build", "--prefix", "none", "--locked"];
    let output = std::process::Command::new(env!("CARGO"))
        .args(args)
        .arg("--offline")
        .current_dir(root())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let crates: std::collections::BTreeSet<String> = text.lines().map(name).collect();
    assert!(crates.contains("kofm-api v0.1.0"), "{crates:?}");
    assert!(crates.len() <= 25, "{} crates: {crates:?}", crates.len());
}

#[test]
fn core_stays_pure() {
    let mut files = Vec::new();
    sources(&root().join("crates/core/src"), &mut files);
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for word in ["extern crate std", "f32", "f64"] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}

/// The crate of sites decides; clocks, threads, files and tasks belong to its drivers. A source
/// file that still uses some of them is listed with them, and the list only gets shorter.
#[test]
fn what_decides_in_a_site_has_no_clock_threads_or_files() {
    const OUTSIDE: [&str; 8] = [
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
        "std::process",
        "time::Instant",
        "SystemTime",
        "tokio::",
    ];
    const LEFT: [(&str, &[&str]); 5] = [
        ("journal.rs", &["std::fs", "std::env", "std::process"]),
        ("tallies.rs", &["std::fs", "std::thread", "std::env", "std::process"]),
        ("input.rs", &["tokio::"]),
        ("core.rs", &["tokio::"]),
        ("core/epochs.rs", &["tokio::"]),
    ];
    let (mut files, folder) = (Vec::new(), root().join("crates/site/src"));
    sources(&folder, &mut files);
    for path in files {
        let name = path.strip_prefix(&folder).unwrap().to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&path).unwrap();
        let left = LEFT.iter().find(|it| it.0 == name).map_or(&[][..], |it| it.1);
        for word in OUTSIDE {
            let (used, listed) = (text.contains(word), left.contains(&word));
            assert!(!used || listed, "{name}: `{word}` belongs into `crates/net`");
            assert!(used || !listed, "{name} has no `{word}` any more: shorten the list");
        }
    }
}

#[test]
fn lines_fit_and_nothing_is_left_to_do() {
    for (path, text) in all_sources() {
        for (number, line) in (1..).zip(text.lines()) {
            let place = format!("{}:{number}", path.display());
            assert!(line.chars().count() <= 100, "{place} is longer than 100 columns");
            let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
            assert!(!marks.iter().any(|mark| line.contains(mark)), "{place} is not finished");
        }
    }
}
