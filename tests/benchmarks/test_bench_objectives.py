"""benchmarks/quality/objectives.py and its modules: formulas, no leak into folds left out, the rule on made-up rows."""

import numpy as np
import pytest
import torch

from benchmarks.common.cifar import Task
from benchmarks.quality import margin_losses as losses
from benchmarks.quality import objective_page as page
from benchmarks.quality import objectives
from benchmarks.quality.margin_heads import Rows, normalised, train
from benchmarks.quality.objective_methods import (
    METHODS,
    Distribution,
    SelfPaced,
    SoftLabels,
    TaskEstimates,
    TruePriorDistribution,
    Variational,
    balanced,
    trusted,
)
from pucache.heads.moments import Moments
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds

pytestmark = pytest.mark.usefixtures("one_thread")
P, U, DIM = 30, 400, 6


def sigmoid(m):
    return 1 / (1 + np.exp(-m))


def made_up(seed=0, hidden=60):
    """P and U in a mixed order, positives two standard deviations off."""
    draw = np.random.default_rng(seed)
    y = np.repeat([1, 1, 0], [P, hidden, U - hidden]).astype(bool)
    s = (np.arange(P + U) < P).astype(np.int8)
    X = draw.normal(size=(P + U, DIM)).astype(np.float32)
    X[y, 0] += 2
    order = draw.permutation(P + U)
    return X[order], s[order], y[order]


def rows_of(X, s):
    return Rows.of(X, s, assign_folds(s, 5, 0, None), Moments.of(X))


@pytest.fixture
def margins():
    """Of two heads on three rows of P and five of U, with weights of means, in float64."""
    draw = torch.Generator().manual_seed(1)
    m_p, m_u = (3 * torch.randn(2, n, generator=draw, dtype=torch.float64) for n in (3, 5))
    w_p, w_u = (normalised(torch.rand(2, n, generator=draw, dtype=torch.float64)) for n in (3, 5))
    return m_p, m_u, w_p, w_u


def test_the_variational_loss_is_the_log_of_the_mean_less_the_mean_of_the_log(margins):
    m_p, m_u, w_p, w_u = (part.numpy() for part in margins)
    expected = np.log((w_u * sigmoid(m_u)).sum(1)) - (w_p * np.log(sigmoid(m_p))).sum(1)
    np.testing.assert_allclose(losses.variational(*margins), expected, rtol=1e-12)


def test_the_variational_loss_does_without_the_rows_of_no_weight(margins):
    m_p, m_u, w_p, w_u = margins
    w_u = normalised(w_u * torch.tensor([1, 1, 0, 1, 1]))
    few = torch.tensor([0, 1, 3, 4])
    expected = losses.variational(m_p, m_u[:, few], w_p, w_u[:, few])
    torch.testing.assert_close(losses.variational(m_p, m_u, w_p, w_u), expected)
    m_u = m_u.requires_grad_()
    (slope,) = torch.autograd.grad(losses.variational(m_p, m_u, w_p, w_u).sum(), m_u)
    assert torch.isfinite(slope).all() and (slope[:, 2] == 0).all()


def test_consistency_compares_the_mixed_answer_with_the_answer_to_the_mixture(margins):
    _, m_u, _, w_u = margins
    m_p, gamma = -m_u.flip(1), torch.tensor([0.1, 0.9, 0.5, 0.0, 1.0], dtype=torch.float64)
    p, u, g = m_p.numpy(), m_u.numpy(), gamma.numpy()
    gap = np.log(g * 1 + (1 - g) * sigmoid(u)) - np.log(sigmoid(g * p + (1 - g) * u))
    expected = (w_u.numpy() * gap**2).sum(1)
    np.testing.assert_allclose(losses.consistency(m_p, m_u, gamma, w_u), expected, rtol=1e-12)


