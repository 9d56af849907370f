"""Models whose labels are few: what they state follows from the number of labels alone."""

import copy
from dataclasses import replace


def with_labels(model, labels, **grouped):
    """A copy of a model that rests on so many labels."""
    few = copy.copy(model)
    few.figures_ = replace(model.figures_, labels=replace(model.figures_.labels, labels=labels, **grouped))
    return few
