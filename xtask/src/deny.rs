//! Licences, banned crates and sources of what is built into kofm, by the rules of `deny.toml`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::Value;
use toml::Table;

/// Checks the rules, and runs cargo-deny if it is installed: it knows advisories.
pub(crate) fn run() -> ExitCode {
    match faults() {
        Ok(faults) if faults.is_empty() => println!("deny: licences, bans and sources ok"),
        Ok(faults) => {
            for fault in faults {
                eprintln!("deny: {fault}");
            }
            return ExitCode::FAILURE;
        }
        Err(text) => {
            eprintln!("deny: {text}");
            return ExitCode::FAILURE;
        }
    }
    let found = Command::new("cargo").args(["deny", "--version"]).output();
    if !found.is_ok_and(|it| it.status.success()) {
        println!("deny: advisories NOT RUN: install cargo-deny: cargo install --locked cargo-deny");
        return ExitCode::SUCCESS;
    }
    let checked = Command::new("cargo").args(["deny", "--locked", "check"]).status();
    if checked.is_ok_and(|it| it.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn strings(table: &Table, section: &str, key: &str) -> BTreeSet<String> {
    let list = table[section][key].as_array().into_iter().flatten();
    let name = |it: &toml::Value| {
        let name = it.as_str().or_else(|| it.get("crate")?.as_str());
        name.map(str::to_owned)
    };
    list.filter_map(name).collect()
}

/// All that is wrong.
fn faults() -> Result<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules = std::fs::read_to_string(root.join("deny.toml")).map_err(|it| it.to_string())?;
    let rules: Table = rules.parse().map_err(|error| format!("deny.toml: {error}"))?;
    let allowed = strings(&rules, "licenses", "allow");
    let banned = strings(&rules, "bans", "deny");
    let mut targets = rules["graph"]["targets"].as_array().into_iter().flatten();
    let target = targets.find_map(toml::Value::as_str).unwrap_or_default();
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform", target];
    let output = Command::new("cargo").args(args).current_dir(root).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("metadata has no packages")?;
    Ok(faults_of(packages, &allowed, &banned))
}

fn faults_of(
    packages: &[Value],
    allowed: &BTreeSet<String>,
    banned: &BTreeSet<String>,
) -> Vec<String> {
    let mut faults = Vec::new();
    // The registry that cargo uses by default is the only one.
    let mut registry: Option<&str> = None;
    for package in packages {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        if banned.contains(text("name")) {
            faults.push(format!("{name} is banned"));
        }
        if !permits(text("license"), allowed) {
            faults.push(format!("{name} has the licence `{}`", text("license")));
        }
        let Some(source) = package["source"].as_str() else { continue };
        if !source.starts_with("registry+") || registry.is_some_and(|it| it != source) {
            faults.push(format!("{name} comes from {source}"));
        }
        registry = registry.or(Some(source));
    }
    faults
}

/// Whether an SPDX expression can be met with these licences.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut place = 0;
    let good = any(&words, &mut place, allowed);
    good && place == words.len() && !words.is_empty()
}

fn any(words: &[&str], place: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut good = all(words, place, allowed);
    while words.get(*place) == Some(&"OR") {
        *place += 1;
        good |= all(words, place, allowed);
    }
    good
}

fn all(words: &[&str], place: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut good = one(words, place, allowed);
    while words.get(*place) == Some(&"AND") {
        *place += 1;
        good &= one(words, place, allowed);
    }
    good
}

fn one(words: &[&str], place: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(&word) = words.get(*place) else { return false };
    *place += 1;
    if word == "(" {
        let good = any(words, place, allowed);
        let closed = words.get(*place) == Some(&")");
        *place += 1;
        return good && closed;
    }
    if words.get(*place) == Some(&"WITH") {
        let exception = words.get(*place + 1).copied().unwrap_or_default();
        *place += 2;
        return allowed.contains(&format!("{word} WITH {exception}"));
    }
    allowed.contains(word)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_crates_follow_the_rules() {
        let faults = faults().unwrap();
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn licences_are_read_as_spdx_says() {
        let allowed: BTreeSet<String> =
            ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        for (expression, good) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND ISC", true),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("(MIT OR GPL-3.0) AND GPL-3.0", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("Apache-2.0", false),
            ("", false),
            ("(MIT", false),
            ("MIT ISC", false),
        ] {
            assert_eq!(permits(expression, &allowed), good, "{expression}");
        }
    }

    #[test]
    fn a_crate_that_breaks_a_rule_is_named() {
        let package = |name: &str, license: &str, source: Option<&str>| {
            let mut package = json!({"name": name, "version": "1.0.0"});
            package["license"] = license.into();
            package["source"] = source.into();
            package
        };
        let main = Some("registry+https://example.org");
        let packages = [
            package("kofm", "MIT", None),
            package("good", "MIT", main),
            package("native-tls", "MIT", main),
            package("copyleft", "GPL-3.0", main),
            package("fork", "MIT", Some("git+https://example.org/fork")),
            package("mirror", "MIT", Some("registry+https://example.net")),
        ];
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let faults = faults_of(&packages, &set("MIT"), &set("native-tls"));
        assert_eq!(faults.len(), 4, "{faults:?}");
        for (fault, name) in faults.iter().zip(["native-tls", "copyleft", "fork", "mirror"]) {
            assert!(fault.starts_with(name), "{fault}");
        }
    }
}
