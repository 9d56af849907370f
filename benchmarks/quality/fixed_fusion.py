r"""Margin and neighbours fused with fixed constants, whatever the labels show: what adaptive weights are compared with.

    log f_P / f_N (m)  +  2 * logit( sum_j w_j p_j ),     w_j ~ exp(c_j / 0.1)

over the 30 rows of greatest whitened cosine c_j; p_j is 1 for a labelled row, else the classifier's posterior.
"""

import numpy as np
from scipy.special import logit

from pucache import EmbeddingCache, PULinearClassifier
from pucache.neighbours.search import row_search
from pucache.neighbours.whitening import Whitening

NEIGHBOURS, TEMPERATURE, WEIGHT, MIN_SHARE = 30, 0.1, 2.0, 1e-3
CANDIDATES = 10_000  # unlabelled rows of the highest margins; the others rank below


def fused_scores(cache: EmbeddingCache, s: np.ndarray, model: PULinearClassifier) -> np.ndarray:
    """Scores of all rows of a cache.

    Parameters
    ----------
    cache : EmbeddingCache
    s : ndarray of int8, (n,)
    model : PULinearClassifier

    Returns
    -------
    ndarray of float64, (n,)
    """
    whitening = Whitening.estimate(cache)
    Z = whitening.whiten(whitening.centred_units(np.asarray(cache.X)))
    margins = model.margins(cache.X)
    probability = np.where(s == 1, 1, model.tilt_.posterior(margins))
    candidates = np.argsort(np.where(s == 1, -np.inf, margins))[-CANDIDATES:]
    cosines, rows = row_search(Z)(Z[candidates], NEIGHBOURS + 1)
    weights = np.where(rows == candidates[:, None], 0, np.exp((cosines - cosines[:, 1:2]) / TEMPERATURE))
    share = np.full(len(cache), MIN_SHARE)
    share[candidates] = (weights * probability[rows]).sum(1) / weights.sum(1)
    return model.tilt_.log_ratio(margins) + WEIGHT * logit(share.clip(MIN_SHARE, 1 - MIN_SHARE))
