"""HTTP calls to one of several sites, with failover."""

from __future__ import annotations

import errno
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from typing import Any, Dict, List, NoReturn, Optional, Type
from urllib.parse import quote

from ._errors import (
    Busy,
    Forbidden,
    Incompatible,
    Infeasible,
    InUse,
    KofmError,
    LeaseLost,
    Malformed,
    NotKofm,
    Unauthorized,
    Unreachable,
    UnknownName,
    WaitTimeout,
)
from ._values import Address, now

#: Seconds for a connection, and for an answer that does not wait.
PATIENCE = 5.0

#: Seconds after which the next address is asked to renew a lease: the first one has to be quick,
#: the others may first have to find out that its site is gone.
HEDGE = 0.25
_HEDGED = 1.5

#: Seconds for which a call is repeated while sites answer that they do not know now. A site that
#: died is left out of the cluster after its site lease, 5 s unless the configuration says otherwise.
UNSURE = 15.0
MAX_ANSWER = 256 << 20
MAX_IDLE = 8

_CODES: Dict[str, Type[KofmError]] = {
    "busy": Busy,
    "timeout": WaitTimeout,
    "infeasible": Infeasible,
    "in-use": InUse,
    "gone": LeaseLost,
    "malformed": Malformed,
    "unknown-pool": UnknownName,
    "unknown-request": UnknownName,
    "unknown-semaphore": UnknownName,
    "unknown-gang": UnknownName,
}


