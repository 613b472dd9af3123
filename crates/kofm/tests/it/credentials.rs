//! Principals without a token: users of a Unix socket, client certificates, networks of nodes, and
//! the command of `kofm run`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kofm_net::authority;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;

use crate::harness::{Cluster, KOFM, free_port, serve, temp_dir};

/// A client without the credentials of this process.
fn kofm(addr: &str, args: &[&str]) -> Command {
    let mut command = Command::new(KOFM);
    for name in ["KOFM_TOKEN", "KOFM_CA", "KOFM_CERT", "KOFM_KEY"] {
        command.env_remove(name);
    }
    command.args(args).env("KOFM_ADDR", addr).env("XDG_STATE_HOME", "/dev/null");
    command
}

fn run(addr: &str, token: &str, args: &[&str]) -> Output {
    kofm(addr, args).env("KOFM_TOKEN", token).output().unwrap()
}

fn refused(output: &Output, text: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert!(said.contains(text), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

/// The administrator's token of a cluster that had no principals.
fn administrator(http: &str) -> String {
    good(&kofm(http, &["token", "create", "admin", "--allow", "admin:*"]).output().unwrap())
}

#[test]
fn a_user_of_the_socket_is_a_principal_until_it_is_revoked() {
    let dir = temp_dir();
    let socket = dir.join("kofm.sock");
    let top = format!("socket = {:?}\n", socket.display());
    let cluster = Cluster::start_as(1, &top, "[pools]\ngpu = 2\n");
    let (http, unix) = (cluster.http[0].as_str(), format!("unix:{}", socket.display()));
    let admin = administrator(http);
    let own = dir.metadata().unwrap().uid().to_string();
    let me = |args: &[&str]| kofm(&unix, args).output().unwrap();
    refused(&me(&["status"]), &format!("no principal for `user {own}`"));
    let create = ["token", "create", "me", "--user", &own, "--allow", "read,acquire:gpu", "--json"];
    let made: Value = serde_json::from_str(&good(&run(http, &admin, &create))).unwrap();
    assert_eq!(
        (made["credential"].as_str(), made.get("token")),
        (Some(&*format!("user {own}")), None)
    );
    good(&me(&["run", "gpu", "--", "true"]));
    refused(&me(&["pool", "rm", "gpu"]), "`admin` on pool `gpu`");
    // The same user over TCP has nothing to show.
    refused(&kofm(http, &["status"]).output().unwrap(), "token missing");
    // One user is one principal.
    let twice = run(http, &admin, &["token", "create", "other", "--user", &own]);
    assert_eq!(twice.status.code(), Some(75), "{twice:?}");
    let history = good(&run(http, &admin, &["audit", "--principal", "me", "--json"]));
    assert!(history.contains(&format!("unix:uid={own}")), "{history}");
    good(&run(http, &admin, &["token", "revoke", "me"]));
    refused(&me(&["status"]), "token missing");
    // A token goes before the user.
    good(&run(&unix, &admin, &["token", "ls"]));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_command_of_run_has_a_token_for_its_lease_only() {
    let cluster = Cluster::start(2, "[pools]\ngpu = 2\nlicence = 1\n");
    cluster.members(0, 2);
    let admin = administrator(&cluster.http[0]);
    let create = ["token", "create", "ci", "--allow", "read,acquire:*"];
    let ci = good(&run(&cluster.http[0], &admin, &create));
    let script = |script: &str| {
        let script = script.replace("KOFM ", &format!("{KOFM} "));
        run(&cluster.http[0], &ci, &["run", "gpu", "--", "sh", "-c", &script])
    };
    let token = good(&script("echo $KOFM_TOKEN"));
    assert!(token.starts_with("kofm_lease_L") && !token.contains(&ci), "{token}");
    // At both sites.
    let elsewhere = format!("KOFM renew --addr {} $KOFM_LEASE", cluster.http[1]);
    for renews in ["KOFM renew $KOFM_LEASE", &elsewhere] {
        good(&script(renews));
    }
    for (wrong, text) in [
        ("KOFM acquire licence", "is for lease `L0-"),
        ("KOFM pool rm licence", "lacks `admin` on pool `licence`"),
        ("KOFM token ls", "lacks `admin`"),
        ("KOFM members", "lacks `read`"),
        ("KOFM sem v x", "lacks `release-own`"),
    ] {
        refused(&script(wrong), text);
    }
    let held = run(&cluster.http[0], &ci, &["acquire", "gpu", "--ttl", "10m", "--json"]);
    let held: Value = serde_json::from_str(&good(&held)).unwrap();
    let (id, name) = (held["id"].as_str().unwrap(), held["name"].as_str().unwrap());
    // Its own lease and no other one; lists have no other one either.
    refused(&script(&format!("KOFM renew {id}")), "is for lease");
    let list = good(&script("KOFM status --json"));
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["leases"].as_array().unwrap().len(), 1, "{list}");
    assert_ne!(list["leases"][0]["name"], held["name"], "{list}");
    // Neither the name of a lease, which lists show, nor a guess is a token.
    for wrong in [name.to_owned(), format!("{name}00000000000000000000000000000000")] {
        let wrong = run(&cluster.http[0], &format!("kofm_lease_{wrong}"), &["release", id]);
        refused(&wrong, "token rejected");
    }
    let token = format!("kofm_lease_{id}");
    good(&run(&cluster.http[1], &token, &["renew", id]));
    good(&run(&cluster.http[0], &admin, &["token", "revoke", "ci"]));
    for http in &cluster.http {
        refused(&run(http, &token, &["renew", id]), "whose principal was revoked");
    }
}

/// The answer of a site to a call of the `FleetLock` protocol.
fn fleet(http: &str, path: &str, group: &str) -> String {
    let body = format!("{{\"client_params\":{{\"id\":\"n1\",\"group\":\"{group}\"}}}}");
    let mut stream = TcpStream::connect(http.trim_start_matches("http://")).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nfleet-lock-protocol: true\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn fleetlock_nodes_are_admitted_by_the_rule_of_their_network() {
    let cluster = Cluster::start(1, "[pools]\nreboot = 1\ngpu = 2\n");
    let http = cluster.http[0].as_str();
    let admin = administrator(http);
    assert!(fleet(http, "/v1/pre-reboot", "reboot").starts_with("HTTP/1.1 401"));
    for (name, network) in [("nodes", "127.0.0.0/8"), ("others", "10.0.0.0/8")] {
        let allow = ["--allow", "acquire:reboot"];
        let create = [&["token", "create", name, "--network", network], &allow[..]].concat();
        good(&run(http, &admin, &create));
    }
    for _ in 0..2 {
        let taken = fleet(http, "/v1/pre-reboot", "reboot");
        assert!(taken.starts_with("HTTP/1.1 200"), "{taken}");
    }
    let list = good(&run(http, &admin, &["status", "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["leases"][0]["principal"], "nodes", "{list}");
    assert!(fleet(http, "/v1/steady-state", "reboot").starts_with("HTTP/1.1 200"));
    assert!(fleet(http, "/v1/pre-reboot", "gpu").starts_with("HTTP/1.1 403"));
    // The network is for this protocol alone.
    refused(&kofm(http, &["acquire", "reboot"]).output().unwrap(), "token missing");
    good(&run(http, &admin, &["token", "revoke", "nodes"]));
    assert!(fleet(http, "/v1/pre-reboot", "reboot").starts_with("HTTP/1.1 401"));
    let wrong = run(http, &admin, &["token", "create", "x", "--network", "10.0.0.0/40"]);
    assert_eq!(wrong.status.code(), Some(65), "{wrong:?}");
}

/// A certificate of its own, valid until the end of this year.
fn certificate(dir: &Path, name: &str, year: i32) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_after = date_time_ymd(year, 12, 31);
    let made = params.self_signed(&key).unwrap();
    fs::write(dir.join(format!("{name}.pem")), made.pem()).unwrap();
    fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// A site with HTTPS, without a token file.
fn https_site(dir: &Path) -> (std::process::Child, String) {
    let pair = authority::create("t").unwrap();
    let request = authority::request("t", "a").unwrap();
    let hosts = ["127.0.0.1".to_owned()];
    let issued = authority::issue(&pair, "t", "a", &hosts, &request.public).unwrap();
    for (name, text) in
        [("ca.pem", &pair.public), ("site.pem", &issued), ("site.key", &request.key)]
    {
        fs::write(dir.join(name), text).unwrap();
    }
    let (config, port) = (dir.join("site.toml"), free_port());
    let text = format!(
        "site = \"a\"\nhttp = \"127.0.0.1:{port}\"\n[pools]\nx = 2\n[https]\ncert = {:?}\n\
         key = {:?}\n",
        dir.join("site.pem").display(),
        dir.join("site.key").display()
    );
    fs::write(&config, text).unwrap();
    (serve(&config).0, format!("https://127.0.0.1:{port}"))
}

#[test]
fn a_client_certificate_is_a_principal_by_its_key() {
    let dir = temp_dir();
    let (mut site, https) = https_site(&dir);
    let path = |name: &str| dir.join(name).display().to_string();
    for (name, year) in [("build", 2999), ("old", 2001), ("other", 2999)] {
        certificate(&dir, name, year);
    }
    let as_root = |token: &str, args: &[&str]| {
        kofm(&https, args).env("KOFM_CA", path("ca.pem")).env("KOFM_TOKEN", token).output().unwrap()
    };
    let show = |name: &str, args: &[&str]| {
        let mut command = kofm(&https, args);
        command.env("KOFM_CA", path("ca.pem")).env("KOFM_CERT", path(&format!("{name}.pem")));
        command.env("KOFM_KEY", path(&format!("{name}.key"))).output().unwrap()
    };
    let admin = good(&as_root("", &["token", "create", "admin", "--allow", "admin:*"]));
    for name in ["build", "old"] {
        let file: PathBuf = dir.join(format!("{name}.pem"));
        let file = file.to_str().unwrap();
        let create = ["token", "create", name, "--certificate", file, "--allow", "read,acquire:x"];
        assert_eq!(good(&as_root(&admin, &create)), "");
    }
    good(&show("build", &["run", "x", "--", "true"]));
    refused(&show("build", &["pool", "rm", "x"]), "principal `build` lacks `admin` on pool `x`");
    refused(&show("old", &["status"]), "the client certificate has expired");
    refused(&show("other", &["status"]), "no principal for `certificate ");
    // Without a certificate, clients are told apart as before.
    good(&as_root(&admin, &["status"]));
    // A certificate without its key, or with another one, is wrong usage.
    let mut alone = kofm(&https, &["status"]);
    alone.env("KOFM_CA", path("ca.pem")).env("KOFM_CERT", path("build.pem"));
    assert_eq!(alone.output().unwrap().status.code(), Some(64));
    let crossed = alone.env("KOFM_KEY", path("other.key")).output().unwrap();
    assert_eq!(crossed.status.code(), Some(64), "{crossed:?}");
    let wrong = ["token", "create", "no", "--certificate", &path("build.key")];
    assert_eq!(as_root(&admin, &wrong).status.code(), Some(65));
    good(&as_root(&admin, &["token", "revoke", "build"]));
    refused(&show("build", &["status"]), "no principal for `certificate ");
    site.kill().unwrap();
    site.wait().unwrap();
    fs::remove_dir_all(dir).unwrap();
}
