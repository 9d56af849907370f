from dataclasses import dataclass, replace

import pytest

from pucache.reviewing.advice import advice


@dataclass(frozen=True)
class Counts:
    untaken: int = 5000
    waiting: int = 0
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
    rows: int = 50_000
    found: int = 100
    zone: "Audited | None" = None
    rechecks: int = 30
    missed: int = 0
    sensitivity_low: float | None = 0.868
    unknown: int = 5000
    doubted: int = 0
    second_look: str = "look again at 8 doubted decisions"
    forecast: str = "200 more random images: at most about 20 if none of them is positive"

    @property
    def recognised_high(self):
        return round(self.hidden_high * (self.sensitivity_low or 1))


HALF = Audited(positives=20, likeliest_share=0.5)  # a ranking no better than random images
OFFER = ["3 of the last 100", "A closing audit (random images alone) would say how many are hidden."]
CASES = {  # counts, audit, options; what is said
    "the ranking yields": (Counts(rate=0.4), Audited(), {}, None),
    "the yield has fallen": (Counts(), Audited(), {}, OFFER),
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
        Audited(found=300, hidden_high=9),
        {},
        ["You may stop: with 95 % confidence at least 97.4 % of all", "at most 8 not", "at least 87 % by 30"],
    ),
    "nothing is there": (Counts(rate=0.0), Audited(found=0, hidden_high=0), {}, ["You may stop"]),
    "too few rechecks": (
        Counts(rate=0.4),
        Audited(found=300, hidden_high=9, rechecks=7, sensitivity_low=None),
        {},
        ["If no positive was overlooked, with 95 %", "at least 97 % of all", "after 23 more of them one may stop."],
    ),
    "a positive was overlooked": (Counts(rate=0.4), Audited(found=300, hidden_high=9, missed=1), {}, None),
    "a second look before a closing audit": (
        Counts(),
        Audited(doubted=8),
        {},
        ["would say how many are hidden. Look again at 8 doubted decisions first."],
    ),
    "a second look before one may stop": (
        Counts(rate=0.4),
        Audited(found=300, hidden_high=9, doubted=8),
        {},
        ["You may stop: ", " Look again at 8 doubted decisions first."],
    ),
    "closing": (Counts(rate=0.01), Audited(), {"closing_audit": True}, None),
    "a second look before more random images": (
        Counts(rate=0.01),
        Audited(doubted=8),
        {"closing_audit": True},
        ["Look again at 8 doubted decisions first. Wrong decisions widen the limit."],
    ),
    "closing among the likeliest": (
        Counts(rate=0.01),
        Audited(zone=Audited(hidden_high=80, rows=5000)),
        {"closing_audit": True, "in_zone": True},
        ["Among the likeliest at most 80 by now. 200 more random images: at most about 20 if none"],
    ),
    "the likeliest": (
        Counts(),
        Audited(zone=Audited(hidden_high=4, rows=5000)),
        {},
        ["You may stop if 45,000", "at least 97 % of the other positives"],
    ),
    "the likeliest without rechecks": (
        Counts(),
        Audited(sensitivity_low=None, rechecks=0, zone=Audited(hidden_high=4, rows=5000, sensitivity_low=None)),
        {},
        ["If no positive was overlooked, if 45,000", "at least 96.1 % of the other", "after 30 more of them"],
    ),
    "closing without an audit": (Counts(), None, {"closing_audit": True}, None),
    "the end": (Counts(untaken=0), Audited(recall_low=1.0), {}, ["are decided."]),
    "the end with skips": (Counts(untaken=0, skipped=7), Audited(recall_low=1.0), {}, ["decided or skipped (7)."]),
    "draws wait": (Counts(untaken=0, waiting=2), Audited(), {}, ["3 of the last 100"]),
}


@pytest.mark.parametrize(("counts", "audit", "options", "said"), CASES.values(), ids=CASES)
def test_advice(counts, audit, options, said):
    text = advice(counts, audit, **options)
    assert all(part in text for part in said) if said else text == ""
