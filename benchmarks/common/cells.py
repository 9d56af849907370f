"""Cells of a result table: measured once, stored as JSON lines so that a run can be resumed, and formatted."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.common.environment import commit

TUNED = (
    "Two constants of pucache's rule for the penalty were chosen with the true labels of tasks of CIFAR-10 on this "
    "encoder."
)


def kept(path: Path, identity: tuple[str, ...]) -> dict:
    """What earlier runs measured, by identity."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {tuple(row[name] for name in identity): row for row in rows}


def append(path: Path, row: dict) -> None:
    with path.open("a") as stream:
        stream.write(json.dumps(row, default=float) + "\n")


def measured(
    work: Path, name: str, wanted: Iterable[dict], measure: Callable[..., dict], *, jobs: int = 1
) -> list[dict]:
    """The rows of `wanted` cells: those of earlier runs of this commit, and `measure(**cell)` of the others.

    A cell is a dict of what it is; all have the same names. They are kept in WORK/NAME-COMMIT.jsonl. More than one
    job: in that many processes of one thread; `measure` must be picklable.
    """
    cells, path = list(wanted), work / f"{name}-{commit() or 'unknown'}.jsonl"
    identity = tuple(cells[0])
    work.mkdir(parents=True, exist_ok=True)
    earlier = kept(path, identity)
    missing = [cell for cell in cells if tuple(cell.values()) not in earlier]
    for row in _in_processes(missing, measure, jobs) if jobs > 1 else (cell | measure(**cell) for cell in missing):
        append(path, row)
    rows_by_cell = kept(path, identity)
    return [rows_by_cell[tuple(cell.values())] for cell in cells]


def _in_processes(cells: list[dict], measure: Callable[..., dict], jobs: int) -> Iterator[dict]:
    """In any order."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read when the processes start
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(measure, **cell): cell for cell in cells}
        try:
            for future in as_completed(running):
                yield running[future] | future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def table(head: list[str], rows: list[list]) -> str:
    """A markdown table."""
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [head, ["---"] * len(head), *rows])


def spread(values, scale: float = 100, digits: int = 2) -> str:
    """Mean ± standard deviation (of n - 1) of several values; one value alone; nothing of none."""
    values = scale * np.asarray(values, float)
    if not len(values):
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"
