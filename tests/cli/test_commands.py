import csv
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from click.testing import CliRunner
from helpers.hangs import HANG_SECONDS
from helpers.neighbours import with_neighbours
from helpers.planted import planted, write_cache
from helpers.sealing import edited
from helpers.slow import slow
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cli import progress
from pucache.cli.main import main
from pucache.errors import CacheError
from pucache.training.sklearn_classifier import PULinearClassifier

pytestmark = pytest.mark.usefixtures("one_thread")


ENCODER = "test_convnext"
SMALL = f" --encoder timm:{ENCODER} --weights {{w}}/weights.safetensors --device cpu "
LABELLED, HIDDEN, REST = 8, 8, 44
BROKEN = "rest/broken.jpg"
COMMAND_TABLE = Path(__file__).parents[2] / "docs/reference/commands.md"


def run(command, code=0, **places):
    """Run one command line; {name} in it stands for places[name]."""
    arguments = [part.format(**places) for part in shlex.split(command)]
    ended = CliRunner().invoke(main, arguments, prog_name="pucache")
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == code, f"{arguments} gave {ended.exit_code}: {ended.stderr}"
    return ended


def run_json(command, **places):
    """Run with --json; what stands on stdout must be JSON as any parser knows it."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(run(f"{command} --json", **places).stdout, parse_constant=refuse)


def refused(command, code=1, **places):
    """Run what must fail; gives the one line on stderr."""
    ended = run(command, code, **places)
    assert ended.stdout == "" and re.fullmatch(r"Error: .{10,800}\n", ended.stderr), ended.output
    return ended.stderr


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def snapshot(folder):
    """Every file below a folder, by content; locks are left out, they come and stay."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def save_images(folder, count, colour, draw):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = draw.normal(colour, 40, (12, 12, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Red images hidden among blue ones, their cache, a model, and what each command said of them."""
    world = tmp_path_factory.mktemp("world")
    draw = np.random.default_rng(0)
    save_images(world / "images" / "red", LABELLED + HIDDEN, (220, 40, 40), draw)
    save_images(world / "images" / "rest", REST, (40, 60, 200), draw)
    (world / "images" / BROKEN).write_bytes(b"no image")
    (world / "images" / "notes.docx").write_bytes(b"")
    torch.manual_seed(0)
    safetensors.torch.save_file(timm.create_model(ENCODER).state_dict(), world / "weights.safetensors")
    keys = [f"red/{number:03}.png" for number in range(LABELLED + HIDDEN)]
    (world / "positives.txt").write_text("\n".join(keys[:LABELLED]) + "\n")
    rest = [f"rest/{number:03}.png,0" for number in range(REST)]
    (world / "truth.csv").write_text("\n".join(["key,label", *(f"{key},1" for key in keys), *rest]) + "\n")
    return world


@pytest.fixture(scope="session")
def embedded(world):
    return run_json("embed {w}/images {w}/cache.h5" + SMALL, w=world)


@pytest.fixture(scope="session")
def trained(world, embedded):
    command = "train-pu {w}/cache.h5 --positives {w}/positives.txt --prior 0.15 --out {w}/model.safetensors"
    return run_json(command + " --device cpu", w=world)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, so that default outputs go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the whole way -----------------------------------------------------------------------------

N = LABELLED + HIDDEN + REST


def test_embed_tells_what_it_did_and_did_not(world, embedded):
    assert (embedded["rows"], embedded["computed"], embedded["written"]) == (N, N, True)
    assert list(embedded["failures"]) == [BROKEN] and embedded["ignored"] == {".docx": 1}
    assert embedded["encoder"].startswith(f"timm:{ENCODER} (64-d, weights ")
    again = run("embed {w}/images {w}/cache.h5" + SMALL, w=world).stdout
    for words in (f"{N} rows", "nothing had changed", f"unchanged {N}", "failed 1", repr(BROKEN), "1 .docx"):
        assert words in again


def test_info_and_verify_tell_of_the_cache(world, embedded):
    told = run_json("info {w}/cache.h5", w=world)
    assert told["rows"] == N and told["failures"] == 1 and told["encoder"]["dim"] == 64
    assert [file["rows"] for file in told["files"]] == [N]
    assert BROKEN in run_json("info {w}/cache.h5 --failures", w=world)["failures"]
    assert "not an image" in run("info {w}/cache.h5 --failures", w=world).stdout
    verified = {"whole": True, "rows": N, "files": [f"{world}/cache.h5"], "damage": []}
    assert run_json("verify {w}/cache.h5", w=world) == verified
    assert "whole" in run("verify {w}/cache.h5", w=world).stdout


def test_train_needs_no_prior_and_names_twins(world, embedded, here):
    shutil.copy(world / "cache.h5", "c.h5")
    keys = EmbeddingCache("c.h5").keys
    Path("few.txt").write_text("".join(f"{key}\n" for key in keys if key.startswith("red/"))[: 8 * 12])
    ended = run("train-pu c.h5 --positives few.txt --twins 0.99 --threshold recall=0.9 --json")
    told = json.loads(ended.stdout)
    assert told["prior"] is None and told["prior_estimate"] is None and "at least 10" in told["note"]
    assert told["threshold_rule"] == "recall=0.9" and told["loss"] == "imbupu"
    shown = run("train-pu c.h5 --positives few.txt --twins 0.99")
    assert "intervals take at least 10" in shown.stdout
    twins = told["found_by_twins"]
    assert twins and f"{len(twins)} unlabelled, the same picture as a labelled one: {twins[0]!r}" in shown.stderr


def test_estimate_prior_tells_every_method_and_the_interval_of_tilt(world, embedded):
    asked = "estimate-prior {w}/cache.h5 --positives rest/00[0-9].png --twins 2 "
    told = run_json(asked, w=world)["estimates"]
    assert list(told) == ["tilt", "bbe", "dedpul", "elkanoto"]
    assert told["tilt"]["prior"] is None and 0 < told["tilt"]["low"] < told["tilt"]["high"] < 1
    assert all((one["low"], one["high"]) == (0, 1) for name, one in told.items() if name != "tilt")
    one = run(asked + "--method bbe", w=world).stdout
    assert "no interval" in one and "only tilt has an interval" in one and "bbe" in one


