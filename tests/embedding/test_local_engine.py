import multiprocessing
import os
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.hangs import HANG_SECONDS
from helpers.pictures import encode
from helpers.slow import slow
from helpers.tiny import tiny_encoder
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.reader import CacheFile
from pucache.embedding import local_engine, row_blocks
from pucache.embedding.batching import whole_batches
from pucache.embedding.embed import run_embedding
from pucache.embedding.plan import EmbedOptions
from pucache.errors import EncoderError, ImageError, SourceError
from pucache.images import loader_processes as workers
from pucache.images.device_decoding import DeviceDecoder
from pucache.images.loading import ChunkLoader
from pucache.images.source import Listing
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("one_thread")


BATCH = 8  # of the tiny encoder


def picture(number):
    """The bytes of a tiny image; different numbers give different images."""
    return b"P6 12 9 255\n" + np.random.default_rng(number).bytes(12 * 9 * 3)


class Memory:
    """A source of tiny images 0000.ppm, 0001.ppm, ...; the `broken` are no images, the `gone` are not there."""

    def __init__(self, count, broken=(), gone=(), name="memory"):
        self.name = name
        self._broken, self._gone = set(broken), set(gone)
        self._keys = [f"{number:04}.ppm" for number in range(count)]

    def scan(self):
        sizes = [len(self._bytes(key)) for key in self._keys]
        return Listing(self._keys, np.array([[size, 1] for size in sizes], np.int64))

    def read(self, key):
        if int(key[:4]) in self._gone:
            raise ImageError("cannot be read: No such file or directory")
        return self._bytes(key)

    def _bytes(self, key):
        return b"no image" if int(key[:4]) in self._broken else picture(int(key[:4]))


class Follow(Silent):
    """Remembers what it is told."""

    def __init__(self):
        self.total, self.done, self.remarks = None, [0], []

    def start(self, total, what):
        self.total = total

    def advance(self, steps):
        self.done.append(self.done[-1] + steps)

    def remark(self, text):
        self.remarks.append(text)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 40)
    monkeypatch.setattr(local_engine, "CHUNK_ROWS", BATCH)
    monkeypatch.setattr(local_engine, "_FEW_IMAGES", 0)


@pytest.fixture
def left_behind():
    """Assert that neither threads, nor processes, nor another number of torch's threads are left by what is within."""
    threads, torch_threads = set(threading.enumerate()), torch.get_num_threads()
    yield
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline and set(threading.enumerate()) - threads:
        time.sleep(0.01)  # a queue's own feeder may take a moment
    assert set(threading.enumerate()) - threads == set()
    assert torch.get_num_threads() == torch_threads
    assert multiprocessing.active_children() == []


def recording(encoder, seen):
    """Let `seen` have the number of images of each forward pass, in the order in which these began."""
    forward = encoder.forward
    encoder.forward = lambda pixels: (seen.append(len(pixels)), forward(pixels))[1]
    return encoder


