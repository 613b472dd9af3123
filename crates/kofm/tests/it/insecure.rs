//! Addresses beyond loopback need protection, or the operator's `insecure = true`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{KOFM, command, get, serve, signal, temp_dir, until};

fn try_serve(path: &Path, verb: &[&str]) -> Output {
    // A site that starts would run until it is stopped.
    let limit = ["5", KOFM];
    Command::new("timeout").args(limit).args(verb).arg(path).output().unwrap()
}

#[test]
fn an_address_beyond_loopback_needs_protection() {
    let dir = temp_dir();
    let (path, tokens) = (dir.join("site.toml"), dir.join("tokens"));
    fs::write(&tokens, "t\n").unwrap();
    let token_file = format!("token_file = \"{}\"\n", tokens.display());
    let state = format!("state_dir = \"{}\"\n", dir.join("state").display());
    let members = "[members]\ns0 = \"0.0.0.0:0\"\ns1 = \"127.0.0.1:1\"\n";
    let cases = [
        ("0.0.0.0:0", "", "", Some("token_file")),
        ("[::]:0", "", "", Some("token_file")),
        ("0.0.0.0:0", &*token_file, "", Some("certificate")),
        ("127.0.0.1:0", "", "", None),
        ("127.0.0.1:0", &token_file, members, Some("members.s0")),
    ];
    for (http, top, members, refused) in cases {
        let text = |more: &str| {
            format!(
                "site = \"s0\"\nhttp = \"{http}\"\n{state}{top}{more}{members}[pools]\ngpu = 2\n"
            )
        };
        fs::write(&path, text("")).unwrap();
        let output = try_serve(&path, &["check-config"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let Some(word) = refused else {
            assert!(output.status.success(), "{http} {top}: {said}");
            continue;
        };
        for verb in [&["check-config"][..], &["serve", "--config"]] {
            let output = try_serve(&path, verb);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(78), "{verb:?}: {said}");
            assert!(said.contains(word) && said.contains("insecure = true"), "{said}");
            assert_eq!(output.stdout, b"");
        }
        fs::write(&path, text("insecure = true\n")).unwrap();
        let output = try_serve(&path, &["check-config"]);
        assert!(output.status.success(), "{output:?}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_insecure_site_says_so_everywhere() {
    let dir = temp_dir();
    let path = dir.join("site.toml");
    fs::write(&path, "http = \"0.0.0.0:0\"\ninsecure = true\n[pools]\ngpu = 2\n").unwrap();
    let (mut site, http) = serve(&path);
    let http = http.replace("0.0.0.0", "127.0.0.1");
    let ready = get(&http, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(ready.contains("insecure: clients on other machines"), "{ready}");
    assert!(ready.to_ascii_lowercase().contains("kofm-health: insecure"), "{ready}");
    assert!(get(&http, "/v1/health").contains("without a token"));
    let output = command(&http, &["status"]).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("insecure"), "{output:?}");
    site.kill().unwrap();
    site.wait().unwrap();
    let up = ["up", "--http", "0.0.0.0:0", "--sites", "1"];
    let output = Command::new("timeout").args(["5", KOFM]).args(up).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn tokens_are_read_again_on_sighup() {
    let dir = temp_dir();
    let (tokens, config) = (dir.join("tokens"), dir.join("site.toml"));
    fs::write(&tokens, "old\n").unwrap();
    let text = format!(
        "http = \"127.0.0.1:0\"\ntoken_file = \"{}\"\n[pools]\ngpu = 2\n",
        tokens.display()
    );
    fs::write(&config, text).unwrap();
    let (mut site, http) = serve(&config);
    let works = |token: &str| {
        command(&http, &["status"]).env("KOFM_TOKEN", token).output().unwrap().status.success()
    };
    assert!(works("old") && !works("new"));
    fs::write(&tokens, "new\n").unwrap();
    until("the new token works", || {
        signal(&site, "HUP");
        works("new")
    });
    assert!(!works("old"), "a token that was taken away still works");
    // A damaged file changes nothing.
    fs::write(&tokens, "# none\n").unwrap();
    signal(&site, "HUP");
    fs::write(&tokens, "newer\nnew\n").unwrap();
    until("the newest token works", || {
        signal(&site, "HUP");
        assert!(works("new"));
        works("newer")
    });
    site.kill().unwrap();
    site.wait().unwrap();
    fs::remove_dir_all(dir).unwrap();
}
