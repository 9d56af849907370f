"""Groups in the labels of the commands: images that are not independent."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import run, run_json
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache
from pucache.reviewing.session import open_session
from pucache.reviewing.session_folder import keep_groups

pytestmark = pytest.mark.usefixtures("one_thread", "small_maps")
COPIES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with cache.h5 of groups of four copies, whose keys are GROUP/NUMBER, and their labels."""
    folder = tmp_path_factory.mktemp("groups")
    X, s, _ = planted(100, labelled=32)
    rows = np.repeat(X, COPIES, axis=0)
    rows = rows + np.random.default_rng(0).normal(scale=0.2, size=rows.shape)
    keys = [f"{row // COPIES:03}/{row % COPIES}.png" for row in range(len(rows))]
    write_cache(folder / "cache.h5", rows.astype(np.float32), keys)
    labelled = [key for key, label in zip(keys, np.repeat(s, COPIES), strict=True) if label]
    (folder / "found.txt").write_text("\n".join(labelled))
    (folder / "one.txt").write_text("\n".join(labelled[:COPIES]))
    (folder / "g.csv").write_text("key,patient\n" + "".join(f"{key},{key[:3]}\n" for key in keys))
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def grouped(groups, out, listed="found.txt"):
    return run(f"labels cache.h5 {listed} --groups '{groups}' --out {out}")


def test_a_table_and_a_pattern_train_one_model_whose_labels_and_intervals_count_groups():
    train = "train-pu cache.h5 --method linear --penalty 0.01"
    assert "100 groups\n" in grouped("g.csv", "t.csv").stdout
    grouped("g.csv:patient", "c.csv")
    grouped("(.*)/[^/]*", "p.csv")
    assert len({Path(f"{name}.csv").read_bytes() for name in "tcp"}) == 1
    of_table = run(f"{train} --labels t.csv --out t.safetensors").stdout
    assert "100 groups of images; the labelled positives are of 32, and count as so many labels, " in of_table
    run(f"{train} --positives found.txt --out alone.safetensors")
    of_groups, alone = (json.loads(Path(f"{name}.metrics.json").read_text()) for name in ("t", "alone"))
    assert (of_groups["groups"], of_groups["estimates"]["labels"], of_groups["labelled_positives"]) == (100, 32, 128)
    assert "groups" not in alone and "design_effect" not in alone["estimates"]
    widths = [one["prior_estimate"]["high"] - one["prior_estimate"]["low"] for one in (of_groups, alone)]
    assert widths[0] > 1.2 * widths[1]


def test_the_prior_and_the_report_take_groups():
    grouped("g.csv", "t.csv")
    run("train-pu cache.h5 --labels t.csv --out m.safetensors")
    expected = json.loads(Path("m.metrics.json").read_text())["prior_estimate"]
    prior = run_json("estimate-prior cache.h5 --labels t.csv")
    assert prior["estimates"]["tilt"] == pytest.approx(expected)
    page = "report cache.h5 --labels t.csv --model m.safetensors --out r.html"
    assert "known positives are in 32 of 100 groups; images of " in run(page).stdout
    assert "Groups with positives" in Path("r.html").read_text() and "32 groups" in Path("r.html").read_text()


def test_few_groups_have_no_figures_however_many_images_are_labelled(caplog):
    grouped("g.csv", "few.csv", "one.txt")
    ended = run("train-pu cache.h5 --labels few.csv --out f.safetensors")
    assert "all 4 labelled positives are of one group and count as one label" in caplog.text
    assert "1 group of labelled positives is too few to estimate prior" in ended.stdout


# --- where groups come from ------------------------------------------------------------------------

WAYS = [
    "cache.h5 --labels t.csv",
    "parts.h5 --positives parts.txt",  # parts of one image are a group
    "cache.h5 --labels kept.review",
    "cache.h5 --labels later.review",  # groups are named when it has begun
]
INDEPENDENT = ["cache.h5 --labels none.csv", "parts.h5 --labels independent.csv", "cache.h5 --labels none.review"]


def test_groups_of_a_table_of_parts_and_of_a_review_give_the_same_figures():
    cache = EmbeddingCache("cache.h5")
    parts = [f"{key[:3]}.png#xywh=percent:{25 * int(key[4])},0,25,100" for key in cache.keys]
    write_cache(Path("parts.h5"), cache.matrix[:], parts, encoder=replace(cache.encoder, tiles="1x4"))
    listed = set(Path("found.txt").read_text().split())
    Path("parts.txt").write_text("\n".join(p for key, p in zip(cache.keys, parts, strict=True) if key in listed))
    grouped("g.csv", "t.csv")
    grouped("none", "none.csv")
    run("labels parts.h5 parts.txt --groups none --out independent.csv")
    for name in ("kept", "later", "none"):
        with open_session(cache, "found.txt", folder=f"{name}.review"):
            pass
    keep_groups(Path("kept.review"), cache, np.arange(400) // COPIES * COPIES)  # as a review that begins with them
    grouped("g.csv", "later.csv", "later.review")
    grouped("none", "later.csv", "none.review")

    def figures(way):
        found = run_json(f"train-pu {way} --method linear --penalty 0.01 --out w.safetensors")
        return found.get("groups"), found["estimates"], found.get("prior_estimate")

    first, *others = map(figures, WAYS)
    assert others == [first] * 3
    alone, *others = map(figures, INDEPENDENT)
    assert others == [alone] * 2 and alone[0] is None and alone[1] != first[1], "each image counts"


# --- groups that nobody named --------------------------------------------------------------------


def test_labels_in_few_videos_are_told_and_count_as_videos_until_something_is_said_of_groups(caplog):
    """Forty frames of five of ten positive videos."""
    videos, frames = 60, 10
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(videos, 12)) + 2 * (np.arange(videos) < 10)[:, None]
    X = np.repeat(centres, frames, axis=0) + draw.normal(scale=0.2, size=(videos * frames, 12))
    keys = [f"v{row // frames:02}_f{row % frames}.png" for row in range(len(X))]
    write_cache(Path("frames.h5"), X.astype(np.float32), keys)
    Path("in_five.txt").write_text("\n".join(key for key in keys if key < "v05" and key[-5] < "8"))
    train = "train-pu frames.h5 {} --method linear --penalty 0.01 --out v.safetensors"
    seen = "40 labelled positives lie in 5 of 60 runs of names, each of images that look alike"
    ended = run(train.format("--positives in_five.txt"))
    assert seen in caplog.text and "5 groups of labelled positives are too few to estimate prior" in ended.stdout
    typed = caplog.text[caplog.text.index("pucache labels") : caplog.text.index(" (none:")]
    for groups, count in ((typed, "60 groups"), ("--groups none", "every image is independent")):
        options = groups.removeprefix("pucache ") if groups == typed else f"labels frames.h5 in_five.txt {groups}"
        assert count in run(f"{options} --out v.csv").stdout
        caplog.clear()
        ended = run(train.format("--labels v.csv"))
        assert "lie in" not in caplog.text
        assert ("5 groups of labelled positives are too few" in ended.stdout) == (groups == typed)
