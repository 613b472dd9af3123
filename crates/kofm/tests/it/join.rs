//! Clusters that begin with `kofm init` and grow with codes, and sites with certificates.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use bytes::BytesMut;
use kofm_net::authority;
use kofm_net::wire::{Call, Frame, Who};
use serde_json::Value;

use crate::harness::{KOFM, LONG, free_port, serve, temp_dir, until};

/// One machine: a directory, ports, and perhaps a site that runs.
struct Machine {
    name: &'static str,
    dir: PathBuf,
    port: u16,
    http: u16,
    site: Option<Child>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Machine {
    fn new(name: &'static str) -> Self {
        let (dir, port, http) = (temp_dir(), free_port(), free_port());
        Self { name, dir, port, http, site: None }
    }

    fn kill(&mut self) {
        if let Some(mut site) = self.site.take() {
            site.kill().ok();
            site.wait().ok();
        }
    }

    fn site_dir(&self) -> PathBuf {
        self.dir.join("kofm")
    }

    fn kofm(&self, args: &[&str]) -> Command {
        let mut command = Command::new(KOFM);
        command
            .args(args)
            .env("KOFM_ADDR", format!("http://127.0.0.1:{}", self.http))
            .env("KOFM_DIR", self.site_dir())
            .env("XDG_STATE_HOME", &self.dir)
            .env_remove("KOFM_TOKEN");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.kofm(args).output().unwrap()
    }

    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one sentence with which a command fails.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.trim().lines().count(), 1, "{text}");
        text
    }

    fn place(&self) -> [String; 4] {
        let [listen, http] = [self.port, self.http].map(|port| format!("127.0.0.1:{port}"));
        ["--listen".into(), listen, "--http".into(), http]
    }

    fn init(&self, cluster: &str) {
        let place = self.place();
        let mut args = vec!["init", "--cluster", cluster, "--site", self.name];
        args.extend(place.iter().map(String::as_str));
        self.done(&args);
    }

    fn serve(&mut self) {
        let path = self.site_dir().join("site.toml");
        self.site = Some(serve(&path).0);
    }

    fn spawn(&mut self, args: &[&str]) {
        let place = self.place();
        let mut command = self.kofm(args);
        command.args(&place).stdout(Stdio::null()).stderr(Stdio::null());
        self.site = Some(command.spawn().unwrap());
    }

    fn invite(&self) -> String {
        self.done(&["invite"]).trim().to_owned()
    }

    /// The members that this site sees in the epoch, by name.
    fn members(&self) -> Vec<String> {
        self.sites_that("member")
    }

    /// The sites that vote, by name.
    fn voters(&self) -> Vec<String> {
        self.sites_that("voter")
    }

    /// The sites of which `kofm members` says so, by name.
    fn sites_that(&self, are: &str) -> Vec<String> {
        let output = self.run(&["members", "--json"]);
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let list = list.as_array().cloned().unwrap_or_default();
        let list = list.iter().filter(|it| it[are] == true);
        list.map(|it| it["site"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn sees(&self, names: &[&str]) {
        until("the members agree", || self.members() == names);
    }
}

/// A cluster of `a` and `b`; `a` has founded it and votes. Its pool `gpu` has that many units.
fn two_sites(units: u32) -> [Machine; 2] {
    let [mut a, mut b] = ["a", "b"].map(Machine::new);
    a.init("lab");
    a.serve();
    a.sees(&["a"]);
    a.done(&["pool", "set", "gpu", "--units", &units.to_string()]);
    b.spawn(&["join", &a.invite(), "--site", "b"]);
    a.sees(&["a", "b"]);
    [a, b]
}

/// A cluster of three voters with a pool `gpu` of three units.
fn three_voters() -> [Machine; 3] {
    let [a, b] = two_sites(3);
    let mut c = Machine::new("c");
    c.spawn(&["join", &a.invite(), "--site", "c"]);
    until("three sites vote", || a.voters() == ["a", "b", "c"]);
    [a, b, c]
}

#[test]
fn a_cluster_grows_and_shrinks_by_one_command_each() {
    let (mut a, mut b, mut c) = (Machine::new("a"), Machine::new("b"), Machine::new("c"));
    a.init("lab");
    a.serve();
    a.sees(&["a"]);
    a.done(&["pool", "set", "gpu", "--units", "3"]);
    let held = a.done(&["acquire", "gpu", "--ttl", "5m", "--json"]);
    let held: Value = serde_json::from_str(&held).unwrap();
    b.spawn(&["join", &a.invite(), "--site", "b"]);
    a.sees(&["a", "b"]);
    b.sees(&["a", "b"]);
    until("b grants", || b.run(&["run", "gpu:2", "--", "true"]).status.success());
    // One that was away while another came finds it.
    b.kill();
    a.sees(&["a"]);
    c.spawn(&["join", &a.invite(), "--site", "c"]);
    a.sees(&["a", "c"]);
    b.serve();
    for machine in [&a, &b, &c] {
        machine.sees(&["a", "b", "c"]);
    }
    until("c grants", || c.run(&["run", "gpu:2", "--", "true"]).status.success());
    // So does the first site, whose file names none of the others.
    let lease = held["lease"]["id"].as_str().or_else(|| held["id"].as_str()).unwrap();
    a.done(&["renew", lease]);
    a.done(&["release", lease]);
    a.kill();
    a.serve();
    a.sees(&["a", "b", "c"]);
    until("b grants all", || b.run(&["run", "gpu:3", "--", "true"]).status.success());
    // A site that was removed does not come back.
    a.done(&["member", "rm", "c"]);
    a.sees(&["a", "b"]);
    c.kill();
    // It ends at once, or waits outside if it has not heard of its removal.
    let file = c.site_dir().join("site.toml");
    c.spawn(&["serve", "--config", file.to_str().unwrap()]);
    until("b grants all", || b.run(&["run", "gpu:3", "--", "true"]).status.success());
    a.sees(&["a", "b"]);
    assert!(!c.run(&["run", "gpu", "--wait", "1s", "--", "true"]).status.success());
    // The vote moves on; the last site keeps it.
    b.done(&["member", "rm", "a"]);
    b.sees(&["b"]);
    assert_eq!(b.voters(), ["b"]);
    until("b grants all", || b.run(&["run", "gpu:3", "--", "true"]).status.success());
    let text = b.refused(&["member", "rm", "b"]);
    assert!(text.contains("last"), "{text}");
    let text = b.refused(&["member", "rm", "nix"]);
    assert!(text.contains("not in this cluster"), "{text}");
}

#[test]
fn a_cluster_of_three_survives_its_first_site() {
    let [mut a, b] = two_sites(3);
    let mut c = Machine::new("c");
    assert_eq!(a.voters(), ["a"]);
    c.spawn(&["join", &a.invite(), "--site", "c"]);
    for machine in [&a, &b, &c] {
        machine.sees(&["a", "b", "c"]);
    }
    until("three sites vote", || b.voters() == ["a", "b", "c"]);
    a.kill();
    b.sees(&["b", "c"]);
    until("b grants all", || b.run(&["run", "gpu:3", "--", "true"]).status.success());
    until("c grants all", || c.run(&["run", "gpu:3", "--", "true"]).status.success());
    // Its disk is gone, too: it cannot found the cluster again.
    fs::remove_dir_all(a.site_dir().join("state")).unwrap();
    let path = a.site_dir().join("site.toml");
    let text = a.refused(&["serve", "--config", path.to_str().unwrap()]);
    assert!(text.contains("kofm member replace a"), "{text}");
}

#[test]
fn any_site_invites_so_a_cluster_outlives_the_machine_that_founded_it() {
    let [mut a, b] = two_sites(3);
    let mut c = Machine::new("c");
    // At a site that joined.
    c.spawn(&["join", &b.invite(), "--site", "c"]);
    until("three sites vote", || a.voters() == ["a", "b", "c"]);
    let stolen = a.dir.join("stolen");
    let copied = Command::new("cp").arg("-r").args([&a.site_dir(), &stolen]).status();
    assert!(copied.unwrap().success());
    a.kill();
    fs::remove_dir_all(a.site_dir()).unwrap();
    b.sees(&["b", "c"]);
    // Names that are taken, with the founder gone.
    let mut d = Machine::new("d");
    let code = c.invite();
    let text = d.refused(&["join", &code, "--site", "a", "--only"]);
    assert!(text.contains("another --site"), "{text}");
    d.spawn(&["join", &code, "--site", "d"]);
    for machine in [&b, &c, &d] {
        machine.sees(&["b", "c", "d"]);
    }
    until("a is given up", || c.run(&["member", "replace", "a"]).status.success());
    a.spawn(&["join", &d.invite(), "--site", "a"]);
    for machine in [&a, &b, &c, &d] {
        machine.sees(&["b", "c", "d", "a"]);
    }
    until("a grants all", || a.run(&["run", "gpu:3", "--", "true"]).status.success());
    // The old disk has a certificate of the authority and the authority's key. It is not a.
    a.kill();
    fs::remove_dir_all(a.site_dir()).unwrap();
    fs::rename(&stolen, a.site_dir()).unwrap();
    let mut old = a.kofm(&["serve", "--config"]);
    old.arg(a.site_dir().join("site.toml")).stdout(Stdio::null());
    let log = a.dir.join("old.log");
    a.site = Some(old.stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    let said = || fs::read_to_string(&log).unwrap_or_default();
    until("the old disk is refused", || said().contains("another key"));
    b.sees(&["b", "c", "d"]);
}

#[test]
fn an_older_copy_of_a_state_dir_is_refused_and_named() {
    let [a, mut b, c] = three_voters();
    b.kill();
    let copy = b.dir.join("copy");
    let copied = Command::new("cp").arg("-r").args([&b.site_dir(), &copy]).status();
    assert!(copied.unwrap().success());
    a.sees(&["a", "c"]);
    b.serve();
    a.sees(&["a", "b", "c"]);
    b.sees(&["a", "b", "c"]);
    b.kill();
    a.sees(&["a", "c"]);
    // A snapshot of before is restored.
    fs::remove_dir_all(b.site_dir()).unwrap();
    fs::rename(&copy, b.site_dir()).unwrap();
    b.serve();
    let said = |machine: &Machine| {
        let output = machine.run(&["members", "--json"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    until("the copy is named", || said(&b).contains("state_dir is an older copy"));
    a.sees(&["a", "c"]);
    assert!(!b.run(&["run", "gpu", "--wait", "1s", "--", "true"]).status.success());
    until("a grants all", || a.run(&["run", "gpu:3", "--", "true"]).status.success());
    // As the message says.
    b.kill();
    fs::remove_dir_all(b.site_dir()).unwrap();
    until("b is given up", || a.run(&["member", "replace", "b"]).status.success());
    b.spawn(&["join", &c.invite(), "--site", "b"]);
    a.sees(&["a", "c", "b"]);
}

#[test]
fn a_state_dir_of_another_cluster_or_site_is_refused() {
    let [mut a, mut b] = ["a", "b"].map(Machine::new);
    a.init("lab");
    a.serve();
    a.sees(&["a"]);
    a.kill();
    b.init("other");
    b.serve();
    b.sees(&["b"]);
    b.kill();
    let [ours, theirs] = [&a, &b].map(|it| it.site_dir().join("state"));
    let kept = a.dir.join("kept");
    fs::rename(&ours, &kept).unwrap();
    fs::rename(&theirs, &ours).unwrap();
    let file = a.site_dir().join("site.toml");
    let text = a.refused(&["serve", "--config", file.to_str().unwrap()]);
    assert!(text.contains("state_dir is of cluster other"), "{text}");
    // A cluster of the same name is another one all the same.
    let twin = Machine::new("a");
    twin.init("lab");
    fs::remove_dir_all(&ours).unwrap();
    fs::rename(&kept, &ours).unwrap();
    let path = |it: &Machine| it.site_dir().join("site.toml");
    let text = fs::read_to_string(path(&twin)).unwrap();
    let [foreign, own] = [&twin, &a].map(|it| it.site_dir().join("state").display().to_string());
    fs::write(path(&twin), text.replace(&foreign, &own)).unwrap();
    let text = twin.refused(&["serve", "--config", path(&twin).to_str().unwrap()]);
    assert!(text.contains("the key of site a is not the one"), "{text}");
    // It still is what it was.
    a.serve();
    a.sees(&["a"]);
}

#[test]
fn a_voter_with_a_wiped_disk_is_replaced() {
    let [a, mut b, mut c] = three_voters();
    let text = a.refused(&["member", "replace", "b"]);
    assert!(text.contains("site b answers"), "{text}");
    b.kill();
    a.sees(&["a", "c"]);
    fs::remove_dir_all(b.site_dir()).unwrap();
    until("b is given up", || a.run(&["member", "replace", "b"]).status.success());
    b.spawn(&["join", &a.invite(), "--site", "b"]);
    for machine in [&a, &b, &c] {
        machine.sees(&["a", "c", "b"]);
    }
    until("three sites vote", || b.voters() == ["a", "c", "b"]);
    // It counts.
    c.kill();
    until("b grants all", || b.run(&["run", "gpu:3", "--", "true"]).status.success());
}

#[test]
fn a_drained_site_takes_no_requests_until_it_is_undrained() {
    let [a, b] = two_sites(2);
    a.done(&["drain", "a"]);
    until("a takes no requests", || !a.run(&["acquire", "gpu", "--wait", "0"]).status.success());
    until("the vote moves", || b.voters() == ["b"]);
    until("b grants all", || b.run(&["run", "gpu:2", "--", "true"]).status.success());
    let text = a.refused(&["drain", "b"]);
    assert!(text.contains("last one that takes requests"), "{text}");
    assert!(a.refused(&["undrain", "b"]).contains("not draining"));
    a.done(&["undrain", "a"]);
    until("a grants all", || a.run(&["run", "gpu:2", "--", "true"]).status.success());
}

#[test]
fn a_site_moves_to_another_address() {
    let [a, mut b] = two_sites(2);
    b.kill();
    let (path, old) = (b.site_dir().join("site.toml"), b.port);
    b.port = free_port();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&format!(":{old}"), &format!(":{}", b.port))).unwrap();
    b.serve();
    b.sees(&["a", "b"]);
    a.sees(&["a", "b"]);
    until("b grants all", || b.run(&["run", "gpu:2", "--", "true"]).status.success());
}

#[test]
fn codes_that_are_not_good_say_what_to_do_and_change_nothing() {
    let (mut a, b) = (Machine::new("a"), Machine::new("b"));
    a.init("lab");
    let join = |code: &str| b.refused(&["join", code, "--site", "b", "--only"]);
    let code = a.invite();
    let text = join(&code);
    assert!(text.contains("kofm serve"), "the site does not run yet: {text}");
    a.serve();
    a.sees(&["a"]);
    let expired = a.done(&["invite", "--expires", "0s"]);
    for (bad, hint) in [
        (expired.trim(), "expired"),
        (&code[..code.len() - 2], "copy all of it"),
        ("hello", "copy all of it"),
    ] {
        let text = join(bad);
        assert!(text.contains(hint), "{text}");
    }
    let text = b.refused(&["join", &code, "--site", "a", "--only"]);
    assert!(text.contains("another --site"), "{text}");
    let text = b.refused(&["join", &code, "--site", "no name", "--only"]);
    assert!(text.contains("--site"), "{text}");
    assert!(!b.site_dir().exists(), "nothing was written");
    // The same code is still good, once.
    b.done(&["join", &code, "--site", "b", "--only"]);
    let text = join(&a.invite());
    assert!(text.contains("already"), "{text}");
    let other = Machine::new("other");
    let text = other.refused(&["join", &code, "--site", "x", "--only"]);
    assert!(text.contains("used before"), "{text}");
    // A certificate for another name.
    let path = b.site_dir().join("site.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"b\"", "\"z\"")).unwrap();
    let text = b.refused(&["serve", "--config", path.to_str().unwrap()]);
    assert!(text.contains("must name kofm://lab/z"), "{text}");
    // Another cluster at the same address.
    let code = a.invite();
    a.kill();
    let mut foreign = Machine::new("a");
    foreign.port = a.port;
    foreign.init("other");
    foreign.serve();
    foreign.sees(&["a"]);
    let text = other.refused(&["join", &code, "--site", "x", "--only"]);
    assert!(text.contains("not of the cluster lab"), "{text}");
    assert!(!other.site_dir().exists(), "nothing was written");
}

/// Files of a static cluster whose sites have certificates.
fn static_site(dir: &Path, name: &str, ca: &authority::Pair, ports: [u16; 2]) -> PathBuf {
    let pair = authority::request("test", name).unwrap();
    let cert = authority::issue(ca, "test", name, &[], &pair.public).unwrap();
    let path = |end: &str| dir.join(format!("{name}.{end}"));
    fs::write(path("pem"), cert).unwrap();
    fs::write(path("key"), pair.key).unwrap();
    fs::write(dir.join("ca.pem"), &ca.public).unwrap();
    let text = format!(
        "cluster = \"test\"\nsite = {name:?}\nhttp = \"127.0.0.1:0\"\nstate_dir = \"{}\"\n[tls]\n\
         ca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n[members]\na = \"127.0.0.1:{}\"\n\
         b = \"127.0.0.1:{}\"\n[pools]\ngpu = 2\n",
        path("state").display(),
        dir.join("ca.pem").display(),
        path("pem").display(),
        path("key").display(),
        ports[0],
        ports[1],
    );
    fs::write(path("toml"), text).unwrap();
    path("toml")
}

/// A process that ends with the test.
struct Site(Child, String);

impl Drop for Site {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Site {
    fn start(path: &PathBuf) -> Self {
        let (child, http) = serve(path);
        Self(child, http)
    }

    fn row(&self, site: &str) -> Value {
        let output = crate::harness::command(&self.1, &["members", "--json"]).output().unwrap();
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let list = list.as_array().cloned().unwrap_or_default();
        list.into_iter().find(|it| it["site"] == site).unwrap_or_default()
    }
}

#[test]
fn sites_with_certificates_talk_to_sites_of_their_authority_only() {
    let (dir, ports) = (temp_dir(), [free_port(), free_port()]);
    let ca = authority::create("test").unwrap();
    let a = Site::start(&static_site(&dir, "a", &ca, ports));
    let b = Site::start(&static_site(&dir, "b", &ca, ports));
    until("both are members", || a.row("b")["member"] == true && b.row("a")["member"] == true);
    let run = || crate::harness::command(&a.1, &["run", "gpu:2", "--", "true"]).output().unwrap();
    assert!(run().status.success());
    // A frame without TLS is not read.
    let mut stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let who = Who { name: "b".into(), incarnation: 9, life: 7, port: 1 };
    let call = Call { cluster: "test".into(), to: "a".into(), who };
    let mut out = BytesMut::new();
    Frame::Call(call).encode(&mut out);
    stream.write_all(&out).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    assert!(!answer.windows(4).any(|it| it == b"kofm"), "{answer:?}");
    // Nor is a site of another authority believed.
    drop(b);
    let other = temp_dir();
    let foreign = authority::create("test").unwrap();
    let b = Site::start(&static_site(&other, "b", &foreign, ports));
    until("the foreign site is refused", || {
        a.row("b")["trouble"].as_str().unwrap_or_default().contains("TLS")
    });
    assert_eq!(b.row("a")["member"], false);
    drop(b);
    let _b = Site::start(&dir.join("b.toml"));
    until("both are members", || a.row("b")["member"] == true);
    assert!(run().status.success());
    fs::remove_dir_all(dir).ok();
    fs::remove_dir_all(other).ok();
}
