"""Margins of labelled positives and unlabelled rows."""

import numpy as np


def gaussians(prior, n_p=400, n_u=2000, apart=1.0, seed=0):
    """Margins and s: P from N(apart, 1), U a mixture with N(-apart, 1). The tilt is exactly 2 * apart * m."""
    draw = np.random.default_rng(seed)
    hidden = round(prior * n_u)
    margins = np.concatenate([draw.normal(apart, size=n_p + hidden), draw.normal(-apart, size=n_u - hidden)])
    return margins.astype(np.float32), (np.arange(n_p + n_u) < n_p).astype(np.int8)
