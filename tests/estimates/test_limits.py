"""Limits of a pile and what they say: brute force, exact coverage, and each way in which a log could mislead."""

import json
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from helpers.reviews import Log
from helpers.slow import slow
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.estimates.limit_sentences import sentences
from pucache.estimates.limits import MISSES_NEEDED, RECHECKS_NEEDED, Limits, least_sensitivity
from pucache.estimates.strata import FACTORS, RUNS, Looks, Stratum
from pucache.reviewing.log import LABELS, Choice, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


def limits(result):
    return result.hidden_low, result.hidden_high


@st.composite
def logs(draw, most_groups=7, most_actions=16):
    """Logs of tiny piles with copies, skips, undone and changed decisions, and draws without a decision."""
    log = Log(draw(st.lists(st.integers(1, 3), min_size=1, max_size=most_groups)))
    for _ in range(draw(st.integers(0, most_actions))):
        if log.left and draw(st.booleans()):
            log.draw(draw(st.sampled_from(log.left)), draw(st.sampled_from([None, *Choice, *LABELS, *LABELS])))
        else:
            log.decide(draw(st.integers(0, len(log.copies) - 1)), draw(st.sampled_from([*Choice, *LABELS])))
    return log


# --- a second implementation: every K, every assignment, every draw, from the definition ---------------


def gone(entries):
    """Groups that have been drawn, or labelled, in these entries."""
    drawn = {entry.group for entry in entries if entry.is_draw and entry.stream is Stream.AUDIT}
    return drawn | {entry.group for entry in entries if entry.choice in LABELS}


def slow_draws(log, label):
    """(y, n, f) of each draw, where `label` says which groups are positive."""
    draws = []
    for at, entry in enumerate(log.entries):
        if entry.is_draw and entry.stream is Stream.AUDIT:
            out = gone(log.entries[:at])
            unknown = log.pile - sum(log.copies[group] for group in out)
            draws.append((label[entry.group], unknown, sum(log.copies[group] for group in out if label[group])))
    return draws


def slow_evidence(draws, total, alternatives, weights):
    """Greatest E after any draw."""
    ratios, greatest = [1.0] * len(weights), 1.0
    for positive, unknown, before in draws:
        share = (total - before) / unknown
        for j, alternative in enumerate(alternatives):
            other = min(max((alternative - before) / unknown, 0.0), 1.0)
            ratios[j] *= other / share if positive else (1.0 - other) / (1.0 - share)
        greatest = max(greatest, sum(w * r for w, r in zip(weights, ratios, strict=True)))
    return greatest


def slow_limits(log, label, level):
    """Least and greatest K that are not excluded, where `label` says which groups are positive (None: not decided)."""
    draws = slow_draws(log, label)
    least = sum(copies for copies, positive in zip(log.copies, label, strict=True) if positive)
    greatest = sum(copies for copies, positive in zip(log.copies, label, strict=True) if positive is not False)
    upper, lower = [], []
    for total in range(least, greatest + 1):
        distances = [0.26 / 2**j for j in range(4)]
        below = [0.0] + [max(total - d * math.sqrt(total * log.pile), 0.0) for d in distances]
        above = [total + d * math.sqrt((total + 1) * log.pile) for d in distances]
        if 0.95 * slow_evidence(draws, total, below, (0.25, 0.2, 0.2, 0.2, 0.15)) < 1 / (0.6 * (1 - level)):
            upper.append(total)
        if 0.95 * slow_evidence(draws, total, above, (0.25,) * 4) < 1 / (0.4 * (1 - level)):
            lower.append(total)
    return min(lower, default=greatest), max(upper, default=least)


def unresolved_groups(log):
    """Groups that are gone and have no label now."""
    return {group for group in log.gone if log.in_force.get(group) not in LABELS}


def without_last_pending(log):
    """The log without the draws after the last one that has a decision, which the audit leaves out."""
    shorter = Log(log.copies)
    answered = {group for group, choice in log.in_force.items() if choice is not UNDONE}
    last = max(
        (e.serial for e in log.entries if e.is_draw and e.stream is Stream.AUDIT and e.group in answered), default=0
    )
    left_out = {e.group for e in log.entries if e.is_draw and e.stream is Stream.AUDIT and e.serial > last}
    shorter.entries = [e for e in log.entries if not (e.is_draw and e.stream is Stream.AUDIT and e.serial > last)]
    shorter.drawn, shorter.gone, shorter.in_force = log.drawn - left_out, log.gone - left_out, log.in_force
    return shorter


