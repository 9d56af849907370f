import numpy as np
import pytest
from helpers import plain
from helpers.neighbours import THRESHOLD, TILT, log_ratio, probabilities, share_among, with_neighbours
from helpers.planted import ODD_KEYS, planted, write_cache
from scipy.special import logit

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import CacheError, ModelError, OutputError
from pucache.scoring.score import ScoreReport, score
from pucache.scoring.score_tables import read_scores
from pucache.training.sklearn_classifier import PULinearClassifier

X, S, Y = planted(200, labelled=30)
KEYS = [*ODD_KEYS, *(f"n/{row:03}.png" for row in range(len(ODD_KEYS), len(X)))]


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, threshold=3.0, device="cpu").fit(X, S)


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X, KEYS, failures={"bad.png": "truncated"})


@pytest.fixture(params=[".csv", ".parquet", ".CSV"])
def out(request, tmp_path):
    return tmp_path / "out" / f"scores{request.param}"


# --- score -------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [False, True])
def test_every_row_gets_margin_posterior_and_label_in_cache_order(cache, model, out, monkeypatch, small):
    if small:
        monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 500)
        assert len(list(cache.blocks())) > 3
    margins = model.margins(cache.X)
    report = score(model, cache, out)
    assert report == ScoreReport(cache, 200, int((margins > 3).sum()), 1)
    table = read_scores(out)
    assert table["key"].tolist() == list(cache.keys) and set(table["key"]) == set(KEYS)
    np.testing.assert_allclose(table["margin"], margins, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table["posterior"], model.predict_proba(cache.X)[:, 1], rtol=1e-5, atol=1e-6)
    assert table["label"].tolist() == (margins > 3).astype(int).tolist() == model.predict(cache.X).tolist()
    assert [column.dtype.kind for column in table.values()] == ["O", "f", "f", "i"]


def test_several_files_and_none_at_all_are_scored_alike(tmp_path, model, out):
    (tmp_path / "caches").mkdir()
    write_cache(tmp_path / "caches" / "0.h5", X[:120])
    write_cache(tmp_path / "caches" / "1.h5", X[120:], [f"z/{row}" for row in range(80)])
    several = EmbeddingCache(tmp_path / "caches")
    assert score(model, several, out).rows == 200
    assert read_scores(out)["key"].tolist() == list(several.keys)
    nothing = write_cache(tmp_path / "empty.h5", X[:0])
    with pytest.raises(OutputError, match=r"has the scores of other images, such as '00000.png'; name another .*empty"):
        score(model, nothing, out)
    out.unlink()
    assert score(model, nothing, out) == ScoreReport(nothing, 0, 0, 0)
    assert [len(column) for column in read_scores(out).values()] == [0] * 4


# --- with the neighbours of a pile -------------------------------------------------------------

NEW, *_ = planted(90, labelled=10, seed=1)


@pytest.fixture
def fused(model):
    return with_neighbours(model, 2.0)


@pytest.fixture
def pile(tmp_path):
    return write_cache(tmp_path / "pile.h5", X)


def expected_scores(model, rows, weight):
    """The definition: whitened as the pile, all its rows compared, no label."""
    p, both = probabilities(model, X), np.concatenate([X, rows])
    W = plain.whitened(both, of=X)
    shares = [share_among(W[: len(X)] @ W[len(X) + row], p) for row in range(len(rows))]
    return log_ratio(model, rows) + weight * logit(np.clip(shares, 1e-3, 1 - 1e-3))


@pytest.mark.parametrize("method", ["distilled", "linear"])
@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_new_images_are_scored_with_their_neighbours_in_the_pile(tmp_path, model, pile, method, weight):
    fused = with_neighbours(model, weight, method)
    new = write_cache(tmp_path / "new.h5", NEW, failures={"bad.png": "truncated"})
    report = score(fused, new, tmp_path / "scores.csv", neighbours=pile)
    table = read_scores(tmp_path / "scores.csv")
    np.testing.assert_allclose(table["margin"], expected_scores(fused, NEW, weight), atol=0.03)
    np.testing.assert_allclose(table["posterior"], TILT.posterior(table["margin"], fused.share_), atol=1e-5)
    assert table["label"].tolist() == (table["margin"] > THRESHOLD).astype(int).tolist()
    assert report == ScoreReport(new, 90, int(table["label"].sum()), 1, pile)
    assert 0 < report.positives < 90


def test_rows_of_the_pile_itself_are_left_out_of_their_own_neighbours(tmp_path, fused, pile):
    score(fused, tmp_path / "pile.h5", tmp_path / "itself.csv", neighbours=pile)
    itself = read_scores(tmp_path / "itself.csv")["margin"]
    W, p = plain.whitened(X), probabilities(fused, X)
    shares = [share_among(W @ W[row], p, row) for row in range(len(X))]
    expected = log_ratio(fused, X) + 2 * logit(np.clip(shares, 1e-3, 1 - 1e-3))
    np.testing.assert_allclose(itself, expected, atol=0.03)
    score(fused, write_cache(tmp_path / "copy.h5", X[:50]), tmp_path / "copy.csv", neighbours=pile)
    copies = read_scores(tmp_path / "copy.csv")["margin"]
    np.testing.assert_allclose(copies, expected_scores(fused, X[:50], 2.0), atol=0.03)


# --- images through a model --------------------------------------------------------------------


def test_a_pile_of_another_encoder_or_without_rows_is_refused(tmp_path, fused, cache):
    other = write_cache(tmp_path / "other.h5", X[:, :5])
    with pytest.raises(ModelError, match=r"expects 6-d rows; .*other.h5 holds"):
        score(fused, cache, tmp_path / "scores.csv", neighbours=other)
    with pytest.raises(ValueError, match=r"empty.h5 has no rows, so nothing has neighbours in it"):
        score(fused, cache, tmp_path / "scores.csv", neighbours=write_cache(tmp_path / "empty.h5", X[:0]))
    with pytest.raises(CacheError, match=r"no such cache: .*nowhere.h5"):
        score(fused, cache, tmp_path / "scores.csv", neighbours=tmp_path / "nowhere.h5")
    assert not (tmp_path / "scores.csv").exists()
