//! The guard: with the wrapper stopped or the site gone, the command is dead before its units can
//! be anybody else's.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Cluster, KOFM, exit_code, signal, temp_dir, until};

/// Pools, each with its own chain of holders, at the same time.
const CHAINS: usize = 8;
/// Holders that are stopped, one after the other, in each.
const LINKS: usize = 26;

/// Each holder has a lock on a file while it lives. A holder that starts while the one before it
/// still lives cannot get the lock, and ends with 99.
#[test]
fn a_stopped_wrapper_never_overlaps_with_the_next_holder() {
    let pools: Vec<String> = (0..CHAINS).map(|i| format!("p{i} = 1\n")).collect();
    let cluster = Arc::new(Cluster::start(2, &format!("[pools]\n{}", pools.concat())));
    let dir = temp_dir();
    let chains: Vec<_> = (0..CHAINS)
        .map(|number| {
            let (cluster, dir) = (Arc::clone(&cluster), dir.clone());
            std::thread::spawn(move || chain(&cluster, &dir, number))
        })
        .collect();
    for chain in chains {
        chain.join().unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

fn chain(cluster: &Cluster, dir: &Path, number: usize) {
    let (pool, lock) = (format!("p{number}"), dir.join(format!("lock-{number}")));
    let mut stopped: Vec<Child> = Vec::new();
    for link in 0..LINKS {
        let started = dir.join(format!("started-{number}-{link}"));
        // TERM is ignored, so that the guard has to KILL.
        let script = format!(
            "trap '' TERM; exec 9>{}; flock -n 9 || exit 99; touch {}; sleep 1000",
            lock.display(),
            started.display()
        );
        let args = ["run", &pool, "--ttl", "500ms", "--", "sh", "-c", &script];
        let mut wrapper = cluster.command(link % 2, &args).stderr(Stdio::null()).spawn().unwrap();
        until("the next holder starts", || {
            if let Some(status) = wrapper.try_wait().unwrap() {
                panic!("chain {number}, link {link}: overlap or failure: {status}");
            }
            started.exists()
        });
        signal(&wrapper, "STOP");
        stopped.push(wrapper);
    }
    // The last one has nobody behind it: it would go on if it were woken in time.
    cluster.all_free(&pool);
    for mut wrapper in stopped {
        signal(&wrapper, "CONT");
        assert_eq!(exit_code(&mut wrapper), 76, "the wrapper says that its lease was lost");
    }
}

#[test]
fn a_command_ends_when_the_site_is_gone() {
    let mut cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let pid_file = dir.join("pid");
    // The grandchild leaves the group: it has to be found all the same.
    let script = format!("setsid sleep 1000 & echo $! > {}; wait", pid_file.display());
    let args = ["run", "gpu", "--ttl", "1s", "--", "sh", "-c", &script];
    let mut wrapper = cluster.command(0, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || std::fs::read_to_string(&pid_file).is_ok_and(|it| !it.is_empty()));
    let pid = std::fs::read_to_string(&pid_file).unwrap().trim().to_owned();
    cluster.sites[0].kill().unwrap();
    assert_eq!(exit_code(&mut wrapper), 76);
    let alive = Command::new("kill").args(["-0", &pid]).stderr(Stdio::null()).status().unwrap();
    assert!(!alive.success(), "the grandchild is dead, too");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_killed_wrapper_takes_its_command_along() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let pid_file = dir.join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid_file.display());
    let args = ["run", "gpu", "--ttl", "1m", "--", "sh", "-c", &script];
    let mut wrapper = cluster.command(0, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || std::fs::read_to_string(&pid_file).is_ok_and(|it| !it.is_empty()));
    let pid = std::fs::read_to_string(&pid_file).unwrap().trim().to_owned();
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
    until("the command is dead", || {
        let alive = Command::new("kill").args(["-0", &pid]).stderr(Stdio::null()).status();
        !alive.unwrap().success()
    });
    std::fs::remove_dir_all(dir).unwrap();
}

/// The guard of a wrapper, which is its only child.
fn guard_of(wrapper: &Child) -> String {
    let pid = wrapper.id();
    let mut children = String::new();
    until("the guard is there", || {
        let path = format!("/proc/{pid}/task/{pid}/children");
        children = std::fs::read_to_string(path).unwrap_or_default();
        !children.trim().is_empty()
    });
    children.trim().to_owned()
}

fn send(signal: &str, pid: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), pid]).status();
    assert!(sent.unwrap().success());
}

