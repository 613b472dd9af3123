//! The tests of the Python client and of the integrations, with the binary under test.
//!
//! They need python3 with venv and pip, and an index or cache from which pip installs pytest. On a
//! machine without these, the test prints `NOT RUN` and the reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::{KOFM, temp_dir};

pub(crate) struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs a program; an error is the reason why the tests cannot run.
pub(crate) fn prepare(program: &Path, args: &[&str]) -> Result<Output, String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(format!("{} {}: {last}", program.display(), args.join(" ")))
}

/// A virtual environment with pytest.
fn environment(folder: &Path) -> Result<PathBuf, String> {
    let python = Path::new("python3");
    prepare(python, &["-c", "import sys; sys.exit(sys.version_info < (3, 9))"])
        .map_err(|_| "python3 is missing or older than 3.9".to_owned())?;
    let venv = folder.join("venv");
    prepare(python, &["-m", "venv", &venv.to_string_lossy()])?;
    let python = venv.join("bin/python");
    let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1"];
    let pip = [&pip[..], &["--timeout", "10", "pytest", "pytest-xdist", "pyyaml"]].concat();
    prepare(&python, &pip)?;
    Ok(python)
}

#[test]
fn python_client_and_integrations_pass_their_tests() {
    let folder = Folder(temp_dir());
    let python = match environment(&folder.0) {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("NOT RUN: tests of the Python client and of the integrations: {reason}");
            return;
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for part in ["clients/python", "integrations"] {
        let output = Command::new(&python)
            .args(["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--basetemp"])
            .args([&folder.0.join("tests"), Path::new("tests")])
            .current_dir(root.join(part))
            .env("KOFM_BIN", KOFM)
            .env("PYTHONPATH", root.join("clients/python/src"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{part}: {text}\n{error}");
    }
}
