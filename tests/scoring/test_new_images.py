from copy import copy

import numpy as np
import pytest
from helpers.few_labels import with_labels
from helpers.planted import planted, write_cache

from pucache import check_new_images
from pucache.errors import ModelError
from pucache.scoring.score import score
from pucache.scoring.score_tables import read_scores
from pucache.training.sklearn_classifier import PULinearClassifier

X, S, Y = planted(1500, labelled=60)
PILE, REST = slice(0, 900), slice(900, None)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(device="cpu").fit(X[PILE], S[PILE])


@pytest.fixture
def cache(tmp_path):
    """Rows of the same kind that the model was not trained on."""
    return write_cache(tmp_path / "cache.h5", X[REST], [f"{row:04}.png" for row in range(600)])


def without_sample(model):
    old = copy(model)
    old.pile_margins_ = old.pile_sample_ = None
    return old


def test_unchanged_images_have_a_share_and_no_warning(model, cache):
    new = check_new_images(model, cache)
    assert new.share.low <= Y[REST].mean() <= new.share.high
    assert new.warning == "" and new.most_different == []
    assert "of the new images are positive" in new.share_text and new.to_dict()["share_holds"] is True


def test_changed_images_are_named(model, tmp_path):
    changed = X[REST].copy()
    changed[:60] += 3 * changed.std() * np.sign(np.arange(changed.shape[1]) % 2 - 0.5).astype(changed.dtype)
    cache = write_cache(tmp_path / "changed.h5", changed, [f"{row:04}.png" for row in range(600)])
    new = check_new_images(model, cache)
    assert new.most_different[0] in new.warning
    assert {int(key[:4]) < 60 for key in new.most_different} == {True}
    assert new.to_dict()["shift"]["differs"] is True and new.to_dict()["share_holds"] is False
    assert "would be positive" in new.share_text and "which they are not" in new.share_text


@pytest.mark.parametrize(
    ("change", "rows", "note"),
    [
        (without_sample, 600, "keeps no sample"),
        (lambda model: model, 29, "29 new images are too few"),
        (lambda model: model, 1, "1 new image is too few"),
        (lambda model: relabelled(model, 9), 600, "9 labelled positives are too few"),
    ],
    ids=["of before", "few images", "one image", "few labels"],
)
def test_where_nothing_is_said_the_reason_is(model, cache, change, rows, note):
    new = check_new_images(change(model), cache, rows=np.arange(rows))
    assert note in new.note and new.share is None and new.shift is None and new.share_text == new.warning == ""


def test_below_thirty_labels_no_share_is_stated_or_decided_at_but_a_difference_is(model, cache, tmp_path):
    few = relabelled(model, 20)
    new = check_new_images(few, cache)
    assert new.share is None and new.share_text == "" and new.shift is not None
    assert "20 labelled positives are too few to state a share" in new.note
    with pytest.raises(ModelError):
        score(few, cache, tmp_path / "scores.csv", deploy_prior="auto")
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.parametrize("share", [0, 1])
def test_images_of_one_class_have_a_share_near_the_bound_and_no_warning(model, tmp_path, share):
    of_class = X[REST][Y[REST] == share]
    new = check_new_images(model, write_cache(tmp_path / "new.h5", of_class))
    assert new.share.prior == pytest.approx(share, abs=0.06) and new.warning == ""
    assert new.share.high - new.share.low >= 0.5 / len(of_class), "the share is that of whole images"


def test_no_share_is_stated_for_equal_images_as_none_fits_them(model, tmp_path):
    new = check_new_images(model, write_cache(tmp_path / "new.h5", np.full((200, X.shape[1]), 0.5, np.float32)))
    assert "is not stated" in new.share_text and "fit no share" in new.warning
    assert np.isfinite(new.shift.auc) and len(new.most_different) == 20


def relabelled(model, labels):
    few = copy(model)
    few = with_labels(few, labels)
    return few


def test_a_higher_share_raises_posteriors_and_lowers_the_threshold(model, cache, tmp_path):
    tables = []
    for share in (0.01, 0.5):
        assert score(model, cache, tmp_path / "scores.csv", deploy_prior=share).share == share
        tables.append(read_scores(tmp_path / "scores.csv"))
    rare, frequent = tables
    np.testing.assert_array_equal(rare["margin"], frequent["margin"])
    assert (rare["posterior"] <= frequent["posterior"]).all() and rare["label"].sum() <= frequent["label"].sum()
