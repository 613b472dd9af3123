"""Exceptions. Each message is one sentence that names the place, the fault and the next step."""

from __future__ import annotations

from typing import Optional


class KofmError(Exception):
    """Base of all exceptions of this package."""

    #: The server's error code, as ``unknown-pool``; None if the client found the fault.
    code: Optional[str]

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code


class Malformed(KofmError, ValueError):
    """A demand, a duration, an address or a name is not well-formed."""


class Infeasible(KofmError):
    """The demand can never be granted, for example k is larger than M."""


class UnknownName(KofmError, LookupError):
    """The server knows no pool, semaphore, gang or request of this name."""


class Busy(KofmError):
    """``wait=0`` was given and the units are not free."""


class WaitTimeout(KofmError, TimeoutError):
    """The time given with ``wait`` is over."""


class Cancelled(KofmError):
    """The request was cancelled, by this client or by an operator."""


class InUse(KofmError):
    """The pool, semaphore or gang is in use and cannot be changed now."""


class Unauthorized(KofmError, PermissionError):
    """The site requires a token, or rejects the one that was sent."""


class Forbidden(KofmError, PermissionError):
    """The token is valid but lacks the right."""


class Unreachable(KofmError, ConnectionError):
    """No site answered at any of the addresses."""


class NotKofm(Unreachable):
    """An answer came, but not from a kofm site: wrong scheme, wrong port or a proxy."""


class Incompatible(KofmError):
    """Server and client have different versions of the API."""


class LeaseLost(KofmError):
    """The lease ended before it was released; its units may belong to another holder."""
