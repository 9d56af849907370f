import pytest
from helpers.embedding_runs import MemorySource, pictures, run
from helpers.slow import slow
from helpers.tiny import tiny_encoder

from pucache.embedding import engine

pytestmark = pytest.mark.usefixtures("one_thread", "small_blocks")
BATCH = 8  # of the tiny encoder


@pytest.mark.parametrize(("chunk", "workers"), [(3, 0), (64, 2), slow(BATCH, 0), slow(3, 2)])
def test_every_batch_is_full_but_the_last_across_blocks_failures_and_reused_rows(out, monkeypatch, chunk, workers):
    known = run(MemorySource(pictures(50)), out.with_name("known.h5")).cache
    monkeypatch.setattr(engine, "CHUNK_ROWS", chunk)
    encoder, passes = tiny_encoder(), []
    forward = encoder.runtime.compute
    encoder.runtime.compute = lambda pixels: (passes.append(len(pixels)), forward(pixels))[1]
    broken = [3, 51, *range(80, 120), 149]
    source = MemorySource(pictures(150, broken), gone=["0060.ppm", "0061.ppm"], name="other")
    report = run(source, out, encoder, workers=workers, reuse=[known])
    assert (report.computed, report.reused, len(report.failures)) == (56, 49, 45)
    assert sum(passes) == 56
    *full, last = sorted(passes, reverse=True)
    assert len(set(full)) == 1 and full[0] % BATCH == 0 and last <= full[0]
