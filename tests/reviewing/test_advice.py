from types import SimpleNamespace

import pytest

from pucache.reviewing.advice import advice

AUDITED = {"draws": 40, "positives": 1, "hidden_high": 240, "recall_low": 0.5, "level": 0.95, "likeliest_share": 0.02}
AUDITED |= {"rows": 50_000, "found": 100, "zone": None, "rechecks": 30, "missed": 0, "sensitivity_low": 0.868}
AUDITED |= {"doubted": 0, "second_look": "look again at 8 doubted decisions"}
AUDITED |= {"forecast": "200 more random images: at most about 20 if none of them is positive"}


def counts(**changed):
    """Progress of a review whose yield has fallen."""
    return SimpleNamespace(**{"untaken": 5000, "waiting": 0, "skipped": 0, "rate": 0.03, "rate_of": 100, **changed})


def audited(**changed):
    """Limits after some random images, which exclude little."""
    limits = SimpleNamespace(**AUDITED | changed)
    limits.recognised_high = round(limits.hidden_high * (limits.sensitivity_low or 1))
    return limits


YIELDS, RARE = counts(rate=0.4), counts(rate=0.01)
LOW = {"found": 300, "hidden_high": 9}  # limits at which one may stop
NO_TEST = {"rechecks": 0, "sensitivity_low": None}
ZONE = {"hidden_high": 4, "rows": 5000}
CLOSING = {"closing_audit": True}
AGAIN = "Look again at 8 doubted decisions first."
MAY_STOP = ["You may stop: with 95 % confidence at least 97.4 % of all", "at most 8 not", "at least 87 % by 30"]
UNTESTED = ["If no positive was overlooked, with 95 %", "at least 97 % of all", "after 23 more of them one may stop."]
ASIDE = ["If no positive was overlooked, if 45,000", "at least 96.1 % of the other", "after 30 more of them"]
MORE = "Among the likeliest, 200 more random images: at most about 20 if none"
OFFER = "A closing audit (random images alone) would say how many are hidden."
CASES = {  # counts, audit, options; what is said
    "the ranking yields": (YIELDS, audited(), {}, None),
    "the yield has fallen": (counts(), audited(), {}, ["3 of the last 100", OFFER]),
    "the yield is half of its best": (counts(rate=0.3), audited(), {"best": 0.6}, ["30 of the last 100", "60 of 100"]),
    "it has hardly fallen": (counts(rate=0.31), audited(), {"best": 0.6}, None),
    "too early to say that it fell": (counts(rate=0.3, rate_of=60), audited(), {"best": 0.6}, None),
    "one of them": (RARE, None, {}, ["Only 1 of the last 100 images was positive. A closing audit"]),
    "no audit": (counts(), None, {}, ["3 of the last 100", OFFER]),
    "no better than random": (counts(rate=0.45), audited(positives=20, likeliest_share=0.5), {}, [OFFER]),
    "too few draws to say so": (counts(rate=0.45), audited(draws=10, positives=5, likeliest_share=0.5), {}, None),
    "the limit is low": (YIELDS, audited(**LOW), {}, MAY_STOP),
    "nothing is there": (counts(rate=0.0), audited(found=0, hidden_high=0), {}, ["You may stop"]),
    "too few rechecks": (YIELDS, audited(**LOW, **NO_TEST | {"rechecks": 7}), {}, UNTESTED),
    "a positive was overlooked": (YIELDS, audited(**LOW, missed=1), {}, None),
    "a second look before a closing audit": (counts(), audited(doubted=8), {}, [f"{OFFER} {AGAIN}"]),
    "a second look before one may stop": (YIELDS, audited(**LOW, doubted=8), {}, [*MAY_STOP, AGAIN]),
    "closing": (RARE, audited(), CLOSING, None),
    "a second look before random images": (RARE, audited(doubted=8), CLOSING, [f"{AGAIN} Wrong decisions widen"]),
    "closing among the likeliest": (
        RARE,
        audited(zone=audited(hidden_high=80, rows=5000)),
        CLOSING | {"in_zone": True},
        [MORE],
    ),
    "the likeliest": (counts(), audited(zone=audited(**ZONE)), {}, ["You may stop if 45,000", "97 % of the other"]),
    "the likeliest without rechecks": (counts(), audited(**NO_TEST, zone=audited(**ZONE, **NO_TEST)), {}, ASIDE),
    "closing without an audit": (counts(), None, CLOSING, None),
    "the end": (counts(untaken=0), audited(recall_low=1.0), {}, ["are decided."]),
    "the end with skips": (counts(untaken=0, skipped=7), audited(recall_low=1.0), {}, ["decided or skipped (7)."]),
    "draws wait": (counts(untaken=0, waiting=2), audited(), {}, ["3 of the last 100"]),
}


@pytest.mark.parametrize(("counts", "audit", "options", "said"), CASES.values(), ids=CASES)
def test_advice(counts, audit, options, said):
    text = advice(counts, audit, **options)
    assert all(part in text for part in said) if said else text == ""
