"""benchmarks/paper/tables.py: the figures, the data sets and what the page says, on small made-up data."""

import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image

from benchmarks.common import unpack
from benchmarks.common.cifar import Task
from benchmarks.paper import rows as paper_rows
from benchmarks.paper import tables as paper
from benchmarks.paper.published import BALANCED, RESULTS, TEN
from pucache.errors import SourceError
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def blobs(n=600, seed=0):
    """A task of two overlapping clouds; one in three is positive, and one in six of those is labelled."""
    draw = np.random.default_rng(seed)
    y, y_test = draw.random(n) < 1 / 3, draw.random(n) < 1 / 2
    X, X_test = ((draw.normal(size=(n, 6)) + 1.2 * of[:, None]).astype(np.float16) for of in (y, y_test))
    return Task(X, (y & (draw.random(n) < 1 / 6)).astype(np.int8), y, X_test, y_test)


# --- figures ---------------------------------------------------------------------------------------


def test_figures_are_those_of_what_is_above_the_threshold():
    y, margins = np.array([True, True, False, False]), np.array([2.0, 0.5, 1.0, -1.0])
    assert paper_rows.figures(y, margins) == {"accuracy": 0.75, "f1": 0.8, "auc": 0.75, "called": 0.75}
    assert paper_rows.figures(y, margins, 1.5) == {"accuracy": 0.75, "f1": 2 / 3, "auc": 0.75, "called": 0.25}


def test_bins_hold_mean_posterior_true_share_and_rows():
    posterior, y = np.array([0.02, 0.06, 0.95, 1.0]), np.array([False, True, True, True])
    of = paper_rows.bins(posterior, y)
    assert of == [[pytest.approx(0.04), 0.5, 2], [pytest.approx(0.975), 1.0, 2]]
    assert paper.gap(of) == pytest.approx((0.46 + 0.025) / 2)


def test_the_gap_weighs_bins_by_their_rows():
    assert paper.gap([[0.1, 0.2, 30], [0.9, 0.9, 10]]) == pytest.approx(0.075)


def test_precision_at_ranks_and_average_precision_of_a_known_order():
    hidden, scores = np.array([False, True, True, False] * 500), -np.arange(2000.0)
    at_100, at_1000, at_hidden, ap = paper_rows.ranking_figures(hidden, scores)
    assert (at_100, at_1000, at_hidden) == (0.5, 0.5, 0.5)
    assert 0.49 < ap < 0.52


def test_a_wrong_prior_is_the_true_one_times_the_factor_and_changes_the_head():
    task, scope = blobs(), paper_rows.Scope(seeds=(0,), factors=(1, 2))
    assert paper_rows.misspecified_prior(task, 2) == 2 * task.prior and paper_rows.misspecified_prior(task, 10) == 0.99
    way = "imbnnPU, authors' protocol"
    of = paper_rows.misled_authors(task, way, scope)[way]
    heads = fit_heads(
        task.X, task.s, prior=2 * task.prior, risk=PURisk("imbnnpu"), solver="sgd", seed=np.array(scope.seeds)
    )
    assert of[1] == [paper_rows.figures(task.y_test, margins) for margins in heads.margins(task.X_test).T]
    assert of[0] != of[1]


def test_standardised_columns_have_mean_0_and_deviation_1_by_the_training_rows():
    task = blobs()
    X, X_test = paper_rows.standardised(task)
    assert np.allclose(X.mean(0), 0, atol=1e-3) and np.allclose(X.std(0), 1, atol=1e-3)
    assert abs(X_test.mean()) > 0.05  # more positives there


def test_every_way_of_a_task_is_better_than_chance_and_the_supervised_one_not_behind_by_far():
    cell = paper_rows.transfer(blobs(), 0)
    accuracy = {way: of["accuracy"] for way, of in cell["ways"].items()}
    assert {
        paper_rows.AT_ZERO,
        paper_rows.TEST_SHARE,
        paper_rows.OWN,
        paper_rows.AUTHORS,
        paper_rows.SUPERVISED_HEAD,
    } <= set(accuracy)
    assert min(accuracy.values()) > 0.6
    assert accuracy[paper_rows.SUPERVISED_HEAD] > max(accuracy.values()) - 0.03
    labelled, hidden, negative, test, share = cell["counts"]
    task = blobs()
    assert (labelled + hidden, labelled + hidden + negative, test) == (task.y.sum(), len(task.y), len(task.y_test))
    assert share == task.y_test.mean() and cell["prior"][-1] == hidden / (hidden + negative)


@pytest.mark.parametrize("solver", paper_rows.SOLVERS)
def test_a_supervised_head_of_the_ablation_sees_the_true_labels(solver):
    task = blobs()
    supervised, plain = (paper_rows.ablation(task, loss, solver, (0,))[0] for loss in (paper_rows.SUPERVISED, "bce"))
    assert supervised["accuracy"] > 0.8
    assert plain["called"] < 0.25 * supervised["called"]  # one row in eighteen is labelled


# --- original files --------------------------------------------------------------------------------


