"""Shards embedded by Ray: real processes on this machine, which end with the tests; two nodes of one core."""

import contextlib
import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from helpers import shard_tasks
from helpers.command_line import refused, run_json
from helpers.embedding_runs import Deadly, Pile, Unmounted
from helpers.hangs import eventually
from helpers.learned import write_run
from helpers.ray_cluster import Command, variables
from ray.cluster_utils import Cluster

from pucache import EmbeddingCache, embed_shards, train_pu
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.encoders.deferred import EncoderOptions
from pucache.errors import EngineError, SourceError
from pucache.scaling.tasks import check_nodes, cluster_tasks, cores_per_task, joined, nodes

pytestmark = pytest.mark.usefixtures("one_thread", "fixed_time")

COUNT, BROKEN = 60, [3, 30, 59]
PLAIN = EncoderOptions(device="cpu", precision="fp32", runtime="torch")
BY_RAY = "--ray --workers 1 --device cpu --precision fp32 --runtime torch"


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with a core each, which this process has joined."""
    started = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, "env_vars": variables()})
    try:
        started.add_node(env_vars=variables())
        with joined(started.address):
            yield started
    finally:
        started.shutdown()


@contextlib.contextmanager
def third_node(cluster, **environ):
    """A node more, with these variables, within and not beyond."""
    node = cluster.add_node(env_vars=variables(**environ))
    try:
        yield
    finally:
        cluster.remove_node(node, allow_graceful=False)
        eventually(lambda: len(nodes()) == 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An encoder in a folder."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    return replace(PLAIN, name=folder)


@pytest.fixture
def pile(tmp_path):
    return lambda kind=Pile, count=COUNT, **options: kind(tmp_path / "read.log", count, **options)


def embed_here(source, folder, shards, run, **options):
    """Embed the same shards one after the other in this process."""
    for number in range(1, shards + 1):
        chosen = EmbedOptions(shard=(number, shards), **options)
        run_embedding(source, folder / f"{number:05}.h5", run, options=chosen, workers=0)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.h5")}


# --- the result ------------------------------------------------------------------------------------


def test_the_command_writes_the_shards_of_this_machine(image_folder, tmp_path, run, without_ray):
    """In one process; the slow tests below start Ray."""
    images, folder = image_folder(12), tmp_path / "shards"
    (images / "empty.png").touch()
    told = run_json(f"embed {images} {folder} --shards 2 --encoder {run.name} {BY_RAY}")
    embed_here(str(images), tmp_path / "here", 2, run)
    assert files(folder) == files(tmp_path / "here")
    assert told["shards"] == sorted(files(folder))
    assert (told["rows"], told["computed"], list(told["failures"])) == (12, 12, ["empty.png"])


def test_a_model_of_train_pu_gives_its_encoder_with_its_tiles(image_folder, tmp_path, run, without_ray):
    images, model = image_folder(12), tmp_path / "m.safetensors"
    run_embedding(str(images), tmp_path / "tiles.h5", replace(run, tiles="2x2"))
    cache = EmbeddingCache(tmp_path / "tiles.h5")
    train_pu(cache, cache.keys[:16]).save(model)
    for where in ("ray --ray --workers 1 --device cpu --shards 1", "here/00001.h5"):
        run_json(f"embed {images} {tmp_path}/{where} --encoder {model}")
    assert EmbeddingCache(tmp_path / "ray").encoder == cache.encoder
    assert files(tmp_path / "ray") == files(tmp_path / "here")


@pytest.mark.slow
def test_shards_are_those_of_this_machine_and_a_second_run_leaves_them(cluster, pile, run, tmp_path):
    source = pile(broken=BROKEN)
    embed_here(Pile(tmp_path / "known.log", 20), tmp_path / "known", 1, run)
    known = [tmp_path / "known" / "00001.h5"]
    report = embed_shards(source, tmp_path / "ray", 3, run, options=EmbedOptions(reuse=known))
    embed_here(source, tmp_path / "here", 3, run, reuse=known)
    assert files(tmp_path / "ray") == files(tmp_path / "here")
    assert (report.rows, report.computed, report.reused, len(report.failures)) == (57, 38, 19, 3)
    assert report.written
    assert EmbeddingCache(tmp_path / "ray").encoder == report.encoder
    as_in_the_shards = EncoderOptions(name=run.name, device="cpu")
    again = embed_shards(source, tmp_path / "ray", 3, as_in_the_shards, options=EmbedOptions(reuse=known))
    assert (again.kept, again.computed, again.written) == (57, 0, False)
    assert files(tmp_path / "ray") == files(tmp_path / "here")


# --- what is killed ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_costs_its_shard_alone_and_changes_nothing(cluster, pile, run, tmp_path):
    source = pile(Deadly, times=1)
    embed_shards(source, tmp_path / "ray", 3, run)
    assert source.reads.count("0020.ppm") == 2
    embed_here(pile(), tmp_path / "here", 3, run)
    assert files(tmp_path / "ray") == files(tmp_path / "here")


@pytest.mark.slow
def test_an_image_that_kills_every_worker_is_named_and_other_shards_are_written(cluster, pile, run, tmp_path):
    with pytest.raises(SourceError, match=r"^shard \d of 3: a worker process died of SIGKILL with '0020\.ppm' "):
        embed_shards(pile(Deadly), tmp_path / "ray", 3, run)
    embed_here(pile(), tmp_path / "here", 3, run)
    written = files(tmp_path / "ray")
    assert len(written) == 2 and written.items() <= files(tmp_path / "here").items()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_nothing_running_and_the_next_one_goes_on(image_folder, tmp_path, run, number):
    images, folder = image_folder(40), tmp_path / "shards"
    command = ["embed", images, folder, "--shards", "10", "--encoder", run.name, *BY_RAY.split(), "--json"]
    with Command(*command) as first:
        eventually(lambda: files(folder))
        first.send(number)
        code = first.wait()
        assert (code, first.stdout) == (128 + number if number == signal.SIGTERM else -number, ""), first.stderr
        if number == signal.SIGTERM:
            assert first.stderr.endswith("interrupted: run the same command again; it goes on from what is on disk\n")
        eventually(lambda: not first.left())
    rows = sum(len(EmbeddingCache(path)) for path in folder.glob("*.h5"))
    assert 0 < rows < 40
    with Command(*command) as second:
        assert second.wait() == 0, second.stderr
        assert json.loads(second.stdout)["kept"] == rows
    embed_here(str(images), tmp_path / "here", 10, run)
    assert files(folder) == files(tmp_path / "here")


# --- nodes -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_node_that_sees_no_images_or_no_weights_is_refused_by_name(cluster, pile, run, tmp_path):
    match = r"^node \S+ \(\S+, \w{8}\) does not see the images of pile: '0000\.ppm' cannot be read: No such"
    with third_node(cluster, UNMOUNTED="1"), pytest.raises(EngineError, match=match):
        embed_shards(pile(Unmounted), tmp_path / "ray", 2, run)
    assert not files(tmp_path / "ray")


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
    match = rf"^node \S+ \(\S+, \w{{8}}\) {told}"
    with third_node(cluster, PYTHONPATH=str(tmp_path)), pytest.raises(EngineError, match=match):
        check_nodes(shard_tasks.no_problem, ("numpy",))


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "nowhere:port", "127.0.0.1:99999999", "127.0.0.1:9"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(EngineError, match=r"^the address of a Ray cluster is HOST:PORT|^no Ray cluster answers at"):
        joined(address).__enter__()


def test_a_file_in_place_of_a_folder_is_refused(image_folder, tmp_path):
    told = r"^Ray writes a folder of shards, got the file \S+/cache\.h5; write \S+/cache -"
    with pytest.raises(ValueError, match=told):
        embed_shards(image_folder(3), tmp_path / "cache.h5", 2)


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
    monkeypatch.delitem(sys.modules, "pucache.scaling.tasks", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = "Error: a Ray cluster needs Ray; pip install -e '.[ray]', or leave out --ray\n"
    assert refused("embed {f} {f}/out --shards 2 --ray", f=image_folder(1)) == told
