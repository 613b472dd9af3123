"""Each fault of the way to a site is one sentence that says what to do."""

from __future__ import annotations

import http.server
import json
import pathlib
import shutil
import socket
import ssl
import subprocess
import threading

import kofm
import pytest
from conftest import Up


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers what the test says; `script` maps "METHOD /path" to answers, the last is repeated."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        self.server.seen.append((self.command, self.path, body))
        script = self.server.script
        status, kind, text, headers = script.pop(0) if len(script) > 1 else script[0]
        if status == 0:
            self.close_connection = True
            return
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


def js(status, value, **headers):
    return (status, "application/json", json.dumps(value), headers)


DROP = (0, "", "", {})
LEASE = {"id": "secret", "request": "r", "units": {"gpu": ["0"]}, "fence": 1, "ttl_ms": 60000,
         "expires_in_ms": 60000, "site": "s0", "epoch": 1, "new_field": 1}
GRANTED = {"id": "r", "state": "granted", "want": {"gpu": 1}, "lease": LEASE, "new_field": 1}


@pytest.fixture
def scripted():
    servers = []

    def start(*script):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        server.script, server.seen = list(script), []
        server.addr = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def fails(addr, kind, *texts, **options):
    with pytest.raises(kind) as caught:
        kofm.Client(addr, **options).acquire("gpu", wait=0)
    message = str(caught.value)
    assert "\n" not in message and not message.endswith(".")
    for text in texts:
        assert text in message, message
    return message


def test_no_process_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        fails(f"127.0.0.1:{sock.getsockname()[1]}", kofm.Unreachable, "no process listens")


def test_unknown_host_and_missing_socket(tmp_path):
    fails("http://kofm.invalid:7600", kofm.Unreachable, "host name is unknown", "check KOFM_ADDR")
    fails(f"unix:{tmp_path}/none", kofm.Unreachable, "socket does not exist")


def test_no_route(monkeypatch):
    def connect(*_args, **_options):
        raise OSError(113, "No route to host")

    monkeypatch.setattr(socket, "create_connection", connect)
    fails("http://10.9.8.7:7600", kofm.Unreachable, "no route to the host")


def test_silence_names_the_firewall(monkeypatch):
    monkeypatch.setattr("kofm._transport.PATIENCE", 0.2)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        client = kofm.Client(f"127.0.0.1:{sock.getsockname()[1]}")
        with pytest.raises(kofm.Unreachable, match="no answer within 0.2 s.*firewall"):
            client.call("GET", "/v1/pools", answer_within=0.2)


@pytest.mark.parametrize("text", ["ftp://a:1", "http://a", "http://a:0", "unix:", "a:99999", "a b:1", "http://a:1/x"])
def test_bad_addresses_are_named(text, monkeypatch):
    with pytest.raises(kofm.Malformed, match="must be http://HOST:PORT"):
        kofm.Client(f"http://127.0.0.1:7600,{text}")
    monkeypatch.setenv("KOFM_ADDR", text)
    with pytest.raises(kofm.Malformed, match="KOFM_ADDR"):
        kofm.Client()


def test_https_to_a_plain_site(up):
    fails(up.http[0].replace("http:", "https:"), kofm.NotKofm, "does not speak TLS", "write http://")


def test_the_port_of_peers(cluster):
    fails(f"127.0.0.1:{cluster.ports[0]}", kofm.Unreachable, "not its `http` address", "peers")


def test_another_server_and_proxies(scripted):
    other = scripted((200, "text/html", "<h1>Welcome</h1>", {}))
    fails(other.addr, kofm.NotKofm, "another server or a proxy", "status 200")
    proxy = scripted((502, "text/html", "<h1>Bad Gateway</h1>", {"via": "1.1 squid"}))
    fails(proxy.addr, kofm.NotKofm, "a proxy (1.1 squid)", "check the proxy")
    login = scripted((407, "text/html", "", {}))
    fails(login.addr, kofm.NotKofm, "requires its own login")
    tls = scripted((400, "text/plain", "Client sent an HTTP request to an HTTPS server.", {}))
    fails(tls.addr, kofm.NotKofm, "write https://")


def test_older_and_newer_servers(scripted):
    old = scripted(js(404, {"error": "not-found", "message": "nothing"}))
    fails(old.addr, kofm.Incompatible, "does not know POST /v1/requests", "upgrade the older")
    old = scripted(js(422, {"error": "malformed", "message": "the body: unknown field `id`"}))
    fails(old.addr, kofm.Incompatible, "older than this client", "upgrade the server")
    new = scripted(js(200, {"id": "r", "state": "promised"}))
    fails(new.addr, kofm.Incompatible, "newer than this client", "'promised'", "upgrade the kofm")


