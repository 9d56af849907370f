import csv
import json

import numpy as np
import pytest
from helpers.planted import ODD_KEYS, planted
from sklearn import metrics as sk

from pucache.errors import LabelError
from pucache.scoring.evaluate import evaluate
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


def test_one_class_alone_has_no_auc_and_is_still_evaluated(scored, table):
    truth = table("truth.csv", ["key", "label"], [(key, 1) for key in KEYS[:20]])
    result = evaluate(scored, truth, at=(20, 21))
    assert np.isnan(result["auc"]) and result["precision@20"] == 1 and "precision@21" not in result


def test_an_image_that_is_scored_twice_is_refused_and_not_counted_twice(scored, table):
    with scored.open("a") as stream:
        stream.write("n/010.png,1.0,0.9,1\n")
    truth = table("truth.csv", ["key", "label"], [("n/010.png", 1), ("n/011.png", 0)])
    with pytest.raises(LabelError, match=r"has more than one row for 1 keys \('n/010.png'\)") as caught:
        evaluate(scored, truth)
    assert "\n" not in str(caught.value)
