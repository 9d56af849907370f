"""Training and embedding beside other work: several at once, beside numerical processes, with half a core.

    python -m benchmarks.speed.contention FOLDER [--cifar DIR] [--rounds 3] [--tasks demo large] \\
        [--out docs/results/contention.md]

Two tasks of `train-pu`: the demo's pile (1,540 rows) and 33,000 x 1280, 600 labelled and 3,000 more positives hidden,
as in the authors' 1:10 task. The large one is of CIFAR-10 where --cifar names it (images of the class airplane are
positive; `embed` runs once), and of planted positives otherwise. The load is four processes of two threads each
that multiply matrices. Run it on a machine without other load.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.processes import ProcessTime, finish, pucache, spread, start, timed

ROWS, DIM, LABELLED, HIDDEN = 33_000, 1280, 600, 3_000
AT_ONCE, LOADS, THREADS = 3, 4, 2
ASKED_AT_ONCE, ASKED_BESIDE = 1.3, 5.0
HALF_A_CORE = 0.5
MULTIPLY = """
import numpy as np
A = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
A @ A
print("ready", flush=True)
while True:
    A @ A
"""

# --- files ---------------------------------------------------------------------------------------


def prepare(folder: Path, cifar: Path | None, tasks: list[str]) -> None:
    """Make the demo's files, and the large cache with its labels, where they are not there."""
    from pucache.demonstration import unpack

    if not (folder / "positives.txt").exists():
        unpack(folder)
    if not (folder / "pile.h5").exists():
        timed(pucache("embed", "pile", "pile.h5"), folder)
    if "large" in tasks and not (folder / "large.h5").exists():
        _write_cifar(folder, cifar) if cifar else _write_planted(folder)


def _write_planted(folder: Path) -> None:
    """Positives shifted along a few directions; variances fall as those of CIFAR-10 by the bundled encoder do."""
    from pucache.encoders.spec import EncoderSpec

    draw = np.random.default_rng(0)
    shift, positive = np.zeros(DIM, np.float32), np.arange(ROWS) < LABELLED + HIDDEN
    shift[:32] = 0.5
    X = draw.standard_normal((ROWS, DIM), np.float32) / np.sqrt(1 + np.arange(DIM, dtype=np.float32))
    X += positive[:, None] * shift
    keys = [f"{number:06}.png" for number in draw.permutation(ROWS)]
    _write_large(folder, EncoderSpec.imported("planted", DIM), X, keys)


def _write_cifar(folder: Path, cifar: Path) -> None:
    from benchmarks.common.unpack import unpacked
    from pucache.cache.reader import CacheFile

    images = unpacked(cifar, folder / "cifar")
    timed(pucache("embed", images / "train", "cifar.h5"), folder)
    cache = CacheFile(folder / "cifar.h5")
    keys = np.array([key.decode() for key in cache.raw_keys.tolist()])
    positive = np.char.startswith(keys, "airplane/")
    draw = np.random.default_rng(0)
    chosen = draw.permutation(np.flatnonzero(positive))[: LABELLED + HIDDEN]
    others = draw.permutation(np.flatnonzero(~positive))[: ROWS - len(chosen)]
    rows = np.concatenate([chosen, others])
    _write_large(folder, cache.encoder, cache.X[rows], keys[rows].tolist())


def _write_large(folder: Path, encoder, X: np.ndarray, keys: list[str]) -> None:
    """Write the cache and the list of its labelled positives, which are the first rows."""
    from pucache.cache.keys import encode_keys
    from pucache.cache.writer import Rows, write_file

    encoded = encode_keys(keys)
    order = np.argsort(encoded)
    digests = np.random.default_rng(1).integers(0, 256, (len(keys), 32), np.uint8)
    rows = Rows(encoded[order], X[order].astype("<f2"), digests, np.full((len(keys), 2), -1))
    shape = (len(keys), encoded.itemsize, np.dtype("<f2"))
    (folder / "large.txt").write_text("".join(f"{key}\n" for key in keys[:LABELLED]))
    write_file(folder / "large.h5", encoder, "", [rows], shape=shape, failures={})


