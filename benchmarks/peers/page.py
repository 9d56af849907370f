"""Result page of benchmarks/peers/compare.py."""

from importlib.metadata import version

from benchmarks.common.cells import TUNED, table
from benchmarks.common.environment import environment
from benchmarks.peers.bare import PLAIN
from benchmarks.peers.extent import AUTHORS, BUSY, CEILING, FOOTWEAR, LABELLED, LIMIT, SEED, SHARE, Sources
from benchmarks.peers.learners import DEFAULT, LEARNERS, LEFT_OUT, ONE_FIT, OURS, PACKAGES, PENALTY
from benchmarks.peers.verdicts import FIGURES, QUALITY, Side, shown, verdict


def sides_of(cells: dict[str, dict]) -> dict[str, Side]:
    """Of the learners, what they did on the tasks where they did not fail."""
    done = {name: {task: of for task, of in tasks.items() if "failed" not in of} for name, tasks in cells.items()}
    return {name: Side(tasks) for name, tasks in done.items() if tasks}


def learner_rows(cells: dict[str, dict]) -> list[list]:
    """pucache's own first, then the ceiling, then peers by how far their AP is from pucache's on the same tasks."""
    sides = sides_of(cells)
    gap = {name: side["ap"] - sides[DEFAULT].on(side.cells)["ap"] for name, side in sides.items()}
    peers = sorted((name for name in sides if name not in (*OURS, CEILING)), key=lambda name: -gap[name])
    return [learner_row(name, sides) for name in (*OURS, CEILING, *peers) if name in sides]


def learner_row(name: str, sides: dict[str, Side]) -> list:
    side, own = sides[name], sides[DEFAULT].on(sides[name].cells)
    alone = name == DEFAULT
    figures = [pair(figure, side, own) for figure in (QUALITY if name == CEILING else FIGURES)]
    figures = (
        [figure.split(" / ")[0] for figure in figures] if alone else figures + [""] * (len(FIGURES) - len(figures))
    )
    return [f"**{name}**" if alone else name, ", ".join(side.cells), *figures, remark(name, sides)]


def pair(figure: str, side: Side, own: Side) -> str:
    return f"{shown(figure, side[figure])} / {shown(figure, own[figure])}"


def remark(name: str, sides: dict[str, Side]) -> str:
    if name in OURS:
        of = LEARNERS[name]
        return of.work + (f"; given {of.oracle}" if of.oracle else "")
    if name == CEILING:
        return "trained on all true labels; F1 at the threshold and penalty that are best on the test set"
    return verdict(name, LEARNERS[name], sides)


def failures(cells: dict[str, dict]) -> list[str]:
    return [
        f"- {name}, {task}: {of['failed']}"
        for name, tasks in cells.items()
        for task, of in tasks.items()
        if "failed" in of
    ]


def ranking_rows(rows: list[dict]) -> list[list]:
    columns = [name for name in rows[0] if name not in ("way", "seconds")]
    return [[row["way"], *(f"{row[name]:.3f}" for name in columns), shown("seconds", row["seconds"])] for row in rows]


def embedding_rows(rows: dict[str, dict]) -> list[list]:
    plain = rows[PLAIN]["rate"]
    return [
        [name, f"{row['rate']:.0f}", f"{row['rate'] / plain:.2f}", f"{row['cosine']:.4f}", f"{row['least']:.4f}"]
        for name, row in rows.items()
    ]


def loaded_rows(cells: dict[str, dict], under_load: dict[str, dict]) -> list[list]:
    """Seconds of a learner on the authors' task, alone and beside busy processes, and their ratio."""
    lines = []
    for name, tasks in under_load.items():
        alone, loaded = (figures.get(AUTHORS, {}).get("seconds") for figures in (cells.get(name, {}), tasks))
        if alone and loaded:
            lines.append([name, shown("seconds", alone), shown("seconds", loaded), f"{loaded / alone:.2f}"])
    return lines


def versions() -> str:
    """Of the peers, as they are installed."""
    installed = [f"{name.split('==')[0]} {version(name.split('==')[0])}" for name in PACKAGES.values()]
    return ", ".join([*installed, f"scikit-learn {version('scikit-learn')}"])


