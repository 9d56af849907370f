"""Interval of the prior: coverage and width over piles with few labels.

    python -m benchmarks.quality.prior CIFAR [--fashion FASHION] [--out docs/results/prior.md]
    python -m benchmarks.quality.prior CIFAR --fashion FASHION --piles 40 --fresh

CIFAR and FASHION are sources as `benchmarks.quality.suite` takes them. A pile has one class, attribute, topic or kind
as positives, among 1,000, 1,500 or 3,000 unlabelled rows; the share of positives is drawn between 1 and 25 %, even on
the scale of logarithms. Margins are kept beside the caches and used again by later runs, of other commits too: only
the intervals are made anew, unless --fresh asks for margins of this commit.
"""

import os
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.tasks import CIFAR, CROSSING, FASHION
from benchmarks.quality.prior_piles import GROUPS, Margins, held_out, task_groups
from pucache.estimates.calibration import LEAST, MOST
from pucache.estimates.priors import ERROR_BELOW, METHODS, estimate, profile_interval

LABELLED, PILES = (10, 20, 40, 100, 500), 200
MARGINS = {"default": "train-pu", "linear": "linear head"}  # names of these margins in the tables
CHOSEN_ON = 25  # constants of the interval were chosen with the first piles of each number of labels in sight
COLUMNS = ["labels", "piles", "coverage", "above, below", "later piles", "width", "asked", "one-sided"]
LEGEND = f"""\
- **Above, below**: the whole interval lies above or below the truth.
- **Later piles**: the degrees of freedom of the limit and the error of the model below the estimate ({ERROR_BELOW})
  were chosen with the first {CHOSEN_ON} piles of each number of labels in sight; the later ones confirm the choice.
- **Width**: relative to the true share, median (90th percentile).
- **One-sided**: intervals that say "at most" or "at least"."""
WIDTHS = {20: 1.9, 40: 1.3, 100: 0.9}  # greatest median width asked for, by number of labels


def measure(source: Path, work: Path, fashion: Path | None, labelled: int, number: int, *, fresh: bool = False) -> dict:
    """Intervals of one pile beside the truth, and what all methods estimate."""
    pile = held_out(source, work, fashion, labelled, number, fresh=fresh)
    row = {name: getattr(pile, name) for name in ("group", "task", "share", "commit", "seconds")}
    row |= {name: stated(pile, name) for name in MARGINS}
    row["estimates"] = {name: estimate(pile.margins["linear"], pile.s, name) for name in METHODS}
    return row


def stated(pile: Margins, name: str) -> dict:
    interval, truth = profile_interval(pile.margins[name], pile.s), pile.share
    return {
        "above": interval.low > truth,
        "below": interval.high < truth,
        "width": (interval.high - interval.low) / truth,
        "one_sided": (interval.low <= LEAST) != (interval.high >= MOST),
    }


# --- the page ------------------------------------------------------------------------------------------


def share_of(values) -> str:
    """A share of piles with its standard error."""
    values = np.asarray(values, float)
    if not len(values):
        return ""
    return f"{values.mean():.1%} ± {100 * np.sqrt(values.mean() * (1 - values.mean()) / len(values)):.1f}"


def coverage(cells: list[dict], name: str) -> str:
    return share_of([not (cell[name]["above"] or cell[name]["below"]) for cell in cells])


def widths(cells: list[dict], name: str) -> str:
    """Median and 90th percentile of the width, relative to the truth."""
    values = [cell[name]["width"] for cell in cells]
    return f"{np.median(values):.2f} ({np.quantile(values, 0.9):.1f})"


def interval_row(cells: list[dict], name: str) -> list:
    labelled, later = cells[0]["labelled"], [cell for cell in cells if cell["number"] >= CHOSEN_ON]
    above, below, one_sided = (np.mean([cell[name][key] for cell in cells]) for key in ("above", "below", "one_sided"))
    return [
        labelled,
        len(cells),
        f"**{coverage(cells, name)}**",
        f"{above:.0%}, {below:.0%}",
        coverage(later, name),
        f"**{widths(cells, name)}**",
        WIDTHS.get(labelled, ""),
        f"{one_sided:.0%}",
    ]


def both_row(cells: list[dict], *first) -> list:
    """Coverage and width of the intervals of both commands."""
    return [*first, len(cells), *(f(cells, name) for name in MARGINS for f in (coverage, widths))]