/// `pkill kofm` reaches the guard, too: it stays as long as its command does.
#[test]
fn signals_do_not_end_a_guard() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let path = |name: &str| dir.join(name).display().to_string();
    // It says which signals it was started with as ignored: none of those.
    let script = format!(
        "grep SigIgn /proc/self/status > {}; touch {}; until test -e {}; do sleep 0.05; done",
        path("ignored"),
        path("started"),
        path("go")
    );
    let args = ["run", "gpu", "--ttl", "1m", "--", "sh", "-c", &script];
    let mut wrapper = cluster.command(0, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || dir.join("started").exists());
    let guard = guard_of(&wrapper);
    for name in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] {
        send(name, &guard);
        // Whoever asks now gets nothing, for the command lives.
        let asked = cluster.run(0, &["acquire", "gpu", "--wait", "0"]);
        assert_eq!(asked.status.code(), Some(75), "after {name}");
        assert_eq!(guard_of(&wrapper), guard, "after {name}");
    }
    std::fs::write(dir.join("go"), "").unwrap();
    assert_eq!(exit_code(&mut wrapper), 0);
    let ignored = std::fs::read_to_string(dir.join("ignored")).unwrap();
    let mask = u64::from_str_radix(ignored.trim().trim_start_matches("SigIgn:").trim(), 16);
    // HUP, INT, QUIT, USR1, USR2, TERM.
    assert_eq!(mask.unwrap() & 0x4a07 & !inherited(), 0, "the command hears them");
    cluster.all_free("gpu");
    std::fs::remove_dir_all(dir).unwrap();
}

/// What this test itself was started with as ignored.
fn inherited() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

