"""Result page of `review.py`: positives found per look, by arm."""

import math
from collections.abc import Callable

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.environment import environment
from benchmarks.common.tasks import CELL

LOOKS, RECALLS = (100, 300, 500, 1000), (0.8, 0.95)

DEFAULT, ROUNDS, ASREVIEW, ASREVIEW_TUNED = "every 10", "rounds of 100", "ASReview", "ASReview, best C"
PEER_LOOKS, PEER_C = 300, (0.67,)  # looks of ASReview; values of C beside that of its preset

TEXT = f"""`python -m benchmarks.quality.review DIR --fashion SOURCE`: one class against the others, all images, 20
labelled positives, one seed, the truth answering through the session, the queue and the ranker of `pucache review`. A
look is an image shown: images of the audit and positives shown again count. In brackets the number of reviews that have
the figure. Reviews that differ by chance alone differ by some per cent.
A review ends after {LOOKS[-1]:,} looks.

- **{DEFAULT}** stands for `pucache review`, which trains whenever labels are new while its page holds about ten images
  ahead; audits and positives shown again in up to 5 % and 2 % of the slots, fewer while the ranking yields
- **{ROUNDS}**: training, ranking by classifier and neighbours, review, and again
- **{ASREVIEW}**: its simulator, a fit after every decision, {PEER_LOOKS} decisions, as each takes some tenths of a
  second; C of its preset for embeddings; or that or C = {", ".join(map(str, PEER_C))}, whichever finds more"""

Figure = Callable[[dict], float]


# --- figures of a review -----------------------------------------------------------------------------


def positives_after(looks: int) -> Figure:
    """Positives found after so many looks; NaN where the review was shorter, and not because all were found."""

    def of(row: dict) -> float:
        if row["looks"] < looks and len(row["found_at"]) < row["hidden"]:
            return math.nan
        return float(np.searchsorted(row["found_at"], looks, "right"))

    return of


def looks_until(recall: float) -> Figure:
    """Looks until a share of the hidden positives is found; NaN where it was not."""

    def of(row: dict) -> float:
        needed = math.ceil(recall * row["hidden"])
        return row["found_at"][needed - 1] if len(row["found_at"]) >= needed else math.nan

    return of


FIGURES: dict[str, Figure] = {
    **{f"found after {looks}": positives_after(looks) for looks in LOOKS},
    **{f"looks until {recall:.0%}": looks_until(recall) for recall in RECALLS},
}


# --- the page -----------------------------------------------------------------------------------------


def mean(rows: list[dict], figure: Figure) -> str:
    """Mean over the reviews that have the figure, and their number where it is not all of them."""
    values = np.array([figure(row) for row in rows])
    valid = values[~np.isnan(values)]
    if not len(valid):
        return "–"
    return f"{valid.mean():,.0f}" + f" ({len(valid)})" * (len(valid) < len(values))


def arms_table(rows: list[dict]) -> str:
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        name, figures = f"**{arm}**" if arm == DEFAULT else arm, [mean(own, figure) for figure in FIGURES.values()]
        fits = 100 * np.mean([row["fits"] / row["looks"] for row in own])
        seconds = np.mean([row["cpu_seconds"] for row in own])
        lines.append([name, len(own), *figures, f"{fits:.0f}", f"{seconds:,.0f}"])
    return table(["arm", "reviews", *FIGURES, "fits per 100 looks", "CPU seconds"], lines)


def cells_table(rows: list[dict]) -> str:
    lines = [
        [
            row["group"],
            row["task"],
            f"{row['share']:.0%}",
            row["seed"],
            row["arm"],
            row["hidden"],
            *(mean([row], figure) for figure in FIGURES.values()),
            row["audits"],
        ]
        for row in sorted(rows, key=lambda row: (*(row[name] for name in CELL), row["arm"]))
    ]
    return table(["tasks", "task", "share", "seed", "arm", "hidden", *FIGURES, "audits"], lines)


def report(rows: list[dict]) -> str:
    """The page as markdown."""
    parts = ["# Simulated reviews", TEXT]
    for group, share in sorted({(row["group"], row["share"]) for row in rows}):
        here = [row for row in rows if (row["group"], row["share"]) == (group, share)]
        hidden, size = (np.mean([row[name] for row in here]) for name in ("hidden", "rows"))
        parts += [f"## {group}, {share:.0%} positive: {hidden:,.0f} of {size:,.0f} rows", arms_table(here)]
    versions = sorted({row["asreview"] for row in rows if "asreview" in row})
    note = f"ASReview {', '.join(versions)}. " if versions else ""
    parts += [
        "## Cells",
        cells_table(rows),
        f"{note}{environment()}",
    ]
    return "\n\n".join(parts) + "\n"
