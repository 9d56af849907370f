"""`score(append=True)`: a table that grows from source to source."""

import functools

import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.refusals import one_line

from pucache.errors import CacheLockedError, LabelError
from pucache.scoring.evaluate import evaluate
from pucache.scoring.growing_table import cache_of_source, one_writer
from pucache.scoring.score import score
from pucache.scoring.score_tables import column_names, read_columns, read_scores
from pucache.training.concept_models import ConceptModels
from pucache.training.sklearn_classifier import PULinearClassifier

X, S, _ = planted(200, labelled=40)
WEEKS = {"one": ["a.png", "b.png", "c,d.png"], "two": ["b.png", "ä.png"]}  # b.png is another image in each


@functools.cache
def trained(seed=0, labelled=40):
    rows, s, _ = planted(200, labelled=labelled, seed=seed)
    return PULinearClassifier(prior=0.3, penalty=0.01, device="cpu").fit(rows, s)


@pytest.fixture(scope="module")
def model():
    return trained()


@pytest.fixture(params=["csv", "parquet"])
def out(request, tmp_path):
    return tmp_path / f"weekly.{request.param}"


def week(folder, name, rows=None):
    number = list(WEEKS).index(name) * 10
    keys = WEEKS[name] if rows is None else rows
    return write_cache(folder / f"{name}.h5", X[number : number + len(keys)], keys)


def cells(path):
    """(source, key) to (margin, label, day) of each row, in its order."""
    columns = read_columns(path, {"key": "string", "margin": "", "label": "", "source": "string", "day": "string"})
    rows = zip(*(columns[name].tolist() for name in ("source", "key", "margin", "label", "day")), strict=True)
    return {(source.rpartition("/")[2], key): rest for source, key, *rest in rows}


@pytest.fixture(params=["one model", "a few labels", "concepts"])
def any_model(request, model):
    if request.param == "concepts":
        return ConceptModels({"cat": model, "old dog": trained(1, labelled=9)})
    return model if request.param == "one model" else trained(labelled=9)


def test_a_week_is_added_and_no_row_of_another_source_changes(tmp_path, any_model, out):
    caches = [week(tmp_path, name) for name in WEEKS]
    first = score(any_model, caches[0], out, append=True, day="2026-01-05")
    content = out.read_bytes()
    for _ in range(2):  # the second time nothing is new
        report = score(any_model, caches[1], out, append=True, day="2026-01-12")
        again, content = content, out.read_bytes()
    assert again == content and (first.rows, report.rows) == (3, 2)
    alone = tmp_path / f"alone{out.suffix}"
    names = [name for name in column_names(out) if name not in ("source", "day", "model")]
    types = {name: "string" if name == "key" else "" for name in names}
    grown = read_columns(out, types)
    for cache, rows in zip(caches, (slice(0, 3), slice(3, 5)), strict=True):
        score(any_model, cache, alone)
        assert column_names(alone) == names
        for name, values in read_columns(alone, types).items():
            np.testing.assert_array_equal(grown[name][rows], values)
    days = read_columns(out, dict.fromkeys(["key", "source", "day", "model"], "string"))
    assert days["day"].tolist() == ["2026-01-05"] * 3 + ["2026-01-12"] * 2
    assert len(set(days["source"])) == 2 and len(set(days["model"])) == 1


def test_images_that_are_gone_stay_and_new_ones_have_the_new_day(tmp_path, model, out):
    score(model, week(tmp_path, "one"), out, append=True, day="2026-01-05")
    score(model, week(tmp_path, "two"), out, append=True, day="2026-01-12")
    before = cells(out)
    score(model, week(tmp_path, "one", ["a.png", "b.png", "zz.png"]), out, append=True, day="2026-01-19")
    after = cells(out)
    new = after.pop(("one.h5", "zz.png"))
    assert after == before and new[-1] == "2026-01-19"
    assert list(cells(out)) == [*list(before)[:3], ("one.h5", "zz.png"), *list(before)[3:]]