def label_with(log, assignment):
    """True, False or None (still in the urn) for each group."""
    return [
        assignment[group] if group in assignment else {POSITIVE: True, NEGATIVE: False}.get(log.in_force.get(group))
        for group in range(len(log.copies))
    ]


@settings(max_examples=80, deadline=None)
@given(logs(), st.sampled_from([0.3, 0.5, 0.8, 0.95]))
def test_limits_equal_a_search_over_every_total_and_counts_add_up(log, level):
    """Draws that wait count as if not made, unless a later one is answered; then, and skipped, as either label."""
    result = log.limits(level=level)
    log = without_last_pending(log)
    unresolved = unresolved_groups(log)
    _, high = slow_limits(log, label_with(log, dict.fromkeys(unresolved, True)), level)
    low, _ = slow_limits(log, label_with(log, dict.fromkeys(unresolved, False)), level)
    assert result.total_high == high
    assert result.total_low == min(low, high)
    assert result.open_rows - result.unknown == sum(log.copies[group] for group in unresolved)
    assert result.unknown == sum(log.copies[group] for group in log.left)
    outcomes = Counter(log.in_force.get(group) for group in log.drawn)
    assert (result.draws, result.positives) == (outcomes.total(), outcomes[POSITIVE])
    assert (result.skipped, result.pending) == (outcomes[SKIP], outcomes[None] + outcomes[UNDONE])
    assert 0 <= result.hidden_low <= result.hidden_high <= log.pile - result.found
    assert limits(result) == (result.total_low - result.found, result.total_high - result.found)
    assert result.recall_low == (result.found / result.total_high if result.total_high else 1.0)
    assert json.loads(json.dumps(result.as_dict()))["hidden_high"] == result.hidden_high
    assert result.sentence and result.hidden_low <= result.perhaps <= result.hidden_high


# --- coverage ------------------------------------------------------------------------------------------


def chance_of_exclusion(truth, level, log=None):
    """Exact probability that the interval ever excludes the truth, over all orders of draws.

    After a positive draw the ranking finds another positive; otherwise it shows a negative.
    """
    log = log or Log(len(truth))
    result = log.limits(level=level)
    if not result.total_low <= sum(truth) <= result.total_high:
        return Fraction(1)
    urn, chance = log.left, Fraction(0)
    for group in urn:
        branch = Log(log.copies)
        branch.entries, branch.drawn, branch.gone, branch.in_force = (
            kind(value)
            for kind, value in ((list, log.entries), (set, log.drawn), (set, log.gone), (dict, log.in_force))
        )
        label = POSITIVE if truth[group] else NEGATIVE
        branch.draw(group, label)
        for other in [other for other in branch.left if truth[other] == truth[group]][:1]:
            branch.decide(other, label)
        chance += chance_of_exclusion(truth, level, branch) / len(urn)
    return chance


def test_exact_coverage_over_all_orders_of_draws():
    for positives in range(7):
        assert chance_of_exclusion([True] * positives + [False] * (6 - positives), 0.5) <= Fraction(1, 2)


@pytest.mark.parametrize("sensitivity", [0.3, slow(0.95)])
def test_exact_coverage_of_the_sensitivity(sensitivity):
    """Over 60 rechecks, looked at after each."""
    error, excluded = 0.2, 0.0
    alive = {0: 1.0}  # probability by number of misses
    for rechecks in range(1, 61):
        following: dict[int, float] = {}
        for missed, probability in alive.items():
            for more, share in ((0, sensitivity), (1, 1 - sensitivity)):
                following[missed + more] = following.get(missed + more, 0.0) + probability * share
        lost = {missed for missed in following if least_sensitivity(rechecks, missed, error) > sensitivity}
        excluded += sum(following[missed] for missed in lost)
        alive = {missed: probability for missed, probability in following.items() if missed not in lost}
    assert 0 < excluded <= error


# --- what a log may hold -------------------------------------------------------------------------------