# --- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [3, BATCH, 20, 64])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_is_full_but_the_last_across_blocks_failures_and_reused_rows(tmp_path, monkeypatch, chunk, workers):
    known = tmp_path / "known.h5"
    run_embedding(Memory(50), known, tiny_encoder(), workers=0)
    monkeypatch.setattr(local_engine, "CHUNK_ROWS", chunk)
    broken, seen = [3, 51, *range(80, 120), 149], []
    source = Memory(150, broken, gone=[60, 61], name="other")
    report = run_embedding(
        source, tmp_path / "c.h5", recording(tiny_encoder(), seen), options=EmbedOptions(reuse=[known]), workers=workers
    )
    assert (report.computed, report.reused, len(report.failures)) == (56, 49, 45)
    size = whole_batches(BATCH, local_engine.images_per_call(150, tiny_encoder().runtime.caller_threads))
    assert size % BATCH == 0 and sum(seen) == report.computed
    assert sorted(seen, reverse=True) == [*[size] * (56 // size), *[56 % size] * (56 % size > 0)]


def test_where_nothing_is_to_embed_the_encoder_is_never_started(tmp_path):
    known = tmp_path / "known.h5"
    run_embedding(Memory(50), known, tiny_encoder(), workers=0)
    encoder = tiny_encoder()
    encoder.runtime.start = lambda: pytest.fail("started")
    report = run_embedding(
        Memory(50, broken=[7], name="other"), tmp_path / "c.h5", encoder, options=EmbedOptions(reuse=[known]), workers=0
    )
    assert (report.computed, report.reused, len(report.failures)) == (0, 49, 1)
    assert report.profile.limit() == "nothing was embedded"


# --- timing changes nothing --------------------------------------------------------------------


class Delayed:
    """Calls something a random moment later; picklable."""

    def __init__(self, wrapped, seed):
        self._wrapped, self._seed = wrapped, seed

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __call__(self, argument):
        draw = np.random.default_rng([self._seed, int(np.asarray(argument).sum()) % 1000])
        time.sleep(draw.exponential(0.002))
        return self._wrapped(argument)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_random_delays_change_no_byte(tmp_path, fixed_time, seed, workers):
    source = Memory(130, broken=[0, 39, 40, 77, 129], gone=[5])
    run_embedding(source, tmp_path / "prompt.h5", tiny_encoder(), workers=0)
    encoder = tiny_encoder()
    encoder.preprocess, encoder.forward = Delayed(encoder.preprocess, seed), Delayed(encoder.forward, seed)
    run_embedding(source, tmp_path / "delayed.h5", encoder, workers=workers)
    assert (tmp_path / "delayed.h5").read_bytes() == (tmp_path / "prompt.h5").read_bytes()


class Counting(Memory):
    """Counts what is read, in whatever process, in a file."""

    def __init__(self, count, log):
        super().__init__(count)
        self._log = log

    def read(self, key):
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, b".")
        os.close(log)
        return super().read(key)


def settled(path, least):
    """Size of a file once it has at least so many bytes and has not grown for a while."""
    sizes = [0]
    while len(sizes) < 8 or sizes[-8] != sizes[-1] or sizes[-1] < least:
        time.sleep(0.1)
        sizes.append(path.stat().st_size if path.exists() else 0)
    return sizes[-1]


@pytest.mark.parametrize("workers", [0, slow(2)])
def test_reading_ahead_of_the_encoder_is_bounded(tmp_path, workers):
    encoder, told, log = tiny_encoder(), threading.Event(), tmp_path / "log"
    encoder.runtime.caller_threads = encoder.runtime.streams = 2
    forward = encoder.forward
    encoder.forward = lambda pixels: (told.wait(HANG_SECONDS), forward(pixels))[1]
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_embedding, Counting(300, log), tmp_path / "c.h5", encoder, workers=workers)
        try:
            ahead = settled(log, BATCH)
        finally:
            told.set()
        assert running.result().rows == 300
    # chunks: those under way (five for two threads, four a worker), five passes, and one or two in between
    assert BATCH <= ahead <= 16 * BATCH
    assert settled(log, 300) == 300


class Mixed(Memory):
    """The first image is a JPEG file, the others are not."""

    def _bytes(self, key):
        if key != "0000.ppm":
            return super()._bytes(key)
        return encode(Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)), "JPEG")


