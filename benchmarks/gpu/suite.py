"""All measurements of CUDA, in slices that a rerun goes on with.

    python -m benchmarks.gpu.suite OUT [--groups tests heads retrieval embedding pretraining] [--minutes 9]
                                   [--data DIR] [--weights FILE] [--work DIR] [--device cuda] [--quick] ...

It runs in a checkout that is not installed. Groups are run in this order, and in each group the slices
worth most come first. A finished slice is one line of OUT/results.jsonl; it is not run again for the same
commit, device and size. A slice is not begun where less is left of `--minutes` than it may take. OUT also
gets the page, gpu.md; images, weights and checkpoints lie in `--work`. A slice whose package is missing is
left out. One that fails prints its traceback, and the run ends with 1.

`--data DIR` holds CIFAR-10 (train/ and test/, or the tar files of tools/gpu_bundle.sh) for the authors' task.
`--quick` takes small sizes: with `--device cpu` it tries the suite itself in a minute or two.
"""

import argparse
import dataclasses
import importlib
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu import checkout, results
from benchmarks.gpu.page import page
from benchmarks.gpu.slices import QUICK, Bench, LeftOut, Size, Slice, Unfinished
from pucache.devices import choose_device

GROUPS = {
    "tests": "benchmarks.gpu.cuda_tests",
    "heads": "benchmarks.gpu.heads",
    "retrieval": "benchmarks.gpu.retrieval",
    "embedding": "benchmarks.gpu.embedding",
    "pretraining": "benchmarks.gpu.pretraining",
}
PAGE = "gpu.md"


@dataclasses.dataclass
class Outcome:
    """What became of the slices that are not in the results: why each was left out, failed or is to go on."""

    problems: list[str] = dataclasses.field(default_factory=list)
    failed: int = 0

    def say(self, text: str, *, failed: bool = False) -> None:
        print(text, flush=True)
        self.problems.append(text)
        self.failed += failed


def run(bench: Bench, out: Path, groups: Sequence[str], command: str, only: str = "") -> int:
    """Run the slices that are missing, write the page, and return the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    bench.work.mkdir(parents=True, exist_ok=True)
    outcome = Outcome()
    for group in groups:
        for one in _slices(group, outcome):
            if only in one.name:
                _run_slice(group, one, bench, out, outcome)
        bench.kept.pop("compiled", None)
        _free(bench)
    text = page(results.read(out, bench), command=command, problems=outcome.problems)
    (out / PAGE).write_text(text)
    return 1 if outcome.failed else 0


def _slices(group: str, outcome: Outcome) -> tuple[Slice, ...]:
    try:
        return importlib.import_module(GROUPS[group]).SLICES
    except Exception as error:  # the next groups are worth having all the same
        missing = _missing_package(error)
        if missing is None:
            traceback.print_exc()
        outcome.say(f"{group}: {'failed' if missing is None else f'left out, no {missing}'}", failed=missing is None)
        return ()


def _run_slice(group: str, one: Slice, bench: Bench, out: Path, outcome: Outcome) -> None:
    if any((row["group"], row["slice"]) == (group, one.name) for row in results.read(out, bench)):
        return
    if time.monotonic() + 60 * one.minutes > bench.until:
        return outcome.say(f"{group}, {one.name}: no time left for it")
    began = time.perf_counter()
    try:
        figures = one.measure(bench)
    except (LeftOut, Unfinished) as reason:
        return outcome.say(f"{group}, {one.name}: {reason}")
    except Exception as error:  # the next slices are worth having all the same
        missing = _missing_package(error)
        if missing is not None:
            return outcome.say(f"{group}, {one.name}: left out, no {missing}")
        traceback.print_exc()
        return outcome.say(f"{group}, {one.name}: failed, {type(error).__name__}", failed=True)
    finally:
        _free(bench)
    row = results.row(group, one, figures, bench, time.perf_counter() - began)
    results.append(out, row)
    print(f"{group}, {one.name}: {row['seconds']:.1f} s", flush=True)


def _missing_package(error: BaseException) -> str | None:
    """Name of the package for whose absence an error was raised."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and _is_missing_package(cause):
            return cause.name
        cause = cause.__cause__ or cause.__context__
    return None


def _is_missing_package(error: ModuleNotFoundError) -> bool:
    return (error.name or "").split(".")[0] not in ("", "pucache", "benchmarks", "helpers")


def _free(bench: Bench) -> None:
    if bench.on_gpu:
        torch.cuda.empty_cache()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("out", type=Path)
    told.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    told.add_argument("--only", default="", metavar="WORD", help="slices with this in their name")
    told.add_argument("--minutes", type=float, default=9.0)
    told.add_argument("--data", type=Path, metavar="DIR", help="CIFAR-10")
    told.add_argument("--weights", type=Path, metavar="FILE", help="of ResNet-50; random ones by default")
    told.add_argument("--work", type=Path, metavar="DIR", help="default: a folder of the system's temporary folder")
    told.add_argument("--device", default="cuda")
    told.add_argument("--quick", action="store_true", help="small sizes")
    for name in ("rows", "dim", "images", "jpegs", "epochs", "repeats"):
        told.add_argument(f"--{name}", type=int, metavar="N")
    return told


def sizes(arguments: argparse.Namespace) -> Size:
    """The size that the command line asks for."""
    size = QUICK if arguments.quick else Size()
    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Size)}
    return dataclasses.replace(size, **{name: value for name, value in given.items() if value is not None})


def main(words: Sequence[str]) -> int:
    """Run what a command line asks for."""
    arguments = parser().parse_args(words)
    bench = Bench(
        device=choose_device(arguments.device),
        size=sizes(arguments),
        work=arguments.work or Path(tempfile.gettempdir()) / "pucache-gpu",
        data=arguments.data,
        weights=arguments.weights,
        until=time.monotonic() + 60 * arguments.minutes,
    )
    command = shlex.join(["python", "-m", "benchmarks.gpu.suite", *words])
    return run(bench, arguments.out, arguments.groups, command, arguments.only)


if __name__ == "__main__":
    assert checkout.ROOT  # imported for what it maps
    sys.exit(main(sys.argv[1:]))
