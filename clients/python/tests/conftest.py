"""Real sites: `kofm up` in one process, and clusters of `kofm serve` whose sites can be killed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Iterator, List, Optional

import pytest

pytest_plugins = ["pytester"]

#: Long enough for any machine; no test depends on how fast it is.
LONG = 90.0
ROOT = pathlib.Path(__file__).resolve().parents[3]

if importlib.util.find_spec("kofm") is None or "src" in os.environ.get("PYTHONPATH", ""):
    # Not installed: the sources are tested, also by the test runs that tests start.
    SOURCES = str(ROOT / "clients/python/src")
    os.environ["PYTHONPATH"] = SOURCES
    sys.path.insert(0, SOURCES)


def binary() -> str:
    found = os.environ.get("KOFM_BIN") or shutil.which("kofm")
    debug = ROOT / "target/debug/kofm"
    if not found and debug.exists():
        found = str(debug)
    if not found:
        pytest.exit("set KOFM_BIN to the kofm binary", returncode=3)
    return found


def until(what, check):
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            result = check()
        except OSError:
            result = None
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


class Up:
    """`kofm up`."""

    def __init__(self, tmp: pathlib.Path, *args: str) -> None:
        self.log = open(tmp / "up.log", "w")
        self.process = subprocess.Popen(
            [binary(), "up", "--http", "127.0.0.1:0", *args],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        sites = int(args[args.index("--sites") + 1]) if "--sites" in args else 3
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(sites)]
        self.http: List[str] = [line.split()[1] for line in lines]

    @property
    def addr(self) -> str:
        return ",".join(self.http)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Cluster:
    """One `kofm serve` per site."""

    def __init__(self, tmp: pathlib.Path, sites: int = 3, top: str = "", pools: str = "") -> None:
        self.tmp = tmp
        self.processes: List[Optional[subprocess.Popen]] = []
        ports = [free_port() for _ in range(sites)]
        self.ports = ports
        web = [free_port() for _ in range(sites)]
        self.http = [f"http://127.0.0.1:{port}" for port in web]
        self.sockets = [f"unix:{tmp}/s{me}.sock" for me in range(sites)]
        members = "".join(f's{to} = "127.0.0.1:{port}"\n' for to, port in enumerate(ports))
        for me in range(sites):
            (tmp / f"s{me}.toml").write_text(
                f'cluster = "test"\nsite = "s{me}"\nhttp = "127.0.0.1:{web[me]}"\n'
                f'socket = "{tmp}/s{me}.sock"\nstate_dir = "{tmp}/state{me}"\n{top}'
                f"[members]\n{members}[pools]\n{pools or 'gpu = 2'}\n"
            )
            self.processes.append(None)
            self.start(me)
        self.ready()

    def start(self, me: int) -> None:
        log = open(self.tmp / f"s{me}.log", "a")
        self.processes[me] = subprocess.Popen(
            [binary(), "serve", "--config", str(self.tmp / f"s{me}.toml")],
            stdout=log,
            stderr=log,
        )

    def ready(self) -> None:
        for me, process in enumerate(self.processes):
            if process is not None:
                until(f"site {me} is ready", lambda me=me: self._ready(me))

    def _ready(self, me: int) -> bool:
        with urllib.request.urlopen(self.http[me] + "/readyz", timeout=5) as answer:
            return answer.status == 200 and answer.read() == b"ok\n"

    @property
    def addr(self) -> str:
        return ",".join(self.http)

    def kill(self, me: int) -> None:
        process = self.processes[me]
        assert process is not None
        process.kill()
        process.wait()
        self.processes[me] = None

    def stop(self) -> None:
        for me, process in enumerate(self.processes):
            if process is not None:
                self.kill(me)


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    cluster = Up(tmp_path_factory.mktemp("up"), "--pool", "gpu=gpu-0,gpu-1,gpu-2,gpu-3",
                 "--pool", "licence=2", "--pool", "board=3")
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KOFM_ADDR", "KOFM_TOKEN", "KOFM_CA"):
        monkeypatch.delenv(name, raising=False)
