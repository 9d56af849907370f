"""What limits say in words, and what each sentence assumes."""

import math

import numpy as np
import pytest
from helpers.reviews import Log

from pucache.estimates.limit_sentences import forecast, found_and_hidden, sentences
from pucache.reviewing.log import Choice

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


def test_statements_begin_with_one_sentence_and_name_what_they_assume():
    log = Log(3000)
    for group in range(120):
        log.draw(group, POSITIVE if group < 2 else NEGATIVE)
    for group in range(200, 410):
        log.decide(group, POSITIVE)
    result = log.limits()
    first, limit, *_, forecast = sentences(result)
    assert (
        first
        == f"212 found. With 95 % confidence at most {result.hidden_high} more among 2,670. Probably none or a few."
    )
    share = f"{math.floor(1000 * result.recall_low) / 10:g}"
    assert limit.startswith(
        f"If no positive was overlooked: at least {share} % of all positives are found (120 random images)"
    )
    none = result.further(200, 0)[0]
    assert forecast == f"After 200 more random images, if none of them is positive: at most about {none}."
    log.draw(500).draw(501, SKIP)
    said = "(122 random images; 2 of them skipped or left out, which count as positive until they are decided)"
    assert said in sentences(log.limits())[1]
    assert not any("without any assumption" in said.lower() for said in sentences(log.limits()))


def test_where_random_images_are_positive_the_likeliest_number_and_the_lower_limit_are_said():
    log = Log(3000)
    for group in range(300):
        log.draw(group, POSITIVE if group % 10 == 0 else NEGATIVE)
    result = log.limits()
    assert found_and_hidden(result).endswith(f" Probably about {round(result.likeliest_share * result.unknown)}.")
    assert sentences(result)[2].startswith(f"As you label them, at least {result.hidden_low} more; ")


def test_a_limit_far_above_what_the_last_looks_support_is_followed_by_what_is_probable():
    log = Log(1500)
    for group in range(48):
        log.decide(group, POSITIVE)
    for group in range(48, 1100):
        log.decide(group, NEGATIVE)
    for group in range(1100, 1150):
        log.draw(group, NEGATIVE)
    result = log.limits()
    assert result.hidden_high > 20
    assert found_and_hidden(result) == (
        f"48 found. With 95 % confidence at most {result.hidden_high} more among 350. Probably none or a few."
    )


@pytest.mark.parametrize("draws", [20, 40, 200, 600])
def test_a_forecast_moves_by_what_one_image_can_move(draws):
    figures = []
    for positives in range(5):
        log = Log(3500)
        for group in range(draws):
            log.draw(group, POSITIVE if draws - group <= positives else NEGATIVE)
        result = log.limits()
        expected = result.expected_positives(200)
        assert expected < max(positives, 1) and forecast(result).endswith(
            f" {result.further(200, expected / 200)[0]:,}."
        )
        figures.append((result.hidden_high, result.further(200, expected / 200)[0]))
    steps = np.diff(figures, axis=0)
    one_image = steps[0, 1]  # by the first positive, which lets expect no other
    assert (steps[:, 1] <= one_image).all(), figures


def test_sentences_without_draws_and_without_images():
    result = Log(3000).decide(0, POSITIVE).limits()
    assert sentences(result) == [
        "1 found. How many more is not known before the first random image.",
        f"After 200 random images, if none of them is positive: at most about {result.further(200, 0)[0]}.",
    ]
    assert sentences(Log(2).decide(0, NEGATIVE).decide(1, POSITIVE).limits()) == ["1 found. Every image is decided."]
    assert found_and_hidden(Log(2).draw(0, NEGATIVE).draw(1, POSITIVE).limits()) == "1 found. Every image is decided."
    assert found_and_hidden(Log(2).draw(0, SKIP).decide(1, POSITIVE).limits()) == (
        "1 found. With 95 % confidence at most 1 more among 1."
    )
    assert "After 1 more random image, if none of them is" in forecast(Log(2).draw(0, NEGATIVE).limits())


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
    assert sentences(nothing.limits()) == [found_and_hidden(nothing.limits()), forecast(nothing.limits())]
    assert nothing.limits().chance_high == 10
    for row in range(10):
        nothing.decide(row, NEGATIVE)
    assert nothing.limits().chance_high == 0 and sentences(nothing.limits()) == ["0 found. Every image is decided."]
