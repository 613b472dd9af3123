"""Demands, durations, addresses, and the clock of leases."""

from __future__ import annotations

import getpass
import os
import re
import socket
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from ._errors import Malformed

#: ``"gpu"``, ``"gpu:2"`` or ``{"gpu": 2}``.
Want = Union[str, Mapping[str, int]]
#: ``"500ms"``, ``"30s"``, ``"5m"``, ``"2h"``, ``"1d"``, or a number of seconds.
Duration = Union[str, int, float]

DEFAULT_ADDR = "http://127.0.0.1:7600"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def now() -> float:
    """Seconds on a clock that also runs while the machine is suspended, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def seconds(text: Duration, what: str) -> float:
    """Reads a duration as seconds."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if 0 <= text < float("inf"):
            return float(text)
    elif isinstance(text, str):
        if text == "0":
            return 0.0
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
        if found:
            return float(found[1]) * _UNITS[found[2]]
    raise Malformed(
        f"{what} {text!r}: must be a number of seconds, or text with a unit: 500ms, 30s, 5m, 2h"
    )


def wire_duration(secs: float) -> str:
    """Writes a duration as the API reads it."""
    ms = round(secs * 1000)
    if ms == 0:
        # Only a wait of exactly 0 means "try once".
        return "0" if secs <= 0 else "1ms"
    return f"{ms}ms"


def demand(wants: Sequence[Want]) -> Dict[str, int]:
    """Reads ``POOL``, ``POOL:K`` and mappings as one demand."""
    result: Dict[str, int] = {}

    def add(pool: str, units: object, text: object) -> None:
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise Malformed(f"{text!r}: K must be at least 1; write POOL or POOL:K")
        if not pool:
            raise Malformed(f"{text!r}: the pool must be named; write POOL or POOL:K")
        if pool in result:
            raise Malformed(f"pool {pool!r} is given twice; write it once, with all its units")
        result[pool] = units

    for want in wants:
        if isinstance(want, str):
            pool, colon, units = want.rpartition(":")
            if not colon:
                add(want, 1, want)
            elif re.fullmatch(r"[0-9]{1,10}", units):
                add(pool, int(units), want)
            else:
                raise Malformed(f"{want!r}: K must be a number; write POOL or POOL:K")
        else:
            for pool, count in want.items():
                add(pool, count, {pool: count})
    if not result:
        raise Malformed("the demand is empty; name at least one pool, for example 'gpu:2'")
    return result


class Address(NamedTuple):
    """Where a site answers clients."""

    scheme: str
    #: The host, or the path of a Unix socket.
    host: str
    port: int

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def addresses(text: Union[str, Sequence[str], None]) -> List[Address]:
    """Reads addresses separated by commas; ``KOFM_ADDR`` if there is no text."""
    place = "addr"
    if text is None:
        text, place = os.environ.get("KOFM_ADDR") or DEFAULT_ADDR, "KOFM_ADDR"
    parts = text.split(",") if isinstance(text, str) else list(text)
    parts = [part.strip() for part in parts if part.strip()]
    if not parts:
        raise Malformed(f"{place}: at least one address must be given, as {DEFAULT_ADDR}")
    return [_address(part, place) for part in parts]


def _address(text: str, place: str) -> Address:
    rule = "must be http://HOST:PORT, https://HOST:PORT or unix:PATH"
    if text.startswith("unix:"):
        path = text[len("unix:") :]
        if not path:
            raise Malformed(f"{place} {text!r}: {rule}")
        return Address("unix", path, 0)
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "http", text
    scheme = scheme.lower()
    if scheme not in ("http", "https"):
        raise Malformed(f"{place} {text!r}: unknown scheme {scheme!r}; {rule}")
    parts = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^\[\]/:@\s]+):([0-9]{1,5})/?", rest)
    if not parts or not 0 < int(parts[2]) < 65536:
        raise Malformed(f"{place} {text!r}: {rule}")
    return Address(scheme, parts[1].strip("[]"), int(parts[2]))


def token_of(text: Optional[str]) -> Optional[str]:
    """The token, ``KOFM_TOKEN`` if none is given."""
    place = "token"
    if text is None:
        text, place = os.environ.get("KOFM_TOKEN"), "KOFM_TOKEN"
    if not text:
        return None
    if not all(33 <= ord(char) < 127 for char in text):
        raise Malformed(f"{place}: must be one line of printable ASCII without spaces")
    return text


def default_owner() -> str:
    """``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def env_name(pool: str) -> str:
    """``KOFM_UNITS_<POOL>``, as ``kofm run`` exports it."""
    return "KOFM_UNITS_" + re.sub(r"[^A-Z0-9]", "_", pool.upper())
