"""A cluster of Ray that loses its machines while a command runs."""

import pytest
import ray
from helpers import range_workers
from helpers.ray_cluster import Cluster, eventually

from pucache.distributed.cluster import joined
from pucache.distributed.workers import RayWorkers


@pytest.mark.slow
def test_a_cluster_that_has_lost_its_cpus_is_named_until_a_machine_joins(monkeypatch, caplog):
    monkeypatch.setattr("pucache.distributed.workers.WARNING_SECONDS", 0.2)
    with Cluster() as nodes:
        nodes.start("--num-cpus=0")
        first = nodes.start("--num-cpus=1")
        with joined(nodes.address), RayWorkers(workers=1) as opened:
            assert eventually(lambda: ray.cluster_resources().get("CPU") == 1), nodes.logs
            results = opened.map(range_workers.double, {"factor": 3}, range(9))
            assert next(results) == 0 and not caplog.records
            nodes.stop(first)
            assert eventually(lambda: caplog.records)
            assert (
                caplog.records[0]
                .getMessage()
                .startswith("the Ray cluster has no CPU now; waiting for a machine to join")
            )
            nodes.start("--num-cpus=1")
            assert list(results) == [3 * item for item in range(1, 9)]
