//! A bill of materials: every crate that is built into `kofm`, in the form of `CycloneDX` 1.5.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

/// Prints the document.
pub(crate) fn run() -> ExitCode {
    match document() {
        Ok(document) => {
            println!("{document:#}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("sbom: {text}");
            ExitCode::FAILURE
        }
    }
}

fn document() -> Result<Value, String> {
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform"];
    let host = "x86_64-unknown-linux-gnu";
    let output = Command::new("cargo").args(args).arg(host).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("metadata has no packages")?;
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("metadata has no graph")?;
    let root = packages.iter().find(|it| it["name"] == "kofm").ok_or("there is no crate kofm")?;
    let used = reachable(nodes, root["id"].as_str().unwrap_or_default());
    let listed = |it: &&Value| used.contains(it["id"].as_str().unwrap_or_default());
    let components: Vec<Value> = packages.iter().filter(listed).map(component).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root)},
        "components": components,
    }))
}

/// The crates that are linked into one, itself included: neither tools nor tests.
fn reachable(nodes: &[Value], root: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![root.to_owned()];
    while let Some(id) = left.pop() {
        let Some(node) = nodes.iter().find(|it| it["id"] == *id) else { continue };
        if !found.insert(id) {
            continue;
        }
        for dependency in node["deps"].as_array().into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            let linked = kinds.is_some_and(|kinds| kinds.iter().any(|it| it["kind"].is_null()));
            if let Some(id) = dependency["pkg"].as_str().filter(|_| linked) {
                left.push(id.to_owned());
            }
        }
    }
    found
}

fn component(package: &Value) -> Value {
    let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let (name, version) = (text("name"), text("version"));
    json!({
        "type": if name == "kofm" { "application" } else { "library" },
        "bom-ref": format!("pkg:cargo/{name}@{version}"),
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{"expression": text("license").replace('/', " OR ")}],
    })
}