def test_tokens(tmp_path, scripted):
    (tmp_path / "tokens").write_text("right\n")
    up = Up(tmp_path, "--sites", "1", "--token-file", str(tmp_path / "tokens"))
    try:
        fails(up.addr, kofm.Unauthorized, "token missing", "set KOFM_TOKEN")
        message = fails(up.addr, kofm.Unauthorized, "token rejected", "kofm token create", token="wrong")
        assert "wrong" not in message
        with kofm.Client(up.addr, token="right").acquire("gpu"):
            pass
    finally:
        up.stop()
    expired = scripted(js(401, {"error": "unauthorized", "message": "the token expired"}))
    fails(expired.addr, kofm.Unauthorized, "token rejected", "the token expired", token="t")
    lacking = scripted(js(403, {"error": "forbidden", "message": "`ci` lacks acquire on gpu"}))
    fails(lacking.addr, kofm.Forbidden, "not allowed: `ci` lacks acquire", token="t")
    with pytest.raises(kofm.Malformed, match="one line"):
        kofm.Client(token="two\nlines")


def test_unknown_fields_are_ignored(scripted):
    server = scripted(js(200, GRANTED))
    lease = kofm.Client(server.addr).acquire("gpu")
    assert lease.fence == 1
    lease.release()


def test_a_request_is_repeated_elsewhere_under_its_id(scripted):
    for first in (DROP, js(503, {"error": "draining", "message": "stops"}),
                  (504, "text/html", "", {})):
        a, b = scripted(first), scripted(js(200, GRANTED))
        client = kofm.Client([a.addr, b.addr])
        client._transport.current = 0
        client.acquire("gpu").release()
        ids = [json.loads(it.seen[0][2])["id"] for it in (a, b)]
        assert ids[0] == ids[1]


def test_a_refusal_is_not_tried_elsewhere(scripted):
    a = scripted(js(409, {"error": "infeasible", "message": "never"}))
    b = scripted(js(200, GRANTED))
    client = kofm.Client([a.addr, b.addr])
    client._transport.current = 0
    with pytest.raises(kofm.Infeasible):
        client.acquire("gpu")
    assert b.seen == []


def test_an_add_without_an_id_is_not_repeated_after_it_was_sent(scripted):
    old = js(422, {"error": "malformed", "message": "unknown field `id`"})
    a, b = scripted(old, DROP), scripted(js(200, {}))
    client = kofm.Client([a.addr, b.addr])
    client._transport.current = 0
    with pytest.raises(kofm.Unreachable, match="may have had an effect"):
        client.semaphore("s").v()
    assert b.seen == []


def test_a_lost_lease_is_reported_by_the_clock_alone(scripted, monkeypatch):
    short = {**LEASE, "expires_in_ms": 300}
    slow = scripted(js(200, {**GRANTED, "lease": short}), js(503, {"error": "draining"}))
    lease = kofm.Client(slow.addr).acquire("gpu")
    # Even without the renewing thread and the watchdog.
    lease._stop.set()
    import kofm._lease as module
    start = module.now()
    monkeypatch.setattr(module, "now", lambda: start + 0.295)
    assert lease.lost.is_set()
    with pytest.raises(kofm.LeaseLost):
        lease.check()


def test_a_page_list_is_read_to_its_end(scripted):
    server = scripted(js(200, {"leases": [{"name": "a"}], "next": "c 1"}), js(200, {"leases": []}))
    assert kofm.Client(server.addr).leases() == [{"name": "a"}]
    assert server.seen[1][1] == "/v1/leases?after=c%201"


def test_a_list_that_was_cut_is_read_to_its_end(scripted):
    server = scripted(
        js(200, [{"name": "a"}], link='</v1/leases?pool=gpu&after=7b5d>; rel="next"'),
        js(200, {"leases": [{"name": "b"}], "next": "7b5e"}),
        js(200, {"leases": [{"name": "c"}]}),
    )
    leases = kofm.Client(server.addr).leases("gpu")
    assert [lease["name"] for lease in leases] == ["a", "b", "c"]
    assert [seen[1] for seen in server.seen] == [
        "/v1/leases?pool=gpu",
        "/v1/leases?pool=gpu&after=7b5d",
        "/v1/leases?pool=gpu&after=7b5e",
    ]


def test_history_is_read_until_its_limit_and_is_in_order(scripted):
    def page(*times, **more):
        events = [{"at_ms": time, "site": "a", "seq": time} for time in times]
        return js(200, {"history": events, **more})

    server = scripted(page(3, 4, next="c1"), page(1, 2, next="c2"))
    events = kofm.Client(server.addr).history(limit=3)
    assert [event["at_ms"] for event in events] == [2, 3, 4]
    assert [seen[1] for seen in server.seen] == [
        "/v1/history?limit=3",
        "/v1/history?limit=3&after=c1",
    ]


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_tls_with_the_ca_of_the_cluster(scripted, tmp_path: pathlib.Path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout",
         str(tmp_path / "key"), "-out", str(tmp_path / "cert"), "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )
    server = scripted(js(200, GRANTED))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    addr = f"https://localhost:{server.server_address[1]}"
    kofm.Client(addr, cafile=str(tmp_path / "cert")).acquire("gpu").release()
    fails(addr, kofm.Unreachable, "not trusted", "KOFM_CA")
    fails(server.addr, kofm.Unreachable, "https://")
    with pytest.raises(kofm.Malformed, match="KOFM_CA"):
        kofm.Client(addr, cafile=str(tmp_path / "key"))
