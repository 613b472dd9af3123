"""Leases, semaphores and gangs against one cluster in one process."""

from __future__ import annotations

import asyncio
import os
import threading

import kofm
import kofm.aio
import pytest
from conftest import until


@pytest.fixture
def client(up):
    with kofm.Client(up.addr) as client:
        yield client
        # Each test gives back what it took.
        until("all is free", lambda: not client.leases() and not client.queue())


def test_a_lease_is_granted_and_released(client):
    with client.acquire("gpu:2", "licence", reason="test") as lease:
        assert len(lease.units["gpu"]) == 2 and len(lease.units["licence"]) == 1
        assert lease.fence > 0 and lease.expires_in > 0 and not lease.lost
        env = lease.env()
        assert env["KOFM_UNITS_GPU"] == ",".join(lease.units["gpu"])
        assert lease.id not in repr(lease)
        lease.check()
        assert client.pool("gpu")["held"] == 2
    lease.release()
    assert lease.expires_in == 0 and not lease.lost


def test_the_environment_names_the_sites(up, monkeypatch, client):
    monkeypatch.setenv("KOFM_ADDR", up.addr)
    with kofm.acquire({"gpu": 1}) as lease:
        assert lease.site
        assert kofm.try_acquire("gpu:4") is None


def test_refusals_have_their_own_types(client):
    for want, kind, text in [
        ("gpu:9", kofm.Infeasible, "9"),
        ("nonsense", kofm.UnknownName, "nonsense"),
        ("gpu:0", kofm.Malformed, "must be at least 1"),
        ("gpu:x", kofm.Malformed, "must be a number"),
        ("", kofm.Malformed, "must be named"),
    ]:
        with pytest.raises(kind, match=text):
            client.acquire(want)
    with pytest.raises(kofm.Malformed, match="twice"):
        client.acquire("gpu", "gpu:2")
    with pytest.raises(kofm.Malformed, match="must be a number of seconds"):
        client.acquire("gpu", wait="5x")
    with client.acquire("licence:2"):
        with pytest.raises(kofm.Busy):
            client.acquire("licence", wait=0)
        with pytest.raises(kofm.WaitTimeout, match="0.2 s"):
            client.acquire("licence", wait="200ms")


def test_a_request_waits_shows_its_blockers_and_is_granted(client):
    first = client.acquire("licence:2", owner="alice")
    request = client.request("licence", owner="bob")
    assert request.state == "queued"
    until("it is blocked", lambda: request.refresh().blocked_by)
    assert request.blocked_by[0]["owner"] == "alice"
    got = []
    thread = threading.Thread(target=lambda: got.append(request.result()))
    thread.start()
    first.release()
    thread.join()
    assert got[0].units["licence"] and got[0].expires_in > 0
    got[0].release()


def test_the_same_id_is_one_request(up, client):
    one = client.request("licence", id="same-id")
    other = kofm.Client(up.http[2]).request("licence", id="same-id")
    assert one.view["lease"]["id"] == other.view["lease"]["id"]
    other.cancel()


def test_a_cancelled_wait_leaves_nothing_behind(client):
    with client.acquire("licence:2"):
        request = client.request("licence")
        errors = []

        def wait():
            try:
                request.result()
            except kofm.KofmError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        request.cancel()
        thread.join()
        assert isinstance(errors[0], kofm.Cancelled)
        assert client.queue() == []


def test_a_thread_renews_the_lease(client):
    before = renewed(client)
    with client.acquire("gpu", ttl="5s") as lease:
        first = lease.lost._deadline
        until("renewals", lambda: renewed(client) >= before + 2)
        until("a later deadline", lambda: lease.lost._deadline > first)


def renewed(client):
    text = "".join(
        kofm.Client(str(it)).call("GET", "/metrics") for it in client._transport.addresses
    )
    lines = [line for line in text.splitlines() if line.startswith("kofm_leases_renewed_total")]
    return sum(int(line.split()[1]) for line in lines)


def test_a_lease_that_was_taken_away_is_lost(client):
    told = []
    with pytest.raises(kofm.LeaseLost, match="stop using the units"):
        with client.acquire("gpu", ttl="1s", on_lost=told.append) as lease:
            client.call("DELETE", f"/v1/leases/{lease.id}")
            assert lease.lost.wait(60)
            assert lease.lost.cause
            assert lease.expires_in == 0
    until("the callback", lambda: told == [lease])


