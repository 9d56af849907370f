"""Scoring speed on a large cache, compared with the speed of reading its file.

    python -m benchmarks.speed.scoring FOLDER [--rows 1000000] [--dim 1280] [--rounds 5] [--quick]
                                       [--out docs/results/scoring.md]

A cache of planted positives is written into FOLDER (2.6 GB), and found there the next time. In each
round the file is read from its beginning to its end and scored to CSV and to Parquet, each by a process of its
own, once from the disk and once from the page cache. What is timed begins with opening the cache and ends with
a file of scores that is synced; imports come before.
"""

import argparse
import json
import statistics
import time

from benchmarks.common.command_line import command_line, print_page
from benchmarks.common.planted_cache import Planted, asked_for_a_cell, cell, drop, file_blocks, keep, prepare_with_model
from benchmarks.speed.scale import Measured, score_csv, score_parquet

GOAL = 0.8  # rate to CSV over the rate to Parquet, from the page cache
STATES = ("from the disk", "from the page cache")
NUMBERS = {"rows": 1_000_000, "dim": 1280, "rounds": 5}
QUICK = {"rows": 200_000, "dim": 64, "rounds": 2}
OPERATIONS = {"read": None, "score to CSV": score_csv, "score to Parquet": score_parquet}


def run_cell(name: str, at: Planted) -> dict[str, float]:
    """In a process of its own."""
    import pyarrow.parquet  # noqa: F401

    from pucache.allocator import keep_freed_memory

    keep_freed_memory()
    operation, _, state = name.partition(", ")
    (drop if state == "from the disk" else keep)(at.cache)
    if operation == "read":
        began = time.perf_counter()
        read = sum(len(block) for block in file_blocks(at.cache))
        seconds = time.perf_counter() - began
        assert read == at.cache.stat().st_size
        return {"seconds": seconds}
    measured = Measured()
    OPERATIONS[operation](at, measured)
    return measured.figures


def table(at: Planted, figures: dict[str, list[dict[str, float]]]) -> list[str]:
    size = at.cache.stat().st_size
    lines = ["| | seconds | GB/s | of reading | CPU, µs a row | peak memory | spread |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, rounds in figures.items():
        seconds = [row["seconds"] for row in rounds]
        middle = statistics.median(seconds)
        read = [row["seconds"] for row in figures[f"read, {name.partition(', ')[2]}"]]
        ratio = statistics.median(one / other for one, other in zip(read, seconds, strict=True))
        peak = f"{statistics.median(row['peak'] for row in rounds):,.0f} MB" if "peak" in rounds[0] else ""
        cpu = f"{statistics.median(row['CPU'] for row in rounds) / at.n * 1e6:.2f}" if "CPU" in rounds[0] else ""
        spread = (max(seconds) - min(seconds)) / middle
        rates = f"{middle:.2f} | {size / middle / 1e9:.2f} | {ratio:.2f}"
        lines.append(f"| {name} | {rates} | {cpu} | {peak} | {spread:.0%} |")
    return lines


def csv_to_parquet(figures: dict[str, list[dict[str, float]]]) -> str:
    """Rows a second to CSV over those to Parquet, by the seconds of the same round; 1 is as fast."""
    parts = []
    for state in STATES:
        csv, parquet = ([row["seconds"] for row in figures[f"score to {kind}, {state}"]] for kind in ("CSV", "Parquet"))
        ratios = [other / one for one, other in zip(csv, parquet, strict=True)]
        parts.append(f"{statistics.median(ratios):.2f} {state} ({min(ratios):.2f} to {max(ratios):.2f})")
    return (
        f"Rate to CSV over the rate to Parquet, median of the rounds (smallest to largest): {'; '.join(parts)}. Asked: "
        f"at least {GOAL} {STATES[1]}."
    )


def main(options: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    at = Planted(options.folder, options.rows, options.dim)
    prepare_with_model(at)
    names = [f"{operation}, {state}" for state in STATES for operation in OPERATIONS]
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            figures[name].append(cell(__spec__.name, name, at))
    lines = [
        "# Scoring",
        "",
        f"`python -m benchmarks.speed.scoring FOLDER --rows {at.n} --dim {at.d} --rounds {options.rounds}`: a cache "
        f"of {at.n:,} x {at.d} float16 ({at.cache.stat().st_size / 1e9:.2f} GB), each byte of which is verified by "
        "its checksum. Medians; *of reading* is the median ratio of the seconds of reading the file in the same "
        "round to those of scoring; *peak memory* is over what the process had after its imports; *spread* is "
        "(largest - smallest) / median.",
        "",
        *table(at, figures),
        "",
        csv_to_parquet(figures),
        "",
        environment(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if asked := asked_for_a_cell():
        print(json.dumps(run_cell(*asked)))
        raise SystemExit
    print_page(main, command_line(__doc__, NUMBERS, QUICK))
