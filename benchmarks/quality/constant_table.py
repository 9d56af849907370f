"""Constants of pucache that were chosen by measurement, with the true labels: values, and on what."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

LINEAR, FIT, RULE, INTERVAL, SITTING = (
    "linear head",
    "distilled head",
    "whether neighbours count",
    "interval",
    "sitting",
)
PENALTY_TASKS = "62 tasks of CIFAR-10"
FOUR = "airplane, cat, frog, truck of CIFAR-10"
MISLEADING = "classes of CIFAR-10, and tasks in which neighbours mislead"
FIRST_PILES = "422 piles of CIFAR-10; 25 first piles of each number of labels, a fifth of them of Fashion-MNIST"
SITTINGS = "sittings on airplane, cat, frog of CIFAR-10"


@dataclass(frozen=True)
class Constant:
    """A constant of one or several modules.

    Attributes
    ----------
    module, name : str
        The module below `pucache` that defines it.
    meaning : str
    kind : str
        What it takes part in, and so what is measured.
    chosen_on : str
    values : tuple of float
        Others that are tried.
    also : tuple of str
        Modules below `pucache` that import it by its name.
    """

    module: str
    name: str
    meaning: str
    kind: str
    chosen_on: str
    values: tuple[float, ...]
    also: tuple[str, ...] = ()

    @property
    def attributes(self) -> list[str]:
        """Full names of the attributes that hold it."""
        return [f"pucache.{module}.{self.name}" for module in (self.module, *self.also)]

    @property
    def value(self) -> float:
        """As it is."""
        return getattr(import_module(f"pucache.{self.module}"), self.name)

    def label(self, value: float) -> str:
        """Name of a variant."""
        return f"{self.module}.{self.name} = {value:g}"


CONSTANTS = (
    Constant(
        "training.penalty",
        "_FLOOR",
        "added to the share of negatives above a positive",
        LINEAR,
        PENALTY_TASKS,
        (0.003, 0.03),
    ),
    Constant(
        "training.penalty",
        "_QUANTILE",
        "of the priors that the candidates estimate",
        LINEAR,
        PENALTY_TASKS,
        (0.5, 0.95),
    ),
    Constant("training.penalty", "_MAX_STEPS", "of the grid below the best penalty", LINEAR, PENALTY_TASKS, (0, 4)),
    Constant(
        "neighbours.graph",
        "NEIGHBOURS",
        "of a row",
        FIT,
        FOUR,
        (10, 90),
        ("neighbours.pile_search", "retrieval.model_scorers"),
    ),
    Constant("neighbours.weighted_graph", "TEMPERATURE", "of the cosines as weights", FIT, FOUR, (0.03, 0.3)),
    Constant("training.propagation", "_CLIP", "least share of positives among neighbours", FIT, FOUR, (3e-4, 3e-3)),
    Constant("training.distillation", "_FIRST_ROUNDS", "of propagation before the first head", FIT, FOUR, (2, 18)),
    Constant("training.distillation", "_LATER_ROUNDS", "of propagation before the second head", FIT, FOUR, (1, 9)),
    Constant("training.distillation", "_PENALTY", "of the distilled head", FIT, FOUR, (6.7e-7, 6e-6)),
    Constant(
        "training.neighbour_evidence",
        "_LEAST_EVIDENCE",
        "that is asked for with 20 labels",
        RULE,
        MISLEADING,
        (0.007, 0.06),
    ),
    Constant(
        "training.neighbour_evidence",
        "_HELD_OUT_WEIGHT",
        "of held-out positives beside agreement",
        RULE,
        MISLEADING,
        (0.17, 1.5),
    ),
    Constant(
        "training.neighbour_evidence", "_HALF_TRUST", "labels with which that weight is half", RULE, MISLEADING, (7, 60)
    ),
    Constant(
        "training.neighbour_evidence",
        "_NEAR_BEST",
        "share of the best evidence for a greater weight",
        RULE,
        MISLEADING,
        (0.23, 1),
    ),
    Constant("estimates.priors", "ERROR_BELOW", "of the model below an estimate", INTERVAL, FIRST_PILES, (0, 0.6)),
    Constant(
        "estimates.priors",
        "MODEL_ERROR",
        "of the model above an estimate",
        INTERVAL,
        "the suite, many labels",
        (0, 0.15),
    ),
    Constant("estimates.priors", "_FITTED", "parameters that labels are spent on", INTERVAL, FIRST_PILES, (2, 9)),
    Constant(
        "estimates.intervals",
        "_ROW_WEIGHT",
        "of a labelled row in its draws",
        INTERVAL,
        "109 piles of CIFAR-10",
        (0.27, 1),
    ),
    Constant("reviewing.ranker", "_PENALTY", "of the heads of a sitting", SITTING, SITTINGS, (1e-4, 1e-3)),
    Constant(
        "reviewing.pile_features", "_DIRECTIONS", "of the rows that these heads see", SITTING, SITTINGS, (170, 1280)
    ),
)


def variants(*kinds: str) -> Iterator[tuple[Constant, float]]:
    """Constants of these kinds with each value that is tried."""
    for constant in CONSTANTS:
        if constant.kind in kinds:
            for value in constant.values:
                yield constant, value
