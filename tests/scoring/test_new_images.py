from copy import copy

import numpy as np
import pytest
from helpers.few_labels import with_labels
from helpers.planted import planted, write_cache

from pucache import PULinearClassifier, check_new_images, score
from pucache.scoring.score_tables import read_scores

X, S, Y = planted(2100, labelled=120)
PILE, REST = slice(0, 900), slice(900, 1500)
MANY = slice(900, None)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(device="cpu").fit(X[PILE], S[PILE])


@pytest.fixture
def cache(tmp_path):
    """Rows of the same kind that the model was not trained on."""
    return write_cache(tmp_path / "cache.h5", X[REST], [f"{row:04}.png" for row in range(600)])


def of_file_of_before_0_3(model):
    old = copy(model)
    old.pile_margins_ = old.pile_sample_ = old.fold_coef_ = old.fold_intercept_ = None
    return old


def of_0_4(model):
    old = copy(model)
    old.fold_coef_ = old.fold_intercept_ = None
    return old


def test_unchanged_images_have_a_share_and_no_warning(model, cache):
    new = check_new_images(model, cache)
    assert new.share.low <= Y[REST].mean() <= new.share.high
    assert new.warning == "" and new.most_different == []
    assert "of the new images are positive" in new.share_text and new.to_dict()["share_holds"] is True


def test_of_many_images_the_interval_is_that_of_those_that_are_looked_at(model):
    rows = np.random.default_rng(0).integers(REST.start, REST.stop, 100_000)
    new = check_new_images(model, X[rows])
    looked_at = np.linspace(0, len(rows) - 1, new.n_sampled).astype(np.int64)
    assert new.n_sampled == 20_000 and new.share == check_new_images(model, X[rows[looked_at]]).share


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
        (of_file_of_before_0_3, 600, "keeps no sample"),
        (lambda model: model, 29, "29 new images are too few"),
        (lambda model: model, 1, "1 new image is too few"),
        (lambda model: relabelled(model, 9), 600, "9 labelled positives are too few"),
    ],
    ids=["of before", "few images", "one image", "few labels"],
)
def test_where_nothing_is_said_the_reason_is(model, cache, change, rows, note):
    new = check_new_images(change(model), cache, rows=np.arange(rows))
    assert note in new.note and new.share is None and new.shift is None and new.share_text == new.warning == ""


def test_below_thirty_labels_no_share_is_stated_but_a_difference_is(model, cache):
    new = check_new_images(relabelled(model, 20), cache)
    assert new.share is None and new.share_text == "" and new.shift is not None
    assert "20 labelled positives are too few to state a share" in new.note


@pytest.mark.parametrize(
    ("change", "rows", "why"),
    [
        (lambda model: model, REST, "take 1,000 of them"),
        (lambda model: relabelled(model, 39), MANY, "take 40 labelled positives"),
        (lambda model: relabelled(model, 20), MANY, "20 labelled positives are too few"),
        (lambda model: model, MANY, "the share among the new images may be the same"),
        (of_0_4, MANY, "models of 0.4 and older"),
        (of_file_of_before_0_3, MANY, "keeps no sample"),
        (lambda model: model, PILE, "the model was trained on these images"),
        (lambda model: model, slice(0, 1700), "the model was trained on these images, or on most of them"),
        (lambda model: model.at_share(0.2), MANY, "trained with it as deploy prior"),
    ],
    ids=[
        "few images",
        "few labels",
        "very few",
        "same share",
        "0.4",
        "before 0.3",
        "its pile",
        "its pile and more",
        "own share",
    ],
)
def test_where_decisions_are_at_the_share_of_the_model_the_reason_is_said(model, tmp_path, change, rows, why):
    changed = change(model)
    report = score(changed, write_cache(tmp_path / "new.h5", X[rows]), tmp_path / "scores.csv")
    assert report.share == changed.share_ and why in report.decided
    table = read_scores(tmp_path / "scores.csv")
    np.testing.assert_array_equal(table["label"], changed.margins(X[rows]) > np.float32(changed.threshold_))


def test_the_share_of_a_model_that_states_only_an_interval_has_no_number(model, tmp_path):
    s = S[PILE].copy()
    s[np.flatnonzero(s)[15:]] = 0
    few, new = PULinearClassifier(device="cpu").fit(X[PILE], s), write_cache(tmp_path / "new.h5", X[REST])
    assert few.prior_ is None and model.prior_ is not None
    said = [score(one, new, tmp_path / "scores.csv").decided for one in (model, few)]
    assert [one.partition("%")[1] for one in said] == ["%", ""] and said[1].startswith("threshold for the share of")


def test_images_that_differ_are_decided_at_the_share_of_the_model(model, tmp_path):
    report = score(model, write_cache(tmp_path / "new.h5", 3 * X[MANY]), tmp_path / "scores.csv")
    assert report.share == model.share_ and "the new images differ" in report.decided


def test_a_thousand_new_images_are_decided_at_their_share_and_changed_labels_are_counted(model, tmp_path):
    """Of the new images one in two is positive, of the pile about a third."""
    rows = np.flatnonzero(Y[MANY])[:400] + 900
    new = np.concatenate([X[MANY], X[rows] + 0.01])
    cache, out = write_cache(tmp_path / "new.h5", new), tmp_path / "scores.csv"
    own = score(model, cache, out, deploy_prior="model")
    assert own.share == model.share_ and own.changed == 0
    before = read_scores(out)["label"]
    report = score(model, cache, out)
    assert report.share == report.new_images.share.prior != model.share_
    assert report.share == pytest.approx(np.concatenate([Y[MANY], Y[rows]]).mean(), abs=0.05)
    assert f"threshold for {100 * report.share:.3g}% positives, the share among the new images" in report.decided
    table = read_scores(out)
    np.testing.assert_allclose(table["posterior"], model.at_share(report.share).posterior(table["margin"]), atol=1e-5)
    assert report.changed == (table["label"] != before).sum() > 0 and report.keeps == "model"
    again = score(model, cache, out, deploy_prior="model")
    assert again.changed == report.changed and float(again.keeps) == pytest.approx(report.share, rel=1e-3)
    assert score(model, cache, out).changed == report.changed
    assert score(model, cache, out).changed == 0, "the same decisions"
    replaced = score(model, cache, out, deploy_prior=float(again.keeps))
    assert replaced.changed == 0 and (read_scores(out)["label"] == table["label"]).all()


def test_a_model_of_0_4_estimates_as_before_and_says_so(model, cache):
    new = check_new_images(of_0_4(model), cache)
    assert new.share.method == "prior shift" and "as by pucache 0.4" in new.note
    assert new.share.low <= Y[REST].mean() <= new.share.high


@pytest.mark.parametrize("value", ["much", 0, 1, None])
def test_another_deploy_prior_is_refused_before_anything_is_written(model, cache, tmp_path, value):
    with pytest.raises(ValueError, match="deploy_prior must be auto, model, or lie strictly between 0 and 1"):
        score(model, cache, tmp_path / "scores.csv", deploy_prior=value)
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
