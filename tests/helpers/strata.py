"""Strata from a list of what left them."""

import numpy as np

from pucache.estimates.strata import Stratum


def stratum(rows, left=()):
    """Of so many rows, and of (label, copies, number of the draw or 0) of each picture that left."""
    label, copies, draw = np.array(left, np.int64).reshape(-1, 3).T
    return Stratum(rows, label, copies, draw, np.zeros(len(label), bool))
