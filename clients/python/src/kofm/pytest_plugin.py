"""pytest plugin: tests that hold units of the cluster while they run.

::

    @pytest.mark.kofm("board:1", "licence")
    def test_boot(kofm):
        flash(kofm.units["board"][0])

    @pytest.fixture(scope="session")
    def board(kofm_acquire):
        return kofm_acquire("board").units["board"][0]

Workers of pytest-xdist are processes of their own: each holds its own units.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, Optional

import pytest

from ._client import Client
from ._errors import KofmError, Unreachable
from ._lease import Lease


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the plugin."""
    group = parser.getgroup("kofm", "units shared by kofm")
    group.addoption(
        "--kofm-addr", metavar="ADDR", help="address of the sites, default KOFM_ADDR"
    )
    group.addoption(
        "--kofm-wait", metavar="DUR", default="10m", help="time to wait for units, default 10m"
    )
    group.addoption(
        "--kofm-optional",
        action="store_true",
        help="skip tests that need units if no site is reachable, instead of an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Documents the marker."""
    config.addinivalue_line(
        "markers", "kofm(*want, ttl='30s', wait=None): hold these units while the test runs"
    )


@pytest.fixture(scope="session")
def kofm_client(pytestconfig: pytest.Config) -> Iterator[Client]:
    """The client of the test session."""
    with Client(pytestconfig.getoption("--kofm-addr")) as client:
        yield client


def _acquire(
    config: pytest.Config,
    client: Client,
    want: "tuple[str, ...]",
    reason: str,
    ttl: str = "30s",
    wait: Optional[str] = None,
) -> Lease:
    try:
        wait = wait or config.getoption("--kofm-wait")
        return client.acquire(*want, wait=wait, ttl=ttl, reason=reason[:200])
    except Unreachable as error:
        if config.getoption("--kofm-optional"):
            pytest.skip(f"kofm: {error}")
        pytest.fail(f"kofm: {error}; with --kofm-optional the test is skipped", pytrace=False)
    except KofmError as error:
        pytest.fail(f"kofm: {error}", pytrace=False)


@pytest.fixture(scope="session")
def kofm_acquire(
    pytestconfig: pytest.Config, kofm_client: Client
) -> Iterator[Callable[..., Lease]]:
    """Acquires units that are held until the session ends; for fixtures of wider scope."""
    with contextlib.ExitStack() as stack:

        def acquire(*want: str, ttl: str = "30s", wait: Optional[str] = None) -> Lease:
            lease = _acquire(pytestconfig, kofm_client, want, "pytest session", ttl, wait)
            return stack.enter_context(lease)

        yield acquire


@pytest.fixture
def kofm(request: pytest.FixtureRequest, kofm_client: Client) -> Iterator[Lease]:
    """The lease that the test's marker ``kofm`` asks for."""
    marker = request.node.get_closest_marker("kofm")
    if marker is None or not marker.args:
        pytest.fail(
            "fixture kofm: the test must name its units, as @pytest.mark.kofm('gpu:1')",
            pytrace=False,
        )
    unknown = set(marker.kwargs) - {"ttl", "wait"}
    if unknown:
        pytest.fail(
            f"mark kofm: unknown option {sorted(unknown)[0]!r}; must be ttl or wait", pytrace=False
        )
    name = str(request.node.nodeid)
    with _acquire(request.config, kofm_client, marker.args, name, **marker.kwargs) as lease:
        yield lease


@pytest.fixture(autouse=True)
def _kofm_marked(request: pytest.FixtureRequest) -> None:
    # The marker holds the units also if the test does not use the fixture.
    if request.node.get_closest_marker("kofm") is not None:
        request.getfixturevalue("kofm")
