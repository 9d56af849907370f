import math

import pytest
import torch

from pucache.heads.risks import PURisk


@pytest.mark.parametrize(
    "risk, needed",
    [
        (PURisk(), False),
        (PURisk("imbupu", "logistic"), True),
        (PURisk("imbupu", target_prior=0.3), True),
        (PURisk("imbnnpu"), True),  # its clamp looks at the prior
        (PURisk("nnpu"), True),
        (PURisk("weighted_bce", target_prior=0.3), False),
        (PURisk("bce"), False),
    ],
)
def test_whether_the_prior_is_needed(risk, needed):
    assert risk.needs_prior == needed


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"name": "imbnnPU"}, "unknown loss 'imbnnPU'; use upu, nnpu"),
        ({"surrogate": "hinge"}, "unknown surrogate 'hinge'; use sigmoid"),
        *(({"name": name, "surrogate": "sigmoid"}, "its surrogate is logistic") for name in ("bce", "weighted_bce")),
        *(({"target_prior": value}, "target_prior must lie") for value in (0.0, 1.0, -0.1, math.nan)),
        *(({"beta": value}, "beta must be >= 0") for value in (-0.1, math.nan)),
        *(({"gamma": value}, r"gamma in \[0, 1\]") for value in (-0.1, 1.1, math.nan)),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_by_name(bad, words):
    with pytest.raises(ValueError, match=words):
        PURisk(**bad)


def test_the_reported_risk_is_held_where_the_clamp_acts():
    positive, negative = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.2, -0.05, -0.3])
    for name, value, clamped in (("imbupu", [0.7, 0.45, 0.2], 0), ("imbnnpu", [0.7, 0.45, 0.4], 1)):
        reported, acts = PURisk(name, beta=0.1).combine(positive, negative)
        assert reported.tolist() == pytest.approx(value)
        assert acts.tolist() == [False, False, bool(clamped)]
