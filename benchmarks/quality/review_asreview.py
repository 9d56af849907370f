"""A review by ASReview's simulator, for `review.py`; runs where ASReview is installed, and imports nothing else of it.

    python review_asreview.py TASK.npz OUT.json --looks 300 [--c 0.067]

TASK.npz holds X (n, d), s and y (n,). Settings are those of ASReview's heavy preset for embeddings (elas_h3): a linear
SVM with balanced weights on unit rows, most relevant first; random images until a negative is known. OUT.json gets the
number of the look at which each hidden positive was found.
"""

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from asreview import ActiveLearningCycle, Simulate
from asreview.models.balancers import Balanced
from asreview.models.classifiers import SVM
from asreview.models.models import get_ai_config
from asreview.models.queriers import Max, Random
from asreview.models.stoppers import IsFittable, NLabeled

PRESET = get_ai_config("elas_h3")["value"]


def cycles(c: float | None, seed: int) -> list[ActiveLearningCycle]:
    changed = {} if c is None else {"C": c}
    learner = ActiveLearningCycle(
        querier=Max(),
        classifier=SVM(**PRESET.classifier_param | changed, random_state=seed),
        balancer=Balanced(**PRESET.balancer_param),
        n_query=1,
    )
    return [ActiveLearningCycle(querier=Random(random_state=seed), stopper=IsFittable()), learner]


def found_at(X: np.ndarray, s: np.ndarray, y: np.ndarray, *, looks: int, c: float | None, seed: int) -> list[int]:
    """Looks, counted from 1, at which hidden positives were found."""
    labelled = np.flatnonzero(s)
    simulation = Simulate(
        X, y, cycles(c, seed), stopper=NLabeled(len(labelled) + looks), skip_transform=True, print_progress=False
    )
    simulation.label(labelled)
    simulation.review()
    shown = simulation._results["label"].to_numpy()[len(labelled) :][:looks]
    return (1 + np.flatnonzero(shown)).tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--looks", type=int, required=True)
    parser.add_argument("--c", type=float, help="of the SVM (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    task = np.load(arguments.task)
    X = task["X"].astype(np.float64)  # as the SVM has it, which would copy all rows at each look
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    began = time.process_time()
    options = {"looks": arguments.looks, "c": arguments.c, "seed": arguments.seed}
    looks = found_at(X, task["s"], task["y"].astype(int), **options)
    facts = {"found_at": looks, "cpu_seconds": time.process_time() - began, "asreview": version("asreview")}
    arguments.out.write_text(json.dumps(facts))
