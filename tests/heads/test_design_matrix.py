import numpy as np
import pytest
import torch

from pucache.heads import design_matrix
from pucache.heads.design_matrix import DesignMatrix, RowBlocks
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.moments import Moments
from pucache.storage import rows as storage_rows

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of 256 rows, from few rows."""
    monkeypatch.setattr(storage_rows, "_BLOCK_VALUES", 256)


def rows(n=700, d=5, mean=1000.0, seed=0):
    draw = np.random.default_rng(seed)
    return (mean * draw.normal(size=d) + draw.normal(size=(n, d)) * np.arange(1, d + 1)).astype(np.float32)


@pytest.mark.parametrize(
    "mean, dtype", [(0.0, np.float32), (1000.0, np.float32), (1e5, np.float32), (10.0, np.float16)]
)
def test_moments_are_those_of_float64_however_far_the_mean_is_from_zero(mean, dtype):
    X = rows(mean=mean).astype(dtype)
    exact = X.astype(np.float64)
    moments = Moments.of(X)
    assert moments.centre.dtype == np.float32
    np.testing.assert_allclose(moments.centre, exact.mean(0), rtol=1e-7, atol=1e-6)
    assert moments.spread == pytest.approx(np.sqrt(np.square(exact - exact.mean(0)).sum(1).mean()), rel=1e-5)
    assert moments.root_mean_square == pytest.approx(np.sqrt(np.square(exact).mean()), rel=1e-6)


def test_rows_that_are_all_the_same_have_a_spread_of_one():
    moments = Moments.of(np.full((700, 3), 0.3, np.float32))
    np.testing.assert_array_equal(moments.centre, np.full(3, 0.3, np.float32))
    assert moments.spread == 1


@pytest.mark.parametrize("resident", [0, 1 << 29])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_blocks_are_the_chosen_rows_centred_and_scaled(monkeypatch, tmp_path, resident, dtype):
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    np.save(tmp_path / "X.npy", rows(mean=10).astype(dtype))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    moments, chosen = Moments.of(X), np.flatnonzero(np.arange(700) % 5)
    made = RowBlocks(X, chosen, moments)
    expected = (X[chosen].astype(np.float64) - moments.centre) / moments.spread
    assert len(made) == len(chosen) == 560
    for _ in range(2):  # a second pass gives the same
        seen = list(made)
        assert [(part.start, part.stop) for part, _ in seen] == [(0, 256), (256, 512), (512, 560)]
        np.testing.assert_allclose(torch.cat([block for _, block in seen]), expected, atol=1e-5)
        assert all(block.dtype == torch.float32 for _, block in seen)


def test_what_fits_is_kept_and_what_does_not_is_read_anew(monkeypatch):
    X, every = rows(), np.arange(700)
    for room, kept in ((4 * X.size, True), (4 * X.size - 1, False)):
        monkeypatch.setattr(design_matrix, "CPU_RESIDENT", room)
        made = RowBlocks(X, every, Moments.of(X))
        assert all((a is b) == kept for (_, a), (_, b) in zip(made, made, strict=True))


@pytest.mark.parametrize("resident", [0, 1 << 29])
def test_many_rows_are_there_in_bfloat16_too_where_the_processor_multiplies_it(monkeypatch, resident):
    X, every = rows(), np.arange(700)
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    for native, least, reduced in ((True, X.size, True), (True, X.size + 1, False), (False, 0, False)):
        monkeypatch.setattr(design_matrix, "multiplies_bfloat16", lambda device, native=native: native)
        monkeypatch.setattr(design_matrix, "_REDUCED_VALUES", least)
        made = RowBlocks(X, every, Moments.of(X))
        assert made.reduces == reduced
        for (part, exact), (same_part, block) in zip(made, made.blocks(made.groups()[0], reduced=True), strict=True):
            assert part == same_part
            assert (block == (exact.bfloat16() if reduced else exact)).all()


def test_margins_are_those_of_the_heads_on_x(small_blocks):
    X = rows(mean=3)
    draw = np.random.default_rng(0)
    nothing = np.zeros(4, np.float32)
    heads = FittedHeads(
        coef=draw.normal(size=(4, 5)).astype(np.float32),
        intercept=draw.normal(size=4).astype(np.float32),
        risk=nothing,
        clamped=nothing,
        residual=nothing,
        passes=1,
    )
    design = DesignMatrix(X, draw.integers(2, size=700), None, CPU)
    np.testing.assert_allclose(design.margins(heads), heads.margins(X), rtol=1e-4, atol=1e-4)
    chosen = draw.integers(4, size=(700, 2))
    np.testing.assert_array_equal(
        design.margins(heads, chosen), np.take_along_axis(design.margins(heads), chosen, axis=1)
    )


def test_some_rows_have_centre_scale_and_directions_of_all():
    X, taken = rows(3000), np.arange(0, 3000, 7)
    whole = DesignMatrix(X, np.zeros(3000), None, CPU)
    part = whole.take(taken, np.ones(len(taken)))
    np.testing.assert_array_equal(part.X, X[taken])
    assert part.is_positive.all() and part.moments is whole.moments and part.leading is whole.leading


def test_no_rows_make_no_blocks():
    X = rows()
    assert list(RowBlocks(X, np.arange(0), Moments.of(X))) == []


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_changes_to_a_memory_map_outlive_the_reading(monkeypatch, tmp_path, mode):
    np.save(tmp_path / "X.npy", rows())
    X = np.load(tmp_path / "X.npy", mmap_mode=mode)
    X += 1
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", 0)
    Moments.of(X)
    np.testing.assert_array_equal(X, rows() + 1)