def test_an_exception_of_the_body_is_not_hidden_by_a_loss(client):
    with pytest.raises(ZeroDivisionError):
        with client.acquire("gpu", ttl="1s") as lease:
            client.call("DELETE", f"/v1/leases/{lease.id}")
            lease.lost.wait(60)
            1 / 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_the_lease_to_its_parent(client):
    with client.acquire("gpu") as lease:
        pid = os.fork()
        if pid == 0:
            try:
                lease.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert [it["request"] for it in client.leases()] == [lease.request]


def test_semaphores_count(client):
    slots = client.semaphore("slots")
    slots.set(2)
    slots.p(2)
    assert slots.value == 0
    with pytest.raises(kofm.Busy):
        slots.p(wait=0)
    with pytest.raises(kofm.WaitTimeout):
        slots.p(wait="100ms")
    thread = threading.Thread(target=slots.p)
    thread.start()
    slots.v()
    thread.join()
    until("the value is 0", lambda: slots.value == 0)
    assert [it["name"] for it in client.semaphores()] == ["slots"]
    slots.remove()
    with pytest.raises(kofm.UnknownName):
        slots.v()


def test_a_gang_starts_as_a_whole(client):
    pair = client.gang("pair")
    pair.set({"s0": "gpu:1", "s1": ["gpu:1", "licence"]})
    with pair.start() as lease:
        assert sorted(lease.shares) == ["s0", "s1"]
        assert len(lease.shares["s1"]["licence"]) == 1
        assert lease.shares["s0"]["gpu"] != lease.shares["s1"]["gpu"]
        assert pair.get()["state"] == "running"
    pair.remove()


def test_members_of_a_gang_meet(up, client):
    client.gang("meet").set({"s0": "gpu:1", "s1": "gpu:2"})
    members = []

    def join(site):
        members.append(kofm.Client(up.http[int(site[1])]).gang("meet").join(site))

    threads = [threading.Thread(target=join, args=(site,)) for site in ("s0", "s1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((it.member, len(it.units["gpu"])) for it in members) == [("s0", 1), ("s1", 2)]
    for it in members:
        it.release()
        assert not it.lost
    client.gang("meet").remove()
    with pytest.raises(kofm.UnknownName):
        client.gang("meet").join("s0", wait=0)


def test_asyncio_acquires_and_releases(up, client):
    async def main():
        aio = kofm.aio.Client(up.addr)
        async with aio.acquire("gpu:2") as lease:
            assert len(lease.units["gpu"]) == 2
            pools = await aio.run(lambda it: it.pools())
            assert {it["name"] for it in pools} >= {"gpu"}
        lease = await aio.acquire("gpu")
        lease.release()

    asyncio.run(main())


def test_asyncio_cancels_the_task_of_a_lost_lease(up, client):
    async def main():
        with pytest.raises(kofm.LeaseLost):
            async with kofm.aio.Client(up.addr).acquire("gpu", ttl="1s") as lease:
                client.call("DELETE", f"/v1/leases/{lease.id}")
                await asyncio.sleep(3600)
        # The task is usable afterwards.
        await asyncio.sleep(0)

    asyncio.run(main())


def test_asyncio_renews_while_the_loop_is_blocked(up, client):
    async def main():
        async with kofm.aio.Client(up.addr).acquire("gpu", ttl="5s") as lease:
            first = lease.lost._deadline
            # This blocks the loop.
            until("a later deadline", lambda: lease.lost._deadline > first)

    asyncio.run(main())


def test_asyncio_cancellation_leaves_nothing_behind(up, client):
    async def main():
        with client.acquire("licence:2"):
            task = asyncio.ensure_future(kofm.aio.Client(up.addr).acquire("licence")._acquire())
            while not client.queue():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            until("the queue is empty", lambda: client.queue() == [])

    asyncio.run(main())


def test_asyncio_semaphores(up, client):
    async def main():
        slots = kofm.aio.Client(up.addr).semaphore("async")
        await asyncio.gather(slots.p(), slots.v())

    client.semaphore("async").set(0)
    asyncio.run(main())
    client.semaphore("async").remove()
