"""Rules of an open framework that say when to stop, on the looks of a simulated review.

The framework is that of Repke et al. (2026, Research Synthesis Methods): fifteen methods, each with the settings that
it was compared at. They are imported from a clone of github.com/destiny-evidence/stopping-methods, as they are.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

ASKED = ("recall_target", "confidence_level")


@dataclass(frozen=True)
class Looked:
    """What was looked at, and what a ranking says of the rest.

    Attributes
    ----------
    labels : ndarray of int, (n,)
        True labels: first of the k images looked at, in order, then of the others, likely ones first.
    scores : ndarray of float, (n,)
        Their posteriors, of those looked at as it was then.
    ranked : ndarray of bool, (k,)
        Which of those looked at the ranking chose; the others were drawn at random.
    starts : ndarray of int, (b,)
        First place of each batch.
    """

    labels: np.ndarray
    scores: np.ndarray
    ranked: np.ndarray
    starts: np.ndarray


Says = Callable[[Looked], bool]


def imported(folder: Path) -> ModuleType:
    """Its package `methods`, which is written for Python 3.12 and later."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    logging.disable(logging.ERROR)  # it logs each fit that fails
    return importlib.import_module("methods")


def method_rules(folder: Path, target: float) -> dict[str, Says]:
    """Its methods in each of their settings that ask for a recall, and a confidence where they have one, of `target`.

    Names are those of the methods, with the settings as JSON.
    """
    rules = {}
    for method in imported(folder).it_methods():
        for settings in method.parameter_options():
            asked = [settings.get(name, target) for name in ASKED]
            # of this method other biases are marked there as not working yet
            if asked == [target, target] and not (method.KEY == "BUSCAR" and settings["bias"] != 1):
                own = {name: value for name, value in settings.items() if name not in ASKED}
                rules[f"{method.KEY} {json.dumps(own)}"] = says_by(method, settings)
    return rules


def says_by(method: type, settings: dict) -> Says:
    """What a method says; nothing where it fails, as on looks of which none was drawn at random."""

    def says(looked: Looked) -> bool:
        seen = len(looked.ranked)
        try:
            with warnings.catch_warnings(action="ignore"):
                entry = method.compute(
                    n_total=len(looked.labels),
                    labels=looked.labels[:seen],
                    scores=looked.scores,
                    is_prioritised=looked.ranked,
                    full_labels=looked.labels,
                    bounds=np.stack([looked.starts, np.append(looked.starts[1:], seen)], axis=1),
                    **settings,
                )
        except (ValueError, ArithmeticError):
            return False
        return bool(entry["safe_to_stop"])

    return says
