//! What commands do when nobody can read what they print.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use crate::harness::{Cluster, KOFM, exit_code, free_port, signal, until};

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

fn no_panic(output: &Output, args: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("panicked"), "{args:?}: {text}");
}

#[test]
fn commands_end_well_when_nobody_reads() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n[semaphores]\nslots = 1\n");
    let config = cluster.configs[0].display().to_string();
    let set = ["gang", "set", "one", "--member", "s0=gpu:1"];
    assert!(cluster.run(0, &set).status.success());
    let lists: [&[&str]; 17] = [
        &["status"],
        &["status", "--json"],
        &["queue"],
        &["history"],
        &["members"],
        &["explain", "slots"],
        &["top", "--once"],
        &["pool", "ls"],
        &["sem", "ls"],
        &["gang", "ls"],
        &["check-config", &config],
        &["completions", "bash"],
        &["man"],
        &["protocols"],
        &["quorums", "--sites", "9", "--units", "2"],
        &["--help"],
        &["run", "--help"],
    ];
    for args in lists {
        let output = cluster.command(0, args).stdout(full()).output().unwrap();
        no_panic(&output, args);
        assert_eq!(output.status.code(), Some(1), "{args:?} > /dev/full");
        assert!(!output.stderr.is_empty(), "{args:?}: it says why");
        let output = cluster.command(0, args).stdout(closed()).output().unwrap();
        no_panic(&output, args);
        assert_eq!(output.status.code(), Some(0), "{args:?} | true");
        assert!(output.stderr.is_empty(), "{args:?}: it is quiet");
    }
}

#[test]
fn talk_that_nobody_hears_changes_nothing() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n[semaphores]\nslots = 9\n");
    for (args, code) in [
        (&["acquire", "gpu:9"][..], 65),
        (&["acquire"], 64),
        (&["sem", "p", "slots"], 0),
        (&["run", "gpu", "--", "true"], 0),
    ] {
        for stderr in [full(), closed()] {
            let mut command = cluster.command(0, args);
            let status = command.stdout(Stdio::null()).stderr(stderr).status().unwrap();
            assert_eq!(status.code(), Some(code), "{args:?}");
        }
    }
    let mut holder = cluster.command(0, &["acquire", "gpu", "--ttl", "10m"]);
    assert!(holder.stdout(Stdio::null()).stderr(full()).status().unwrap().success());
    let mut waiting = cluster.command(0, &["acquire", "gpu", "--wait", "50ms"]);
    assert_eq!(waiting.stderr(full()).status().unwrap().code(), Some(124));
}

/// Nobody learns the lease's id, so nobody could give it back.
#[test]
fn a_lease_that_cannot_be_printed_is_given_back() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for (args, stdout) in [
        (&["acquire", "gpu", "--ttl", "10m"][..], full()),
        (&["acquire", "gpu", "--ttl", "10m"], closed()),
        (&["acquire", "gpu", "--ttl", "10m", "--json"], full()),
    ] {
        let output = cluster.command(0, args).stdout(stdout).output().unwrap();
        no_panic(&output, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(cluster.pool(0, "gpu")["free"], 1, "{args:?}");
    }
}

#[test]
fn servers_go_on_when_nobody_reads_their_first_line() {
    for (stdout, stderr) in [(full(), full()), (closed(), closed())] {
        let http = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(KOFM);
        command.args(["up", "--sites", "1", "--http", &http]).stdin(Stdio::null());
        let mut up = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        until("it answers", || {
            let addr = format!("http://{http}");
            let status = Command::new(KOFM).args(["status", "--addr", &addr]).output().unwrap();
            assert!(up.try_wait().unwrap().is_none(), "it has ended");
            status.status.success()
        });
        signal(&up, "TERM");
        assert_eq!(exit_code(&mut up), 0);
    }
}
