"""Caches and scores behind URLs, from the images to the table, on a real S3 server."""

import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.planted import planted, write_cache
from helpers.tiny import save_image, tiny_encoder

from pucache.cache.destination import atomic_output, encoder_of_existing
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.paths import part_files, writer_lock
from pucache.cache.remote import RemoteCache
from pucache.cli.main import main
from pucache.embedding import row_blocks
from pucache.embedding.embed import run_embedding
from pucache.errors import CacheLockedError, LeaseHeldError, LeaseLostError, OutputError, SourceError
from pucache.images.source import open_source
from pucache.progress import Silent
from pucache.pu.classifier import PULinearClassifier
from pucache.pu.score import score
from pucache.pu.score_tables import read_scores
from pucache.storage import conditional, retries

CACHE, SCORES = "s3://bucket/made/cache.h5", "s3://bucket/made/scores.csv"
pytestmark = pytest.mark.usefixtures("one_thread", "fixed_time")


@pytest.fixture(autouse=True)
def store(s3_server, monkeypatch, tmp_path):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 16)
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "here"))
    return s3_server.connect(monkeypatch)


@pytest.fixture
def images(store, tmp_path):
    """Sixty images in the store, one of which is none; and the bytes of their cache, made at once."""
    for number in range(60):
        save_image(tmp_path / "image.png", number)
        data = (tmp_path / "image.png").read_bytes() if number != 33 else b"no image"
        store.files.pipe_file(f"bucket/photos/{number:03}.png", data)
    return open_source("s3://bucket/photos")


class StopAfter(Silent):
    """Ctrl-C once so many images are done."""

    def __init__(self, images):
        self._left = images

    def advance(self, steps):
        self._left -= steps
        if self._left < 0:
            raise KeyboardInterrupt


def names(store):
    return sorted(path.removeprefix("bucket/made/") for path in store.files.find("bucket/made"))


def test_a_cache_in_a_store_has_the_bytes_of_one_on_a_disk(images, store, tmp_path):
    here, there = tmp_path / "cache.h5", run_embedding(images, CACHE, tiny_encoder(), workers=0)
    run_embedding(images, here, tiny_encoder(), workers=0)
    assert (there.name, there.rows, list(there.failures)) == (CACHE, 59, ["033.png"])
    assert store.files.cat_file("bucket/made/cache.h5") == here.read_bytes() == there.cache.read_bytes()
    assert names(store) == ["cache.h5"]
    again = run_embedding(images, CACHE, tiny_encoder(), workers=0)
    assert (again.written, again.computed, again.kept) == (False, 0, 59)


@pytest.mark.slow
def test_another_machine_goes_on_from_the_parts_and_ends_in_the_same_bytes(images, store, tmp_path, monkeypatch):
    run_embedding(images, tmp_path / "cache.h5", tiny_encoder(), workers=0)
    with pytest.raises(KeyboardInterrupt):
        run_embedding(images, CACHE, tiny_encoder(), workers=0, progress=StopAfter(40))
    parts = names(store)
    assert parts and all(name.startswith("cache.h5.parts/part-") for name in parts)
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "elsewhere"))
    assert encoder_of_existing(CACHE) == tiny_encoder().spec
    report = run_embedding(images, CACHE, tiny_encoder(), workers=0)
    assert 0 < report.computed < 59
    assert store.files.cat_file("bucket/made/cache.h5") == (tmp_path / "cache.h5").read_bytes()
    assert names(store) == ["cache.h5"]


@pytest.mark.slow
def test_images_of_which_none_can_be_read_leave_nothing_there(images, store):
    for number in range(60):
        store.files.pipe_file(f"bucket/photos/{number:03}.png", b"no image")
    with pytest.raises(SourceError, match="none of the 60 images"):
        run_embedding(images, CACHE, tiny_encoder(), workers=0)
    assert names(store) == []


@pytest.mark.slow
def test_two_writers_of_one_machine_are_kept_apart(images):
    class Second(Silent):
        def start(self, total, what):
            with pytest.raises(CacheLockedError):
                run_embedding(images, CACHE, tiny_encoder(), workers=0)

    assert run_embedding(images, CACHE, tiny_encoder(), workers=0, progress=Second()).rows == 59


def test_writers_of_two_machines_are_kept_apart(images, tmp_path, monkeypatch):
    refused = []

    class Second(Silent):
        def start(self, total, what):
            monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "elsewhere"))
            for write in (lambda: run_embedding(images, CACHE, tiny_encoder(), workers=0), lambda: write_table(CACHE)):
                with pytest.raises(LeaseHeldError) as error:
                    write()
                refused.append(str(error.value))

    assert run_embedding(images, CACHE, tiny_encoder(), workers=0, progress=Second()).rows == 59
    assert len(refused) == 2 and all(text.startswith(f"{CACHE} is being written by process ") for text in refused)


