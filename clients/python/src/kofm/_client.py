"""The client: requests, leases, semaphores, gangs, and views of the cluster."""

from __future__ import annotations

import os
import re
import ssl
import threading
import uuid
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple, Union

from ._errors import (
    Busy,
    Cancelled,
    Incompatible,
    InUse,
    KofmError,
    LeaseLost,
    Malformed,
    Unreachable,
    UnknownName,
    WaitTimeout,
)
from ._lease import Keeper, Lease
from ._transport import PATIENCE, Answer, Transport, escape
from ._values import (
    Duration,
    Want,
    addresses,
    default_owner,
    demand,
    now,
    seconds,
    token_of,
    wire_duration,
)

#: Seconds of one long poll.
_POLL = 10.0
#: The cursor of the next page in the header `link`.
_NEXT = re.compile(r'[?&]after=([^&>]+)[^>]*>; *rel="next"')
_STATES = frozenset(["queued", "granted", "released", "expired", "cancelled", "failed"])
#: Seconds without an answer of any site after which a waiting request raises `Unreachable`.
_SILENCE = 30.0
#: Pause before all addresses are tried again.
_PAUSE = 0.25

OnLost = Callable[[Lease], None]
Json = Dict[str, Any]


def tls_context(cafile: Optional[str]) -> Optional[ssl.SSLContext]:
    """A context that trusts the CA of the cluster; None for the system's own CAs."""
    if not cafile:
        return None
    try:
        return ssl.create_default_context(cafile=cafile)
    except (OSError, ssl.SSLError) as error:
        raise Malformed(f"KOFM_CA {cafile!r}: must be a file of certificates: {error}") from None