def original(folder, kind, monkeypatch, names, labels):
    """Small files of the layout of the original ones; their sums take the place of the published ones."""
    folder = folder / kind.base_folder
    folder.mkdir(parents=True)
    key = "labels" if kind is unpack.CIFAR10 else "fine_labels"
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 3072), np.uint8)

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    half = len(labels) // 2
    parts = [("first", slice(0, half)), ("second", slice(half, None))]
    train = [write(name, {"data": pixels[rows], key: labels[rows]}) for name, rows in parts]
    meta = write("names", {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "train_list", train)
    monkeypatch.setattr(kind, "test_list", [write("last", {"data": pixels[::-1], key: labels[::-1]})])
    monkeypatch.setattr(kind, "meta", {"filename": "names", "key": kind.meta["key"], "md5": meta[1]})
    return folder, pixels


@pytest.mark.parametrize("within", [False, True], ids=["the folder itself", "a folder that holds it"])
def test_original_batches_become_png_files_by_class_and_place(tmp_path, monkeypatch, within):
    labels = [1, 0, 1, 1, 0, 1]
    folder, pixels = original(tmp_path, unpack.CIFAR10, monkeypatch, ["bird", "ship"], labels)
    made = unpack.unpacked(folder.parent if within else folder, tmp_path / "work")
    files = sorted(str(path.relative_to(made)) for path in made.rglob("*.png"))
    names = [("bird", "ship")[label] for label in labels]
    expected = [f"train/{name}/{at:05}.png" for at, name in enumerate(names)]
    expected += [f"test/{name}/{at:05}.png" for at, name in enumerate(reversed(names))]
    assert files == sorted(expected)
    third = np.asarray(Image.open(made / "train/ship/00003.png"))
    assert (third == pixels[3].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    assert unpack.unpacked(folder, tmp_path / "work") == made  # once


def test_batches_that_are_not_the_original_ones_are_refused_before_they_are_read(tmp_path, monkeypatch):
    folder, _ = original(tmp_path, unpack.CIFAR10, monkeypatch, ["bird", "ship"], [0, 1])
    (folder / "first").write_bytes(b"something else")
    with pytest.raises(SourceError, match="not the original, whole"):
        unpack.unpacked(folder, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_folder_of_neither_layout_is_refused_by_name(tmp_path):
    with pytest.raises(SourceError, match="cifar-10-batches-py or cifar-100-python"):
        unpack.unpacked(tmp_path, tmp_path / "work")


# --- the page --------------------------------------------------------------------------------------


def cell(seed=0, **accuracy):
    """A cell of the transfer table whose figures are all of one value."""
    names = [value for value in vars(paper_rows).values() if isinstance(value, str)]
    names += [paper_rows.LOGISTIC.format(C) for C in paper_rows.CS]
    keys = ("accuracy", "f1", "auc", "called", "ap")
    ways = {name: dict.fromkeys(keys, accuracy.get("all", 0.9)) | {"seconds": 1.0} for name in names}
    for name, value in accuracy.items():
        if name != "all":
            ways[getattr(paper_rows, name)].update(dict.fromkeys(keys, value))
    counts = [600, 2400, 30000, 10000, 0.4]
    prior, bins = [0.07, 0.06, 0.08, 0.074], {"unlabelled": [[0.1, 0.1, 5]], "test": [[0.1, 0.2, 5]]}
    return {"seed": seed, "ways": ways, "counts": counts, "prior": prior, "bins": bins}


def test_data_sets_that_are_not_measured_have_the_paper_s_rows():
    text = paper.transfer({TEN: [cell()]})
    of_hundred = text[text.index("### CIFAR-100") :]
    assert "Not measured here." in of_hundred
    assert "| 91.57 | 68.39 | 97.14 |" in of_hundred and "| 65.28 | 53.18 | 72.46 |" in of_hundred


def test_means_and_deviations_of_the_seeds_stand_in_the_table():
    text = paper.transfer({TEN: [cell(0, AT_ZERO=0.97), cell(1, AT_ZERO=0.99)]})
    line = next(line for line in text.splitlines() if line.startswith(f"| {paper_rows.AT_ZERO} "))
    assert line.count("98.00 ± 1.41") == 4 and line.endswith("| 2 |")


def test_whoever_is_first_in_a_metric_is_named_supervised_rows_aside():
    text = paper.first(TEN, [cell(AT_ZERO=0.995, SUPERVISED_HEAD=1.0)])
    assert f"accuracy: {paper_rows.AT_ZERO}, 99.50; F1: {paper_rows.AT_ZERO}, 99.50;" in text
    text = paper.first(TEN, [cell(AT_ZERO=0.96, AUTHORS=0.97)])
    assert f"accuracy: {paper_rows.AUTHORS}, 97.00 against 96.00 of pucache" in text
    assert "AUC: the paper, ImPULSeS (pretrained on CIFAR-10), 98.99 against 96.00" in text


def test_rivals_of_a_data_set_are_the_paper_s_rows_of_that_one():
    text = paper.first(f"{BALANCED}, 1,000 labelled", [cell(AT_ZERO=0.97)])
    assert "97.15 against 97.00" in text and "ResNet-50" not in text


def test_competitors_stand_in_the_order_of_their_accuracy():
    text = paper.competitors({TEN: [cell(AT_ZERO=0.96)]})
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("|")]
    order = [next(at for at, name in enumerate(names) if of in name) for of in ("NcPU", "margin 0", "PUUPL", "imbnnPU")]
    assert order == sorted(order)


def test_pictures_go_beside_the_results_where_docs_have_a_place_for_them(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "results").mkdir()
    assert paper.folder_of_pictures(tmp_path / "results" / "page.md", tmp_path) == tmp_path / "images"
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    assert paper.folder_of_pictures(tmp_path / "elsewhere" / "deep" / "page.md", tmp_path).name == "deep"
    assert paper.folder_of_pictures(None, tmp_path / "work") == tmp_path / "work"


def test_what_the_paper_printed_is_complete_and_in_per_cent():
    assert all(50 < of[0] < 100 for rows in RESULTS.values() for of in rows.values())
