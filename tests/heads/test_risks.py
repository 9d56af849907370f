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


def test_the_reported_risk_is_held_where_the_clamp_acts():
    positive, negative = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.2, -0.05, -0.3])
    for name, value, clamped in (("imbupu", [0.7, 0.45, 0.2], 0), ("imbnnpu", [0.7, 0.45, 0.4], 1)):
        reported, acts = PURisk(name, beta=0.1).combine(positive, negative)
        assert reported.tolist() == pytest.approx(value)
        assert acts.tolist() == [False, False, bool(clamped)]