class Client:
    """Calls the sites of one cluster; safe to use from several threads.

    ``addr`` is one address or several, separated by commas (default ``KOFM_ADDR``); ``token``
    defaults to ``KOFM_TOKEN``, ``cafile`` to ``KOFM_CA``.
    """

    def __init__(
        self,
        addr: Union[str, Sequence[str], None] = None,
        *,
        token: Optional[str] = None,
        cafile: Optional[str] = None,
        ssl_context: Optional[ssl.SSLContext] = None,
        owner: Optional[str] = None,
    ) -> None:
        context = ssl_context or tls_context(cafile or os.environ.get("KOFM_CA"))
        self._transport = Transport(addresses(addr), token_of(token), context)
        self._owner = owner

    def __repr__(self) -> str:
        return f"<Client of {', '.join(str(it) for it in self._transport.addresses)}>"

    def close(self) -> None:
        """Closes idle connections. Leases are still renewed."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, method: str, path: str, body: Optional[Json] = None, **options: Any
    ) -> Any:
        """Calls the API and returns the decoded answer."""
        return self._transport.call(method, path, body, **options).body

    # Leases

    def acquire(
        self,
        *want: Want,
        wait: Optional[Duration] = None,
        ttl: Duration = "30s",
        owner: Optional[str] = None,
        reason: Optional[str] = None,
        id: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
    ) -> Lease:
        """Waits until all units of the demand are granted.

        ``wait`` limits the wait, 0 tries once, None waits forever. ``on_lost`` is called in a
        thread of its own with the lease if it is lost.
        """
        request = self.request(*want, wait=wait, ttl=ttl, owner=owner, reason=reason, id=id)
        return request.result(on_lost=on_lost)

    def try_acquire(self, *want: Want, **options: Any) -> Optional[Lease]:
        """As `acquire` with ``wait=0``, but returns None if the units are not free."""
        try:
            return self.acquire(*want, wait=0, **options)
        except Busy:
            return None

    def request(
        self,
        *want: Want,
        wait: Optional[Duration] = None,
        ttl: Duration = "30s",
        owner: Optional[str] = None,
        reason: Optional[str] = None,
        id: Optional[str] = None,
    ) -> "Request":
        """Submits a request and returns without waiting for its grant."""
        body: Json = {"want": demand(want)}
        return Request(self, "/v1/requests", body, wait, ttl, owner, reason, id)

    def cancel(self, request: str) -> Json:
        """Cancels a request; a granted one is released."""
        result: Json = self.call("DELETE", f"/v1/requests/{escape(request)}")
        return result

    # Views

    def _list(self, path: str, most: Optional[int] = None, **query: object) -> List[Json]:
        """All pages of a list, or as many as it takes to have `most` entries."""
        result: List[Json] = []
        parts = {name: str(value) for name, value in query.items() if value is not None}
        while True:
            text = "&".join(f"{name}={escape(value)}" for name, value in parts.items())
            answer = self._transport.call("GET", path + (f"?{text}" if text else ""))
            body = answer.body
            if isinstance(body, list):
                result += body
                cursor = _NEXT.search(answer.headers.get("link") or "")
                if cursor is None or (most is not None and len(result) >= most):
                    return result
                # The list was cut; its other pages are asked for.
                parts["after"] = cursor.group(1)
                continue
            lists = [value for value in body.values() if isinstance(value, list)]
            if len(lists) != 1:
                raise Incompatible(
                    f"GET {path}: the answer is not a list; the server is newer than this client:"
                    " upgrade the kofm package"
                )
            result += lists[0]
            if not body.get("next") or (most is not None and len(result) >= most):
                return result
            parts["after"] = str(body["next"])

    def pools(self) -> List[Json]:
        """All pools: name, units, held, free, quarantined, waiting, protocol."""
        return self._list("/v1/pools")

    def pool(self, name: str) -> Json:
        """One pool."""
        result: Json = self.call("GET", f"/v1/pools/{escape(name)}")
        return result

    def put_pool(self, name: str, units: Union[int, Sequence[str]],
                 **options: Union[str, Sequence[str]]) -> Json:
        """Creates or resizes a pool; options are ``protocol`` and ``on_expiry``, and ``sites`` and
        ``zones``, lists of those that share it."""
        body: Json = {"units": units if isinstance(units, int) else list(units), **options}
        result: Json = self.call("PUT", f"/v1/pools/{escape(name)}", body, answer_within=15.0)
        return result

    def remove_pool(self, name: str) -> None:
        """Removes a pool that is not in use."""
        self.call("DELETE", f"/v1/pools/{escape(name)}", answer_within=15.0)

    def leases(self, pool: Optional[str] = None) -> List[Json]:
        """All leases of the cluster."""
        return self._list("/v1/leases", pool=pool)

    def queue(self, pool: Optional[str] = None) -> List[Json]:
        """All waiting requests, oldest first."""
        return self._list("/v1/queue", pool=pool)

    def members(self) -> List[Json]:
        """The sites, as the answering one sees them."""
        return self._list("/v1/members")

    def history(self, pool: Optional[str] = None, limit: Optional[int] = None) -> List[Json]:
        """Recent events, oldest first."""
        if limit is None:
            # One answer: the pages after it have earlier events.
            return self._list("/v1/history", most=1, pool=pool)
        # The first page has the latest events, each further one earlier events.
        events = self._list("/v1/history", most=limit, pool=pool, limit=limit)
        events.sort(key=lambda it: (it["at_ms"], it["site"], it.get("seq", 0)))
        return events[-limit:]

    # Semaphores and gangs

    def semaphore(self, name: str) -> "Semaphore":
        """A semaphore by name; nothing is sent."""
        return Semaphore(self, name)

    def semaphores(self) -> List[Json]:
        """All semaphores."""
        return self._list("/v1/semaphores")

    def gang(self, name: str) -> "Gang":
        """A gang by name; nothing is sent."""
        return Gang(self, name)

    def gangs(self) -> List[Json]:
        """All gangs."""
        return self._list("/v1/gangs")

    def who(self, owner: Optional[str]) -> str:
        """The owner that others see."""
        return owner or self._owner or default_owner()


class _LeaseKeeper(Keeper):
    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self._path = f"/v1/leases/{escape(id)}"

    def several(self) -> bool:
        return len(self._client._transport.addresses) > 1

    def renew(self, until: float) -> float:
        answer = self._client.call("POST", f"{self._path}/renew", until=until, hurry=True)
        return float(answer["expires_in_ms"]) / 1000

    def release(self, until: float) -> None:
        self._client.call("DELETE", self._path, until=until)


class Request:
    """A submitted request. `result` waits for the lease, `cancel` gives the request up."""

    def __init__(
        self,
        client: Client,
        path: str,
        body: Json,
        wait: Optional[Duration],
        ttl: Duration,
        owner: Optional[str],
        reason: Optional[str],
        id: Optional[str],
    ) -> None:
        self._client = client
        self._path = path
        self._wait = None if wait is None else seconds(wait, "wait")
        self._until = None if self._wait is None else now() + self._wait
        self._cancelled = threading.Event()
        #: The id of the request. Posted again, at any site, it is the same request.
        self.id: str = id or f"py-{uuid.uuid4().hex}"
        self._body: Json = {
            **body,
            "ttl": wire_duration(seconds(ttl, "ttl")),
            "id": self.id,
            "owner": client.who(owner),
        }
        if reason is not None:
            self._body["reason"] = reason
        self._sent = now()
        #: The last answer: state, position, blocked_by and so on.
        self.view: Json = {}
        self._post()

    @property
    def state(self) -> str:
        """The state at the last answer: queued, granted, released, expired, cancelled, failed."""
        return str(self.view.get("state"))

    @property
    def position(self) -> Optional[int]:
        """The place in the queue at the last answer."""
        return self.view.get("position")

    @property
    def blocked_by(self) -> List[Json]:
        """The leases and requests that the request waits for, at the last answer."""
        return list(self.view.get("blocked_by") or [])

    def refresh(self) -> "Request":
        """Asks a site for the present state."""
        self._poll(0.0)
        return self

    def cancel(self) -> None:
        """Gives the request up, also while another thread waits in `result`."""
        self._cancelled.set()
        try:
            self._client.cancel(self.id)
        except UnknownName:
            pass

    def result(self, on_lost: Optional[OnLost] = None) -> Lease:
        """Waits for the grant. An exception, also Ctrl-C, cancels the request."""
        try:
            sent, lease = self._granted()
            return self._hold(sent, lease, on_lost)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self.state in ("released", "expired", "cancelled", "failed"):
            return
        try:
            self._client.call("DELETE", f"/v1/requests/{escape(self.id)}", until=now() + PATIENCE)
        except KofmError:
            # No site answers: the request ends when its lease is not renewed.
            pass

    def _granted(self) -> Tuple[float, Json]:
        """Waits; returns a lease, and the moment from which its term counts."""
        waited = False
        while self.state == "queued":
            waited = True
            self._poll(_POLL)
        lease = self.view.get("lease")
        if self._cancelled.is_set():
            raise Cancelled(f"request {self.id} was cancelled")
        if self.state != "granted" or not isinstance(lease, dict):
            self._refused()
        if not waited:
            return self._sent, lease
        # How old the grant is, is not known here. A renewal has a known beginning.
        sent = now()
        renewed = self._client.call("POST", f"/v1/leases/{escape(lease['id'])}/renew")
        return sent, {**lease, "expires_in_ms": renewed["expires_in_ms"]}

    def _hold(self, sent: float, lease: Json, on_lost: Optional[OnLost]) -> Lease:
        term = float(lease["expires_in_ms"]) / 1000
        return Lease(lease, _LeaseKeeper(self._client, str(lease["id"])), sent, term, on_lost)

    def _refused(self) -> NoReturn:
        code, cause = self.view.get("code"), self.view.get("cause") or "not granted"
        what = ", ".join(f"{pool}:{units}" for pool, units in self.view.get("want", {}).items())
        if code == "busy":
            raise Busy(f"busy: {what} is not free now; omit wait=0 to queue", code)
        if code == "timeout":
            raise WaitTimeout(f"{what} was not granted within {self._wait:g} s", code)
        if self.state == "cancelled":
            raise Cancelled(f"request {self.id} was cancelled: {cause}", code)
        if self.state in ("expired", "released"):
            raise LeaseLost(f"request {self.id} is {self.state}: {cause}; acquire again", code)
        raise KofmError(f"{what} was not granted: {cause}", code)

    def _left(self) -> Optional[float]:
        return None if self._until is None else max(0.0, self._until - now())

    def _post(self) -> None:
        body = dict(self._body)
        left = self._left() if self.view else self._wait
        if left is not None:
            body["wait"] = wire_duration(left)
        within = PATIENCE + (1.0 if left == 0 else 0.0)
        self._see(self._client._transport.call("POST", self._path, body, answer_within=within))

    def _poll(self, wait: float) -> None:
        path = f"/v1/requests/{escape(self.id)}?wait={wire_duration(wait)}"
        transport = self._client._transport
        try:
            return self._see(transport.call("GET", path, answer_within=wait + PATIENCE))
        except (UnknownName, Unreachable) as error:
            known: KofmError = error
        # The site that knew the request is gone. Posted with its id, it is the same request.
        since = now()
        while True:
            if self._cancelled.is_set():
                raise Cancelled(f"request {self.id} was cancelled")
            left = self._left()
            if left is not None and left <= 0:
                raise WaitTimeout(f"not granted within {self._wait:g} s: {known}")
            try:
                return self._post()
            except Unreachable as error:
                known = error
                if now() - since > _SILENCE:
                    raise
            self._cancelled.wait(_PAUSE)

    def _see(self, answer: Answer) -> None:
        view = answer.body
        state = view.get("state") if isinstance(view, dict) else None
        if state not in _STATES:
            raise Incompatible(
                f"{answer.address} is newer than this client: unknown state {state!r} of a request;"
                " upgrade the kofm package"
            )
        self._sent = answer.sent
        self.view = view


class Semaphore:
    """A counter over all sites: P takes units and waits for them, V adds units."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self._path = f"/v1/semaphores/{escape(name)}"

    def __repr__(self) -> str:
        return f"<Semaphore {self.name}>"

    def p(
        self,
        k: int = 1,
        *,
        wait: Optional[Duration] = None,
        owner: Optional[str] = None,
        id: Optional[str] = None,
    ) -> None:
        """Takes ``k`` units as soon as it is this call's turn; ``wait=0`` tries once."""
        body: Json = {"k": k, "owner": self._client.who(owner)}
        within = None
        if wait is not None:
            limit = seconds(wait, "wait")
            body["wait"] = wire_duration(limit)
            within = limit + PATIENCE
        self._once(f"{self._path}/p", body, id, within)

    def v(self, m: int = 1, *, id: Optional[str] = None) -> None:
        """Adds ``m`` units; never waits."""
        self._once(f"{self._path}/v", {"m": m}, id, PATIENCE)

    def _once(self, path: str, body: Json, id: Optional[str], within: Optional[float]) -> None:
        """Calls with an id, so that a call that is repeated at another site counts once."""
        try:
            named = {**body, "id": id or f"py-{uuid.uuid4().hex}"}
            self._client.call("POST", path, named, answer_within=within)
        except Incompatible:
            if id is not None:
                raise
            # An older site takes no id: the call is repeated only if it was certainly not sent.
            self._client.call("POST", path, body, answer_within=within, repeatable=False)

    def get(self) -> Json:
        """Value, waiting calls, the next one, protocol."""
        result: Json = self._client.call("GET", self._path)
        return result

    @property
    def value(self) -> int:
        """The value now."""
        return int(self.get()["value"])

    def set(self, value: int, protocol: Optional[str] = None) -> Json:
        """Creates the semaphore, or gives it a new value while no call waits for it."""
        body: Json = {"value": value}
        if protocol is not None:
            body["protocol"] = protocol
        result: Json = self._client.call("PUT", self._path, body, answer_within=15.0)
        return result

    def remove(self) -> None:
        """Removes the semaphore."""
        self._client.call("DELETE", self._path, answer_within=15.0)