# --- what is run ---------------------------------------------------------------------------------


def train(task: str, number: int = 0) -> list[str]:
    """Command of `train-pu` on a task; several at once write to files of their own."""
    cache, positives = {"demo": ("pile.h5", "positives.txt"), "large": ("large.h5", "large.txt")}[task]
    outputs = ["--out", f"{task}-{number}.safetensors", "--metrics", f"{task}-{number}.json"]
    return pucache("train-pu", cache, "--positives", positives, *outputs)


def embed(folder: Path) -> list[str]:
    """Command of `embed` on the demo's pile, to a cache that is not there yet."""
    for path in folder.glob("embedded.h5*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return pucache("embed", "pile", "embedded.h5")


def at_once(task: str, folder: Path) -> float:
    """Seconds from the start of several processes to the end of the last one."""
    began = time.perf_counter()
    commands = [train(task, number) for number in range(AT_ONCE)]
    running = [start(command, folder) for command in commands]
    for process, command in zip(running, commands, strict=True):
        finish(process, command)
    return time.perf_counter() - began


def in_turn(task: str, folder: Path) -> float:
    """Seconds of as many processes, one after the other."""
    began = time.perf_counter()
    for number in range(AT_ONCE):
        timed(train(task, number), folder)
    return time.perf_counter() - began


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep processes busy with matrix products meanwhile."""
    threads = {name: str(THREADS) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-c", MULTIPLY]
    processes = [subprocess.Popen(command, env={**os.environ, **threads}, stdout=subprocess.PIPE) for _ in range(LOADS)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# --- half a core ---------------------------------------------------------------------------------


@contextlib.contextmanager
def half_a_core() -> Iterator[list[str] | None]:
    """Yield what to put before a command so that it may use half a core; None where this is not possible."""
    for way in (_by_cgroup2, _by_cgroup1):
        with way() as prefix:
            if prefix:
                yield prefix
                return
    yield _by_systemd()


@contextlib.contextmanager
def _by_cgroup2() -> Iterator[list[str] | None]:
    with _mounted("cgroup2") as root:
        if root and "cpu" in (root / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+cpu")
            with _group(root, {"cpu.max": f"{int(HALF_A_CORE * 100_000)} 100000"}) as prefix:
                yield prefix
        else:
            yield None


@contextlib.contextmanager
def _by_cgroup1() -> Iterator[list[str] | None]:
    with _mounted("cgroup", "cpu") as root:
        limits = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": str(int(HALF_A_CORE * 100_000))}
        if root:
            with _group(root, limits) as prefix:
                yield prefix
        else:
            yield None


@contextlib.contextmanager
def _mounted(kind: str, option: str = "") -> Iterator[Path | None]:
    """Where a hierarchy of control groups is mounted already, as /proc/mounts tells."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, name, options, *_ = line.split()
        if name == kind and (not option or option in options.split(",")):
            yield Path(mount_point)
            return
    yield None


@contextlib.contextmanager
def _group(root: Path, limits: dict[str, str]) -> Iterator[list[str] | None]:
    """A control group with limits, that commands enter before they begin; None where it may not be made."""
    try:
        group = Path(tempfile.mkdtemp(prefix="pucache-benchmark-", dir=root))
        for name, value in limits.items():
            (group / name).write_text(value)
    except OSError:
        with contextlib.suppress(OSError, UnboundLocalError):
            group.rmdir()
        yield None
        return
    try:
        yield ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]
    finally:
        group.rmdir()


def _by_systemd() -> list[str] | None:
    prefix = ["systemd-run", "--scope", "--quiet", "-p", f"CPUQuota={HALF_A_CORE:.0%}"]
    if not shutil.which(prefix[0]):
        return None
    tried = subprocess.run([*prefix, "true"], capture_output=True)
    return None if tried.returncode else prefix


