"""What a notebook has, goes where paths go: arrays, lists and tables, in Python alone."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.planted import planted
from helpers.refusals import one_line

import pucache
from pucache.errors import CacheError, LabelError

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, Y = planted(200, labelled=40)
KEYS = [f"img_{row:03}.png" for row in range(len(X))]
SCORED = ["margin", "posterior", "label"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return pucache.import_embeddings(X, tmp_path_factory.mktemp("notebook") / "cache.h5", KEYS).cache


@pytest.fixture(scope="module")
def model(cache):
    labels = dict(zip(KEYS, S, strict=True))
    return pucache.train_pu(cache, labels, device="cpu", method="linear", penalty=0.01)


def test_rows_are_scored_as_those_of_a_cache(cache, model, tmp_path):
    pucache.score(model, cache, tmp_path / "cache.csv")
    whole = pd.read_csv(tmp_path / "cache.csv")
    forms = {"array": X[:10], "list": X[:10].tolist(), "frame": pd.DataFrame(X[:10], index=KEYS[:10])}
    for name, rows in forms.items():
        assert pucache.score(model, rows, tmp_path / f"{name}.csv").rows == 10
        scored = pd.read_csv(tmp_path / f"{name}.csv", dtype={"key": str})
        assert scored.key.tolist() == (KEYS[:10] if name == "frame" else [f"{row:010}" for row in range(10)])
        np.testing.assert_allclose(scored[SCORED], whole[SCORED][:10], rtol=1e-5)
    assert pucache.check_new_images(model, X).share == pucache.check_new_images(model, cache).share
    assert "expected rows of 6 numbers" in one_line(CacheError, pucache.score, model, X[:, :3], tmp_path / "no.csv")
    assert "give the table to write" in one_line(ValueError, pucache.score, model, X)


def test_scores_truth_and_labels_in_memory_are_evaluated_as_files(cache, model, tmp_path):
    pucache.score(model, cache, tmp_path / "scores.csv")
    pd.DataFrame({"key": KEYS, "label": Y.astype(int)}).to_csv(tmp_path / "truth.csv", index=False)
    decided = pd.DataFrame({"key": KEYS[:60], "label": Y[:60].astype(int)})
    decided.to_csv(tmp_path / "decided.csv", index=False)
    files = pucache.evaluate(tmp_path / "scores.csv", tmp_path / "truth.csv", labels=tmp_path / "decided.csv")
    scores = pd.read_csv(tmp_path / "scores.csv")
    for table in (scores, pa.Table.from_pandas(scores).to_pydict()):
        assert pucache.evaluate(table, pd.Series(Y.astype(int), index=KEYS), labels=decided) == files
    assert "no table with columns" in one_line(LabelError, pucache.evaluate, {"key": 1}, {})


KINDS = pd.DataFrame({"File": KEYS, "Kind": np.where(S, "Dress", "bag"), "group": [key[:6] for key in KEYS]}).iloc[:60]
FRAMES = {
    "columns that are named": (KINDS, {"key_column": "File"}),
    "Arrow": (pa.Table.from_pandas(KINDS), {"key_column": "File"}),
    "keys as index": (KINDS.set_index("File").rename_axis(None), {}),
    "a named index": (KINDS.set_index("File"), {"key_column": "File"}),
}


@pytest.mark.parametrize("form", FRAMES)
def test_a_table_of_labels_in_memory_has_the_options_and_columns_of_a_file(cache, form, tmp_path):
    table, options = FRAMES[form]
    KINDS.to_csv(tmp_path / "kinds.csv", index=False)
    reading = {"label_column": "Kind", "label_value": "dress"}
    of_file = pucache.read_labels(cache, tmp_path / "kinds.csv", key_column="File", **reading)
    read = pucache.read_labels(cache, table, **options, **reading)
    assert (read.only.s.tolist(), read.only.reviewed.tolist()) == (
        of_file.only.s.tolist(),
        of_file.only.reviewed.tolist(),
    )
    np.testing.assert_equal(read.group, of_file.group)
    assert pucache.write_labels(cache, read, tmp_path / "out.csv")["positive"] == read.only.s.sum()
    assert len(np.unique(read.group)) < len(KEYS)


def test_what_is_no_path_where_one_is_expected_is_told_with_the_call_that_works():
    for call in (lambda: pucache.import_embeddings("a.h5", X, KEYS), lambda: pucache.train_pu(X, S)):
        assert "import_embeddings(X, 'cache.h5', keys)" in one_line((CacheError, ValueError), call)
