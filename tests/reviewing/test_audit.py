"""The audit: against brute force, exact coverage on tiny piles, and each way in which a log could mislead it."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers.reviews import Log
from helpers.slow import slow
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.reviewing.audit import MISSES_NEEDED, UPPER_PART, audit_entries
from pucache.reviewing.audit_log import ReplayedLog
from pucache.reviewing.hidden_interval import DrawHistory, evidence_above, evidence_below, least_sensitivity
from pucache.reviewing.log import LABELS, Choice, Entry, Stream
from pucache.reviewing.statements import RECHECKS_NEEDED

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


def out_of_urn(entries):
    """Groups that are drawn, or have a label, after these entries."""
    in_force, drawn = {}, set()
    for entry in entries:
        if not entry.is_draw:
            in_force[entry.group] = entry.choice
        elif entry.stream is Stream.AUDIT:
            drawn.add(entry.group)
    return drawn | {group for group, choice in in_force.items() if choice in LABELS}


def slow_draws(log, label):
    """(y, n, f) of each draw, where `label` says which groups are positive."""
    draws = []
    for at, entry in enumerate(log.entries):
        if entry.is_draw and entry.stream is Stream.AUDIT:
            out = out_of_urn(log.entries[:at])
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
        if slow_evidence(draws, total, below, (0.25, 0.2, 0.2, 0.2, 0.15)) < 1 / (0.6 * (1 - level)):
            upper.append(total)
        if slow_evidence(draws, total, above, (0.25,) * 4) < 1 / (0.4 * (1 - level)):
            lower.append(total)
    return min(lower, default=greatest), max(upper, default=least)


def unresolved_groups(log):
    """Groups without a label that were out of the urn at some draw, or are now."""
    without = {group for group in range(len(log.copies)) if log.in_force.get(group) not in LABELS}
    unresolved = without & log.drawn
    for at, entry in enumerate(log.entries):
        if entry.is_draw and entry.stream is Stream.AUDIT:
            unresolved |= without & out_of_urn(log.entries[:at])
    return unresolved


def without_last_pending(log):
    """The log without the draws after the last one that has a decision, which the audit leaves out."""
    shorter = Log(log.copies)
    answered = {group for group, choice in log.in_force.items() if choice is not UNDONE}
    last = max(
        (e.serial for e in log.entries if e.is_draw and e.stream is Stream.AUDIT and e.group in answered), default=0
    )
    left_out = {e.group for e in log.entries if e.is_draw and e.stream is Stream.AUDIT and e.serial > last}
    shorter.entries = [e for e in log.entries if not (e.is_draw and e.stream is Stream.AUDIT and e.serial > last)]
    shorter.drawn, shorter.in_force = log.drawn - left_out, log.in_force
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
    result, replayed = log.audit(level=level), ReplayedLog(log.entries, [log.pile])
    log = without_last_pending(log)
    unresolved = unresolved_groups(log)
    _, high = slow_limits(log, label_with(log, dict.fromkeys(unresolved, True)), level)
    low, _ = slow_limits(log, label_with(log, dict.fromkeys(unresolved, False)), level)
    assert result.total_high == high
    assert result.total_low == min(low, high)
    assert replayed.unresolved == sum(log.copies[group] for group in unresolved)
    assert result.unknown == sum(log.copies[group] for group in log.left)
    outcomes = Counter(log.in_force.get(group) for group in log.drawn)
    assert (result.draws, result.positives) == (outcomes.total(), outcomes[POSITIVE])
    assert (result.skipped, result.pending) == (outcomes[SKIP], outcomes[None] + outcomes[UNDONE])
    assert 0 <= result.hidden_low <= result.hidden_high <= log.pile - result.found
    assert limits(result) == (result.total_low - result.found, result.total_high - result.found)
    assert result.recall_low == (result.found / result.total_high if result.total_high else 1.0)
    assert json.loads(json.dumps(result.as_dict()))["hidden_high"] == result.hidden_high
    assert result.sentence()


# --- coverage ------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.data())
def test_no_draw_is_expected_to_raise_the_evidence(unknown, data):
    before = data.draw(st.integers(0, 20))
    hidden = data.draw(st.integers(0, unknown))
    total, alternatives = before + hidden, np.array(data.draw(st.lists(st.floats(0, 100), min_size=1, max_size=4)))
    expected = np.zeros(len(alternatives))
    for positive, probability in ((True, hidden / unknown), (False, 1 - hidden / unknown)):
        if probability:
            history = DrawHistory(
                np.array([positive]), np.array([float(unknown)]), np.array([float(before)]), np.array([0])
            )
            expected += probability * np.exp(history.log_ratios(total, alternatives)[:, 0])
    assert (expected <= 1 + 1e-9).all()


def chance_of_exclusion(truth, level, log=None):
    """Exact probability that the interval ever excludes the truth, over all orders of draws.

    After a positive draw the ranking finds another positive; otherwise it shows a negative.
    """
    log = log or Log(len(truth))
    result = log.audit(level=level)
    if not result.total_low <= sum(truth) <= result.total_high:
        return Fraction(1)
    urn, chance = log.left, Fraction(0)
    for group in urn:
        branch = Log(log.copies)
        branch.entries, branch.drawn, branch.in_force = list(log.entries), set(log.drawn), dict(log.in_force)
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


def test_without_draws_everything_unknown_may_be_hidden():
    result = Log(10).decide(3, POSITIVE).decide(4, NEGATIVE).decide(5, SKIP).audit()
    assert limits(result) == (0, 8)
    assert (result.draws, result.found, result.unknown) == (0, 1, 8)
    assert result.recall_low == pytest.approx(1 / 9)
    assert math.isnan(result.likeliest_share)


def test_no_positive_in_m_draws_leaves_about_4_n_over_m():
    for pile, draws in ((3000, 100), (50_000, 300), (1_000_000, 1000)):
        log = Log([1] * draws + [pile - draws])  # what is left, as one group
        for group in range(draws):
            log.draw(group, NEGATIVE)
        assert 3.4 < log.audit().hidden_high * draws / pile < 4.2


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
    result = log.audit()
    sensitivity = least_sensitivity(recognised + missed, missed, 0.01)
    assert result.sensitivity_low == sensitivity and 0 < sensitivity < recognised / (recognised + missed)
    without = rechecked(0, 0).audit(level=0.96)  # four fifths of the error are left for the interval
    assert result.total_high == math.ceil(without.total_high / sensitivity)
    assert result.total_low == without.total_low
    assert result.recognised_high == without.hidden_high
    assert f"{missed} of {recognised + missed} known positives" in result.statements()[1]
    assert ", overlooked ones included." in result.sentence()
    assert result.statements()[1].startswith(
        "If positives are overlooked no more often than those that are shown again"
    )


def test_a_recheck_that_is_skipped_or_taken_back_does_not_count():
    log = Log([1] * 20 + [0])
    log.draw(20, SKIP, stream=Stream.RECHECK).draw(20, NEGATIVE, stream=Stream.RECHECK)
    assert (log.audit().rechecks, log.audit().missed) == (1, 1)
    log.decide(20, POSITIVE, stream=Stream.RANKED)  # an undo that restores the decision of before
    assert (log.audit().rechecks, log.audit().missed) == (0, 0)
    log.decide(20, POSITIVE)
    assert (log.audit().rechecks, log.audit().missed) == (1, 0)


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
    expected = log.audit().outlook(20, positives / 20)
    drawn = (np.arange(21) * positives + 10) // 20
    for step in range(20):
        log.draw(200 + step, POSITIVE if drawn[step + 1] > drawn[step] else NEGATIVE)
    assert log.audit().hidden_high == expected
    assert (drawn[-1], log.audit().positives) == (positives, 7 - 1 + 1 + positives)


@pytest.mark.parametrize("positives", [0, 2, 6])
def test_the_outlook_expects_labels_of_pending_draws_wherever_they_lie(positives):
    pending = range(20, 80, 10)
    log = partly_reviewed([3 if group % 4 == 0 else 1 for group in range(400)], 80, pending)
    expected = log.audit().outlook(0, positives / 6)
    assert expected < log.audit().hidden_high
    for number, group in enumerate(pending):
        log.decide(group, POSITIVE if number < positives else NEGATIVE)
    assert log.audit().hidden_high == expected


def test_the_likeliest_total_is_the_one_of_greatest_likelihood():
    log = Log(60)
    for group in range(12):
        log.draw(group, POSITIVE if group % 4 == 0 else NEGATIVE).decide(
            20 + group, POSITIVE if group < 6 else NEGATIVE
        )
    result, likelihoods = log.audit(), {}
    for total in range(result.found, 60 - 12 - 3):
        shares = [((total - f) / n, y) for y, n, f in slow_draws(log, label_with(log, {}))]
        likelihoods[total] = math.prod(share if positive else 1 - share for share, positive in shares)
    likeliest = max(likelihoods, key=likelihoods.get)
    assert abs(result.found + result.likeliest_share * result.unknown - likeliest) <= 1  # it may lie between two


def test_statements_begin_with_one_sentence_and_name_what_they_assume():
    log = Log(3000)
    for group in range(120):
        log.draw(group, POSITIVE if group < 2 else NEGATIVE)
    for group in range(200, 410):
        log.decide(group, POSITIVE)
    result = log.audit()
    first, limit, *_, forecast = result.statements()
    assert (
        first
        == f"212 found. With 95 % confidence at most {result.hidden_high} more among 2,670. Probably none or a few."
    )
    share = f"{math.floor(1000 * result.recall_low) / 10:g}"
    assert limit.startswith(
        f"If no positive was overlooked: at least {share} % of all positives are found (120 random images)"
    )
    none = result.outlook(200, 0)
    assert forecast == f"After 200 more random images, if none of them is positive: at most about {none}."
    log.draw(500).draw(501, SKIP)
    said = "(122 random images; 2 of them skipped or left out, which count as positive until they are decided)"
    assert said in log.audit().statements()[1]
    assert not any("without any assumption" in said.lower() for said in log.audit().statements())


def test_where_random_images_are_positive_the_likeliest_number_and_the_lower_limit_are_said():
    log = Log(3000)
    for group in range(300):
        log.draw(group, POSITIVE if group % 10 == 0 else NEGATIVE)
    result = log.audit()
    assert result.sentence().endswith(f" Probably about {round(result.likeliest_share * result.unknown)}.")
    assert result.statements()[2].startswith(f"As you label them, at least {result.hidden_low} more; ")


def test_a_limit_far_above_what_the_last_looks_support_is_followed_by_what_is_probable():
    log = Log(1500)
    for group in range(48):
        log.decide(group, POSITIVE)
    for group in range(48, 1100):
        log.decide(group, NEGATIVE)
    for group in range(1100, 1150):
        log.draw(group, NEGATIVE)
    result = log.audit()
    assert result.hidden_high > 20
    assert result.sentence() == (
        f"48 found. With 95 % confidence at most {result.hidden_high} more among 350. Probably none or a few."
    )


@pytest.mark.parametrize("draws", [20, 40, 200, 600])
def test_a_forecast_moves_by_what_one_image_can_move(draws):
    figures = []
    for positives in range(5):
        log = Log(3500)
        for group in range(draws):
            log.draw(group, POSITIVE if draws - group <= positives else NEGATIVE)
        result = log.audit()
        expected = result.expected_positives(200)
        assert expected < max(positives, 1) and result.forecast().endswith(f" {result.outlook(200, expected / 200):,}.")
        figures.append((result.hidden_high, result.outlook(200, expected / 200)))
    steps = np.diff(figures, axis=0)
    one_image = steps[0, 1]  # by the first positive, which lets expect no other
    assert (steps[:, 1] <= one_image).all(), figures


def test_sentences_without_draws_and_without_images():
    result = Log(3000).decide(0, POSITIVE).audit()
    assert result.statements() == [
        "1 found. How many more is not known before the first random image.",
        f"After 200 random images, if none of them is positive: at most about {result.outlook(200, 0)}.",
    ]
    assert Log(2).decide(0, NEGATIVE).decide(1, POSITIVE).audit().statements() == ["1 found. Every image is decided."]
    assert Log(2).draw(0, NEGATIVE).draw(1, POSITIVE).audit().sentence() == "1 found. Every image is decided."
    assert Log(2).draw(0, SKIP).decide(1, POSITIVE).audit().sentence() == (
        "1 found. With 95 % confidence at most 1 more among 1."
    )
    assert "After 1 more random image, if none of them is" in Log(2).draw(0, NEGATIVE).audit().forecast()


# --- several urns ---------------------------------------------------------------------------------------


def log_of_urns(labels, order, decided):
    """Entries over urns of single rows with these labels: decisions on some of the first one, then draws."""
    logs, entries = [Log(len(rows)) for rows in labels], []
    for urn, take in [*[(0, Log.decide)] * decided, *((urn, Log.draw) for urn in order)]:
        log, before, first = logs[urn], len(logs[urn].entries), sum(map(len, labels[:urn]))
        if log.left:
            group = log.left[0]
            take(log, group, POSITIVE if labels[urn][group] else NEGATIVE)
            for entry in log.entries[before:]:
                entries.append(replace(entry, serial=len(entries) + 1, group=first + group, urn=urn))
    return entries


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=7), min_size=2, max_size=3),
    st.lists(st.integers(0, 2), max_size=12),
    st.sampled_from([0.3, 0.5, 0.8]),
)
def test_limits_of_several_urns_equal_a_search_over_all_their_totals(labels, order, level):
    urns = [len(rows) for rows in labels]
    entries = log_of_urns(labels, [urn for urn in order if urn < len(urns)], decided=len(labels[0]) // 3)
    result, log = audit_entries(entries, urns, level=level), ReplayedLog(entries, urns)
    sums = {evidence_above: [int(log.found.sum())], evidence_below: []}
    for evidence, part in ((evidence_above, UPPER_PART), (evidence_below, 1 - UPPER_PART)):
        possible = [range(f, n - r + 1) for f, n, r in zip(log.found, urns, log.rejected, strict=True)]
        for totals in itertools.product(*possible):
            logs_e = sum(evidence(log.all_positive, k, urns[urn], urn) for urn, k in enumerate(totals))
            if logs_e.max(initial=0) < -math.log(part * (1 - level)):
                sums[evidence].append(sum(totals))
    high = max(sums[evidence_above])
    assert result.total_high == high
    assert result.total_low == min([*sums[evidence_below], high], default=high)


# --- a zone in parts ------------------------------------------------------------------------------------

PILE, CAME, PART = 45, 40, 25  # rows of each urn, and of each part of the zone


class ZonedReview:
    """A review of a pile that grows, by random images among the likeliest, among all, and by rank; rows are groups."""

    def __init__(self, seed):
        self.rng, self.entries, self.left = np.random.default_rng(seed), [], set(range(PILE))
        rows = np.arange(PILE + CAME)
        self.rank = np.where(rows < PILE, rows, rows - PILE)  # in its urn
        self.part = np.where(self.rank < PART, 1 + (rows >= PILE), 0)
        self.y = self.rng.random(len(rows)) < np.where(self.part > 0, 0.15, 0.05)

    def look(self, stream):
        """One image, decided by the truth."""
        left = np.array(sorted(self.left))
        among = left[self.part[left] > 0] if stream is Stream.ZONE else left
        if not len(among):
            return
        row = int(among[self.rank[among].argmin()] if stream is Stream.RANKED else self.rng.choice(among))
        own = self.part if stream is Stream.ZONE else np.arange(PILE + CAME) >= PILE
        shared = {"row": row, "group": row, "copies": 1, "positives": 0, "time": 0.0, "stream": stream}
        shared |= {"urn": int(row >= PILE), "zone": int(self.part[row]), "unknown": int((own[left] == own[row]).sum())}
        for choice in (None, POSITIVE if self.y[row] else NEGATIVE)[stream is Stream.RANKED :]:
            self.entries.append(Entry(serial=len(self.entries) + 1, choice=choice, **shared))
        self.left.remove(row)

    def hold(self, level, parts):
        """Whether both limits hold, and how much they exclude among the likeliest."""
        urns, inside = [PILE, CAME][: len(parts)], self.part[sorted(self.left)] > 0
        now, hidden = audit_entries(self.entries, urns, level=level, zone=parts), self.y[sorted(self.left)]
        assert now.zone.rows == sum(parts) and now.zone.unknown == inside.sum()
        holds = hidden[inside].sum() <= now.zone.hidden_high and hidden[~inside].sum() <= now.rest_high
        return holds, inside.sum() - now.zone.hidden_high


def test_the_limits_of_a_zone_in_parts_hold_after_the_pile_grew():
    missed, excluded, count, level = 0, [], 40, 0.3
    for seed in range(count):
        review, held = ZonedReview(seed), True
        for parts in ((PART,), (PART, PART)):
            for stream in map(Stream, review.rng.permutation([*[Stream.ZONE] * 16, Stream.AUDIT, Stream.RANKED])):
                review.look(stream)
            holds, less = review.hold(level, parts)
            held &= holds
            review.left |= set(range(PILE, PILE + CAME)) if len(parts) == 1 else set()
        missed += not held
        excluded.append(less)
    assert missed <= (1 - level) * count and np.mean(excluded) > 1, (missed, excluded)


# --- size, and wrong input -----------------------------------------------------------------------------


def test_draws_that_contradict_the_log_are_refused():
    good = Log(20).decide(3, POSITIVE).draw(5, NEGATIVE)
    wrong = [replace(entry, unknown=20) if entry.is_draw else entry for entry in good.entries]
    with pytest.raises(ValueError, match="20 unknown rows; 19 of 20 were left"):
        audit_entries(wrong, [20])
    with pytest.raises(ValueError, match="19 unknown rows; 29 of 30 were left"):
        audit_entries(good.entries, [30])
    with pytest.raises(ValueError, match="row 5, which had been decided or drawn before"):
        Log(20).draw(5, NEGATIVE).draw(5, NEGATIVE).audit()
    with pytest.raises(ValueError, match="row 5, which had been decided or drawn before"):
        Log(20).decide(5, NEGATIVE).draw(5).audit()
    with pytest.raises(ValueError, match="row 1, which is not in the pile"):
        Log([3, 0]).draw(1, NEGATIVE).audit()


def test_wrong_arguments_are_refused():
    log = Log([2, 1, 1]).draw(0, NEGATIVE)
    with pytest.raises(ValueError, match="in the order of the log"):
        audit_entries(log.entries[::-1], [4])
    with pytest.raises(ValueError, match="the entries are about 2 rows; the pile has 1"):
        audit_entries(log.entries, [1])
    other = replace(log.entries[1], copies=5)
    with pytest.raises(ValueError, match="group 0 has 5 rows in urn 0, and had 2"):
        audit_entries([log.entries[0], other], [9])
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            audit_entries([], [4], level=level)
    with pytest.raises(ValueError, match="at least 0 rows"):
        audit_entries([], [-1])
    for more, share in ((-1, 0.1), (5, 1.5), (5, math.nan)):
        with pytest.raises(ValueError, match="more must be at least 0 and share within 0 and 1"):
            log.audit().outlook(more, share)
