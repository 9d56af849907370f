"""What limits say in words, and what each sentence assumes."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.reviews import Log
from helpers.strata import stratum

from pucache.estimates.limit_sentences import sentences
from pucache.estimates.limits import Limits
from pucache.reviewing.log import Choice, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


def drawn(positives, draws=300, rows=3000):
    log = Log(rows)
    for group in range(draws):
        log.draw(group, POSITIVE if positives and group % (draws // positives) == 0 else NEGATIVE)
    return log


def test_the_sentence_says_what_is_found_and_hidden_what_it_assumes_and_what_would_narrow_it():
    log = drawn(2, 120)
    for group in range(200, 410):
        log.decide(group, POSITIVE)
    result = log.limits()
    assert 0 <= result.perhaps <= result.hidden_high
    known, narrowing = result.sentence.split(" To narrow this, ")
    assert known == (
        f"212 found. Perhaps {result.perhaps} more are hidden; at most {result.hidden_high}, with 95 % confidence, if "
        "no positive was overlooked."
    )
    none = result.further(200, 0)[0]
    assert narrowing == f"decide 200 more random images: at most about {none} if none of them is positive."
    log.draw(500).draw(501, SKIP)
    left_out = log.limits()
    assert "To narrow this, decide 2 random images without a label, then decide 200 more" in left_out.sentence
    doubts = replace(left_out, doubted=1).sentence
    assert "To narrow this, look again at 1 doubted decision, then decide 2 random images" in doubts
    assert result.as_dict()["sentence"] == result.sentence == sentences(result)[0]


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
        zone = stratum(600, [(label, 1, 301 + number) for number, label in enumerate(drawn)])
        return Limits.of(history.strata(), history.looks(), zone=[zone])

    none, twenty = limits(0), limits(20)
    assert none.perhaps <= 10 and replace(none, zone=None).perhaps > 30
    assert 40 <= twenty.perhaps <= 120  # about 40 among the likeliest


@pytest.mark.parametrize("draws", [20, 40, 200, 600])
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


def test_sentences_without_draws_and_without_images():
    result = Log(3000).decide(0, POSITIVE).limits()
    assert sentences(result) == [
        "1 found. How many more is not known before the first random image among all. To narrow this, decide 200 "
        f"random images: at most about {result.further(200, 0)[0]} if none of them is positive."
    ]
    decided = Log(2).decide(0, NEGATIVE).decide(1, POSITIVE).limits()
    assert sentences(decided) == ["1 found. Every image is decided."]
    assert replace(decided, doubted=2).sentence.endswith(" Look again at 2 doubted decisions.")
    assert Log(2).draw(0, SKIP).decide(1, POSITIVE).limits().sentence == (
        "1 found. Perhaps none is hidden; at most 1, with 95 % confidence, if no positive was overlooked. To narrow "
        "this, decide 1 random image without a label."
    )
    assert "decide 1 more random image: " in Log(2).draw(0, NEGATIVE).limits().sentence


def test_the_words_say_what_is_assumed():
    log = Log([1] * 400 + [4600])
    for row in range(400):
        log.decide(row, POSITIVE if row < 30 else NEGATIVE)
    audited = log.limits()
    assert audited.hidden_high == 4600 and 0 < audited.chance_high < 200
    (said,) = (one for one in sentences(audited) if "chance" in one)
    assert said.startswith("If the ranking shows positives at least as often as chance would: at most ")
    assert "90 % would take about" in said or "90 % would take more" in said
    nothing = Log(10)
    assert sentences(nothing.limits()) == [nothing.limits().sentence] and nothing.limits().chance_high == 10
    for row in range(10):
        nothing.decide(row, NEGATIVE)
    assert nothing.limits().chance_high == 0 and sentences(nothing.limits()) == ["0 found. Every image is decided."]
