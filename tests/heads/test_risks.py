import math

import pytest
import torch

from pucache.heads.risks import RISKS, SURROGATES, PURisk, negative_loss, positive_loss

PRIORS = torch.tensor([0.02, 0.3, 0.5, 0.9], dtype=torch.float64)
EACH = [(name, surrogate) for name in RISKS for surrogate in SURROGATES if "bce" not in name or surrogate == "logistic"]


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_losses_are_those_of_the_formulas_and_their_slopes_finite_differences(surrogate):
    margins = torch.linspace(-30, 30, 41, dtype=torch.float64)
    formula = {"sigmoid": lambda m: 1 / (1 + m.exp()), "logistic": lambda m: (1 + (-m).exp()).log()}[surrogate]
    for loss, sign in ((positive_loss, 1), (negative_loss, -1)):
        value, slope = loss(surrogate, margins)
        torch.testing.assert_close(value, formula(sign * margins), rtol=1e-9, atol=1e-12)
        numeric = (formula(sign * (margins + 1e-6)) - formula(sign * (margins - 1e-6))) / 2e-6
        torch.testing.assert_close(slope, numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", [positive_loss, negative_loss])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_huge_margins_stay_finite_in_float32(surrogate, loss):
    for values in loss(surrogate, torch.tensor([[1e30], [-1e30], [200.0], [-200.0]])):
        assert values.isfinite().all()


@pytest.mark.parametrize("name, surrogate", EACH)
def test_coefficients_are_those_of_the_printed_method(name, surrogate):
    """Weights of mean_P l(m), of mean_U l(-m) and of mean_P l(-m), and the sum of their magnitudes."""
    risk, t, share = PURisk(name, surrogate, 0.3), 0.3, 0.2
    c = risk.coefficients(PRIORS, torch.full_like(PRIORS, share))
    for k, pi in enumerate(PRIORS.tolist()):
        factor = (1 - t) / (1 - pi)
        expected = {
            "upu": (pi, 1, -pi),
            "nnpu": (pi, 1, -pi),
            "imbupu": (t, factor, -factor * pi),
            "imbnnpu": (t, factor, -factor * pi),
            "weighted_bce": (t, 1 - t, 0),
            "bce": (share, 1 - share, 0),
        }[name]
        assert [float(of_heads[k]) for of_heads in (c.a, c.u, c.p)] == pytest.approx(expected)
        assert float(c.total[k]) == pytest.approx(sum(map(abs, expected)))


def test_at_target_equal_to_the_prior_the_imbalanced_risk_is_the_plain_one():
    prior = torch.tensor([0.3], dtype=torch.float64)
    plain, imbalanced = (PURisk(name, target_prior=0.3).coefficients(prior, prior) for name in ("upu", "imbupu"))
    assert (float(plain.a), float(plain.u), float(plain.p)) == pytest.approx(
        (float(imbalanced.a), float(imbalanced.u), float(imbalanced.p))
    )


def test_the_reported_risk_is_held_where_the_clamp_acts():
    positive, negative = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.2, -0.05, -0.3])
    for name, value, clamped in (("imbupu", [0.7, 0.45, 0.2], 0), ("imbnnpu", [0.7, 0.45, 0.4], 1)):
        reported, acts = PURisk(name, beta=0.1).combine(positive, negative)
        assert reported.tolist() == pytest.approx(value)
        assert acts.tolist() == [False, False, bool(clamped)]


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
    assert risk.needs_prior_for_clamp_alone == (risk.name == "imbnnpu")


def test_defaults():
    assert PURisk() == PURisk("imbupu", "sigmoid", 0.5, 0.0, 1.0)
    assert PURisk("bce").surrogate == PURisk("weighted_bce").surrogate == "logistic"


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