def test_distributions_agree_where_p_is_all_positive_and_u_holds_the_prior():
    sure, prior = torch.tensor([[40.0, 40]]), torch.tensor([0.25])
    fourth = torch.tensor([[40.0, -40, -40, -40]])
    w_p, w_u = torch.full((1, 2), 0.5), torch.full((1, 4), 0.25)
    assert losses.distribution(sure, fourth, w_p, w_u, prior).item() == pytest.approx(0, abs=1e-6)
    half = torch.tensor([[40.0, 40, -40, -40]])  # 0.25 too many, over twice the prior, less the rounded kink
    assert losses.distribution(sure, half, w_p, w_u, prior).item() == pytest.approx(0.5, abs=0.011)
    assert losses.distribution(-sure, fourth, w_p, w_u, prior).item() == pytest.approx(1, abs=1e-6)


def test_entropy_and_mixed_cross_entropy_are_those_of_bernoulli_variables(margins):
    _, m, _, w = margins
    f, soft = sigmoid(m.numpy()), np.linspace(0, 1, 5)
    entropy = -(f * np.log(f) + (1 - f) * np.log(1 - f))
    cross = -(soft * np.log(f) + (1 - soft) * np.log(1 - f))
    np.testing.assert_allclose(losses.entropy(m, w), (w.numpy() * entropy).sum(1), rtol=1e-9)
    np.testing.assert_allclose(losses.mixed(m, torch.from_numpy(soft), w), (w.numpy() * cross).sum(1), rtol=1e-9)


@pytest.mark.parametrize("surrogate", ["sigmoid", "logistic"])
def test_slopes_are_the_finite_differences(margins, surrogate):
    m_p, m_u, w_p, w_u = margins
    gamma, prior = torch.linspace(0, 1, 5, dtype=torch.float64), torch.tensor([0.1, 0.4], dtype=torch.float64)

    def everything(p, u):
        mixture = losses.consistency(p[:, [0, 2, 1, 1, 0]], u, gamma, w_u)
        aligned = losses.distribution(p, u, w_p, w_u, prior) + losses.entropy(u, w_u) + losses.mixed(u, gamma, w_u)
        return losses.variational(p, u, w_p, w_u) + mixture + aligned + losses.labelled(u, w_u, 1 - w_u, surrogate)

    assert torch.autograd.gradcheck(everything, (m_p.requires_grad_(), m_u.requires_grad_()))


def test_training_ends_where_the_packages_own_heads_do():
    X, s, _ = made_up()
    rows, penalty = rows_of(X, s), 1e-2
    is_p = (torch.arange(P + U) < P).float()[None]
    start = torch.zeros(1, DIM + 1)
    head = train(rows, balanced(is_p, 1 - is_p), torch.tensor([penalty]), start, evaluations=300)
    package = fit_heads(X, s, penalty=penalty).margins(X)[np.argsort(-s, kind="stable"), 0]
    np.testing.assert_allclose(rows.margins(head)[0], package, atol=0.05 * package.std())


