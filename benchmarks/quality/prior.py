"""Interval of the prior: coverage and width over piles of CIFAR-10 embeddings with few labels.

    python -m benchmarks.quality.prior SOURCE [--method linear] [--out docs/results/prior.md]
    python -m benchmarks.quality.prior SOURCE --labelled 10 --sets 40 --minutes 10

SOURCE is a folder with train/<class>/*.png and test/<class>/*.png, or a cache of the training images with keys
<class>/*.png. A set has one class as positives, among 1,500 images (two in three), 6,000 (one in three) or 46,000
(one in fifty); their share is drawn between 1 and 25 % (8 % of 46,000), even on the scale of logarithms. pucache runs
at its defaults on each; on every tenth set also with the interval of 20 bootstrap draws. Every set is kept beside the
cache, so a run that is cut off goes on where it was.
"""

import argparse
import os
import time
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import logit

from benchmarks.common.cells import measured, table
from benchmarks.common.cifar import CLASSES, Cifar
from benchmarks.common.environment import environment
from benchmarks.common.tasks import CHOSEN_ON
from pucache import EmbeddingCache, PULinearClassifier
from pucache.pu.calibration import profile_prior
from pucache.pu.priors import METHODS, PriorEstimate, deviance_limit, estimate

LABELLED, SETS = (10, 20, 40, 100, 500), 200
ROWS, SHARES = (1500, 1500, 6000), (0.01, 0.25)
LARGE, LARGE_SHARE, LARGE_EVERY = 46_000, 0.08, 50
DRAWS, DRAWN_EVERY = 20, 10
DEPTH = 20.0  # deviance that profiles are followed to
WIDTHS = {20: 1.9, 40: 1.3, 100: 0.9}  # greatest median width asked for, by number of labels


@dataclass(frozen=True)
class Pile:
    """Rows of one set; the labelled ones come first, then the hidden positives."""

    name: str
    rows: np.ndarray
    labelled: int
    hidden: int

    @property
    def s(self) -> np.ndarray:
        return (np.arange(len(self.rows)) < self.labelled).astype(np.int8)

    @property
    def share(self) -> float:
        """Of positives among the unlabelled."""
        return self.hidden / (len(self.rows) - self.labelled)


