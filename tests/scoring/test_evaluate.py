import csv
import json

import numpy as np
import pytest
from helpers.planted import ODD_KEYS, planted
from sklearn import metrics as sk

from pucache import evaluate
from pucache.errors import LabelError
from pucache.scoring.score_tables import TYPES, read_scores, write_table

_, S, Y = planted(200, labelled=30)
KEYS = [*ODD_KEYS, *(f"n/{row:03}.png" for row in range(len(ODD_KEYS), len(Y)))]


@pytest.fixture
def scored(tmp_path):
    """Scores whose labels follow another threshold than 0."""
    margins = (np.random.default_rng(0).normal(size=len(Y)) + 2 * Y + 1).astype(np.float32)
    labels = (margins > 2).astype(np.int8)
    columns = {"key": KEYS, "margin": margins, "posterior": margins.astype(float), "label": labels}
    write_table(tmp_path / "scores.csv", TYPES, [columns])
    return tmp_path / "scores.csv"


@pytest.fixture
def table(tmp_path):
    """Write rows as CSV under a name."""

    def make(name, header, rows):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([header, *rows])
        return tmp_path / name

    return make


def of_keys(keys, values):
    """Values of KEYS in the order of `keys`."""
    return np.array([values[KEYS.index(key)] for key in keys])


def expected_metrics(y, scores, keep):
    y, margins, predicted = y[keep], scores["margin"][keep], scores["label"][keep]
    return {
        "n": int(keep.sum()),
        "n_positive": int(y.sum()),
        "accuracy": sk.accuracy_score(y, predicted),
        "precision": sk.precision_score(y, predicted),
        "recall": sk.recall_score(y, predicted),
        "f1": sk.f1_score(y, predicted),
        "auc": sk.roc_auc_score(y, margins),
        "average_precision": sk.average_precision_score(y, margins),
        "precision@10": y[np.argsort(-margins, kind="stable")[:10]].mean(),
    }


@pytest.mark.parametrize("positives", [False, True])
def test_metrics_are_those_of_scikit_learn_on_the_images_with_truth(scored, table, positives):
    scores = read_scores(scored)
    y = of_keys(scores["key"], Y)
    known = np.arange(len(y)) % 4 > 0  # the file says nothing about the others
    rows = [(label, key) for label, key, told in zip(y, scores["key"], known, strict=True) if told]
    truth = table("truth.csv", ["label", "key"], [*rows, (1, "elsewhere.png")])
    keep, options = known, {"at": (10, 1000)}
    if positives:
        labelled = of_keys(scores["key"], S) == 1
        keep = known & ~labelled
        options["positives"] = table("found.csv", ["key"], [[key] for key in scores["key"][labelled]])
    assert ((scores["margin"] > 0) != scores["label"]).any()
    expected = expected_metrics(y, scores, keep) | {"without_truth": 50}
    result = evaluate(scored, truth, **options)
    assert result == pytest.approx(expected) and list(result) == list(expected)
    json.dumps(result)


def test_an_image_that_is_scored_twice_is_refused_and_not_counted_twice(scored, table):
    with scored.open("a") as stream:
        stream.write("n/010.png,1.0,0.9,1\n")
    truth = table("truth.csv", ["key", "label"], [("n/010.png", 1), ("n/011.png", 0)])
    with pytest.raises(LabelError, match=r"has more than one row for 1 key \('n/010.png'\)") as caught:
        evaluate(scored, truth)
    assert "\n" not in str(caught.value)


def test_a_key_in_two_tables_is_refused(tmp_path, table):
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    for file in files:
        columns = {"key": ["x.png", "y.png"], "margin": np.ones(2, "f4"), "posterior": None, "label": np.ones(2, "i1")}
        write_table(file, TYPES, [columns])
    truth = table("truth.csv", ["key", "label"], [("x.png", 1), ("y.png", 0)])
    with pytest.raises(
        LabelError, match=r"a\.csv and .*b\.csv share 2 keys \('x\.png', 'y\.png'\).* evaluate each table"
    ):
        evaluate(files, truth)


def test_figures_of_several_tables_are_those_of_all_rows_and_of_each(tmp_path, table):
    (tmp_path / "weeks").mkdir()
    margins, files = (np.random.default_rng(1).normal(size=len(Y)) + 2 * Y).astype(np.float32), []
    for name, rows in {"february": slice(80, None), "january": slice(0, 80)}.items():
        files.append(str(tmp_path / f"weeks/{name}.csv"))
        columns = {"key": KEYS[rows], "margin": margins[rows], "posterior": None}
        write_table(files[-1], TYPES, [columns | {"label": (margins[rows] > 1).astype(np.int8)}])
    truth = table("truth.csv", ["key", "label"], zip(KEYS, Y, strict=True))
    result = evaluate(tmp_path / "weeks", truth, at=[10])
    assert list(result["tables"]) == files and result["tables"][files[1]] == evaluate(files[1], truth, at=[10])
    assert result["n"] == len(Y) == sum(one["n"] for one in result["tables"].values())
    both = {name: np.concatenate([read_scores(file)[name] for file in files]) for name in ("key", "margin", "label")}
    y = of_keys(both["key"], Y)
    expected = expected_metrics(y, both, y >= 0)
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert evaluate(files, truth, at=[10]) == result


@pytest.mark.parametrize("at", [0, -5, [10, 0], [2.5], 0.5])
def test_a_rank_that_is_none_is_refused(scored, at):
    with pytest.raises(ValueError, match=r"at must be whole numbers of at least 1, the ranks of precision"):
        evaluate(scored, dict(zip(KEYS, Y.tolist(), strict=True)), at=at)
    assert "precision@7" in evaluate(scored, dict(zip(KEYS, Y.tolist(), strict=True)), at=7)
