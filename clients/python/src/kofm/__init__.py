"""Client of kofm: exclusive use of k out of M units, shared by many machines.

::

    with kofm.acquire("gpu:2", "licence") as lease:
        train(lease.units["gpu"], fence=lease.fence)

The sites are found by ``KOFM_ADDR`` (several addresses separated by commas, ``unix:PATH`` works,
too), the token by ``KOFM_TOKEN``, the CA of the cluster by ``KOFM_CA``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._client import Client, Gang, GangLease, GangMember, OnLost, Request, Semaphore, default_client
from ._errors import (
    Busy,
    Cancelled,
    Forbidden,
    Incompatible,
    Infeasible,
    InUse,
    KofmError,
    LeaseLost,
    Malformed,
    NotKofm,
    Unauthorized,
    UnknownName,
    Unreachable,
    WaitTimeout,
)
from ._lease import Lease, Lost
from ._values import Duration, Want

if TYPE_CHECKING:
    from . import aio as aio

__version__ = "0.1.0"

__all__ = [
    "Busy",
    "Cancelled",
    "Client",
    "Forbidden",
    "Gang",
    "GangLease",
    "GangMember",
    "Incompatible",
    "Infeasible",
    "InUse",
    "KofmError",
    "Lease",
    "LeaseLost",
    "Lost",
    "Malformed",
    "NotKofm",
    "Request",
    "Semaphore",
    "Unauthorized",
    "UnknownName",
    "Unreachable",
    "WaitTimeout",
    "acquire",
    "aio",
    "gang",
    "semaphore",
    "try_acquire",
]


def acquire(
    *want: Want,
    wait: Optional[Duration] = None,
    ttl: Duration = "30s",
    owner: Optional[str] = None,
    reason: Optional[str] = None,
    id: Optional[str] = None,
    on_lost: Optional[OnLost] = None,
) -> Lease:
    """Waits until all units are granted; see `Client.acquire`."""
    return default_client().acquire(
        *want, wait=wait, ttl=ttl, owner=owner, reason=reason, id=id, on_lost=on_lost
    )


def try_acquire(*want: Want, **options: Any) -> Optional[Lease]:
    """A lease if all units are free now, otherwise None."""
    return default_client().try_acquire(*want, **options)


def semaphore(name: str) -> Semaphore:
    """A semaphore of the cluster."""
    return default_client().semaphore(name)


def gang(name: str) -> Gang:
    """A gang of the cluster."""
    return default_client().gang(name)


def __getattr__(name: str) -> Any:
    # asyncio is imported only by programs that use it.
    if name == "aio":
        import importlib

        return importlib.import_module("kofm.aio")
    raise AttributeError(f"module 'kofm' has no attribute {name!r}")
