"""Seeds: whole numbers from 0 to 2^64 - 1, given or drawn."""

from __future__ import annotations

import numpy as np

LARGEST_SEED = (1 << 64) - 1  # that torch takes
Seed = int | np.random.RandomState | np.random.Generator | None


def check_seed(seed: Seed) -> None:
    """Raise `ValueError` unless `drawn_seed` takes it."""
    if seed is None or isinstance(seed, np.random.RandomState | np.random.Generator):
        return
    if not (isinstance(seed, int | np.integer) and 0 <= seed <= LARGEST_SEED):
        raise ValueError(
            f"a seed (random_state) is a whole number from 0 to 2^64 - 1, None, a RandomState or a Generator; got "
            f"{seed!r:.80}"
        )


def drawn_seed(seed: Seed) -> int:
    """The number itself, or one drawn from a RandomState or Generator; for None from numpy's, as in scikit-learn."""
    check_seed(seed)
    if isinstance(seed, int | np.integer):
        return int(seed)
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**31 - 1))
    return int((np.random if seed is None else seed).randint(2**31 - 1))
