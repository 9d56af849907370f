"""Groups that nobody named: seen where labels lie in few of them, by neighbours or by names, and nowhere else."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from pucache.labels.near_duplicates import groups
from pucache.labels.unnamed_groups import find_unnamed_groups

VIDEOS, FRAMES, D = 120, 10, 12
NAMES = {
    "folders": lambda video, frame: f"v{video:03}/f{frame:02}.png",
    "a separator": lambda video, frame: f"v{video:03}_f{frame:02}.png",
    "no separator": lambda video, frame: f"{video:03}{frame:02}.png",
    "in folders of classes": lambda video, frame: f"train/{video % 3}/v{video:03}_f{frame:02}.png",
    "any order": lambda video, frame: f"{(video * FRAMES + frame) * 7919 % 1200:04}.png",
}


def found(X, keys, labelled):
    """What is seen in rows with these keys, in any order, of which some are labelled."""
    order = np.argsort(keys)
    rows = np.sort(np.argsort(order)[labelled])
    return find_unnamed_groups(X[order], [keys[row] for row in order], rows, groups(X[order]))


def said(seen):
    return seen.sentence(SimpleNamespace(files=[SimpleNamespace(path="c.h5")]), ["found.txt"])


def frames(noise, seed=0):
    """Videos of ten frames, (1200, 12)."""
    draw = np.random.default_rng(seed)
    centres = np.repeat(draw.normal(size=(VIDEOS, D)), FRAMES, axis=0)
    return (centres + draw.normal(scale=noise, size=centres.shape)).astype(np.float32)


@pytest.mark.parametrize("names", NAMES)
def test_frames_are_seen_whatever_their_names_and_names_that_tell_videos_are_named(names):
    keys = [NAMES[names](row // FRAMES, row % FRAMES) for row in range(VIDEOS * FRAMES)]
    labelled = np.concatenate([video * FRAMES + np.arange(8) for video in (3, 20, 41, 77, 110)])
    seen = found(frames(0.2), keys, labelled)
    assert (seen.labelled, seen.holding) == (40, 5)
    assert bool(seen.pattern) == (names != "any order")
    if seen.pattern:
        videos = {re.search(seen.pattern, key)[1] for key in keys}
        assert (len(videos), len(np.unique(seen.group)), seen.by_chance) == (VIDEOS, VIDEOS, 34)


def test_neighbourhoods_that_names_do_not_tell_are_too_few_for_figures():
    keys = [NAMES["any order"](row // FRAMES, row % FRAMES) for row in range(VIDEOS * FRAMES)]
    order, labelled = np.argsort(keys), np.arange(40 * FRAMES)
    seen = found(frames(0.2), keys, labelled)
    of_labels = seen.group[np.sort(np.argsort(order)[labelled])]
    assert seen.holding == 40 and len(np.unique(of_labels)) == 9 and "No figure is stated until" in said(seen)


def test_frames_that_follow_each_other_are_seen_by_their_names_where_no_gap_is_behind_the_last():
    draw = np.random.default_rng(0)
    walk = np.cumsum(draw.normal(size=(6, 200, D)), axis=1).reshape(-1, D).astype(np.float32)
    keys = [f"clip{row // 200}_{row % 200:04}.png" for row in range(len(walk))]
    seen = found(walk, keys, np.concatenate([np.arange(100, 120), np.arange(700, 720)]))
    assert (seen.holding, seen.pattern) == (2, r"(.*\D)\d+\D*\.[^./]*$")


@pytest.mark.parametrize("folder", [lambda c, i: f"train/{c}/", lambda c, i: "", lambda c, i: f"2024-{i * 7 % 12:02}/"])
@pytest.mark.parametrize("search", ["at random", "first of the listing", "nearest neighbours"])
def test_classes_months_and_any_search_are_no_groups(folder, search):
    draw = np.random.default_rng(1)
    of_class = draw.integers(10, size=1000)
    X = (draw.normal(size=(10, D))[of_class] + draw.normal(scale=0.7, size=(1000, D))).astype(np.float32)
    keys = [f"{folder(one, row)}{row:05}.png" for row, one in enumerate(of_class)]
    positive = np.flatnonzero(of_class == 3)
    nearest = positive[np.argsort(np.linalg.norm(X[positive] - X[positive[0]], axis=1))]
    chosen = {"at random": draw.permutation(positive), "first of the listing": positive, "nearest neighbours": nearest}
    assert found(X, keys, chosen[search][:40]) is None


def test_labels_of_as_many_videos_as_chance_would_give_and_copies_are_no_reason():
    keys = [NAMES["folders"](row // FRAMES, row % FRAMES) for row in range(VIDEOS * FRAMES)]
    assert found(frames(0.2), keys, np.arange(0, 40 * FRAMES, FRAMES)) is None
    copies = np.repeat(np.random.default_rng(0).normal(size=(400, D)), 3, axis=0).astype(np.float32)
    assert found(copies, [f"{row:05}.png" for row in range(1200)], np.arange(60)) is None


def test_few_labels_and_few_rows_are_not_looked_at():
    keys = [NAMES["folders"](row // FRAMES, row % FRAMES) for row in range(VIDEOS * FRAMES)]
    assert found(frames(0.2), keys, np.arange(9)) is None
    assert found(frames(0.2)[:100], keys[:100], np.arange(40)) is None
