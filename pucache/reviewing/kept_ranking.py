"""The last ranking of a session, kept in its folder, so that a server that starts again shows images at once.

It is a copy: the trainer makes a newer one within seconds. Whatever is wrong with the file, it is left aside.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from ..errors import OutputError
from ..storage.atomic import replacing
from .ranking_result import RankingResult

FILE = "ranking.npz"


def keep_ranking(folder: Path, identifier: str, result: RankingResult, serial: int) -> None:
    """Write a ranking; one that cannot be written is not kept.

    Parameters
    ----------
    folder : Path
        Of the session.
    identifier : str
        Of session and cache; see `pucache.reviewing.serve.identifier`.
    result : RankingResult
    serial : int
        Number of the last entry of the log that it rests on.
    """
    posterior = np.empty(0, np.float32) if result.posterior is None else result.posterior
    with contextlib.suppress(OutputError), replacing(folder / FILE) as temporary, open(temporary, "wb") as stream:
        np.savez(
            stream,
            identifier=np.array(identifier),
            scores=result.scores,
            posterior=posterior,
            expected=np.float64(result.expected),
            serial=np.int64(serial),
        )


def kept_ranking(folder: Path, identifier: str, n: int) -> tuple[RankingResult, int] | None:
    """The kept ranking of `n` rows, and the number of the last entry that it rests on; None where there is none."""
    try:
        with open(folder / FILE, "rb") as stream, np.load(stream, allow_pickle=False) as values:
            if str(values["identifier"]) != identifier:
                return None
            scores, posterior = values["scores"], values["posterior"]
            expected, serial = float(values["expected"]), int(values["serial"])
    except Exception:  # numpy and zipfile raise almost anything on damaged files
        return None
    shapes_fit = scores.shape == (n,) and posterior.shape in ((n,), (0,))
    if not shapes_fit or scores.dtype != np.float32 or posterior.dtype != np.float32 or np.isnan(scores).any():
        return None
    return RankingResult(scores, posterior if len(posterior) else None, expected, 0.0), serial
