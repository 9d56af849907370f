"""The audit: against brute force, exact coverage on tiny piles, and each way in which a log could mislead it."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from helpers.slow import slow
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.reviewing import hidden_interval
from pucache.reviewing.audit import MISSES_NEEDED, RECHECKS_NEEDED, UPPER_PART, audit_entries
from pucache.reviewing.audit_log import replay
from pucache.reviewing.hidden_interval import DrawHistory, evidence_above, evidence_below, least_sensitivity
from pucache.reviewing.log import Choice, Decision, Draw, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice.POSITIVE, Choice.NEGATIVE, Choice.SKIP, Choice.UNDONE
LABELS = (POSITIVE, NEGATIVE)


class Log:
    """Writes entries as a session does. `copies`: rows of each group."""

    def __init__(self, copies):
        self.copies = [copies] if isinstance(copies, int) else list(copies)
        if isinstance(copies, int):
            self.copies = [1] * copies
        self.entries, self.drawn, self.in_force, self.rechecked = [], set(), {}, set()

    @property
    def pile(self):
        return sum(self.copies)

    @property
    def out(self):
        return self.drawn | {group for group, choice in self.in_force.items() if choice in LABELS}

    @property
    def left(self):
        """Groups in the urn."""
        return [group for group, copies in enumerate(self.copies) if copies and group not in self.out]

    def common(self, group):
        unknown = self.pile - sum(self.copies[one] for one in self.out)
        positives = sum(self.copies[one] for one, choice in self.in_force.items() if choice is POSITIVE)
        return {
            "serial": len(self.entries) + 1,
            "row": group,
            "group": group,
            "copies": self.copies[group],
            "unknown": unknown,
            "positives": positives,
            "model_version": 0,
            "time": 0.0,
        }

    def draw(self, group, choice=None, *, stream=Stream.AUDIT):
        self.entries.append(Draw(stream=stream, expected=math.nan, **self.common(group)))
        if stream is Stream.AUDIT:
            self.drawn.add(group)
        else:
            self.rechecked.add(group)
        return self if choice is None else self.decide(group, choice)

    def decide(self, group, choice, *, stream=None):
        stream = stream or (
            Stream.RECHECK if group in self.rechecked else Stream.AUDIT if group in self.drawn else Stream.RANKED
        )
        what = {"request": f"r{len(self.entries)}", "choice": choice, "stream": stream, "replaces": 0, "reviewer": ""}
        self.entries.append(Decision(**what, **self.common(group)))
        self.in_force[group] = choice
        return self

    def audit(self, **options):
        return audit_entries(self.entries, self.pile, **options)


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
        if isinstance(entry, Decision):
            in_force[entry.group] = entry.choice
        elif entry.stream is Stream.AUDIT:
            drawn.add(entry.group)
    return drawn | {group for group, choice in in_force.items() if choice in LABELS}


def slow_draws(log, label):
    """(y, n, f) of each draw, where `label` says which groups are positive."""
    draws = []
    for at, entry in enumerate(log.entries):
        if isinstance(entry, Draw) and entry.stream is Stream.AUDIT:
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


def doubtful_groups(log):
    """Groups without a label that were out of the urn at some draw, or are now."""
    without = {group for group in range(len(log.copies)) if log.in_force.get(group) not in LABELS}
    doubtful = without & log.drawn
    for at, entry in enumerate(log.entries):
        if isinstance(entry, Draw) and entry.stream is Stream.AUDIT:
            doubtful |= without & out_of_urn(log.entries[:at])
    return doubtful


def label_with(log, assignment):
    """True, False or None (still in the urn) for each group."""
    return [
        assignment[group] if group in assignment else {POSITIVE: True, NEGATIVE: False}.get(log.in_force.get(group))
        for group in range(len(log.copies))
    ]


@settings(max_examples=100, deadline=None)
@given(logs(), st.sampled_from([0.3, 0.5, 0.8, 0.95]))
def test_limits_equal_a_search_over_every_total(log, level):
    doubtful = doubtful_groups(log)
    result, log_now = log.audit(level=level), replay(log.entries, log.pile)
    _, high = slow_limits(log, label_with(log, dict.fromkeys(doubtful, True)), level)
    low, _ = slow_limits(log, label_with(log, dict.fromkeys(doubtful, False)), level)
    assert result.total_high == high
    assert result.total_low == min(low, high)
    assert log_now.doubtful == sum(log.copies[group] for group in doubtful)
    assert result.unknown == sum(log.copies[group] for group in log.left)


@settings(max_examples=80, deadline=None)
@given(logs(), st.sampled_from([0.2, 0.5, 0.8]))
def test_no_labels_of_the_doubtful_make_the_interval_wider(log, level):
    doubtful = sorted(doubtful_groups(log))
    result = log.audit(level=level)
    for labels in itertools.product((True, False), repeat=len(doubtful)):
        low, high = slow_limits(log, label_with(log, dict(zip(doubtful, labels, strict=True))), level)
        assert result.total_high >= high
        assert result.total_low <= low


@settings(max_examples=80, deadline=None)
@given(logs(most_groups=30, most_actions=40))
def test_evidence_is_monotone_in_the_total(log):
    result = replay(log.entries, log.pile)
    greatest = log.pile - result.rejected
    above = [
        evidence_above(result.all_positive, k, log.pile) for k in range(result.found + result.doubtful, greatest + 1)
    ]
    below = [
        evidence_below(result.all_negative, k, log.pile) for k in range(result.found, greatest - result.doubtful + 1)
    ]
    assert (np.diff(above) >= -1e-9).all()
    assert (np.diff(below) <= 1e-9).all()


@settings(max_examples=80, deadline=None)
@given(logs())
def test_counts_add_up(log):
    result = log.audit()
    assert 0 <= result.hidden_low <= result.hidden_high <= log.pile - result.found
    assert result.total_low == result.found + result.hidden_low
    assert result.total_high == result.found + result.hidden_high
    assert result.recall_low == (result.found / result.total_high if result.total_high else 1.0)
    assert result.draws == len(log.drawn)
    assert result.positives + result.skipped + result.pending <= result.draws
    assert json.loads(json.dumps(result.as_dict()))["hidden_high"] == result.hidden_high
    assert result.sentence() and result.sentence(3.0)


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
            history = DrawHistory(np.array([positive]), np.array([float(unknown)]), np.array([float(before)]))
            expected += probability * np.exp(history.log_ratios(total, alternatives)[:, 0])
    assert (expected <= 1 + 1e-9).all()


def greedy(log, truth, brought):
    """After a positive the ranking finds another one, otherwise it shows a negative."""
    found = [group for group in log.left if truth[group] == brought]
    return found[:1]


def contrary(log, truth, brought):
    """The ranking learns the wrong lesson, and looks at two images."""
    return [group for group in log.left if truth[group] != brought][:2]


def nothing(log, truth, brought):
    return []


def chance_of_exclusion(truth, strategy, level, log=None, skipped=()):
    """Exact probability that the interval ever excludes the truth, over all orders of draws."""
    log = log or Log(len(truth))
    result = log.audit(level=level)
    if not result.total_low <= sum(truth) <= result.total_high:
        return Fraction(1)
    urn, chance = log.left, Fraction(0)
    for group in urn:
        branch = Log(log.copies)
        branch.entries, branch.drawn, branch.in_force = list(log.entries), set(log.drawn), dict(log.in_force)
        branch.draw(group, SKIP if group in skipped else POSITIVE if truth[group] else NEGATIVE)
        for other in strategy(branch, truth, truth[group]):
            branch.decide(other, POSITIVE if truth[other] else NEGATIVE)
        chance += chance_of_exclusion(truth, strategy, level, branch, skipped) / len(urn)
    return chance


@pytest.mark.parametrize("strategy", [greedy, slow(contrary), slow(nothing)])
def test_exact_coverage_over_all_orders_of_draws(strategy):
    chances = [chance_of_exclusion([True] * k + [False] * (6 - k), strategy, 0.5) for k in range(7)]
    assert max(chances) <= Fraction(1, 2)
    assert strategy is not nothing or max(chances) > Fraction(1, 20)  # the test can fail


def test_exact_coverage_with_skipped_positives():
    for k in range(1, 6):
        truth = [True] * k + [False] * (6 - k)
        assert chance_of_exclusion(truth, greedy, 0.5, skipped={0, 5}) <= Fraction(1, 2)


@pytest.mark.parametrize("sensitivity", [0.3, slow(0.7), 0.95])
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


def test_an_empty_pile_and_a_pile_that_is_all_decided():
    assert limits(audit_entries([], 0)) == (0, 0)
    assert audit_entries([], 0).recall_low == 1.0
    result = Log(2).decide(0, NEGATIVE).draw(1, POSITIVE).audit()
    assert limits(result) == (0, 0)
    assert result.recall_low == 1.0


def test_no_positive_in_m_draws_leaves_about_4_n_over_m():
    for pile, draws in ((3000, 100), (50_000, 300), (1_000_000, 1000)):
        log = random_review(pile, [False] * draws)
        assert 3.4 < log.audit().hidden_high * draws / pile < 4.2


def random_review(pile, labels):
    log = Log(0)
    log.copies = [1] * len(labels) + [pile - len(labels)]  # what is left, as one group
    for group, positive in enumerate(labels):
        log.draw(group, POSITIVE if positive else NEGATIVE)
    return log


def test_a_skipped_draw_counts_as_positive_above_and_as_negative_below():
    labels = [POSITIVE, NEGATIVE] * 6
    logs = {choice: Log(60) for choice in (SKIP, UNDONE, None, *LABELS)}
    for choice, log in logs.items():
        for group, label in enumerate(labels):
            log.draw(group, label)
        log.draw(20, choice)
    results = {choice: log.audit(level=0.5) for choice, log in logs.items()}
    for choice in (SKIP, UNDONE, None):
        assert results[choice].total_high == results[POSITIVE].total_high
        assert results[choice].total_low == results[NEGATIVE].total_low
        assert results[choice].found == results[NEGATIVE].found
        assert results[choice].hidden_high == results[POSITIVE].hidden_high + 1  # it may itself be hidden
        assert results[choice].unknown == results[POSITIVE].unknown
    assert results[NEGATIVE].total_high < results[POSITIVE].total_high
    assert (results[SKIP].skipped, results[SKIP].pending) == (1, 0)
    assert (results[None].skipped, results[None].pending) == (0, 1)
    assert (results[UNDONE].skipped, results[UNDONE].pending) == (0, 1)


def test_a_skip_in_the_ranking_stays_in_the_urn():
    log = Log(30).draw(0, NEGATIVE).decide(7, SKIP).draw(1, NEGATIVE).draw(7, POSITIVE)
    result = log.audit()
    assert result.draws == 3 and result.positives == 1 and result.skipped == 0


def test_undo_and_the_same_decision_again_change_nothing():
    plain = Log(40).decide(5, POSITIVE).draw(1, NEGATIVE).draw(2, POSITIVE).decide(6, NEGATIVE).draw(3, NEGATIVE)
    again = Log(40).decide(5, POSITIVE).draw(1, NEGATIVE).draw(2, POSITIVE)
    again.decide(2, UNDONE).decide(2, POSITIVE).decide(5, UNDONE).decide(5, POSITIVE).decide(1, UNDONE)
    again.decide(6, NEGATIVE).draw(3, NEGATIVE).decide(1, NEGATIVE)
    assert plain.audit(level=0.5) == again.audit(level=0.5)


def test_a_changed_decision_counts_from_the_beginning():
    changed = Log(40).draw(1, NEGATIVE).draw(2, NEGATIVE).decide(1, POSITIVE)
    assert changed.audit(level=0.5) == Log(40).draw(1, POSITIVE).draw(2, NEGATIVE).audit(level=0.5)


def test_a_ranked_label_that_is_taken_back_was_out_of_the_urn_all_the_same():
    log = Log(12).decide(5, NEGATIVE).draw(1, NEGATIVE).decide(5, UNDONE).draw(2, NEGATIVE)
    history = replay(log.entries, 12)
    assert history.doubtful == 1
    assert history.all_positive.unknown.tolist() == [11, 11]
    assert history.all_positive.positives_before.tolist() == [1, 0]
    assert history.all_negative.positives_before.tolist() == [0, 0]
    assert log.audit().hidden_high >= 1
    at_once = Log(12).decide(5, NEGATIVE).decide(5, UNDONE).draw(1, NEGATIVE).draw(2, NEGATIVE)
    assert at_once.audit() == Log(12).draw(1, NEGATIVE).draw(2, NEGATIVE).audit()


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(10)), st.lists(st.booleans(), min_size=10, max_size=10))
def test_the_order_of_decisions_before_a_draw_does_not_matter(order, labels):
    results = []
    for groups in (range(10), order):
        log = Log(50).draw(40, POSITIVE)
        for group in groups:
            log.decide(group, POSITIVE if labels[group] else NEGATIVE)
        results.append(log.draw(41, NEGATIVE).draw(42, POSITIVE).audit(level=0.5))
    assert results[0] == results[1]


def test_a_decision_after_the_draw_changes_f_of_later_draws_alone():
    before = replay(Log(20).decide(5, POSITIVE).draw(1, NEGATIVE).draw(2, NEGATIVE).entries, 20).all_positive
    after = replay(Log(20).draw(1, NEGATIVE).decide(5, POSITIVE).draw(2, NEGATIVE).entries, 20).all_positive
    assert before.positives_before.tolist() == [1, 1] and before.unknown.tolist() == [19, 18]
    assert after.positives_before.tolist() == [0, 1] and after.unknown.tolist() == [20, 18]


def test_twins_enter_with_all_their_rows():
    log = Log([3, 1, 2, *[1] * 20]).draw(0, POSITIVE).draw(2, NEGATIVE).draw(1, NEGATIVE)
    history = replay(log.entries, 26)
    assert history.all_positive.unknown.tolist() == [26, 23, 21]
    assert history.all_positive.positives_before.tolist() == [0, 3, 3]
    result = log.audit()
    assert (result.draws, result.positives, result.found, result.unknown) == (3, 1, 3, 20)


def test_twins_of_the_ranking_count_too():
    log = Log([4, 1, 1, 1, 1]).draw(1, NEGATIVE).decide(0, POSITIVE).draw(2, NEGATIVE)
    assert replay(log.entries, 8).all_negative.positives_before.tolist() == [0, 4]


def test_more_hidden_rows_are_possible_than_draws_were_made():
    """The limit falls as positives are found in the ranking, whoever finds them."""
    log = Log(100)
    for group in range(30):
        log.draw(group, POSITIVE if group < 10 else NEGATIVE)
    early = log.audit()
    for group in range(30, 50):
        log.decide(group, POSITIVE)
    late = log.audit()
    assert late.total_high == early.total_high and late.hidden_high == early.hidden_high - 20
    for group in range(50, 90):
        log.decide(group, NEGATIVE)
    assert log.audit().hidden_high == min(late.hidden_high, 10)


def test_the_upper_limit_never_rises_as_long_as_labels_stay():
    log, limit = Log(400), 400
    labels = np.random.default_rng(3).random(400) < 0.1
    for group in range(200):
        log.draw(group, POSITIVE if labels[group] else NEGATIVE)
        result = log.audit()
        assert result.total_high <= limit
        limit = result.total_high
        assert result.total_low <= labels.sum() <= result.total_high


# --- rechecks ------------------------------------------------------------------------------------------


def rechecked(recognised, missed):
    log = Log([1] * 3000 + [0])  # the last group is a positive from before the session
    for group in range(100):
        log.draw(group, POSITIVE if group < 10 else NEGATIVE)
    for _ in range(recognised + missed):
        log.draw(3000, POSITIVE if recognised > 0 else NEGATIVE, stream=Stream.RECHECK)
        recognised -= 1
    return log


def test_rechecks_are_no_audit_draws_and_positives_from_before_are_not_in_the_pile():
    plain, result = rechecked(0, 0).audit(), rechecked(10, 2).audit()
    assert (result.rechecks, result.missed, result.sensitivity_low) == (12, 2, None)
    assert limits(result) == limits(plain) and result.found == plain.found and result.draws == plain.draws


@pytest.mark.parametrize(("recognised", "missed"), [(RECHECKS_NEEDED, 0), (12, MISSES_NEEDED), (97, 3)])
def test_enough_rechecks_divide_the_upper_limit(recognised, missed):
    log = rechecked(recognised, missed)
    result = log.audit()
    sensitivity = least_sensitivity(recognised + missed, missed, 0.01)
    assert result.sensitivity_low == sensitivity and 0 < sensitivity < recognised / (recognised + missed)
    without = rechecked(0, 0).audit(level=0.96)  # four fifths of the error are left for the interval
    assert result.total_high == math.ceil(without.total_high / sensitivity)
    assert result.total_low == without.total_low
    assert f"{missed} of {recognised + missed} known positives" in result.sentence()


def test_a_reviewer_who_recognises_nothing_leaves_no_limit():
    result = rechecked(0, 5).audit()
    assert result.sensitivity_low == 0.0 and result.total_high == 3000


def test_a_recheck_that_is_skipped_or_taken_back_does_not_count():
    log = Log([1] * 20 + [0])
    log.draw(20, SKIP, stream=Stream.RECHECK).draw(20, NEGATIVE, stream=Stream.RECHECK)
    assert (log.audit().rechecks, log.audit().missed) == (1, 1)
    log.decide(20, POSITIVE, stream=Stream.RANKED)  # an undo that restores the decision of before
    assert (log.audit().rechecks, log.audit().missed) == (0, 0)
    log.decide(20, POSITIVE)
    assert (log.audit().rechecks, log.audit().missed) == (1, 0)


def test_a_positive_of_the_review_follows_its_recheck():
    log = Log(20).decide(5, POSITIVE).draw(1, NEGATIVE).draw(5, NEGATIVE, stream=Stream.RECHECK).draw(2, NEGATIVE)
    result = log.audit()
    assert (result.found, result.missed, result.draws) == (0, 1, 2)
    assert replay(log.entries, 20).all_positive.positives_before.tolist() == [0, 0]


@pytest.mark.parametrize("missed", [0, 1, 5, 20])
def test_the_limit_of_the_sensitivity_is_where_its_evidence_meets_the_error(missed):
    seen, s = 60 - missed, least_sensitivity(60, missed, 0.01)
    alternatives = [1 - r * (1 - s) for r in hidden_interval.REMAINING_MISSES]
    ratios = [(a / s) ** seen * ((1 - a) / (1 - s)) ** missed for a in alternatives]
    assert np.dot(hidden_interval.MISS_WEIGHTS, ratios) == pytest.approx(100, rel=1e-6)


# --- outlook and words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("positives", [0, 1, 7, 20])
def test_the_outlook_is_the_audit_of_such_a_future(positives):
    log = Log(500)
    for group in range(60):
        log.draw(group, SKIP if group == 7 else POSITIVE if group % 9 == 0 else NEGATIVE)
    log.decide(100, POSITIVE)
    expected = log.audit().outlook(20, positives / 20)
    rows = np.arange(21) * positives
    drawn = (rows + 10) // 20
    for step in range(20):
        log.draw(200 + step, POSITIVE if drawn[step + 1] > drawn[step] else NEGATIVE)
    assert log.audit().hidden_high == expected
    assert (drawn[-1], log.audit().positives) == (positives, 7 - 1 + 1 + positives)


@pytest.mark.parametrize("positives", [0, 2, 6])
def test_the_outlook_expects_labels_of_pending_draws_wherever_they_lie(positives):
    log = Log([3 if group % 4 == 0 else 1 for group in range(400)])
    pending = range(20, 80, 10)
    for group in range(80):
        log.draw(group, None if group in pending else SKIP if group == 7 else POSITIVE if group % 9 == 0 else NEGATIVE)
    log.decide(100, POSITIVE)
    expected = log.audit().outlook(0, positives / 6)
    assert expected < log.audit().hidden_high
    for number, group in enumerate(pending):
        log.decide(group, POSITIVE if number < positives else NEGATIVE)
    assert log.audit().hidden_high == expected


def test_the_outlook_of_all_that_is_left_is_nothing():
    result = Log(30).draw(0, POSITIVE).draw(1, NEGATIVE).audit()
    assert result.outlook(28, 0.5) == result.outlook(10**6, 0.5) == 0
    assert result.outlook(0) == result.hidden_high
    assert result.outlook(5, 0.0) <= result.outlook(5)


def test_the_likeliest_share_is_that_of_the_draws_where_nothing_else_is_decided():
    log = Log(1000)
    for group in range(100):
        log.draw(group, POSITIVE if group < 10 else NEGATIVE)
    assert log.audit().likeliest_share == pytest.approx(0.1, abs=0.002)
    log.draw(500, SKIP)
    assert log.audit().likeliest_share == pytest.approx(0.1, abs=0.002)


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


def test_sentences():
    log = Log(3000)
    for group in range(120):
        log.draw(group, POSITIVE if group < 2 else NEGATIVE)
    for group in range(200, 410):
        log.decide(group, POSITIVE)
    result = log.audit()
    outlook = result.outlook(200, 11 / result.unknown)
    assert result.sentence(11.3) == (
        f"found 212; at most {result.hidden_high} more with 95 % confidence (120 random images), about 11 by the "
        f"model; 200 more random images would make it at most about {outlook}"
    )
    assert "by the model" not in result.sentence() and "by the model" not in result.sentence(math.nan)
    log.draw(500).draw(501, SKIP)
    assert "(122 random images; 2 without a label counted as positive)" in log.audit().sentence()


def test_sentences_without_draws_and_without_images():
    result = Log(3000).decide(0, POSITIVE).audit()
    assert result.sentence() == (
        "found 1; how many more is not known: no image was drawn at random yet; 200 random images would make it "
        f"at most about {result.outlook(200, 0)}"
    )
    assert result.sentence(40).startswith("found 1; about 40 more by the model, and nothing is known beyond it: ")
    assert Log(2).decide(0, NEGATIVE).decide(1, POSITIVE).audit().sentence(3) == "found 1; every image is decided"
    assert Log(2).draw(0, NEGATIVE).draw(1, POSITIVE).audit().sentence().startswith("found 1; at most 0 more with 95 %")
    assert "1 more random image would" in Log(2).draw(0, NEGATIVE).audit().sentence()


# --- size, and wrong input -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pile_of_millions_with_thousands_of_draws():
    labels = np.random.default_rng(0).random(3000) < 0.01
    result = random_review(5_000_000, labels.tolist()).audit()
    assert result.total_low <= 50_000 <= result.total_high < 100_000


def test_draws_that_contradict_the_log_are_refused():
    good = Log(20).decide(3, POSITIVE).draw(5, NEGATIVE)
    with pytest.raises(ValueError, match="20 unknown rows; 19 of 20 were left"):
        audit_entries(broken(good), 20)
    with pytest.raises(ValueError, match="19 unknown rows; 29 of 30 were left"):
        audit_entries(good.entries, 30)
    with pytest.raises(ValueError, match="row 5, which had been decided or drawn before"):
        Log(20).draw(5, NEGATIVE).draw(5, NEGATIVE).audit()
    with pytest.raises(ValueError, match="row 5, which had been decided or drawn before"):
        Log(20).decide(5, NEGATIVE).draw(5).audit()
    with pytest.raises(ValueError, match="row 1, which is not in the pile"):
        Log([3, 0]).draw(1).audit()


def broken(log):
    """The log with the wrong number of unknown rows at its draw."""
    return [
        Draw(**{**vars(entry), "unknown": entry.unknown + 1}) if isinstance(entry, Draw) else entry
        for entry in log.entries
    ]


def test_wrong_arguments_are_refused():
    log = Log([2, 1, 1]).draw(0, NEGATIVE)
    with pytest.raises(ValueError, match="in the order of the log"):
        audit_entries(log.entries[::-1], 4)
    with pytest.raises(ValueError, match="the entries are about 2 rows; the pile has 1"):
        audit_entries(log.entries, 1)
    other = Decision(**{**vars(log.entries[1]), "copies": 5})
    with pytest.raises(ValueError, match="group 0 has 5 rows, and had 2"):
        audit_entries([log.entries[0], other], 9)
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            audit_entries([], 4, level=level)
    with pytest.raises(ValueError, match="at least 0 rows"):
        audit_entries([], -1)
    for more, share in ((-1, 0.1), (5, 1.5), (5, math.nan)):
        with pytest.raises(ValueError, match="more must be at least 0 and share within 0 and 1"):
            log.audit().outlook(more, share)


def test_the_parts_of_the_error_and_the_weights_add_up():
    assert hidden_interval.WEIGHTS_BELOW.sum() == pytest.approx(1)
    assert hidden_interval.WEIGHTS_ABOVE.sum() == pytest.approx(1)
    assert hidden_interval.MISS_WEIGHTS.sum() == pytest.approx(1)
    assert 0 < UPPER_PART < 1
