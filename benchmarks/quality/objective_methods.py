"""Methods that `objectives.py` compares: their settings, and how their heads are trained.

A method trains a head for each pair of a setting and a column; column k leaves out fold k, the last one none. Pseudo
labels of a head come of its own margins, so that no head learns of labels in the fold that it leaves out. Training
from a `start` is the end of the same training on more rows.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from benchmarks.quality.margin_heads import Rows, normalised, train
from benchmarks.quality.margin_losses import consistency, distribution, entropy, labelled, mixed, variational
from pucache.estimates.calibration import fit_tilt

ROUNDS = 4  # of self-training
_GO_ON = 2  # rounds where the start is from fewer rows


@dataclass(frozen=True)
class TaskEstimates:
    """Penalty and prior of a task, estimated by pucache's default head; and the true prior."""

    penalty: float
    prior: float
    truth: float


def of_each(settings: list[dict], name: str, setting: Tensor) -> Tensor:
    """A number of every head's setting, (K,)."""
    return torch.tensor([float(one[name]) for one in settings])[setting]


def level(rows: Rows, prior: Tensor) -> Tensor:
    """Heads that give every row the prior, (K, d + 1)."""
    start = torch.zeros(len(prior), rows.X.shape[1] + 1)
    start[:, -1] = torch.logit(prior)
    return start


class Variational:
    """VPU: L_var + weight * L_reg (Chen et al. 2020), the mixtures of L_reg drawn once: one for each row of U."""

    name, alpha = "VPU", 0.3
    penalties, weights = (1e-4, 1e-3, 1e-2, 1e-1), (0.03, 0.3, 3.0)

    def __init__(self, estimates: TaskEstimates):
        self.settings = [{"weight": w, "penalty": p} for w in self.weights for p in self.penalties]

    def train(self, rows: Rows, setting: Tensor, column: Tensor, start: Tensor | None = None) -> Tensor:
        draw, p, u = np.random.default_rng(0), rows.p, len(rows.X) - rows.p
        partner = torch.from_numpy(draw.integers(p, size=u))
        gamma = torch.from_numpy(draw.beta(self.alpha, self.alpha, size=u).astype(np.float32))
        w_p, w_u = rows.means(column)
        both = normalised(w_u * (w_p[:, partner] > 0))
        weight = of_each(self.settings, "weight", setting)

        def loss(m: Tensor, head: Tensor) -> Tensor:
            m_p, m_u = m[:, :p], m[:, p:]
            regular = consistency(m_p.index_select(1, partner), m_u, gamma, both[head])
            return variational(m_p, m_u, w_p[head], w_u[head]) + weight[head] * regular

        if start is None:
            start = torch.zeros(len(setting), rows.X.shape[1] + 1)
        return train(rows, loss, of_each(self.settings, "penalty", setting), start)

    def threshold(self, unlabelled: np.ndarray) -> float:
        """Margin at which phi is half its greatest value (the paper's normalisation)."""
        half = 0.5 / (1 + np.exp(-float(unlabelled.max())))
        return float(np.log(half / (1 - half)))