def test_no_positive_in_m_draws_leaves_about_4_n_over_m():
    for pile, draws in ((3000, 100), (50_000, 300), (1_000_000, 1000)):
        log = Log([1] * draws + [pile - draws])  # what is left, as one group
        for group in range(draws):
            log.draw(group, NEGATIVE)
        assert 3.4 < log.limits().hidden_high * draws / pile < 4.2


# --- rechecks ------------------------------------------------------------------------------------------


def rechecked(recognised, missed):
    log = Log([1] * 3000 + [0])  # the last group is a positive from before the session
    for group in range(100):
        log.draw(group, POSITIVE if group < 10 else NEGATIVE)
    for _ in range(recognised + missed):
        log.draw(3000, POSITIVE if recognised > 0 else NEGATIVE, stream=Stream.RECHECK)
        recognised -= 1
    return log


@pytest.mark.parametrize(("recognised", "missed"), [(RECHECKS_NEEDED, 0), (12, MISSES_NEEDED), (97, 3)])
def test_enough_rechecks_divide_the_upper_limit(recognised, missed):
    log = rechecked(recognised, missed)
    result = log.limits()
    sensitivity = least_sensitivity(recognised + missed, missed, 0.01)
    assert result.sensitivity_low == sensitivity and 0 < sensitivity < recognised / (recognised + missed)
    without = rechecked(0, 0).limits(level=0.96)  # four fifths of the error are left for the interval
    assert result.total_high == math.ceil(without.total_high / sensitivity)
    assert result.total_low == without.total_low
    assert result.recognised_high == without.hidden_high
    assert f"{missed} of {recognised + missed} known positives" in sentences(result)[1]
    assumed = "if positives are overlooked no more often than those that are shown again"
    assert f"confidence, {assumed}." in result.sentence and sentences(result)[1].startswith(assumed.capitalize())


def test_a_recheck_that_is_skipped_or_taken_back_does_not_count():
    log = Log([1] * 20 + [0])
    log.draw(20, SKIP, stream=Stream.RECHECK).draw(20, NEGATIVE, stream=Stream.RECHECK)
    assert (log.limits().rechecks, log.limits().missed) == (1, 1)
    log.decide(20, POSITIVE, stream=Stream.RANKED)  # an undo that restores the decision of before
    assert (log.limits().rechecks, log.limits().missed) == (0, 0)
    log.decide(20, POSITIVE)
    assert (log.limits().rechecks, log.limits().missed) == (1, 0)


# --- outlook and words ---------------------------------------------------------------------------------


def partly_reviewed(copies, draws, pending=()):
    """A log of draws, of which one is skipped and some wait for a label."""
    log = Log(copies)
    for group in range(draws):
        label = SKIP if group == 7 else POSITIVE if group % 9 == 0 else NEGATIVE
        log.draw(group, None if group in pending else label)
    return log.decide(100, POSITIVE)


@pytest.mark.parametrize("positives", [0, 7, 20])
def test_the_outlook_is_the_audit_of_such_a_future(positives):
    log = partly_reviewed(500, 60)
    expected = log.limits().further(20, positives / 20)[0]
    drawn = (np.arange(21) * positives + 10) // 20
    for step in range(20):
        log.draw(200 + step, POSITIVE if drawn[step + 1] > drawn[step] else NEGATIVE)
    assert log.limits().hidden_high == expected
    assert (drawn[-1], log.limits().positives) == (positives, 7 - 1 + 1 + positives)


@pytest.mark.parametrize("positives", [0, 2, 6])
def test_the_outlook_expects_labels_of_pending_draws_wherever_they_lie(positives):
    pending = range(20, 80, 10)
    log = partly_reviewed([3 if group % 4 == 0 else 1 for group in range(400)], 80, pending)
    expected = log.limits().further(0, positives / 6)[0]
    assert expected < log.limits().hidden_high
    for number, group in enumerate(pending):
        log.decide(group, POSITIVE if number < positives else NEGATIVE)
    assert log.limits().hidden_high == expected


