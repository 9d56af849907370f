"""Interval of the hidden positives: coverage at every moment, and width, over simulated reviews.

    python -m benchmarks.quality.audit [--reviews 2000] [--out docs/results/audit.md]
    python -m benchmarks.quality.audit --quick

A review has 30 rounds of 19 ranked images and one random one, and 300 random images at last; or 330 random images and
nothing else. After every random image the interval is checked against the truth. `audit` itself takes the log of
every fifth review, whose widths are compared. One core, less than ten minutes.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.quality.audit_reviews import (
    CASES,
    CLOSING,
    ROUNDS,
    SHOWN,
    SKIPPED,
    TAKEN_BACK,
    WRONG,
    SimulatedReview,
    simulate,
)
from pucache.reviewing.audit import audit_entries
from pucache.reviewing.hidden_interval import DrawHistory, likeliest_total

REVIEWS, QUICK = 2000, 40
PILES, SHARES = (3000, 50_000), (0.001, 0.01, 0.1)
AUDIT_EVERY = 5  # reviews of which one is given to audit() at the end
LENGTHS, LENGTH_REVIEWS = (30, 100, 300, 1000, 3000), 50
LEVEL = 0.95


@dataclass(frozen=True)
class Ending:
    """What is known at the end of a review: limits of K by three methods."""

    found: int
    limits: tuple[int, int]
    exact: tuple[int, int]
    bets: tuple[int, int]


@dataclass(frozen=True)
class Outcome:
    """One review: limits that ever excluded K, and the end of every fifth one."""

    positives: int
    excluded: frozenset[str]
    misled: bool
    ending: Ending | None


class Hypergeometric:
    """Exact two-sided interval of Clopper and Pearson for one look that was planned."""

    def __init__(self, most: int):
        self._log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])

    def _log_choose(self, n: int, k: np.ndarray) -> np.ndarray:
        table = self._log_factorials
        return table[n] - table[k] - table[n - k]

    def probability(self, low: int, high: int, rows: int, positives: int, draws: int) -> float:
        """That low to high of the draws are positive."""
        x = np.arange(max(low, draws - (rows - positives)), min(high, positives, draws) + 1)
        terms = self._log_choose(positives, x) + self._log_choose(rows - positives, draws - x)
        return float(np.exp(terms - self._log_choose(rows, np.array(draws))).sum())

    def interval(self, least: int, most: int, rows: int, draws: int) -> tuple[int, int]:
        """Limits of the positives among the rows; `least` to `most` of the draws were positive."""
        tail = (1.0 - LEVEL) / 2.0
        low, high = most, rows - (draws - most)
        while low < high:  # the greatest number under which so few are not too rare
            middle = (low + high + 1) // 2
            rare = self.probability(0, most, rows, middle, draws) <= tail
            low, high = (low, middle - 1) if rare else (middle, high)
        greatest, low, high = low, least, rows - (draws - least)
        while low < high:
            middle = (low + high) // 2
            rare = self.probability(least, draws, rows, middle, draws) <= tail
            low, high = (middle + 1, high) if rare else (low, middle)
        return low, greatest


def exact_limits(review: SimulatedReview, exact: Hypergeometric) -> tuple[int, int]:
    """Limits of K from the closing audit alone, looked at once."""
    first, skipped = review.closing_from, sum(review.skipped[review.closing_from :])
    positives = sum(y and not s for y, s in zip(review.truth[first:], review.skipped[first:], strict=True))
    out = [int(review.history(doubtful_are=doubt).positives_before[first]) for doubt in (False, True)]
    draws = len(review.truth) - first
    low, high = exact.interval(positives, positives + skipped, review.unknown[first], draws)
    return low + out[0], high + out[1]


def bets_limits(review: SimulatedReview, labelled_positives: int, share_factor: float) -> tuple[int, int]:
    """Limits of K from the mean of three bets: one positive in two urns, the audit's share, the model's share.

    The share by the model is `share_factor` times the truth at each draw.
    """
    limits = []
    for doubtful_are in (False, True):
        history = review.history(doubtful_are=doubtful_are)
        y, n, f = history.positive, history.unknown, history.positives_before
        past = np.concatenate([[0], np.cumsum(y)[:-1]])
        model = np.clip((review.positives - np.array(review.before)) / n * share_factor, 0.5 / n, 0.9)
        bets = np.array([0.5 / n, (past + 0.5) / (np.arange(y.size) + 1.0), model])
        capital = np.logaddexp.reduce(np.log(np.where(y, bets, 1.0 - bets)).sum(axis=1)) - np.log(3)
        least, most = max(int((f + y).max()), labelled_positives), int((n + f - ~y).min())
        inside = max(least, likeliest_total(history, least=least, greatest=most))
        limits.append(_edge(history, capital, inside, most if doubtful_are else least))
    return limits[0], limits[1]


def _edge(history: DrawHistory, capital: float, inside: int, outside: int) -> int:
    """The last K on the way to `outside` whose E is below 20."""

    def excluded(total: int) -> bool:
        share = (total - history.positives_before) / history.unknown
        with np.errstate(divide="ignore"):
            likelihood = np.log(np.where(history.positive, share, 1.0 - share)).sum()
        return capital - likelihood >= -np.log(1.0 - LEVEL)

    if not excluded(outside):
        return outside
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (inside, middle) if excluded(middle) else (middle, outside)
    return inside


def ending(review: SimulatedReview, exact: Hypergeometric, share_factor: float) -> Ending:
    """Limits at the end of a review, from its log."""
    result = audit_entries(review.entries(), [review.pile], level=LEVEL)
    if not result.total_low <= review.positives <= result.total_high and not review.excluded:
        raise SystemExit("audit() excludes the truth at the end of a review, and the check of each draw did not")
    return Ending(
        found=result.found,
        limits=(result.total_low, result.total_high),
        exact=exact_limits(review, exact),
        bets=bets_limits(review, result.found, share_factor),
    )


def measure(rows: int, share: float, case: str, *, reviews: int) -> list[Outcome]:
    """Reviews of one cell; their seeds are pile, share, case and number."""
    exact, outcomes = Hypergeometric(rows), []
    for number in range(reviews):
        rng = np.random.default_rng([rows, round(1000 * share), CASES.index(case), number])
        review = simulate(rows, round(share * rows), case, rng, level=LEVEL)
        end = ending(review, exact, rng.choice([0.5, 2.0])) if number % AUDIT_EVERY == 0 else None
        outcomes.append(Outcome(review.positives, frozenset(review.excluded), review.misled, end))
    return outcomes


def measure_length(rows: int, share: float, draws: int, *, reviews: int) -> float:
    """Mean width after so many random images, relative to that of the exact interval."""
    exact, limits = Hypergeometric(rows), []
    for number in range(reviews):
        rng = np.random.default_rng([rows, round(1000 * share), len(CASES), draws, number])
        review = simulate(rows, round(share * rows), CASES[0], rng, level=LEVEL, closing=draws)
        result = audit_entries(review.entries(), [rows], level=LEVEL)
        limits.append(((result.total_low, result.total_high), exact_limits(review, exact)))
    widths = np.diff(limits, axis=2)[..., 0].mean(axis=0)
    return float(widths[0] / widths[1])


# --- the page ------------------------------------------------------------------------------------------


def share_of(values: list[bool]) -> str:
    """Percentage with its standard error."""
    share = float(np.mean(values))
    return f"{100 * share:.2f} ± {100 * np.sqrt(share * (1 - share) / len(values)):.2f}"


def cell_row(rows: int, share: float, case: str, outcomes: list[Outcome]) -> list:
    ends = [one.ending for one in outcomes if one.ending]
    widths = {name: np.array([np.diff(getattr(end, name))[0] for end in ends]) for name in ("limits", "exact", "bets")}
    hidden = [one.positives - one.ending.found for one in outcomes if one.ending]
    low, high = (np.mean([end.limits[i] - end.found for end in ends]) for i in (0, 1))
    return [
        f"{rows:,}",
        f"{100 * share:g} %",
        case,
        f"**{share_of([bool(one.excluded) for one in outcomes])}**",
        *(f"{100 * np.mean([side in one.excluded for one in outcomes]):.2f}" for side in ("above", "below")),
        f"{np.mean(hidden):,.1f}",
        f"{low:,.0f} to {high:,.0f}",
        f"**{widths['limits'].mean() / widths['exact'].mean():.2f}**",
        f"{np.quantile(widths['limits'] / np.maximum(widths['exact'], 1), 0.9):.2f}",
        f"{widths['bets'].mean() / widths['exact'].mean():.2f}",
    ]


HEAD = ["pile", "positive", "review", "ever excluded, %", "above", "below", "hidden", "interval", "width"]
HEAD += ["90th pct.", "three bets"]
TEXT = f"""
A review has {ROUNDS} rounds of {SHOWN} ranked images and one random one, and {CLOSING} random images at last;
*{CASES[0]}* is {ROUNDS + CLOSING} of them. The ranking learns in each round. The score of a positive is noise, plus a
signal that grows with the labelled positives of its kind (one of ten), also with those that the audit brought. In
*skips* the reviewer skips {100 * SKIPPED[True]:.0f} % of the positives and {100 * SKIPPED[False]:.0f} % of the
negatives, ranked and random. In *undo* {100 * WRONG:.0f} % of the decisions are wrong at first; these, and
{100 * TAKEN_BACK:.0f} % of the right ones in the ranking, are taken back. A wrong label of a random image is corrected
at once. A label of the ranking is taken back after the next random image, and the image comes back when the ranking
brings it.