def test_the_most_and_the_least_confident_of_the_kept_rows_are_trusted():
    margins, kept = torch.tensor([[3.0, 9, 1, 2, 5]]).repeat(2, 1), torch.tensor([[1.0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    top, low = trusted(margins, kept, torch.tensor([[2.0], [0.2]]))
    assert top.tolist() == [[1, 0, 0, 0, 1], [0, 1, 0, 0, 0]]
    assert low.tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_ranks_well_and_its_folds_learn_nothing_of_the_labels_left_out(kind):
    X, s, y = made_up()
    rows, estimates = rows_of(X, s), TaskEstimates(1e-3, 0.15, 0.15)
    one = len(kind(estimates).settings) // 2
    setting, column = torch.full((6,), one), torch.arange(6)
    heads = kind(estimates).train(rows, setting, column)
    hidden = torch.from_numpy(y[np.argsort(-s, kind="stable")])
    held_out = rows.held_out(heads[:5])
    assert held_out[hidden].mean() > held_out[~hidden].mean() + held_out.std()
    if kind is SoftLabels:
        return  # three numbers of its calibration are of all folds
    moved = rows.X.clone()
    moved[rows.fold == 2] *= -3  # neither rows nor labels of the fold
    changed = Rows(moved, P, rows.fold, 5, rows.directions, rows.variances, rows.rest)
    again = kind(estimates).train(changed, setting, column)
    torch.testing.assert_close(again[2], heads[2], atol=1e-3, rtol=1e-3)
    assert not torch.allclose(again[1], heads[1], atol=1e-2)


def test_the_threshold_of_vpu_is_half_the_greatest_answer():
    at = Variational(TaskEstimates(1e-3, 0.1, 0.1)).threshold(np.array([-5.0, 1.0]))
    assert sigmoid(at) == pytest.approx(sigmoid(1.0) / 2)


def test_dist_pu_has_the_estimated_prior_unless_it_is_given_the_true_one():
    estimates = TaskEstimates(1e-3, 0.2, 0.1)
    assert {setting["prior"] for setting in Distribution(estimates).settings} == {0.2}
    assert {setting["prior"] for setting in TruePriorDistribution(estimates).settings} == {0.1}


def test_the_best_kind_of_setting_is_chosen_at_the_penalty_of_the_rule():
    settings = [{"kind": kind, "penalty": p} for kind in "ab" for p in (1, 2, 3)]
    score = np.array([[0.0, 0], [0, 0], [0, 0], [5, 5], [5, 5], [1, 1]])
    assert objectives.choose(settings, score) == 3


def test_a_whole_task_is_measured_and_shown(monkeypatch):
    monkeypatch.setattr(objectives, "FEW", 200)
    (X, s, y), (X_test, _, y_test) = made_up(), made_up(1)
    task = Task(X, s, y, X_test, y_test)
    judge = objectives.Judge(task)
    row, estimates = objectives.default(task, judge)
    comparison = objectives.Comparison(task, estimates, judge)
    found = {"pucache": row, "self-paced, hard": comparison.measure(SelfPaced), "VPU": comparison.measure(Variational)}
    for one in found.values():
        assert 0.4 < one["f1"] <= one["best_f1"] + 1e-9
        assert one is row or 0.5 < one["ap"] <= one["oracle_ap"] + 1e-9
    found |= {
        "Dist-PU": found["VPU"],
        "Dist-PU, true prior": found["VPU"],
        "self-training, soft": found["self-paced, hard"],
    }
    cells = [{"class": "cat", "share": 0.15, "labelled": P, "seed": 0, **found}] * 2
    text = page.report(cells, {"VPU": 12})
    assert "| self-paced, hard | " in text and f"| {P}, 15% | 2 | {row['ap']:.3f} |" in text


def rows_with(differences):
    """Tasks whose method m is off the default by so much, in AP, best F1 and F1."""
    zero, names = {"ap": 0.5, "best_f1": 0.5, "f1": 0.5}, ("ap", "best_f1", "f1")
    return [
        {"pucache": zero, "m": {name: 0.5 + by for name, by in zip(names, each, strict=True)}} for each in differences
    ]


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([(0.01, 0, 0), (0.02, 0, 0), (0.015, 0, 0)], "too few tasks to say: better in AP"),
        (4 * [(0.01, 0, 0), (0.02, 0, 0), (0.015, 0, 0)], "winner: better in AP"),
        ([(0.01, 0, 0), (-0.02, 0, 0), (0.03, 0, 0)], "no: no difference beyond two standard errors"),
        ([(0.01, 0, -0.02), (0.02, 0, -0.03), (0.015, 0, -0.01)], "no: better in AP; worse in F1 at its threshold"),
        ([(0, 0.02, 0), (0, 0.03, 0), (0, 0.02, 0)], "no: no difference beyond two standard errors"),
    ],
)
def test_a_winner_is_better_by_two_standard_errors_and_nowhere_worse(differences, said):
    rows = rows_with(differences)
    assert page.verdict(rows, "m") == said
    assert page.winners(["m"], rows) == (
        "By that rule m won." if said.startswith("winner") else "By that rule none won."
    )


def test_differences_are_paired_with_their_spread_and_who_won():
    difference = page.differences(rows_with([(0.1, 0, 0), (-0.1, 0, 0), (0.3, 0, 0)]), "m", "ap")
    assert page.paired(difference) == "+0.100 ± 0.200, 2:1"