def in_half_a_core(task: str, folder: Path, rounds: int) -> list[str]:
    """`train-pu` as it chooses its threads, and with one thread, in turn."""
    with half_a_core() as prefix:
        if prefix is None:
            return ["Half a core: neither a control group nor systemd-run could be used on this machine."]
        chosen, single = [], []
        for _ in range(rounds):
            chosen.append(timed(train(task), folder, prefix=prefix))
            single.append(timed(train(task), folder, prefix=prefix, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"))
    return [
        "| half a core | as it is, s | `OMP_NUM_THREADS=1`, s | ratio | asked | met |",
        "| --- | --- | --- | --- | --- | --- |",
        _row(f"`train-pu`, {task}", seconds(chosen), seconds(single), asked=1.05, words="no slower (within 5 %)"),
    ]


# --- tables --------------------------------------------------------------------------------------


def seconds(times: list[ProcessTime]) -> list[float]:
    return [process.seconds for process in times]


def _row(name: str, mine: list[float], others: list[float], *, asked: float, words: str = "") -> str:
    ratios = [one / other for one, other in zip(mine, others, strict=True)]
    met = "yes" if statistics.median(ratios) <= asked else "no"
    return f"| {name} | {spread(mine)} | {spread(others)} | {spread(ratios)} | {words or f'at most {asked}'} | {met} |"


def together(task: str, folder: Path, rounds: int) -> str:
    both: list[tuple[float, float]] = []
    for _ in range(rounds):
        both.append((at_once(task, folder), in_turn(task, folder)))
        note(f"{task}: {AT_ONCE} at once {both[-1][0]:.1f} s, in turn {both[-1][1]:.1f} s")
    mine, others = (list(column) for column in zip(*both, strict=True))
    return _row(f"`train-pu`, {task}", mine, others, asked=ASKED_AT_ONCE)


def beside(name: str, command: Callable[[], list[str]], folder: Path, rounds: int) -> str:
    alone, loaded = [], []
    for _ in range(rounds):
        alone.append(timed(command(), folder))
        with load():
            loaded.append(timed(command(), folder))
        note(f"{name}: alone {alone[-1].seconds:.1f} s, beside the load {loaded[-1].seconds:.1f} s")
    return _row(name, seconds(loaded), seconds(alone), asked=ASKED_BESIDE)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    folder, rounds = arguments.folder.absolute(), arguments.rounds
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, arguments.cifar, arguments.tasks)
    for task in arguments.tasks:
        timed(train(task), folder)  # files are then in the page cache
    cells = {f"`train-pu`, {task}": lambda task=task: train(task) for task in arguments.tasks}
    cells["`embed`, demo"] = lambda: embed(folder)
    lines = [
        "# Beside other work",
        "",
        f"`python -m benchmarks.speed.contention FOLDER --rounds {rounds}`: whole processes, n = {rounds}; medians "
        "(smallest–largest), ratios within a round. *demo*: the demo's pile, 1,540 images; *large*: "
        f"{ROWS:,} x {DIM}, {LABELLED} labelled, {HIDDEN:,} hidden, "
        f"{'CIFAR-10, airplane' if arguments.cifar else 'planted'}.",
        "",
        f"| | {AT_ONCE} at once, s | one after another, s | ratio | asked | met |",
        "| --- | --- | --- | --- | --- | --- |",
        *(together(task, folder, rounds) for task in arguments.tasks),
        "",
        f"| | beside {LOADS} processes of {THREADS} threads, s | alone, s | ratio | asked | met |",
        "| --- | --- | --- | --- | --- | --- |",
        *(beside(name, command, folder, rounds) for name, command in cells.items()),
        "",
        *(line for task in arguments.tasks[:1] for line in in_half_a_core(task, folder, rounds)),
        "",
        environment(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=["demo", "large"], default=["demo", "large"])
    arguments = parser.parse_args()
    print_page(main, arguments)