def test_the_likeliest_total_is_the_one_of_greatest_likelihood():
    log = Log(60)
    for group in range(12):
        log.draw(group, POSITIVE if group % 4 == 0 else NEGATIVE).decide(
            20 + group, POSITIVE if group < 6 else NEGATIVE
        )
    result, likelihoods = log.limits(), {}
    for total in range(result.found, 60 - 12 - 3):
        shares = [((total - f) / n, y) for y, n, f in slow_draws(log, label_with(log, {}))]
        likelihoods[total] = math.prod(share if positive else 1 - share for share, positive in shares)
    likeliest = max(likelihoods, key=likelihoods.get)
    assert abs(result.found + result.likeliest_share * result.unknown - likeliest) <= 1  # it may lie between two


# --- the limit that assumes a ranking no worse than chance ---------------------------------------------


@st.composite
def some_looks(draw):
    m = draw(st.integers(1, 30))
    positive = np.array(draw(st.lists(st.booleans(), min_size=m, max_size=m)))
    before = np.append(0, np.cumsum(positive)[:-1]).astype(float)
    runs = draw(st.lists(st.sampled_from([0.0, 5.0, 30.0, 100.0, 400.0, np.inf]), min_size=m, max_size=m))
    left = draw(st.integers(0, 40))
    return Looks(
        positive, m + left - np.arange(m, dtype=float), before, np.array(runs), positive, left, int(positive.sum())
    )


def evidence_by_hand(of, total):
    """Mean of M(K) after each look."""
    paths = []
    for factor in FACTORS:
        for run in RUNS:
            path, product = [], 1.0
            for y, n, f, since in zip(of.positive, of.unknown, of.before, of.run, strict=True):
                p = (total - f) / n
                if since >= run:
                    product *= factor if y else (1 - factor * p) / (1 - p)
                path.append(product)
            paths.append(path)
    return np.mean(paths, axis=0)


@settings(deadline=None)
@given(some_looks(), st.floats(0.01, 0.9))
def test_the_limit_is_that_of_a_search_over_every_total_and_evidence_rises_with_it(of, error):
    totals = range(of.found, of.found + of.left + 1)
    with np.errstate(all="ignore"):
        evidence = [evidence_by_hand(of, total).max() for total in totals]
    for total, by_hand in zip(totals, evidence, strict=True):
        assert math.exp(of.evidence(total).max()) == pytest.approx(by_hand, rel=1e-9)
    assert (np.diff(evidence) >= -1e-9).all()
    kept = [total for total, value in zip(totals, evidence, strict=True) if max(1.0, value) < 1 / error]
    assert of.greatest_total(error) == max(kept, default=of.found)


@pytest.mark.parametrize(("rows", "positives"), [(6, 1), (6, 3), (7, 2)])
def test_no_order_of_chance_raises_the_mean_of_the_evidence(rows, positives):
    truths = set(permutations([True] * positives + [False] * (rows - positives)))
    mean = Fraction(0)
    for truth in truths:
        log = Log(rows)
        for row, positive in enumerate(truth[:-1]):
            log.decide(row, POSITIVE if positive else NEGATIVE)
        mean += Fraction(float(np.exp(log.history().looks().evidence(positives)[-1])))
    assert float(mean / len(truths)) <= 1.0 + 1e-9  # below it where all rows that are left are positive


def test_looks_are_first_decisions_and_random_images_when_they_are_drawn():
    log = Log(20).decide(0, POSITIVE).draw(1).decide(2, NEGATIVE).decide(1, NEGATIVE).decide(3, SKIP)
    log.draw(0, POSITIVE, stream=Stream.RECHECK)
    log.decide(4, POSITIVE).decide(4, UNDONE).decide(4, NEGATIVE).draw(5)
    of = log.history().looks()
    assert of.positive.tolist() == [True, False, False, True, False]
    assert of.unknown.tolist() == [20, 19, 18, 17, 16] and of.before.tolist() == [0, 1, 1, 1, 2]
    assert of.run.tolist() == [0, np.inf, 0, 2, 2] and (of.left, of.found) == (15, 2)
    later = log.history().looks(since=3)
    assert later.unknown.tolist() == [17, 16] and later.found == 2


# --- sentences -----------------------------------------------------------------------------------------


