"""Limits of a pile: against brute force, exact coverage on tiny piles, and each way in which a log could mislead it."""

import json
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from helpers.reviews import Log
from helpers.slow import slow
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.estimates.limit_sentences import sentences
from pucache.estimates.limits import MISSES_NEEDED, RECHECKS_NEEDED, least_sensitivity
from pucache.reviewing.log import LABELS, Choice, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice.POSITIVE, Choice.NEGATIVE, Choice.SKIP, Choice.UNDONE


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