/// Signals come more often than the lease has to be renewed.
#[test]
fn signals_do_not_put_off_renewal() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let path = |name: &str| dir.join(name).display().to_string();
    let script = format!(
        "trap : HUP; touch {}; until test -e {}; do sleep 0.05; done",
        path("started"),
        path("go")
    );
    let args = ["run", "gpu", "--ttl", "2s", "--", "sh", "-c", &script];
    let mut wrapper = cluster.command(0, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || dir.join("started").exists());
    // Every 20 ms, for more than two lives of the lease.
    for _ in 0..250 {
        signal(&wrapper, "HUP");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(dir.join("go"), "").unwrap();
    assert_eq!(exit_code(&mut wrapper), 0);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Each command has a lock on a file while anything of it lives.
#[test]
fn a_killed_guard_gives_nothing_away_while_its_command_lives() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let (lock, started) = (dir.join("lock"), dir.join("started"));
    let script = format!(
        "trap '' TERM; exec 9>{}; flock -n 9 || exit 99; setsid sleep 1000 & touch {}; sleep 1000",
        lock.display(),
        started.display()
    );
    let args = ["run", "gpu", "--ttl", "1m", "--", "sh", "-c", &script];
    let mut wrapper = cluster.command(0, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it runs", || started.exists());
    let free = format!("exec 9>{}; flock -n 9 || exit 99", lock.display());
    let next = ["run", "gpu", "--", "sh", "-c", &free];
    let mut next = cluster.command(0, &next).stderr(Stdio::null()).spawn().unwrap();
    until("the next one waits", || cluster.pool(0, "gpu")["waiting"] == 1);
    send("KILL", &guard_of(&wrapper));
    assert_eq!(exit_code(&mut wrapper), 71, "the wrapper says that its guard is gone");
    assert_eq!(exit_code(&mut next), 0, "nothing of the first lives when the next starts");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Stopped while it waits, granted and expired meanwhile: it must not start its command late.
#[test]
fn a_wrapper_that_slept_through_its_grant_does_not_start() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    let file = dir.join("ran");
    let holder = cluster.json(0, &["acquire", "gpu", "--ttl", "5m", "--json"]);
    let path = file.display().to_string();
    let args = ["run", "gpu", "--ttl", "500ms", "--", "touch", &path];
    let mut wrapper = cluster.command(0, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it waits", || cluster.pool(0, "gpu")["waiting"] == 1);
    signal(&wrapper, "STOP");
    assert!(cluster.run(0, &["release", holder["id"].as_str().unwrap()]).status.success());
    // The next in line gets it when the grant to the sleeper has expired.
    assert!(cluster.run(0, &["run", "gpu", "--wait", "60s", "--", "true"]).status.success());
    signal(&wrapper, "CONT");
    assert_eq!(exit_code(&mut wrapper), 76);
    assert!(!file.exists());
    std::fs::remove_dir_all(dir).unwrap();
}

/// A signal that comes before the site has answered: nothing is left behind.
#[test]
fn whoever_is_interrupted_while_it_asks_holds_nothing() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    for args in [
        &["acquire", "gpu", "--ttl", "10m"][..],
        &["run", "gpu", "--ttl", "10m", "--", "sleep", "1000"],
    ] {
        signal(&cluster.sites[0], "STOP");
        let mut asking = cluster.command(0, args).stderr(Stdio::null()).spawn().unwrap();
        until("it catches TERM", || {
            let path = format!("/proc/{}/status", asking.id());
            let status = std::fs::read_to_string(path).unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << 14 != 0
        });
        signal(&asking, "TERM");
        signal(&cluster.sites[0], "CONT");
        assert_eq!(exit_code(&mut asking), 143, "{args:?}");
        assert_eq!(cluster.pool(0, "gpu")["free"], 1, "{args:?}");
    }
}

/// A command that starts with SIGINT at its default, even if this test ignores it, as under `nohup`
/// or in the background of a script: a shell cannot trap a signal that it was started to ignore.
fn interruptible(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", program]);
    command
}

/// On a terminal, in the background: the interrupt was sent to the wrapper alone.
#[test]
fn an_interrupt_reaches_a_command_in_the_background() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    std::fs::write(
        dir.join("command"),
        "trap 'exit 7' INT; touch started; while :; do sleep 0.05; done",
    )
    .unwrap();
    let jobs = format!(
        "set -m; {KOFM} run gpu -- sh command & until test -e started; do sleep 0.05; done; \
         kill -INT $!; wait $!"
    );
    // It makes a terminal, and ends with the code of what it runs.
    let mut script = interruptible("script");
    script.args(["-qec", &jobs, "/dev/null"]).current_dir(&dir).stdin(Stdio::null());
    script.env("KOFM_ADDR", &cluster.http[0]).env("SHELL", "/bin/sh").stdout(Stdio::null());
    assert_eq!(exit_code(&mut script.spawn().unwrap()), 7);
    cluster.all_free("gpu");
    std::fs::remove_dir_all(dir).unwrap();
}

/// On a terminal, in the foreground: what is typed reaches the command without kofm, what is sent
/// to kofm does not.
#[test]
fn an_interrupt_reaches_a_command_in_the_foreground_once() {
    let cluster = Cluster::start(1, "[pools]\ngpu = 1\n");
    let dir = temp_dir();
    std::fs::write(
        dir.join("command"),
        "n=0; trap 'n=$((n+1)); echo $n > count' INT; trap 'exit $n' TERM; touch started; \
         while :; do sleep 0.05; done",
    )
    .unwrap();
    let mut script = interruptible("script");
    let job = format!("echo $$ > wrapper; exec {KOFM} run gpu -- sh command");
    script.args(["-qec", &job, "/dev/null"]).current_dir(&dir).stdin(Stdio::piped());
    script.env("KOFM_ADDR", &cluster.http[0]).env("SHELL", "/bin/sh").stdout(Stdio::null());
    let mut script = script.spawn().unwrap();
    until("the command runs", || dir.join("started").exists());
    let wrapper = std::fs::read_to_string(dir.join("wrapper")).unwrap();
    let send = |name: &str| {
        let sent = Command::new("kill").args([&format!("-{name}"), wrapper.trim()]).status();
        assert!(sent.unwrap().success());
    };
    let counted = |times: &str| {
        let count = || std::fs::read_to_string(dir.join("count")).unwrap_or_default();
        until("it is interrupted", || count().trim() == times);
    };
    std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"\x03").unwrap();
    counted("1");
    send("INT");
    counted("2");
    send("TERM");
    assert_eq!(exit_code(&mut script), 2);
    cluster.all_free("gpu");
    std::fs::remove_dir_all(dir).unwrap();
}
