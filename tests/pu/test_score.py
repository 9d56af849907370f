import csv
import json
import sys

import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.tiny import tiny_encoder
from sklearn import metrics as sk

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.encoders.spec import EncoderSpec
from pucache.errors import LabelError, MissingExtraError, ModelError, OutputError
from pucache.images.source import open_source
from pucache.pu.classifier import PULinearClassifier
from pucache.pu.evaluate import evaluate
from pucache.pu.score import ScoreReport, embed_for, score
from pucache.pu.score_tables import check_output, read_scores

X, S, Y = planted(200, labelled=30)
ODD = ['a,"b".png', "c\nd.png", "e\r\nf.png", "g\rh.png", "i\u2028j.png", " k .png", "é🦊.png", "'l'.png", '"m".png']
KEYS = [*ODD, *(f"n/{row:03}.png" for row in range(len(ODD), len(X)))]


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, threshold=3.0, device="cpu").fit(X, S)


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X, KEYS, failures={"bad.png": "truncated"})


@pytest.fixture(params=[".csv", ".parquet", ".CSV"])
def out(request, tmp_path):
    """Name an output; Parquet needs its extra."""
    if request.param == ".parquet":
        pytest.importorskip("pyarrow")
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
    assert score(model, nothing, out) == ScoreReport(nothing, 0, 0, 0)
    assert [len(column) for column in read_scores(out).values()] == [0] * 4


def test_csv_and_parquet_agree(cache, model, tmp_path):
    pytest.importorskip("pyarrow")
    tables = []
    for name in ("scores.csv", "scores.parquet"):
        score(model, cache, tmp_path / name)
        tables.append(read_scores(tmp_path / name))
    assert tables[0].keys() == tables[1].keys()
    for name in ("key", "label"):
        assert tables[0][name].tolist() == tables[1][name].tolist()
    for name in ("margin", "posterior"):
        np.testing.assert_allclose(tables[0][name], tables[1][name], rtol=1e-5)
    assert (tables[1]["margin"] == model.margins(cache.X)).all()
    assert (tables[1]["posterior"] == model.predict_proba(cache.X)[:, 1]).all()


def test_the_csv_is_plain_for_any_reader(model, tmp_path):
    score(model, write_cache(tmp_path / "cache.h5", X[:3], ["b.png", "a b.png", "c,d.png"]), tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as stream:
        lines = stream.read().split("\n")
    assert lines[0] == "key,margin,posterior,label" and lines[4:] == [""]
    assert [line.rsplit(",", 3)[0] for line in lines[1:4]] == ["a b.png", "b.png", '"c,d.png"']


@pytest.mark.parametrize(
    "name, error", [("scores.txt", ValueError), ("scores", ValueError), ("folder.csv", OutputError)]
)
def test_an_output_that_cannot_be_is_found_before_any_work(tmp_path, name, error):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(error, match=r"must end in \.csv or \.parquet|is a directory"):
        score(None, None, tmp_path / name)  # there is nothing to work with


def test_parquet_without_pyarrow_names_the_extra_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("scores.parquet", "scores.PARQUET"):
        with pytest.raises(MissingExtraError, match=r"pip install 'pucache\[parquet\]', or write .csv"):
            score(None, None, tmp_path / name)
    check_output(tmp_path / "scores.csv")


def test_a_model_of_another_encoder_is_refused_and_leaves_no_output(cache, out):
    other = PULinearClassifier(prior=0.3, device="cpu").fit(X, S)
    other.encoder_ = EncoderSpec.imported("other", 6)
    with pytest.raises(ModelError, match=r"holds embeddings of imported:planted.* expects imported:other"):
        score(other, cache, out)
    assert list(out.parent.iterdir()) == []


def test_an_interruption_leaves_the_old_scores_alone(cache, model, out, monkeypatch):
    score(model, cache, out)
    before = out.read_bytes()

    def interrupt(margins):
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "posterior", interrupt)
    with pytest.raises(KeyboardInterrupt):
        score(model, cache, out)
    assert out.read_bytes() == before and list(out.parent.iterdir()) == [out]


# --- reading scores ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content",
    [
        ("scores.csv", b""),
        ("scores.csv", b"key,margin,label\na,1,1\n"),
        ("scores.csv", b"key,margin,posterior,label\na,high,0.5,1\n"),
        ("scores.csv", b"key,margin,posterior,label\na,1,0.5\n"),
        ("scores.csv", b"key,margin,posterior,label\na,nan,0.5,1\n"),
        ("scores.csv", b"label,margin,posterior,key\n1,1,0.5\n"),
        ("scores.csv", b"key,margin,posterior,label\na,1,0.5,2\n"),
        ("scores.csv", b"rank,key,score\n"),
        ("scores.csv", b'key,margin,posterior,label\n"a,1,0.5,1\n'),
        ("scores.csv", b"\xff\xfe\x00"),
        ("scores.parquet", b"key,margin,posterior,label\na,1,0.5,1\n"),
        ("scores.parquet", b""),
    ],
)
def test_what_is_no_table_of_scores_is_refused(tmp_path, name, content):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LabelError, match=r"is not a table of scores .*expected columns key, margin, posterior, label"):
        read_scores(tmp_path / name)


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_scores_that_are_not_there_are_named(tmp_path, name):
    with pytest.raises(LabelError, match=f"no such scores: {tmp_path}"):
        read_scores(tmp_path / name)


