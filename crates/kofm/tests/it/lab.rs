//! The laboratory from outside: `sim`, `check`, `replay`, `protocols`, `quorums`.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn kofm(line: &str) -> Output {
    let words = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_kofm")).args(words).output().unwrap()
}

fn json(line: &str) -> Value {
    let output = kofm(line);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{line}: {error}\n{}", String::from_utf8_lossy(&output.stderr))
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _fresh = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_simulation_prints_what_the_contract_says_and_the_same_again() {
    let line = "sim --protocol permission --sites 4 --units 3 --k 1..3 --requests 500 --json";
    let mut report = json(line);
    let fields = [
        "protocol",
        "sites",
        "units",
        "seed",
        "requests",
        "grants",
        "messages",
        "messages_per_grant",
        "wait",
        "overtaken_max",
        "max_in_use",
        "violations",
        "unserved",
        "events",
        "wall_ms",
    ];
    for field in fields {
        assert!(!report[field].is_null(), "{field} is missing: {report}");
    }
    for field in ["min", "mean", "max"] {
        assert!(report["messages_per_grant"][field].is_number());
    }
    for field in ["mean", "p50", "p99", "max"] {
        assert!(report["wait"][field].is_number());
    }
    assert_eq!(report["grants"], 500);
    assert_eq!(report["violations"], serde_json::json!([]));
    let mut again = json(line);
    report["wall_ms"] = 0.into();
    again["wall_ms"] = 0.into();
    assert_eq!(report, again);
    assert_eq!(kofm(line).status.code(), Some(0));
}

#[test]
fn a_simulation_for_people_has_a_table_and_bars() {
    let output = kofm("sim --protocol permission --sites 3 --units 2 --requests 300");
    let table = text(&output.stdout);
    assert!(table.contains("messages per grant") && table.contains('█'), "{table}");
}

#[test]
fn a_run_that_breaks_a_promise_exits_with_one() {
    let line = "sim --protocol permission-lazy-as-printed --sites 3 --units 8 --k 1..8 \
                --think ~1 --hold ~10 --requests 20000 --json";
    assert_eq!(kofm(line).status.code(), Some(1));
    assert_ne!(json(line)["violations"], serde_json::json!([]));
}

#[test]
fn the_published_listing_is_refuted_in_one_command() {
    let line = "check --protocol permission-lazy-as-printed --sites 2 --units 2";
    let output = kofm(line);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("capacity is violated after 13 steps"));
    let found = json(&format!("{line} --json"));
    assert_eq!(found["violation"]["property"], "capacity");
    assert_eq!(found["violation"]["trace"].as_array().unwrap().len(), 13);
}

#[test]
fn a_check_counts_its_states() {
    let found = json("check --protocol permission --sites 2 --units 2 --rounds 3 --json");
    assert_eq!(found["states"], 2_566);
    assert_eq!(found["complete"], true);
    assert_eq!(found["violation"], Value::Null);
    let cut = json("check --protocol permission --sites 3 --units 2 --states 1000 --json");
    assert_eq!(cut["complete"], false);
}

#[test]
fn a_trace_replays_and_a_broken_one_says_where() {
    let folder = folder("replay");
    let file = folder.join("run.ndjson");
    let name = file.display();
    for topology in ["full", "ring", "tree"] {
        let line = format!(
            "sim --protocol permission-lazy --sites 3 --units 2 --requests 50 \
             --topology {topology} --trace {name}"
        );
        assert_eq!(kofm(&line).status.code(), Some(0));
        let replayed = kofm(&format!("replay {name}"));
        assert_eq!(replayed.status.code(), Some(0), "{}", text(&replayed.stderr));
        assert!(text(&replayed.stdout).contains("GRANT"));
    }
    let broken = text(&std::fs::read(&file).unwrap()).replacen("\"units\":[]", "\"units\":[7]", 1);
    std::fs::write(&file, broken).unwrap();
    let replayed = kofm(&format!("replay {name}"));
    assert_eq!(replayed.status.code(), Some(1));
    assert!(text(&replayed.stderr).contains("line "), "{}", text(&replayed.stderr));
    let check = "check --protocol permission-lazy-as-printed --sites 2 --units 2 --trace";
    assert_eq!(kofm(&format!("{check} {name}")).status.code(), Some(1));
    assert_eq!(kofm(&format!("replay {name}")).status.code(), Some(0));
}

