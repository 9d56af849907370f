"""Importing a folder as clip-retrieval writes it, against the disk, and with kills.

    python -m benchmarks.speed.imports FOLDER [--rows 1000000] [--dim 512] [--parts 100] [--rounds 3] [--kills 50]
                                       [--quick] [--out docs/results/imports.md]

Planted embeddings are written into FOLDER as parts with Parquet metadata beside them (1 GB), and found there the next
time. A second folder of metadata gives the rows keys in random order. In each round a file of the cache's size is
written from memory and synced, then the folder is imported, each import by a process of its own. What is timed begins
with opening the folder and ends with a cache that is synced; Python's imports come before. Then imports, keys in the
order of the rows, are killed at random moments and started again, and what they end in is compared with what an
undisturbed one wrote. Every figure is kept in FOLDER/imports-COMMIT.jsonl as soon as it is measured, kills by fives:
a run that was stopped goes on.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import command_line, print_page
from benchmarks.common.environment import environment
from benchmarks.speed.import_processes import (
    ORDERS,
    STATES,
    Source,
    clear,
    imported,
    killed,
    make_source,
    undisturbed,
    written,
)

UNDISTURBED, WRITE, IMPORT, KILLS = "undisturbed import", "write", "import", "kills"
LEAST_RATE, MOST_MB = 0.5, 500  # asked: of the disk's write rate; peak memory
KILLS_A_CELL = 5
NUMBERS = {"rows": 1_000_000, "dim": 512, "parts": 100, "rounds": 3, "kills": 50}
QUICK = {"rows": 40_000, "dim": 128, "parts": 20, "rounds": 2, "kills": 6}
QUICK_SEGMENT = 1 << 20  # so that there is something to go on from


# --- cells ----------------------------------------------------------------------------------------------------


def cell_of(at: Source, operation: str, order: str = "", state: str = "", number: int = 0) -> dict:
    """What a cell is, for `measured`."""
    sizes = {"rows": at.rows, "dim": at.dim, "parts": at.parts}
    return sizes | {"operation": operation, "order": order, "state": state, "number": number}


def cells_of_rounds(at: Source, rounds: int) -> list[dict]:
    """In each round the disk first, then every import."""
    return [
        cell
        for number in range(rounds)
        for cell in (
            cell_of(at, WRITE, number=number),
            *(cell_of(at, IMPORT, order, state, number) for state in STATES for order in ORDERS),
        )
    ]


def cells_of_kills(at: Source, kills: int) -> list[dict]:
    """A few kills each; how many is in the place of the state."""
    counts = [min(KILLS_A_CELL, kills - begin) for begin in range(0, kills, KILLS_A_CELL)]
    return [cell_of(at, KILLS, ORDERS[0], str(count), number) for number, count in enumerate(counts)]


def run_cells(at: Source, cells: list[dict], measure: Callable[..., dict]) -> list[dict]:
    """Those that were measured before, and `measure(operation, order, state, number)` of the others."""

    def shown(rows: int, dim: int, parts: int, **cell) -> dict:
        figures = measure(**cell)
        print(", ".join(filter(None, map(str, cell.values()))), figures, file=sys.stderr, flush=True)
        return figures

    return measured(at.folder, "imports", cells, shown) if cells else []


def measure_round(at: Source, size: int, operation: str, order: str, state: str, number: int) -> dict:
    return written(at, size) if operation == WRITE else imported(at, order, state)


def measure_kills(
    at: Source, seconds: float, whole: str, segment: int | None, operation: str, order: str, state: str, number: int
) -> dict:
    kills = int(state)
    result = killed(at, order, kills=kills, seconds=seconds, whole=whole, segment=segment, seed=number)
    return {"struck": result.struck, "completed": result.completed, "resumed": result.resumed}


# --- the page -------------------------------------------------------------------------------------------------


def main(options: argparse.Namespace) -> str:
    at = Source(options.folder.resolve(), options.rows, options.dim, options.parts)
    at.folder.mkdir(parents=True, exist_ok=True)
    make_source(at)
    segment = QUICK_SEGMENT if options.quick else None
    whole, *_ = run_cells(
        at,
        [cell_of(at, UNDISTURBED, ORDERS[0], str(segment or ""))],
        lambda operation, order, state, number: undisturbed(at, order, segment),
    )
    rows = run_cells(at, cells_of_rounds(at, options.rounds), partial(measure_round, at, whole["bytes"]))
    seconds = statistics.median(row["seconds"] for row in of_import(rows, ORDERS[0], STATES[0]))
    kills = run_cells(
        at, cells_of_kills(at, options.kills), partial(measure_kills, at, seconds, whole["sha256"], segment)
    )
    clear(at)
    parts = [*title(at, options, whole["bytes"]), *speed_lines(rows, whole["bytes"]), *kill_lines(at, kills)]
    return "\n".join([*parts, *asked(rows, kills, whole["bytes"]), environment()]) + "\n"


def of_import(rows: list[dict], order: str, state: str) -> list[dict]:
    return [row for row in rows if (row["order"], row["state"]) == (order, state)]


def disk_seconds(rows: list[dict]) -> list[float]:
    """Of writing the bytes of the cache, by round."""
    return [row["seconds"] for row in rows if row["operation"] == WRITE]


def of_write_rate(rows: list[dict], order: str, state: str) -> list[float]:
    """Rates of an import over the disk's write rate in the same round."""
    both = zip(disk_seconds(rows), of_import(rows, order, state), strict=True)
    return [disk / row["seconds"] for disk, row in both]