- **Ever excluded**: % of the reviews in which the 95 % interval left out the true number of positives after any
  random image (± standard error); asked: at most 5. Above and below: by the upper and by the lower limit.
- **Hidden**, and the **interval**: means at the end of every {AUDIT_EVERY}th review, whose log `audit` takes.
- **Width**: mean width at the end, relative to the exact two-sided hypergeometric interval of the closing audit
  alone, which holds for one look that was planned; asked: at most 1.5. 90th percentile: of the ratios of single
  reviews.
- **Three bets**: the same ratio for E(K) = mean of three bets / L(K), which was tried first. Bets: ½/n,
  (x + ½)/(i + 1), and the model's share where it is off by a factor of two.
"""


def page(cells: dict[tuple, list[Outcome]], lengths: dict[tuple, float], command: str, seconds: float) -> str:
    reviews = len(next(iter(cells.values())))
    slips = ", ".join(
        share_of([one.misled for one in outcomes]) for (*_, case), outcomes in cells.items() if case == CASES[3]
    )
    lines = [
        "# Interval of the hidden positives",
        "",
        f"`{command}`: {reviews:,} simulated reviews per row, numbers 0 to {reviews - 1:,} are their seeds; "
        f"{seconds / 60:.1f} minutes of one core.",
        TEXT,
        table(HEAD, [cell_row(*cell, outcomes) for cell, outcomes in cells.items()]),
        "",
        "The interval is that of the labels in force. While a wrong label stands, it can be wrong too. Looked at also "
        f"between a slip and its correction ({100 * WRONG:.0f} % of the random images), and while wrong labels of the "
        f"ranking stood, it was wrong at such a moment in {slips} % of the reviews (rows with undo, in their order).",
        "",
        "## Width and length",
        "",
        f"Ratio of mean widths after so many random images and nothing else, {min(reviews, LENGTH_REVIEWS)} reviews "
        "each. The exact interval is made for that moment. The other one holds at all of them.",
        "",
        table(
            ["pile", "positive", *(f"{draws:,}" for draws in LENGTHS)],
            [
                [f"{rows:,}", f"{100 * share:g} %"]
                + [f"{lengths[rows, share, n]:.2f}" if (rows, share, n) in lengths else "" for n in LENGTHS]
                for rows in PILES
                for share in SHARES
            ],
        ),
        "",
        environment(),
        "",
    ]
    return "\n".join(lines)


def timed(measurement: Callable, *cell, reviews: int) -> tuple[Any, float]:
    """What is measured, and CPU seconds."""
    began = time.process_time()
    return measurement(*cell, reviews=reviews), time.process_time() - began


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("--reviews", type=int, help=f"per row (default: {REVIEWS}; with --quick {QUICK})")
    parser.add_argument("--quick", action="store_true", help="a look, in seconds")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    arguments = parser.parse_args()
    reviews = arguments.reviews or (QUICK if arguments.quick else REVIEWS)
    if reviews < AUDIT_EVERY or arguments.jobs < 1:
        parser.error(f"--reviews must be at least {AUDIT_EVERY} and --jobs 1, got {reviews} and {arguments.jobs}")
    piles = list(product(PILES, SHARES))
    wanted = [(measure, (*pile, case), reviews) for pile in piles for case in CASES]
    wanted += [
        (measure_length, (*pile, draws), min(reviews, LENGTH_REVIEWS))
        for pile in piles
        for draws in LENGTHS
        if draws < pile[0]
    ]
    cells, lengths, seconds = {}, {}, 0.0
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(timed, measurement, *cell, reviews=count) for measurement, cell, count in wanted]
        for (measurement, cell, _), future in zip(wanted, running, strict=True):
            result, cpu = future.result()
            seconds += cpu
            if measurement is measure:
                cells[cell] = result
                print(*cell_row(*cell, result), flush=True)
            else:
                lengths[cell] = result
    command = "python -m benchmarks.quality.audit" + f" --reviews {reviews}" * (reviews != REVIEWS)
    text = page(cells, lengths, command, seconds)
    write_page(text, arguments.out)


if __name__ == "__main__":
    main()