class Distribution:
    """Dist-PU (Zhao et al. 2022): L_lab with entropy first, then MixUp at the authors' coefficients."""

    name, alpha = "Dist-PU", 6.0
    penalties = (1e-6, 1e-5, 1e-4, 1e-3)
    variants = ((0.002, False), (0.1, False), (0.002, True))  # weight of the entropy at first; whether MixUp follows
    unmixed, mixture, cross = 0.004, 0.04, 5.0  # weights of the entropies of U and of mixtures, and of L_mix

    def __init__(self, estimates: TaskEstimates):
        self.settings = [
            {"entropy": weight, "mix": mix, "penalty": penalty, "prior": self.prior(estimates)}
            for weight, mix in self.variants
            for penalty in self.penalties
        ]

    def prior(self, estimates: TaskEstimates) -> float:
        return estimates.prior

    def train(self, rows: Rows, setting: Tensor, column: Tensor, start: Tensor | None = None) -> Tensor:
        prior, mix = (of_each(self.settings, name, setting) for name in ("prior", "mix"))
        first = torch.arange(len(setting)) if start is None else (mix == 0).nonzero()[:, 0]
        heads = level(rows, prior) if start is None else start.clone()
        heads[first] = self._aligned(rows, setting[first], column[first], heads[first])
        then = mix.nonzero()[:, 0]
        for _ in range(_GO_ON):
            heads[then] = self._mixed(rows, setting[then], column[then], heads[then])
        return heads

    def _aligned(self, rows: Rows, setting: Tensor, column: Tensor, start: Tensor) -> Tensor:
        p, (w_p, w_u) = rows.p, rows.means(column)
        prior, weight = (of_each(self.settings, name, setting) for name in ("prior", "entropy"))

        def loss(m: Tensor, head: Tensor) -> Tensor:
            aligned = distribution(m[:, :p], m[:, p:], w_p[head], w_u[head], prior[head])
            return aligned + weight[head] * entropy(m[:, p:], w_u[head])

        return train(rows, loss, of_each(self.settings, "penalty", setting), start)

    def _mixed(self, rows: Rows, setting: Tensor, column: Tensor, start: Tensor) -> Tensor:
        """With pseudo labels as they are at the start; the pairs and their shares are always the same."""
        draw, p, n = np.random.default_rng(1), rows.p, len(rows.X)
        other = torch.from_numpy(draw.permutation(n))
        share = torch.from_numpy(draw.beta(self.alpha, self.alpha, size=n).astype(np.float32))
        (w_p, w_u), kept = rows.means(column), rows.weights(column)
        both = normalised(kept * kept[:, other])
        soft = torch.sigmoid(rows.margins(start))
        soft[:, :p] = 1
        soft = share * soft + (1 - share) * soft[:, other]
        prior = of_each(self.settings, "prior", setting)

        def loss(m: Tensor, head: Tensor) -> Tensor:
            mixture = share * m + (1 - share) * m.index_select(1, other)
            aligned = distribution(m[:, :p], m[:, p:], w_p[head], w_u[head], prior[head])
            aligned = aligned + self.unmixed * entropy(m[:, p:], w_u[head])
            aligned = aligned + self.mixture * entropy(mixture, both[head])
            return aligned + self.cross * mixed(mixture, soft[head], both[head])

        return train(rows, loss, of_each(self.settings, "penalty", setting), start)

    def threshold(self, unlabelled: np.ndarray) -> float:
        return 0.0


class TruePriorDistribution(Distribution):
    """The same with the true prior, as the paper takes it to be."""

    name = "Dist-PU, true prior"

    def prior(self, estimates: TaskEstimates) -> float:
        return estimates.truth


def balanced(positive: Tensor, negative: Tensor, surrogate: str = "sigmoid"):
    """Loss of weighted means: half on rows as positives (K, n), half on rows as negatives."""
    positive, negative = normalised(positive) / 2, normalised(negative) / 2
    return lambda m, head: labelled(m, positive[head], negative[head], surrogate)


class SelfPaced:
    """Self-PU's self-paced part (Chen et al. 2020) on pucache's default risk.

    In every round the most and the least confident rows of U, equally many, are chosen anew and more of them; these
    are trusted: they leave U and have cross-entropy under their pseudo labels.
    """

    name = "self-paced, hard"
    trusts, shares = (0.2, 0.5), (0.25, 0.5, 1.0)  # weight of the trusted rows; number, in expected hidden positives

    def __init__(self, estimates: TaskEstimates):
        self._estimates = estimates
        self.settings = [{"trust": t, "share": share} for t in self.trusts for share in self.shares]

    def train(self, rows: Rows, setting: Tensor, column: Tensor, start: Tensor | None = None) -> Tensor:
        p, kept = rows.p, rows.weights(column)
        penalty = torch.full((len(setting),), self._estimates.penalty)
        trust, share = (of_each(self.settings, name, setting)[:, None] for name in ("trust", "share"))
        is_p = (torch.arange(len(rows.X)) < p).float()
        heads = start
        if heads is None:
            zero = torch.zeros(len(setting), rows.X.shape[1] + 1)
            heads = train(rows, balanced(kept * is_p, kept * (1 - is_p)), penalty, zero)
        for turn in range(1, ROUNDS + 1) if start is None else [ROUNDS] * _GO_ON:
            count = turn / ROUNDS * share * self._estimates.prior * kept[:, p:].sum(1, keepdim=True)
            top, low = trusted(rows.margins(heads)[:, p:], kept[:, p:], count)
            none = torch.zeros(len(heads), p)
            top, low = torch.cat([none, top], 1), torch.cat([none, low], 1)
            rest = balanced(kept * is_p, kept * (1 - is_p) * (1 - top) * (1 - low))
            sure = balanced(top, low, "logistic")

            def loss(m: Tensor, head: Tensor, rest=rest, sure=sure) -> Tensor:
                return (1 - trust[head, 0]) * rest(m, head) + trust[head, 0] * sure(m, head)

            heads = train(rows, loss, penalty, heads)
        return heads

    threshold = None


