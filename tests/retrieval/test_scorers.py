import numpy as np
import pytest
from helpers import plain
from helpers.few_labels import with_labels
from helpers.neighbours import TILT, fused, with_neighbours
from helpers.planted import planted, write_cache

from pucache import PULabels, PULinearClassifier, retrieve_positives
from pucache.retrieval import scorers
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.scorers import Fused, Margins

pytestmark = pytest.mark.usefixtures("one_thread")
N = 300
X, S, Y = planted(N, labelled=30)
REVIEWED = np.zeros(N, np.int8)
REVIEWED[np.flatnonzero((Y == 1) & (S == 0))[:8]] = 1
REVIEWED[np.flatnonzero(Y == 0)[:12]] = -1
LABELS = PULabels(S, REVIEWED)
CLOSE = 0.03  # cosines of a graph are float16, and products may be bfloat16


@pytest.fixture(scope="module")
def linear():
    """A model that did not look at neighbours."""
    return PULinearClassifier(prior=0.3, penalty=1e-3, method="linear", device="cpu").fit(X, S)


@pytest.fixture
def model(linear):
    return with_neighbours(linear, 2.0)


@pytest.fixture
def no_graph(monkeypatch):
    """Let every cache be too large for a graph of all rows."""
    monkeypatch.setattr(scorers, "_MAX_PAIRS", 1)


# --- margins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [29, 30])
def test_probabilities_take_thirty_labelled_positives(opened, model, labels):
    model = with_labels(model, labels)
    for scorer in (Margins(model), Fused(model)):
        assert (scorer(opened(X), LABELS).posterior is None) == (labels < 30)


# --- fused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_fused_scores_are_those_of_the_definition(opened, linear, weight):
    model = with_neighbours(linear, weight)
    scores = Fused(model, "cpu")(opened(X), LABELS)
    np.testing.assert_allclose(scores.values, fused(model, X, LABELS, weight), atol=CLOSE)
    rows = np.array([5, 250, 0])
    np.testing.assert_allclose(scores.posterior(rows), TILT.posterior(scores.values[rows], model.tilt_.prior))
    assert scores.search == "exact search" and "nearest neighbours count" in scores.note


@pytest.mark.parametrize("neighbours", [None, 0.0])
def test_a_model_without_a_weight_is_fused_at_weight_1_and_says_so(opened, linear, neighbours):
    model = linear if neighbours is None else with_neighbours(linear, neighbours, "linear")
    scores = Fused(model, "cpu")(opened(X), LABELS)
    np.testing.assert_allclose(scores.values, fused(model, X, LABELS, 1.0), atol=CLOSE)
    assert (scores.posterior(np.arange(N)) == model.posterior(model.margins(X))).all()
    assert scores.note.startswith("neighbours have weight 1 because fused was asked for; ")


# --- large caches ------------------------------------------------------------------------------


@pytest.mark.parametrize("least, pool", [(50, 50), (1, 1), (2000, 250)])
def test_rows_beyond_the_pool_come_after_it_in_the_order_of_their_margins(
    opened, model, no_graph, monkeypatch, least, pool
):
    monkeypatch.setattr(scorers, "_MIN_CANDIDATES", least)
    cache, margins = opened(X), model.margins(X)
    order = plain.ranked(margins, LABELS.unlabelled, N)
    searched = np.isin(np.arange(N), order[:pool])
    result = rank_unlabelled(cache, LABELS, k=None, scorer=Fused(model, "cpu"), twins=None)
    assert set(result.rows[:pool]) == set(order[:pool]) and result.rows[pool:].tolist() == order[pool:].tolist()
    assert (np.diff(result.scores) <= 0).all()
    np.testing.assert_allclose(result.scores, fused(model, X, LABELS, 2.0, searched)[result.rows], atol=CLOSE)
    assert (result.posterior[pool:] == model.posterior(margins)[result.rows[pool:]]).all()
    np.testing.assert_allclose(result.posterior[:pool], TILT.posterior(result.scores[:pool], model.tilt_.prior))
    assert result.search == f"exact search for the {pool:,} rows of the highest margins"


@pytest.mark.parametrize("copies", [3, 40])
def test_a_row_is_not_its_own_neighbour_among_its_copies(opened, model, no_graph, copies):
    group = np.arange(N) // copies
    rows, labels = X[group], PULabels(S[group], REVIEWED[group])  # any of the copies may be among the neighbours
    values = Fused(model, "cpu")(opened(rows), labels).values
    searched = labels.unlabelled
    np.testing.assert_allclose(values[searched], fused(model, rows, labels, 2.0)[searched], atol=CLOSE)


# --- the choice --------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, 0.0, 0.5, 2.0])
def test_a_model_ranks_with_neighbours_where_it_chose_a_weight(tmp_path, linear, weight):
    model = linear if weight is None else with_neighbours(linear, weight, "distilled" if weight else "linear")
    model.save(tmp_path / "model.safetensors")
    cache = write_cache(tmp_path / "cache.h5", X)
    ranking = retrieve_positives(cache, LABELS, tmp_path / "model.safetensors", k=20, device="cpu")
    if weight:
        assert ranking.scorer == "classifier and neighbours, fused" and ranking.search == "exact search"
    else:
        assert ranking.scorer == "classifier" and not ranking.search
        assert ranking.rows.tolist() == plain.ranked(linear.margins(X), LABELS.unlabelled, 20).tolist()
        reason = "trained by method linear" if weight is None else "with them"
        assert ranking.note.startswith("the classifier ranks alone; nearest neighbours do not count: ")
        assert reason in ranking.note
    assert ranking.first(3).note == ranking.note and ranking.first(3).search == ranking.search


@pytest.mark.parametrize(
    ("parameters", "trained"),
    [
        ({"method": "distilled", "loss": "upu"}, "with fewer than 4 positives"),
        ({}, "with fewer than 4 positives"),
        ({"loss": "upu"}, "by method linear"),
        ({"solver": "sgd"}, "by method linear"),
    ],
)
def test_why_neighbours_do_not_count_follows_the_method_that_trained(tmp_path, parameters, trained):
    s = S * (np.cumsum(S) <= 3)
    model = PULinearClassifier(prior=0.3, penalty=1e-3, device="cpu", **parameters).fit(X, s)
    ranking = retrieve_positives(write_cache(tmp_path / "cache.h5", X), s, model, k=2, device="cpu")
    assert ranking.note.endswith(f"nearest neighbours do not count: the model was trained {trained}")


@pytest.mark.parametrize("k", [0, 2.5, float("nan")])
def test_a_number_of_images_that_is_none_is_refused(tmp_path, k):
    cache = write_cache(tmp_path / "cache.h5", X)
    with pytest.raises(ValueError, match=r"k must be a whole number of at least 1, or None for all"):
        retrieve_positives(cache, LABELS, k=k, device="cpu")
    assert len(retrieve_positives(cache, LABELS, k=np.int64(3), device="cpu").keys) == 3
