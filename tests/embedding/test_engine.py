import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.embedding_runs import Deadly, MemorySource, Pile, parts_of, picture, pictures, run
from helpers.files import visible
from helpers.hangs import HANG_SECONDS
from helpers.tiny import tiny_encoder

from pucache import EmbeddingCache
from pucache.cache.reader import CacheFile
from pucache.embedding import engine
from pucache.errors import EncoderError, SourceError
from pucache.images.decoding import decode

pytestmark = pytest.mark.usefixtures("one_thread", "small_blocks")
N, CHUNK = 130, 8


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(engine, "CHUNK_ROWS", CHUNK)


# --- timing changes nothing --------------------------------------------------------------------


class DelayedSource(MemorySource):
    """Reads each image a random moment later."""

    seed = 0

    def read(self, key):
        time.sleep(np.random.default_rng([self.seed, int(key[:4])]).exponential(0.002))
        return super().read(key)


@pytest.mark.parametrize(("seed", "workers"), [(0, 0), (1, 2)])
def test_random_delays_and_the_number_of_workers_change_no_byte(out, fixed_time, seed, workers):
    files, encoder = (pictures(N, [0, 31, 32, 77, 129]), ["0005.ppm"]), tiny_encoder()
    draw = np.random.default_rng(seed)
    run(MemorySource(*files), out.with_name("prompt.h5"))
    source, forward = DelayedSource(*files), encoder.runtime.compute
    source.seed, encoder.runtime.compute = seed, lambda pixels: (time.sleep(draw.exponential(0.02)), forward(pixels))[1]
    run(source, out, encoder, workers=workers)
    assert out.read_bytes() == out.with_name("prompt.h5").read_bytes()


# --- bounds ------------------------------------------------------------------------------------


def settled(source):
    """Number of images read, once there are any and it has not grown for a while."""
    counts = [0]
    while len(counts) < 8 or counts[-8] != counts[-1] or not counts[-1]:
        time.sleep(0.1)
        counts.append(len(source.reads))
    return counts[-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_ahead_of_the_encoder_is_bounded(out, tmp_path, workers):
    encoder, released, source = tiny_encoder(), threading.Event(), Pile(tmp_path / "read.log", 300)
    encoder.runtime.caller_threads = encoder.runtime.streams = 2
    forward = encoder.runtime.compute
    encoder.runtime.compute = lambda pixels: (released.wait(HANG_SECONDS), forward(pixels))[1]
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, source, out, encoder, workers=workers)
        try:
            ahead = settled(source)
        finally:
            released.set()
        assert running.result().rows == 300
    # chunks: those under way (five for two threads, four a worker), five passes, and one or two in between
    assert CHUNK <= ahead <= 16 * CHUNK
    assert len(source.reads) == 300


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "workers"), [(1, 2), (10, 0)])
def test_an_error_of_the_encoder_reaches_the_caller_and_nothing_is_left_running(out, left_behind, call, workers):
    encoder, calls = tiny_encoder(), []
    forward = encoder.runtime.compute

    def failing(pixels):
        calls.append(1)
        if len(calls) == call:
            raise EncoderError("out of memory")
        return forward(pixels)

    encoder.runtime.compute = failing
    with pytest.raises(EncoderError, match="out of memory"):
        run(MemorySource(pictures(N)), out, encoder, workers=workers)
    assert not out.exists()
    assert run(MemorySource(pictures(N)), out).rows == N


def test_a_killed_worker_is_an_error_that_names_the_image_and_the_next_run_goes_on(out, tmp_path, left_behind):
    with pytest.raises(SourceError, match=r"^a worker process died of SIGKILL with '0203.ppm' .*run again"):
        run(Deadly(tmp_path / "read.log", 204, deadly="0203.ppm"), out, workers=2)
    finished = sum(len(CacheFile(part)) for part in parts_of(out))
    report = run(Pile(tmp_path / "read.log", 204), out)
    assert (report.rows, report.computed) == (204, 204 - finished)


# --- the start ---------------------------------------------------------------------------------


def test_a_network_is_not_built_where_every_image_is_known_by_its_content(out):
    known = run(MemorySource(pictures(N)), out.with_name("known.h5")).cache
    encoder = tiny_encoder()
    encoder.runtime.start = lambda: pytest.fail("built")
    report = run(MemorySource(pictures(N), name="other"), out, encoder, reuse=[known])
    assert (report.reused, report.computed) == (N, 0)


# --- blocks ---------------------------------------------------------------------------------------


def odd_encoder(numbers, value):
    """An encoder that gives some of the pictures an embedding of our choice."""
    encoder = tiny_encoder()
    forward, odd = encoder.runtime.compute, [encoder.preprocess(decode(picture(number))) for number in numbers]

    def embed(pixels):
        X = forward(pixels)
        X[[any(bool((image == other).all()) for other in odd) for image in pixels], -1] = value
        return X

    encoder.runtime.compute = embed
    return encoder


@pytest.mark.parametrize(("odd", "value"), [([0, 7, 31, 32], np.nan), ([129], np.inf)])
def test_an_image_that_the_encoder_cannot_take_is_a_failure_and_costs_no_other(out, odd, value):
    run(MemorySource(pictures(N)), out.with_name("good.h5"))
    good, keys = EmbeddingCache(out.with_name("good.h5")), [f"{number:04}.ppm" for number in odd]
    report = run(MemorySource(pictures(N)), out, odd_encoder(odd, value))
    assert report.failures == dict.fromkeys(keys, "the encoder gave NaN or infinite values")
    left = EmbeddingCache(out)
    assert list(left.keys) == [key for key in good.keys if key not in keys]
    np.testing.assert_array_equal(left.X, np.delete(good.X, odd, axis=0))


def test_embeddings_beyond_float16_are_an_error_that_names_float32(out):
    encoder = odd_encoder([3], 1e6)
    reason = r"'0003.ppm' overflows float16; remove its .parts, and embed in Python with dtype='float32'"
    with pytest.raises(EncoderError, match=reason):
        run(MemorySource(pictures(5)), out, encoder)
    assert visible(out.parent) == []
    run(MemorySource(pictures(5)), out, encoder, dtype="float32")
    assert EmbeddingCache(out).X[3, -1] == 1e6