def test_an_image_that_waits_for_a_batch_does_not_hold_up_the_blocks(tmp_path, monkeypatch):
    encoder, under_way, take = tiny_encoder(), [], row_blocks.BlockAssembler._add_chunk
    encoder.decoder = DeviceDecoder(encoder.preprocess, torch.device("cpu"))

    def watched(work, *arguments):
        done = take(work, *arguments)
        under_way.append(len(work._open))
        return done

    monkeypatch.setattr(row_blocks.BlockAssembler, "_add_chunk", watched)
    assert run_embedding(Mixed(1000), tmp_path / "c.h5", encoder, workers=0).rows == 1000
    assert max(under_way) <= 10, "of 25 blocks"


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("call", [1, 4, 17])
def test_an_error_of_the_encoder_reaches_the_caller_and_nothing_is_left_running(tmp_path, left_behind, call, workers):
    encoder, calls = tiny_encoder(), []
    forward = encoder.forward

    def failing(pixels):
        calls.append(1)
        if len(calls) == call:
            raise EncoderError("out of memory")
        return forward(pixels)

    encoder.forward = failing
    with pytest.raises(EncoderError, match="out of memory"):
        run_embedding(Memory(130), tmp_path / "c.h5", encoder, workers=workers)
    assert not (tmp_path / "c.h5").exists()
    assert run_embedding(Memory(130), tmp_path / "c.h5", tiny_encoder(), workers=0).rows == 130


class Interrupting(Follow):
    def __init__(self, after):
        super().__init__()
        self._after = after

    def advance(self, steps):
        super().advance(steps)
        if self.done[-1] > self._after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [0, 60])
def test_an_interruption_leaves_nothing_running(tmp_path, left_behind, after, workers):
    with pytest.raises(KeyboardInterrupt):
        run_embedding(Memory(130), tmp_path / "c.h5", tiny_encoder(), workers=workers, progress=Interrupting(after))
    assert not (tmp_path / "c.h5").exists()


class Bug(Memory):
    kind = RuntimeError

    def read(self, key):
        if key == "0070.ppm":
            raise self.kind("a bug in a source")
        return super().read(key)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [RuntimeError, OSError, EOFError])
def test_a_bug_while_preparing_is_told_as_it_is(tmp_path, left_behind, monkeypatch, kind, workers):
    monkeypatch.setattr(Bug, "kind", kind)
    with pytest.raises(kind, match="a bug in a source"):
        run_embedding(Bug(130), tmp_path / "c.h5", tiny_encoder(), workers=workers)


class Unpicklable(Memory):
    def read(self, key):
        class Odd(Exception):
            pass

        raise Odd("of a class that nobody can find")


def test_a_bug_that_cannot_be_sent_is_told_in_words(tmp_path, left_behind):
    with pytest.raises(RuntimeError, match=r"^Odd: of a class that nobody can find$"):
        run_embedding(Unpicklable(130), tmp_path / "c.h5", tiny_encoder(), workers=2)


@pytest.mark.parametrize("bad", [[0], [3], [39], [40], [129], [7, 8, 41]])
def test_nan_for_an_image_fails_that_one_alone(tmp_path, bad):
    source, encoder = Memory(130, broken=[4]), tiny_encoder()
    run_embedding(source, tmp_path / "good.h5", encoder, workers=0)
    good = EmbeddingCache(tmp_path / "good.h5")
    rows = dict(zip(good.keys, good.X, strict=True))
    keys = [f"{number:04}.ppm" for number in bad]
    forward = encoder.forward

    def spoiling(pixels):
        X = forward(pixels)
        for key in keys:
            X[(X.astype(np.float16) == rows[key]).all(1), 0] = np.nan
        return X

    encoder.forward = spoiling
    report = run_embedding(source, tmp_path / "c.h5", encoder, workers=0)
    reason = "the encoder gave NaN or infinite values"
    assert report.failures == {"0004.ppm": report.failures["0004.ppm"], **dict.fromkeys(keys, reason)}
    left = EmbeddingCache(tmp_path / "c.h5")
    assert list(left.keys) == [key for key in rows if key not in keys]
    np.testing.assert_array_equal(left.X, [rows[key] for key in left.keys])


class Deadly(Memory):
    """Kills the process that reads a certain image, as the kernel does when memory is short."""

    def __init__(self, count, deadly):
        super().__init__(count)
        self._deadly = f"{deadly:04}.ppm"

    def read(self, key):
        if key == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(key)


