//! HTTPS on the port for clients, and the sentences for certificates that do not fit.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use kofm_net::authority::{self, Pair};
use rcgen::{CertificateParams, Issuer, KeyPair};

use crate::harness::{KOFM, free_port, serve, signal, temp_dir, until};

/// A site with a certificate for clients.
struct Machine {
    dir: PathBuf,
    port: u16,
    authority: Pair,
    site: Option<Child>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut site) = self.site.take() {
            site.kill().ok();
            site.wait().ok();
        }
    }
}

impl Machine {
    /// Serves on `ip` with a certificate for these hosts.
    fn start(ip: &str, hosts: &[&str]) -> Self {
        let (dir, port) = (temp_dir(), free_port());
        let authority = authority::create("t").unwrap();
        let mut machine = Self { dir, port, authority, site: None };
        fs::write(machine.dir.join("ca.pem"), &machine.authority.public).unwrap();
        fs::write(machine.dir.join("tokens"), "secret\n").unwrap();
        machine.certify(hosts);
        let config = machine.dir.join("site.toml");
        let path = |name: &str| machine.dir.join(name).display().to_string();
        let text = format!(
            "site = \"a\"\nhttp = \"{ip}:{port}\"\ntoken_file = {:?}\n[pools]\nx = 2\n\
             [https]\ncert = {:?}\nkey = {:?}\n",
            path("tokens"),
            path("site.pem"),
            path("site.key")
        );
        fs::write(&config, text).unwrap();
        machine.site = Some(serve(&config).0);
        machine
    }

    /// Writes a fresh certificate and key.
    fn certify(&self, hosts: &[&str]) {
        let Pair { public, key } = authority::request("t", "a").unwrap();
        let hosts: Vec<String> = hosts.iter().map(|it| (*it).to_owned()).collect();
        let certificate = authority::issue(&self.authority, "t", "a", &hosts, &public).unwrap();
        fs::write(self.dir.join("site.pem"), certificate).unwrap();
        fs::write(self.dir.join("site.key"), key).unwrap();
    }

    fn kofm(&self, addr: &str, ca: Option<&str>, args: &[&str]) -> Output {
        let addr = addr.replace("PORT", &self.port.to_string());
        let mut command = Command::new(KOFM);
        command.args(args).env("KOFM_ADDR", addr).env("KOFM_TOKEN", "secret").env_remove("KOFM_CA");
        if let Some(ca) = ca {
            command.env("KOFM_CA", self.dir.join(ca));
        }
        command.output().unwrap()
    }

    fn hang_up(&self) {
        signal(self.site.as_ref().unwrap(), "HUP");
    }

    /// The one sentence of a client that cannot use an address.
    fn unusable(&self, addr: &str, ca: Option<&str>) -> String {
        let output = self.kofm(addr, ca, &["status"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{text}");
        assert_eq!(text.trim().lines().count(), 1, "{text}");
        text
    }
}

const HTTPS: &str = "https://127.0.0.1:PORT";

#[test]
fn clients_use_https_and_on_the_machine_http() {
    let machine = Machine::start("127.0.0.1", &["127.0.0.1"]);
    for (addr, ca) in [(HTTPS, Some("ca.pem")), ("http://127.0.0.1:PORT", None)] {
        let args = ["run", "x:2", "--", "sh", "-c", "echo $KOFM_UNITS_X"];
        let output = machine.kofm(addr, ca, &args);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"0,1\n");
    }
}

#[test]
fn a_certificate_that_does_not_fit_gets_a_sentence() {
    let machine = Machine::start("0.0.0.0", &["127.0.0.1"]);
    let other = authority::create("t").unwrap();
    fs::write(machine.dir.join("other.pem"), other.public).unwrap();
    let ca = Some("ca.pem");
    assert!(machine.unusable(HTTPS, Some("other.pem")).contains("of another authority"));
    let text = machine.unusable("https://127.0.0.2:PORT", ca);
    assert!(text.contains("not for `127.0.0.2`"), "{text}");
    for ca in [None, Some("none.pem")] {
        let output = machine.kofm(HTTPS, ca, &["status"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{text}");
        assert!(text.contains("KOFM_CA"), "{text}");
    }

    // A certificate of last year.
    let issuer = KeyPair::from_pem(&machine.authority.key).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&machine.authority.public, issuer).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(machine.dir.join("site.pem"), certificate.pem()).unwrap();
    fs::write(machine.dir.join("site.key"), key.serialize_pem()).unwrap();
    machine.hang_up();
    until("the old certificate is shown", || {
        !machine.kofm(HTTPS, ca, &["status"]).status.success()
    });
    assert!(machine.unusable(HTTPS, ca).contains("the certificate has expired"));
}

#[test]
fn a_site_without_a_certificate_is_named() {
    let machine = Machine::start("127.0.0.1", &["127.0.0.1"]);
    let (config, http) = (machine.dir.join("plain.toml"), free_port());
    let text = format!("site = \"a\"\nhttp = \"127.0.0.1:{http}\"\n[pools]\nx = 2\n");
    fs::write(&config, text).unwrap();
    let (mut site, _) = serve(&config);
    let text = machine.unusable(&format!("https://127.0.0.1:{http}"), Some("ca.pem"));
    site.kill().unwrap();
    site.wait().unwrap();
    assert!(text.contains("does not speak HTTPS"), "{text}");
}

#[test]
fn a_renewed_certificate_is_used_at_once_and_refuses_no_client() {
    let machine = Machine::start("127.0.0.1", &["127.0.0.1"]);
    let (ca, done) = (Some("ca.pem"), AtomicBool::new(false));
    let named = "https://localhost:PORT";
    assert!(machine.unusable(named, ca).contains("not for `localhost`"));
    std::thread::scope(|scope| {
        let busy = [0; 2].map(|_| {
            scope.spawn(|| {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) {
                    let output = machine.kofm(HTTPS, ca, &["status"]);
                    assert!(output.status.success(), "{output:?}");
                    calls += 1;
                }
                calls
            })
        });
        machine.certify(&["127.0.0.1", "localhost"]);
        machine.hang_up();
        until("the new certificate", || machine.kofm(named, ca, &["status"]).status.success());
        // A file that cannot be read changes nothing.
        fs::write(machine.dir.join("site.key"), "nonsense").unwrap();
        machine.hang_up();
        assert!(machine.kofm(named, ca, &["status"]).status.success());
        done.store(true, Ordering::Relaxed);
        for busy in busy {
            assert!(busy.join().unwrap() > 0);
        }
    });
}

#[test]
fn a_key_that_is_not_there_is_refused_before_the_start() {
    let machine = Machine::start("127.0.0.1", &["127.0.0.1"]);
    fs::remove_file(machine.dir.join("site.key")).unwrap();
    let config = machine.dir.join("site.toml");
    for command in [&["check-config"][..], &["serve", "--config"]] {
        let output = Command::new(KOFM).args(command).arg(&config).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(text.contains("site.key"), "{text}");
    }
}
