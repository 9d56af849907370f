"""Simulated reviews: positives found per look, with answers from the true labels.

    python -m benchmarks.quality.review DIR [--fashion SOURCE] [--asreview-python PATH] [--out docs/results/review.md]

A task has 20 labelled positives of a class, and a share of positives among the unlabelled of 1 %. A review goes
through the session, the queue and the ranker of `pucache review`, with a fit after every ten decisions; the truth
decides. Beside it stand rounds of 100 images (train, rank by classifier and neighbours, review, again), and where
ASReview is installed, here or in the Python at PATH, its simulator on the same embeddings (`review_asreview.py`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured
from benchmarks.common.command_line import add_jobs, images_parser, write_page
from benchmarks.common.tasks import CELL, CIFAR, FASHION, Location, opened, prepared, settings
from benchmarks.quality import review_page
from benchmarks.quality.review_page import ASREVIEW, ASREVIEW_TUNED, DEFAULT, PEER_C, PEER_LOOKS, ROUNDS
from benchmarks.quality.review_pile import AHEAD, Pile, decide, opened_pile, opened_review
from pucache import PULinearClassifier
from pucache.labels.labels import PULabels
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.scorers import Fused
from pucache.reviewing.log import Stream
from pucache.reviewing.queue import NextImages
from pucache.training.ranker import Ranker

SHARE, LABELLED = 0.01, 20
TASK_NAMES = ("cat", "truck", "deer", "ship", "coat", "bag", "pullover", "sneaker")
ROUND, LOOKS = 100, 1000  # images of a round, and of a review


def ended(looks: int, positives: int, wanted: int) -> bool:
    return looks >= LOOKS or positives >= wanted


def simulated_review(pile: Pile, *, seed: int, wanted: int | None = None) -> dict:
    """Looks at which hidden positives are found, and what it took.

    The truth answers. All goes through a session on disk, its queue and its ranker; it ends when so many are found as
    are `wanted`, by default all.
    """
    ranker, began = Ranker(pile.cache, pile.graph), time.process_time()
    found_at: list[int] = []
    looks = fits = 0
    with opened_review(pile) as session:
        images = NextImages(session, np.random.default_rng([seed, 20]))
        shown = np.zeros(len(pile.y), bool)
        while not ended(looks, len(found_at), wanted or pile.hidden):
            result = ranker.fit(*session.state.labels())
            images.set_ranking(result.scores, result.posterior, looks)
            fits += 1
            rows = images.next("simulated", AHEAD)
            decide(session, rows, pile.y, looks)
            new = [look for look, row in enumerate(rows, looks + 1) if pile.y[row] and not shown[row]]
            found_at += [look for look in new if not pile.s[rows[look - looks - 1]]]
            shown[rows], looks = True, looks + len(rows)
        streams = [entry.stream for entry in session.entries()]
    return {
        "found_at": found_at,
        "looks": looks,
        "fits": fits,
        "cpu_seconds": time.process_time() - began,
        "audits": streams.count(Stream.AUDIT) // 2,  # the draw and its decision
    }


def rounds(pile: Pile) -> dict:
    """Rounds of 100 images by training a classifier and ranking by it and by the neighbours."""
    reviewed, began = np.zeros(len(pile.s), np.int8), time.process_time()
    found_at: list[int] = []
    looks = 0
    while not ended(looks, len(found_at), pile.hidden):
        labels = PULabels(pile.s, reviewed.copy())
        model = PULinearClassifier(method="linear").fit(pile.cache.X, labels.s, reviewed=labels.reviewed)
        model.encoder_ = pile.cache.encoder
        rows = rank_unlabelled(pile.cache, labels, k=ROUND, scorer=Fused(model), twins=None).rows
        reviewed[rows] = np.where(pile.y[rows], 1, -1)
        found_at += (looks + 1 + np.flatnonzero(pile.y[rows])).tolist()
        looks += len(rows)
    return {
        "found_at": found_at,
        "looks": looks,
        "fits": looks // ROUND,
        "cpu_seconds": time.process_time() - began,
        "audits": 0,
    }


def asreview(pile: Pile, python: Path, *, seed: int) -> dict[str, dict]:
    """Reviews of ASReview's simulator: with the settings of its preset for embeddings, and with the best value of C."""
    script = Path(__file__).with_name("review_asreview.py").resolve()
    with tempfile.TemporaryDirectory() as name:
        task, out = Path(name) / "task.npz", Path(name) / "out.json"
        np.savez(task, X=np.asarray(pile.cache.X), s=pile.s, y=pile.y)
        runs = []
        for c in ("", *PEER_C):
            command = [python, script, task, out, "--looks", str(PEER_LOOKS), "--seed", str(seed)]
            # ASReview leaves a file where it runs
            subprocess.run([*command, *(["--c", str(c)] if c else [])], check=True, cwd=name)
            runs.append(json.loads(out.read_text()) | {"looks": PEER_LOOKS, "fits": PEER_LOOKS, "audits": 0})
    return {ASREVIEW: runs[0], ASREVIEW_TUNED: max(runs, key=lambda facts: len(facts["found_at"]))}


def measure(at: Location, python: Path | None, **cell) -> dict:
    """Reviews of a task by each arm."""
    with opened_pile(opened(at), **cell) as pile:
        arms = {DEFAULT: simulated_review(pile, seed=cell["seed"]), ROUNDS: rounds(pile)}
        arms |= asreview(pile, python, seed=cell["seed"]) if python else {}
        common = {"hidden": pile.hidden, "rows": len(pile.s)}
    return {"reviews": [{"arm": arm} | facts | common for arm, facts in arms.items()]}


if __name__ == "__main__":
    parser = add_jobs(images_parser(__doc__))
    parser.add_argument("--asreview-python", type=Path, help="a Python with ASReview (default: this one, if it has it)")
    options = parser.parse_args()
    at, python = Location.of(options), options.asreview_python
    if python is None and importlib.util.find_spec("asreview"):
        python = Path(sys.executable)
    tasks = [name for name in (CIFAR, FASHION) if name in opened(at).names]
    prepared(at, tasks)
    names = TASK_NAMES[:1] if options.quick else TASK_NAMES
    wanted = list(settings(tasks, shares=(SHARE,), seeds={LABELLED: 1}, names=names))
    cells = measured(at.work, f"{at.prefix}review", wanted, partial(measure, at, python), jobs=options.jobs)
    rows = [{name: cell[name] for name in CELL} | review for cell in cells for review in cell["reviews"]]
    write_page(review_page.report(rows), options.out)
