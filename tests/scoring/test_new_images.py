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


def test_the_share_of_a_model_that_states_only_an_interval_has_no_number(model, tmp_path):
    s = S[PILE].copy()
    s[np.flatnonzero(s)[15:]] = 0
    few, new = PULinearClassifier(device="cpu").fit(X[PILE], s), write_cache(tmp_path / "new.h5", X[REST])
    assert few.prior_ is None and model.prior_ is not None
    said = [score(one, new, tmp_path / "scores.csv").decided for one in (model, few)]
    assert [one.partition("%")[1] for one in said] == ["%", ""] and said[1].startswith("threshold for the share of")


def test_a_thousand_new_images_are_decided_at_their_share(model, tmp_path):
    """Of the new images one in two is positive, of the pile about a third."""
    rows = np.flatnonzero(Y[MANY])[:400] + 900
    new = np.concatenate([X[MANY], X[rows] + 0.01])
    cache, out = write_cache(tmp_path / "new.h5", new), tmp_path / "scores.csv"
    assert score(model, cache, out, deploy_prior="model").share == model.share_
    assert model.at_share(model.share_).threshold_ == model.threshold_ != model.at_share(model.share_ + 0.1).threshold_
    report = score(model, cache, out)
    assert report.share == report.new_images.share.prior != model.share_
    assert report.share == pytest.approx(np.concatenate([Y[MANY], Y[rows]]).mean(), abs=0.05)
    assert f"threshold for {100 * report.share:.3g}% positives, the share among the new images" in report.decided
    table = read_scores(out)
    np.testing.assert_allclose(table["posterior"], model.at_share(report.share).posterior(table["margin"]), atol=1e-5)


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


def test_of_many_images_the_interval_is_that_of_those_that_are_looked_at(model):
    rows = np.random.default_rng(0).integers(REST.start, REST.stop, 100_000)
    new = check_new_images(model, X[rows])
    looked_at = np.linspace(0, len(rows) - 1, new.n_sampled).astype(np.int64)
    assert new.n_sampled == 20_000 and new.share == check_new_images(model, X[rows[looked_at]]).share


# --- where less is said ----------------------------------------------------------------------------


def of_0_4(model):
    return changed(model, fold_coef_=None, fold_intercept_=None)


def of_0_2(model):
    return changed(of_0_4(model), pile_margins_=None, pile_sample_=None)


def changed(model, **attributes):
    other = copy(model)
    vars(other).update(attributes)
    return other


NOTHING = [
    (of_0_2, 600, "keeps no sample"),
    (copy, 29, "29 new images are too few"),
    (copy, 1, "1 new image is too few"),
    (lambda model: with_labels(model, 9), 600, "9 labelled positives are too few"),
]


@pytest.mark.parametrize(("change", "rows", "note"), NOTHING)
def test_where_nothing_is_said_the_reason_is(model, cache, change, rows, note):
    new = check_new_images(change(model), cache, rows=np.arange(rows))
    assert note in new.note and new.share is None and new.shift is None and new.share_text == new.warning == ""


OWN_SHARE = [
    (copy, X[REST], "take 1,000 of them"),
    (lambda model: with_labels(model, 39), X[MANY], "take 40 labelled positives"),
    (lambda model: with_labels(model, 39, grouped=True), X[MANY], "take 40 groups of labelled positives"),
    (lambda model: with_labels(model, 20, grouped=True), X[MANY], "20 groups of labelled positives are too few to"),
    (lambda model: changed(model, prior=0.9, figures_=model.figures_.without_prior()), X[MANY], "too large for its"),
    (lambda model: changed(model, threshold=2.0), X[MANY], "threshold as given, a margin; posterior for"),
    (copy, X[MANY], "the share among the new images is not known to differ"),
    (copy, 3 * X[MANY], "the new images differ"),
    (of_0_4, X[MANY], "models of 0.4 and older"),
    (of_0_2, X[MANY], "keeps no sample"),
    (copy, X[PILE], "the model was trained on these images"),
    (copy, X[:1700], "the model was trained on these images, or on most of them"),
    (lambda model: model.at_share(0.2), X[MANY], "trained with it as deploy prior"),
]


@pytest.mark.parametrize(("change", "new", "why"), OWN_SHARE, ids=[why for *_, why in OWN_SHARE])
def test_where_decisions_are_at_the_share_of_the_model_the_reason_is_said(model, tmp_path, change, new, why):
    other, out = change(model), tmp_path / "scores.csv"
    report = score(other, write_cache(tmp_path / "new.h5", new), out)
    assert report.share == other.share_ and why in report.decided
    if why.startswith(("20 groups", "models of 0.4")):
        assert report.new_images.share is None and report.new_images.shift is not None, "a difference is stated"
    np.testing.assert_array_equal(read_scores(out)["label"], other.margins(new) > np.float32(other.threshold_))


@pytest.mark.parametrize("value", ["much", 0])
def test_another_deploy_prior_is_refused_before_anything_is_written(model, cache, tmp_path, value):
    with pytest.raises(ValueError, match="deploy_prior must be auto, model, or lie strictly between 0 and 1"):
        score(model, cache, tmp_path / "scores.csv", deploy_prior=value)
    assert not (tmp_path / "scores.csv").exists()
