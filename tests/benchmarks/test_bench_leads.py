"""benchmarks/quality/leads.py and its page: every lead on made-up rows, what it may see, choice and verdict."""

import numpy as np
import pytest
import torch

from benchmarks.common import second_encoder
from benchmarks.common.cifar import CLASSES, Cifar, Task
from benchmarks.quality import lead_methods as leads
from benchmarks.quality import lead_page
from benchmarks.quality import leads as script

pytestmark = pytest.mark.usefixtures("one_thread")
P, HIDDEN, N, TEST, DIM = 20, 30, 300, 60, 8


def made_up(seed=0) -> Task:
    """Positives two standard deviations off, in a mixed order."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(N)
    y = (np.arange(N) < P + HIDDEN)[order]
    X = draw.normal(size=(N, DIM)) + 2 * y[:, None] * (np.arange(DIM) < 2)
    y_test = np.arange(TEST) % 5 == 0
    X_test = draw.normal(size=(TEST, DIM)) + 2 * y_test[:, None] * (np.arange(DIM) < 2)
    return Task(X.astype(np.float16), (order < P).astype(np.int8), y, X_test.astype(np.float16), y_test)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return leads.Start(made_up(), tmp_path_factory.mktemp("leads"), None)


@pytest.mark.parametrize(("lead", "kind"), [(lead, kind) for lead, kinds in leads.LEADS.items() for kind in kinds])
def test_every_lead_scores_every_row_better_than_chance(start, monkeypatch, lead, kind):
    monkeypatch.setattr(leads.Start, "clusters", lambda self, count: leads.Clusters(*self.whitened, min(count, 6)))
    pile, test = leads.LEADS[lead][kind](start)
    assert pile.shape == (N,) and test.shape == (TEST,) and np.isfinite(pile).all() and np.isfinite(test).all()
    figures = start.figures(pile, test)
    assert figures["AP"] > 2 * start.task.hidden.mean() and figures["AP new"] > 2 * start.task.y_test.mean()


def test_no_row_is_its_own_neighbour(start):
    weights = start.graph.toarray()
    assert (weights.diagonal() == 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert ((weights > 0).sum(1) == leads.NEIGHBOURS).all()


def test_a_bagged_row_is_scored_by_heads_that_saw_it_not(start, monkeypatch):
    seen = {}

    def fit(self, X, X_test, weights):
        seen["weights"] = weights
        return np.where(weights > 0, 1.0, np.arange(1, leads.HEADS + 1)[None]), np.zeros((TEST, leads.HEADS))

    monkeypatch.setattr(leads.Start, "fit", fit)
    pile, _ = leads.bagging(start, size=1)
    number, unlabelled = np.arange(1, leads.HEADS + 1), ~start.labelled
    expected = [number[row == 0].mean() for row in seen["weights"][unlabelled]]
    np.testing.assert_allclose(pile[unlabelled], expected)
    assert (seen["weights"][start.labelled] == 1).all()
    assert (seen["weights"][unlabelled].sum(0) == P).all()


def test_the_share_of_a_cluster_leaves_the_row_out(start):
    clusters, p = start.clusters(4), start.posterior(start.pile)
    pile, _ = leads.cluster_share(start, 4, 1.0)
    others = [p[(clusters.own == own) & (np.arange(N) != row)].mean() for row, own in enumerate(clusters.own)]
    np.testing.assert_allclose(pile, start.pile + leads.log_odds(np.array(others)))


def test_matched_scores_keep_the_order_and_take_the_values_of_the_head(start):
    scores = np.random.default_rng(3).normal(size=N)
    matched = start.matched(scores)
    np.testing.assert_array_equal(np.argsort(matched), np.argsort(scores))
    np.testing.assert_array_equal(np.sort(matched), np.sort(start.pile))


def rows(gain):
    """Cells of six classes; `gain` of class and setting is added to every figure."""
    linear = dict.fromkeys(lead_page.FIGURES, 0.5)
    return [
        {"class": name, "share": 0.01, "labelled": 20, "linear": linear}
        | {f"a: {kind}": {figure: 0.5 + gain(name, kind) for figure in linear} for kind in ("x", "y")}
        for name in "uvwxyz"
    ]


def test_the_setting_of_the_greatest_gain_is_chosen():
    assert lead_page.best_setting(rows(lambda name, kind: 0.1 if kind == "y" else 0.05), "a") == "y"


@pytest.mark.parametrize(
    ("gain", "verdict"), [(lambda name, kind: 0.1, "**wins**"), (lambda name, kind: 0.1 * (-1) ** ord(name), "no: no")]
)
def test_a_lead_wins_where_the_gain_is_beyond_two_standard_errors(gain, verdict):
    assert lead_page.verdict(rows(gain), "a: x").startswith(verdict)
    assert verdict in lead_page.page(rows(gain), rows(gain), 1000, False)


@pytest.fixture
def images():
    """Embeddings of 60 training and of 60 test images of each class."""
    draw, data = np.random.default_rng(0), Cifar.__new__(Cifar)
    keys = [f"{name}/{index:05}.png" for name in CLASSES for index in range(60)]
    for part in ("", "_test"):
        setattr(data, f"keys{part}", keys)
        setattr(data, f"label{part}", np.array([key.split("/")[0] for key in keys]))
        setattr(data, f"X{part}", draw.normal(size=(len(keys), DIM)).astype(np.float16))
    return data


def test_a_thin_run_has_a_sixth_of_the_images_in_their_order(images, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "DIRECTIONS", 3)
    monkeypatch.setattr(script, "embedded", lambda data, work: (data.X * 2, data.X_test * 2))
    data = script.embeddings(images, tmp_path, second=True, whole=False)
    assert [data[name].X.shape for name in ("first", "second", "both")] == [(100, 3), (100, 3), (100, 6)]
    assert (data["first"].label == np.repeat(CLASSES, 10)).all()
    np.testing.assert_allclose(np.abs(data["first"].X), np.abs(data["second"].X), atol=2e-3)  # alike but for scale


def test_a_run_verifies_only_the_chosen_settings_on_the_other_classes(monkeypatch, tmp_path):
    asked = []

    def measure(data, work, settings, cell):
        asked.append((cell["class"], settings))
        kinds = [f"{lead}: {kind}" for lead, names in settings.items() for kind in names]
        gain = {name: 0.1 * ("800" in name) for name in kinds}
        return {name: dict.fromkeys(lead_page.FIGURES, gain.get(name, 0)) for name in ["linear", *kinds]}

    monkeypatch.setattr(script, "measure", measure)
    choice, verification = script.run({}, tmp_path, "leads")
    assert {row["class"] for row in choice} == set(script.CHOICE)
    assert {row["class"] for row in verification} == set(CLASSES) - set(script.CHOICE)
    assert len(choice) + len(verification) == len(asked) == 40
    assert all(len(kinds) == 1 for kinds in asked[-1][1].values())
    assert asked[-1][1]["labels of the cluster"][0].startswith("800")


def test_packaged_weights_are_renamed_in_order_or_refused(tmp_path):
    packaged, expected = {"p.weight": torch.ones(2)}, {"ours.weight": torch.zeros(2)}
    path = second_encoder.renamed(packaged, expected, tmp_path / "w.safetensors")
    from safetensors.torch import load_file

    assert torch.equal(load_file(path)["ours.weight"], torch.ones(2))
    with pytest.raises(ValueError, match="not those of"):
        second_encoder.renamed({"p.bias": torch.ones(2)}, expected, path)
