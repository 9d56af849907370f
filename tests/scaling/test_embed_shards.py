"""Shards embedded by Ray: real processes on this machine, which end with the tests; two nodes of one core."""

import json
import signal
from dataclasses import replace

import pytest
from helpers.command_line import run_json
from helpers.learned import write_run
from helpers.ray_cluster import Command, eventually
from helpers.ray_sources import Deadly, DeadlyOnce, Pile, Unmounted
from helpers.shard_tasks import InProcess

from pucache import EmbeddingCache, embed_shards
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.encoders.deferred import EncoderOptions
from pucache.errors import EngineError, SourceError
from pucache.scaling.cluster import nodes

pytestmark = pytest.mark.usefixtures("one_thread", "fixed_time")

COUNT, BROKEN = 60, [3, 30, 59]
PLAIN = EncoderOptions(device="cpu", precision="fp32", runtime="torch")
BY_RAY = "--ray --workers 1 --device cpu --precision fp32 --runtime torch"


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


def test_the_command_writes_the_shards_of_this_machine(image_folder, tmp_path, run, monkeypatch):
    """In one process; the slow tests below start Ray."""
    monkeypatch.setattr("pucache.scaling.tasks.cluster_tasks", InProcess)
    monkeypatch.setattr("pucache.scaling.tasks.is_retry", lambda: False)
    images, folder = image_folder(12), tmp_path / "shards"
    (images / "empty.png").touch()
    told = run_json(f"embed {images} {folder} --shards 2 --encoder {run.name} {BY_RAY}")
    embed_here(str(images), tmp_path / "here", 2, run)
    assert files(folder) == files(tmp_path / "here")
    assert told["shards"] == sorted(files(folder))
    assert (told["rows"], told["computed"], list(told["failures"])) == (12, 12, ["empty.png"])


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
    source = pile(DeadlyOnce)
    embed_shards(source, tmp_path / "ray", 3, run)
    assert source.times_read(20) == 2
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
        assert eventually(lambda: files(folder)), first.stderr
        first.send(number)
        code = first.wait()
        assert (code, first.stdout) == (128 + number if number == signal.SIGTERM else -number, ""), first.stderr
        if number == signal.SIGTERM:
            assert first.stderr.endswith("interrupted: run the same command again; it goes on from what is on disk\n")
        assert eventually(lambda: not first.left())
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
    node = cluster.start("--num-cpus=1", UNMOUNTED="1")
    assert eventually(lambda: len(nodes()) == 3), cluster.logs
    try:
        match = r"^node \S+ \(\S+, \w{8}\) does not see the images of pile: '0000\.ppm' cannot be read: No such"
        with pytest.raises(EngineError, match=match):
            embed_shards(pile(Unmounted), tmp_path / "ray", 2, run)
    finally:
        cluster.stop(node)
        assert eventually(lambda: len(nodes()) == 2)
    assert not files(tmp_path / "ray")


def test_a_file_in_place_of_a_folder_is_refused(image_folder, tmp_path):
    told = r"^Ray writes a folder of shards, got the file \S+/cache\.h5; write \S+/cache -"
    with pytest.raises(ValueError, match=told):
        embed_shards(image_folder(3), tmp_path / "cache.h5", 2)
