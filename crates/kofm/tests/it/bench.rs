//! `kofm bench`, for a moment.

use std::process::Command;

use serde_json::Value;

use crate::harness::KOFM;

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
