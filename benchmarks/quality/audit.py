"""The limits of a review: coverage and width over simulated reviews.

    python -m benchmarks.quality.audit FOLDER [--quick] [--out docs/results/audit.md]

A simulated review has ranked images, random ones where the ranking yields little, a closing audit among the likeliest
and then in the whole pile, and more ranked ones; `History` takes its log. Reviews of images are those of
`review.py`.
"""

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import add_jobs, page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.quality.audit_reviews import SKIPPED, TWINS, WRONG, Review
from pucache.estimates.limits import UPPER_PART
from pucache.estimates.strata import SIDES, Stratum
from pucache.reviewing.history import History
from pucache.reviewing.log import Stream

LEVEL, CHUNK = 0.95, 50  # reviews of a cell
REVIEWS, FEWER, QUICK_REVIEWS = 200, 50, 20  # of a case; of one that takes longer or has an effect that all show
ALONE, MISSED = "random images alone", "a tenth missed"
CONTRARY = "negatives first"
CASES = [(ALONE, 3000, 0.01), (ALONE, 3000, 0.1), (MISSED, 2000, 0.02)]
CASES += [(ranking, 3000, share) for ranking in ("learns", "chance", CONTRARY) for share in (0.01, 0.1)]
CASES += [("learns", 50_000, 0.001), ("learns", 50_000, 0.01)]
RANKED, IN_ZONE, IN_PILE, EVERY = 600, 150, 100, 200  # looks of a review; those between two glances with misses
GLANCE = 100  # looks between two glances at the sentence
LIMITS = ("sentence", "upper limit", "lower limit", "zone and rest", "chance")
AT_MOST = re.compile(r"Perhaps (\S+) .*; at most ([\d,]+), with")
NEAR = 3  # factor by which *perhaps* may be off
PILES, SHARES = (3000, 50_000), (0.001, 0.01, 0.1)
LOOKS, LARGE = (300, 1000, 3000), 1_000_000


# --- coverage ----------------------------------------------------------------------------------------------


def coverage(case: str, rows: int, share: float, begin: int, count: int) -> dict:
    """Whether each of `LIMITS` excluded the truth at some moment, by review, and what glances read: truth, perhaps."""
    judged = [_judged(case, rows, share, number) for number in range(begin, begin + count)]
    return {"excluded": [one for one, _ in judged], "read": [pair for _, read in judged for pair in read]}


def _judged(case: str, rows: int, share: float, number: int) -> tuple[list[bool], list[tuple[int, int]]]:
    rng = np.random.default_rng([rows, round(1000 * share), number])
    if case == MISSED:
        return missed_review(rows, share, rng)
    review = Review(rows, share, "chance" if case == ALONE else case, rng, lapses=case != ALONE)
    read: list[tuple[int, int, int]] = []
    if case != ALONE:
        look(review, review.rank, RANKED, read)
        review.fix_zone(zone_of(rows))
        look(review, partial(review.close, Stream.ZONE), IN_ZONE, read)
    look(review, partial(review.close, Stream.AUDIT), IN_PILE + IN_ZONE * (case == ALONE), read)
    if case != ALONE:
        look(review, review.rank, 100, read)
    wrong = any(hidden > most for hidden, _, most in read)
    return [wrong, *excluded_limits(review)], [(hidden, perhaps) for hidden, perhaps, _ in read]


def look(review: Review, show: Callable[[int], None], looks: int, read: list[tuple[int, int, int]]) -> None:
    """Show images, and read the sentence every `GLANCE` of them: true number of hidden, perhaps, at most."""
    for begin in range(0, looks, GLANCE):
        show(min(GLANCE, looks - begin))
        review.take_back()
        if found := AT_MOST.search(review.limits().sentence):
            perhaps, most = (int(one.replace(",", "").replace("none", "0")) for one in found.groups())
            read.append((review.hidden(), perhaps, most))


