//! `kofm bench`, for a moment.

use std::process::Command;

use serde_json::Value;

use crate::harness::{KOFM, temp_dir};

#[test]
fn a_bench_says_what_its_pairs_are() {
    for (more, confirmed) in [("", false), ("--shared", false), ("--confirm", true)] {
        let line = "bench --clients 3 --sites 2 --units plenty,one --time 50ms --json";
        let words = line.split(' ').chain(more.split_whitespace());
        let output = Command::new(KOFM).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more}: {text}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["confirmed"], confirmed, "{more}");
        let pairs = report["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), 2, "{more}");
        for row in pairs {
            assert!(row["per_second"].as_f64().unwrap() > 0.0, "{more}: {row}");
            assert!(row["of_echo"].as_f64().unwrap() > 0.0, "{more}: {row}");
        }
        assert_eq!(report["handover"].as_array().unwrap().len(), 1, "{more}");
    }
    let words = "bench --clients 1 --sites 1 --units plenty --time 20ms --via http --json";
    let output = Command::new(KOFM).args(words.split(' ')).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["confirmed"], true);
}

#[test]
fn a_comparison_measures_the_floor_and_kofm_and_counts_units() {
    let plot = temp_dir().join("rates.svg");
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let redis = if has("redis-server") { ",redis" } else { "" };
    let line = format!(
        "bench --against floor,kofm{redis} --clients 1,4 --cells uncontended,one,mixed \
         --time 20ms --json --plot {}",
        plot.display()
    );
    let output = Command::new(KOFM).args(line.split_whitespace()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut rows = vec!["floor", "kofm", "kofm-http", "kofm-permission", "kofm-single"];
    rows.extend((!redis.is_empty()).then_some("redis"));
    let cells = report["cells"].as_array().unwrap();
    // One client has no rival: it is measured in one cell only.
    assert_eq!(cells.len(), rows.len() * 4);
    for cell in cells {
        assert!(rows.contains(&cell["row"].as_str().unwrap()), "{cell}");
        assert!(cell["per_second"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["of_floor"].as_f64().unwrap() > 0.0, "{cell}");
        assert_eq!(cell["errors"].as_array().unwrap().len(), 0, "{cell}");
        let round = &cell["rounds"][0];
        let (held, units) = (&round["held_max"], &round["units"]);
        assert!((1..=units.as_i64().unwrap()).contains(&held.as_i64().unwrap()), "{cell}");
        assert!(round["cpu_us_per_pair"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(round["latency_us"]["p99"].as_u64().unwrap() > 0, "{cell}");
    }
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("kofm x3, permission"), "{picture}");
    std::fs::remove_dir_all(plot.parent().unwrap()).unwrap();
}

#[test]
fn a_comparison_refuses_what_it_cannot_measure() {
    for (line, part) in [
        ("--against nonsense", "invalid value 'nonsense'"),
        ("--against --units one", "cannot be used with"),
        ("--cells one", "--against"),
        ("--against floor --rounds 0", "--rounds 0: write 1 to 100"),
        ("--against floor --clients 0", "--clients 0"),
        ("--against floor --time 0", "write 10ms to 60s"),
        ("--against floor --clients 1 --cells one", "no cell is left"),
        ("--against floor --plot /no/such/folder/x.svg", "/no/such/folder/x.svg"),
    ] {
        let words = ["bench"].into_iter().chain(line.split(' '));
        let output = Command::new(KOFM).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{line}: {text}");
        assert!(text.contains(part) && output.stdout.is_empty(), "{line}: {text}");
    }
    let mut command = Command::new(KOFM);
    command.args(["bench", "--against", "etcd"]).env("PATH", "/no/such/folder");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{text}");
    assert!(text.contains("apt install etcd-server"), "{text}");
}
