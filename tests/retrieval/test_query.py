import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.texts import save_text_encoder
from helpers.tiny import save_image

import pucache
from pucache import PULabels, load_encoder
from pucache.encoders.class_words import score_by_classes
from pucache.errors import CacheError, EncoderError, LabelError, SourceError
from pucache.retrieval.query import Query

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, _ = planted(200, labelled=5)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Where the vectors of the bundled encoder's classes are kept, which take seconds."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(autouse=True)
def kept(work, monkeypatch):
    monkeypatch.setenv("PUCACHE_WORK", str(work))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    pytest.importorskip("tokenizers")
    return save_text_encoder(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X)


# --- vectors and pictures -------------------------------------------------------------------------


def test_vectors_rank_as_labelled_rows_of_the_same_vectors_do(cache, tmp_path):
    np.save(tmp_path / "query.npy", X[S == 1])
    by_vectors = pucache.retrieve_positives(cache, like=tmp_path / "query.npy", k=None, device="cpu")
    by_labels = pucache.retrieve_positives(cache, S, k=None, device="cpu")
    assert len(by_vectors.keys) == len(cache)
    assert [key for key in by_vectors.keys if key in set(by_labels.keys)] == by_labels.keys
    assert by_vectors.scorer == f"likeness to {tmp_path / 'query.npy'}"


def test_arrays_and_several_files_rank_as_one_file_of_them_does(cache, tmp_path):
    np.save(tmp_path / "query.npy", X[S == 1])
    expected = pucache.retrieve_positives(cache, like=tmp_path / "query.npy", device="cpu").keys
    one, *others = X[S == 1]
    files = [tmp_path / "one.npy", tmp_path / "others.npy"]  # a vector may stand alone
    for path, vectors in zip(files, (one, others), strict=True):
        np.save(path, vectors)
    for like in (X[S == 1], list(X[S == 1]), [one, np.array(others)], files):
        assert pucache.retrieve_positives(cache, like=like, device="cpu").keys == expected
    assert pucache.retrieve_positives(cache, like=X[3], k=1, device="cpu").scorer == "likeness to vectors"


def test_an_array_that_does_not_fit_is_refused_and_a_review_takes_none(cache):
    with pytest.raises(LabelError, match=r"like holds float64 of shape \(1, 2\); expected numbers of shape"):
        pucache.retrieve_positives(cache, like=np.ones(2))
    with pytest.raises(ValueError, match=r"numpy\.save those of like"):
        pucache.review(cache, like=X[:2])


def test_what_is_labelled_is_left_out_of_the_ranking_by_a_query(cache, tmp_path):
    np.save(tmp_path / "query.npy", X[:3])
    reviewed = np.where((S == 0) & (np.arange(len(S)) % 2 == 0), -1, 0).astype(np.int8)
    for labels in (PULabels.of(S), PULabels(S, reviewed)):
        ranked = pucache.retrieve_positives(cache, labels, like=tmp_path / "query.npy", k=None, device="cpu")
        assert sorted(ranked.rows) == np.flatnonzero(labels.unlabelled).tolist()


BAD_VECTORS = {
    "another dimension": (np.ones((3, 7), np.float32), r"float32 of shape \(3, 7\); expected .* \(m, 6\)"),
    "none": (np.ones((0, 6), np.float32), r"shape \(0, 6\)"),
    "texts": (np.array([["a"] * 6]), "<U1"),
    "NaN": (np.full((2, 6), np.nan), "NaN"),
    "too large": (np.full((2, 6), 1e300), "too large"),
    "a tensor": (np.ones((2, 2, 6)), r"shape \(2, 2, 6\)"),
    "objects": (np.array([[None] * 6]), "cannot read"),
}


@pytest.mark.parametrize("name", BAD_VECTORS)
def test_vectors_that_do_not_fit_are_refused_in_one_line(cache, tmp_path, name):
    values, said = BAD_VECTORS[name]
    np.save(tmp_path / "query.npy", values)
    with pytest.raises(LabelError, match=said) as raised:
        pucache.retrieve_positives(cache, like=tmp_path / "query.npy")
    assert "\n" not in str(raised.value)


