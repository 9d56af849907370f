import numpy as np
import pytest
from helpers.refusals import one_line

from pucache.errors import LabelError
from pucache.labels.concepts import ConceptLabels, exclusive
from pucache.labels.labels import Labels
from pucache.training.concept_models import ExclusiveKinds, shrunk
from pucache.training.sklearn_classifier import PULinearClassifier

KINDS, SHARES, LABELLED = 3, (0.1, 0.2, 0.3), 40


@pytest.fixture(scope="module")
def pile():
    """Rows of three kinds and of none, their kinds (3 for none), and heads trained on 40 labels of each kind."""
    draw = np.random.default_rng(0)
    y = draw.choice(4, 4000, p=(*SHARES, 1 - sum(SHARES)))
    X = (draw.normal(size=(4000, 6)) + 2.5 * np.eye(4, 6)[y] * (y < KINDS)[:, None]).astype(np.float32)
    models = []
    for kind in range(KINDS):
        s = np.zeros(4000, int)
        s[np.flatnonzero(y == kind)[:LABELLED]] = 1
        models.append(PULinearClassifier(device="cpu", method="linear").fit(X, s))
    return X, y, models


def test_an_image_gets_the_likeliest_kind_or_none_about_as_often_as_bayes_rule(pile):
    X, y, models = pile
    margins = np.column_stack([model.margins(X) for model in models])
    posteriors, kinds = ExclusiveKinds(models).of(margins)
    assert (posteriors.sum(1) <= 1 + 1e-12).all() and (posteriors > 0).all()
    none = 1 - posteriors.sum(1, keepdims=True)
    assert (np.hstack([posteriors, none]).argmax(1) == kinds).all()
    squares = ((X[:, None] - 2.5 * np.eye(4, 6) * (np.arange(4) < KINDS)[:, None]) ** 2).sum(-1)
    best = (np.log([*SHARES, 1 - sum(SHARES)]) - squares / 2).argmax(1)
    assert (kinds == y).mean() > (best == y).mean() - 0.05
    assert (kinds == y)[y < KINDS].mean() > 0.7 and 0.2 < (kinds == KINDS).mean() < 0.6


def test_shares_that_are_given_stay_and_where_they_cover_all_each_image_has_a_kind(pile):
    X, _, models = pile
    given = [model.at_share(share) for model, share in zip(models, (0.2, 0.3, 0.5), strict=True)]
    kinds = ExclusiveKinds(given)
    np.testing.assert_allclose(kinds.shares, (0.2, 0.3, 0.5))
    posteriors, called = kinds.of(np.column_stack([model.margins(X) for model in models]))
    np.testing.assert_allclose(posteriors.sum(1), 1)
    assert called.max() < KINDS


def test_shares_come_together_as_far_as_their_errors_do_not_tell_them_apart():
    shares = np.array([0.02, 0.1, 0.3])
    np.testing.assert_allclose(shrunk(shares, np.full(3, 1e-3)), shares, rtol=1e-3)
    assert np.ptp(shrunk(shares, np.full(3, 5.0))) == 0
    exact = shrunk(shares, np.array([1e-3, 3.0, 1e-3]))
    np.testing.assert_allclose(exact[[0, 2]], shares[[0, 2]], rtol=1e-2)
    assert 0.02 < exact[1] < 0.1


def labels(*rows):
    s = np.zeros(6, np.int8)
    s[list(rows)] = 1
    return Labels(s, np.zeros(6, np.int8))


def test_positives_of_a_kind_are_negatives_of_the_others():
    result = exclusive(ConceptLabels({"cat": labels(0, 1), "dog": labels(2)}, {"owl": "gone"}))
    assert result.labels["cat"].reviewed.tolist() == [0, 0, -1, 0, 0, 0] and result.failures == {"owl": "gone"}
    assert result.labels["dog"].reviewed.tolist() == [-1, -1, 0, 0, 0, 0]
    both = ConceptLabels({"cat": labels(0, 1), "dog": labels(1), "owl": labels(3)}, {})
    assert "1 images are labelled with several concepts, the first with cat and dog" in one_line(
        LabelError, exclusive, both
    )
