import numpy as np
import pytest
import timm
import torch
from helpers import plain
from helpers.neighbours import THRESHOLD, TILT, log_ratio, probabilities, share_among, with_neighbours
from helpers.planted import ODD_KEYS, planted, write_cache
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from scipy.special import logit

import pucache
from pucache import PULinearClassifier, embed, score
from pucache.errors import CacheError, ModelError, OutputError
from pucache.images.regions import image_of
from pucache.scoring.score import ScoreReport
from pucache.scoring.score_tables import TYPES, read_scores, write_table

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


def test_a_cache_without_rows_is_scored_alike(tmp_path, model, out):
    score(model, write_cache(tmp_path / "some.h5", X[:9]), out)
    nothing = write_cache(tmp_path / "empty.h5", X[:0])
    with pytest.raises(OutputError, match=r"has the scores of other images, such as '00000.png'; name another"):
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


# --- score tables ---------------------------------------------------------------------------------


def test_a_spreadsheet_s_byte_order_mark_and_further_columns_do_no_harm(tmp_path):
    (tmp_path / "scores.csv").write_text("\ufeffkey,note,label,posterior,margin\r\na,x,1,0.5,2\r\n", "utf-8")
    table = {name: column.tolist() for name, column in read_scores(tmp_path / "scores.csv").items()}
    assert table == {"key": ["a"], "margin": [2], "posterior": [0.5], "label": [1]}


def columns(key, numbers):
    numbers = np.array(numbers, np.float64)
    labels = np.zeros(len(key), np.int8)
    return {"key": key, "margin": numbers.astype(np.float32), "posterior": numbers, "label": labels}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@given(data=st.data(), step=st.integers(1, 5))
def test_any_key_survives_and_no_block_changes_a_byte(tmp_path_factory, suffix, data, step):
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    keys = ["007", "NA", "null", "", " ", *data.draw(st.lists(text, max_size=9))]
    folder = tmp_path_factory.getbasetemp()
    write_table(folder / f"whole.{suffix}", TYPES, [columns(keys, range(len(keys)))])
    blocks = [columns(keys[i : i + step], range(len(keys))[i : i + step]) for i in range(0, len(keys), step)]
    write_table(folder / f"blocks.{suffix}", TYPES, blocks)
    assert (folder / f"blocks.{suffix}").read_bytes() == (folder / f"whole.{suffix}").read_bytes()
    table = read_scores(folder / f"whole.{suffix}")
    assert table["key"].tolist() == keys and table["margin"].tolist() == list(range(len(keys)))


def test_numbers_of_a_csv_have_six_significant_digits(tmp_path):
    written = write_table(tmp_path / "scores.csv", TYPES, [columns(["a", "b", "c"], [1e-7, 1 / 3, -1234567.0])])
    assert written == (3, {"label": 0})
    assert (tmp_path / "scores.csv").read_text() == (
        'key,margin,posterior,label\n"a",1e-7,1e-7,0\n"b",0.333333,0.333333,0\n"c",-1234570,-1234570,0\n'
    )


# --- Models of parts of images: scores by part and by image, of new images that are cut alike -----


def photograph(path, marked, seed):
    pixels = np.random.default_rng(seed).integers(0, 90, (96, 96, 3), np.uint8)
    if marked:  # one cell of nine
        pixels[32:64, 64:] = (255, 0, 0)
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def encoder_of(folder):
    weights = folder / "weights.safetensors"
    return {"encoder": "timm:test_convnext", "weights": weights, "precision": "fp32", "runtime": "torch"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for number in range(24):
        photograph(folder / "pile" / f"{number:02}.png", number < 14, number)
    for number in range(4):
        photograph(folder / "new" / f"{number}.png", number == 2, 100 + number)
    torch.manual_seed(0)
    save_file(timm.create_model("test_convnext").state_dict(), folder / "weights.safetensors")
    cache = embed(folder / "pile", folder / "pile.h5", tiles="3x3", **encoder_of(folder))
    s = np.array(["percent:66.6667,33.3333" in key and int(key[:2]) < 12 for key in cache.keys], np.int8)
    pucache.train_pu(cache, positives=s).save(folder / "model.safetensors")
    return folder


def test_new_images_are_cut_as_the_models_were_and_scored_by_part_and_by_image(trained):
    folder = trained
    by_part = score(
        folder / "model.safetensors", folder / "new", folder / "parts.csv", weights=folder / "weights.safetensors"
    )
    scores = read_scores(folder / "parts.csv")

    report = score(folder / "model.safetensors", by_part.cache, folder / "images.csv", by_image=True)

    assert len(scores["key"]) == by_part.rows == 36 and report.rows == 4
    lines = (folder / "images.csv").read_text().splitlines()
    assert lines[0] == "key,margin,posterior,label,part"
    images = read_scores(folder / "images.csv")
    for key, margin in zip(images["key"], images["margin"], strict=True):
        assert margin == max(m for k, m in zip(scores["key"], scores["margin"], strict=True) if image_of(k) == key)
    assert images["key"][int(np.argmax(images["margin"]))] == "2.png"
    assert '"percent:66.6667,33.3333,33.3333,33.3334"' in lines[3]


def test_of_a_cache_without_parts_the_table_by_image_has_no_rows(trained, tmp_path):
    model = PULinearClassifier.load(trained / "model.safetensors")
    write_cache(tmp_path / "none.h5", model.coef_[:0].astype(np.float16), encoder=model.encoder_)
    score(model, tmp_path / "none.h5", tmp_path / "images.csv", by_image=True)
    assert (tmp_path / "images.csv").read_text() == "key,margin,posterior,label,part\n"


def test_models_of_parts_and_of_whole_images_are_not_mixed(trained):
    folder = trained
    whole = embed(folder / "new", folder / "whole.h5", **encoder_of(folder))

    with pytest.raises(ModelError, match="tiles"):
        score(folder / "model.safetensors", whole, folder / "x.csv")
