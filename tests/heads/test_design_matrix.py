import numpy as np
import pytest
import torch

from pucache.heads import design_matrix
from pucache.heads.design_matrix import DesignMatrix, RowBlocks
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.moments import Moments
from pucache.storage.rows import StackedRows

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of 256 rows, from few rows."""
    monkeypatch.setitem(design_matrix._BLOCK_VALUES, "cpu", 256)


def rows(n=700, d=5, mean=1000.0, seed=0):
    draw = np.random.default_rng(seed)
    return (mean * draw.normal(size=d) + draw.normal(size=(n, d)) * np.arange(1, d + 1)).astype(np.float32)


def every_block(made):
    return [pair for group in made.groups() for pair in made.blocks(group)]


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("resident", [0, 1 << 29])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("spacing", [1, 7])  # one run of the file is read, or row by row
def test_blocks_are_the_chosen_rows_centred_and_scaled(monkeypatch, tmp_path, spacing, resident, dtype, stacked):
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    np.save(tmp_path / "X.npy", rows(3000, mean=10).astype(dtype))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    moments, chosen = Moments.of(X), np.flatnonzero(np.arange(3000) % 5)[::spacing]
    made = RowBlocks(StackedRows([X[:1000], X[1000:]]) if stacked else X, chosen, moments, CPU)
    expected = (X[chosen].astype(np.float64) - moments.centre) / moments.spread
    for _ in range(2):  # a second pass gives the same
        seen = every_block(made)
        assert [part.start for part, _ in seen] == list(range(0, len(chosen), 256))
        np.testing.assert_allclose(torch.cat([block for _, block in seen]), expected, atol=1e-5)
        assert all(block.dtype == torch.float32 for _, block in seen)


def test_margins_are_those_of_the_heads_on_x():
    X = rows(mean=3)
    draw = np.random.default_rng(0)
    coef, intercept, nothing = draw.normal(size=(4, 5)), draw.normal(size=4), np.zeros(4, np.float32)
    heads = FittedHeads(coef.astype(np.float32), intercept.astype(np.float32), nothing, nothing, nothing, 1)
    design = DesignMatrix(X, draw.integers(2, size=700), None, CPU)
    np.testing.assert_allclose(design.margins(heads), heads.margins(X), rtol=1e-4, atol=1e-4)
    chosen = draw.integers(4, size=(700, 2))
    np.testing.assert_array_equal(
        design.margins(heads, chosen), np.take_along_axis(design.margins(heads), chosen, axis=1)
    )