def trusted(margins: Tensor, kept: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """1 for the `count` (K, 1), at least one, kept rows with the highest margins, and with the lowest; (K, u) each."""
    count = count.round().clamp(min=1)
    extremes = []
    for sign in (1, -1):
        order = torch.where(kept > 0, sign * margins, -torch.inf).argsort(1, descending=True)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
        extremes.append((rank < count).float())
    return extremes[0], extremes[1]


@dataclass
class SoftLabels:
    """Soft self-training: in every round each row of U counts as positive by its posterior, as negative by the rest.

    The posterior is the tilt that pucache calibrates with, on held-out margins of the round before.
    """

    estimates: TaskEstimates
    name = "self-training, soft"
    threshold = None
    settings: list[dict] = field(init=False)
    _tilts: dict = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        kinds = (("sigmoid", 1, 1), ("sigmoid", 1, ROUNDS), ("logistic", 1, ROUNDS), ("logistic", 10, ROUNDS))
        self.settings = [{"surrogate": kind, "times": times, "rounds": rounds} for kind, times, rounds in kinds]

    def train(self, rows: Rows, setting: Tensor, column: Tensor, start: Tensor | None = None) -> Tensor:
        heads = torch.zeros(len(setting), rows.X.shape[1] + 1) if start is None else start.clone()
        for kind in ("sigmoid", "logistic"):
            of = torch.tensor([self.settings[one]["surrogate"] == kind for one in setting.tolist()]).nonzero()[:, 0]
            heads[of] = self._of_kind(rows, setting[of], column[of], heads[of], kind, start is None)
        return heads

    def _of_kind(self, rows: Rows, setting: Tensor, column: Tensor, heads: Tensor, kind: str, anew: bool) -> Tensor:
        p, kept = rows.p, rows.weights(column)
        penalty = self.estimates.penalty * of_each(self.settings, "times", setting)
        rounds = of_each(self.settings, "rounds", setting)
        is_p = (torch.arange(len(rows.X)) < p).float()
        if anew:
            heads = train(rows, balanced(kept * is_p, kept * (1 - is_p), kind), penalty, heads)
        for turn in range(1, ROUNDS + 1) if anew else [ROUNDS]:
            running = (rounds >= turn).nonzero()[:, 0] if anew else torch.arange(len(heads))
            if not len(running):
                break
            if anew:
                self._calibrate(rows, setting[running], column[running], heads[running])
            soft = self._posterior(rows, setting[running], heads[running])
            weights = kept[running]
            loss = balanced(weights * torch.maximum(is_p, soft), weights * (1 - is_p) * (1 - soft), kind)
            heads = heads.clone()
            heads[running] = train(rows, loss, penalty[running], heads[running])
        return heads

    def _calibrate(self, rows: Rows, setting: Tensor, column: Tensor, heads: Tensor) -> None:
        s = (np.arange(len(rows.X)) < rows.p).astype(np.int8)
        for one in setting.unique().tolist():
            folds = (setting == one) & (column < rows.folds)
            held_out = rows.held_out(heads[folds]).numpy()
            self._tilts[one] = fit_tilt(held_out, s, prior=self.estimates.prior)

    def _posterior(self, rows: Rows, setting: Tensor, heads: Tensor) -> Tensor:
        margins = rows.margins(heads).numpy()
        soft = [self._tilts[one].posterior(of) for one, of in zip(setting.tolist(), margins, strict=True)]
        return torch.from_numpy(np.array(soft, np.float32))


METHODS = (Variational, Distribution, TruePriorDistribution, SelfPaced, SoftLabels)
