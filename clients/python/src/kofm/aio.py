"""The client for asyncio.

Calls and renewals run in threads of their own, so a busy event loop loses no lease::

    async with kofm.aio.acquire("gpu:2", "licence") as lease:
        ...

If the lease is lost, the task inside the ``async with`` is cancelled, and the statement raises
`LeaseLost`.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Callable, Generator, Optional, Type, TypeVar

from ._client import Client as SyncClient
from ._client import Json, OnLost, Request, Semaphore as SyncSemaphore, default_client
from ._lease import Lease
from ._values import Duration, Want

__all__ = ["Acquiring", "Client", "Semaphore", "acquire"]

T = TypeVar("T")


async def _thread(work: Callable[[], T], undo: Optional[Callable[[T], object]] = None) -> T:
    """Runs blocking work in a thread; ``undo`` gets the result if it is no longer awaited."""
    loop = asyncio.get_running_loop()
    future: "asyncio.Future[T]" = loop.create_future()
    lock = threading.Lock()
    abandoned = False

    def finish(result: Optional[T], error: Optional[BaseException]) -> None:
        if future.cancelled():
            _undo(undo, result, error)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Optional[T] = None
        error: Optional[BaseException] = None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        with lock:
            if not abandoned:
                try:
                    loop.call_soon_threadsafe(finish, result, error)
                    return
                except RuntimeError:
                    # The loop is closed.
                    pass
        _undo(undo, result, error)

    threading.Thread(target=run, name="kofm-aio", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        # The loop may not run again: the thread must not depend on it.
        with lock:
            abandoned = True
        if future.done() and not future.cancelled():
            error = future.exception()
            _undo(undo, None if error else future.result(), error)
        raise


def _undo(
    undo: Optional[Callable[[T], object]], result: Optional[T], error: Optional[BaseException]
) -> None:
    if error is None and undo is not None:
        work = undo
        threading.Thread(
            target=lambda: _quietly(lambda: work(result)),  # type: ignore[arg-type]
            name="kofm-undo",
            daemon=True,
        ).start()


class Acquiring:
    """The result of `acquire`: await it for a lease, or use it in ``async with``."""

    def __init__(
        self, client: SyncClient, want: "tuple[Want, ...]", cancel_on_lost: bool, options: Json
    ) -> None:
        self._client = client
        self._want = want
        self._options = options
        self._cancel_on_lost = cancel_on_lost
        self._lease: Optional[Lease] = None
        self._task: "Optional[asyncio.Task[Any]]" = None
        self._interrupted = False

    def __await__(self) -> Generator[Any, None, Lease]:
        return self._acquire().__await__()

    async def _acquire(self) -> Lease:
        on_lost: Optional[OnLost] = self._options.pop("on_lost", None)
        request: Request = await _thread(
            lambda: self._client.request(*self._want, **self._options), Request.cancel
        )
        try:
            return await _thread(lambda: request.result(on_lost=on_lost), Lease.release)
        except asyncio.CancelledError:
            threading.Thread(target=_quietly, args=(request.cancel,), daemon=True).start()
            raise

    async def __aenter__(self) -> Lease:
        lease = self._lease = await self._acquire()
        self._task = asyncio.current_task()
        if self._cancel_on_lost:
            loop = asyncio.get_running_loop()
            lease.lost._call(lambda: _quietly(lambda: loop.call_soon_threadsafe(self._interrupt)))
        return lease

    def _interrupt(self) -> None:
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        lease, task = self._lease, self._task
        self._task = None
        assert lease is not None
        if kind is not None and issubclass(kind, asyncio.CancelledError) and self._interrupted:
            uncancel = getattr(task, "uncancel", None)
            # Another cancellation, for example by a timeout, must not be swallowed.
            if uncancel is None or uncancel() == 0:
                kind = None
        await asyncio.shield(_thread(lease.release))
        if kind is None:
            lease.check()


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        # The loop is closed, or no site answers; the lease ends by itself.
        pass


def acquire(
    *want: Want,
    wait: Optional[Duration] = None,
    ttl: Duration = "30s",
    owner: Optional[str] = None,
    reason: Optional[str] = None,
    id: Optional[str] = None,
    on_lost: Optional[OnLost] = None,
    cancel_on_lost: bool = True,
) -> Acquiring:
    """As `kofm.acquire`, for ``async with`` and ``await``."""
    return Client(client=default_client()).acquire(
        *want,
        wait=wait,
        ttl=ttl,
        owner=owner,
        reason=reason,
        id=id,
        on_lost=on_lost,
        cancel_on_lost=cancel_on_lost,
    )


class Client:
    """As `kofm.Client`, for asyncio."""

    def __init__(
        self, *args: Any, client: Optional[SyncClient] = None, **options: Any
    ) -> None:
        #: The client that makes the calls; its methods block.
        self.sync = client or SyncClient(*args, **options)

    def acquire(
        self,
        *want: Want,
        wait: Optional[Duration] = None,
        ttl: Duration = "30s",
        owner: Optional[str] = None,
        reason: Optional[str] = None,
        id: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
        cancel_on_lost: bool = True,
    ) -> Acquiring:
        """Waits for the units; with ``cancel_on_lost`` a lost lease cancels the task."""
        options: Json = {"wait": wait, "ttl": ttl, "owner": owner, "reason": reason, "id": id}
        options["on_lost"] = on_lost
        return Acquiring(self.sync, want, cancel_on_lost, options)

    async def run(self, work: Callable[[SyncClient], T]) -> T:
        """Runs any call of the blocking client in a thread: ``await c.run(lambda s: s.pools())``."""
        return await _thread(lambda: work(self.sync))

    def semaphore(self, name: str) -> "Semaphore":
        """A semaphore by name."""
        return Semaphore(self.sync.semaphore(name))


class Semaphore:
    """As `kofm.Semaphore`, for asyncio."""

    def __init__(self, semaphore: SyncSemaphore) -> None:
        self.sync = semaphore

    async def p(self, k: int = 1, *, wait: Optional[Duration] = None) -> None:
        """Takes units. If the task is cancelled and P was granted, V adds them again."""
        await _thread(lambda: self.sync.p(k, wait=wait), lambda _: _quietly(lambda: self.sync.v(k)))

    async def v(self, m: int = 1) -> None:
        """Adds units."""
        await _thread(lambda: self.sync.v(m))