def test_a_table_of_before_goes_on(tmp_path, model, out):
    score(model, week(tmp_path, "one"), out)
    before = read_scores(out)
    score(model, week(tmp_path, "two"), out, append=True)
    for name, values in read_scores(out).items():
        np.testing.assert_array_equal(values[:3], before[name])
    assert [source for source, _ in cells(out)] == ["", "", "", "two.h5", "two.h5"]


@pytest.mark.parametrize("append", [True, False])
def test_another_model_s_table_is_refused_by_name_and_stays(tmp_path, model, out, append):
    score(trained(1), week(tmp_path, "one"), out, append=append)
    content = out.read_bytes()
    said = one_line(LabelError, score, model, week(tmp_path, "two"), out, append=True)
    assert str(out) in said and ("this is model" if append else "holds scores of another model than") in said
    assert out.read_bytes() == content


@pytest.mark.parametrize("day", ["2026-01-04", "5.1.2026", "2026-02-30"])
def test_a_day_that_lies_before_or_is_none_is_refused(tmp_path, model, out, day):
    score(model, week(tmp_path, "one"), out, append=True, day="2026-01-05")
    content = out.read_bytes()
    said = one_line(ValueError, score, model, week(tmp_path, "two"), out, append=True, day=day)
    assert day in said and out.read_bytes() == content


def test_a_second_score_waits_for_none_and_loses_no_week(tmp_path, model, out):
    score(model, week(tmp_path, "one"), out, append=True)
    with one_writer(out):
        said = one_line(CacheLockedError, score, model, week(tmp_path, "two"), out, append=True)
    assert f"{out} is being written by another process" in said and len(cells(out)) == 3
    assert score(model, tmp_path / "two.h5", out, append=True).rows == 2 and len(cells(out)) == 5


def test_what_a_table_holds_beside_scores_is_not_lost(tmp_path, model):
    out = tmp_path / "weekly.csv"
    out.write_text("key,margin,posterior,label,note\na.png,1,0.5,1,mine\n")
    assert "has the column note" in one_line(LabelError, score, model, week(tmp_path, "one"), out, append=True)
    out.write_text("name,age\nx,3\n")
    one_line(LabelError, score, model, week(tmp_path, "one"), out, append=True)
    assert out.read_text() == "name,age\nx,3\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"day": "2026-01-05"}, "add append"),
        ({"moved": True}, "is for images"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, model, options, text):
    assert text in one_line(ValueError, score, model, week(tmp_path, "one"), tmp_path / "scores.csv", **options)
    assert not (tmp_path / "scores.csv").exists()


def test_a_key_in_two_sources_is_evaluated_of_the_source_that_is_named(tmp_path, model, out):
    for name in WEEKS:
        score(model, week(tmp_path, name), out, append=True)
    truth = tmp_path / "truth.csv"
    truth.write_text("key,label\nb.png,1\na.png,0\n")
    assert "--source" in one_line(LabelError, evaluate, out, truth)
    assert evaluate(out, truth, source=str(tmp_path / "one.h5"))["n"] == 2
    score(model, tmp_path / "one.h5", tmp_path / "one.csv")
    assert "has no column source" in one_line(LabelError, evaluate, tmp_path / "one.csv", truth, source="one")
    assert "no row of the source three" in one_line(LabelError, evaluate, out, truth, source="three")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/photos/week 2/", "weekly.week-2.h5"),
        ("s3://KEY:SECRET@bucket/w.tar?token=SECRET", "weekly.w.tar.h5"),
        ("shards/*.tar", "weekly.-.tar.h5"),
    ],
)
def test_each_source_has_a_cache_beside_the_table(source, name):
    made = cache_of_source("weekly.csv", source)
    assert made.startswith(name.removesuffix(".h5")) and "SECRET" not in made
