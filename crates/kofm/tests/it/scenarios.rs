//! What a user tries in the first minute.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Cluster, KOFM, exit_code, signal, temp_dir, until};

/// A pool of 8, a steady stream of 1-unit jobs, one 8-unit job: it runs, and nobody at its site
/// who came later runs before it.
#[test]
fn a_big_job_runs_among_small_ones() {
    let cluster = Arc::new(Cluster::start(3, "[pools]\ngpu = 8\n"));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..9)
        .map(|number| {
            let (cluster, stop) = (Arc::clone(&cluster), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let output = cluster.run(number % 3, &["run", "gpu:1", "--", "sleep", "0.05"]);
                    assert!(output.status.success(), "{output:?}");
                }
            })
        })
        .collect();
    until("the pool is busy", || cluster.pool(0, "gpu")["held"].as_u64() >= Some(4));
    let output = cluster.run(0, &["run", "gpu:8", "--owner", "big", "--", "true"]);
    stop.store(true, Ordering::Relaxed);
    assert!(output.status.success(), "{output:?}");
    for worker in workers {
        worker.join().unwrap();
    }
    let history = cluster.json(0, &["history", "--limit", "5000", "--json"]);
    let granted = history.as_array().unwrap().iter().filter(|it| it["event"] == "granted");
    let (big, small): (Vec<_>, Vec<_>) = granted.partition(|it| it["owner"] == "big");
    assert_eq!(big.len(), 1);
    // All sites are on this machine, so their clocks can be compared. A site that has not heard of
    // the big claim yet may give an older stamp to a younger one: once for each of its workers.
    let at = |it: &serde_json::Value| it["at_ms"].as_u64().unwrap();
    let asked = |it: &serde_json::Value| at(it) - it["waited_ms"].as_u64().unwrap();
    let passed = small.iter().filter(|it| asked(it) > asked(big[0]) && at(it) < at(big[0]));
    let passed = passed.count();
    assert!(passed <= 9, "{passed} small jobs that came later ran before the big one");
    cluster.all_free("gpu");
}

