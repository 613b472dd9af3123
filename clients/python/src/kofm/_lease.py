"""A lease that a thread of its own renews, and the flag that says it is lost."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type

from ._errors import Forbidden, Incompatible, KofmError, LeaseLost, Unauthorized, UnknownName
from ._values import env_name, now

log = logging.getLogger("kofm")

#: Part of the term that is left unused, because clocks run at different rates.
_MARGIN = 0.02
#: The longest sleep of the watchdog: after a suspend it looks at the clock within this time.
_LOOK = 1.0


class Lost:
    """A flag that is set when the lease is lost, at the latest when its term is over.

    It does not depend on a thread: `is_set` looks at the clock.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._deadline = float("inf")
        self._cause: Optional[str] = None
        self._over = False
        self._callbacks: List[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether the lease is lost."""
        if not self._event.is_set() and now() >= self._deadline:
            self._set("its term ended before a site confirmed a renewal")
        return self._event.is_set()

    __bool__ = is_set

    @property
    def cause(self) -> Optional[str]:
        """Why the lease was lost; None while it is not."""
        return self._cause if self.is_set() else None

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease is lost, or for ``timeout`` seconds."""
        until = float("inf") if timeout is None else now() + timeout
        while not self.is_set() and now() < until:
            pause = min(until, self._deadline) - now()
            self._event.wait(max(0.0, min(pause, _LOOK)))
        return self.is_set()

    def __repr__(self) -> str:
        return f"<Lost: {self._cause}>" if self.is_set() else "<Lost: not set>"

    def _set(self, cause: str) -> None:
        with self._lock:
            if self._over or self._event.is_set():
                return
            self._cause = cause
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            # A callback may take as long as it likes, and may fail.
            threading.Thread(target=callback, name="kofm-lost", daemon=True).start()

    def _finish(self) -> bool:
        """The lease was released: it cannot be lost any more. Returns False if it is lost."""
        self.is_set()
        with self._lock:
            self._over = not self._event.is_set()
            if self._over:
                self._deadline = float("inf")
                self._callbacks = []
            return self._over

    def _call(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        threading.Thread(target=callback, name="kofm-lost", daemon=True).start()


class _Watchdog:
    """One thread that sets `Lost` when a term ends, also while a renewal waits for an answer."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._heap: List[Tuple[float, int, Lost]] = []
        self._count = itertools.count()
        self._running = False

    def add(self, lost: Lost) -> None:
        with self._condition:
            heapq.heappush(self._heap, (lost._deadline, next(self._count), lost))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="kofm-watchdog", daemon=True).start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._heap:
                    self._running = False
                    return
                deadline, _, lost = self._heap[0]
                left = deadline - now()
                if left > 0:
                    self._condition.wait(min(left, _LOOK))
                    continue
                heapq.heappop(self._heap)
            if not lost.is_set() and lost._deadline != float("inf"):
                # It was renewed meanwhile.
                self.add(lost)


_watchdog = _Watchdog()


def _after_fork() -> None:
    global _watchdog
    # Threads do not survive a fork, and their locks may be held for good.
    _watchdog = _Watchdog()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Keeper:
    """What `Lease` needs of the API: how to renew it, and how to give it back."""

    def several(self) -> bool:
        """Whether another site can be asked."""
        return False

    def renew(self, until: float) -> float:
        """Renews; returns for how many seconds, counted from before the call."""
        raise NotImplementedError

    def release(self, until: float) -> None:
        """Gives the lease back."""
        raise NotImplementedError


class Lease:
    """Granted units. Use it in a ``with`` statement, or call `release`.

    A daemon thread renews it. In a child process made by ``fork`` the lease is neither renewed nor
    released: it stays the parent's.
    """

    def __init__(
        self,
        answer: Mapping[str, Any],
        keeper: Keeper,
        sent: float,
        term: float,
        on_lost: Optional[Callable[["Lease"], None]],
    ) -> None:
        #: A secret: a process that knows it can renew and release the lease.
        self.id: str = str(answer["id"])
        #: The short name that lists and logs show.
        self.name: Optional[str] = answer.get("name")
        #: The id of the request that was granted.
        self.request: str = str(answer.get("request", ""))
        #: Names of the units, by pool; numbers as text if the pool has no names.
        self.units: Dict[str, List[str]] = {
            pool: list(units) for pool, units in dict(answer["units"]).items()
        }
        #: Larger than the fence of every earlier lease of one of these units.
        self.fence: int = int(answer["fence"])
        #: Seconds that the lease lives without a renewal.
        self.ttl: float = float(answer["ttl_ms"]) / 1000
        #: The site that granted it.
        self.site: str = str(answer.get("site", ""))
        #: The epoch of the cluster in which it was granted.
        self.epoch: Optional[int] = answer.get("epoch")
        #: Set when the lease is lost: ``lost.is_set()``, ``lost.wait()``, ``lost.cause``.
        self.lost = Lost()
        self._keeper = keeper
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._released = False
        if on_lost is not None:
            self.lost._call(lambda: on_lost(self))
        self._extend(sent, term)
        _watchdog.add(self.lost)
        threading.Thread(target=self._renew, name="kofm-renew", daemon=True).start()

    def __repr__(self) -> str:
        state = "released" if self._released else "lost" if self.lost.is_set() else "held"
        return f"<Lease {self.name or ''} units={self.units} fence={self.fence} {state}>"

    @property
    def expires_in(self) -> float:
        """Seconds until the lease is lost unless a renewal is confirmed; 0 if it is over."""
        if self._released or self.lost.is_set():
            return 0.0
        return max(0.0, self.lost._deadline - now())

    def check(self) -> None:
        """Raises `LeaseLost` if the lease is lost. Call it before each step that needs the units."""
        if self.lost.is_set():
            raise LeaseLost(
                f"the lease of {self._what()} is lost: {self.lost.cause}; stop using the units and"
                " acquire again"
            )

    def env(self) -> Dict[str, str]:
        """The variables that ``kofm run`` exports to its child."""
        result = {"KOFM_LEASE": self.id, "KOFM_FENCE": str(self.fence)}
        for pool, units in self.units.items():
            result[env_name(pool)] = ",".join(units)
        return result

    def release(self) -> None:
        """Gives the units back. Repeating it is harmless.

        If no site answers, a thread repeats the call until the lease would have expired anyway.
        """
        if self._released or self._pid != os.getpid():
            return
        self._released = True
        held = self.lost._finish()
        self._stop.set()
        until = now() + self.ttl
        try:
            self._keeper.release(min(until, now() + 5.0))
        except (LeaseLost, UnknownName):
            pass
        except KofmError as error:
            if held:
                log.warning("lease of %s not released yet, retrying: %s", self._what(), error)
            threading.Thread(
                target=self._release_later, args=(until,), name="kofm-release", daemon=True
            ).start()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._pid != os.getpid():
            return
        self.release()
        if kind is None:
            self.check()

    def _what(self) -> str:
        return ", ".join(f"{pool}:{len(units)}" for pool, units in self.units.items())

    def _extend(self, sent: float, term: float) -> None:
        """A site has confirmed the lease for ``term`` seconds from ``sent``."""
        lost = self.lost
        with lost._lock:
            if not lost._over and not lost._event.is_set():
                lost._deadline = sent + term * (1 - _MARGIN)
        self._term = term

    def _renew(self) -> None:
        # A client that can ask another site renews so often that the rest suffices for the other sites to
        # notice that one is gone, and to take the lease over.
        share = 8 if self._keeper.several() else 3
        wait = self._term / share
        while not self._stop.wait(wait):
            if self.lost.is_set():
                return
            sent = now()
            try:
                term = self._keeper.renew(self.lost._deadline)
            except (LeaseLost, UnknownName) as error:
                if not self._stop.is_set():
                    self.lost._set(str(error))
                return
            except (Unauthorized, Forbidden, Incompatible) as error:
                log.error("lease of %s not renewed: %s", self._what(), error)
                wait = max(0.1, self._term / 6)
            except KofmError as error:
                log.warning("lease of %s not renewed, retrying: %s", self._what(), error)
                wait = max(0.02, min(1.0, self._term / 20))
            except Exception:  # A fault of this client must not end renewals silently.
                log.exception("lease of %s not renewed, retrying", self._what())
                wait = max(0.1, self._term / 6)
            else:
                self._extend(sent, term)
                wait = term / share

    def _release_later(self, until: float) -> None:
        pause = threading.Event()
        while now() < until:
            pause.wait(min(1.0, max(0.05, self.ttl / 20)))
            try:
                self._keeper.release(until)
                return
            except (LeaseLost, UnknownName):
                return
            except KofmError:
                continue
