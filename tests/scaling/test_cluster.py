"""Joining a cluster, and checks of its nodes; real processes of Ray on this machine, which end with the tests."""

import pytest
from helpers import shard_tasks
from helpers.ray_cluster import eventually, free_port

from pucache.errors import EngineError
from pucache.scaling.cluster import check_nodes, joined, nodes

# --- joining -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "nowhere:port", "127.0.0.1:99999999", "127.0.0.1:{free}"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(EngineError, match=r"^the address of a Ray cluster is HOST:PORT|^no Ray cluster answers at"):
        joined(address.format(free=free_port())).__enter__()


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
