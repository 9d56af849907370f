"""Several concepts in the labels of the commands, on one cache."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from helpers.command_line import run
from helpers.command_line import table as read_table
from helpers.planted import write_cache

from pucache.scoring.score_tables import read_scores
from pucache.storage.file_kinds import MARK

pytestmark = pytest.mark.usefixtures("one_thread")


def table(name):
    return read_table(Path(name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with cache.h5, labels.csv of two concepts, one that fails, and their models."""
    folder = tmp_path_factory.mktemp("concepts")
    draw = np.random.default_rng(0)
    y = draw.integers(0, 5, 500)
    X = (draw.normal(size=(500, 8)) + 3 * np.eye(5, 8)[y]).astype(np.float32)
    keys = list(write_cache(folder / "cache.h5", X).keys)
    rows = [(keys[row], name) for kind, name in enumerate(["red", "old red"]) for row in np.flatnonzero(y == kind)[:35]]
    text = "key,concept,label\n" + "".join(f"{key},{name},1\n" for key, name in rows)
    (folder / "all.csv").write_text(text)
    (folder / "labels.csv").write_text(f"{text}{keys[0]},blue,0\n")
    (folder / "labels").mkdir()
    for name in ("red", "old red"):
        (folder / f"labels/{name}.txt").write_text("".join(f"{key}\n" for key, of in rows if of == name))
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def trained(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return run("train-pu cache.h5 --labels labels.csv", 3)


def test_train_pu_writes_a_model_each_and_one_file_of_metrics(folder, trained):
    written = sorted(path.name for path in (folder / "models").iterdir() if path.name[0] != ".")
    assert written == ["metrics.json", "old red.safetensors", "red.safetensors"]
    metrics = json.loads((folder / "models/metrics.json").read_text())
    assert [row["concept"] for row in metrics["concepts"]] == ["old red", "red"]
    assert list(metrics["failures"]) == ["blue"] and metrics["concepts"][0]["labelled_positives"] == 35
    assert "blue" in trained.stderr and "has the label 1" in trained.stderr and "blue" not in trained.stdout
    run("train-pu cache.h5 --positives labels/red.txt --out alone.safetensors")
    alone = json.loads((folder / "alone.metrics.json").read_text())
    of_concept = {name: value for name, value in metrics["concepts"][1].items() if name != "concept"}
    assert alone == {"written_by": MARK} | of_concept


@pytest.mark.parametrize("out", ["wide.csv", "wide.parquet"])
def test_score_writes_one_wide_table_that_agrees_with_single_ones(trained, out):
    said = json.loads(run(f"score models cache.h5 --out {out} --json").stdout)
    wide = table(out) if out.endswith("csv") else pyarrow.parquet.read_table(out).to_pylist()
    columns = [f"{name}_{column}" for name in ("old red", "red") for column in ("margin", "posterior", "label")]
    assert list(wide[0]) == ["key", *columns]
    run("score models/red.safetensors cache.h5 --out red.csv")
    single = read_scores("red.csv")
    assert [row["key"] for row in wide] == single["key"].tolist()
    assert [int(row["red_label"]) for row in wide] == single["label"].tolist()
    np.testing.assert_allclose([float(row["red_posterior"]) for row in wide], single["posterior"], rtol=1e-5)
    np.testing.assert_allclose([float(row["red_margin"]) for row in wide], single["margin"], rtol=1e-5, atol=1e-5)
    truth = "--truth labels/red.txt"
    assert run(f"evaluate {out} {truth} --concept red").stdout == run(f"evaluate red.csv {truth}").stdout
    assert (
        "scores of the concepts old red, red; name one of these as --concept"
        in run(f"evaluate {out} {truth}", 1).stderr
    )
    assert said["concepts"]["red"] == single["label"].sum() and said["positives"] == sum(said["concepts"].values())


@pytest.mark.parametrize("model", ["", " --model models"])
def test_retrieve_writes_the_best_of_each(trained, model):
    said = run(f"retrieve-positives cache.h5 --labels labels.csv -k 7 --out best.csv{model}", 3)
    rows = table("best.csv")
    assert list(rows[0]) == ["concept", "rank", "key", "score"] and "blue" in said.stderr
    assert [row["concept"] for row in rows] == ["old red"] * 7 + ["red"] * 7
    single = " --model models/red.safetensors" if model else ""
    run(f"retrieve-positives cache.h5 --positives labels/red.txt -k 7 --out one.csv{single}")
    assert [row["key"] for row in rows[7:]] == [row["key"] for row in table("one.csv")]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("train-pu cache.h5 --labels labels.csv --prior 2 --out new", "prior must lie strictly between 0 and 1"),
        ("estimate-prior cache.h5 --labels labels.csv --level 2", "level must be in (0, 1)"),
        ("retrieve-positives cache.h5 --labels labels.csv --model empty --out new/a.csv", "got that of other"),
        ("report cache.h5 --labels labels.csv --model empty --out new/a.html", "got that of other"),
    ],
)
def test_where_every_concept_fails_nothing_is_written_and_the_command_has_failed(folder, trained, command, reason):
    (folder / "empty").mkdir(exist_ok=True)
    shutil.copy(folder / "models/red.safetensors", folder / "empty/other.safetensors")
    said = run(command, 2 if "--level" in command else 1)
    assert not said.stdout and reason in said.stderr and said.stderr.count("\n") == 1
    assert not [path for path in folder.glob("new/**/*") if path.is_file()]


@pytest.mark.slow
def test_report_writes_a_page_each_and_what_concepts_share(folder, trained):
    said = json.loads(run("report cache.h5 --labels labels.csv --model models --json", 3).stdout)
    pages = [f"report/{name}.html" for name in ("old red", "red")]
    overview = (folder / "report.html").read_text()
    assert all((folder / page).is_file() and page.replace(" ", "%20") in overview for page in pages)
    run("score models cache.h5 --out wide.csv")
    both = sum(row["old red_label"] == row["red_label"] == "1" for row in table("wide.csv"))
    assert said["shared"] == ([{"concepts": ["old red", "red"], "images": both}] if both else [])
    assert list(said["failures"]) == ["blue"] and "blue" in overview
