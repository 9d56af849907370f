"""How often the embeddings are read, and how often what is derived from them is computed, in one run of a command.

    python -m benchmarks.speed.passes FOLDER [--out docs/results/passes.md]

Runs `train-pu`, `report` and `embed` of an unchanged folder on the demo's pile, each in a process of its own with
counters in it. Bytes of X are counted where rows leave the mapped or opened cache file, whatever reads them; copies
in memory that are read again are not counted. FOLDER is filled with the demo's files, and used again the next time.
"""

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np

from benchmarks.common.command_line import page_parser, print_page

POSITIVES = ["--positives", "positives.txt"]
COMMANDS = {
    "train-pu": ["train-pu", "pile.h5", *POSITIVES, "--out", "passes.safetensors", "--metrics", "passes.json"],
    "report": ["report", "pile.h5", *POSITIVES, "--out", "passes.html"],
    "embed, unchanged folder": ["embed", "pile", "pile.h5"],
}
COUNTED = {  # what is shown: module, and the function or class in it
    "moments": ("pucache.heads.moments", "MomentSums"),
    "leading directions": ("pucache.heads.preconditioner", "LeadingDirections"),
    "design matrices": ("pucache.heads.design_matrix", "DesignMatrix"),
    "blocks of rows in float32": ("pucache.heads.design_matrix", "RowBlocks"),
    "groups of twins": ("pucache.labels.near_duplicates", "groups"),
    "truncated SVD": ("pucache.heads.linear_algebra", "truncated_svd"),
    "fits of heads": ("pucache.heads.solve", "fit_heads"),
    "keys encoded": ("pucache.cache.keys", "encode_keys"),
}
CARRIERS = ("pucache.cache.", "pucache.storage.")  # modules that read for their callers

reads: Counter[str] = Counter()  # bytes of X by the function that reads them
calls: Counter[str] = Counter()
consumer = "elsewhere"  # of the blocks that are being read, for threads that read ahead


def reader() -> str:
    """The function of pucache that wants the rows."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("pucache.") and not module.startswith(CARRIERS):
            return f"{module.removeprefix('pucache.')}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return consumer


class CountedRows(np.ndarray):
    """The mapped embeddings; whatever is taken of them is counted, and is a plain array."""

    def __getitem__(self, item: Any) -> Any:
        taken = self.view(np.ndarray)[item]
        reads[reader()] += taken.nbytes
        return taken

    def astype(self, *arguments: Any, **named: Any) -> np.ndarray:
        reads[reader()] += self.nbytes
        return self.view(np.ndarray).astype(*arguments, **named)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **named: Any) -> Any:
        reads[reader()] += self.nbytes
        return getattr(function, method)(*map(_plain, inputs), **named)

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        if function not in (np.shape, np.ndim, np.size):
            reads[reader()] += self.nbytes
        return super().__array_function__(function, types, arguments, named)


def _plain(values: Any) -> Any:
    return values.view(np.ndarray) if isinstance(values, CountedRows) else values


# --- counters ------------------------------------------------------------------------------------


def instrument(cache: str) -> None:
    """Put the counters in."""
    from pucache.cache.reader import CacheFile, read_blocks

    for name, (module, attribute) in COUNTED.items():
        owner = importlib.import_module(module)
        genuine = getattr(owner, attribute)
        if isinstance(genuine, type):
            _count_class(name, genuine)
        else:
            _replace(genuine, _counting(name, genuine))
    CacheFile.X = property(_counted_X(CacheFile.X.fget))  # type: ignore[method-assign, attr-defined]
    _replace(read_blocks, _noting_consumer(read_blocks))
    _count_reads(Path(cache))
    np.asarray = _keeping(np.asarray)
    np.asanyarray = _keeping(np.asanyarray)


def _counting(name: str, genuine: Any) -> Any:
    @functools.wraps(genuine)
    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return genuine(*arguments, **named)

    return counted


def _count_class(name: str, kind: type) -> None:
    kind.__init__ = _counting(name, kind.__init__)  # type: ignore[misc]


def _replace(genuine: Any, counted: Any) -> None:
    """Replace a function in every module that has imported it by name."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "pucache"]:
        for attribute, value in list(vars(module).items()):
            if value is genuine:
                setattr(module, attribute, counted)


