"""Result page of `review.py`: positives found per look, by arm, and what was asked for."""

import math
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.environment import environment

LOOKS, RECALLS = (100, 300, 500, 1000), (0.8, 0.95)
CELL = ("group", "task", "share", "labelled", "seed")
DEFAULT, ROUNDS, ASREVIEW, ASREVIEW_TUNED = "every 10", "rounds of 100", "ASReview", "ASReview, best C"
PEER_LOOKS, PEER_C = 300, (0.67,)  # looks of ASReview; values of C beside that of its preset
FEWER_LOOKS = 0.9  # asked for: looks until 80 % are found, of those of the rounds

TEXT = f"""`python -m benchmarks.quality.review DIR --fashion SOURCE`: one class against the others, all images, 20
labelled positives, one seed, the truth answering through the session, the queue and the ranker of `pucache review`. A
look is an image shown: images of the audit and positives shown again count. In brackets the number of reviews that have
the figure; ratios in the same cells, with standard errors. Reviews that differ by chance alone differ by some per cent.
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


# --- groups of reviews -------------------------------------------------------------------------------


def identity(row: dict) -> tuple:
    return tuple(row[name] for name in CELL)


def by_cell(rows: Iterable[dict], arm: str) -> dict[tuple, dict]:
    return {identity(row): row for row in rows if row["arm"] == arm}


def pairs(rows: list[dict], arm: str, other: str, figure: Figure) -> np.ndarray:
    """A figure of two arms in the cells where both have it, (m, 2)."""
    ours, theirs = by_cell(rows, arm), by_cell(rows, other)
    values = [(figure(ours[cell]), figure(theirs[cell])) for cell in ours if cell in theirs]
    return np.array([pair for pair in values if not np.isnan(pair).any()]).reshape(-1, 2)


def mean(rows: list[dict], figure: Figure) -> str:
    """Mean over the reviews that have the figure, and their number where it is not all of them."""
    values = np.array([figure(row) for row in rows])
    valid = values[~np.isnan(values)]
    if not len(valid):
        return "–"
    return f"{valid.mean():,.0f}" + f" ({len(valid)})" * (len(valid) < len(values))


def against(rows: list[dict], arm: str, other: str, figure: Figure) -> str:
    """Mean ratio of a figure to another arm's in the same cells, with its standard error and the number of cells."""
    both = pairs(rows, arm, other, figure)
    if not len(both) or arm == other:
        return ""
    ratios = both[:, 0] / np.maximum(both[:, 1], 1)
    error = f" ± {ratios.std(ddof=1) / math.sqrt(len(ratios)):.3f}" if len(ratios) > 1 else ""
    return f"{ratios.mean():.3f}{error} ({len(ratios)})"


# --- the page -----------------------------------------------------------------------------------------


def arms_table(rows: list[dict]) -> str:
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        lines.append(
            [
                f"**{arm}**" if arm == DEFAULT else arm,
                len(own),
                *(mean(own, figure) for figure in FIGURES.values()),
                against(rows, arm, ROUNDS, positives_after(500)),
                against(rows, arm, ROUNDS, looks_until(0.8)),
                f"{np.mean([row['fits'] / row['looks'] for row in own]) * 100:.0f}",
                f"{np.mean([row['cpu_seconds'] for row in own]):,.0f}",
            ]
        )
    ratios = ("found after 500, of rounds", "looks until 80%, of rounds")
    return table(["arm", "reviews", *FIGURES, *ratios, "fits per 100 looks", "CPU seconds"], lines)


def asked(rows: list[dict]) -> str:
    """What was asked of the default, and whether it is so, by group and share."""
    lines = []
    for group, share in sorted({(row["group"], row["share"]) for row in rows}):
        here = [row for row in rows if (row["group"], row["share"]) == (group, share)]
        for looks in LOOKS:
            both = pairs(here, DEFAULT, ROUNDS, positives_after(looks))
            goal = "at least as many as by rounds"
            lines += _line(group, share, f"found after {looks}", goal, both, lambda ours, theirs: ours >= theirs)
        goal = f"at most {FEWER_LOOKS:g} of the looks by rounds"
        for recall in RECALLS:
            both = pairs(here, DEFAULT, ROUNDS, looks_until(recall))
            figure = f"looks until {recall:.0%}"
            lines += _line(group, share, figure, goal, both, lambda ours, theirs: ours <= FEWER_LOOKS * theirs)
        for peer, looks in product((ASREVIEW, ASREVIEW_TUNED), (looks for looks in LOOKS if looks <= PEER_LOOKS)):
            both = pairs(here, DEFAULT, peer, positives_after(looks))
            goal = f"more than by {peer}"
            lines += _line(group, share, f"found after {looks}", goal, both, lambda ours, theirs: ours > theirs)
    return table(["tasks", "share", "figure", "asked", DEFAULT, "other", "in the mean", "in cells"], lines)


def _line(
    group: str, share: float, figure: str, goal: str, both: np.ndarray, holds: Callable[[float, float], bool]
) -> list[list]:
    if not len(both):
        return []
    ours, theirs = both.mean(0)
    cells = sum(holds(*pair) for pair in both)
    verdict = "yes" if holds(ours, theirs) else "**no**"
    return [[group, f"{share:.0%}", figure, goal, f"{ours:,.0f}", f"{theirs:,.0f}", verdict, f"{cells}/{len(both)}"]]


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
        for row in sorted(rows, key=lambda row: (*identity(row), row["arm"]))
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
        "## Asked for",
        asked(rows),
        "## Cells",
        cells_table(rows),
        f"{note}{environment()}",
    ]
    return "\n\n".join(parts) + "\n"