@pytest.mark.parametrize("deadly", [slow(0), slow(7), 8, slow(100), slow(203)])
def test_a_killed_worker_is_an_error_that_names_the_image_and_the_next_run_goes_on(tmp_path, left_behind, deadly):
    with pytest.raises(SourceError, match=rf"^a worker process died of SIGKILL with '{deadly:04}\.ppm' .*run again"):
        run_embedding(Deadly(204, deadly), tmp_path / "c.h5", tiny_encoder(), workers=2)
    kept = sum(len(CacheFile(part)) for part in tmp_path.glob("c.h5.parts/part-*.h5"))
    report = run_embedding(Memory(204), tmp_path / "c.h5", tiny_encoder(), workers=0)
    assert (report.rows, report.computed) == (204, 204 - kept)


# --- what is told of it ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_ends_at_exactly_the_total_and_tells_failures(tmp_path, workers):
    follow = Follow()
    source = Memory(130, broken=[0, *range(40, 80), 129], gone=[20])
    report = run_embedding(source, tmp_path / "c.h5", tiny_encoder(), workers=workers, progress=follow)
    assert follow.total == 130 == follow.done[-1]
    assert follow.done == sorted(follow.done)
    assert follow.remarks[-1].endswith(f", {len(report.failures)} failed") and len(report.failures) == 43
    assert all(remark.startswith("encoder waited ") for remark in follow.remarks)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_profile_names_every_stage_and_how_long_the_device_waited(tmp_path, workers):
    profile = run_embedding(Memory(130, broken=[3]), tmp_path / "c.h5", tiny_encoder(), workers=workers).profile
    stages = ["listing", "reading", "hashing", "decoding", "resizing", "encoder", "writing", "merging"]
    assert set(stages) <= set(profile.seconds) and min(profile.seconds.values()) >= 0
    assert 0 <= profile.waited <= 1 and profile.wall > 0
    assert profile.waited == profile.waited, "the clock has stopped"
    told = profile.summary()
    assert told["device_waited"] == round(profile.waited, 4)
    assert not {"listing", "merging"} & set(told["busy"]) and told["limit"]
    lines = list(profile.lines())
    assert lines[-1] == f"limit: {told['limit']}" and all(any(line.startswith(s) for line in lines) for s in stages)


@pytest.mark.slow
def test_pixels_are_let_go_as_soon_as_they_are_embedded(tmp_path, monkeypatch):
    alive, most, real = set(), [0], ChunkLoader.__call__

    def watched(self, number):
        chunk = real(self, number)
        if not len(chunk.pixels):
            return chunk
        pixels = chunk.pixels.numpy().copy()  # dies with the last tensor that shares it
        alive.add(number)
        most[0] = max(most[0], len(alive))
        weakref.finalize(pixels, alive.discard, number)
        chunk.pixels = torch.from_numpy(pixels)
        return chunk

    monkeypatch.setattr(ChunkLoader, "__call__", watched)
    encoder = tiny_encoder()
    encoder.runtime.caller_threads = encoder.runtime.streams = 2
    report = run_embedding(Memory(2000, broken=range(0, 2000, 9)), tmp_path / "c.h5", encoder, workers=0)
    assert report.rows + len(report.failures) == 2000
    assert alive == set()
    assert 0 < most[0] <= 16, "of 250 chunks"


def test_a_worker_that_is_ended_before_it_has_begun_says_nothing(tmp_path, capfd, monkeypatch):
    """The handler of SIGTERM that the program has would raise in the worker, and show a traceback."""

    class Ended(BaseException):
        pass

    def end(number, frame):
        raise Ended

    def slow(self, *arguments, real=workers.LoaderProcesses._serve):
        time.sleep(0.2)
        real(self, *arguments)

    monkeypatch.setattr(workers.LoaderProcesses, "_serve", slow)
    before = signal.signal(signal.SIGTERM, end)
    try:
        encoder = tiny_encoder()
        loader = ChunkLoader(Memory(130), encoder.preprocess, [], [], chunk_size=8)
        with workers.LoaderProcesses(loader, 2):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capfd.readouterr().err == ""
