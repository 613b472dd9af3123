"""Clusters of several processes, with a site killed; and leases whose sites do not answer."""

from __future__ import annotations

import signal
import threading

import kofm
import pytest
from conftest import Cluster, until


def test_new_requests_go_to_a_live_site(cluster):
    client = kofm.Client(cluster.addr)
    client._transport.current = 0
    with client.acquire("gpu"):
        pass
    cluster.kill(0)
    with client.acquire("gpu", wait="80s") as lease:
        assert lease.site in ("s1", "s2")
    assert client._transport.current != 0


def test_leases_outlive_a_site_that_falls_silent(cluster):
    client = kofm.Client([cluster.http[1], cluster.http[0], cluster.http[2]])
    client._transport.current = 0
    leases = [client.acquire("gpu") for _ in range(2)]
    assert {lease.site for lease in leases} == {"s1"}
    cluster.processes[1].send_signal(signal.SIGSTOP)
    look = kofm.Client([cluster.http[0]])
    fences = {lease.fence for lease in leases}

    def moved():
        assert not any(lease.lost for lease in leases)
        found = [it for it in look.leases("gpu") if it["site"] != "s1"]
        return {it["fence"] for it in found} == fences

    until("other sites have the leases", moved)
    # Longer than any promise of the site that is silent.
    until("the quarantine is over", lambda: all(
        not it["member"] and not it.get("quarantine_ms")
        for it in look.members() if it["site"] == "s1"
    ))
    assert not any(lease.lost for lease in leases)
    for lease in leases:
        lease.release()


def test_a_waiting_request_moves_to_a_live_site(cluster):
    holder = kofm.Client(cluster.http[1]).acquire("gpu:2")
    client = kofm.Client(cluster.addr)
    client._transport.current = 0
    request = client.request("gpu:2")
    assert request.state == "queued"
    got = []
    thread = threading.Thread(target=lambda: got.append(request.result()))
    thread.start()
    cluster.kill(0)
    until("it waits elsewhere", lambda: request.view["site"] != "s0")
    assert request.view["id"] == request.id
    holder.release()
    thread.join()
    assert got[0].site in ("s1", "s2")
    got[0].release()


def test_a_lease_of_a_dead_cluster_is_lost_in_time(tmp_path):
    cluster = Cluster(tmp_path, sites=1)
    try:
        lease = kofm.Client(cluster.addr).acquire("gpu", ttl="2s")
        cluster.kill(0)
        # The deadline of the lease is known before the loss, and no renewal moves it.
        assert lease.lost.wait(60)
        assert "its term ended" in lease.lost.cause
        with pytest.raises(kofm.LeaseLost, match="acquire again"):
            lease.check()
    finally:
        cluster.stop()


def test_a_lease_survives_a_restart_of_its_site(tmp_path):
    cluster = Cluster(tmp_path, sites=1)
    try:
        lease = kofm.Client(cluster.addr).acquire("gpu", ttl="60s")
        cluster.kill(0)
        cluster.start(0)
        cluster.ready()
        with lease:
            lease._keeper.renew(lease.lost._deadline)
            assert not lease.lost
    finally:
        cluster.stop()


def test_unix_sockets_work(cluster):
    with kofm.Client(cluster.sockets[0]).acquire("gpu") as lease:
        assert lease.site == "s0"
    cluster.kill(0)
    client = kofm.Client([cluster.sockets[0], cluster.sockets[1]])
    client._transport.current = 0
    with client.acquire("gpu", wait="80s") as lease:
        assert lease.site == "s1"