def _counted_X(genuine: Any) -> Any:
    return lambda self: genuine(self).view(CountedRows)


def _noting_consumer(genuine: Any) -> Any:
    def blocks(*arguments: Any, **named: Any) -> Any:
        global consumer
        consumer = reader()
        yield from genuine(*arguments, **named)

    return blocks


def _count_reads(path: Path) -> None:
    """Count what system calls read of the embeddings in a cache file."""
    with h5py.File(path) as file:
        begin = file["embeddings"].id.get_offset()
        end = begin + file["embeddings"].id.get_storage_size()
    wanted = path.stat()

    def count(descriptor: int, offset: int, size: int) -> None:
        if os.path.samestat(os.fstat(descriptor), wanted):
            reads[reader()] += max(0, min(end, offset + size) - max(begin, offset))

    def pread(descriptor: int, size: int, offset: int, genuine: Any = os.pread) -> bytes:
        data = genuine(descriptor, size, offset)
        count(descriptor, offset, len(data))
        return data

    def preadv(descriptor: int, buffers: Any, offset: int, flags: int = 0, genuine: Any = os.preadv) -> int:
        size = genuine(descriptor, buffers, offset, flags)
        count(descriptor, offset, size)
        return size

    os.pread, os.preadv = pread, preadv


def _keeping(genuine: Any) -> Any:
    """Let an array that is counted stay one where it need not be converted."""

    @functools.wraps(genuine)
    def asarray(values: Any, dtype: Any = None, *arguments: Any, **named: Any) -> Any:
        if isinstance(values, CountedRows) and (dtype is None or np.dtype(dtype) == values.dtype):
            return values
        return genuine(values, dtype, *arguments, **named)

    return asarray


# --- runs ----------------------------------------------------------------------------------------


def run_counted(name: str) -> dict[str, Any]:
    """In a process of its own, in the folder of the files."""
    from pucache.cache.reader import CacheFile
    from pucache.cli.main import main as command

    size = CacheFile(Path("pile.h5")).X.nbytes
    instrument("pile.h5")
    command([*COMMANDS[name], "--json"] if name != "report" else COMMANDS[name], standalone_mode=False)
    return {"size": size, "reads": dict(reads.most_common()), "calls": dict(calls)}


def prepare(folder: Path) -> None:
    from benchmarks.common.processes import pucache, timed
    from pucache.demonstration import unpack

    if not (folder / "positives.txt").exists():
        unpack(folder)
    if not (folder / "pile.h5").exists():
        timed(pucache("embed", "pile", "pile.h5"), folder)


def counted(name: str, folder: Path) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from benchmarks.speed.passes import cell; cell({name!r})"
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{name} failed:\n{ended.stderr}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def cell(name: str) -> None:
    """Print the counts of one command as JSON."""
    print(json.dumps(run_counted(name)))


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"| | {' | '.join(f'`{name}`' for name in results)} |", "| --- |" + " --- |" * len(results)]
    passes = [sum(result["reads"].values()) / result["size"] for result in results.values()]
    lines.append(f"| X read, times its bytes | {' | '.join(f'{value:.2f}' for value in passes)} |")
    for name in COUNTED:
        lines.append(f"| {name} | {' | '.join(str(result['calls'].get(name, 0)) for result in results.values())} |")
    return lines


def readers(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| command | function | times the bytes of X |", "| --- | --- | --- |"]
    for name, result in results.items():
        for function, size in result["reads"].items():
            lines.append(f"| `{name}` | `{function}` | {size / result['size']:.2f} |")
    return lines


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    results = {name: counted(name, folder) for name in COMMANDS}
    size = next(iter(results.values()))["size"]
    lines = [
        "# Passes",
        "",
        f"`python -m benchmarks.speed.passes FOLDER`: one run of each command on the demo's pile ({size / 1e6:.1f} MB "
        "of embeddings). How many times the bytes of X are read from the cache file, and how many times the rest is "
        "computed.",
        "",
        *table(results),
        "",
        "Which function reads them:",
        "",
        *readers(results),
        "",
        environment(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    print_page(main, arguments)
