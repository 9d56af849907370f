import numpy as np
import torch

from pucache.heads import design_matrix
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.linear_heads import FittedHeads


def test_margins_are_those_of_the_heads_on_x(monkeypatch):
    monkeypatch.setitem(design_matrix._BLOCK_VALUES, "cpu", 256)  # several blocks of 256 rows
    draw = np.random.default_rng(0)
    X = (3 * draw.normal(size=5) + draw.normal(size=(700, 5)) * np.arange(1, 6)).astype(np.float32)
    draw = np.random.default_rng(0)
    coef, intercept, nothing = draw.normal(size=(4, 5)), draw.normal(size=4), np.zeros(4, np.float32)
    heads = FittedHeads(coef.astype(np.float32), intercept.astype(np.float32), nothing, nothing, nothing, 1)
    design = DesignMatrix(X, draw.integers(2, size=700), None, torch.device("cpu"))
    np.testing.assert_allclose(design.margins(heads), heads.margins(X), rtol=1e-4, atol=1e-4)
    chosen = draw.integers(4, size=(700, 2))
    expected = np.take_along_axis(design.margins(heads), chosen, axis=1)
    np.testing.assert_array_equal(design.margins(heads, chosen), expected)
