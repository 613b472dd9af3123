//! Slips on the command line: told before anything is done.

use std::process::{Command, Output, Stdio};

use crate::harness::{Cluster, KOFM, free_port, serve, temp_dir};

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
        refused(&kofm(&set), 65, "must be a number from 1 to 1000000");
        let pool = format!("p={units}");
        refused(&kofm(&["up", "--http", "127.0.0.1:0", "--pool", &pool]), 65, "must be a number");
    }
    let twice = ["up", "--http", "127.0.0.1:0", "--pool", "x=1", "--pool", "x=2"];
    refused(&kofm(&twice), 64, "twice");
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for (units, count) in [("3", 3), ("a", 1), ("0x10,4.5", 2)] {
        let made = cluster.json(0, &["pool", "set", "p", "--units", units, "--json"]);
        assert_eq!(made["units"], count, "{units}");
    }
}

#[test]
fn addresses_and_tokens_that_cannot_be_are_wrong_usage() {
    for addr in ["ftp://127.0.0.1:1", "unix:", "127.0.0.1", "http://a:b", "https://a:b"] {
        refused(&kofm(&["status", "--addr", addr]), 64, "https://HOST:PORT or unix:PATH");
    }
    refused(&kofm(&["status", "--addr", "https://127.0.0.1:1"]), 64, "KOFM_CA");
    refused(&kofm(&["status", "--addr", "HTTP://127.0.0.1:1"]), 69, "127.0.0.1:1");
    let status = |variable: &str, value: &str| {
        let mut command = Command::new(KOFM);
        command.args(["status"]).env("KOFM_ADDR", "http://127.0.0.1:1").env(variable, value);
        command.output().unwrap()
    };
    refused(&status("KOFM_TOKEN", "a\nb"), 64, "KOFM_TOKEN");
    refused(&status("KOFM_TOKEN", ""), 69, "127.0.0.1:1");
    let default = status("KOFM_ADDR", "");
    assert_ne!(default.status.code(), Some(64), "{default:?}");
}

#[test]
fn version_names_the_commit_and_the_wire() {
    let output = kofm(&["--version"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = format!("kofm {} (", env!("CARGO_PKG_VERSION"));
    let wire = format!("wire {})\n", kofm_net::wire::VERSION);
    let commit = text.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&wire)).unwrap();
    // Sources without git have no commit.
    let hex = commit.strip_prefix("commit ").and_then(|rest| rest.strip_suffix(", "));
    let good = hex.is_some_and(|hex| hex.len() >= 7 && hex.chars().all(|c| c.is_ascii_hexdigit()));
    assert!(good || commit.is_empty(), "{text}");
}

#[test]
fn a_bench_that_cannot_be_is_not_begun() {
    refused(&kofm(&["bench", "--sites", "1,0"]), 64, "--sites 0");
    refused(&kofm(&["bench", "--clients", "0"]), 64, "--clients 0");
    refused(&kofm(&["bench", "--time", "0"]), 64, "--time 0");
    refused(&kofm(&["bench", "--protocol", "nosuch"]), 64, "nosuch");
}

#[test]
fn hidden_commands_are_offered_nowhere() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = kofm(&["completions", shell]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("acquire") && !text.contains("guard"), "{shell}");
    }
}

#[test]
fn a_wrong_log_filter_is_told() {
    let mut command = Command::new(KOFM);
    // It ends at once, for there is no such address.
    command.args(["up", "--http", "192.0.2.1:1", "--insecure"]).env("KOFM_LOG", "kofm=loud");
    refused(&command.output().unwrap(), 71, "KOFM_LOG");
}

#[cfg(feature = "lab")]
#[test]
fn a_trace_that_is_a_directory_is_refused_before_the_work() {
    let sim = ["sim", "--protocol", "permission", "--sites", "3", "--units", "2"];
    refused(&kofm(&[&sim[..], &["--trace", "/tmp"]].concat()), 64, "directory");
}