#[test]
fn two_clients_that_ask_for_3_of_4_take_turns() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 4\n");
    for _ in 0..5 {
        let mut both: Vec<_> = (0..2)
            .map(|site| {
                let args = ["run", "gpu:3", "--", "sleep", "0.1"];
                cluster.command(site, &args).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        for child in &mut both {
            assert_eq!(exit_code(child), 0);
        }
    }
    cluster.all_free("gpu");
}

#[test]
fn only_real_conflicts_wait() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\nlicence = 1\n");
    let licence = cluster.json(0, &["acquire", "licence", "--ttl", "5m", "--json"]);
    let mut a = cluster
        .command(1, &["acquire", "gpu:1", "licence:1", "--id", "a", "--json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("a waits", || cluster.json(0, &["queue", "--json"]).as_array().unwrap().len() == 1);
    let b = cluster.run(0, &["run", "gpu:1", "--wait", "30s", "--", "true"]);
    assert!(b.status.success(), "{b:?}");
    assert!(cluster.run(1, &["release", licence["id"].as_str().unwrap()]).status.success());
    assert_eq!(exit_code(&mut a), 0);
}

#[test]
fn a_killed_holder_gives_back_after_the_ttl() {
    let cluster = Cluster::start(3, "[pools]\ngpu = 4\n");
    let args = ["run", "gpu:3", "--ttl", "1s", "--owner", "victim", "--", "sleep", "1000"];
    let mut holder = cluster.command(1, &args).stderr(Stdio::null()).spawn().unwrap();
    until("it holds", || cluster.pool(2, "gpu")["held"] == 3);
    holder.kill().unwrap();
    holder.wait().unwrap();
    cluster.all_free("gpu");
    let history = cluster.json(0, &["history", "--json"]);
    let expired = history.as_array().unwrap().iter().find(|it| it["event"] == "expired");
    let expired = expired.expect("the cause is in the history");
    assert_eq!(expired["owner"], "victim");
    assert_eq!(expired["cause"], "not renewed in time");
    assert_eq!(expired["units"]["gpu"].as_array().unwrap().len(), 3, "which units it had");
    assert!(cluster.run(0, &["run", "gpu:4", "--wait", "60s", "--", "true"]).status.success());
}

#[test]
fn explain_names_the_blockers_and_the_impossible_fails_at_once() {
    let cluster = Cluster::start(3, "[pools]\ngpu = 4\n");
    let args = ["acquire", "gpu:3", "--owner", "alice", "--reason", "training", "--ttl", "5m"];
    let lease = cluster.run(0, &args);
    let lease = String::from_utf8(lease.stdout).unwrap();
    let mut waiting = cluster
        .command(1, &["acquire", "gpu:2", "--id", "mine", "--owner", "bob"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("bob waits", || cluster.json(2, &["queue", "--json"]).as_array().unwrap().len() == 1);
    let explained = cluster.run(2, &["explain", "mine"]);
    let text = String::from_utf8(explained.stdout).unwrap();
    assert!(text.contains("alice (training) holds 3 units of gpu at s0"), "{text}");
    assert_eq!(cluster.run(2, &["acquire", "gpu:99"]).status.code(), Some(65));
    assert_eq!(cluster.run(2, &["acquire", "nix"]).status.code(), Some(65));
    assert_eq!(cluster.run(2, &["acquire", "gpu:x"]).status.code(), Some(65));
    assert_eq!(cluster.run(2, &["acquire", "gpu:2", "--wait", "0"]).status.code(), Some(75));
    assert_eq!(cluster.run(2, &["acquire", "gpu:2", "--wait", "1s"]).status.code(), Some(124));
    assert_eq!(cluster.run(2, &["nonsense"]).status.code(), Some(64));
    assert!(cluster.run(2, &["release", lease.trim()]).status.success());
    assert!(cluster.run(2, &["release", lease.trim()]).status.success());
    assert_eq!(exit_code(&mut waiting), 0);
}

#[test]
fn a_demand_over_pools_of_several_protocols() {
    let mut pools = Vec::new();
    let mut demand = Vec::new();
    for kind in kofm_core::Kind::ALL {
        let profile = kind.profile();
        let shares = profile.serves == kofm_core::Service::Pool;
        if !profile.as_printed && profile.full_service && shares {
            let name = kind.name();
            pools.push(format!("[pools.p-{name}]\nunits = 2\nprotocol = \"{name}\"\n"));
            demand.push(format!("p-{name}:2"));
        }
    }
    let cluster = Arc::new(Cluster::start(3, &pools.concat()));
    let workers: Vec<_> = (0..6)
        .map(|number| {
            let (cluster, demand) = (Arc::clone(&cluster), demand.clone());
            std::thread::spawn(move || {
                for _ in 0..3 {
                    let mut args = vec!["run", "--wait", "80s"];
                    args.extend(demand.iter().map(String::as_str));
                    args.extend(["--", "true"]);
                    let output = cluster.run(number % 3, &args);
                    assert!(output.status.success(), "{output:?}");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    for name in &demand {
        cluster.all_free(name.trim_end_matches(":2"));
    }
}

#[test]
fn run_passes_on_codes_signals_and_variables() {
    let cluster = Cluster::start(1, "[pools.gpu-a]\nunits = [\"x0\", \"x1\"]\n");
    let script = "test \"$KOFM_UNITS_GPU_A\" = x0,x1 && test \"$CUDA\" = x0,x1 && \
                  test -n \"$KOFM_LEASE\" && test \"$KOFM_FENCE\" -gt 0 && exit 42";
    let args = ["run", "gpu-a:2", "--env", "CUDA=@gpu-a", "--", "sh", "-c", script];
    assert_eq!(cluster.run(0, &args).status.code(), Some(42));
    let args = ["run", "gpu-a", "--", "sh", "-c", "kill -9 $$"];
    assert_eq!(cluster.run(0, &args).status.code(), Some(137));
    assert_eq!(cluster.run(0, &["run", "gpu-a", "--", "/nowhere"]).status.code(), Some(127));
    assert_eq!(cluster.run(0, &["run", "gpu-a", "--", "/etc/passwd"]).status.code(), Some(126));
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = cluster
        .command(0, &["run", "gpu-a", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    signal(&child, "TERM");
    assert_eq!(exit_code(&mut child), 7);
    cluster.all_free("gpu-a");
    let nobody =
        Command::new(KOFM).args(["acquire", "x", "--addr", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(69));
}

#[test]
fn a_whole_cluster_in_one_process() {
    let mut up = Command::new(KOFM)
        .args(["up", "--sites", "2", "--pool", "a=2", "--pool", "b=x,y", "--http", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(up.stdout.take().unwrap()));
    let sites: Vec<String> = (0..2)
        .map(|_| lines.next().unwrap().unwrap().split_once(' ').unwrap().1.to_owned())
        .collect();
    let run =
        |site: usize, args: &[&str]| crate::harness::command(&sites[site], args).output().unwrap();
    assert!(run(1, &["run", "a:2", "b", "--", "true"]).status.success());
    assert!(run(0, &["pool", "set", "c", "--units", "3"]).status.success());
    assert!(run(1, &["run", "c:3", "--", "true"]).status.success());
    assert!(run(1, &["pool", "rm", "c"]).status.success());
    assert_eq!(run(0, &["acquire", "c"]).status.code(), Some(65));
    // Made smaller while in use: it drains.
    let lease = run(0, &["acquire", "a:2", "--ttl", "5m"]);
    let lease = String::from_utf8(lease.stdout).unwrap();
    assert!(run(1, &["pool", "set", "a", "--units", "1"]).status.success());
    assert_eq!(run(1, &["acquire", "a:2"]).status.code(), Some(65));
    assert!(run(1, &["release", lease.trim()]).status.success());
    until("it has drained", || {
        let pool = run(1, &["status", "a", "--json"]).stdout;
        let pool: serde_json::Value = serde_json::from_slice(&pool).unwrap();
        (pool["pools"][0]["units"].as_u64(), pool["pools"][0]["free"].as_u64())
            == (Some(1), Some(1))
    });
    signal(&up, "TERM");
    assert_eq!(exit_code(&mut up), 0);
}

#[test]
fn every_mistake_in_a_file_is_named() {
    let dir = temp_dir();
    let path = dir.join("bad.toml");
    std::fs::write(&path, "htp = 1\n[pools]\ngpu = 0\n").unwrap();
    let output = Command::new(KOFM).arg("check-config").arg(&path).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(text.contains("bad.toml:1: unknown key") && text.contains("bad.toml:3:"), "{text}");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/site.toml");
    std::fs::write(&path, "http = \"127.0.0.1:0\"\n[rota]\n[fixed_gangs]\n").unwrap();
    let output = Command::new(KOFM).arg("check-config").arg(&path).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("bad.toml:2: [rota] is an older name of [fixed_gangs]"), "{told}");
    for key in ["fixed_gangs", "rota"] {
        let text = format!(
            "cluster = \"lab\"\nsite = \"a\"\nhttp = \"127.0.0.1:7600\"\nstate_dir = \"state\"\n\
             [pools]\ngpu = 1\n\
             [members]\na = \"127.0.0.1:7700\"\nb = \"127.0.0.1:7701\"\n\
             [{key}.needs]\na = [\"bench\"]\n[{key}.gangs]\nmorning = [\"a\", \"b\"]\n"
        );
        std::fs::write(&path, text).unwrap();
        let output = Command::new(KOFM).arg("check-config").arg(&path).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("morning: fixed gang, groups-hungry, a, b"), "{output:?}");
    }
    let output = Command::new(KOFM).args(["check-config", example]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn without_the_token_nothing_is_answered_but_health() {
    let dir = temp_dir();
    let (tokens, config) = (dir.join("tokens"), dir.join("site.toml"));
    std::fs::write(&tokens, "old\nnew # since today\n").unwrap();
    let text = format!(
        "http = \"127.0.0.1:0\"\ntoken_file = \"{}\"\n[pools]\ngpu = 2\n",
        tokens.display()
    );
    std::fs::write(&config, text).unwrap();
    let (mut site, http) = crate::harness::serve(&config);
    let run = |token: Option<&str>, args: &[&str]| {
        let mut command = crate::harness::command(&http, args);
        match token {
            Some(token) => command.env("KOFM_TOKEN", token),
            None => command.env_remove("KOFM_TOKEN"),
        };
        command.output().unwrap()
    };
    for token in [None, Some("wrong"), Some("")] {
        for args in [&["acquire", "gpu"][..], &["status"], &["run", "gpu", "--", "true"]] {
            let output = run(token, args);
            assert_eq!(output.status.code(), Some(77), "{token:?} {args:?}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("KOFM_TOKEN"));
        }
    }
    for token in ["old", "new"] {
        assert!(run(Some(token), &["run", "gpu:2", "--", "true"]).status.success());
    }
    let address = http.strip_prefix("http://").unwrap();
    for (path, status) in
        [("/healthz", "200"), ("/readyz", "200"), ("/metrics", "200"), ("/v1/pools", "401")]
    {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let text = format!("GET {path} HTTP/1.1\r\nconnection: close\r\nhost: x\r\n\r\n");
        std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
        let answer = std::io::read_to_string(stream).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    site.kill().unwrap();
    site.wait().unwrap();
    // An empty file must not open the door.
    std::fs::write(&tokens, "# none\n").unwrap();
    let output = Command::new(KOFM).arg("check-config").arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    std::fs::remove_dir_all(dir).unwrap();
}
