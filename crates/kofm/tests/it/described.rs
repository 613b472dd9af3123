//! `/openapi.json` in the hands of others: Schemathesis calls all operations with good and bad
//! input, and a client that is generated from the document holds a lease.
//!
//! Both need python3 with venv and pip, and an index or cache from which pip installs. On a machine
//! without these a test prints `NOT RUN` and the reason. `KOFM_SCHEMATHESIS=50` runs 50 examples of
//! each operation.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{KOFM, command, get, temp_dir};
use crate::python::{Folder, prepare};

/// Examples of each operation in a phase, unless the environment says more.
const EXAMPLES: &str = "2";
/// Operations that are not called, each for a reason.
const EXCLUDED: &[&str] = &[
    // They do not end, or go on with another protocol.
    "/v1/events",
    "/v1/fast",
    "/v1/semaphores/{name}/p",
    // They drain or remove the site that is asked.
    "/v1/members/{name}",
    "/v1/members/{name}/{change}",
    // The first token closes the cluster for calls without one.
    "/v1/tokens",
    "/v1/tokens/{name}",
];

/// A virtual environment below the target directory, which later runs use again.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (python, mark) = (venv.join("bin/python"), venv.join("installed"));
    if !mark.exists() {
        fs::remove_dir_all(&venv).ok();
        prepare(Path::new("python3"), &["-m", "venv", &venv.to_string_lossy()])?;
        let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
        prepare(&python, &[&pip[..], &["--retries", "1", "--timeout", "10"], packages].concat())?;
        fs::write(&mark, "").map_err(|error| error.to_string())?;
    }
    Ok(python)
}

/// `kofm up`, and where its sites answer.
struct Up {
    process: Child,
    sites: Vec<String>,
}

impl Drop for Up {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Up {
    fn start(args: &[&str]) -> Self {
        let mut process = Command::new(KOFM)
            .args(["up", "--sites", "2", "--http", "127.0.0.1:0"])
            .args(args)
            .env("KOFM_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().take(2);
        let site = |line: String| line.split_whitespace().nth(1).unwrap().to_owned();
        let sites = lines.map(|line| site(line.unwrap())).collect();
        Self { process, sites }
    }
}

#[test]
fn no_call_gets_an_answer_that_is_not_described() {
    let packages = ["schemathesis>=4.10,<5"];
    let python = match environment("schemathesis", &packages) {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("NOT RUN: Schemathesis: {reason}");
            return;
        }
    };
    let folder = Folder(temp_dir());
    let up = Up::start(&["--pool", "gpu=4", "--pool", "board=a,b,c"]);
    let http = &up.sites[0];
    for args in [
        &["sem", "set", "gpu", "--value", "9"][..],
        &["gang", "set", "gpu", "--member", "s0=gpu:1", "--member", "s1=gpu:1"],
        &["acquire", "gpu", "--id", "job", "--ttl", "1h"],
    ] {
        let output = command(http, args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let given = std::env::var("KOFM_SCHEMATHESIS").unwrap_or_else(|_| EXAMPLES.to_owned());
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
                  response_headers_conformance,response_schema_conformance,\
                  negative_data_rejection,unsupported_method,allow_header_conformance";
    // With names that nothing has, then with names that things have.
    let names = r#"parameters = {"path.name" = "gpu", "path.unit" = "1", "path.id" = "job"}"#;
    for (config, phases) in [("", "coverage,fuzzing"), (names, "coverage")] {
        fs::write(folder.0.join("schemathesis.toml"), config).unwrap();
        let mut run = Command::new(python.with_file_name("st"));
        run.args(["run", &format!("{http}/openapi.json"), "--checks", checks, "--no-color"])
            .args(["--phases", phases, "--max-examples", &given, "--seed", "1"])
            .args(["--request-timeout", "30", "--generation-database", "none", "--no-shrink"])
            .args(["--warnings", "off", "--continue-on-failure"])
            .args(EXCLUDED.iter().flat_map(|path| ["--exclude-path", path]))
            .current_dir(&folder.0)
            .stdin(Stdio::null());
        let output = run.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        // It has really called them.
        assert!(text.contains("No issues found"), "{text}");
    }
    let members = command(http, &["members", "--json"]).output().unwrap();
    assert!(members.status.success(), "{members:?}");
}

/// The program of a user, with a client that is generated from the document.
const PROGRAM: &str = r#"
import sys
import kofm_generated as generated
from kofm_generated.api.leases import release_lease, renew_lease
from kofm_generated.api.pools import get_pool
from kofm_generated.api.requests import submit_request
from kofm_generated.models import Submit, SubmitWant

client = generated.Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
want = SubmitWant.from_dict({"gpu": 2})
granted = submit_request.sync(client=client, body=Submit(want=want, ttl="1m", owner="generated"))
assert granted.state == "granted", granted
lease = granted.lease
assert lease.units.to_dict() == {"gpu": lease.units["gpu"]} and len(lease.units["gpu"]) == 2, lease
held = get_pool.sync("gpu", client=client)
assert (held.held, held.units) == (2, 4), held
renewed = renew_lease.sync(lease.id, client=client)
assert (renewed.fence, renewed.name) == (lease.fence, lease.name), renewed
assert 0 < renewed.expires_in_ms <= renewed.ttl_ms, renewed
released = release_lease.sync(lease.id, client=client)
assert released.state == "released", released
gone = renew_lease.sync_detailed(lease.id, client=client)
assert gone.status_code == 410 and gone.parsed.error == "gone", gone
print("held", lease.fence)
"#;

#[test]
fn a_generated_client_holds_a_lease() {
    let packages = ["openapi-python-client>=0.26,<1"];
    let python = match environment("openapi-python-client", &packages) {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("NOT RUN: a generated client: {reason}");
            return;
        }
    };
    let folder = Folder(temp_dir());
    let up = Up::start(&["--pool", "gpu=4"]);
    let http = &up.sites[0];
    let answer = get(http, "/openapi.json");
    let (_, document) = answer.split_once("\r\n\r\n").unwrap();
    fs::write(folder.0.join("openapi.json"), document).unwrap();
    fs::write(folder.0.join("config.yml"), "package_name_override: kofm_generated\n").unwrap();
    let generated = Command::new(python.with_file_name("openapi-python-client"))
        .args(["generate", "--path", "openapi.json", "--meta", "none", "--config", "config.yml"])
        .args(["--output-path", "kofm_generated"])
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&generated.stderr);
    assert!(generated.status.success(), "{}{error}", String::from_utf8_lossy(&generated.stdout));
    fs::write(folder.0.join("program.py"), PROGRAM).unwrap();
    let output = Command::new(&python)
        .args(["program.py", http])
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("held "), "{text}");
}
