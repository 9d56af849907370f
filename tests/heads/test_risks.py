import pytest

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