def page(
    sources: Sources,
    cells: dict[str, dict],
    under_load: dict[str, dict],
    ranking: list[dict],
    embedded: dict[str, dict],
    *,
    options: str,
) -> str:
    data = sources.cifar
    authors, failed = data.authors(), failures(cells)
    not_run = [name for name in LEARNERS if name not in cells]
    columns = [name for name in ranking[0] if name not in ("way", "seconds")]
    images = next(iter(embedded.values()))["images"]
    return "\n".join(
        [
            "# Peers",
            "",
            f"`python -m benchmarks.peers.compare DIR{options}`: CIFAR-10, embeddings of "
            f"{data.encoder}, {len(data.X):,} training and {len(data.X_test):,} test images. Each row compares a tool "
            "with pucache on the same embeddings, rows, labels and test images, both at their own defaults; nothing is "
            "tuned with the true labels of these tasks, except where a row says so (C=0.001 was chosen with the true "
            "labels of one task). " + TUNED,
            "",
            "## Learners",
            "",
            f"Tasks: {AUTHORS} is the authors' ({authors.s.sum()} labelled, {(authors.s == 0).sum():,} unlabelled, of "
            f"them {authors.prior:.1%} positive)"
            + others(sources, cells)
            + ". A row has means over its tasks of AP (average precision) among the unlabelled, and of F1 and AUC on "
            "the test images, F1 at the tool's own threshold; the median of the seconds from the float16 rows of a "
            "cache to a fitted model, one fit a task; and the greatest MB. Every cell is peer / pucache (its "
            "defaults, given no prior and no share) on the tasks of the row: rows differ in tasks, so compare within "
            "a row. Each learner runs in a process of its own, warmed up on made-up rows. MB is the peak resident "
            "memory of the fit (VmHWM, set back through /proc/self/clear_refs) above what the process held once the "
            "rows were loaded; copies in float32 that a tool needs count.",
            "",
            'The last column says "first" where pucache\'s defaults are at least as good in every column of the row '
            "(in quality: less than 0.0005 behind). Otherwise it names each column in which the peer is ahead, by "
            f"how much, and for seconds what the peer computes in that time. {DEFAULT}: {OURS[DEFAULT].work}. "
            f"{ONE_FIT}: penalty {PENALTY:g}, the middle of its grid.",
            "",
            table(["learner", "tasks", *FIGURES.values(), "pucache"], learner_rows(cells)),
            "",
            *(["Failed:", "", *failed, ""] if failed else []),
            *([f"Not run: {', '.join(not_run)}.", ""] if not_run else []),
            *beside(cells, under_load),
            f"Peers are {versions()}. A process that takes longer than {LIMIT} s is ended. Left out:",
            "",
            *(f"- {name}: {why}" for name, why in LEFT_OUT.items()),
            "",
            "## Ranking",
            "",
            f"The {AUTHORS} task: {int(authors.hidden.sum()):,} hidden positives. Seconds of one run that ranks all "
            "unlabelled rows, from the float16 cache, after a warm-up, in one process; the last row trains its model.",
            "",
            table(["", *columns, "seconds"], ranking_rows(ranking)),
            "",
            ranking_remark(ranking),
            "",
            "## Embedding",
            "",
            f"{images:,} PNG files, in turn, each in a process of its own, n = 1; start of the encoder and the first "
            "batch not timed. Cosine of every image's features to those of the plain loop: mean, least.",
            "",
            table(["", "images/s", "x plain", "cosine", "least"], embedding_rows(embedded)),
            "",
            environment(),
            "",
        ]
    )


def others(sources: Sources, cells: dict[str, dict]) -> str:
    """What the tasks beside the authors' are."""
    names, text = list(cells[DEFAULT]), ""
    if FOOTWEAR in names and (task := sources.footwear) is not None:
        text += (
            f"; {FOOTWEAR} is Fashion-MNIST, sandals, sneakers and boots hidden among the other clothes "
            f"({task.s.sum()} labelled, {(task.s == 0).sum():,} unlabelled, of them {task.prior:.1%} positive)"
        )
    if classes := [name for name in names if name not in (AUTHORS, FOOTWEAR)]:
        text += (
            f"; {', '.join(classes)}: this class against all others ({LABELLED} labelled, {SHARE:.0%} of the "
            f"unlabelled positive, seed {SEED})"
        )
    return text + ". Slow learners are run on fewer tasks" * (len(names) > 1)


def beside(cells: dict[str, dict], under_load: dict[str, dict]) -> list[str]:
    """The section of seconds under load; nothing where there is none."""
    if not under_load:
        return []
    rows = loaded_rows(cells, under_load)
    return [
        f"Seconds of a fit of the {AUTHORS} task, alone and beside {BUSY} busy processes, n = 1:",
        "",
        table(["learner", "alone", "beside them", "ratio"], rows),
        "",
    ]


def ranking_remark(rows: list[dict]) -> str:
    """Which is first in AP and in seconds, and what the quickest of them does without."""
    best, quickest = max(rows, key=lambda row: row["AP"]), min(rows, key=lambda row: row["seconds"])
    text = f"First in AP: {best['way']} ({best['AP']:.3f}). Quickest: {quickest['way']} ({quickest['seconds']:.2g} s)"
    if quickest is best:
        return text + "."
    return text + f", with an AP lower by {best['AP'] - quickest['AP']:.3f}."