def test_a_spreadsheet_s_byte_order_mark_and_further_columns_do_no_harm(tmp_path):
    (tmp_path / "scores.csv").write_text("\ufeffkey,note,label,posterior,margin\r\na,x,1,0.5,2\r\n", "utf-8")
    table = read_scores(tmp_path / "scores.csv")
    assert {name: column.tolist() for name, column in table.items()} == {
        "key": ["a"],
        "margin": [2],
        "posterior": [0.5],
        "label": [1],
    }


# --- images through a model --------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Let the tiny encoder answer to its name; collects what was asked for."""
    calls = []

    def load(name, **options):
        calls.append((name, options))
        return tiny_encoder(name, seed=1 if options["weights"] else 0)

    monkeypatch.setattr("pucache.encoders.encoder.load_encoder", load)
    return calls


@pytest.fixture
def of_tiny():
    rows, s, _ = planted(60, d=8, labelled=20)
    trained = PULinearClassifier(prior=0.3, device="cpu").fit(rows, s)
    trained.encoder_ = tiny_encoder().spec
    return trained


def test_images_are_embedded_with_the_model_s_encoder_and_scored(image_folder, asked, of_tiny, tmp_path):
    source = open_source(str(image_folder(3)))
    cache = embed_for(of_tiny, source, tmp_path / "new.h5", batch_size=2, device="cpu")
    assert score(of_tiny, cache, tmp_path / "scores.csv").rows == 3
    assert read_scores(tmp_path / "scores.csv")["key"].tolist() == ["000.png", "001.png", "002.png"]
    ((name, options),) = asked
    assert name == "tiny" and (options["batch_size"], str(options["device"])) == (2, "cpu")


def test_an_encoder_with_other_weights_is_refused_before_embedding(image_folder, asked, of_tiny, tmp_path):
    with pytest.raises(ModelError, match=r"expects tiny .*differ in weights\): pass the weights"):
        embed_for(of_tiny, open_source(str(image_folder(3))), tmp_path / "new.h5", weights="other.pth")
    assert not (tmp_path / "new.h5").exists()


@pytest.mark.parametrize("encoder, named", [(None, "bare arrays"), (EncoderSpec.imported("clip", 6), "imported:clip")])
def test_a_model_of_embeddings_made_elsewhere_cannot_score_images(of_tiny, image_folder, asked, encoder, named):
    of_tiny.encoder_ = encoder
    with pytest.raises(ModelError, match=f"trained on {named}.*cannot make; score a cache"):
        embed_for(of_tiny, open_source(str(image_folder(1))), "unused.h5")
    assert asked == []


# --- evaluate ----------------------------------------------------------------------------------


@pytest.fixture
def scored(cache, model, out):
    score(model, cache, out)
    return out


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
    assert ((scores["margin"] > 0) != scores["label"]).any()  # the label follows the model's threshold
    expected = expected_metrics(y, scores, keep) | {"without_truth": 50}
    result = evaluate(scored, truth, **options)
    assert result == pytest.approx(expected) and list(result) == list(expected)
    json.dumps(result)


def test_a_list_of_the_positives_says_as_much_as_a_table(scored, table):
    full = table("truth.csv", ["key", "label"], zip(KEYS, Y, strict=True))
    short = table("list.csv", ["key"], [[key] for key, label in zip(KEYS, Y, strict=True) if label])
    assert evaluate(scored, full) == evaluate(scored, short)
    assert evaluate(scored, full)["without_truth"] == 0 and "precision@100" in evaluate(scored, full)


def test_one_class_alone_has_no_auc_and_is_still_evaluated(scored, table):
    truth = table("truth.csv", ["key", "label"], [(key, 1) for key in KEYS[:20]])
    result = evaluate(scored, truth, at=(20, 21))
    assert np.isnan(result["auc"]) and result["precision@20"] == 1 and "precision@21" not in result


@pytest.mark.parametrize(
    "rows, positives, message",
    [
        ([("n/010.png", "perhaps")], None, "has the label 'perhaps'"),
        ([("x.png", 1)], None, "none of the 1 keys .* has a score"),
        ([("n/010.png", 1), ("n/011.png", 0)], [["n/010.png"], ["n/011.png"]], "no image of .* is left to evaluate"),
    ],
)
def test_truth_that_leaves_nothing_to_evaluate_is_refused(scored, table, rows, positives, message):
    found = table("found.csv", ["key"], positives) if positives else None
    with pytest.raises(LabelError, match=message):
        evaluate(scored, table("truth.csv", ["key", "label"], rows), positives=found)


@pytest.mark.parametrize("missing", ["scores", "truth", "positives"])
def test_a_missing_file_is_named(scored, table, tmp_path, missing):
    files = {"scores": scored, "truth": table("truth.csv", ["key", "label"], [(KEYS[0], 1)]), "positives": None}
    with pytest.raises(LabelError, match=r"nowhere\.csv"):
        evaluate(**files | {missing: tmp_path / "nowhere.csv"})
