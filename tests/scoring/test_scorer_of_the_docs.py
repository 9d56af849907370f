"""The scorer of docs/other-tools.md, which needs no pucache, against pucache."""

import re
from pathlib import Path

import numpy as np
from helpers.planted import planted, write_cache

from pucache.cache.exporting import export
from pucache.reviewing.pile_columns import pile_columns
from pucache.scoring.score import score
from pucache.training.sklearn_classifier import PULinearClassifier

PAGE = Path(__file__).parents[2] / "docs/other-tools.md"


def test_the_scorer_gives_the_scores_of_pucache_in_fifteen_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, s, _ = planted(labelled=40)
    model = PULinearClassifier(prior=0.3, device="cpu").fit(X, s)
    model.save("model.safetensors")
    cache = write_cache(tmp_path / "cache.h5", X)
    score(model, cache, "scores.csv")
    export(cache, "pile.parquet", columns=pile_columns(cache, scores="scores.csv"))
    code = next(text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "safe_open" in text)
    assert len([line for line in code.split("table =")[0].splitlines() if line]) <= 15
    exec(code, names := {})
    margin, _, label = names["score"](X)
    np.testing.assert_allclose(margin, model.margins(X), atol=1e-4)
    np.testing.assert_array_equal(label, model.margins(X) > np.float32(model.threshold_))
