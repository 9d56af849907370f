"""The counters of benchmarks/speed/passes.py find what they count, in a process of their own."""

import subprocess
import sys

from benchmarks.common.environment import HERE

COUNT = """
import numpy as np
from pathlib import Path
from benchmarks.common.row_cache import write_row_cache
from benchmarks.speed import passes
from pucache import EmbeddingCache
path = Path({path!r})
write_row_cache(path, np.ones((50, 4), np.float16))
passes.instrument(str(path))
cache = EmbeddingCache(path)
sum(len(X) for _, X in cache.blocks(check=True)), cache.X.sum()
print(sum(passes.reads.values()) / (50 * 4 * 2))
"""


def test_blocks_and_the_mapped_array_are_counted(tmp_path):
    command = [sys.executable, "-c", COUNT.format(path=str(tmp_path / "rows.h5"))]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 2.0