def draw_pile(label: np.ndarray, labelled: int, number: int) -> Pile:
    """Draw a set, one and the same for one number."""
    draw = np.random.default_rng([labelled, number])
    large = number % LARGE_EVERY == LARGE_EVERY - 1
    unlabelled = LARGE if large else ROWS[number // len(CLASSES) % len(ROWS)]
    share = np.exp(draw.uniform(*np.log([SHARES[0], LARGE_SHARE if large else SHARES[1]])))
    name = CLASSES[number % len(CLASSES)]
    positive, rest = (draw.permutation(np.flatnonzero((label == name) == value)) for value in (True, False))
    hidden = min(max(1, round(share * unlabelled)), len(positive) - labelled)
    rows = np.concatenate([positive[: labelled + hidden], rest[: unlabelled - hidden]])
    return Pile(name=name, rows=rows, labelled=labelled, hidden=hidden)


@cache
def embeddings(source: Path, work: Path) -> tuple[np.ndarray, np.ndarray]:
    """X and classes of the training images."""
    if source.is_dir():
        data = Cifar(source, work)
        return data.X, data.label
    rows = EmbeddingCache(source)
    return np.array(rows.X), np.array([key.split("/")[-2] for key in rows.keys])


def measure(source: Path, work: Path, method: str | None, labelled: int, number: int) -> dict:
    """Interval of one set, beside the truth, and what other methods estimate."""
    X, label = embeddings(source, work)
    pile = draw_pile(label, labelled, number)
    parameters = {"seed": number} | ({} if method is None else {"method": method})
    began = time.process_time()
    model = PULinearClassifier(**parameters).fit(X[pile.rows], pile.s)
    seconds = time.process_time() - began
    found = {"class": pile.name, "rows": len(pile.rows) - labelled, "share": pile.share, "seconds": seconds}
    margins, interval = model.held_out_margins_, model.prior_estimate_
    profile = profile_prior(margins, pile.s, depth=DEPTH)
    deviance = np.interp(logit(pile.share), logit(profile.priors), profile.deviance, left=DEPTH, right=DEPTH)
    found |= {"deviance": float(deviance), "profile": stated(interval, pile.share)}
    found["estimates"] = {name: estimate(margins, pile.s, name) for name in METHODS}
    if number % DRAWN_EVERY == 0:
        drawn = PULinearClassifier(draws=DRAWS, **parameters).fit(X[pile.rows], pile.s)
        found["bootstrap"] = stated(drawn.prior_estimate_, pile.share)
    return found


def stated(interval: PriorEstimate, share: float) -> dict:
    return {
        "covered": bool(interval.low <= share <= interval.high),
        "width": (interval.high - interval.low) / share,
        "one_sided": interval.one_sided,
    }


# --- the page ------------------------------------------------------------------------------------------


def share_of(values) -> str:
    """A share of sets with its standard error."""
    values = np.asarray(values, float)
    if not len(values):
        return ""
    return f"{values.mean():.1%} ± {100 * np.sqrt(values.mean() * (1 - values.mean()) / len(values)):.1f}"


def widths(cells: list[dict], kind: str) -> str:
    """Median and 90th percentile of the width, relative to the truth."""
    values = [cell[kind]["width"] for cell in cells]
    return f"{np.median(values):.2f} ({np.quantile(values, 0.9):.1f})" if values else ""


def row(cells: list[dict]) -> list:
    others = [cell for cell in cells if cell["class"] not in CHOSEN_ON]
    labelled = cells[0]["labelled"]
    return [
        labelled,
        len(cells),
        f"**{share_of([cell['profile']['covered'] for cell in cells])}**",
        share_of([cell["profile"]["covered"] for cell in others]),
        f"**{widths(cells, 'profile')}**",
        WIDTHS.get(labelled, ""),
        f"{np.mean([cell['profile']['one_sided'] for cell in cells]):.0%}",
        f"{deviance_limit(labelled):.1f} ({np.quantile([cell['deviance'] for cell in cells], 0.9):.1f})",
    ]


def bootstrap_row(cells: list[dict]) -> list:
    drawn = [cell for cell in cells if "bootstrap" in cell]
    covered = [share_of([cell[kind]["covered"] for cell in drawn]) for kind in ("profile", "bootstrap")]
    return [cells[0]["labelled"], len(drawn), *covered, widths(drawn, "profile"), widths(drawn, "bootstrap")]


def error_row(cells: list[dict]) -> list:
    errors = [[abs(cell["estimates"][name] / cell["share"] - 1) for cell in cells] for name in METHODS]
    return [cells[0]["labelled"], *(f"{np.median(values):.0%}" for values in errors)]


def page(rows: list[dict], wanted: int, method: str | None) -> str:
    groups = [[cell for cell in rows if cell["labelled"] == labelled] for labelled in LABELLED]
    groups = [cells for cells in groups if cells]
    cut = f" Cut off: {len(rows)} of {wanted} sets." if len(rows) < wanted else ""
    median = f"{np.median([cell['seconds'] for cell in rows]):.1f} s"
    return "\n".join(
        [
            "# Interval of the prior",
            "",
            f"`python -m benchmarks.quality.prior SOURCE`: 90 % intervals on piles of CIFAR-10 embeddings, method "
            f"{method or 'by default'}. Piles of 1,500, 6,000 and a few of 46,000 unlabelled images, each with one "
            f"class as positives, 1 to 25 % of them. Median CPU time of a whole fit {median}.{cut}",
            "",
            "## Profile likelihood",
            "",
            "Width: of the interval relative to the true share, median (90th percentile). One-sided: intervals that "
            'say "at most". Deviance: at the ends of the interval, and in brackets what would hold the truth in nine '
            "of ten sets without any model error. Other classes: without those that constants of pucache were chosen "
            f"on, {', '.join(CHOSEN_ON)}.",
            "",
            table(
                ["labels", "sets", "coverage", "other classes", "width", "asked", "one-sided", "deviance"],
                [row(cells) for cells in groups],
            ),
            "",
            "## Bootstrap",
            "",
            f"The interval of {DRAWS} bootstrap draws, on every tenth set.",
            "",
            table(
                ["labels", "sets", "coverage, profile", "coverage, bootstrap", "width, profile", "width, bootstrap"],
                [bootstrap_row(cells) for cells in groups],
            ),
            "",
            "## Estimates",
            "",
            "Median relative error.",
            "",
            table(["labels", *METHODS], [error_row(cells) for cells in groups]),
            "",
            environment(),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--work", type=Path, help="where caches and sets are kept (default: beside SOURCE)")
    parser.add_argument("--out", type=Path, help="write the page here too")
    parser.add_argument("--method", choices=("linear", "distilled"), help="of PULinearClassifier (default: its own)")
    parser.add_argument("--labelled", nargs="+", type=int, choices=LABELLED, default=LABELLED, metavar="N")
    parser.add_argument("--sets", type=int, default=SETS, help="of each number of labels (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further set after so long")
    given = parser.parse_args()
    if given.sets < 1 or given.jobs < 1:
        parser.error(f"--sets and --jobs must be at least 1, got {given.sets} and {given.jobs}")
    source = given.source.resolve()
    work = given.work or (source if source.is_dir() else source.parent) / "pucache-bench"
    work.mkdir(parents=True, exist_ok=True)
    embeddings(source, work)  # embeds what is not embedded yet, before other processes read it
    wanted = [{"labelled": n, "number": number} for number, n in product(range(given.sets), given.labelled)]
    name = "-".join(filter(None, ["prior", given.method]))
    rows = measured(
        work, name, wanted, partial(measure, source, work, given.method), minutes=given.minutes, jobs=given.jobs
    )
    text = page(rows, len(wanted), given.method)
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
