"""Each integration is run, or at least read, with real sites."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request

import kofm
import pytest
from conftest import ROOT, sites

yaml = pytest.importorskip("yaml")
HERE = ROOT / "integrations"


def run(*args, env, code=0, **options):
    done = subprocess.run(
        [str(it) for it in args], env=env, capture_output=True, text=True, timeout=90, **options
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def held(up, pool="gpu"):
    return kofm.Client(up.addr).pool(pool)["held"]


def test_kofm_hold_acquires_and_releases(up, env, tmp_path):
    dir = tmp_path / "hold"
    text = run("kofm-hold", "start", dir, "gpu:2", "licence", "--ttl", "1m", env=env)
    names = dict(line.split("=", 1) for line in text.splitlines())
    assert set(names) == {"KOFM_LEASE", "KOFM_FENCE", "KOFM_UNITS_GPU", "KOFM_UNITS_LICENCE"}
    assert held(up) == 2
    assert (dir.stat().st_mode & 0o777) == 0o700
    run("kofm-hold", "start", dir, "gpu", env=env, code=64)
    run("kofm-hold", "stop", dir, env=env)
    assert held(up) == 0 and not dir.exists()
    run("kofm-hold", "stop", dir, env=env)


def test_kofm_hold_passes_exit_codes_on(up, env, tmp_path):
    dir = tmp_path / "hold"
    with kofm.Client(up.addr).acquire("licence:2"):
        run("kofm-hold", "start", dir, "licence", "--wait", "0", env=env, code=75)
    run("kofm-hold", "start", dir, "gpu:99", env=env, code=65)
    run("kofm-hold", "start", dir, "gpu", env={**env, "KOFM_ADDR": "http://127.0.0.1:1"}, code=69)
    run("kofm-hold", env=env, code=64)
    assert not dir.exists()


def test_kofm_hold_reports_a_lost_lease(up, env, tmp_path):
    dir = tmp_path / "hold"
    text = run("kofm-hold", "start", dir, "gpu", "--ttl", "1s", env=env)
    lease = text.split("KOFM_LEASE=")[1].split()[0]
    kofm.Client(up.addr).call("DELETE", f"/v1/leases/{lease}")
    sites.until("kofm run has ended", lambda: (dir / "code").exists())
    run("kofm-hold", "stop", dir, env=env, code=76)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_github_action(up, env, tmp_path):
    action = yaml.safe_load((HERE / "github/action.yml").read_text())
    assert (HERE / "github" / action["runs"]["main"]).exists()
    assert action["runs"]["post"] == action["runs"]["main"]
    state, exported = tmp_path / "state", tmp_path / "env"
    job = {**env, "GITHUB_STATE": str(state), "GITHUB_ENV": str(exported), "INPUT_WANT": "gpu:2",
           "RUNNER_TEMP": str(tmp_path)}
    for name, about in action["inputs"].items():
        if "default" in about:
            job[f"INPUT_{name.upper()}"] = about["default"]
    script = HERE / "github/hold.js"
    run("node", script, env=job)
    assert held(up) == 2
    assert "KOFM_UNITS_GPU=" in exported.read_text() and "LEASE" not in exported.read_text()
    dir = state.read_text().strip().split("=", 1)[1]
    run("node", script, env={**job, "STATE_kofm": dir})
    assert held(up) == 0
    run("node", script, env={**job, "INPUT_WANT": " "}, code=64)


@pytest.mark.parametrize("ends", ["success", "failed"])
def test_gitlab_template(up, env, tmp_path, ends):
    template = yaml.safe_load((HERE / "gitlab/kofm.yml").read_text())[".kofm"]
    job = {**env, "CI_JOB_ID": f"{tmp_path.name}", "CI_JOB_URL": "job", "KOFM_WANT": "gpu:2 licence"}
    for name, value in template["variables"].items():
        job[name] = value.replace("$CI_JOB_ID", job["CI_JOB_ID"])
    run("sh", "-ec", "\n".join(template["before_script"]), env=job)
    assert held(up) == 2
    script = '. "$KOFM_HOLD/env" && test -n "$KOFM_UNITS_GPU" || exit 9; test "$0" = success'
    run("sh", "-ec", script, ends, env=job, code=0 if ends == "success" else 1)
    run("sh", "-ec", "\n".join(template["after_script"]), env=job)
    assert held(up) == 0


def test_jenkins_step(env):
    text = (HERE / "jenkins/vars/withKofm.groovy").read_text()
    code = re.sub(r"//.*", "", text)
    for pair in ("()", "{}", "[]"):
        assert code.count(pair[0]) == code.count(pair[1])
    assert "kofm-hold start" in code and "finally" in code and "kofm-hold stop" in code
    # Groovy takes a variable number of arguments only as the last parameter.
    assert "def call(Object... arguments) {" in code
    if shutil.which("groovyc"):
        run("groovyc", "-d", "/tmp", HERE / "jenkins/vars/withKofm.groovy", env=env)


def test_slurm_prolog_and_epilog(up, env, tmp_path):
    fake = tmp_path / "bin/scontrol"
    fake.write_text('#!/bin/sh\necho "JobId=$4 JobName=x Comment=$KOFM_TEST_COMMENT Dir=/x"\n')
    fake.chmod(0o755)
    (tmp_path / "bin/logger").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/logged\n')
    (tmp_path / "bin/logger").chmod(0o755)
    job = {**env, "SLURM_JOB_ID": "7", "SLURM_JOB_USER": "ada", "KOFM_SLURM_DIR": str(tmp_path / "s"),
           "KOFM_TEST_COMMENT": "kofm=gpu:2,licence"}
    run(HERE / "slurm/prolog.sh", env=job)
    (lease,) = kofm.Client(up.addr).leases()
    assert (lease["owner"], lease["reason"]) == ("ada", "slurm job 7")
    said = run("sh", "-c", f"{HERE}/slurm/epilog.sh 2>&1", env=job)
    assert not (tmp_path / "logged").exists(), said
    assert held(up) == 0
    # A job that asks for nothing, and one that cannot be served.
    run(HERE / "slurm/prolog.sh", env={**job, "KOFM_TEST_COMMENT": "hello"})
    run(HERE / "slurm/epilog.sh", env=job)
    run(HERE / "slurm/prolog.sh", env={**job, "KOFM_TEST_COMMENT": "kofm=gpu:99"}, code=65)
    assert not (tmp_path / "logged").exists()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_drop_in(env, tmp_path):
    unit = tmp_path / "job.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "job.service.d").mkdir()
    text = (HERE / "systemd/kofm-run.conf").read_text()
    assert "ExecStart=\nExecStart=/usr/bin/kofm run " in text
    # The binaries of this machine stand in for those of the example.
    text = text.replace("/usr/bin/kofm", str(tmp_path / "bin/kofm")).replace("/usr/bin/trainer", "/bin/true")
    (tmp_path / "job.service.d/kofm.conf").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    faults = [line for line in done.stderr.splitlines() if "job.service" in line or "kofm.conf" in line]
    assert not faults, faults


def test_kubernetes_sites(env, tmp_path):
    documents = list(yaml.safe_load_all((HERE / "kubernetes/sites.yaml").read_text()))
    kinds = {it["kind"]: it for it in documents}
    sets, config = kinds["StatefulSet"]["spec"], kinds["ConfigMap"]["data"]["site.toml"]
    names = [f"kofm-{number}" for number in range(sets["replicas"])]
    (container,) = sets["template"]["spec"]["containers"]
    assert 's/@SITE@/$HOSTNAME/' in container["command"][2]
    for name in names:
        assert f'{name} = "{name}.{kinds["Service"]["metadata"]["name"]}:7700"' in config
        # Sites beyond loopback need certificates, or this line.
        texts = [config, "insecure = true\n" + config]
        results = []
        for text in texts:
            (tmp_path / "site.toml").write_text(text.replace("@SITE@", name))
            done = subprocess.run(
                ["kofm", "check-config", str(tmp_path / "site.toml")], env=env,
                capture_output=True, text=True, timeout=60,
            )
            results.append((done.returncode, done.stderr))
        assert any(code == 0 for code, _ in results), results
    labels = sets["template"]["metadata"]["labels"]
    assert sets["selector"]["matchLabels"] == labels == kinds["Service"]["spec"]["selector"]


def test_kubernetes_job_runs_its_lease(up, env, tmp_path):
    (job,) = yaml.safe_load_all((HERE / "kubernetes/job.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    (lease,) = spec["initContainers"]
    assert lease["restartPolicy"] == "Always"
    place = str(tmp_path / "lease")
    (tmp_path / "lease").mkdir()
    command = [it.replace("/lease/", f"{place}/") for it in lease["command"]]
    process = subprocess.Popen(command, env=env)
    try:
        sites.until("the lease", lambda: (tmp_path / "lease/env").exists() and held(up) == 2)
        (main,) = spec["containers"]
        shell = main["command"][2].replace("/lease/", f"{place}/").replace("./train", "env")
        assert "KOFM_UNITS_GPU=" in run("sh", "-c", shell, env=env)
    finally:
        process.terminate()
        process.wait()
    assert held(up) == 0 and not (tmp_path / "lease/env").exists()


def metrics_of(up):
    with urllib.request.urlopen(up.http[0] + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    names = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    return names | set(re.findall(r"^(kofm_\w+)", text, re.M))


def named(text):
    return set(re.findall(r"\bkofm_\w+", text))


def test_alerts_name_existing_metrics(up, env):
    path = HERE / "prometheus/alerts.yml"
    rules = [it for group in yaml.safe_load(path.read_text())["groups"] for it in group["rules"]]
    used = set().union(*(named(it["expr"]) for it in rules))
    assert len(rules) >= 8 and used and used <= metrics_of(up), used - metrics_of(up)
    for rule in rules:
        assert rule["annotations"]["summary"] and rule["annotations"]["action"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    if shutil.which("promtool"):
        run("promtool", "check", "rules", path, env=env)


def test_the_dashboard_names_existing_metrics(up):
    board = json.loads((HERE / "grafana/dashboard.json").read_text())
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [it["query"] for it in board["templating"]["list"]]
    used = set().union(*(named(text) for text in texts))
    assert used and used <= metrics_of(up), used - metrics_of(up)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
