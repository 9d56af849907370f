"""With few labels no figure is stated that they cannot support, in print, JSON or on the report."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from helpers import command_line
from helpers.planted import planted, write_cache

from pucache.cli.report import _lines

pytestmark = pytest.mark.usefixtures("one_thread")

# a figure's name with a number after it, such as "recall 1.000" or "prior 1e-05"
NAMED = re.compile(r"\b(prior|recall|precision|F1|P?AUC)\b[ :=]+(about |≈ )?[\d.]+", re.IGNORECASE)
INTERVAL = r"[\d.e-]+ to [\d.]+"
ESTIMATED = ("prior", "recall", "precision", "f1", "auc", "pauc", "accuracy", "false_positive_rate", "nnpu", "upu")
TRAIN = "train-pu cache.h5 --positives positives.txt --penalty 0.01"
PRIOR = "estimate-prior cache.h5 --positives positives.txt"
SWEEP = "sweep-priors cache.h5 --positives positives.txt --priors 0.05,0.2"
REPORT = "report cache.h5 --positives positives.txt"


@pytest.fixture
def labelled(tmp_path, monkeypatch):
    """Make cache.h5 and positives.txt with so many labels in an empty working directory; returns s and y."""
    monkeypatch.chdir(tmp_path)

    def make(labels, n=240):
        X, s, y = planted(n=n, labelled=labels, prior=0.15, seed=labels)
        cache = write_cache(Path("cache.h5"), X)
        Path("positives.txt").write_text("".join(f"{cache.keys[int(row)]}\n" for row in np.flatnonzero(s)))
        rows = "".join(f"{key},{label}\n" for key, label in zip(cache.keys, y, strict=True))
        Path("truth.csv").write_text("key,label\n" + rows)
        return s, y

    return make


def run(command):
    return command_line.run(command).stdout


def numbers_of(result, path=""):
    """Every number in JSON that is an estimate, by its path."""
    if isinstance(result, dict):
        return {at: v for key, value in result.items() for at, v in numbers_of(value, f"{path}/{key}").items()}
    if isinstance(result, list):
        return {at: v for i, value in enumerate(result) for at, v in numbers_of(value, f"{path}/{i}").items()}
    estimated = any(part.startswith(ESTIMATED) for part in path.split("/"))
    return {path: result} if estimated and isinstance(result, int | float) and not isinstance(result, bool) else {}


def points_of(result):
    """The estimates in JSON that are no end of an interval."""
    ends = re.compile(r"(_low|_high|/low|/high|/level|/draws|_interval/\d)$")
    return [at for at in numbers_of(result) if not ends.search(at)]


# --- train-pu ------------------------------------------------------------------------------------


def written_metrics():
    return json.loads(Path("model.metrics.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("labels", [10, 29])
def test_train_pu_states_intervals_alone_below_thirty_labels(labelled, labels):
    labelled(labels)
    shown, metrics = run(TRAIN), written_metrics()
    estimates = metrics["estimates"]
    if max(estimates[f"{name}_high"] - estimates[f"{name}_low"] for name in ("recall", "precision")) > 0.5:
        assert "too few labels for figures: review 100 images first" in shown and "precision 0." not in shown
    else:
        for name in ("AUC", "recall", "precision", "F1"):
            assert re.search(rf"\b{name} {INTERVAL}", shown), name
    assert re.search(rf"prior (at most [\d.]+|{INTERVAL}) \(estimated; 90% interval\)", shown)
    assert "single figures and probabilities of images take at least 30" in shown and "(0." not in shown
    assert points_of(metrics) == [] and metrics["prior"] is None
    assert metrics["prior_estimate"]["low"] < metrics["prior_estimate"]["high"]
    assert all(0 <= estimates[f"{name}_low"] <= estimates[f"{name}_high"] <= 1 for name in ("auc", "recall", "f1"))


def test_train_pu_states_figures_with_intervals_from_thirty_labels(labelled):
    labelled(30)
    shown, metrics = run(TRAIN), written_metrics()
    for name in ("AUC", "recall", "precision", "F1"):
        assert re.search(rf"\b{name} \d\.\d\d\d \({INTERVAL}\)", shown), name
    assert metrics["note"] == "" and metrics["prior"] == metrics["prior_estimate"]["prior"]
    for name in ("auc", "recall", "precision", "f1"):
        estimates = metrics["estimates"]
        assert estimates[f"{name}_low"] <= estimates[name] <= estimates[f"{name}_high"]


def test_a_given_prior_is_printed_and_recall_is_not_estimated_all_the_same(labelled):
    labelled(5)
    shown, metrics = run(TRAIN + " --prior 0.15"), written_metrics()
    assert "prior 0.15" in shown and not NAMED.search(shown.replace("prior 0.15", "")) and "assume" not in shown
    assert metrics["prior"] == 0.15 and numbers_of(metrics["estimates"]) == {}


@pytest.mark.parametrize("labels", [1, 9])
def test_below_ten_labels_no_figure_is_stated_and_ranking_and_scoring_work(labelled, labels):
    s, y = labelled(labels)
    shown, metrics = run(TRAIN), written_metrics()
    assert not NAMED.search(shown) and "at least 10" in shown and "wrote model.safetensors" in shown
    assert numbers_of(metrics) == {} and "at least 10" in metrics["note"]
    assert metrics["prior"] is None and metrics["prior_estimate"] is None and metrics["scar"]["auc"] is None
    run("retrieve-positives cache.h5 --positives positives.txt --model model.safetensors -k all")
    ranked = [row["key"] for row in command_line.table(Path("ranked.csv"))]
    hidden = {f"{row:05}.png" for row in np.flatnonzero((y == 1) & (s == 0))}
    assert len(ranked) == 240 - labels and len(hidden & set(ranked[: len(hidden)])) > 0.5 * len(hidden)
    run("score model.safetensors cache.h5")
    scores = np.genfromtxt("cache.scores.csv", delimiter=",", skip_header=1, usecols=(1, 2, 3))
    assert np.isnan(scores[:, 1]).all() and np.isfinite(scores[:, [0, 2]]).all() and 0 < scores[:, 2].sum() < 120


# --- the other commands --------------------------------------------------------------------------


def test_estimate_prior_and_sweep_priors_estimate_nothing_below_ten_labels(labelled):
    labelled(9)
    shown, result = run(PRIOR), command_line.run_json(PRIOR)
    assert "at least 10" in shown and "tilt" not in shown and not NAMED.search(shown)
    assert result["estimates"] is None and "at least 10" in result["note"]
    shown = run(SWEEP + " --seeds 1")
    assert "at least 10" in shown and "labelled against" not in shown
    assert not re.search("pauc|f1|recall|precision|accuracy", Path("sweep.csv").read_text().splitlines()[0])
    rows = command_line.run_json(SWEEP + " --seeds 1")["rows"]
    assert set(rows[0]) == {"prior", "seed", "risk", "clamped", "threshold", "share_predicted_positive"}


def test_estimate_prior_and_sweep_priors_state_intervals_alone_below_thirty_labels(labelled):
    labelled(20)
    shown = run(PRIOR)
    assert re.search(rf"^labels +(at most [\d.]+|{INTERVAL})$", shown, re.MULTILINE) and "at least 30" in shown
    shown = run(SWEEP + " --seeds 1 --loss nnpu")
    assert "at least 30" in shown and "unlabelled is" not in shown
    header = Path("sweep.csv").read_text().splitlines()[0].split(",")
    assert {"pauc_low", "f1_high"} <= set(header) and not {"pauc", "f1", "recall"} & set(header)


def test_the_report_states_no_figure_below_ten_labels(labelled):
    labelled(5, n=90)
    result = command_line.run_json(REPORT)
    shown = "\n".join(_lines(result))
    assert not NAMED.search(shown) and "at least 10" in shown
    page = text_of("report.html").replace("a classifier cannot separate the two (AUC 0.5)", "")
    assert not NAMED.search(page) and "at least 10" in page and "Expected hidden – takes 10" in page
    assert not re.search(r"precision,? [^.]{0,30}\d %|\d %[^.]{0,20}likely positive", page)
    allowed = ("/provenance", "/prior_is_given", "/figures/margins")
    assert not [at for at in numbers_of(result) if not at.startswith(allowed)]
    assert result["hidden_positives"] == {"expected": None, "low": None, "high": None}


def text_of(path):
    body = re.sub(r"<(script|style|svg).*?</\1>", " ", Path(path).read_text("utf-8"), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.mark.usefixtures("small_maps")
def test_an_estimate_at_the_end_of_what_is_possible_is_stated_by_no_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, _, y = planted(800, 64, labelled=0, prior=0.1, apart=0.19)
    cache = write_cache(Path("cache.h5"), X)
    wrong = [*np.flatnonzero(y == 1)[:30], *np.flatnonzero(y == 0)[:10]]
    Path("positives.txt").write_text("".join(f"{cache.keys[int(row)]}\n" for row in wrong))
    shown, estimated = run(TRAIN), command_line.run_json(PRIOR)
    trained = written_metrics()
    named = {"prior", "precision", "f1", "auc", "accuracy", "false_positive_rate"}
    stated = {at.rsplit("/", 1)[-1] for at in points_of(trained) + points_of(estimated)}
    assert "recall" in stated and not named & stated
    for said in (trained["note"], estimated["note"], shown, run(PRIOR), run(REPORT), text_of("report.html")):
        assert "interval, lies at the end of what is possible" in said
        assert not re.search(r"prior 1e-05|precision 0\.0|takes 10 labelled", said)
