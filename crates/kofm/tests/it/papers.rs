//! Every command in docs/papers.md, with the verdict that the page states.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn kofm(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kofm"));
    command.args(line.split_whitespace()).current_dir(root()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A row of a table: a command, the property that it finds violated, and after how many
/// steps; `none` if it finds nothing.
struct Row {
    command: String,
    property: String,
    steps: u64,
}

fn rows() -> Vec<Row> {
    let page = std::fs::read_to_string(root().join("docs/papers.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let command = cells.first()?.strip_prefix("`kofm ")?.strip_suffix('`')?.to_owned();
        let steps = cells.get(2)?.split_whitespace().next().map_or(0, |n| n.parse().unwrap());
        Some(Row { command, property: (*cells.get(1)?).to_owned(), steps })
    };
    page.lines().filter_map(row).collect()
}

/// The violation that a document of `check --json` shows: of a run without end, the first.
fn shown(found: &Value) -> Option<&Value> {
    let violation = Some(&found["violation"]).filter(|violation| !violation.is_null());
    violation.or_else(|| found["runs"].as_array()?.first())
}

#[test]
fn every_command_of_the_page_finds_what_the_page_states_and_can_be_replayed() {
    let rows = rows();
    assert!(rows.len() >= 20, "{} rows", rows.len());
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("papers.json");
    for Row { command, property, steps } in rows {
        let output = kofm(&format!("{command} --json"));
        let said = text(&output.stderr);
        let found: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{command}: {error}\n{said}"));
        let Some(run) = shown(&found) else {
            assert_eq!((property.as_str(), output.status.code()), ("none", Some(0)), "{command}");
            assert_eq!(found["complete"], true, "{command}");
            continue;
        };
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert_eq!(run["property"], property.as_str(), "{command}");
        let trace = run["trace"].as_array().unwrap().len() as u64;
        let way = run["lasso"]["prefix"].as_u64().unwrap_or(trace);
        assert_eq!(way, steps, "{command}: {property}");
        std::fs::write(&file, &output.stdout).unwrap();
        let replayed = kofm(&format!("replay --quiet {}", file.display()));
        assert_eq!(replayed.status.code(), Some(0), "{command}: {}", text(&replayed.stderr));
    }
}

#[test]
fn a_starving_group_is_shown_with_its_run_and_what_is_fair() {
    let line = "check --protocol groups-hungry --topology examples/groups/cancel.toml --endless";
    let output = kofm(line);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    for part in ["may pass over", "no client has to claim", "here the run rests"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = kofm(&format!("{line} --arrive"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let said = text(&output.stdout);
    assert!(said.contains("none is passed over forever"), "{said}");
    assert!(said.contains("the others claim for it"), "{said}");
}

#[test]
fn a_loop_is_shown_where_it_begins() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("loop.ndjson");
    let name = file.display();
    let any = "check --protocol tree --sites 2 --units 1 --from any --stale 2 --colours 3";
    let output = kofm(&format!("{any} --trace {name}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("from here on the same again, forever"));
    let replayed = kofm(&format!("replay {name}"));
    assert_eq!(replayed.status.code(), Some(0), "{}", text(&replayed.stderr));
    // A run that is cut short is not a loop.
    let cut = text(&std::fs::read(&file).unwrap());
    let cut: Vec<&str> = cut.lines().collect();
    std::fs::write(&file, cut[..cut.len() - 1].join("\n")).unwrap();
    assert_eq!(kofm(&format!("replay {name}")).status.code(), Some(1));
}

#[test]
fn bad_input_is_one_sentence() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sets");
    std::fs::create_dir_all(&folder).unwrap();
    let sets = |name: &str, content: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        format!("check --protocol quorum --sites 3 --units 1 --sets {}", path.display())
    };
    let quorum = "check --protocol quorum --sites 3 --units 1";
    let hungry = "check --protocol groups-hungry --topology examples/groups/cancel.toml";
    let fano = "check --protocol quorum --sites 7 --units 2 --sets examples/quorums/fano.txt";
    let cases = [
        (sets("apart", "0\n1\n2\n"), 65, "s0, s1 share no arbiter"),
        (fano.to_owned(), 65, "share no arbiter"),
        (sets("few", "0 1\n0 1\n"), 65, "2 request sets were given for 3 sites"),
        (sets("stranger", "0 1\n0 1\n0 9\n"), 65, "s9 is not in the cluster"),
        (sets("word", "0 1\n0 x\n0 1\n"), 64, "line 2: `x` is not a site"),
        (format!("{quorum} --sets no-such-file"), 64, "No such file"),
        (format!("{quorum} --sets a --construction grid"), 64, "cannot be used with"),
        (
            "check --protocol permission --sites 3 --units 1 --sets a".to_owned(),
            64,
            "asks no arbiters",
        ),
        (format!("{quorum} --from any"), 64, "does not claim to heal"),
        (format!("{quorum} --stale 3"), 64, "--from"),
        (format!("{quorum} --links sideways"), 64, "unordered"),
        (format!("{hungry} --arrive"), 64, "--endless"),
        (format!("{hungry} --endless --links unordered"), 64, "leave out --links"),
        (
            "check --protocol groups --topology examples/groups/cancel.toml --endless --arrive"
                .to_owned(),
            64,
            "name no group",
        ),
        ("check --protocol tree --sites 9 --units 1 --from any".to_owned(), 64, "lower --sites"),
        ("check --protocol tree --sites 1 --units 1 --from any".to_owned(), 64, "2 sites"),
    ];
    for (line, code, hint) in cases {
        let output = kofm(&line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(hint), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn request_sets_from_a_file_are_asked() {
    let line = "check --protocol quorum --sites 3 --units 1 --sets examples/quorums/three.txt";
    let found: Value = serde_json::from_slice(&kofm(&format!("{line} --json")).stdout).unwrap();
    assert_eq!((&found["violation"], &found["complete"]), (&Value::Null, &Value::Bool(true)));
    // With these sets each site asks one other site; broadcast has twice the messages.
    let sim = "sim --protocol quorum --sites 7 --units 1 --requests 300 --json";
    let mean = |line: &str| {
        let report: Value = serde_json::from_slice(&kofm(line).stdout).unwrap();
        assert_eq!(report["violations"], serde_json::json!([]));
        report["messages_per_grant"]["mean"].as_f64().unwrap()
    };
    let plane = mean(&format!("{sim} --sets examples/quorums/fano.txt"));
    let all = mean(&format!("{sim} --construction broadcast"));
    assert!(plane < all, "{plane} {all}");
}