def test_sweep_priors_writes_a_table_and_a_picture_and_says_what_it_means(world, embedded, here):
    shutil.copy(world / "truth.csv", "truth.csv")
    command = "sweep-priors {w}/cache.h5 --positives {w}/positives.txt --priors 0.1,0.2 --seeds 2"
    told = run(command + " --truth truth.csv", w=world).stdout
    assert "flat: the sigmoid loss at target prior 0.5" in told and "wrote sweep.csv and sweep.png" in told
    with open("sweep.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["prior"], row["seed"]) for row in rows] == [("0.1", "0"), ("0.1", "1"), ("0.2", "0"), ("0.2", "1")]
    assert float(rows[0]["true_auc"]) > 0.8
    with Image.open("sweep.png") as picture:
        assert picture.format == "PNG" and picture.width > 1000
    other = run_json(command + " --loss nnpu --no-plot --out other.csv", w=world)
    assert len(other["rows"]) == 4 and not Path("other.png").exists()


def test_train_writes_a_model_and_its_metrics(world, trained):
    assert (trained["labelled_positives"], trained["unlabelled"], trained["prior"]) == (LABELLED, N - LABELLED, 0.15)
    assert json.loads((world / "metrics.json").read_text()) == trained
    assert trained["estimates"]["auc"] is None and trained["estimates"]["labels"] <= LABELLED
    assert trained["scar"]["verdict"] in ("alike", "too few") and trained["scar"]["labelled"] <= LABELLED
    model = PULinearClassifier.load(world / "model.safetensors")
    assert model.encoder_ == EmbeddingCache(world / "cache.h5").encoder
    neighbours = {name: value for name, value in model.neighbours_.to_json().items() if name != "tilt"}
    assert (trained["method"], trained["neighbours"]) == (model.method_, neighbours)


def test_train_says_its_method_and_why(world, trained, here):
    command = "train-pu {w}/cache.h5 --positives {w}/positives.txt --prior 0.15 --device cpu "
    settings = trained["neighbours"]
    expected = f"method {trained['method']}: {settings['reason']}; neighbours by exact search"
    assert expected in run(command, w=world).stdout.splitlines()
    for how in ("--method linear", "--solver sgd --epochs 1"):
        assert "method linear" in run(command + how, w=world).stdout.splitlines()
        assert json.loads(Path("metrics.json").read_text())["neighbours"] is None
    rare = run(command + "--method linear --deploy-prior 0.01", w=world).stdout.splitlines()
    assert "posterior and threshold are for a share of positives of 0.01 (--deploy-prior)" in rare
    few = command.replace("{w}/positives.txt", "red/00[0-2].png")
    too_few = "method linear: too few positives are labelled, or still hidden, for neighbours to help"
    assert too_few in run(few, w=world).stdout.splitlines()


FOUND = "retrieve-positives {w}/cache.h5 --positives {w}/positives.txt --twins 2 "
FUSED = "classifier and neighbours, fused"
WAYS = {
    "": "similarity (whitened)",
    "--by similarity": "similarity (whitened)",
    "--similarity centroid": "similarity (centroid)",
    "--similarity topk": "similarity (topk)",
    "--similarity max": "similarity (max)",
    "--model {w}/model.safetensors --by fused": FUSED,
    "--model {w}/with_neighbours.safetensors": FUSED,
    "--model {w}/without_neighbours.safetensors": "classifier",
    "--model {w}/model.safetensors --by classifier": "classifier",
    "--index Flat": "similarity (whitened), Flat index",
    "--index HNSW16 --similarity max": "similarity (max), HNSW16 index",
    "--index IVF2,SQ8 --similarity topk": "similarity (topk), IVF2,SQ8 index",
}

SEARCHED_BY = {
    "similarity (whitened)": "numpy on the CPU",
    "similarity (centroid)": "numpy on the CPU",
    FUSED: "faiss on the CPU",
    "classifier": None,
}


@pytest.fixture
def indexed(world, embedded, here):
    """A copy of the world's cache and models, so that an index beside it stays here."""
    shutil.copytree(world, here / "w", ignore=shutil.ignore_patterns("images", "bad", "cache.h5.*"))
    if (world / "model.safetensors").exists():
        model = PULinearClassifier.load(world / "model.safetensors")
        with_neighbours(model, 2.0).save(here / "w" / "with_neighbours.safetensors")
        with_neighbours(model, 0.0, "linear").save(here / "w" / "without_neighbours.safetensors")
    return here / "w"


@pytest.mark.parametrize("how", WAYS)
def test_retrieve_finds_the_hidden_positives_first(trained, indexed, here, how):
    told = run_json(FOUND + "-k 20 --device cpu " + how, w=indexed)
    note, search, search_by = told.pop("note"), told.pop("search"), told.pop("search_by")
    assert told == {"out": "ranked.csv", "by": WAYS[how], "retrieved": 20, "unlabelled": N - LABELLED}
    assert search == ("exact search" if WAYS[how] == FUSED else None)
    assert search_by == SEARCHED_BY.get(WAYS[how], "faiss on the CPU")
    assert (note is not None) == ("--model" in how and "--by classifier" not in how)
    rows = table(here / "ranked.csv")
    assert list(rows[0]) == ["rank", "key", "score"] and [row["rank"] for row in rows] == [str(n) for n in range(1, 21)]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert {row["key"] for row in rows[:HIDDEN]} == {f"red/{LABELLED + number:03}.png" for number in range(HIDDEN)}
    kept = sorted(path.name for path in indexed.glob("cache.h5.*"))
    if how.startswith("--index"):
        assert kept == [f"cache.h5.{how.split()[1].replace(',', '-')}.index"]
    else:
        assert kept == ["cache.h5.neighbours"] * (WAYS[how] == FUSED)


def test_a_ranking_says_in_a_line_whether_neighbours_count(trained, indexed, here):
    for by in (", with faiss on the CPU", ""):  # the second run reads the graph that the first one kept
        shown = run(FOUND + "--model {w}/with_neighbours.safetensors --device cpu", w=indexed).stdout.splitlines()
        assert "nearest neighbours count, with weight 2" in shown[-2]
        assert shown[-1].endswith(f"by classifier and neighbours, fused (exact search){by}")
    shown = run(FOUND + "--model {w}/without_neighbours.safetensors", w=indexed).stdout.splitlines()
    assert shown[-2].startswith("the classifier ranks alone; nearest neighbours do not count")
    assert shown[-1].endswith("to ranked.csv, by classifier")


def test_retrieve_prints_the_best_and_where_the_rest_is(world, embedded, here):
    lines = run("retrieve-positives {w}/cache.h5 --positives 'red/00[0-7].png' --out o/r.csv --twins 2", w=world).stdout
    lines = lines.splitlines()
    assert len(lines) == 6 and all(f"{n}  " in line and "red/" in line for n, line in enumerate(lines[:5], 1))
    left = N - LABELLED
    assert lines[-1] == f"wrote {left} of {left} unlabelled to o/r.csv, by similarity (whitened), with numpy on the CPU"


@pytest.mark.parametrize("k, count", [("1", 1), ("7", 7), ("52", 52), ("1000", 52), ("all", 52)])
def test_k_says_how_many_are_retrieved(world, embedded, here, k, count):
    assert run_json(FOUND + f"-k {k}", w=world)["retrieved"] == count == len(table(here / "ranked.csv"))


def test_a_spread_out_selection_differs_and_half_is_the_default_weight(world, embedded, here):
    keys = {}
    for how in ("", "--diverse 0", "--diverse", "--diverse 0.5", "--diverse=1"):
        run(FOUND + f"-k 20 --device cpu {how} --out r.csv", w=world)
        keys[how] = [row["key"] for row in table(here / "r.csv")]
    assert keys[""] == keys["--diverse 0"] != keys["--diverse"] == keys["--diverse 0.5"] != keys["--diverse=1"]
    assert all(len(set(some)) == 20 for some in keys.values())


def test_an_index_is_asked_for_as_many_as_are_spread_out(trained, indexed, here):
    """Of one direction it finds k rows; to choose among them takes more."""
    for index in ("exact", "Flat"):
        run(FOUND + f"-k 3 --diverse 0.9 --index {index} --out {index}.csv --device cpu", w=indexed)
    found, exact = (table(here / f"{index}.csv") for index in ("Flat", "exact"))
    assert [row["key"] for row in found] == [row["key"] for row in exact]
    scores = [[float(row["score"]) for row in rows] for rows in (found, exact)]
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_twins_of_labelled_images_are_retrieved_only_where_they_are_no_twins(world, embedded, here):
    told = [run_json(FOUND + f"-k all --twins {limit}", w=world)["retrieved"] for limit in (0.5, 0.98, 1, 2)]
    assert told == sorted(told) and told[0] < told[-1] == N - LABELLED


def test_known_negatives_and_what_was_confirmed_are_not_retrieved_again(world, embedded, here):
    rows = [f"red/{n:03}.png,1,0" for n in range(LABELLED)] + ["red/008.png,1,1"]
    rows += [f"rest/{n:03}.png,0,1" for n in range(5)] + ["rest/005.png,,"]
    Path("review.csv").write_text("\n".join(["key,label,reviewed", *rows]))
    asked = "retrieve-positives {w}/cache.h5 --positives review.csv --twins 2 -k all "
    assert run_json(asked, w=world)["unlabelled"] == N - LABELLED - 1
    assert run_json(asked + "--negatives review.csv", w=world)["retrieved"] == N - LABELLED - 6
    kept = {row["key"] for row in table(here / "ranked.csv")}
    assert not kept & {row.split(",")[0] for row in rows[:-1]} and "rest/005.png" in kept
    assert run_json(asked + "--negatives 'rest/**'", w=world)["retrieved"] == HIDDEN - 1


def test_a_review_sheet_is_written_beside_the_ranking(world, embedded, here):
    told = run_json(FOUND + "-k 5 --review review.html --images {w}/images", w=world)
    assert told["review"] == "review.html" and told["shown"] == 5 and told["without_picture"] == 0
    page = Path("review.html").read_text()
    assert all(row["key"] in page for row in table(here / "ranked.csv"))
    said = run(FOUND + "-k 5 --review again.html", w=world).stdout.splitlines()
    assert said[-1].startswith("wrote again.html: open it in a browser")


REVIEW = "key,label,reviewed\n" + "".join(f"red/{n:03}.png,1,0\n" for n in range(LABELLED))
REVIEW += "".join(f"red/{n:03}.png,1,1\n" for n in (8, 9, 10)) + "".join(f"rest/{n:03}.png,0,1\n" for n in range(12))


def test_known_negatives_change_training_and_are_told(world, embedded, here):
    Path("review.csv").write_text(REVIEW)
    asked = "train-pu {w}/cache.h5 --positives review.csv --prior 0.15 --device cpu "
    without, told = (run_json(asked + more, w=world) for more in ("", "--negatives review.csv"))
    assert (without["confirmed_positives"], without["known_negatives"]) == (3, 0)
    assert (told["confirmed_positives"], told["known_negatives"]) == (3, 12)
    assert (told["labelled_positives"], told["unlabelled"]) == (LABELLED, N - LABELLED)
    assert told["estimates"]["risk"] != without["estimates"]["risk"]
    shown = run(asked + "--negatives review.csv", w=world).stdout
    assert (
        f"{LABELLED} labelled positives, {N - LABELLED} unlabelled (of them reviewed: 3 positive, 12 negative)" in shown
    )
    assert "reviewed" not in run(TRAIN + " --prior 0.15 --device cpu", w=world).stdout
    assert PULinearClassifier.load("model.safetensors").n_negatives_ == 0


def test_known_negatives_change_the_margins_that_the_prior_rests_on_but_not_its_labels(world, embedded, here):
    more_labels = "".join(f"rest/{n:03}.png,1,0\n" for n in range(30, 34))
    Path("review.csv").write_text(REVIEW + more_labels)
    asked = "estimate-prior {w}/cache.h5 --positives review.csv --twins 2 --method tilt --device cpu "
    without, told = (run_json(asked + more, w=world) for more in ("", "--negatives review.csv"))
    assert (told["labelled_positives"], told["unlabelled"]) == (LABELLED + 4, N - LABELLED - 4)
    assert told["estimates"]["tilt"]["high"] != without["estimates"]["tilt"]["high"]


def test_known_negatives_change_a_sweep(world, embedded, here):
    Path("review.csv").write_text(REVIEW)
    asked = "sweep-priors {w}/cache.h5 --positives review.csv --priors 0.15 --seeds 1 --penalty 0.001 --no-plot "
    without, told = (run_json(asked + more, w=world) for more in ("", "--negatives review.csv"))
    assert told["rows"][0]["risk"] != without["rows"][0]["risk"] and len(table(here / "sweep.csv")) == 1


def test_scores_of_a_cache_and_of_its_images_are_the_same(world, trained, here):
    told = run_json("score {w}/model.safetensors {w}/cache.h5", w=world)
    assert (told["out"], told["rows"], told["failures"]) == ("scores.csv", N, 1)
    rows = table(here / "scores.csv")
    assert list(rows[0]) == ["key", "margin", "posterior", "label"]
    assert [row["key"] for row in rows] == list(EmbeddingCache(world / "cache.h5").keys)
    threshold = PULinearClassifier.load(world / "model.safetensors").threshold_
    for row in rows:
        assert 0 <= float(row["posterior"]) <= 1 and int(row["label"]) == (float(row["margin"]) > threshold)
    assert told["positives"] == sum(int(row["label"]) for row in rows) > 0

    images = "score {w}/model.safetensors {w}/images --out new.csv --weights {w}/weights.safetensors --device cpu"
    assert "1 images could not be read and have no score" in run(images, w=world).stdout
    assert (here / "new.csv").read_bytes() == (here / "scores.csv").read_bytes()
    written = (here / "new.h5").stat()
    assert run_json(images, w=world)["cache"] == "new.h5"
    assert (here / "new.h5").stat() == written, "what is embedded is not embedded again"


def test_scores_with_neighbours_have_their_own_threshold(trained, indexed, here):
    model = PULinearClassifier.load(indexed / "with_neighbours.safetensors")
    command = "score {w}/with_neighbours.safetensors {w}/cache.h5 --neighbours {w}/cache.h5"
    told = run_json(command, w=indexed)
    rows = table(here / "scores.csv")
    threshold = model.neighbours_.threshold
    assert told["positives"] == sum(float(row["margin"]) > threshold for row in rows)
    assert told["neighbours"] == str(indexed / "cache.h5") and told["rows"] == len(rows) == N
    shown = run(command, w=indexed).stdout
    assert f"above the threshold, by the image and its neighbours in {indexed}/cache.h5" in shown


def test_evaluate_holds_scores_against_the_truth(world, trained, here):
    run("score {w}/model.safetensors {w}/cache.h5", w=world)
    told = run_json("evaluate scores.csv --truth {w}/truth.csv --at 5 --at 1000", w=world)
    assert (told["n"], told["n_positive"], told["without_truth"]) == (N, LABELLED + HIDDEN, 0)
    assert told["auc"] > 0.95 and told["precision@5"] == 1 and "precision@1000" not in told
    hidden = "evaluate scores.csv --truth {w}/truth.csv --positives {w}/positives.txt"
    assert run_json(hidden, w=world)["n_positive"] == HIDDEN
    Path("reviewed.csv").write_text("key,label\nred/000.png,1\nrest/000.png,0\n")
    assert run_json("evaluate scores.csv --truth {w}/truth.csv --positives reviewed.csv", w=world)["n"] == N - 1
    assert re.search(rf"^n_positive +{HIDDEN}$", run(hidden, w=world).stdout, re.MULTILINE)


def test_a_figure_that_does_not_exist_is_null_in_json(world, trained, here):
    run("score {w}/model.safetensors {w}/cache.h5", w=world)
    Path("all.csv").write_text("key,label\n" + "".join(f"{row['key']},1\n" for row in table(here / "scores.csv")))
    assert run_json("evaluate scores.csv --truth all.csv")["auc"] is None


@pytest.mark.slow
def test_shards_pack_into_what_one_run_gives(world, embedded, here):
    rows = [run_json(f"embed {{w}}/images {n}.h5 --shard {n}/2" + SMALL, w=world)["rows"] for n in (1, 2)]
    assert sum(rows) == N and min(rows) > 0
    assert run_json("info 1.h5 2.h5")["rows"] == N
    assert run_json("pack 1.h5 2.h5 --out packed.h5") == {"out": "packed.h5", "rows": N}
    packed, whole = EmbeddingCache(here / "packed.h5"), EmbeddingCache(world / "cache.h5")
    assert list(packed.keys) == list(whole.keys) and packed.failures == whole.failures
    np.testing.assert_allclose(packed.X, whole.X, atol=1e-2)
    assert "packed.h5: 60 rows, whole" in run("verify packed.h5").stdout


def test_embeddings_made_elsewhere_go_all_the_way(here):
    X, s, y = planted(80, labelled=10)
    np.save("clip.npy", X.astype(np.float16))
    Path("keys.csv").write_text("key,class\n" + "".join(f"{row:03}.png,x\n" for row in range(80)))
    made = run_json("import-embeddings clip.npy c.h5 --keys keys.csv")
    assert (made["cache"], made["rows"], made["keys"]) == ("c.h5", 80, "keys.csv")
    told = run_json("info c.h5")
    assert (told["encoder"]["name"], told["files"][0]["dtype"]) == ("imported:clip", "float16")
    run("import-embeddings clip.npy c.h5 --keys keys.csv --name vit --dtype float32 --force")
    assert run_json("info c.h5")["encoder"]["name"] == "imported:vit"
    Path("positives.csv").write_text("key\n" + "".join(f"{row:03}.png\n" for row in np.flatnonzero(s)))
    Path("truth.csv").write_text("key,label\n" + "".join(f"{row:03}.png,{y[row]}\n" for row in range(80)))
    assert (
        "wrote m.safetensors and m.json"
        in run(
            "train-pu c.h5 --positives positives.csv --prior 0.3 --out m.safetensors --metrics m.json --device cpu"
        ).stdout
    )
    run("score m.safetensors c.h5")
    assert run_json("evaluate scores.csv --truth truth.csv")["auc"] > 0.9


def test_progress_goes_to_stderr_and_leaves_json_alone(world, here, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    ended = run("embed {w}/images c.h5 --json" + SMALL, w=world)
    assert re.search(
        rf"^embedding {N + 1}/{N + 1}  [\d,]+/s  0 s left  encoder waited \d+%, 1 failed$", ended.stderr, re.MULTILINE
    )
    assert json.loads(ended.stdout)["rows"] == N


def test_a_terminal_sees_a_bar(capsys):
    with progress.Bar() as bar:
        bar.start(10, "embedding")
        bar.advance(10)
        bar.remark("2 failed")
    assert re.search("embedding.*10/10.*2 failed", capsys.readouterr().err)


# --- what cannot be ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def bad(world, trained):
    """Files that are wrong, each in its way."""
    bad = world / "bad"
    (bad / "nothing").mkdir(parents=True)
    (bad / "unreadable").mkdir()
    for name in ("a.jpg", "b.png"):
        (bad / "unreadable" / name).write_bytes(b"no image")
    (bad / "documents").mkdir()
    (bad / "documents" / "a.docx").write_bytes(b"")
    (bad / "unknown.txt").write_text("\n".join(["u/1.png", "u/2.png", "red/000.png", "u/3.png", "u/4.png"]))
    (bad / "none.txt").write_text("\n")
    (bad / "none.csv").write_text("key\n")
    (bad / "classes.csv").write_text("key,label\nred/000.png,Dress\n")
    (bad / "other_images.csv").write_text("key,label,reviewed,digest\nred/000.png,1,1,0123456789abcdef\n")
    (bad / "nokey.csv").write_text("path\nred/000.png\n")
    whole = (world / "cache.h5").read_bytes()
    (bad / "truncated.h5").write_bytes(whole[: len(whole) // 2])
    (bad / "empty.h5").write_bytes(b"")
    (bad / "text.h5").write_text("no HDF5")
    at = whole.index(EmbeddingCache(world / "cache.h5").X[3].tobytes())
    (bad / "flipped.h5").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with h5py.File(bad / "foreign.h5", "w") as file:
        file["embeddings"] = np.zeros((2, 2))
    shutil.copy(world / "cache.h5", bad / "newer.h5")
    with edited(bad / "newer.h5") as file:
        file.attrs["version"] = 3
    X, s, _ = planted(60, d=6, labelled=10)
    cache = write_cache(bad / "other.h5", X)
    model = PULinearClassifier(prior=0.3, device="cpu").fit(X, s)
    model.save(bad / "bare.safetensors")
    PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, s).save(bad / "no_neighbours.safetensors")
    model.encoder_ = cache.encoder
    model.save(bad / "other.safetensors")
    (bad / "truncated.safetensors").write_bytes((world / "model.safetensors").read_bytes()[:-9])
    (bad / "scores.csv").write_text("key,score\na,1\n")
    np.save(bad / "X.npy", X)
    return bad


EMBED, TRAIN = "embed {w}/images", "train-pu {w}/cache.h5 --positives {w}/positives.txt"
PRIOR = "estimate-prior {w}/cache.h5 --positives {w}/positives.txt"
SWEEP = "sweep-priors {w}/cache.h5 --positives {w}/positives.txt"
FIND, SCORE = "retrieve-positives {w}/cache.h5", "score {w}/model.safetensors"
BAD = {  # command: (exit code, what the one line must tell)
    "embed {b}/nowhere old.h5": (1, "no such source: .*nowhere; expected a folder, a manifest"),
    "embed {b}/unreadable old.h5" + SMALL: (
        1,
        "old.h5 holds images of .*images, not of .*unreadable; write another cache, or pass --moved",
    ),
    TRAIN + " --prior 0.1 --out {w}/cache.h5": (1, "cache.h5 is also an input"),
    TRAIN + " --prior 0.1 --metrics {w}/positives.txt": (1, "positives.txt is also an input"),
    TRAIN + " --threshold nan": (2, "threshold must be f1, precision=P or recall=R .*or a margin; got 'nan'"),
    TRAIN + " --threshold precision=2": (2, "threshold must be f1, precision=P or recall=R .*got 'precision=2'"),
    TRAIN + " --prior some": (2, r"--prior must be a number in \(0, 1\) or auto, got 'some'"),
    TRAIN + " --penalty much": (2, "--penalty must be a number >= 0 or auto, got 'much'"),
    TRAIN + " --penalty -1": (2, "penalty must be 'auto' or a finite number >= 0, got -1.0"),
    TRAIN + " --solver adam": (2, "unknown solver 'adam'; use batch or sgd"),
    TRAIN + " --epochs 3": (2, "--epochs is for --solver sgd"),
    TRAIN + " --deploy-prior 1": (2, "deploy_prior must lie strictly between 0 and 1, got 1.0"),
    TRAIN + " --loss bce --surrogate sigmoid": (2, "bce is cross-entropy: its surrogate is logistic"),
    TRAIN + " --twins 0": (2, "cosine must be in .0, 1., or None .*got 0"),
    PRIOR + " --method best": (2, "unknown method 'best'; use tilt, bbe, dedpul, elkanoto"),
    PRIOR + " --level 1": (2, "level must be in .0, 1."),
    SWEEP + " --priors 0.1,much": (2, "--priors must be numbers with commas between, got '0.1,much'"),
    SWEEP + " --penalty -1": (2, "penalty must be 'auto' or a finite number >= 0, got -1.0"),
    SWEEP + " --priors 0.1,1": (2, "priors must lie strictly between 0 and 1"),
    SWEEP + " --truth {b}/nowhere.csv": (1, "cannot read .*nowhere.csv"),
    SWEEP + " --out old.csv --plot ./old.csv": (2, "--out and --plot are one file, old.csv; name two"),
    SWEEP + " --no-plot --plot a.png": (2, "--plot and --no-plot exclude each other"),
    FIND + " --positives {w}/positives.txt --out {w}/cache.h5": (1, "cache.h5 is also an input"),
    SCORE + " {w}/cache.h5 --out {w}/model.safetensors": (1, "model.safetensors is also an input"),
    "pack {w}/cache.h5 --out {w}/cache.h5": (1, "cache.h5 is also an input"),
    "import-embeddings {b}/X.npy {b}/X.npy --keys {b}/unknown.txt": (1, "X.npy is also an input"),
    "embed {b}/nothing old.h5" + SMALL: (1, "no image in .*nothing; expected files such as .jpg"),
    "embed {b}/documents old.h5" + SMALL: (1, r"no image in .*\(1 files with other endings: 1 .docx\)"),
    "embed {b}/unreadable new.h5" + SMALL: (1, "none of the 2 images in .*unreadable can be read.*nothing was written"),
    EMBED + " {b}/other.h5" + SMALL: (1, "other.h5 holds .* of imported:planted .*, not of timm:.*write another cache"),
    EMBED + " {b}/truncated.h5" + SMALL: (
        1,
        "truncated.h5 ends without pucache's seal: it is truncated.*; restore it",
    ),
    EMBED + " old.h5 --reuse {b}/other.h5" + SMALL: (1, "other.h5 holds embeddings of imported:planted"),
    EMBED + " old.h5 --reuse {b}/none.h5" + SMALL: (1, "no such cache: .*none.h5"),
    EMBED + " old.h5 --encoder resnet50": (1, "unknown encoder 'resnet50'; use 'bundled', 'timm:NAME'"),
    EMBED + " old.h5 --encoder timm:resnt50": (1, "no model called 'resnt50'; did you mean resnet50"),
    EMBED + " old.h5 --weights w.pth": (1, "the bundled encoder has its own weights; use --encoder"),
    EMBED + " old.h5 --encoder timm:resnet50 --weights w.pth": (1, "no such weights file: w.pth"),
    EMBED + " old.h5 --device tpu": (2, "unknown device 'tpu'; use auto, cpu"),
    EMBED + " old.h5 --device cuda:99": (2, "cuda:99 is not there .*use --device cpu"),
    EMBED + " old.h5 --device cpu --precision fp16": (2, "on the CPU use --precision fp32 or bf16"),
    **{
        f"{EMBED} old.h5{SMALL}--shard={shard}": (2, f"shard .*{expected}")
        for shard, expected in {
            "3/2": "is not one of 1/2 to 2/2",
            "0/2": "is not one of 1/2",
            "1/0": "is not one of",
            "x": "expects I/N such as 2/8, got 'x'",
            "1/2/3": "got '1/2/3'",
            "-1/2": "got '-1/2'",
        }.items()
    },
    **{
        f"{TRAIN} --prior {prior}": (2, f"prior must lie strictly between 0 and 1, got {float(prior)}; it is a share")
        for prior in ("0", "1", "-1", "2", "nan")
    },
    TRAIN + " --prior 0.1 --loss pu": (2, "unknown loss 'pu'; use upu, nnpu"),
    TRAIN + " --prior 0.1 --target-prior 1": (2, "target_prior must lie strictly between 0 and 1, got 1.0"),
    TRAIN + " --prior 0.1 --device tpu": (2, "unknown device 'tpu'; use auto, cpu"),
    TRAIN + " --prior 0.1 --out old.json --metrics ./old.json": (2, "are one file, old.json; name two"),
    "train-pu {b}/nowhere.h5 --positives red/** --prior 0.1": (1, "no such cache: .*nowhere.h5"),
    "train-pu {w}/cache.h5 --positives '**' --prior 0.1": (1, "all 60 rows are labelled positive; some must"),
    **{
        FIND + f" --positives {{b}}/{name}": (1, expected)
        for name, expected in {
            "unknown.txt": r"4 of 5 keys in .*'u/1.png', 'u/2.png', 'u/3.png', \.\.\..*such as 'red/000.png'",
            "none.txt": "none.txt lists no keys",
            "none.csv": "none.csv lists no keys",
            "nokey.csv": "nokey.csv has columns path; expected one called 'key'",
            "nowhere.txt": "no such file: .*nowhere.txt; expected a text file of keys",
            "other.h5": "not UTF-8 text",
        }.items()
    },
    FIND + " --positives 'blue/*'": (1, r"no key matches 'blue/\*'; keys are paths relative to the source, such as"),
    **{
        FIND + f" --positives red/** -k {k}": (2, f"-k must be a whole number of at least 1, or all; got '{k}'")
        for k in ("0", "-1", "1.5", "some")
    },
    FIND + " --positives red/** --by fused": (2, "ranking by fused needs a model; train one with train-pu"),
    FIND + " --positives red/** --index Flat --model m": (2, "similarity and index do nothing where a model ranks"),
    FIND + " --positives red/** --index Flat -k all": (2, "all images are wanted, which index Flat is not for"),
    FIND + " --positives red/** --index ivf": (2, "faiss makes no index 'ivf' of .*use exact, or a factory"),
    FIND + " --positives red/** --index IVF999,SQ8": (2, "an index IVF999,SQ8 cannot be made of the .* rows of "),
    FIND + " --positives red/** --diverse 1.5": (2, "diverse must lie between 0 and 1, got 1.5"),
    FIND + " --positives red/** --diverse nan": (2, "diverse must lie between 0 and 1, got nan"),
    FIND + " --positives red/** --twins 0": (2, "twins must be a cosine above 0, .*got 0"),
    FIND + " --positives red/** --images {w}/images": (2, "--images is for --review; leave it out, or name a page"),
    FIND + " --positives red/** --out old.csv --review ./old.csv": (2, "--out and --review are one file, old.csv"),
    FIND + " --positives {w}/truth.csv --review {w}/truth.csv": (1, "truth.csv is also an input"),
    FIND + " --positives red/** --negatives {w}/positives.txt": (
        1,
        "8 keys are both in red/.. and in .*positives.txt .*; decide which",
    ),
    FIND + " --positives red/** --negatives 'blue/*'": (1, r"no key matches 'blue/\*'"),
    FIND + " --positives red/** --negatives 'rest/**'": (1, "all 60 rows are labelled; some must be unlabelled"),
    FIND + " --positives red/** --negatives {w}/positives.txt --out {w}/positives.txt": (1, "txt is also an input"),
    TRAIN + " --negatives {w}/truth.csv --out {w}/truth.csv": (1, "truth.csv is also an input"),
    **{
        command + " --negatives {b}/nowhere.txt": (1, "no such file: .*nowhere.txt; expected a text file of keys")
        for command in (TRAIN, PRIOR, SWEEP, FIND + " --positives red/**")
    },
    FIND + " --positives {b}/classes.csv": (1, "classes.csv has the label 'Dress'; expected 1 or 0"),
    FIND + " --positives {b}/other_images.csv": (1, "1 of 1 keys in .* are other images in .*remove the digest column"),
    FIND + " --positives red/** --by classifier": (2, "ranking by classifier needs a model; train one with train-pu"),
    FIND + " --positives red/** --by similarity --model m": (2, "ranking by similarity uses no model"),
    FIND + " --positives red/** --device bogus": (2, "bogus"),
    FIND + f" --positives '*{'x' * 300}'": (1, "no key matches"),
    FIND + " --positives red/** --similarity max --model m": (
        2,
        "similarity and index do nothing where a model ranks; leave them out, or the model",
    ),
    FIND + " --positives red/** --model {b}/other.safetensors": (
        1,
        "cache.h5 holds .* of timm.* expects imported",
    ),
    SCORE + " {b}/other.h5": (1, "other.h5 holds embeddings of imported:planted.*expects timm:"),
    SCORE + " {b}/nowhere": (1, "no such source: .*nowhere"),
    SCORE + " {w}/images {w}/images": (2, "give one source of images, or any number of caches"),
    SCORE + " {w}/cache.h5 --cache c.h5": (2, "--cache is for images that are to be embedded.*leave it out"),
    SCORE + " {w}/cache.h5 --workers 2": (2, "--workers is for a Ray cluster; add --engine ray, or leave it out"),
    SCORE + " {w}/cache.h5 --parts csv": (2, "parts are written to a folder.*scores.csv is the name of a table"),
    SCORE + " {w}/cache.h5 --shard 1/2": (2, "--shard is for images that are to be embedded.*leave it out"),
    SCORE + " {w}/images --address auto": (2, "--address is for a Ray cluster; add --engine ray"),
    "score {b}/no_neighbours.safetensors {w}/cache.h5 --neighbours {w}/cache.h5": (
        1,
        r"this model does not score with neighbours; leave neighbours out \(the model does not say whether",
    ),
    SCORE + " {w}/cache.h5 --neighbours {w}/truth.csv --out {w}/truth.csv": (1, "truth.csv is also an input"),
    TRAIN + " --method distilled --solver sgd": (2, "method='distilled' needs solver='batch'"),
    SCORE + " {w}/cache.h5 --out old.txt": (2, "old.txt must end in .csv or .parquet"),
    "score {b}/bare.safetensors {w}/cache.h5": (1, "expects 6-d rows; .*cache.h5 holds timm:"),
    "score {b}/bare.safetensors {w}/images": (1, "trained on bare arrays, which pucache cannot make; score a cache"),
    "score {b}/other.safetensors {w}/images": (1, "trained on imported:planted.* cannot make; score a cache"),
    "score {b}/truncated.safetensors {w}/cache.h5": (1, "truncated.safetensors is damaged"),
    "score {w}/weights.safetensors {w}/cache.h5": (1, "not a pucache model; pass what train-pu wrote"),
    "score {b}/nowhere {w}/cache.h5": (1, "no such model: .*nowhere"),
    "evaluate {b}/scores.csv --truth {w}/truth.csv": (1, "not a table of scores.*expected columns key, margin"),
    "evaluate {b}/nowhere.csv --truth {w}/truth.csv": (1, "no such scores: .*nowhere.csv"),
    "pack {w}/cache.h5 {b}/other.h5 --out old.h5": (1, "caches of different encoders cannot be mixed"),
    "pack {w}/cache.h5 {w}/cache.h5 --out old.h5": (1, "the key 'red/000.png' stands in more than one of the files"),
    "pack {b}/flipped.h5 --out old.h5": (1, "flipped.h5 is damaged: embeddings are not as they were written"),
    **{
        f"{command}": (1, "flipped.h5 is damaged: embeddings are not as they were written")
        for command in (
            SCORE + " {b}/flipped.h5",
            "train-pu {b}/flipped.h5 --positives red/**",
            "estimate-prior {b}/flipped.h5 --positives red/**",
            "sweep-priors {b}/flipped.h5 --positives red/**",
            "retrieve-positives {b}/flipped.h5 --positives red/**",
            "retrieve-positives {b}/flipped.h5 --positives red/** --model {w}/model.safetensors",
        )
    },
    "verify {b}/truncated.safetensors": (1, "truncated.safetensors is damaged"),
    "verify {b}/nothing": (1, "no cache in folder .*nothing"),
    "verify {b}/flipped.h5": (
        1,
        "flipped.h5 is damaged: embeddings .*; restore it .* embed with --verify",
    ),
    "import-embeddings {b}/X.npy old.h5 --keys {b}/unknown.txt": (1, "X.npy has 60 rows, and .*unknown.txt 5 keys"),
    "import-embeddings {b}/text.h5 old.h5 --keys {b}/unknown.txt": (1, "text.h5 is not a .npy array of numbers"),
    "demo {b}": (1, "bad holds files that are not the demo's; name a new or an empty folder"),
    **{
        f"info {{b}}/{name}": (1, expected)
        for name, expected in {
            "truncated.h5": "truncated.h5 ends without pucache's seal: it is truncated.*; restore it",
            "empty.h5": r"empty.h5 is empty \(0 bytes\); remove it and embed again",
            "text.h5": r"text.h5 is not a pucache cache \(not an HDF5 file\)",
            "foreign.h5": "foreign.h5 ends without pucache's seal: .* an HDF5 file from elsewhere",
            "newer.h5": "newer.h5 is a pucache cache of format version 3; .* reads version 2: upgrade pucache",
            "nothing": "no cache in folder .*nothing; expected",
        }.items()
    },
}


@pytest.mark.parametrize("command", BAD)
def test_what_cannot_be_is_one_line_with_the_remedy_and_touches_nothing(world, bad, here, command):
    code, expected = BAD[command]
    for name in ("model.safetensors", "metrics.json", "ranked.csv", "scores.csv", "old.json"):
        Path(name).write_text("precious")
    shutil.copy(world / "cache.h5", "old.h5")
    before = snapshot(world) | snapshot(here)
    told = refused(command, code, w=world, b=bad)
    assert re.search(expected, told), told
    assert snapshot(world) | snapshot(here) == before


OUTPUTS = {  # command: each has a second flaw, which shows if the output is looked at after the work
    "embed {b}/nowhere {out}": "{out}",
    "import-embeddings {b}/nowhere.npy {out} --keys {b}/unknown.txt": "{out}",
    "train-pu {b}/nowhere.h5 --positives x --prior 0.1 --out {out}": "{out}",
    "train-pu {b}/nowhere.h5 --positives x --prior 0.1 --metrics {out}": "{out}",
    "retrieve-positives {b}/nowhere.h5 --positives x --out {out}": "{out}",
    "retrieve-positives {b}/nowhere.h5 --positives x --review {out}": "{out}",
    "score {b}/nowhere {b}/nowhere.h5 --out {out}.csv": "{out}.csv",
    "score {w}/model.safetensors {w}/images --weights {b}/nowhere --cache {out}": "{out}",
    "pack {b}/nowhere.h5 --out {out}": "{out}",
    "demo {out} --device tpu": "{out}",
}


@pytest.mark.parametrize("out", ["taken", "/proc/pucache/out", "file/out"])
@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_that_cannot_be_written_is_found_before_the_work(world, bad, here, command, out):
    for name in ("taken", "taken.csv"):
        (here / name / "inside").mkdir(parents=True)
    (here / "file").write_text("precious")
    told = refused(command, w=world, b=bad, out=out)
    assert OUTPUTS[command].format(out=out) in told and re.search("cannot write|is a directory|not the demo's", told), (
        told
    )
    assert (here / "file").read_text() == "precious"


def test_debugging_shows_the_error_itself(monkeypatch, here):
    monkeypatch.setenv("PUCACHE_DEBUG", "1")
    with pytest.raises(CacheError, match=r"no such cache: nowhere\.h5"):
        run("info nowhere.h5")


@pytest.mark.parametrize("strict, code", [slow("", 0), ("--strict", 3)])
def test_strict_exits_with_3_when_an_image_failed_and_everything_is_written(world, trained, here, strict, code):
    run("embed {w}/images c.h5" + SMALL + strict, code, w=world)
    assert run_json("info c.h5")["rows"] == N
    images = "score {w}/model.safetensors {w}/images --cache c.h5 --weights {w}/weights.safetensors --device cpu "
    run(images + strict, code, w=world)
    assert len(table(here / "scores.csv")) == N
    (here / "good").mkdir()
    shutil.copy(world / "images/red/000.png", here / "good")
    run("embed good good.h5" + SMALL + strict, w=world)


# --- interruptions, in a process of its own ----------------------------------------------------

IN_SMALL_BLOCKS = """
import pucache.embedding.blocks
pucache.embedding.blocks.BLOCK_ROWS = 32
from pucache.cli.main import run
run()
"""


@pytest.mark.parametrize("number, code, workers", [(signal.SIGINT, 130, 0), slow(signal.SIGTERM, 143, 2)])
@pytest.mark.slow
def test_an_interrupted_embed_says_how_to_go_on_and_does(world, here, number, code, workers):
    save_images(here / "many", 320, (128, 128, 128), np.random.default_rng(0))
    arguments = f"embed many cache.h5{SMALL}--batch-size 8 --workers {workers}".format(w=world).split()
    command = [sys.executable, "-c", IN_SMALL_BLOCKS, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    while process.poll() is None and not list(here.glob("cache.h5.parts/part-*.h5")):
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, out) == (code, ""), err
    assert "interrupted" in err and "run the same command again to go on" in err
    assert workers or "Traceback" not in err, "a worker's own thread may complain that nobody listens any more"
    assert not (here / "cache.h5").exists()
    told = run_json(shlex.join(arguments))
    assert told["rows"] == 320 and 0 < told["computed"] < 320
    assert run_json("verify cache.h5")["rows"] == 320 and not (here / "cache.h5.parts").exists()


IN_A_DESTRUCTOR = """
import signal, sys, time
import pucache.cache.embedding_cache
from pucache.cli.main import run

class Struck:
    def __del__(self):
        signal.raise_signal(int(sys.argv.pop()))

def slow(*_):
    Struck()
    time.sleep(3600)

pucache.cache.embedding_cache.EmbeddingCache.__init__ = slow
run(["info", "cache.h5"])
"""


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), slow(signal.SIGTERM, 143)])
def test_a_signal_is_not_lost_in_a_destructor(number, code):
    command = [sys.executable, "-c", IN_A_DESTRUCTOR, str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert ended.returncode == code and "interrupted" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("arguments, code", [("info nowhere.h5", 1), slow("train-pu x.h5", 2), ("--version", 0)])
def test_exit_codes_reach_the_shell(here, arguments, code):
    command = [sys.executable, "-c", "from pucache.cli.main import run; run()", *shlex.split(arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == code and "Traceback" not in ended.stderr


# --- help --------------------------------------------------------------------------------------

COMMANDS = sorted(main.commands)


def examples(text):
    """The command lines in a text: lines that begin with `pucache`, less what stands behind # or a wide gap."""
    return re.findall(r"^ *(pucache .+?)(?: {2,}.*| *#.*)?$", text, re.MULTILINE)


def parse(example):
    """Parse as the shell and click would; raises where a command or an option does not exist."""
    _, verb, *arguments = shlex.split(example)
    return main.commands[verb].make_context(verb, arguments)


def test_help_loads_none_of_the_heavy_packages():
    code = f"""
import sys
from pucache.cli.main import main
for arguments in [["--help"], ["--version"], *([verb, "--help"] for verb in {COMMANDS})]:
    main(arguments, standalone_mode=False)
print("loaded:", *sorted({{"torch", "timm", "h5py", "faiss", "sklearn", "numpy", "PIL"}} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_and_option_has_help(verb):
    command = main.commands[verb]
    assert command.help and command.get_short_help_str()
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help and len(parameter.help) > 5, parameter.name


@pytest.mark.parametrize("verb", [None, *COMMANDS])
def test_the_examples_in_the_help_parse(verb):
    found = examples((main.commands[verb] if verb else main).help)
    assert found and all(verb in (None, example.split()[1]) for example in found)
    for example in found:
        parse(example)
    with pytest.raises(click.UsageError):
        parse(f"{found[0]} --no-such-option")


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_table_of_commands_has_every_command(verb):
    assert re.search(rf"^\| `pucache {verb}\b", COMMAND_TABLE.read_text(), re.MULTILINE)


# --- how the encoder is run --------------------------------------------------------------------

STAGES = ("listing", "reading", "hashing", "decoding", "resizing", "encoder", "writing", "merging")


@pytest.fixture
def few(here):
    """A folder of a few images, half of them JPEG files."""
    save_images(here / "few", 6, (128, 128, 128), np.random.default_rng(0))
    for number in range(6):
        with Image.open(here / "few" / f"{number:03}.png") as image:
            image.save(here / "few" / f"{number:03}.jpg")
    return here / "few"


def test_a_profile_says_where_the_time_went(world, few):
    shown = run("embed few c.h5 --runtime torch --profile" + SMALL, w=world).stdout.splitlines()
    assert all(re.search(rf"{stage} \d+\.\d\d s", shown[-1]) for stage in STAGES)
    assert re.search(r"the encoder waited \d+%$", shown[-1])
    told = run_json("embed few d.h5 --runtime torch --profile" + SMALL, w=world)["profile"]
    assert set(STAGES) <= set(told["seconds"]) and 0 <= told["device_waited"] <= 1
    assert "profile" not in run_json("embed few d.h5" + SMALL, w=world)
    assert "the encoder waited 0%" in run("embed few d.h5 --profile" + SMALL, w=world).stdout


@pytest.mark.parametrize("options", ["--runtime openvino", "--runtime torch --precision bf16"])
def test_a_second_run_without_options_runs_the_encoder_as_the_first_did(world, few, options):
    if "openvino" in options:
        pytest.importorskip("openvino")
    first = run_json("embed few c.h5 " + options + SMALL, w=world)
    assert (first["rows"], first["computed"], first["failures"]) == (12, 12, {})
    second = run_json("embed few c.h5" + SMALL, w=world)
    assert (second["computed"], second["kept"], second["written"]) == (0, 12, False)
    assert second["encoder"] == first["encoder"]
    told = run_json("info c.h5", w=world)["encoder"]
    assert options.split()[1] == told["runtime"] and told["decoder"].startswith("pillow")


def test_openvino_that_is_not_installed_is_named_with_its_remedy(world, few, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "openvino" else real(name, *rest)
    )
    told = refused("embed few c.h5 --runtime openvino" + SMALL, 2, w=world)
    assert "openvino is not installed; pip install 'pucache[openvino]'" in told
    assert "torch" in run_json("embed few c.h5" + SMALL, w=world)["encoder"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_cuda_that_is_not_there_is_one_line(world, few):
    told = refused("embed few c.h5" + SMALL.replace("cpu", "cuda"), 2, w=world)
    assert "device cuda is not there (0 CUDA devices seen); use --device cpu" in told


def test_score_runs_the_encoder_as_the_model_had_it(world, here):
    run("embed {w}/images c.h5 --runtime torch --precision bf16" + SMALL, w=world)
    run("train-pu c.h5 --positives {w}/positives.txt --prior 0.15 --out m.safetensors --device cpu", w=world)
    run("score m.safetensors {w}/images --out new.csv --weights {w}/weights.safetensors --device cpu", w=world)
    assert EmbeddingCache("new.h5").encoder == EmbeddingCache("c.h5").encoder
    told = run_json("info new.h5")["encoder"]
    assert (told["precision"], told["runtime"]) == ("bf16", "torch")
