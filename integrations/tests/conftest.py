"""The fixtures of the Python client: real sites."""

from __future__ import annotations

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "clients/python"
sys.path.insert(0, str(CLIENT / "src"))

import importlib.util

spec = importlib.util.spec_from_file_location("kofm_sites", CLIENT / "tests/conftest.py")
sites = importlib.util.module_from_spec(spec)
sys.modules["kofm_sites"] = sites
spec.loader.exec_module(sites)

import pytest


@pytest.fixture(scope="session")
def up(tmp_path_factory):
    cluster = sites.Up(tmp_path_factory.mktemp("up"))
    yield cluster
    cluster.stop()


@pytest.fixture
def env(up, tmp_path):
    """An environment in which `kofm` and `kofm-hold` are in PATH, and the sites are known."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "kofm").symlink_to(os.path.abspath(sites.binary()))
    (tools / "kofm-hold").symlink_to(ROOT / "integrations/kofm-hold")
    path = f"{tools}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "KOFM_ADDR": up.addr.split(",")[0]}
