import pytest
import ray
from helpers.ray_cluster import Cluster, eventually

from pucache.scaling.cluster import joined


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with a core each, which this process has joined."""
    with Cluster() as nodes:
        nodes.start("--num-cpus=1")
        nodes.start("--num-cpus=1")
        with joined(nodes.address):
            assert eventually(lambda: ray.cluster_resources().get("CPU") == 2), nodes.logs
            yield nodes
