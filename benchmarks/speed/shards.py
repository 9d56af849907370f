"""A folder of shards against the packed file of the same rows: seconds and memory of whatever takes a cache.

    python -m benchmarks.speed.shards FOLDER [--rows 5000000] [--dim 256] [--shards 40] [--large 20000000x128]
                                [--rounds 3] [--quick] [--out docs/results/shards.md]

Planted rows are written into FOLDER as one file and as shards, and found there by name the next time (7 GB; the large
group takes another 10 GB, and 7 GB more while it is written; ``--large 0x0`` leaves it out). Every figure comes from a
process of its own, on Linux, and is kept in FOLDER/shards-COMMIT.jsonl as soon as it is measured: a run that was
stopped goes on. What takes half a minute and more is measured in one round. ``--quick`` takes few rows and one round.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.planted_cache import LABELLED, PRIOR, keep
from benchmarks.common.planted_shards import FORMS, PlantedShards, key, prepare, row_of
from benchmarks.speed.scale import Measured
from pucache.cache.embedding_cache import EmbeddingCache

RETRIEVED = 100
MOST_SECONDS, MOST_MEMORY, MOST_OPENING, MOST_MB, MOST_ROW_BYTES = 1.2, 1.1, 0.5, 1500, 60
Answer = dict[str, float]


def open_cache(at: PlantedShards, form: str, watch: Measured) -> Answer:
    with watch:
        cache = EmbeddingCache(at.cache(form))
    assert len(cache) == at.n and len(cache.files) == len(at.files(form))
    return {}


def train(at: PlantedShards, form: str, watch: Measured, **options: object) -> Answer:
    from pucache import train_pu

    with watch:
        model = train_pu(EmbeddingCache(at.cache(form)), at.positives, **options)
    hidden = (np.load(at.truth).sum() - LABELLED) / (at.n - LABELLED)
    assert 0.8 < model.tilt_.prior / hidden < 1.25 and model.estimates_["auc"] > 0.95, (model.tilt_.prior, hidden)
    return {"prior": float(model.tilt_.prior)}


def train_on_all(at: PlantedShards, form: str, watch: Measured) -> Answer:
    return train(at, form, watch, all_rows=True, method="linear")


def retrieve_by_similarity(at: PlantedShards, form: str, watch: Measured) -> Answer:
    return _retrieve(at, form, watch, None)


def retrieve_by_model(at: PlantedShards, form: str, watch: Measured) -> Answer:
    return _retrieve(at, form, watch, at.model)


def _retrieve(at: PlantedShards, form: str, watch: Measured, model: Path | None) -> Answer:
    from pucache.retrieval.retrieve import retrieve_positives

    with watch:
        ranking = retrieve_positives(EmbeddingCache(at.cache(form)), at.positives, model, k=RETRIEVED)
    rows = [row_of(name) for name in ranking.keys]
    assert len(rows) == RETRIEVED and [key(row) for row in rows] == ranking.keys
    precision = float(np.load(at.truth)[rows].mean())
    assert precision > 0.9, precision
    return {"precision": precision}


def report(at: PlantedShards, form: str, watch: Measured) -> Answer:
    from pucache.pages.report import report as write_report

    page = at.folder / f"{form}-report.html"
    with watch:
        numbers = write_report(EmbeddingCache(at.cache(form)), at.positives, page)
    page.unlink()
    return {"prior": float(numbers["prior"])}


def score_parquet(at: PlantedShards, form: str, watch: Measured) -> Answer:
    from pyarrow import parquet

    from pucache.scoring.score import score
    from pucache.training.sklearn_classifier import PULinearClassifier

    out = at.folder / f"{form}-scores.parquet"
    with watch:
        done = score(PULinearClassifier.load(at.model), EmbeddingCache(at.cache(form)), out)
    assert done.rows == at.n == parquet.ParquetFile(out).metadata.num_rows
    assert 0.5 < done.positives / (PRIOR * at.n) < 2, done
    out.unlink()
    return {"positives": done.positives}


def verify(at: PlantedShards, form: str, watch: Measured) -> Answer:
    with watch:
        EmbeddingCache(at.cache(form)).verify()
    return {}


OPERATIONS: dict[str, Callable[[PlantedShards, str, Measured], Answer]] = {
    "open": open_cache,
    "train-pu": train,
    "train-pu --all --method linear": train_on_all,
    "retrieve-positives by model": retrieve_by_model,
    "retrieve-positives by similarity": retrieve_by_similarity,
    "report": report,
    "score to Parquet": score_parquet,
    "verify": verify,
}
LONG = ("train-pu", "train-pu --all --method linear", "report")  # half a minute and more: one round
LARGE = tuple(name for name in OPERATIONS if name not in ("open", "report"))
_IMPORTED = ("retrieval.retrieve", "retrieval.model_scorers", "pu.score", "pu.train", "pages.report")


def run_cell(cell: dict) -> dict:
    """In a process of its own; imports are not measured."""
    for module in _IMPORTED:
        importlib.import_module(f"pucache.{module}")
    importlib.import_module("pyarrow.parquet")
    at, form = PlantedShards(Path(cell["folder"]), cell["n"], cell["d"], cell["shards"]), cell["form"]
    for path in at.files(form):
        for made in path.parent.glob(f"{path.name}.neighbours"):  # of an earlier round
            made.unlink()
        keep(path)
    watch = Measured()
    return {"answer": OPERATIONS[cell["operation"]](at, form, watch), **watch.figures}


def measure(folder: Path, **cell: object) -> dict:
    command = [sys.executable, "-m", __spec__.name, "--cell", json.dumps({"folder": str(folder), **cell})]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{cell} failed:\n{done.stderr[-3000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{cell} {figures}", file=sys.stderr, flush=True)
    return figures


def figures_of(
    options: argparse.Namespace, sizes: list[tuple[int, int]], operations: tuple[str, ...], forms: tuple[str, ...]
) -> list[dict]:
    """Every operation on every form in turn, round after round."""
    for n, d in sizes:
        prepare(PlantedShards(options.folder, n, d, options.shards), forms)
    wanted = [
        {"operation": operation, "form": form, "n": n, "d": d, "shards": options.shards, "round": number}
        for number in range(options.rounds)
        for operation in operations
        for n, d in sizes
        for form in forms
        if number == 0 or operation not in LONG
    ]

    def in_process(**cell: object) -> dict:
        return measure(options.folder, **cell)

    return measured(options.folder, "shards", wanted, in_process)


def median(rows: list[dict], what: str, **of: object) -> float:
    return statistics.median(row[what] for row in rows if all(row[name] == value for name, value in of.items()))


def ratio(rows: list[dict], what: str, operation: str) -> tuple[float, float, float]:
    """Median, smallest and largest ratio of shards to the packed file in one round."""
    packed, shards = (
        [row[what] for row in rows if row["operation"] == operation and row["form"] == form] for form in FORMS
    )
    ratios = [other / one for one, other in zip(packed, shards, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def against_packed(options: argparse.Namespace) -> list[str]:
    operations = tuple(name for name in OPERATIONS if name != "verify")
    rows = figures_of(options, [(options.rows, options.dim)], operations, FORMS)
    opening = median(rows, "seconds", operation="open", form="shards")
    slowest = max(ratio(rows, "seconds", name)[0] for name in operations if name != "open")
    sampled = [name for name in operations if "--all" not in name]
    most = max(median(rows, "peak", operation=name, form="shards") for name in sampled)
    largest = max(ratio(rows, "peak", name)[0] for name in sampled if name != "open")
    head = ["operation", "packed, s", "shards, s", "ratio", "packed, MB", "shards, MB", "ratio", "packed / shards"]
    return [
        f"{options.rows:,} rows x {options.dim} float16 with {LABELLED:,} labelled, prior {PRIOR}, dealt to "
        f"{options.shards} shards by hash, as `embed --shard I/N` deals images. {_rounds(options)}, packed file and "
        "shards in turn; the ratio is the median of the rounds (smallest to largest). Memory is the resident peak over "
        "what the process had after its imports, pages of files included; child processes are not counted. The last "
        "column is the answer of the first round: rows in another order are in other folds, so answers agree as those "
        "of another seed do. Shards that were cut by range hold the rows in the order of the packed file; their "
        "results are equal to the last bit (`tests/test_shards.py`).",
        "",
        table(head, [_compared(rows, name) for name in operations]),
        "",
        f"Asked: at most {MOST_SECONDS} times the seconds, at most {MOST_MEMORY} times the memory and "
        f"{MOST_MB:,} MB (without `--all`), opening within {MOST_OPENING} s. Measured: {slowest:.2f} times the "
        f"seconds, {largest:.2f} times the memory (both without opening), {most:,.0f} MB, opening in {opening:.2f} s.",
    ]


def _rounds(options: argparse.Namespace) -> str:
    if options.rounds == 1:
        return "One round"
    return f"Medians of {options.rounds} rounds (of {', '.join(f'`{name}`' for name in LONG)}: 1)"


def _compared(rows: list[dict], name: str) -> list[str]:
    seconds, memory = (
        [median(rows, what, operation=name, form=form) for form in FORMS] for what in ("seconds", "peak")
    )
    of_seconds, of_memory = (ratio(rows, what, name) for what in ("seconds", "peak"))
    first = {row["form"]: row["answer"] for row in rows if row["operation"] == name and row["round"] == 0}
    answers = [", ".join(f"{what} {value:.4g}" for what, value in first[form].items()) for form in FORMS]
    return [
        name,
        *(f"{value:.3g}" for value in seconds),
        "{:.2f} ({:.2f} to {:.2f})".format(*of_seconds),
        *(f"{value:,.0f}" for value in memory),
        f"{of_memory[0]:.2f}",
        " / ".join(filter(None, answers)),
    ]


def many_rows(options: argparse.Namespace) -> list[str]:
    n, d = options.large
    fewer = n // 4
    rows = figures_of(options, [(fewer, d), (n, d)], LARGE, ("shards",))
    lines = []
    for name in LARGE:
        seconds, memory = (
            [median(rows, what, operation=name, n=size) for size in (fewer, n)] for what in ("seconds", "peak")
        )
        bytes_a_row = (memory[1] - memory[0]) * 1e6 / (n - fewer)
        of_line = seconds[1] / seconds[0] * fewer / n
        numbers = [*(f"{value:.3g}" for value in seconds), f"{of_line:.2f}", *(f"{value:,.0f}" for value in memory)]
        lines.append([name, *numbers, f"{bytes_a_row:.0f}"])
    first, second = (f"{size / 1e6:g} M" for size in (fewer, n))
    return [
        f"Shards of {d} numbers a row, {options.shards} files. {_rounds(options)}. *of a line* is the time "
        f"of {n:,} rows over {n / fewer:g} times that of {fewer:,}: 1 is a straight line through zero, and less means "
        "that a part of the time does not grow. *bytes a row* is the growth of the peak from the smaller to the "
        f"larger; asked: below {MOST_ROW_BYTES}.",
        "",
        table(
            ["operation", f"{first}, s", f"{second}, s", "of a line", f"{first}, MB", f"{second}, MB", "bytes a row"],
            lines,
        ),
    ]


def main(options: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    large = f" --large {options.large[0]}x{options.large[1]}"
    parts = [
        "# Shards",
        f"`python -m benchmarks.speed.shards FOLDER --rows {options.rows} --dim {options.dim} --shards {options.shards}"
        f"{large} --rounds {options.rounds}`; seed 0. A process for each figure; files lie in the page cache.",
        "## Shards against the packed file",
        "\n".join(against_packed(options)),
    ]
    if options.large[0]:
        parts += ["## Many rows", "\n".join(many_rows(options))]
    return "\n\n".join([*parts, environment()]) + "\n"


def _size(text: str) -> tuple[int, int]:
    n, _, d = text.partition("x")
    return int(n), int(d)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cell"]:
        print(json.dumps(run_cell(json.loads(sys.argv[2]))))
        raise SystemExit
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--large", type=_size, default=(20_000_000, 128), metavar="ROWSxDIM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="100,000 x 32 in 5 shards, and 400,000 x 32")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.dim, options.shards, options.large, options.rounds = (
            100_000,
            32,
            5,
            (400_000, 32),
            1,
        )
    options.folder = options.folder.resolve()
    print_page(main, options)