def error_row(cells: list[dict]) -> list:
    errors = [[abs(cell["estimates"][name] / cell["share"] - 1) for cell in cells] for name in METHODS]
    return [cells[0]["labelled"], *(f"{np.median(values):.0%}" for values in errors)]


def grouped(rows: list[dict], name: str, values) -> list[list[dict]]:
    groups = [[row for row in rows if row[name] == value] for value in values]
    return [group for group in groups if group]


def page(rows: list[dict], wanted: int) -> str:
    clusters = [row for row in rows if row["group"] not in CROSSING]
    by_labels = grouped(clusters, "labelled", LABELLED)
    sections = ["# Interval of the prior", introduction(rows, wanted), LEGEND]
    for name, command in MARGINS.items():
        sections += [f"## `{command}`: classes and topics", table(COLUMNS, [interval_row(c, name) for c in by_labels])]
    both = ["piles", *(f"{what}, `{command}`" for command in MARGINS.values() for what in ("coverage", "width"))]
    crossing = grouped([row for row in rows if row["group"] in CROSSING], "labelled", LABELLED)
    by_group = grouped(rows, "group", dict.fromkeys(GROUPS))
    sections += [
        "## Attributes and kinds",
        "These cut across classes and topics. Where negatives look like positives the prior is not identifiable, and "
        "the estimate is too high.",
        table(["labels", *both], [both_row(cells, cells[0]["labelled"]) for cells in crossing]),
        "## By group of tasks",
        "All numbers of labels together.",
        table(["group", *both], [both_row(cells, cells[0]["group"]) for cells in by_group]),
        "## Estimates",
        "Median relative error by the `linear head`, classes and topics.",
        table(["labels", *METHODS], [error_row(cells) for cells in by_labels]),
        environment(),
    ]
    return "\n\n".join(sections) + "\n"


def introduction(rows: list[dict], wanted: int) -> str:
    cut = f" Cut off: {len(rows)} of {wanted} piles." if len(rows) < wanted else ""
    commits = sorted({row["commit"].removesuffix("-dirty") for row in rows})
    trained = f"commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits, each file says which"
    return (
        f"`python -m benchmarks.quality.prior CIFAR --fashion FASHION`: 90 % intervals on {len(rows)} piles of 1,000, "
        "1,500 and 3,000 unlabelled rows, 1 to 25 % of them positive. Positives are one class, attribute, topic or "
        "kind of those of the [suite](suite.md); half of the piles are of CIFAR-10, a fifth of Fashion-MNIST. "
        f"Embeddings of images are reduced to 256 dimensions. Margins of {trained}; median CPU time of a fit "
        f"{np.median([row['seconds'] for row in rows]):.1f} s.{cut}"
    )


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("source", type=Path, metavar="CIFAR")
    parser.add_argument("--fashion", type=Path, help="Fashion-MNIST; without it, piles of CIFAR-10 take its place")
    parser.add_argument("--work", type=Path, help="where caches, margins and rows are kept (default: beside CIFAR)")
    parser.add_argument("--labelled", nargs="+", type=int, choices=LABELLED, default=LABELLED, metavar="N")
    parser.add_argument("--piles", type=int, default=PILES, help="of each number of labels (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="no margins of other commits")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further pile after so long")
    arguments = parser.parse_args()
    if arguments.piles < 1 or arguments.jobs < 1:
        parser.error(f"--piles and --jobs must be at least 1, got {arguments.piles} and {arguments.jobs}")
    source = arguments.source.resolve()
    work = arguments.work or (source if source.is_dir() else source.parent) / "pucache-bench"
    work.mkdir(parents=True, exist_ok=True)
    wanted = [{"labelled": n, "number": number} for number, n in product(range(arguments.piles), arguments.labelled)]
    for group in (CIFAR, *([FASHION] if arguments.fashion else [])):
        task_groups(source, work, arguments.fashion).data(group)  # embeds, before other processes read it
    rows = measured(
        work,
        "prior-fresh" if arguments.fresh else "prior",
        wanted,
        partial(measure, source, work, arguments.fashion, fresh=arguments.fresh),
        minutes=arguments.minutes,
        jobs=arguments.jobs,
    )
    text = page(rows, len(wanted))
    write_page(text, arguments.out)


if __name__ == "__main__":
    main()
