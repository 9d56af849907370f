"""Values of rows in every form that people have them in, through every function that takes them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from helpers.planted import planted, write_cache
from helpers.refusals import one_line
from helpers.slow import slow
from hypothesis import given, settings
from hypothesis import strategies as st

import pucache
from pucache import PULabels, read_labels
from pucache.errors import LabelError
from pucache.labels.read_labels import open_labels
from pucache.labels.row_values import read_truth, read_values

KEYS = list("abcdef")
S = np.array([1, 0, 0, 1, 0, 0])
ORDER = [3, 1, 5, 0, 2, 4]
NAMES, VALUES = [KEYS[row] for row in ORDER], S[ORDER]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    return write_cache(tmp_path_factory.mktemp("six") / "six.h5", X, KEYS)


BY_POSITION = {
    "int64": S,
    "list": S.tolist(),
    "tuple": tuple(S.tolist()),
    "bool": S == 1,
    "float16": S.astype(np.float16),
    "long double": S.astype(np.longdouble),
    "uint8": S.astype(np.uint8),
    "objects": S.astype(object),
    "unmasked": np.ma.masked_array(S, mask=False),
    "tensor": torch.tensor(S),
    "bool tensor": torch.tensor(S == 1),
    "Series": pd.Series(S),
    "frame": pd.DataFrame({"s": S}),
    "Arrow": pa.array(S),
}
BY_KEY = {
    "dict": dict(zip(NAMES, VALUES, strict=True)),
    "Series": pd.Series(VALUES, index=NAMES),
    "nullable": pd.Series(VALUES == 1, index=NAMES, dtype="boolean"),
    "string index": pd.Series(VALUES, index=pd.Index(NAMES, dtype="string")),
    "categorical index": pd.Series(VALUES, index=pd.Categorical(NAMES)),
    "frame": pd.DataFrame({"key": NAMES, "label": VALUES}),
    "frame by index": pd.DataFrame({"label": VALUES, "split": "train"}, index=NAMES),
    "frame of paths": pd.DataFrame({"filename": NAMES, "label": VALUES, "other": 7}),
    "Arrow table": pa.table({"key": NAMES, "label": VALUES}),
    "Arrow batch": pa.RecordBatch.from_pydict({"key": NAMES, "label": VALUES}),
}
KEYS_ALONE = {
    "list": ["a", "d"],
    "tuple": ("d", "a", "a"),
    "set": {"a", "d"},
    "frozenset": frozenset("ad"),
    "view": {"a": 0, "d": 0}.keys(),
    "generator": (key for key in "ad"),
    "array": np.array(["a", "d"]),
    "objects": np.array(["d", "a"], object),
    "Index": pd.Index(["d", "a"]),
    "Series": pd.Series(["d", "a"]),
    "filtered Series": pd.Series(["d", "a"], index=[7, 3]),
    "frame": pd.DataFrame({"path": ["a", "d"]}),
    "Arrow": pa.chunked_array([["a"], ["d"]]),
}
WRONG = {
    "1.9": S * 1.9,
    "257": S * 257,
    "0.7": S * 0.7,
    "2": 2 * S,
    "-1": -S,
    "NaN": np.where(S, 1, np.nan),
    "None": [1, None, 0, 0, 0, 0],
    "text": ["1", "0", "0", "1", "0", "0"],
    "complex": S * (1 + 0j),
    "column": S[:, None],
    "masked": np.ma.masked_array(S, mask=[0, 1, 0, 0, 0, 0]),
    "huge": [1, 10**30, 0, 0, 0, 0],
    "times": S.astype("M8[s]"),
    "records": np.zeros(6, "i4,i4"),
    "ragged": [[1], [0, 1]],
    "short": S[:4],
    "row numbers": [0, 3],
    "row numbers in a set": {0, 3},
    "bytes": [b"a", b"d"],
    "bytes as keys": {b"a": 1},
    "nothing": [],
    "missing": pd.Series([1, None, 0, 0, 0, 0], dtype="Int64"),
    "with gradients": torch.ones(6, requires_grad=True),
    "backwards": pd.Series(S, index=range(5, -1, -1)),
    "from 1": pd.Series(S, index=range(1, 7)),
    "dates": pd.Series(S, index=pd.date_range("2020", periods=6)),
    "two levels": pd.Series(S, index=pd.MultiIndex.from_tuples([(key, 0) for key in KEYS])),
    "dict with NaN": {"a": 1, "b": np.nan},
    "dict of text": {"a": "1"},
    "dict of 2": {"a": 2},
    "unknown key": {"a": 1, "zz": 1},
    "two values": pd.Series([1, 0], index=["a", "a"]),
    "Series of text": pd.Series(list("ynnynn"), index=KEYS),
    "two columns": pd.DataFrame({"key": KEYS, "x": S, "z": S}),
    "wide": pd.DataFrame({"x": S, "z": S}, index=KEYS),
}


@pytest.mark.parametrize("form", BY_POSITION)
def test_values_by_position_are_those_of_the_rows(cache, form):
    assert (open_labels(cache, BY_POSITION[form]).only.s == S).all()
    assert (PULabels.of(BY_POSITION[form]).s == S).all()
    assert (PULabels(BY_POSITION[form], np.zeros(6)).s == S).all()
    assert (read_truth(BY_POSITION[form], cache.keys, cache) == S).all()


@pytest.mark.parametrize("form", BY_KEY)
def test_values_with_keys_are_joined_by_them(cache, form):
    assert (open_labels(cache, BY_KEY[form]).only.s == S).all()
    assert (read_truth(BY_KEY[form], cache.keys, cache) == S).all()
    assert "need a cache to be joined with" in one_line(LabelError, PULabels.of, BY_KEY[form])


@pytest.mark.parametrize("form", KEYS_ALONE)
def test_keys_alone_are_the_positives(cache, form):
    keys = KEYS_ALONE[form] if form != "generator" else list("ad")
    assert (open_labels(cache, KEYS_ALONE[form]).only.s == S).all()
    assert (read_truth(keys, cache.keys, cache) == S).all()
    assert (read_labels(cache, ["b"], negatives=keys).only.reviewed == -S).all()
    assert (read_labels(cache, {"one": keys}).columns["one"].s == S).all()


@pytest.mark.parametrize("form", WRONG)
def test_other_values_are_refused_before_they_are_cast(cache, form):
    assert one_line(LabelError, open_labels, cache, WRONG[form])
    if form not in ("-1", "unknown key", "short"):
        assert one_line(LabelError, read_truth, WRONG[form], cache.keys, cache)
    if form not in ("short", "nothing"):
        assert one_line(LabelError, PULabels.of, WRONG[form])


def test_what_is_not_named_is_unlabelled_or_unknown(cache):
    assert open_labels(cache, pd.Series([1, 0], index=["d", "a"])).only.s.tolist() == [0, 0, 0, 1, 0, 0]
    assert read_truth({"d": 1, "a": 0, "of another pile": 1}, cache.keys, cache).tolist() == [0, -1, -1, 1, -1, -1]
    assert read_truth(pd.Series([1, -1], index=["d", "a"]), cache.keys, cache).tolist() == [-1, -1, -1, 1, -1, -1]
    assert "none of the 1 keys" in one_line(LabelError, read_truth, {"zz": 1}, cache.keys, cache)


def test_numbers_that_are_keys_are_taken_as_such(tmp_path):
    X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    cache = write_cache(tmp_path / "ids.h5", X, ["100", "20", "3", "7"])
    assert open_labels(cache, pd.Series([0, 1, 0, 0], index=[3, 100, 20, 7])).only.s.tolist() == [1, 0, 0, 0]
    assert open_labels(cache, pd.DataFrame({"id": [7], "s": [1]})).only.s.tolist() == [0, 0, 0, 1]
    assert "neither keys of the cache nor 0 to n - 1" in one_line(
        LabelError, open_labels, cache, pd.Series([0, 1, 0, 0], index=[3, 100, 20, 8])
    )


NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=2),
    st.complex_numbers(),
    st.binary(max_size=2),
)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.sampled_from([list, np.array, pd.Series, dict]))
@settings(deadline=None)
def test_only_what_equals_0_or_1_passes(values, form):
    names = [f"k{row}" for row in range(len(values))]
    try:
        object_made = dict(zip(names, values, strict=True)) if form is dict else form(values)
    except (OverflowError, UnicodeDecodeError):  # numpy makes no array of them
        return
    try:
        _, read = read_values(object_made, (0, 1), "labels", names)
    except LabelError:
        return
    if read is not None:
        kept = list(values) if form in (list, dict) else np.asarray(object_made).tolist()
        assert [float(value) for value in kept] == read.tolist()


# --- functions -----------------------------------------------------------------------------------

X, PLANTED, Y = planted(200, labelled=30)
LINEAR = {"method": "linear", "penalty": 0.01}
SHUFFLED = np.random.default_rng(1).permutation(200)


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp("pile") / "pile.h5", X)


def series(cache, values):
    """Values by key, in another order than the rows of the cache."""
    return pd.Series(values[SHUFFLED], index=[cache.keys[int(row)] for row in SHUFFLED])


FUNCTIONS = {
    "train_pu": lambda cache, s, y, folder: pucache.train_pu(cache, s, **LINEAR).coef_.tolist(),
    "estimate_prior": lambda cache, s, y, folder: pucache.estimate_prior(cache, s),
    "sweep_priors": lambda cache, s, y, folder: pucache.sweep_priors(cache, s, priors=[0.3], seeds=[0]).rows,
    "retrieve_positives": lambda cache, s, y, folder: pucache.retrieve_positives(cache, s, k=9).keys,
    "report": lambda cache, s, y, folder: pucache.report(cache, s, folder / "r.html", truth=y, sample=3)["true"],
}


@pytest.mark.parametrize("name", [slow(name) if name == "report" else name for name in FUNCTIONS])
def test_every_function_joins_a_series_by_its_index(pile, tmp_path, name):
    by_key = FUNCTIONS[name](pile, series(pile, PLANTED), series(pile, Y), tmp_path)
    assert by_key == FUNCTIONS[name](pile, PLANTED, Y, tmp_path)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_refuses_values_that_are_no_labels(pile, tmp_path, name):
    assert "1.9" in one_line(LabelError, FUNCTIONS[name], pile, PLANTED * 1.9, Y, tmp_path)


def test_true_labels_are_checked_too(pile, tmp_path):
    assert "257" in one_line(LabelError, FUNCTIONS["report"], pile, PLANTED, Y.astype(int) * 257, tmp_path)


def test_scores_are_joined_with_true_labels_by_key_alone(pile, tmp_path):
    model = pucache.train_pu(pile, PLANTED, **LINEAR)
    pucache.score(model, pile, tmp_path / "s.csv")
    figures = pucache.evaluate(tmp_path / "s.csv", series(pile, Y), positives=set(pile.keys[np.flatnonzero(PLANTED)]))
    assert figures["n"] == 170 and figures["auc"] > 0.9
    assert "by key" in one_line(LabelError, pucache.evaluate, tmp_path / "s.csv", Y)
    assert "by key" in one_line(LabelError, pucache.evaluate, tmp_path / "s.csv", series(pile, Y), positives=PLANTED)


# --- rows in another order than their input --------------------------------------------------------


def imported(folder, keys, name="import.h5"):
    draw = np.random.default_rng(0).normal(size=(len(keys), 4)).astype(np.float32)
    pucache.import_embeddings(draw, folder / name, keys=keys)
    return pucache.EmbeddingCache(folder / name)


def test_a_vector_for_rows_that_were_sorted_is_refused_and_keys_are_taken(tmp_path):
    keys = [f"row{row}" for row in range(11)]
    cache, s = imported(tmp_path, keys), np.eye(11, dtype=np.int8)[10]
    assert cache.keys[2] == "row10"
    for what in (s, s.tolist(), pd.Series(s), torch.tensor(s)):
        said = one_line(LabelError, open_labels, cache, what)
        assert "sorted by key" in said and "dict(zip(cache.keys, values))" in said
    assert "sorted by key" in one_line(LabelError, read_truth, s, cache.keys, cache)
    assert open_labels(cache, pd.Series(s, index=keys)).only.s[2] == 1
    assert open_labels(cache, dict(zip(cache.keys, s, strict=True))).only.s[10] == 1
    assert open_labels(cache, PULabels.of(s)).only.s[10] == 1


@pytest.mark.parametrize("keys", [None, [f"row{row}" for row in range(10)]], ids=["generated", "sorted"])
def test_rows_in_the_order_of_their_input_take_a_vector(tmp_path, keys):
    X = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    pucache.import_embeddings(X, tmp_path / "c.h5", keys=keys)
    assert open_labels(pucache.EmbeddingCache(tmp_path / "c.h5"), np.eye(10)[3]).only.s[3] == 1