def test_pictures_are_embedded_with_the_encoder_of_the_cache(image_folder, tmp_path):
    folder, here = image_folder(12), {"device": "cpu", "precision": "fp32", "runtime": "torch"}
    cache = pucache.embed(folder, tmp_path / "cache.h5", dtype="float32", **here)
    save_image(tmp_path / "phone" / "mine.png", 7)  # the picture of 007.png
    np.save(tmp_path / "vectors.npy", cache.take(np.array([7])))
    by_vectors = pucache.retrieve_positives(cache, like=tmp_path / "vectors.npy", device="cpu")
    for like in (tmp_path / "phone", tmp_path / "phone" / "mine.png"):
        ranked = pucache.retrieve_positives(cache, like=str(like), device="cpu")
        assert ranked.keys[0] == "007.png" and ranked.keys == by_vectors.keys
    (tmp_path / "phone" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(LabelError, match=r"1 pictures cannot be read, such as broken\.png"):
        pucache.retrieve_positives(cache, like=tmp_path / "phone")
    with pytest.raises(SourceError):
        pucache.retrieve_positives(cache, like=tmp_path / "nowhere")


# --- words ----------------------------------------------------------------------------------------


@pytest.fixture
def bundled(tmp_path, texts, monkeypatch):
    """A cache of the bundled encoder's description, with rows of any kind, and a text encoder for its words."""
    monkeypatch.setenv("PUCACHE_TEXT_ENCODER", str(texts))
    spec = load_encoder(device="cpu", precision="fp32", runtime="torch").spec
    rows = np.random.default_rng(0).random((300, 1280), np.float32)
    return write_cache(tmp_path / "bundled.h5", rows, encoder=spec)


def test_words_rank_by_the_classes_that_they_stand_for_in_any_blocks(bundled, texts, work, monkeypatch):
    asked = {"words": ["a dress", "red car"], "not_words": "frog"}
    rows = bundled.take(np.arange(300))
    scores = score_by_classes(["a dress", "red car"], ["frog"], texts, work, rows)[0](rows)
    ranked = pucache.retrieve_positives(bundled, k=None, **asked)
    np.testing.assert_allclose(ranked.scores, scores[ranked.rows], atol=1e-6)
    assert (np.diff(ranked.scores) <= 0).all() and ranked.posterior is None
    assert ranked.scorer == "the words “a dress” or “red car”, not “frog”" and "frog" in ranked.note
    monkeypatch.setattr("pucache.retrieval.query._TASK_ROWS", 7)
    assert pucache.retrieve_positives(bundled, k=None, **asked).keys == ranked.keys


def test_words_and_pictures_rank_together_by_the_ranks_that_each_gives(bundled, texts, tmp_path):
    words = {"words": "a dress"}
    np.save(tmp_path / "query.npy", bundled.take(np.arange(3)))
    like = {"like": tmp_path / "query.npy"}
    alone = [pucache.retrieve_positives(bundled, k=None, device="cpu", **asked).rows for asked in (words, like)]
    together = pucache.retrieve_positives(bundled, k=None, device="cpu", **words, **like)
    expected = np.zeros(300)
    for rows in alone:
        expected[rows] += 1 / (60 + 1 + np.arange(300))
    np.testing.assert_allclose(together.scores, np.sort(expected)[::-1], rtol=1e-6)
    np.testing.assert_allclose(expected[together.rows], together.scores, rtol=1e-6)
    assert together.scorer == f"the words “a dress”, and likeness to {tmp_path / 'query.npy'}" and together.note


def test_rows_that_are_not_finite_are_named(bundled, texts, tmp_path):
    rows = bundled.take(np.arange(300))
    rows[5] = np.nan
    broken = write_cache(tmp_path / "nan.h5", rows, encoder=bundled.encoder)
    with pytest.raises(CacheError, match=r"00005\.png"):
        pucache.retrieve_positives(broken, words="a frog")


def test_a_cache_whose_encoder_is_not_there_takes_vectors(cache):
    with pytest.raises(EncoderError, match=r"give a \.npy file of their vectors"):
        pucache.retrieve_positives(cache, like="photos/")


# --- what is asked --------------------------------------------------------------------------------

WRONG = {
    "nothing": ({}, "nothing says what is looked for"),
    "one of them empty": ({"words": ["a", ""]}, "words are empty"),
    "only what it is not": ({"not_words": "a"}, "not_words goes with words"),
    "weights alone": ({"weights": "b"}, "weights are of the cache's encoder, for words or pictures"),
    "a way to rank": ({"words": "a", "by": "whitened"}, "rank by themselves"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_questions_are_refused_in_one_line(cache, name):
    asked, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        pucache.retrieve_positives(cache, **asked)


@pytest.mark.parametrize(
    "query",
    [
        Query(("a dress", "an “evening” gown\n"), ("a shirt",)),
        Query(like=("photos/", "/q.npy")),
        Query(("😀\u2028",), like=("photos/",)),
    ],
)
def test_a_query_is_read_as_it_was_recorded(query):
    assert Query.from_json(query.to_json()) == query


def test_the_record_of_a_query_holds_no_secrets():
    query = Query.of(like="https://me:secret@host/photos.tar?token=secret")
    assert "secret" not in query.to_json() and "secret" not in str(query)