class _Away(Exception):
    """One address did not serve a call; the next one is tried."""

    def __init__(self, error: Unreachable, sent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        #: Whether the call may have had an effect.
        self.sent = sent


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Answer:
    """Status, body and headers of an answer, where it came from, and when its call was sent."""

    def __init__(
        self, status: int, body: Any, headers: Any, address: Address, sent: float
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.address = address
        self.sent = sent


class Transport:
    """Calls the site that answered last; moves on if it does not answer."""

    def __init__(
        self,
        addresses: List[Address],
        token: Optional[str],
        context: Optional[ssl.SSLContext],
    ) -> None:
        self.addresses = addresses
        self._token = token
        self._context = context
        # Clients start at different sites, so that they do not all use the first one.
        self.current = random.randrange(len(addresses))
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: Dict[Address, List[http.client.HTTPConnection]] = {}

    def close(self) -> None:
        """Closes the connections that are kept for later calls."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: Optional[Dict[str, Any]] = None,
        *,
        repeatable: bool = True,
        answer_within: Optional[float] = PATIENCE,
        until: Optional[float] = None,
        hurry: bool = False,
    ) -> Answer:
        """Calls each address in turn, until one answers.

        Where all fail and a site said that it does not know now (503), they are all called again
        for up to `UNSURE` seconds: that ends when the cluster has left out a site that died.
        A call that is not ``repeatable`` goes to another site only if it was certainly not sent.
        ``answer_within`` None waits for the answer as long as the connection lives.
        ``until`` is a moment of `now` after which no further address is tried. A call in a
        ``hurry`` leaves an address that is silent for `HEDGE` seconds.
        """
        if self._pid != os.getpid():
            # Connections of the parent process must not be shared.
            self._reset()
        started, pause = now(), 0.1
        while True:
            failures: List[Unreachable] = []
            unsure = False
            for step in range(len(self.addresses)):
                index = self.current
                patience = answer_within
                if hurry and len(self.addresses) > 1:
                    patience = _HEDGED if step else HEDGE
                if until is not None:
                    left = max(0.05, until - now())
                    patience = left if patience is None else min(patience, left)
                try:
                    answer = self._once(self.addresses[index], method, path, body, patience)
                    if answer.status == 503:
                        unsure = True
                        text = f"{answer.address}: {_message(answer)}"
                        raise _Away(Unreachable(text, _code(answer)), False)
                    if answer.status >= 400:
                        refuse(answer, method, path, self._token is not None)
                    return answer
                except _Away as away:
                    failures.append(away.error)
                    if self.current == index:
                        self.current = (index + 1) % len(self.addresses)
                    if away.sent and not repeatable:
                        raise Unreachable(
                            f"{away.error}; the call was sent and may have had an effect: check"
                            " before you repeat it"
                        ) from away
                if until is not None and now() >= until:
                    break
            end = started + UNSURE if until is None else min(until, started + UNSURE)
            if not (unsure or hurry) or now() + pause >= end:
                break
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        if len(failures) == 1:
            raise failures[0]
        kind = NotKofm if all(isinstance(it, NotKofm) for it in failures) else Unreachable
        texts = "; ".join(str(it) for it in failures)
        raise kind(f"no site answers at {len(failures)} addresses: {texts}")

    def _once(
        self,
        address: Address,
        method: str,
        path: str,
        body: Optional[Dict[str, Any]],
        patience: Optional[float],
    ) -> Answer:
        headers = {"accept": "application/json", "user-agent": "kofm-python"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        kept = self._take(address)
        if kept is not None:
            try:
                return self._send(kept, address, method, path, data, headers, patience)
            except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError):
                # The site closed a connection that was kept. Whether the call arrived is unknown:
                # every method but POST may be repeated, and so may a POST with an id.
                if method == "POST" and not (body and "id" in body) and "/renew" not in path:
                    kept.close()
                    raise _Away(
                        Unreachable(f"{address} closed the connection before it answered"), True
                    ) from None
            except (OSError, http.client.HTTPException) as error:
                raise _Away(_explain(address, error, True, patience), True) from error
            finally:
                if kept.sock is None:
                    kept.close()
        connection = self._connect(address, patience)
        try:
            return self._send(connection, address, method, path, data, headers, patience)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _Away(_explain(address, error, True, patience), True) from error
        except _Away:
            connection.close()
            raise

    def _take(self, address: Address) -> Optional[http.client.HTTPConnection]:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _connect(self, address: Address, patience: Optional[float]) -> http.client.HTTPConnection:
        within = PATIENCE if patience is None else min(PATIENCE, patience)
        connection: http.client.HTTPConnection
        if address.scheme == "unix":
            connection = _UnixConnection(address.host, within)
        elif address.scheme == "https":
            context = self._context or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                address.host, address.port, timeout=within, context=context
            )
        else:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=within)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _Away(_explain(address, error, False, within), False) from error
        if address.scheme != "unix":
            _keep_alive(connection.sock)
        return connection

    def _send(
        self,
        connection: http.client.HTTPConnection,
        address: Address,
        method: str,
        path: str,
        data: Optional[bytes],
        headers: Dict[str, str],
        patience: Optional[float],
    ) -> Answer:
        connection.sock.settimeout(patience)
        sent = now()
        connection.request(method, path, body=data, headers=headers)
        response = connection.getresponse()
        raw = response.read(MAX_ANSWER)
        content = _decode(raw, response, address)
        answer = Answer(response.status, content, response.headers, address, sent)
        if connection.sock is not None:
            with self._lock:
                idle = self._idle.setdefault(address, [])
                if len(idle) < MAX_IDLE:
                    idle.append(connection)
                else:
                    connection.close()
        return answer


def _keep_alive(sock: socket.socket) -> None:
    """Makes the kernel notice a peer that is gone while an answer is awaited."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:
        pass


def _decode(raw: bytes, response: http.client.HTTPResponse, address: Address) -> Any:
    kind = response.headers.get("content-type", "")
    if "json" in kind:
        try:
            return json.loads(raw)
        except ValueError:
            pass
    elif kind.startswith("text/plain") and response.status == 200:
        return raw.decode("utf-8", "replace")
    raise _Away(_not_kofm(response, address, raw), True)


def _not_kofm(response: http.client.HTTPResponse, address: Address, raw: bytes) -> NotKofm:
    status = response.status
    text = raw[:400].decode("latin-1").lower()
    if status == 400 and "https" in text:
        return NotKofm(f"{address}: the server requires TLS; write https:// in KOFM_ADDR")
    server = response.headers.get("via") or response.headers.get("server")
    name = f" ({server})" if server else ""
    if status == 407:
        return NotKofm(
            f"{address}: a proxy{name} requires its own login; give clients a direct route to the"
            " sites"
        )
    if status in (502, 504) or response.headers.get("via"):
        return NotKofm(
            f"{address}: a proxy{name} answered with status {status} instead of the site; check"
            " the proxy, or give KOFM_ADDR the site's own address"
        )
    return NotKofm(
        f"{address}: another server or a proxy{name} answered with status {status} instead of a"
        " kofm site; KOFM_ADDR must have the `http` address of a site"
    )


def _explain(
    address: Address, error: BaseException, sent: bool, patience: Optional[float]
) -> Unreachable:
    """One sentence about a call that failed, with the next step."""
    where = str(address)
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unreachable(
            f"{where}: the certificate is not trusted ({error.verify_message}); set KOFM_CA to"
            " the cluster's CA file"
        )
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"):
            return NotKofm(
                f"{where}: the server does not speak TLS; write http:// in KOFM_ADDR"
            )
        return Unreachable(f"{where}: TLS failed: {reason}; check KOFM_CA and the address")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{where}: the host name is unknown; check KOFM_ADDR")
    if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return Unreachable(
            f"{where} closed the connection without an answer: the site stopped, or this is not its"
            " `http` address but that of its peers, or it requires https://; check KOFM_ADDR"
        )
    if isinstance(error, http.client.HTTPException):
        if "\x15\x03" in str(error) or "\\x15\\x03" in repr(error):
            return NotKofm(f"{where}: the server requires TLS; write https:// in KOFM_ADDR")
        return NotKofm(
            f"{where}: the answer is not HTTP; KOFM_ADDR must have the `http` address of a site,"
            " not the address of its peers"
        )
    if isinstance(error, socket.timeout):
        what = "no answer" if sent else "no connection"
        return Unreachable(
            f"{where}: {what} within {patience or PATIENCE:.1f} s; check that the site runs and"
            " that no firewall drops its packets"
        )
    number = getattr(error, "errno", None)
    if number == errno.ECONNREFUSED:
        return Unreachable(f"{where}: no process listens there; start the site or correct the port")
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return Unreachable(f"{where}: there is no route to the host; check KOFM_ADDR and the network")
    if number == errno.ENOENT and address.scheme == "unix":
        return Unreachable(f"{where}: the socket does not exist; start the site or correct `socket`")
    if number == errno.EACCES:
        return Unreachable(f"{where}: this user may not open the socket; check its directory")
    return Unreachable(f"{where}: {error or type(error).__name__}; check that the site runs")


def _message(answer: Answer) -> str:
    body = answer.body
    text = body.get("message") if isinstance(body, dict) else None
    return text if isinstance(text, str) else f"status {answer.status}"


def _code(answer: Answer) -> Optional[str]:
    body = answer.body
    code = body.get("error") if isinstance(body, dict) else None
    return code if isinstance(code, str) else None


def refuse(answer: Answer, method: str, path: str, had_token: bool) -> NoReturn:
    """Raises the exception for an answer of status 400 and above."""
    code, text = _code(answer), _message(answer)
    where = str(answer.address)
    # Sites before 0.2 answer 403 if the token is missing or wrong.
    no_token = answer.status == 403 and "wants a token" in text
    if answer.status == 401 or no_token:
        if not had_token:
            raise Unauthorized(
                f"token missing: {where} requires one; set KOFM_TOKEN, or pass token=", code
            )
        told = "" if no_token else f" ({text})"
        raise Unauthorized(
            f"token rejected by {where}{told}: it is expired, revoked or of another cluster; get a"
            " new one with `kofm token create` and set KOFM_TOKEN",
            code,
        )
    if answer.status == 403:
        raise Forbidden(f"not allowed: {text}", code)
    if code in ("not-found", "method") or (code is None and answer.status in (404, 405)):
        raise Incompatible(
            f"{where} does not know {method} {path.split('?')[0]}: the server's version does not"
            " match this client; upgrade the older of the two (`kofm --version`, `pip show kofm`)",
            code,
        )
    if answer.status == 422 and "unknown field" in text:
        raise Incompatible(
            f"{where} is older than this client: {text}; upgrade the server, or install an older"
            " kofm package",
            code,
        )
    kind = _CODES.get(code or "")
    if kind is None:
        kind = {409: Busy, 410: LeaseLost, 404: UnknownName, 422: Malformed}.get(
            answer.status, KofmError
        )
    raise kind(text, code)


def escape(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