#[test]
fn slips_are_told_before_the_work() {
    let run = ["run", "gpu", "--env", "X=@licence", "--", "true"];
    refused(&kofm(&run), 64, "licence is not asked for");
}

#[test]
fn a_refusal_is_told_in_words() {
    let dir = temp_dir();
    let tokens = dir.join("tokens");
    std::fs::write(&tokens, "secret\n").unwrap();
    let top = format!("token_file = \"{}\"\n", tokens.display());
    let http = free_port();
    let path = dir.join("site.toml");
    let text = format!(
        "cluster = \"t\"\nsite = \"a\"\nhttp = \"127.0.0.1:{http}\"\n{top}[pools]\ngpu = 1\n"
    );
    std::fs::write(&path, text).unwrap();
    let (mut site, addr) = serve(&path);
    let output = kofm(&["status", "--addr", &addr]);
    refused(&output, 77, "token");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains(['{', '"']), "{text}");
    site.kill().unwrap();
    site.wait().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

/// A socket that a dead site left is replaced; anything else at its place is left alone.
#[test]
fn a_unix_socket_takes_nothing_away() {
    let dir = temp_dir();
    let (socket, config) = (dir.join("sock"), dir.join("site.toml"));
    let text = format!(
        "site = \"a\"\nhttp = \"127.0.0.1:0\"\nsocket = \"{}\"\n[pools]\ngpu = 1\n",
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    std::fs::write(&socket, "mine").unwrap();
    let output = kofm(&["serve", "--config", config.to_str().unwrap()]);
    refused(&output, 71, "cannot listen on");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "mine");
    std::fs::remove_file(&socket).unwrap();
    for _ in 0..2 {
        let (mut site, _) = serve(&config);
        let addr = format!("unix:{}", socket.display());
        let output = kofm(&["run", "gpu", "--addr", &addr, "--", "true"]);
        site.kill().unwrap();
        site.wait().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_state_dir_of_other_members_is_refused() {
    let dir = temp_dir();
    let config = dir.join("site.toml");
    let text = format!(
        "site = \"a\"\nhttp = \"127.0.0.1:0\"\nstate_dir = \"{}\"\n[pools]\ngpu = 1\n",
        dir.join("state").display()
    );
    std::fs::write(&config, &text).unwrap();
    let (mut site, http) = serve(&config);
    let output = kofm(&["run", "gpu", "--addr", &http, "--", "true"]);
    site.kill().unwrap();
    site.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
    let ports = [free_port(), free_port()];
    let members = format!(
        "[members]\na = \"127.0.0.1:{}\"\nb = \"127.0.0.1:{}\"\n[pools]",
        ports[0], ports[1]
    );
    std::fs::write(&config, text.replace("[pools]", &members)).unwrap();
    let output = kofm(&["serve", "--config", config.to_str().unwrap()]);
    refused(&output, 71, "of a cluster of a, and its members are fixed");
    std::fs::remove_dir_all(dir).unwrap();
}

/// The words of all commands, from the help of each.
fn all_commands(words: &[String], list: &mut Vec<(Vec<String>, String)>) {
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.push("--help");
    let output = kofm(&args);
    assert!(output.status.success(), "{args:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let inside = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let lines = inside.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()) {
        if name != "help" {
            all_commands(&[words, &[name.to_owned()]].concat(), list);
        }
    }
    list.push((words.to_vec(), help));
}

#[test]
fn help_fits_80_columns_and_has_examples() {
    let mut list = Vec::new();
    all_commands(&[], &mut list);
    assert!(list.len() > 50, "{}", list.len());
    let no_example = ["protocols", "bench", "man"];
    for (words, help) in list {
        let wide = help.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{words:?}");
        let group = help.contains("\nCommands:\n");
        let example = help.contains("Examples:") || help.contains("xample");
        let without = words.last().is_some_and(|it| no_example.contains(&it.as_str()));
        assert!(group || example || without, "{words:?} has no example");
    }
}
