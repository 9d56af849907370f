"""One fit of one learner, in a process of its own: numpy and scikit-learn, and what the learner imports.

python -m benchmarks.peers.measure LEARNER TASK.npz
"""

import ctypes
import gc
import json
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from benchmarks.common.processes import memory
from benchmarks.peers.learners import LEARNERS, Learner, Truth


def forget_peak() -> float:
    """Give freed memory back, start the peak anew, and tell what is held."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory()["VmRSS"]


def warm_up(learner: Learner) -> None:
    """Imports, threads and what is allocated once, on made-up rows; what fails here says so on the real ones."""
    draw = np.random.default_rng(0)
    s = (np.arange(400) < 40).astype(np.int8)
    X = (draw.standard_normal((400, 8)) + s[:, None]).astype(np.float16)
    with suppress(Exception):
        learner.fit(X, s, Truth(0.1, 0.1))(X)


def on_task(learner: Learner, path: Path) -> dict[str, float]:
    """Fit on a task's rows, and be judged by its truth."""
    task = np.load(path)
    X, s, y, X_test, y_test = (task[name] for name in ("X", "s", "y", "X_test", "y_test"))
    truth, before, began = Truth(float(y[s == 0].mean()), float(y_test.mean())), forget_peak(), time.perf_counter()
    score = learner.fit(X, s, truth)
    cost = {"seconds": time.perf_counter() - began, "mb": memory()["VmHWM"] - before}
    return quality(score, X[s == 0], y[s == 0], X_test, y_test) | cost


def quality(score, X, y, X_test, y_test) -> dict[str, float]:
    margins, called = score(X_test)
    return {
        "ap": average_precision_score(y, score(X)[0]),
        "f1": f1_score(y_test, called),
        "auc": roc_auc_score(y_test, margins),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, path = sys.argv[1:]
    warm_up(LEARNERS[name])
    print(json.dumps(on_task(LEARNERS[name], Path(path)), default=float))
