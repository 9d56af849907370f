"""Joining a cluster, and checks of its nodes; real processes of Ray on this machine, which end with the tests."""

import socket
import threading

import pytest
import ray
from helpers import shard_tasks
from helpers.ray_cluster import Cluster, eventually, free_port

from pucache.errors import EngineError
from pucache.scaling.cluster import check_nodes, joined, nodes
from pucache.scaling.tasks import cluster_tasks, count

# --- joining -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "nowhere:port", "127.0.0.1:99999999", "127.0.0.1:{free}"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(EngineError, match=r"^the address of a Ray cluster is HOST:PORT|^no Ray cluster answers at"):
        joined(address.format(free=free_port())).__enter__()


def test_a_server_that_is_none_of_rays_is_refused():
    def answer():
        client, _ = server.accept()
        with client:
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.recv(2**16)

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EngineError, match=f"^no Ray cluster answers at {address} "):
            joined(address).__enter__()
        thread.join()


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_told_apart_from_one_that_is_not_there():
    with Cluster() as guarded:
        guarded.start("--num-cpus=1", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)
        with pytest.raises(EngineError, match=rf"^the Ray cluster at {guarded.address} asks for a token .* RAY_AUTH"):
            joined(guarded.address).__enter__()


@pytest.mark.slow
def test_a_cluster_that_has_lost_its_cpus_is_named_until_a_machine_joins(monkeypatch, caplog):
    monkeypatch.setattr("pucache.scaling.tasks.WARNING_SECONDS", 0.2)
    with Cluster() as started:
        started.start("--num-cpus=0")
        first = started.start("--num-cpus=1")
        with joined(started.address), cluster_tasks(workers=1) as opened:
            assert eventually(lambda: ray.cluster_resources().get("CPU") == 1), started.logs
            results = opened.map(shard_tasks.double, {"factor": 3}, range(9))
            assert next(results) == 0 and not caplog.records
            started.stop(first)
            rest = threading.Thread(target=lambda: taken.extend(results))
            taken = []
            rest.start()
            assert eventually(lambda: caplog.records)
            told = caplog.records[0].getMessage()
            assert told.startswith("the Ray cluster has no CPU now; waiting for a machine to join")
            started.start("--num-cpus=1")
            rest.join()
            assert taken == [3 * item for item in range(1, 9)]


# --- nodes ---------------------------------------------------------------------------------------------

SITES = {
    "another version": (
        "import pucache.version; pucache.version.__version__ = '0.0.1'",
        r"has pucache 0\.0\.1 \(here ",
    ),
    "no pucache": ("import sys; sys.modules['pucache'] = None", r"cannot run pucache \d.*; install the same version"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SITES)
def test_a_node_that_has_another_pucache_is_refused_by_name(cluster, tmp_path, name):
    site, told = SITES[name]
    (tmp_path / "sitecustomize.py").write_text(site)
    node = cluster.start("--num-cpus=1", PYTHONPATH=str(tmp_path))
    try:
        assert eventually(lambda: len(nodes()) == 3), cluster.logs
        with pytest.raises(EngineError, match=rf"^node \S+ \(\S+, \w{{8}}\) {told}"):
            check_nodes(shard_tasks.no_problem, ("numpy",))
    finally:
        cluster.stop(node)
        assert eventually(lambda: len(nodes()) == 2)


@pytest.mark.slow
def test_a_process_that_has_joined_a_cluster_joins_no_other_and_leaves_it_joined(cluster):
    check_nodes(shard_tasks.no_problem, ("numpy",))
    with pytest.raises(ValueError, match="has joined a Ray cluster already, and cannot join 127"):
        cluster_tasks("127.0.0.1:6379").__enter__()
    with cluster_tasks():
        assert count("GPU") == 0
    assert ray.is_initialized()