class GangLease(Lease):
    """The lease of a whole gang, and the share of each member."""

    #: Units by member and pool.
    shares: Dict[str, Dict[str, List[str]]]


class GangMember(Lease):
    """One member of a running gang; the other members run elsewhere."""

    gang: str
    member: str


class Gang:
    """Members at several sites that start together or not at all."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self._path = f"/v1/gangs/{escape(name)}"

    def __repr__(self) -> str:
        return f"<Gang {self.name}>"

    def set(self, members: Mapping[str, Union[Want, Sequence[Want], None]]) -> Json:
        """Defines the gang: what each member needs, by site; None if it needs no units."""
        wanted: Dict[str, Dict[str, int]] = {}
        for site, want in members.items():
            if want is None:
                wanted[site] = {}
            elif isinstance(want, (str, Mapping)):
                wanted[site] = demand([want])
            else:
                wanted[site] = demand(want)
        result: Json = self._client.call("PUT", self._path, {"members": wanted}, answer_within=15.0)
        return result

    def get(self) -> Json:
        """Members and state: idle, queued or running."""
        result: Json = self._client.call("GET", self._path)
        return result

    def remove(self) -> None:
        """Removes the gang; a run of it goes on."""
        self._client.call("DELETE", self._path, answer_within=15.0)

    def start(
        self,
        *,
        wait: Optional[Duration] = None,
        ttl: Duration = "30s",
        owner: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
    ) -> GangLease:
        """Acquires the units of all members as one lease; the caller starts all members."""
        request = Request(self._client, f"{self._path}/start", {}, wait, ttl, owner, None, None)
        members: Dict[str, Dict[str, int]] = request.view["members"]
        try:
            sent, answer = request._granted()
            keeper = _LeaseKeeper(self._client, str(answer["id"]))
            lease = GangLease(answer, keeper, sent, float(answer["expires_in_ms"]) / 1000, on_lost)
        except BaseException:
            request._give_up()
            raise
        # As the server does: members in the order of their names, each takes what it needs.
        left = {pool: list(units) for pool, units in lease.units.items()}
        lease.shares = {}
        for member in sorted(members):
            share = lease.shares[member] = {}
            for pool, count in members[member].items():
                share[pool], left[pool] = left[pool][:count], left[pool][count:]
        return lease

    def join(
        self,
        member: str,
        *,
        wait: Optional[Duration] = None,
        ttl: Duration = "30s",
        owner: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
    ) -> GangMember:
        """Waits until all members have joined, have their units, and have confirmed the start."""
        limit = None if wait is None else seconds(wait, "wait")
        until = None if limit is None else now() + limit
        body: Json = {
            "member": member,
            "token": uuid.uuid4().hex,
            "ttl": wire_duration(seconds(ttl, "ttl")),
            "owner": self._client.who(owner),
        }
        keeper = _MemberKeeper(self._client, f"{self._path}/join", body)
        try:
            sent, joined = self._meet(keeper, limit, until)
        except BaseException:
            try:
                keeper.release(now() + PATIENCE)
            except KofmError:
                pass
            raise
        keeper.body["run"] = joined["run"]
        answer = {
            "id": joined.get("lease") or "",
            "units": joined["units"],
            "fence": joined.get("fence") or 0,
            "ttl_ms": joined["ttl_ms"],
        }
        term = float(joined["expires_in_ms"]) / 1000
        result = GangMember(answer, keeper, sent, term, on_lost)
        result.gang, result.member = self.name, member
        return result

    def _meet(
        self, keeper: "_MemberKeeper", limit: Optional[float], until: Optional[float]
    ) -> Tuple[float, Json]:
        wait = 0.0
        pause = threading.Event()
        while True:
            sent = now()
            left = None if until is None else max(0.0, until - sent)
            try:
                joined = keeper.join(wait)
            except InUse:
                # An earlier run of the gang is not over.
                if left != 0:
                    pause.wait(0.2)
            else:
                if joined["state"] == "running":
                    if wait == 0:
                        keeper.body.pop("confirm", None)
                        return sent, joined
                    # The term counts from the call: ask once more without a wait.
                    wait = 0.0
                    continue
                if joined.get("confirm"):
                    keeper.body.update(run=joined["run"], confirm=joined["confirm"])
                else:
                    keeper.body.pop("confirm", None)
                    keeper.body.pop("run", None)
                wait = _POLL if left is None else min(_POLL, left)
            if left == 0:
                kind = Busy if limit == 0 else WaitTimeout
                raise kind(f"gang {self.name} did not start within {limit:g} s")


class _MemberKeeper(Keeper):
    def __init__(self, client: Client, path: str, body: Json) -> None:
        self._client = client
        self._path = path
        self.body = body

    def join(self, wait: float) -> Json:
        body = dict(self.body)
        if wait > 0:
            body["wait"] = wire_duration(wait)
        answer: Json = self._client.call("POST", self._path, body, answer_within=wait + PATIENCE)
        return answer

    def several(self) -> bool:
        return len(self._client._transport.addresses) > 1

    def renew(self, until: float) -> float:
        answer = self._client.call("POST", self._path, self.body, until=until)
        if answer["state"] != "running":
            raise LeaseLost(f"the gang's run is {answer['state']}")
        failed = answer.get("failed")
        if failed:
            raise LeaseLost(f"member {failed['member']} ended with code {failed['code']}")
        return float(answer["expires_in_ms"]) / 1000

    def release(self, until: float) -> None:
        self._client.call("POST", self._path, {**self.body, "leave": True}, until=until)


_default: Tuple[Tuple[Optional[str], ...], Optional[Client]] = ((), None)
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of KOFM_ADDR, KOFM_TOKEN and KOFM_CA."""
    global _default
    key = tuple(os.environ.get(name) for name in ("KOFM_ADDR", "KOFM_TOKEN", "KOFM_CA"))
    with _default_lock:
        if _default[1] is None or _default[0] != key:
            _default = (key, Client())
        client = _default[1]
        assert client is not None
        return client
