"""How time and memory grow with the rows of a cache; opening a large one, and reading all of it.

    python benchmarks/scale.py FOLDER [--sizes 625000 1250000 2500000 5000000] [--dim 256] [--rounds 3]
                               [--only scale|open] [--out docs/results/scale.md] [--plot docs/images/scale.png]

Caches of planted positives are written into FOLDER, and found there by name the next time (15 GB at
the default sizes). Every figure comes from a process of its own, on Linux; memory is what the
process grew by at its peak, after the imports. Files lie in the page cache, where nothing else is said.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pucache.cache import EmbeddingCache
from pucache.cache_file import BLOCK_BYTES, VERSION, CacheFile
from pucache.cache_writer import Rows, write_file
from pucache.encoder_spec import EncoderSpec
from pucache.keys import encode_keys
from pucache.pack import merge, pack

LABELLED, PRIOR, STEP = 1000, 0.02, 50_000
LOOKED_UP, RETRIEVED = 10_000, 100
LARGE = (1_000_000, 512)  # the cache that is opened and read
OPENINGS, COLD_OPENINGS, READINGS = 20, 5, 5
SAMPLED = 0.01  # seconds between two looks at where the memory lies
PIECE = 1 << 20  # a buffer that stays in the processor's own memory
MB = 1e6


# --- the caches ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """The files of one size."""

    folder: Path
    n: int
    d: int

    @property
    def name(self) -> str:
        return f"scale-v{VERSION}-{self.n}x{self.d}"

    @property
    def cache(self) -> Path:
        return self.folder / f"{self.name}.h5"

    @property
    def shards(self) -> list[Path]:
        return [self.folder / f"{self.name}-shard-{number}.h5" for number in (1, 2)]

    @property
    def positives(self) -> Path:
        return self.folder / f"{self.name}.txt"

    @property
    def truth(self) -> Path:
        return self.folder / f"{self.name}.npy"

    @property
    def plain(self) -> Path:
        return self.folder / f"{self.name}.bin"

    @property
    def model(self) -> Path:
        return self.folder / f"scale-v{VERSION}-{self.d}.safetensors"


def key(row: int) -> str:
    return f"folder-{row // 1000:04}/image-{row:08}.jpg"


def write(at: Planted) -> None:
    """Positives are shifted along a few directions; the first `LABELLED` of them are labelled."""
    if not 2 * LABELLED / PRIOR <= at.n <= 10_000_000:
        raise SystemExit("sizes from 100,000, for enough hidden positives, to 10,000,000, for keys in order")
    draw, n, d = np.random.default_rng(0), at.n, at.d
    shift = np.zeros(d, np.float32)
    shift[:32] = 0.5
    positive = draw.random(n) < PRIOR
    # as of CIFAR-10 by the bundled encoder: variance falls as 1 / number, the mean has 0.42 of the mean square
    spectrum = (1 / np.sqrt(1 + np.arange(d))).astype(np.float32)
    mean = np.float32(np.sqrt(0.42 / 0.58 * np.square(spectrum).sum() / d))

    def blocks():
        for begin in range(0, n, STEP):
            size = min(STEP, n - begin)
            X = draw.standard_normal((size, d), np.float32) * spectrum + positive[begin : begin + size, None] * shift
            X += mean
            digests = draw.integers(0, 256, (size, 32), np.uint8)
            sizes = np.stack([draw.integers(20_000, 200_000, size), draw.integers(1 << 60, 1 << 61, size)], 1)
            yield Rows(encode_keys([key(row) for row in range(begin, begin + size)]), X.astype("<f2"), digests, sizes)

    failures = {f"unreadable/{number:06}.jpg": "truncated" for number in range(n // 100_000)}
    np.save(at.truth, positive)
    at.positives.write_text("".join(f"{key(row)}\n" for row in np.flatnonzero(positive)[:LABELLED]))
    encoder, shape = EncoderSpec.imported("planted", d), (n, len(key(0)), np.dtype("<f2"))
    write_file(at.cache, encoder, "", blocks(), shape=shape, failures=failures)


def split(at: Planted) -> None:
    """Deal the rows to two shards in turn, as `embed --shard` deals them in no order."""
    whole = CacheFile(at.cache)
    for number, path in enumerate(at.shards):
        picks = [(whole, np.arange(number, at.n, 2))]
        failures = {} if number else whole.failures
        merge(path, picks, encoder=whole.encoder, dtype=whole.dtype, source=whole.source, failures=failures)


def write_plain(at: Planted) -> None:
    """The embeddings' bytes alone."""
    with at.plain.open("wb") as stream:
        for _, X in EmbeddingCache(at.cache).blocks():
            stream.write(np.ascontiguousarray(X))


