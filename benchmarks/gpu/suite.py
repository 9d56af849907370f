"""All measurements of CUDA, in slices that a rerun goes on with.

    python -m benchmarks.gpu.suite OUT [--groups tests heads retrieval embedding pretraining counts] [--minutes 9]
                                   [--data DIR] [--weights FILE] [--work DIR] [--device cuda] [--quick] ...

It runs in a checkout that is not installed. Groups are run in this order, each in a process of its own, and
in each group the slices worth most come first. A finished slice is one line of OUT/results.jsonl; it is not
run again for the same commit, device and size. A slice is not begun where less is left of `--minutes` than it
may take. OUT also gets the page, gpu.md; images, weights and checkpoints lie in `--work`. A slice whose
package is missing is left out. One that fails prints its traceback, and the run ends with 1.

`--data DIR` holds CIFAR-10 (train/ and test/, or the tar files of tools/gpu_bundle.sh) for the authors' task.
`--quick` takes small sizes: with `--device cpu` it tries the suite itself in a few minutes.
"""

import argparse
import dataclasses
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import checkout
from benchmarks.gpu.runner import BROKEN, GROUPS, Runner
from benchmarks.gpu.slices import QUICK, Bench, Size
from pucache.devices import choose_device


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("out", type=Path)
    command.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    command.add_argument("--only", default="", metavar="WORD", help="slices with this in their name")
    command.add_argument("--minutes", type=float, default=9.0)
    command.add_argument("--data", type=Path, metavar="DIR", help="CIFAR-10")
    command.add_argument("--weights", type=Path, metavar="FILE", help="of ResNet-50; random ones by default")
    work = Path(tempfile.gettempdir()) / "pucache-gpu"
    command.add_argument("--work", type=Path, metavar="DIR", default=work, help="default: %(default)s")
    command.add_argument("--device", default="cuda")
    command.add_argument("--quick", action="store_true", help="small sizes")
    for name in ("rows", "dim", "images", "jpegs", "epochs", "repeats"):
        command.add_argument(f"--{name}", type=int, metavar="N")
    command.add_argument("--one-process", action="store_true", help="run all groups in this process")
    command.add_argument("--skip", nargs="*", default=(), help=argparse.SUPPRESS)
    command.add_argument("--page-command", default="", help=argparse.SUPPRESS)  # of the run that this one is a part of
    return command


def sizes(arguments: argparse.Namespace) -> Size:
    """The size that the command line asks for."""
    size = QUICK if arguments.quick else Size()
    chosen = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Size)}
    return dataclasses.replace(size, **{name: value for name, value in chosen.items() if value is not None})


def runner(arguments: argparse.Namespace, command: str) -> Runner:
    """What runs the slices that a command line asks for."""
    bench = Bench(
        device=choose_device(arguments.device),
        size=sizes(arguments),
        work=arguments.work,
        data=arguments.data,
        weights=arguments.weights,
        until=time.monotonic() + 60 * arguments.minutes,
    )
    return Runner(bench, arguments.out, command)


def run_in_processes(run: Runner, words: Sequence[str], groups: Sequence[str]) -> None:
    """Run each group in a process; where one dies, the next goes on behind the slice that it died of."""
    for group in groups:
        skipped: list[str] = []
        while (code := _run_group(run, words, group, skipped)) not in (0, 1):
            begun = run.begun
            if code != BROKEN:  # which has said why
                run.outcome.say(f"{group}, {begun or 'no slice'}: failed, its process ended with {code}")
            if not begun or begun in skipped:
                break
            skipped.append(begun)
    run.write_page()


def _run_group(run: Runner, words: Sequence[str], group: str, skipped: Sequence[str]) -> int:
    run.forget_begun()
    left = max(0.0, run.bench.until - time.monotonic()) / 60
    part = ["--one-process", "--groups", group, "--minutes", f"{left:.3f}", "--page-command", run.command]
    command = [sys.executable, "-m", "benchmarks.gpu.suite", *words, *part, "--skip", *skipped]
    return subprocess.run(command, env=checkout.environment(), check=False).returncode


def main(words: Sequence[str]) -> int:
    """Run what a command line asks for; returns the exit code."""
    arguments = parser().parse_args(words)
    run = runner(arguments, arguments.page_command or shlex.join(["python", "-m", "benchmarks.gpu.suite", *words]))
    if not arguments.page_command:
        run.outcome.path.unlink(missing_ok=True)
    if arguments.one_process:
        run.run(arguments.groups, only=arguments.only, skip=arguments.skip)
    else:
        run_in_processes(run, words, arguments.groups)
    return 1 if run.outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
