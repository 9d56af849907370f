"""Tasks of Ray: real processes on this machine, which end with the tests; two nodes of one core."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import shard_tasks
from helpers.command_line import refused
from helpers.planted import planted, write_cache
from helpers.shard_tasks import Deadly

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import EngineError
from pucache.scaling.rank_shards import rank_shards
from pucache.scaling.score_shards import score_shards
from pucache.scaling.tasks import cluster_tasks, cores_per_task
from pucache.scoring.score import score
from pucache.training.sklearn_classifier import PULinearClassifier

X, S, _ = planted(3000, d=8, labelled=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cache in three shards, labels and a model."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "shards").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(X)), 3)):
        write_cache(folder / "shards" / f"{number}.h5", X[rows], [f"{row:05}.png" for row in rows])
    keys = EmbeddingCache(folder / "shards").keys[np.flatnonzero(S)]
    (folder / "found.txt").write_text("".join(f"{key}\n" for key in keys))
    PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, S).save(folder / "model.safetensors")
    return folder


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


# --- scores and rankings -----------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_workers_change_no_byte_of_scores(cluster, folder, tmp_path):
    model = PULinearClassifier.load(folder / "model.safetensors")
    for number, name in enumerate(["a.csv", "b.parquet"]):
        local, out = tmp_path / f"local-{name}", tmp_path / name
        score(model, folder / "shards", local)
        deadly = Deadly.of(model, tmp_path / f"lives-{number}", 2)
        report = score_shards(deadly, folder / "shards", out)
        assert not list(deadly.lives.iterdir()) and report.rows == len(X)
        assert out.read_bytes() == local.read_bytes()
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.slow
def test_a_cache_that_a_node_does_not_see_is_refused(cluster, folder, tmp_path):
    path = tmp_path / "gone.h5"
    cache = write_cache(path, X)
    path.unlink()
    match = rf"^node \S+ \([^)]*\) cannot read the cache \(no such cache: {path}\); mount its files at the same path"
    with pytest.raises(EngineError, match=match):
        score_shards(folder / "model.safetensors", cache, tmp_path / "out.csv")
    with pytest.raises(EngineError, match=match):
        rank_shards(cache, S)
    assert not (tmp_path / "out.csv").exists()


# --- what does not fit together ------------------------------------------------------------------------


SCORE = "score {f}/model.safetensors {f}/shards"
RETRIEVE = "retrieve-positives {f}/shards --positives {f}/found.txt"
EMBED = "embed {f}/shards out"
USAGE = {
    f"{SCORE} --address auto": "--address is for a Ray cluster; add --engine ray",
    f"{RETRIEVE} --workers 2": "--workers is for a Ray cluster; add --engine ray",
    f"{EMBED} --shards 2": "--shards is for a Ray cluster; add --engine ray, or leave it out",
    f"{EMBED} --engine ray": "--engine ray writes a folder of shards; say how many with --shards N, and name a folder",
    f"{EMBED} --engine ray --shards 2 --shard 1/2": "--shard is for one file that this machine embeds; leave it out",
    f"{EMBED} --engine ray --shards 2 --device cuda:1": "Ray shares out GPUs itself: its device is auto, cpu or cuda,",
    f"{SCORE} --engine ray --workers 0": "the engine ray needs at least 1 worker, got 0",
    "score {f}/model.safetensors {f} --engine ray": "score embeds images on this machine alone; embed them with",
    f"{SCORE} --engine ray --neighbours {{f}}/shards": "scores are made on this machine alone with --neighbours",
    f"{SCORE} --engine ray --append --day 2026-01-05": "scores are made on this machine alone with --append and --day",
    f"{RETRIEVE} --engine ray --device cuda": "the engine ray ranks on processors; leave out device cuda",
}


@pytest.mark.parametrize("command", USAGE)
def test_options_that_do_not_fit_are_wrong_usage(folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert refused(command, 2, f=folder).startswith(f"Error: {USAGE[command]}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [SCORE, RETRIEVE, "embed {f} {f}/out --shards 2"])
def test_without_ray_the_extra_is_named(folder, monkeypatch, command):
    for name in ("pucache.scaling.cluster", "pucache.scaling.tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = "Error: the engine ray needs Ray; pip install 'pucache[ray]', or use --engine local\n"
    assert refused(f"{command} --engine ray", f=folder) == told
