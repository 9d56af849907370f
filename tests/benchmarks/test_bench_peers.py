"""The formulas of benchmarks/peers/compare.py and the modules it is made of, on made-up rows."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.peers import compare as peers
from benchmarks.peers import learners
from benchmarks.peers import page as peers_page
from benchmarks.peers.learners import DEFAULT, ONE_FIT, WITH_SHARE, Learner, Truth
from benchmarks.peers.verdicts import FIGURES

pytestmark = pytest.mark.slow

INSTALLED = pytest.mark.skipif(bool(learners.missing()), reason="the peers are not installed")


@pytest.fixture
def rows():
    draw = np.random.default_rng(0)
    y = draw.random(600) < 0.3
    X = (draw.standard_normal((600, 8)) + 1.2 * y[:, None]).astype(np.float16)
    s = (y & (draw.random(600) < 0.4)).astype(np.int8)
    return X, s, y


def figures(ap, *, f1=0.5, auc=0.5, seconds=5.0, mb=500.0):
    return dict(zip(FIGURES, (ap, f1, auc, seconds, mb), strict=True))


# --- learners ------------------------------------------------------------------------------------------


@INSTALLED
@pytest.mark.filterwarnings("ignore")  # the peers' own
@pytest.mark.parametrize("name", [name for name, of in learners.PEERS.items() if of.pace in ("quick", "fast")])
def test_every_fast_learner_ranks_and_decides(rows, name):
    X, s, y = rows
    margins, called = learners.LEARNERS[name].fit(X, s, Truth(float(y[s == 0].mean()), 0.3))(X)
    assert roc_auc_score(y, margins) > 0.9
    assert set(called.tolist()) <= {0, 1}


# --- what is measured ------------------------------------------------------------------------------------


def test_what_a_learner_raises_is_told_of_its_task(tmp_path):
    def refuse(X, s, truth):
        raise ValueError(f"prior {truth.prior:g}, share {truth.share:g}")

    s, y = np.array([1, 0, 0], np.int8), np.array([True, True, False])
    np.savez(tmp_path / "task.npz", X=np.zeros((3, 2), np.float16), s=s, y=y, X_test=np.zeros((2, 2)), y_test=y[1:])
    found = peers.on_task(Learner(refuse, "nothing"), tmp_path / "task.npz")
    assert found == {"failed": "ValueError: prior 0.5, share 0.5"}
    text = peers_page.failures({"peer": {"1:10": found, "cat": figures(0.5)}})
    assert text == ["- peer, 1:10: ValueError: prior 0.5, share 0.5"]


# --- ranking and embedding --------------------------------------------------------------------------------


# --- verdicts ---------------------------------------------------------------------------------------------


# --- the page ---------------------------------------------------------------------------------------------


def test_a_row_compares_on_the_tasks_of_the_peer():
    name = "centroid difference"
    cells = {own: {"a": figures(0.5), "b": figures(0.9)} for own in (DEFAULT, WITH_SHARE, ONE_FIT)}
    cells[name] = {"a": {"failed": "so"}, "b": figures(0.4, seconds=9, mb=900)}
    *_, row = peers_page.learner_rows(cells)
    assert row[:3] == [name, "b", "0.400 / 0.900"] and row[-1] == "first"
    assert peers_page.learner_rows(cells)[0][2] == "0.700"
