from dataclasses import dataclass, replace

import pytest

from pucache.reviewing.audit import audit_entries
from pucache.reviewing.log import Draw, Stream
from pucache.reviewing.stop_advice import advice


@dataclass(frozen=True)
class Counts:
    unknown: int = 5000
    pending: int = 0
    skipped: int = 0
    rate: float = 0.03
    rate_of: int = 100


@dataclass(frozen=True)
class Audited:
    draws: int = 40
    positives: int = 1
    hidden_high: int = 240
    recall_low: float = 0.5
    level: float = 0.95
    likeliest_share: float = 0.02

    def outlook(self, more, share):
        assert share is None or 0 <= share <= 1
        return round(60 * more / 200)


def test_nothing_is_said_while_the_ranking_yields():
    assert advice(Counts(rate=0.4), Audited()) == ""


def test_nothing_is_said_after_few_decisions():
    assert advice(Counts(rate=0.0, rate_of=20), None) == ""


def test_the_closing_audit_is_offered_with_its_reason_when_the_yield_has_fallen():
    text = advice(Counts(), Audited(), estimate=11.2)
    assert "3 of the last 100" in text
    assert "closing audit" in text
    assert "at most 240 by now, about 60 after 200 more" in text
    assert "about 11 by the model" in text


def test_a_small_pile_has_fewer_images_left_than_the_outlook_asks_for():
    assert "about 15 after 50 more" in advice(Counts(unknown=50), Audited())


def test_without_an_audit_no_bound_is_named():
    text = advice(Counts(), None)
    assert "3 of the last 100" in text
    assert "at most" not in text


def test_a_ranking_no_better_than_random_images_yields_little():
    half = Audited(draws=40, positives=20, likeliest_share=0.5)
    assert "closing audit" in advice(Counts(rate=0.45), half)
    assert advice(Counts(rate=0.45), replace(half, draws=10, positives=5)) == ""


def test_stopping_is_advised_when_the_bound_says_so():
    text = advice(Counts(rate=0.4), Audited(recall_low=0.96, hidden_high=9))
    assert text.startswith("You may stop")
    assert "96%" in text
    assert "at most 9" in text


def test_a_closing_audit_says_what_it_will_bring():
    text = advice(Counts(rate=0.01), Audited(), closing_audit=True)
    assert "about 60 after 200 more" in text
    assert "would say" not in text
    assert advice(Counts(), None, closing_audit=True) == ""


def test_a_model_that_expects_more_than_there_are_images_does_not_break_it():
    assert "about 9,000 by the model" in advice(Counts(), Audited(), estimate=9000.0)


def test_the_advice_rests_on_a_true_audit():
    draws = [Draw(at, at, at, 1, Stream.AUDIT, 501 - at, 0, 0.1, 0, 0.0) for at in range(1, 41)]
    found = audit_entries(draws, 500)
    text = advice(Counts(unknown=460), found)
    assert f"at most {found.hidden_high:,} by now, about {found.outlook(200):,} after 200 more" in text
    assert "at most" in advice(Counts(unknown=460), found, estimate=700.0)


@pytest.mark.parametrize(("skipped", "expected"), [(0, "decided."), (7, "decided or skipped (7).")])
def test_the_end_of_the_pile(skipped, expected):
    assert advice(Counts(unknown=0, skipped=skipped), Audited(recall_low=1.0)).endswith(expected)


def test_the_pile_is_not_at_its_end_while_draws_wait():
    assert "All images" not in advice(Counts(unknown=0, pending=2), Audited())


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("audit", [None, Audited(draws=0, positives=0), Audited()])
def test_it_is_one_line(closing, rate, audit):
    text = advice(Counts(rate=rate), audit, estimate=3.0, closing_audit=closing)
    assert "\n" not in text
    assert not text or text.endswith(".")
