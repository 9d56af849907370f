"""Simulated rounds of review: number of positives found by each ranking, with answers from the true labels.

    python -m benchmarks.quality.rounds DIR [--out docs/results/rounds.md]

DIR holds train/<class>/*.png of CIFAR-10. A task has 20 labelled positives of a class, and a share of positives
among the unlabelled of 1 % or 5 %. In every round the 100 highest-ranked images are reviewed; confirmed positives and
known negatives go into the next one. Ranked by pucache's default (classifier and neighbours fused), by the classifier
alone, by the default without the known negatives, by similarity to all known positives, and at random. Every loop
is appended to DIR/pucache-bench/rounds.jsonl.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.cells import append, kept, table
from benchmarks.common.cifar import Cifar
from benchmarks.common.environment import environment
from benchmarks.quality.retrieval import write_rows
from pucache import EmbeddingCache, PULinearClassifier
from pucache.pu.labels import Labels
from pucache.retrieval.model_scorers import Fused, Margins
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

TASKS, SHARES, LABELLED = ("airplane", "cat", "frog", "truck"), (0.01, 0.05), 20
ROUNDS, SHOWN, RANDOM_ROUNDS = 5, 100, 30
IDENTITY = ("class", "share", "seed", "loop")
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "rounds.png"


def by_model(ranks_by, negatives: bool = True):
    def ranker(cache: EmbeddingCache, labels: Labels):
        reviewed = labels.reviewed if negatives else np.maximum(labels.reviewed, 0)
        model = PULinearClassifier(method="linear").fit(cache.X, labels.s, reviewed=reviewed)
        model.encoder_ = cache.encoder
        return ranks_by(model)

    return ranker


LOOPS = {
    "fused (default)": by_model(Fused),
    "classifier": by_model(Margins),
    "fused, negatives not used": by_model(Fused, negatives=False),
    "similarity": lambda cache, labels: Similarity(),
}


def found_by_round(cache: EmbeddingCache, s: np.ndarray, y: np.ndarray, ranker) -> list[int]:
    reviewed, found = np.zeros(len(s), np.int8), []
    for _ in range(ROUNDS):
        labels = Labels(s, reviewed.copy())
        ranking = rank_unlabelled(cache, labels, k=SHOWN, scorer=ranker(cache, labels), twins=None)
        reviewed[ranking.rows] = np.where(y[ranking.rows], 1, -1)
        found.append(int((reviewed == 1).sum()))
    return found


def run(folder: Path, work: Path, minutes: float, seeds: int) -> list[dict]:
    data, path, began = Cifar(folder, work), work / "rounds.jsonl", time.monotonic()
    like = EmbeddingCache(work / "suite-train.h5")
    for seed, name, share, loop in product(range(seeds), TASKS, SHARES, LOOPS):
        task = dict(zip(IDENTITY, (name, share, seed, loop), strict=True))
        if tuple(task.values()) not in kept(path, IDENTITY) and time.monotonic() - began < 60 * minutes:
            of = data.one_vs_rest(name, share, LABELLED, seed)
            cache = write_rows(work / "rounds.h5", like, of.X)
            found = found_by_round(cache, of.s, of.y, LOOPS[loop])
            hidden, n = int(of.hidden.sum()), len(of.hidden)
            append(path, task | {"found": found, "hidden": hidden, "random": hidden / n * SHOWN})
    return list(kept(path, IDENTITY).values())


def draw(rows: list[dict], path: Path) -> None:
    sheet = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, share in zip(sheet.subplots(1, 2), SHARES, strict=True):
        for loop in LOOPS:
            cells = [row["found"] for row in rows if row["share"] == share and row["loop"] == loop]
            axes.errorbar(
                range(ROUNDS + 1),
                [0, *np.mean(cells, 0)],
                [0, *np.std(cells, 0)],
                fmt="o-",
                ms=4,
                capsize=3,
                label=loop,
            )
        cells = [row for row in rows if row["share"] == share]
        rate, hidden = (np.mean([row[name] for row in cells]) for name in ("random", "hidden"))
        axes.plot(range(ROUNDS + 1), rate * np.arange(ROUNDS + 1), color="grey", label="at random")
        axes.axhline(RANDOM_ROUNDS * rate, color="grey", ls=":", label=f"at random, {RANDOM_ROUNDS} rounds")
        title = f"{share:.0%} of the unlabelled are positive ({hidden:,.0f})"
        axes.set(title=title, xlabel=f"rounds of {SHOWN} images", ylabel="positives found", ylim=(0, None))
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    sheet.savefig(path, dpi=130)


def report(rows: list[dict]) -> str:
    lines, classes = [], list(dict.fromkeys(row["class"] for row in rows))
    for share, loop in product(SHARES, LOOPS):
        cells = [row for row in rows if row["share"] == share and row["loop"] == loop]
        each = [f"{np.mean([row['found'][at] for row in cells]):.0f}" for at in range(ROUNDS)]
        random = np.mean([RANDOM_ROUNDS * row["random"] for row in cells])
        least = min(row["found"][2] / (RANDOM_ROUNDS * row["random"]) for row in cells)
        lines.append([f"{share:.0%}", loop, len(cells), *each, f"{random:.0f}", f"{least:.2f}"])
    head = ["share", "ranked by", "tasks", *(f"round {at}" for at in range(1, ROUNDS + 1))]
    return "\n".join(
        [
            "# Rounds of review",
            "",
            f"`python -m benchmarks.quality.rounds DIR`: CIFAR-10, one class ({', '.join(classes)}) against nine, "
            f"{LABELLED} labelled positives, {SHOWN} images reviewed a round, the truth answering. "
            "Positives found after each "
            f"round, mean over classes and seeds; beside them what {RANDOM_ROUNDS} rounds of random images are "
            "expected to find, and the least ratio of three rounds to those over the tasks.",
            "",
            table([*head, f"{RANDOM_ROUNDS} random rounds", "least ratio"], lines),
            "",
            f"![Positives found by round](../images/{PICTURE.name})",
            "",
            environment(),
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, help="where caches and loops are kept (default: DIR/pucache-bench)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further loop after so long")
    parser.add_argument("--out", type=Path, help="write the report here too")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    rows = run(arguments.folder.resolve(), work, arguments.minutes, arguments.seeds)
    text = report(rows)
    draw(rows, PICTURE)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)
