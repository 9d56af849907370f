"""Tasks of Ray: real processes on this machine, which end with the tests; two nodes of one core."""

import subprocess
import sys

import pytest
from helpers import shard_tasks
from helpers.command_line import refused

from pucache.scaling.tasks import cluster_tasks, cores_per_task

# --- tasks -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_item_whose_worker_dies_is_given_to_another_but_not_for_ever(cluster, tmp_path):
    def with_lives(name, count):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / str(number)).touch()
        with cluster_tasks() as tasks:
            outcomes = tasks.outcomes(shard_tasks.die_at_two, str(tmp_path / name), range(4))
            return {number: rest for number, *rest in outcomes}

    assert with_lives("three", 3) == {number: [number, None] for number in range(4)}
    outcomes = with_lives("four", 4)
    _, error = outcomes.pop(2)
    assert outcomes == {number: [number, None] for number in (0, 1, 3)}
    assert str(error).startswith("a worker died 4 times at 2 (killed, or out of memory); run again, with more memory")


STOPPED_EARLY = """
import operator, os, ray
from pucache.scaling.tasks import cluster_tasks
ray.cancel = lambda task: os._exit(1)  # what Ray does now and then, where a task ends at the same moment
with cluster_tasks() as tasks:
    next(tasks.outcomes(operator.add, 1, range(10)))
"""


@pytest.mark.slow
def test_a_command_that_stops_early_leaves_its_cluster_without_cancelling_tasks():
    run = subprocess.run([sys.executable, "-c", STOPPED_EARLY], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("cores", "count", "each"),
    [([8], 3, 2), ([8], 8, 1), ([8], 9, 1), ([2, 64, 64], 4, 32), ([4, 4], 1, 4), ([], 1, 1)],
)
def test_tasks_share_out_the_cores_of_a_cluster(cores, count, each):
    assert cores_per_task(cores, count) == each


def test_without_ray_the_extra_is_named(image_folder, monkeypatch):
    for name in ("pucache.scaling.cluster", "pucache.scaling.tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = "Error: a Ray cluster needs Ray; pip install -e '.[ray]', or leave out --ray\n"
    assert refused("embed {f} {f}/out --shards 2 --ray", f=image_folder(1)) == told