def missed_review(rows: int, share: float, rng: np.random.Generator) -> tuple[list[bool], list[tuple[int, int]]]:
    """A review to the end by somebody who misses a tenth; its limits are looked at now and then."""
    review, excluded = Review(rows, share, "learns", rng, lapses=False, missed=0.1), [False] * len(LIMITS)
    while review.left.any():
        review.rank(EVERY)
        audit, total = review.limits(), int(review.truth.sum())
        excluded[0] |= audit.total_high < total  # what the sentence says
        excluded[1] |= audit.total_high < total
        excluded[2] |= audit.total_low > total
    return excluded, []


def reviews_of(case: str, rows: int) -> int:
    return FEWER if case in (MISSED, CONTRARY) or rows > PILES[0] else REVIEWS


def zone_of(rows: int) -> int:
    return min(5000, rows // 6)


def excluded_limits(review: Review) -> list[bool]:
    """Whether the limits of `Limits` exclude the truth: their evidence against it alone."""
    error, history = 1.0 - LEVEL, History([review.rows], review.entries)
    (pile,), zone, looks = history.strata(), history.strata(review.zone_rows), history.looks()
    total, inside = (int(review.copies[review.truth & groups].sum()) for groups in (review.truth, review.zone))

    def above(one: Stratum, total: int, error: float) -> bool:
        evidence = np.log(SIDES[0]) + one.evidence_above(total)
        return total >= one.range(1)[0] and bool(evidence.max(initial=0.0) >= -np.log(error))

    below = np.log(SIDES[0]) + pile.evidence_below(total).max(initial=0.0)
    chance = total >= looks.found and looks.evidence(total).max(initial=0.0) >= -np.log(error)
    # the limit of the rest is that of the pile: wrong only where this one is
    return [
        above(pile, total, UPPER_PART * error),
        bool(below >= -np.log((1.0 - UPPER_PART) * error)),
        any(above(one, inside, error / 2) for one in zone) or above(pile, total, error / 2),
        bool(chance),
    ]


# --- width -------------------------------------------------------------------------------------------------


def widths(rows: int, share: float, looks: int, reviews: int) -> dict:
    """Hidden and limits after looks of which the last two fifths are a closing audit, or the ranking; means."""
    figures = []
    for number in range(reviews):
        seed = [rows, round(1000 * share), looks, number]
        ends = {}
        for closing in (Stream.AUDIT, Stream.ZONE, Stream.RANKED):
            review = Review(rows, share, "learns", np.random.default_rng(seed), lapses=False)
            review.rank(looks * 3 // 5)
            if closing is Stream.RANKED:
                review.rank(looks - looks * 3 // 5)
            else:
                review.fix_zone(zone_of(rows) if closing is Stream.ZONE else 0)
                review.close(closing, looks - looks * 3 // 5)
            ends[closing] = review, review.limits()
        (pile, whole), (zoned, zone), (ranked, chance) = ends.values()
        assert zone.zone is not None
        inside = zoned.hidden(zoned.zone)
        figures.append(
            [pile.hidden(), whole.hidden_high, inside, zone.zone.hidden_high, ranked.hidden(), chance.chance_high]
        )
    return {"means": np.mean(figures, axis=0).tolist()}


# --- the page ----------------------------------------------------------------------------------------------

TEXT = f"""`python -m benchmarks.quality.audit FOLDER`. A review has {RANKED} looks by a ranking, with
random images in up to 5 % of the slots, then {IN_ZONE} random images in a zone of the likeliest (a sixth of the pile,
at most 5,000), {IN_PILE} in the whole pile, and 100 looks by the ranking. {100 * TWINS:.0f} % of the images are twins
of another one, {100 * SKIPPED:.0f} % are skipped, {100 * WRONG:.0f} % are decided wrongly and corrected later, and
positives are shown again. *{ALONE.capitalize()}* is {IN_PILE + IN_ZONE} of them, without lapses. In *{MISSED}* the
reviewer rejects a tenth of the positives whenever they are shown, and reviews the pile to the end; limits are looked at
every {EVERY} looks, and only the first three.

The *sentence* is what `audit` prints, read every {GLANCE} looks: wrong where more are hidden than its *at most* says at
any glance. A limit is wrong if it excluded the truth at any moment, so also for somebody who stops at the luckiest one;
asked: at most 5 %. *Chance* is the limit that assumes a ranking that is no worse than chance. Where the ranking shows
negatives first, that is false: it is meant for a ranking that learns."""
PERHAPS_TEXT = f"""What the sentence calls *perhaps* hidden, over the glances of these reviews: how often more are
hidden, and how often the two are within a factor of {NEAR} of each other (with one more on both sides)."""
WIDTH_TEXT = f"""Upper limits after so many looks of which the last two fifths are a closing audit in the pile, or in
the zone; or the ranking goes on, for the limit by chance (means of three reviews, one of {LARGE:,} images; beside each
the true number)."""


def share_of(values: np.ndarray) -> str:
    """Percentage with its standard error."""
    mean = float(np.mean(values))
    return f"{100 * mean:.2f} ± {100 * np.sqrt(mean * (1 - mean) / len(values)):.2f}"


def estimate_cells(read: list[tuple[int, int]]) -> list[str]:
    """Means of the true and the estimated number, and how often it is greater, and near."""
    hidden, perhaps = np.array(read, float).T
    near = np.abs(np.log((perhaps + 1) / (hidden + 1))) <= np.log(NEAR)
    shares = (f"{100 * one.mean():.0f}" for one in (hidden > perhaps, near))
    return [f"{hidden.mean():,.0f}", f"{perhaps.mean():,.0f}", *shares]


def page(covered: list[dict], wide: list[dict]) -> str:
    coverages, estimates = [], []
    for case, rows, share in CASES:
        cells = [cell for cell in covered if (cell["case"], cell["rows"], cell["share"]) == (case, rows, share)]
        first = [case, f"{rows:,}", f"{100 * share:g} %"]
        excluded = np.array([review for cell in cells for review in cell["excluded"]])
        coverages.append([*first, len(excluded), *map(share_of, excluded.T)])
        if read := [pair for cell in cells for pair in cell["read"]]:
            estimates.append([*first, *estimate_cells(read)])
    width_lines = [
        [f"{cell['rows']:,}", f"{100 * cell['share']:g} %", cell["looks"], *(f"{mean:,.0f}" for mean in cell["means"])]
        for cell in wide
    ]
    width_head = ["pile", "positive", "looks", "hidden", "pile", "hidden in zone", "zone", "hidden", "chance"]
    sections = [
        "# Interval of the hidden positives",
        "## Every limit",
        TEXT,
        table(["review", "pile", "positive", "reviews", *(f"{limit} wrong, %" for limit in LIMITS)], coverages),
        PERHAPS_TEXT,
        table(["review", "pile", "positive", "hidden", "perhaps", "more hidden, %", f"within {NEAR}, %"], estimates),
        "## Width",
        WIDTH_TEXT,
        table(width_head, width_lines),
        environment(),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    parser = add_jobs(page_parser(__doc__))
    parser.add_argument("folder", type=Path, help="where cells are kept")
    options = parser.parse_args()
    wanted = [
        {"case": case, "rows": rows, "share": share, "begin": begin, "count": QUICK_REVIEWS if options.quick else CHUNK}
        for begin in range(0, CHUNK if options.quick else REVIEWS, CHUNK)
        for case, rows, share in CASES
        if begin < reviews_of(case, rows)
    ]
    looks = [
        {"rows": rows, "share": share, "looks": count, "reviews": 1 if options.quick or rows == LARGE else 3}
        for rows, share, count in product(PILES if options.quick else (*PILES, LARGE), SHARES, LOOKS)
    ]
    covered = measured(options.folder, "audit-coverage", wanted, coverage, jobs=options.jobs)
    write_page(page(covered, measured(options.folder, "audit-width", looks, widths, jobs=options.jobs)), options.out)