def write_table(url):
    with atomic_output(url) as path:
        path.write_text("scores")


def test_a_writer_that_was_taken_over_stops_and_loses_nothing(images, store, tmp_path, monkeypatch):
    run_embedding(images, tmp_path / "cache.h5", tiny_encoder(), workers=0)

    class Suspended(Silent):
        """Another machine finds the lease ended, and writes to the end."""

        def start(self, total, what):
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("PUCACHE_WORK", str(tmp_path / "elsewhere"))
                elsewhere.setattr(conditional, "_age", lambda written, date: 200.0)
                run_embedding(images, CACHE, tiny_encoder(), workers=0)

    with pytest.raises(LeaseLostError, match="taken over by another writer, which has ended, because this process did"):
        run_embedding(images, CACHE, tiny_encoder(), workers=0, progress=Suspended())
    assert store.files.cat_file("bucket/made/cache.h5") == (tmp_path / "cache.h5").read_bytes()
    assert part_files(RemoteCache(CACHE).local)
    again = run_embedding(images, CACHE, tiny_encoder(), workers=0)
    assert (again.computed, again.kept) == (0, 59) and part_files(RemoteCache(CACHE).local) == []
    assert names(store) == ["cache.h5"]


def test_a_table_whose_writer_was_taken_over_is_not_published(store, tmp_path, monkeypatch):
    with pytest.raises(LeaseLostError), atomic_output(SCORES) as path:
        path.write_text("old")
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("PUCACHE_WORK", str(tmp_path / "elsewhere"))
            elsewhere.setattr(conditional, "_age", lambda written, date: 200.0)
            write_table(SCORES)
    assert store.files.cat_file("bucket/made/scores.csv") == b"scores" and names(store) == ["scores.csv"]


def test_a_file_url_is_locked_as_its_path(tmp_path, images):
    with (
        writer_lock(tmp_path / "made/cache.h5"),
        pytest.raises(CacheLockedError, match=r"file://.*cache.h5 is being written by another process"),
    ):
        run_embedding(images, f"file://{tmp_path}/made/cache.h5", tiny_encoder(), workers=0)
    with pytest.raises(CacheLockedError), RemoteCache(f"file://{tmp_path}/made/cache.h5").exclusive():
        run_embedding(images, tmp_path / "made/cache.h5", tiny_encoder(), workers=0)


def test_scores_in_a_store_are_those_on_a_disk(images, store, tmp_path):
    run_embedding(images, CACHE, tiny_encoder(), workers=0)
    rows, s, _ = planted(60, d=8, labelled=20)
    model = PULinearClassifier(prior=0.3, device="cpu").fit(rows, s)
    model.encoder_ = tiny_encoder().spec
    model.save(tmp_path / "model.safetensors")
    done = CliRunner().invoke(main, ["score", str(tmp_path / "model.safetensors"), CACHE, "--out", SCORES, "--json"])
    assert done.exit_code == 0, done.output
    cache = EmbeddingCache(CACHE)
    score(model, cache, tmp_path / "scores.csv")
    assert store.files.cat_file("bucket/made/scores.csv") == (tmp_path / "scores.csv").read_bytes()
    assert len(read_scores(tmp_path / "scores.csv")["key"]) == len(cache) == 59
    np.testing.assert_array_equal(cache.X, EmbeddingCache(cache.files[0].path).X)


def test_scores_that_cannot_be_written_are_refused_before_any_work(store, tmp_path):
    store.relay.fail("PUT", "made/.scores.csv.writable", "denied")
    with pytest.raises(OutputError, match=r"cannot write s3://bucket/made/scores.csv"):
        score(None, None, SCORES)


def test_what_fails_while_it_is_written_delivers_nothing(store):
    with pytest.raises(RuntimeError), atomic_output(SCORES) as path:
        path.write_text("half")
        raise RuntimeError
    assert names(store) == []
    with atomic_output(SCORES) as path:
        path.write_text("whole")
    assert store.files.cat_file("bucket/made/scores.csv") == b"whole"


HOLDER = """
import sys
from pucache.cache.destination import atomic_output
with atomic_output(sys.argv[1]) as path:
    print("writes", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_command_whose_url_another_process_writes_is_one_line_and_writes_nothing(store, tmp_path, monkeypatch):
    out, cache = "s3://bucket/made/c.parquet", write_cache(tmp_path / "c.h5", planted(20)[0]).files[0].path
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, out], text=True, **pipes)
    assert holder.stdout.readline() == "writes\n"
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "elsewhere"))
    refused = CliRunner().invoke(main, ["export", str(cache), out])
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert f"{out} is being written by process {holder.pid} on " in refused.output
    assert names(store) == [".c.parquet.lease"]
    holder.communicate("")
    assert CliRunner().invoke(main, ["export", str(cache), out]).exit_code == 0
    assert names(store) == ["c.parquet"]