def speed_lines(rows: list[dict], size: int) -> list[str]:
    disk = disk_seconds(rows)
    lines = [[f"writing {size / 1e9:.2f} GB and syncing", spread(disk), rate(size, disk), "1.00", ""]]
    for state in STATES:
        for order in ORDERS:
            of = of_import(rows, order, state)
            seconds, peak = [row["seconds"] for row in of], max(row["peak"] for row in of)
            ratios = spread(of_write_rate(rows, order, state))
            line = f"importing, {order}, {state}", spread(seconds), rate(size, seconds), ratios, f"{peak:,.0f} MB"
            lines.append(list(line))
    return [table(["", "seconds", "GB/s", "of the disk's write rate", "peak memory"], lines), ""]


def rate(size: int, seconds: list[float]) -> str:
    """GB a second."""
    return f"{size / statistics.median(seconds) / 1e9:.2f}"


def kill_lines(at: Source, kills: list[dict]) -> list[str]:
    """What became of killed imports."""
    if not kills:
        return []
    shares = [100 * rows / at.rows for row in kills for rows in row["resumed"]]
    struck, completed = (sum(row[name] for row in kills) for name in ("struck", "completed"))
    head = ["killed while importing", "kills", "imports that ended after kills", "resumed with, % of the rows", "bytes"]
    return [
        table(head, [[ORDERS[0], struck, completed, spread(shares, 0), "the same"]]),
        "",
        "Each process was killed with SIGKILL at a random moment of the time that an import takes, and the command "
        "started again. *Resumed with* are the rows that the last run found written. Every cache was compared with "
        "that of an undisturbed import by SHA-256 (`SOURCE_DATE_EPOCH` was set: a cache states when it was written).",
        "",
    ]


def asked(rows: list[dict], kills: list[dict], size: int) -> list[str]:
    """The figures beside what is asked."""
    ratios = [f"{statistics.median(of_write_rate(rows, ORDERS[0], state)):.2f} {state}" for state in STATES]
    peak = max(row["peak"] for row in rows if row["operation"] == IMPORT)
    struck = sum(row["struck"] for row in kills)
    return [
        f"Asked: {LEAST_RATE} of the disk's write rate, under {MOST_MB} MB, the same bytes after {NUMBERS['kills']} "
        f"kills. Measured: the disk writes {rate(size, disk_seconds(rows))} GB/s; imports, {ORDERS[0]}, run at "
        f"{' and '.join(ratios)} of that; at most {peak:,.0f} MB; the same bytes after {struck} kills.",
        "",
    ]


def title(at: Source, options: argparse.Namespace, size: int) -> list[str]:
    quick = " --quick" if options.quick else ""
    return [
        "# Imports",
        "",
        f"`python -m benchmarks.speed.imports FOLDER --rows {at.rows} --dim {at.dim} --parts {at.parts} --rounds "
        f"{options.rounds} --kills {options.kills}{quick}`: `import-embeddings` of a folder as clip-retrieval writes "
        f"it: {at.parts} parts of {at.rows // at.parts:,} x {at.dim} float16 (planted), with Parquet metadata "
        f"(`image_path`, `caption`). The cache has {size / 1e9:.2f} GB. Medians of {options.rounds} rounds, with the "
        "smallest and the largest. *Of the disk's write rate* is the ratio of the seconds that a file of the cache's "
        "size takes to be written and synced in the same round to those of the import, which ends with a synced file; "
        "*peak memory* is all resident memory of the process, with its libraries and mapped pages, the largest of the "
        "rounds. Seeds: 0 (rows), 1 (order of the keys).",
        "",
    ]


def spread(values: list[float], digits: int = 2) -> str:
    """Median (smallest to largest)."""
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    print_page(main, command_line(__doc__, NUMBERS, QUICK))
