"""Speed on a GPU, and whether the CPU finds the same: one line of JSON for each check, as soon as it is known.

    python -m benchmarks.gpu OUT [--minutes 14] [--device cuda] [--quick] [--page docs/results/gpu.md]

The groups of `benchmarks.gpu_checks` run one after another, each in a process of its own that is ended after its
seconds; files that take time to write are written meanwhile. OUT/results.jsonl gets the figures of each check, or its
error; a check that is there already, of the same commit and device, is not run again, so the command can be repeated
until all are done. No group is begun after the minutes are over. The page has all figures, with the name of the card.
pucache need not be installed: run it in a checkout. ``--device cpu --quick`` tries the script itself. Beside it:
``python -m pytest --slow tests/cuda``, and `benchmarks.quality.pretrain_recipes` for pretraining.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.cells import table
from benchmarks.common.environment import commit
from benchmarks.gpu_checks import GROUPS, Bench, write_pngs

CHECKS = {name: check for _, checks in GROUPS for name, check in checks.items()}


def write_files(bench: Bench) -> None:
    """Write what the checks of embedding and of a million rows read, in the order in which they need it."""
    from benchmarks.common.row_cache import write_row_cache

    writers: dict[str, Callable[[Path], object]] = {
        "few": lambda path: write_pngs(path, bench.size(1_000, 8)),
        "png": lambda path: write_pngs(path, bench.size(30_000, 8)),
        "many.h5": lambda path: write_row_cache(path, bench.X(bench.size(1280, 32))),
    }
    for name, write in writers.items():
        if not (bench.work / f"{name}.whole").exists():
            write(bench.work / name)
            (bench.work / f"{name}.whole").touch()


def done(results: Path, device: str) -> list[dict]:
    """Results of this commit on this device."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return [line for line in lines if (line["commit"], line["device"]) == (commit(), device)]


def record(bench: Bench, results: Path, name: str, check: Callable[[], dict[str, object]]) -> None:
    """Append the figures of a check, or its error."""
    line: dict[str, object] = {"check": name, "commit": commit(), "device": bench.device}
    try:
        line |= check()
    except Exception as error:  # the checks after it are worth as much
        traceback.print_exc()
        line["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(line), flush=True)
    with results.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def run(bench: Bench, out: Path, words: list[str], *, minutes: float, names: list[str]) -> list[dict]:
    """Run the groups with missing checks, each in a process; returns the results of all that are known."""
    results, until = out / "results.jsonl", time.monotonic() + 60 * minutes
    command = [sys.executable, "-m", "benchmarks.gpu", *words, "--child"]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str((bench.work / "compiled").resolve())}
    start = functools.partial(subprocess.Popen, env=environment)
    with start([*command, "files"]) as writer:
        for limit, checks in GROUPS:
            known = {line["check"] for line in done(results, bench.device)}
            missing = [name for name in checks if name in names and name not in known]
            left = until - time.monotonic()
            if not missing or left <= 0:
                continue
            with start([*command, *missing]) as process:
                try:
                    process.wait(min(limit, left))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            known = {line["check"] for line in done(results, bench.device)}
            for name in [name for name in missing if name not in known][:1]:  # those after it are left for a next run
                record(bench, results, name, functools.partial(_ended, limit, process.returncode))
        writer.terminate()
    return done(results, bench.device)


def _ended(limit: float, status: int | None) -> dict[str, object]:
    raise RuntimeError(f"not finished within {limit} s, ended with {status}")


def page(lines: list[dict]) -> str:
    """The results as a page: a table of the checks that give the same figures."""
    tables: dict[tuple[str, ...], list[list]] = {}
    for line in lines:
        figures = tuple(name for name in line if name not in ("check", "commit", "device", "environment"))
        tables.setdefault(figures, []).append([line["check"], *(_rounded(line[name]) for name in figures)])
    parts = [table(["check", *figures], rows) for figures, rows in tables.items() if figures]
    machines = [str(line["environment"]) for line in lines if "environment" in line]
    told = "`python -m benchmarks.gpu OUT`: each figure is of one run on one machine; read ratios, not milliseconds."
    return "\n\n".join(["# CUDA", told, *parts, *machines]) + "\n"


def _rounded(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1g}"


def main(words: list[str]) -> int:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("out", type=Path)
    command.add_argument("--minutes", type=float, default=14.0)
    command.add_argument("--device", default="cuda")
    command.add_argument("--quick", action="store_true", help="small sizes")
    command.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="CHECK")
    command.add_argument("--page", type=Path, help="default: OUT/gpu.md")
    command.add_argument("--child", nargs="+", metavar="CHECK", help=argparse.SUPPRESS)
    arguments = command.parse_args(words)
    work = arguments.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.device, work, arguments.quick)
    if arguments.child == ["files"]:
        write_files(bench)
        return 0
    if arguments.child:
        for name in arguments.child:
            record(bench, arguments.out / "results.jsonl", name, functools.partial(CHECKS[name], bench))
        return 0
    lines = run(bench, arguments.out, words, minutes=arguments.minutes, names=arguments.checks)
    (arguments.page or arguments.out / "gpu.md").write_text(page(lines))
    return int(any("error" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