def train_model(at: Planted) -> None:
    from pucache.train import train_pu

    train_pu(EmbeddingCache(at.cache), at.positives, prior=PRIOR, draws=0).save(at.model)


MAKERS = {call.__name__: call for call in (write, split, write_plain, train_model)}


# --- what is measured ------------------------------------------------------------------------------


def memory() -> dict[str, float]:
    """What /proc tells of this process, in MB."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 / MB for words in lines if words[-1] == "kB"}


class Measured:
    """A context that keeps its seconds, and the memory it took at the peak, in MB.

    The peak is the kernel's own; how much of the memory is anonymous and how much is pages of files
    is looked at a hundred times a second, each for its own greatest value. Processes that this one starts
    are not counted.
    """

    def __enter__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = self._most = memory()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        self._began, self._worked = time.perf_counter(), time.process_time()

    def _look(self) -> None:
        while not self._over.wait(SAMPLED):
            self._most = {name: max(value, self._most.get(name, 0)) for name, value in memory().items()}

    def __exit__(self, *error: object) -> None:
        seconds, worked = time.perf_counter() - self._began, time.process_time() - self._worked
        self._over.set()
        self._watch.join()
        after, before, most = memory(), self._before, self._most
        self.figures = {
            "seconds": seconds,
            "CPU": worked,
            "peak": after["VmHWM"] - before["VmRSS"],
            "anonymous": max(most["RssAnon"], after["RssAnon"]) - before["RssAnon"],
            "file": max(most["RssFile"], after["RssFile"]) - before["RssFile"],
        }


def open_one(at: Planted, measured: Measured) -> None:
    with measured:
        cache = EmbeddingCache(at.cache)
    assert len(cache) == at.n


def look_up(at: Planted, measured: Measured) -> None:
    rows = np.random.default_rng(1).integers(at.n, size=LOOKED_UP)
    wanted = [key(int(row)) for row in rows]
    wanted[::100] = [f"{name}.absent" for name in wanted[::100]]
    rows[::100] = -1
    cache = EmbeddingCache(at.cache)
    with measured:
        found = cache.keys.rows(wanted)
    assert np.array_equal(found, rows)


def score_csv(at: Planted, measured: Measured) -> None:
    out = score_to(at, measured, [at.cache], ".csv")
    with out.open("rb") as stream:
        assert sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b"")) == at.n + 1
        stream.seek(-200, os.SEEK_END)
        name, margin, *_ = stream.read().decode().splitlines()[-1].split(",")
    assert name == key(at.n - 1)
    assert math.isclose(float(margin), last_margin(at), rel_tol=1e-4, abs_tol=1e-5)
    out.unlink()


def score_parquet(at: Planted, measured: Measured) -> None:
    from pyarrow import parquet

    out = score_to(at, measured, [at.cache], ".parquet")
    table = parquet.ParquetFile(out)
    *_, last = table.read_row_group(table.num_row_groups - 1).to_pylist()
    assert table.metadata.num_rows == at.n
    assert last["key"] == key(at.n - 1)
    assert math.isclose(last["margin"], last_margin(at), rel_tol=1e-4, abs_tol=1e-5)
    out.unlink()


def score_shards(at: Planted, measured: Measured) -> None:
    out = score_to(at, measured, at.shards, ".csv")
    with out.open() as stream:
        next(stream)
        first = next(stream).split(",")[0]
        assert first == key(0) and sum(1 for _ in stream) == at.n - 1
    out.unlink()


def score_to(at: Planted, measured: Measured, paths: list[Path], suffix: str) -> Path:
    from pucache.classifier import PULinearClassifier
    from pucache.score import score

    out = at.folder / f"{at.name}-scores{suffix}"
    with measured:
        told = score(EmbeddingCache(*paths), PULinearClassifier.load(at.model), out)
    assert told["rows"] == at.n and 0.5 < told["positives"] / (PRIOR * at.n) < 2, told
    return out


def last_margin(at: Planted) -> float:
    from pucache.classifier import PULinearClassifier

    model = PULinearClassifier.load(at.model)
    return float(CacheFile(at.cache).X[-1].astype(np.float64) @ model.coef_ + model.intercept_)


def retrieve_by_similarity(at: Planted, measured: Measured) -> None:
    retrieve_by(at, measured, None)


def retrieve_by_model(at: Planted, measured: Measured) -> None:
    retrieve_by(at, measured, at.model)


def retrieve_by(at: Planted, measured: Measured, path: Path | None) -> None:
    from pucache.classifier import PULinearClassifier
    from pucache.labels import label_vector
    from pucache.retrieve import retrieve

    with measured:
        cache = EmbeddingCache(at.cache)
        s = label_vector(cache.keys, at.positives)
        model = PULinearClassifier.load(path) if path else None
        ranking = retrieve(cache, s, k=RETRIEVED, model=model)
    assert len(ranking.rows) == RETRIEVED and not s[ranking.rows].any() and (np.diff(ranking.scores) <= 0).all()
    assert ranking.keys == [key(int(row)) for row in ranking.rows]
    assert np.load(at.truth)[ranking.rows].mean() > 0.9


def train(at: Planted, measured: Measured) -> None:
    from pucache.train import train_pu

    with measured:
        model = train_pu(EmbeddingCache(at.cache), at.positives)
    hidden = (np.load(at.truth).sum() - LABELLED) / (at.n - LABELLED)
    assert 0.8 < model.prior_ / hidden < 1.25 and model.estimates_["auc"] > 0.95, (model.prior_, hidden)


def verify(at: Planted, measured: Measured) -> None:
    with measured:
        EmbeddingCache(at.cache).verify()


def pack_shards(at: Planted, measured: Measured) -> None:
    out = at.folder / f"{at.name}-packed.h5"
    with measured:
        rows = pack(at.shards, out)
    assert rows == at.n
    packed, whole = EmbeddingCache(out), EmbeddingCache(at.cache)
    for (_, one), (_, other) in zip(packed.blocks(), whole.blocks(), strict=True):
        assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    for column in ("raw_keys", "digests", "size_mtime", "failures", "encoder", "source"):
        one, other = getattr(packed.files[0], column), getattr(whole.files[0], column)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, column
    out.unlink()


def open_shards(at: Planted, measured: Measured) -> None:
    with measured:
        cache = EmbeddingCache(*at.shards)
    assert len(cache) == at.n


OPERATIONS: dict[str, Callable[[Planted, Measured], None]] = {
    "open": open_one,
    f"look up {LOOKED_UP:,} keys": look_up,
    "score to CSV": score_csv,
    "score to Parquet": score_parquet,
    "retrieve-positives by similarity": retrieve_by_similarity,
    "retrieve-positives by model": retrieve_by_model,
    "train-pu": train,
    "verify": verify,
    "pack two shards": pack_shards,
    "open two shards": open_shards,
    "score two shards to CSV": score_shards,
}


# --- opening and reading -----------------------------------------------------------------------------


def opening(at: Planted) -> dict[str, float]:
    """Milliseconds; how many MB resident memory had grown by, at the peak, by then and after a first key."""
    cache_at, wanted = at.cache, [key(at.n // 3)]
    Path("/proc/self/clear_refs").write_text("5")
    before = memory()
    began = time.perf_counter()
    cache = EmbeddingCache(cache_at)
    opened = time.perf_counter()
    at_opening = memory()
    looking = time.perf_counter()
    assert cache.keys.rows(wanted)[0] == at.n // 3
    found = time.perf_counter()
    return {
        "open": 1000 * (opened - began),
        "first key": 1000 * (found - looking),
        "MB at opening": at_opening["VmHWM"] - before["VmRSS"],
        "MB after the first key": memory()["VmHWM"] - before["VmRSS"],
    }


def read_cache(at: Planted) -> dict[str, float]:
    began, total = time.perf_counter(), 0
    for _, X in EmbeddingCache(at.cache).blocks():
        total ^= xor(X)
    return {"seconds": time.perf_counter() - began, "xor": total}


def read_plain(at: Planted, size: int = BLOCK_BYTES) -> dict[str, float]:
    began, total = time.perf_counter(), 0
    for block in file_blocks(at.plain, size):
        total ^= xor(block)
    return {"seconds": time.perf_counter() - began, "xor": total}


def read_pieces(at: Planted) -> dict[str, float]:
    return read_plain(at, PIECE)


def xor_alone(at: Planted) -> dict[str, float]:
    """The consumer of both, on one block that is in memory already."""
    block = np.random.default_rng(0).integers(0, 256, BLOCK_BYTES, np.uint8)
    began, total = time.perf_counter(), 0
    for _ in range(count := max(1, 2 * at.n * at.d // BLOCK_BYTES)):
        total ^= xor(block)
    return {"seconds": (time.perf_counter() - began) * (2 * at.n * at.d) / (count * BLOCK_BYTES), "xor": total}


def xor(block: np.ndarray) -> int:
    """Touch every byte, as cheaply as NumPy can."""
    return int(np.bitwise_xor.reduce(block.reshape(-1).view(np.uint64)))


def file_blocks(path: Path, size: int = BLOCK_BYTES):
    buffer = np.empty(size, np.uint8)
    with path.open("rb", buffering=0) as stream:
        while read := stream.readinto(buffer):
            yield buffer[:read]


PROBES = {call.__name__: call for call in (opening, read_cache, read_plain, read_pieces, xor_alone)}


def keep(path: Path) -> None:
    """Read a file into the page cache, anew: pages that were written lie there otherwise, and are read faster."""
    drop(path)
    for _ in file_blocks(path):
        pass


def drop(path: Path) -> None:
    """Take a file out of the page cache; only clean pages go."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for offset in np.linspace(0, path.stat().st_size - 1, 32).astype(int).tolist():
            try:
                os.preadv(stream.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            raise SystemExit(f"{path} could not be dropped from the page cache: byte {offset} is still there")


# --- the report --------------------------------------------------------------------------------------


def cell(name: str, at: Planted) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, at.folder, "--cell", name, "--sizes", str(at.n), "--dim", str(at.d)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} at {at.n:,} x {at.d} failed:\n{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    told = ", ".join(f"{what} {value:.4g}" for what, value in figures.items())
    print(f"{at.n:>10,} x {at.d}  {name:32s} {told}", file=sys.stderr, flush=True)
    return figures


def run_cell(name: str, at: Planted) -> dict[str, float]:
    """In that process."""
    if name in MAKERS:  # here, so that no map of a file outlives its making
        MAKERS[name](at)
        return {}
    if name in PROBES:
        return PROBES[name](at)
    for module in ("retrieve", "score", "train"):  # so that the imports are behind us
        importlib.import_module(f"pucache.{module}")
    if has_pyarrow():
        importlib.import_module("pyarrow.parquet")
    measured = Measured()
    OPERATIONS[name](at, measured)
    return measured.figures


def prepare(at: Planted) -> None:
    at.folder.mkdir(parents=True, exist_ok=True)
    if not at.cache.exists():
        cell("write", at)


def scale(folder: Path, sizes: list[int], d: int, rounds: int, plot: Path) -> list[str]:
    """Every operation at every size."""
    planted = [Planted(folder, n, d) for n in sorted(sizes)]
    for at in planted:
        prepare(at)
        if not all(path.exists() for path in at.shards):
            cell("split", at)
    if not planted[0].model.exists():
        cell("train_model", planted[0])
    names = [name for name in OPERATIONS if "Parquet" not in name or has_pyarrow()]
    figures: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for at in planted:
            for path in (at.cache, *at.shards):
                keep(path)
            for name in names:
                figures.setdefault((name, at.n), []).append(cell(name, at))
    draw_plot(plot, names, [at.n for at in planted], figures)
    return [
        "## Operations",
        "",
        f"`python benchmarks/scale.py FOLDER --sizes {' '.join(map(str, sizes))} --dim {d} --rounds {rounds}`: "
        f"float16, {d} numbers a row, {LABELLED:,} labelled, prior {PRIOR}; a process for each figure, medians of "
        f"{rounds} rounds. The shards hold every other row each. A straight line is fitted to the sizes; *off* is how "
        "far the point farthest from it lies, in percent of that point. *spread* is (largest - smallest) / median of "
        "the rounds at the largest size.",
        "",
        *table("seconds", "s", names, planted, figures),
        "",
        "Resident memory at its peak, in MB over what the process had after its imports; *anonymous* and *pages of "
        "files*, at the largest size, are the most that was seen of each, looking every 10 ms. Processes that it "
        "starts are not counted.",
        "",
        *table("peak", "MB", names, planted, figures),
        "",
        f"![seconds and memory against rows](../images/{plot.name})",
    ]


def has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def table(what: str, unit: str, names: list[str], planted: list[Planted], figures: dict) -> list[str]:
    sizes = [at.n for at in planted]
    last = ["spread"] if what == "seconds" else ["anonymous", "pages of files"]
    header = ["operation", *(f"{n / 1e6:g} M" for n in sizes), f"{unit} per million rows", f"+ {unit}", "off", *last]
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for name in names:
        values = [median(figures[name, n], what) for n in sizes]
        slope, constant, off = straight(sizes, values)
        at_most = figures[name, sizes[-1]]
        if what == "seconds":
            told = [row[what] for row in at_most]
            ends = [f"{(max(told) - min(told)) / statistics.median(told):.0%}" if len(told) > 1 else ""]
        else:
            ends = [f"{median(at_most, kind):,.0f}" for kind in ("anonymous", "file")]
        numbers = [*(f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in values)]
        lines.append(f"| {' | '.join([name, *numbers, f'{slope:.3g}', f'{constant:.3g}', f'{off:.0%}', *ends])} |")
    return lines


def median(rows: list[dict[str, float]], what: str) -> float:
    return statistics.median(row[what] for row in rows)


def straight(sizes: list[int], values: list[float]) -> tuple[float, float, float]:
    """Slope a million rows and constant of the line of least squares; the largest distance from it, relative."""
    if len(sizes) < 2:
        return math.nan, math.nan, math.nan
    millions = np.array(sizes) / 1e6
    slope, constant = np.polyfit(millions, values, 1)
    away = np.abs(slope * millions + constant - values) / np.maximum(values, 1e-9)
    return float(slope), float(constant), float(away.max())


def draw_plot(path: Path, names: list[str], sizes: list[int], figures: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(13, 6))
    colours, marks = (*pyplot.get_cmap("tab10").colors, "black"), "osD^vP<>Xhp"
    for panel, what, label in zip(panels, ("seconds", "peak"), ("seconds", "peak memory, MB"), strict=True):
        for name, colour, mark in zip(names, colours, marks, strict=False):
            values = [max(median(figures[name, n], what), 1e-4) for n in sizes]
            panel.plot(sizes, values, color=colour, marker=mark, markersize=6, linewidth=1.6, label=name)
        panel.set(xscale="log", yscale="log", xlabel="rows", ylabel=label)
        panel.set_xticks(sizes, [f"{n / 1e6:g} M" for n in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    top = panels[0].get_ylim()[1]
    panels[0].plot(sizes, [top * n / sizes[-1] for n in sizes], "--", color="grey", label="slope of a straight line")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=10)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def open_and_read(folder: Path, n: int, d: int) -> list[str]:
    """A large cache opened, and read from end to end beside a plain file of its embeddings."""
    at = Planted(folder, n, d)
    prepare(at)
    if not at.plain.exists():
        cell("write_plain", at)
    keep(at.cache)
    warm = [cell("opening", at) for _ in range(OPENINGS)]
    cold = []
    for _ in range(COLD_OPENINGS):
        drop(at.cache)
        cold.append(cell("opening", at))
    lines = [
        f"## Opening {n:,} x {d} float16 ({at.cache.stat().st_size / 1e9:.2f} GB)",
        "",
        f"`python benchmarks/scale.py FOLDER --only open`: in {OPENINGS} processes of their own, the file in the page "
        f"cache, and in {COLD_OPENINGS} with its pages dropped before; medians (smallest to largest). Memory is what "
        "the process grew by at its peak. Goal: under 50 ms and 20 MB.",
        "",
        "| | open, ms | first key, ms | MB at opening | MB after the first key |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rows in (("in the page cache", warm), ("pages dropped", cold)):
        lines.append(f"| {name} | {' | '.join(spread([row[what] for row in rows]) for what in rows[0])} |")
    return [*lines, "", *reading(at)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def reading(at: Planted) -> list[str]:
    """The cache and the plain file in turn, so that neither has the better hour."""
    size = at.plain.stat().st_size
    arms = {"read_cache": at.cache, "read_plain": at.plain, "read_pieces": at.plain}
    lines = [
        f"## Reading {size / 1e9:.2f} GB of embeddings in order",
        "",
        f"`EmbeddingCache.blocks()` beside `readinto` of a plain file of the same bytes, into a buffer of the blocks' "
        f"{BLOCK_BYTES >> 20} MiB, and into one of {PIECE >> 20} MiB, which stays in the processor's own memory. Each "
        f"XORs all 64-bit words together, to the same result; {READINGS} turns, every other one backwards, each in a "
        "process of its own, medians (smallest to largest) in GB/s, and ratios within a turn. Goal: at least 0.8 of "
        "the plain file.",
        "",
        "| | cache | plain file | plain file, small buffer | cache / plain | cache / small buffer |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, make_ready in (("in the page cache", keep), ("pages dropped", drop)):
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for turn in range(READINGS):
            results = set()
            for arm, path in list(arms.items())[:: -1 if turn % 2 else 1]:
                make_ready(path)
                told = cell(arm, at)
                results.add(told["xor"])
                rates[arm].append(size / told["seconds"] / 1e9)
            assert len(results) == 1, "the cache and the plain file differ"
        cache, *plain = rates.values()
        ratios = [[one / other for one, other in zip(cache, others, strict=True)] for others in plain]
        lines.append(f"| {name} | {' | '.join(map(spread, (*rates.values(), *ratios)))} |")
    alone = size / cell("xor_alone", at)["seconds"] / 1e9
    return [*lines, "", f"The XOR alone, of a block in memory: {alone:.3g} GB/s."]


def main(arguments: argparse.Namespace) -> str:
    from environment import environment

    sections = []
    if arguments.only != "open":
        sections += [*scale(arguments.folder, arguments.sizes, arguments.dim, arguments.rounds, arguments.plot), ""]
    if arguments.only != "scale":
        sections += [*open_and_read(arguments.folder, *arguments.large), ""]
    return "\n".join(["# Scale", "", *sections, environment()]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[625_000, 1_250_000, 2_500_000, 5_000_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, nargs=2, default=LARGE, metavar=("ROWS", "DIM"), help="opened and read")
    parser.add_argument("--only", choices=["scale", "open"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, default=Path(__file__).parents[1] / "docs/images/scale.png")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(json.dumps(run_cell(given.cell, Planted(given.folder, given.sizes[0], given.dim))))
    else:
        report = main(given)
        print(report)
        if given.out:
            given.out.write_text(report)
