"""How long each command takes as a whole process, beside `python -c "import torch"` in the same round.

    python -m benchmarks.speed.start FOLDER [--images 50000] [--rounds 5] [--no-demo] [--out docs/results/start.md]

Files are made in FOLDER, and found there the next time: the demo's images with their caches and a model, and
50,000 tiny images with a cache of them. That cache holds made-up embeddings under the encoder, keys, sizes and times
that a real run would write, so that `embed` finds nothing to do. Run it on a machine without other load.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.processes import ProcessTime, pucache, spread, timed

SIDE = 8  # pixels
DEMO_ROUNDS = 2


@dataclass(frozen=True)
class Asked:
    """A command and its limit.

    Attributes
    ----------
    command : list of str
    ratio : float, optional
        At most so many times `import torch`.
    over_torch : float, optional
        At most so many seconds more than `import torch`.
    seconds : float, optional
        Less than so many seconds.
    """

    command: list[str]
    ratio: float | None = None
    over_torch: float | None = None
    seconds: float | None = None

    def limit(self) -> str:
        if self.ratio is not None:
            return f"at most {self.ratio} times `import torch`"
        if self.over_torch is not None:
            return f"at most `import torch` + {self.over_torch:g} s"
        return "" if self.seconds is None else f"under {self.seconds} s"

    def met(self, times: list[ProcessTime], torch: list[ProcessTime]) -> str:
        pairs = list(zip(times, torch, strict=True))
        if self.ratio is not None:
            return _yes(statistics.median(one.seconds / other.seconds for one, other in pairs) <= self.ratio)
        if self.over_torch is not None:
            return _yes(statistics.median(one.seconds - other.seconds for one, other in pairs) <= self.over_torch)
        return "" if self.seconds is None else _yes(statistics.median(one.seconds for one in times) < self.seconds)


def _yes(met: bool) -> str:
    return "yes" if met else "no"


IMPORT_TORCH = "python -c 'import torch'"


def commands(folder: Path) -> dict[str, Asked]:
    """What is measured, in the files that `prepare` made."""
    positives = ["--positives", "positives.txt"]
    return {
        IMPORT_TORCH: Asked([sys.executable, "-c", "import torch"]),
        "pucache --help": Asked(pucache("--help"), seconds=0.2),
        "info": Asked(pucache("info", "pile.h5"), ratio=0.5),
        "verify": Asked(pucache("verify", "pile.h5"), ratio=0.5),
        "pack": Asked(pucache("pack", "pile.h5", "new.h5", "--out", "packed.h5"), ratio=0.5),
        "evaluate": Asked(pucache("evaluate", "scores.csv", "--truth", "truth.csv"), ratio=0.5),
        "embed, unchanged folder": Asked(pucache("embed", "tiny", "tiny.h5"), ratio=1.3),
        "score CACHE": Asked(pucache("score", "model.safetensors", "new.h5", "--out", "again.csv"), ratio=1.3),
        "retrieve-positives": Asked(
            pucache("retrieve-positives", "pile.h5", *positives, "--out", "ranked.csv"), ratio=1.3
        ),
        "train-pu": Asked(pucache("train-pu", "pile.h5", *positives, "--out", "trained.safetensors"), over_torch=2.0),
    }


# --- files ---------------------------------------------------------------------------------------


def prepare(folder: Path, images: int) -> None:
    """Make the demo's files and the large folder, where they are not there."""
    from pucache.demonstration import unpack

    if not (folder / "positives.txt").exists():
        unpack(folder)
    for name in ("pile", "new"):
        if not (folder / f"{name}.h5").exists():
            _run("embed", name, f"{name}.h5", folder=folder)
    if not (folder / "model.safetensors").exists():
        _run("train-pu", "pile.h5", "--positives", "positives.txt", "--out", "model.safetensors", folder=folder)
    _run("score", "model.safetensors", "new.h5", "--out", "scores.csv", folder=folder)
    _write_images(folder / "tiny", images)
    _write_cache_of(folder / "tiny", folder / "tiny.h5", like=folder / "pile.h5")
    report = json.loads(_run("embed", "tiny", "tiny.h5", "--json", folder=folder))
    if report["computed"] or report["rows"] != images:
        raise SystemExit(f"embed did not take the folder for unchanged: {report}")


