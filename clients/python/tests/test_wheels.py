"""The wheels, installed into an environment of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import venv

import pytest
from conftest import ROOT, binary

CLIENT = ROOT / "clients/python"


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **more}


def run(*args, **options):
    return subprocess.run(
        [str(it) for it in args], check=True, capture_output=True, text=True, env=environment(),
        **options,
    ).stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheels")
    # The binary of a test build has megabytes of debug information: a short wheel is enough here.
    slim = out / "kofm"
    if subprocess.run(["strip", "-o", str(slim), binary()], capture_output=True).returncode:
        slim = pathlib.Path(binary())
    run(sys.executable, CLIENT / "wheel.py", out / "a", "--binary", slim)
    return out / "a", slim


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    home = tmp_path_factory.mktemp("venv") / "venv"
    venv.create(home)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "-q"]
    run(*pip, "--no-index", "--find-links", wheels[0], "kofm[bin]")
    return home / "bin"


def test_the_same_sources_give_the_same_wheel(wheels, tmp_path):
    run(sys.executable, CLIENT / "wheel.py", tmp_path)
    (pure,) = tmp_path.iterdir()
    assert pure.name.endswith("-py3-none-any.whl")
    assert pure.read_bytes() == (wheels[0] / pure.name).read_bytes()


def test_the_installed_client_reaches_the_installed_binary(installed):
    assert run(installed / "kofm", "--version").startswith("kofm ")
    up = subprocess.Popen(
        [str(installed / "kofm"), "up", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )
    try:
        addr = up.stdout.readline().split()[1]
        program = (
            "import kofm\n"
            f"with kofm.Client({addr!r}).acquire('gpu:2') as lease:\n"
            "    print(len(lease.units['gpu']), kofm.__file__)"
        )
        answer = run(installed / "python", "-c", program, cwd="/").split()
        assert answer[0] == "2"
        assert str(installed.parent) in answer[1]
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait()
        up.stdout.close()


def test_the_installed_plugin_is_registered(installed):
    program = (
        "from importlib.metadata import distribution\n"
        "print([it.value for it in distribution('kofm').entry_points])"
    )
    assert run(installed / "python", "-c", program, cwd="/").strip() == "['kofm.pytest_plugin']"
    program = (
        "from importlib.metadata import files\n"
        "print([str(it) for it in files('kofm')])"
    )
    assert "kofm/py.typed" in run(installed / "python", "-c", program, cwd="/")