def drawn(positives, draws=300, rows=3000):
    log = Log(rows)
    for group in range(draws):
        log.draw(group, POSITIVE if positives and group % (draws // positives) == 0 else NEGATIVE)
    return log


def test_perhaps_follows_random_images_where_they_say_much_and_the_yield_of_the_ranking_where_they_do_not():
    hidden = drawn(30).limits()
    assert hidden.perhaps == pytest.approx(hidden.likeliest_share * hidden.unknown, rel=0.1)
    log = Log(1500)
    for group in range(48):
        log.decide(group, POSITIVE)
    for group in range(48, 1100):
        log.decide(group, NEGATIVE)
    for group in range(1100, 1150):
        log.draw(group, NEGATIVE)
    result = log.limits()
    assert result.hidden_high > 20 and result.perhaps <= 3


def test_perhaps_follows_random_images_among_the_likeliest_too():
    def limits(positives):
        log, drawn = Log(3000), [int(position % 200 < positives) for position in range(200)]
        for group in range(300):  # by which the ranking would still bring fifty
            log.decide(group, NEGATIVE if group % 15 else POSITIVE)
        for group, label in enumerate(drawn, start=300):
            log.draw(group, stream=Stream.ZONE).decide(group, POSITIVE if label else NEGATIVE, stream=Stream.ZONE)
        history = log.draw(2999, NEGATIVE).history()
        label, ones = np.array(drawn), np.ones(200, np.int64)
        zone = Stratum(600, label, ones, 301 + np.arange(200), np.zeros(200, bool))
        return Limits.of(history.strata(), history.looks(), zone=[zone])

    none, twenty = limits(0), limits(20)
    assert none.perhaps <= 10 and replace(none, zone=None).perhaps > 30
    assert 40 <= twenty.perhaps <= 120  # about 40 among the likeliest


@pytest.mark.parametrize("draws", [20, 200])
def test_a_forecast_moves_by_what_one_image_can_move(draws):
    figures = []
    for positives in range(5):
        log = Log(3500)
        for group in range(draws):
            log.draw(group, POSITIVE if draws - group <= positives else NEGATIVE)
        result = log.limits()
        expected = result.expected_positives(200)
        after = result.further(200, expected / 200)[0]
        assert expected < max(positives, 1) and f"at most about {after:,} if" in result.forecast
        figures.append((result.hidden_high, after))
    steps = np.diff(figures, axis=0)
    one_image = steps[0, 1]  # by the first positive, which lets expect no other
    assert (steps[:, 1] <= one_image).all(), figures


def test_sentences_state_what_is_found_and_hidden_what_they_assume_and_what_would_narrow_it():
    log = drawn(2, 120)
    for group in range(200, 410):
        log.decide(group, POSITIVE)
    result = log.limits()
    assert result.sentence == (
        f"212 found. Perhaps {result.perhaps} more are hidden; at most {result.hidden_high}, with 95 % confidence, if "
        "no positive was overlooked. To narrow this, decide 200 more random images: at most about "
        f"{result.further(200, 0)[0]} if none of them is positive."
    )
    left_out = log.draw(500).draw(501, SKIP).limits()
    assert "To narrow this, decide 2 random images without a label, then decide 200 more" in left_out.sentence
    doubts = replace(left_out, doubted=1).sentence
    assert "To narrow this, look again at 1 doubted decision, then decide 2 random images" in doubts
    begun, decided = Log(3000).decide(0, POSITIVE).limits(), Log(2).decide(0, NEGATIVE).decide(1, POSITIVE).limits()
    assert begun.sentence.startswith("1 found. How many more is not known before the first random image among all. ")
    assert sentences(decided) == ["1 found. Every image is decided."] and decided.chance_high == 0
    skipped = Log(2).draw(0, SKIP).decide(1, POSITIVE).limits()
    assert skipped.sentence.startswith("1 found. Perhaps none is hidden; at most 1, with 95 % confidence, if no ")
    by_rank = Log([1] * 400 + [4600])
    for row in range(400):
        by_rank.decide(row, POSITIVE if row < 30 else NEGATIVE)
    chance = by_rank.limits()
    assert chance.hidden_high == 4600 and 0 < chance.chance_high < 200
    assumed = "If the ranking shows positives at least as often as chance would: at most "
    assert any(one.startswith(f"{assumed}{chance.chance_high} more, and at least ") for one in sentences(chance))
