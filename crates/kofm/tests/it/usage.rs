//! Slips on the command line: told before anything is done.

use std::process::{Command, Output, Stdio};

use crate::harness::{Cluster, KOFM};

fn kofm(args: &[&str]) -> Output {
    let mut command = Command::new(KOFM);
    // Nobody is there: whoever asks all the same gets 69.
    command.env_remove("KOFM_TOKEN").env("KOFM_ADDR", "http://127.0.0.1:1");
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

/// The command ends with this code and says this.
fn refused(output: &Output, code: i32, words: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(words), "{text}");
}

#[test]
fn what_looks_like_a_number_of_units_is_no_name() {
    for units in ["-5", "1e3", "4.5", "0x10", "99999999999", "0", "1000001", "+x", ".5"] {
        let set = ["pool", "set", "p", "--units", units];
        refused(&kofm(&set), 65, "write a number from 1 to 1000000");
        let pool = format!("p={units}");
        refused(&kofm(&["up", "--http", "127.0.0.1:0", "--pool", &pool]), 65, "write a number");
    }
    let twice = ["up", "--http", "127.0.0.1:0", "--pool", "x=1", "--pool", "x=2"];
    refused(&kofm(&twice), 64, "twice");
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for (units, count) in [("3", 3), ("a", 1), ("0x10,4.5", 2)] {
        let made = cluster.json(0, &["pool", "set", "p", "--units", units, "--json"]);
        assert_eq!(made["units"], count, "{units}");
    }
}
