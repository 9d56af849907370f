from dataclasses import dataclass, replace

import pytest

from pucache.reviewing.log import Choice, Entry, Stream
from pucache.reviewing.service import advice, best_rate


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
    outlook_condition: str = ""
    rows: int = 50_000
    found: int = 100
    zone: "Audited | None" = None

    def outlook(self, more):
        return round(60 * more / 200)


HALF = Audited(positives=20, likeliest_share=0.5)  # a ranking no better than random images
OFFER = ["3 of the last 100", "closing audit", "at most 240 by now, about 60 after 200 more"]
CASES = {  # counts, audit, options; what is said
    "the ranking yields": (Counts(rate=0.4), Audited(), {}, None),
    "the yield has fallen": (Counts(), Audited(), {}, OFFER),
    "no positive is expected": (
        Counts(),
        Audited(outlook_condition=", if none is positive"),
        {},
        ["about 60 after 200 more, if none is positive."],
    ),
    "fewer images left": (Counts(unknown=50), Audited(), {}, ["about 15 after 50 more"]),
    "the yield is half of its best": (
        Counts(rate=0.3),
        Audited(),
        {"best": 0.6},
        ["30 of the last 100", "60 of 100 before"],
    ),
    "it has hardly fallen": (Counts(rate=0.31), Audited(), {"best": 0.6}, None),
    "too early to say that it fell": (Counts(rate=0.3, rate_of=60), Audited(), {"best": 0.6}, None),
    "no audit": (Counts(), None, {}, ["3 of the last 100", "how many are hidden."]),
    "no better than random": (Counts(rate=0.45), HALF, {}, ["closing audit"]),
    "too few draws to say so": (Counts(rate=0.45), replace(HALF, draws=10, positives=5), {}, None),
    "the limit is low": (
        Counts(rate=0.4),
        Audited(recall_low=0.9669, hidden_high=9),
        {},
        ["You may stop", "at least 96.6 %", "at most 9"],
    ),
    "closing": (Counts(rate=0.01), Audited(), {"closing_audit": True}, ["slowly", "about 60 after 200 more"]),
    "the likeliest": (Counts(), Audited(zone=Audited(hidden_high=4, rows=5000)), {}, ["may stop if 45,000", "96.1 %"]),
    "closing without an audit": (Counts(), None, {"closing_audit": True}, None),
    "the end": (Counts(unknown=0), Audited(recall_low=1.0), {}, ["are decided."]),
    "the end with skips": (Counts(unknown=0, skipped=7), Audited(recall_low=1.0), {}, ["decided or skipped (7)."]),
    "draws wait": (Counts(unknown=0, pending=2), Audited(), {}, ["3 of the last 100"]),
}


@pytest.mark.parametrize(("counts", "audit", "options", "said"), CASES.values(), ids=CASES)
def test_advice(counts, audit, options, said):
    text = advice(counts, audit, **options)
    assert all(part in text for part in said) if said else text == ""


def test_the_best_rate_is_that_of_a_hundred_decisions_in_a_row():
    positive = [True] * 80 + [False] * 100 + [True] * 30

    def entries(upto, stream=Stream.RANKED):
        common = {"copies": 1, "stream": stream, "positives": 0, "time": 0.0, "unknown": 0, "request": "r"}
        choices = [Choice.POSITIVE if one else Choice.NEGATIVE for one in positive[:upto]]
        return [Entry(serial=at, row=at, group=at, choice=choice, **common) for at, choice in enumerate(choices)]

    assert [best_rate(entries(upto)) for upto in (0, 99, 100, 210)] == [0, 0, 0.8, 0.8]
    assert best_rate(entries(210, Stream.RECHECK)) == 0