def _run(*arguments: str, folder: Path) -> str:
    ended = subprocess.run(pucache(*arguments), cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"pucache {' '.join(arguments)} failed:\n{ended.stderr}")
    return ended.stdout


def _write_images(folder: Path, count: int) -> None:
    if folder.exists() and len(list(folder.rglob("*.png"))) == count:
        return
    draw = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number // 1000:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(path)


def _write_cache_of(folder: Path, path: Path, *, like: Path) -> None:
    """Write the cache that `embed` writes of a folder, but for the embeddings, which are drawn."""
    from pucache.cache.keys import encode_keys
    from pucache.cache.reader import CacheFile
    from pucache.cache.writer import Rows, write_file
    from pucache.images.source import open_source

    pile, source = CacheFile(like), open_source(folder)
    listing = source.scan()
    keys = encode_keys(listing.keys)
    order = np.argsort(keys)
    digests = [hashlib.sha256((folder / listing.keys[row]).read_bytes()).digest() for row in order]
    X = np.random.default_rng(0).standard_normal((len(keys), pile.X.shape[1]), np.float32).astype(pile.dtype)
    table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    rows = Rows(keys[order], X, table, np.asarray(listing.size_mtime)[order])
    shape = (len(keys), keys.itemsize, pile.dtype)
    write_file(path, pile.encoder, source.name, [rows], shape=shape, failures={})


# --- measuring -----------------------------------------------------------------------------------


def measure(folder: Path, rounds: int) -> dict[str, list[ProcessTime]]:
    """Time every command once in each round, each round beginning with another one; a round before is not counted."""
    asked = commands(folder)
    times: dict[str, list[ProcessTime]] = {name: [] for name in asked}
    names = list(asked)
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            time = timed(asked[name].command, folder)
            if number >= 0:
                times[name].append(time)
                print(f"{number + 1}/{rounds}  {name:28s} {time.seconds:6.2f} s", file=sys.stderr, flush=True)
    return times


def table(folder: Path, times: dict[str, list[ProcessTime]]) -> list[str]:
    torch = times[IMPORT_TORCH]
    lines = [
        "| | seconds | CPU seconds | times `import torch` | seconds over it | asked | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, asked in commands(folder).items():
        mine = times[name]
        pairs = list(zip(mine, torch, strict=True))
        cells = [
            f"`{name}`",
            spread([time.seconds for time in mine]),
            spread([time.cpu for time in mine]),
            spread([one.seconds / other.seconds for one, other in pairs]),
            spread([one.seconds - other.seconds for one, other in pairs]),
            asked.limit(),
            asked.met(mine, torch),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def demo(folder: Path) -> list[str]:
    """The whole demo, in a new folder each time."""
    times = []
    for number in range(DEMO_ROUNDS):
        target = folder / f"demo-{number}"
        subprocess.run(["rm", "-rf", str(target)], check=True)
        times.append(timed(pucache("demo", target.name), folder))
    return [
        "",
        f"`pucache demo`, n = {DEMO_ROUNDS}: {spread([time.seconds for time in times], 1)} s, "
        f"{spread([time.cpu for time in times], 1)} s of CPU time (asked: half of 39 and 52 s).",
    ]


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, arguments.images)
    times = measure(folder, arguments.rounds)
    lines = [
        "# Start",
        "",
        f"`python -m benchmarks.speed.start FOLDER --images {arguments.images} --rounds {arguments.rounds}`: whole "
        f"processes, all of them once a round, n = {arguments.rounds} rounds after one that is not counted. Medians "
        "(smallest–largest); ratios and differences are taken within a round. The unchanged folder has "
        f"{arguments.images:,} images; the other commands work on the demo's pile of 1,540 rows.",
        "",
        *table(folder, times),
        *([] if arguments.no_demo else demo(folder)),
        "",
        environment(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-demo", action="store_true")
    arguments = parser.parse_args()
    print_page(main, arguments)