#[test]
fn wrong_usage_is_explained_and_exits_with_64() {
    let folder = folder("usage");
    let graph = folder.join("graph");
    let graph_name = graph.display();
    let sim = "sim --protocol permission --sites 3 --units 2";
    let cases = [
        ("sim --protocol nothing --sites 3 --units 2".to_owned(), "permission-lazy"),
        ("sim --protocol permission --sites 0 --units 2".to_owned(), "1..=10000"),
        ("sim --protocol permission --sites 3 --units 0".to_owned(), "1..=1000000"),
        ("sim --protocol permission --sites x --units 2".to_owned(), "invalid"),
        (format!("{sim} --k 0..1"), "1 <= A <= B <= 2"),
        (format!("{sim} --k 2..1"), "1 <= A <= B <= 2"),
        (format!("{sim} --k 1..3"), "1 <= A <= B <= 2"),
        (format!("{sim} --think soon"), "not a time"),
        (format!("{sim} --delay -1"), ""),
        (format!("{sim} --requests 0"), "1..="),
        (format!("{sim} --hot 3=2"), "from 0 to 2"),
        (format!("{sim} --hot 1"), "SITE=FACTOR"),
        (format!("{sim} --hot 1=0"), "SITE=FACTOR"),
        (format!("{sim} --hot 1=2 --hot 1=3"), "twice"),
        (format!("{sim} --arbiters 0"), "asks no arbiters"),
        (format!("{sim} --construction grid"), "asks no arbiters"),
        (format!("{sim} --faults arbitrary-start"), "does not claim to survive"),
        (format!("{sim} --faults rain"), "there is no fault"),
        (format!("{sim} --faults corrupt=2"), "probability"),
        (format!("{sim} --topology {graph_name}"), "No such file"),
        (format!("{sim} --trace {}/no/such/folder/x", folder.display()), "cannot write"),
        (format!("{sim} --colour"), "unexpected argument"),
        ("check --protocol permission --sites 3 --units 2 --k 9".to_owned(), "1 <= A <= B"),
        ("check --protocol permission --sites 100 --units 2".to_owned(), "at most 64"),
        ("check --protocol permission --sites 3 --units 2 --rounds 0".to_owned(), "1..="),
        ("check --protocol quorum-as-printed --sites 2 --units 2,1".to_owned(), "one pool"),
        (format!("replay {graph_name}"), "No such file"),
        ("quorums --sites 10 --units 2 --crashes 9".to_owned(), "the most is 3"),
        ("nonsense".to_owned(), "unrecognized"),
    ];
    for (line, hint) in cases {
        let output = kofm(&line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{line}: {said}");
        assert!(said.contains(hint), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "no file is left half written");
}

#[test]
fn a_bad_line_in_a_topology_file_is_named() {
    let folder = folder("topology");
    let graph = folder.join("graph");
    let name = graph.display();
    let line =
        format!("sim --protocol permission --sites 3 --units 2 --requests 50 --topology {name}");
    let cases = [
        ("0 1\n0 x\n", "line 2"),
        ("0 1\n\n# comment\n0 3\n", "line 4"),
        ("0 1\n1 1\n", "linked to itself"),
        ("0 1\n1 0\n", "twice"),
        ("0 1 2\n", "line 1"),
        ("0 1\n", "s2 cannot be reached"),
        ("", "cannot be reached"),
    ];
    for (content, hint) in cases {
        std::fs::write(&graph, content).unwrap();
        let output = kofm(&line);
        assert_eq!(output.status.code(), Some(64), "{content}");
        assert!(text(&output.stderr).contains(hint), "{content}: {}", text(&output.stderr));
    }
    std::fs::write(&graph, "0 1\n1 2 # a path\n").unwrap();
    assert_eq!(kofm(&line).status.code(), Some(0));
}

#[test]
fn protocols_and_help_are_there_to_read() {
    let list = json("protocols --json");
    assert!(list.as_array().unwrap().iter().any(|entry| entry["name"] == "permission"));
    for command in ["", "sim", "check", "replay", "protocols", "quorums"] {
        let output = kofm(&format!("{command} --help"));
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(text(&output.stdout).contains("Usage"), "{command}");
    }
}
