//! Packages, built from the binary under test and unpacked into a clean root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{KOFM, temp_dir};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// Builds a package; returns its path.
fn build(kind: &str, out: &Path) -> String {
    let script = root().join("dist/package.sh");
    let (script, out) = (script.to_string_lossy(), out.to_string_lossy());
    run("sh", &[&script, kind, KOFM, &out]).trim().to_owned()
}

const FILES: [&str; 8] = [
    "bin/kofm",
    "share/man/man1/kofm.1.gz",
    "share/man/man1/kofm-run.1.gz",
    "share/bash-completion/completions/kofm",
    "share/zsh/vendor-completions/_kofm",
    "share/fish/vendor_completions.d/kofm.fish",
    "share/doc/kofm/site.toml",
    "share/doc/kofm/LICENSE-MIT",
];

fn check_files(prefix: &Path) {
    for file in FILES {
        let length = prefix.join(file).metadata().map(|it| it.len()).unwrap_or_default();
        assert!(length > 0, "{file} is missing or empty");
    }
    let version = run(&prefix.join("bin/kofm").to_string_lossy(), &["--version"]);
    assert_eq!(version, run(KOFM, &["--version"]));
}

#[test]
fn the_tarball_has_binary_manual_completions_and_service() {
    let dir = temp_dir();
    let file = build("tarball", &dir);
    run("tar", &["-xzf", &file, "-C", &dir.to_string_lossy()]);
    let name = Path::new(&file).file_name().unwrap().to_string_lossy().into_owned();
    let prefix = dir.join(name.strip_suffix(".tar.gz").unwrap());
    check_files(&prefix);
    assert!(prefix.join("share/systemd/kofm.service").exists());
    std::fs::remove_dir_all(dir).ok();
}

#[test]
fn the_deb_has_service_user_and_directories() {
    if !has("dpkg-deb") {
        eprintln!("NOT RUN: the Debian package: dpkg-deb is missing");
        return;
    }
    let dir = temp_dir();
    let file = build("deb", &dir);
    let (clean, control) = (dir.join("root"), dir.join("control"));
    run("dpkg-deb", &["-x", &file, &clean.to_string_lossy()]);
    run("dpkg-deb", &["-e", &file, &control.to_string_lossy()]);
    check_files(&clean.join("usr"));
    for path in ["etc/kofm", "usr/lib/sysusers.d/kofm.conf"] {
        assert!(clean.join(path).exists(), "{path}");
    }
    let unit = clean.join("usr/lib/systemd/system");
    let service = std::fs::read_to_string(unit.join("kofm.service")).unwrap();
    assert!(service.contains("ExecStart=/usr/bin/kofm serve"));
    let user = std::fs::read_to_string(unit.join("kofm.service.d/user.conf")).unwrap();
    assert!(user.contains("User=kofm"));
    for script in ["postinst", "prerm", "postrm"] {
        run("sh", &["-n", &control.join(script).to_string_lossy()]);
    }
    let fields = run("dpkg-deb", &["-f", &file, "Package", "Version"]);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(fields, format!("Package: kofm\nVersion: {version}\n"));
    std::fs::remove_dir_all(dir).ok();
}

#[test]
fn three_machines_run_a_job_after_ten_commands() {
    let dir = temp_dir();
    let trial = "d=$(mktemp -d) && mount -t tmpfs t $d && mkdir $d/u $d/w $d/r && \
                 mount -t overlay o -o lowerdir=/,upperdir=$d/u,workdir=$d/w $d/r && ip netns list";
    let unshared = Command::new("unshare").args(["--mount", "sh", "-c", trial]).output();
    if !has("dpkg-deb") || !unshared.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT RUN: the first hour: it needs root, dpkg, network namespaces and overlayfs");
        return;
    }
    let file = build("deb", &dir);
    let script = root().join("dist/first-hour.sh");
    let told = run("sh", &[&script.to_string_lossy(), &file]);
    assert!(told.contains("job on "), "{told}");
    assert!(told.contains("commands=10 "), "{told}");
    std::fs::remove_dir_all(dir).ok();
}
