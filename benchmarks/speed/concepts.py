"""Many concepts on one cache: seconds and peak memory of K concepts over those of one.

    python -m benchmarks.speed.concepts DIR [--fashion SOURCE] [--quick] [--out docs/results/concepts.md]

The first ten concepts are the classes of an image set, the others unions of two classes drawn at random, all with
labels of their own. Each row is a process that opens the cache, without a graph of neighbours beside it, and trains. AP
is that of the hidden positives by the model of a concept, less that of its training alone, of two concepts. Scoring is
of planted rows, to Parquet, with 1 and with 100 models.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.planted_cache import Planted, keep, prepare_with_model
from benchmarks.common.tasks import CIFAR, FASHION, Location, opened

# image set, labels and numbers of concepts
CELLS = ((CIFAR, 20, (1, 20, 100)), (CIFAR, 100, (1, 20)), (FASHION, 20, (1, 20)))
MODELS, ROWS, DIMENSIONS = 100, 1_000_000, 512


def kinds_of(keys: list[str]) -> np.ndarray:
    return np.array([key.split("/")[-2] for key in keys])


def labels_of(keys: list[str], count: int, labelled: int) -> dict[str, list[str]]:
    """Positives of `count` concepts: the classes, then unions of two; a name is a number and the classes."""
    kinds, concepts = kinds_of(keys), {}
    classes = sorted(set(kinds))
    for number in range(count):
        draw = np.random.default_rng(number)
        of = [classes[number]] if number < len(classes) else sorted(draw.permutation(classes)[:2].tolist())
        rows = draw.permutation(np.flatnonzero(np.isin(kinds, of)))[:labelled]
        concepts[f"{number:03} {' '.join(of)}"] = [keys[row] for row in rows]
    return concepts


def run_cell(cache: Path, count: int, labelled: int, only: int | None) -> dict[str, Any]:
    """In a process of its own: train, and rank the hidden positives of each concept."""
    import torch
    from sklearn.metrics import average_precision_score

    import pucache

    torch.ones(8) @ torch.ones(8)
    opened = pucache.EmbeddingCache(cache)
    keys = list(opened.keys)
    concepts = labels_of(keys, count, labelled)
    if only is not None:
        concepts = dict([list(concepts.items())[only]])
    began, clock = time.process_time(), time.perf_counter()
    models = pucache.train_pu(opened, pucache.read_labels(opened, concepts), device="cpu")
    seconds, elapsed = time.process_time() - began, time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    precision = {}
    for name, model in models.items():
        unlabelled, hidden = ~np.isin(keys, concepts[name]), np.isin(kinds_of(keys), name.split()[1:])
        precision[name] = average_precision_score(hidden[unlabelled], model.margins(opened.matrix)[unlabelled])
    return {"cpu": seconds, "seconds": elapsed, "peak": peak, "AP": precision}


def scoring_seconds(at: Planted, models: int) -> float:
    """To score planted rows, which are read into memory before, with copies of a model."""
    import pucache
    from pucache.training.concept_models import ConceptModels

    model, cache = pucache.PULinearClassifier.load(at.model), pucache.EmbeddingCache(at.cache)
    keep(at.cache)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        copies = ConceptModels({f"m{copy}": model for copy in range(models)})
        pucache.score(copies, cache, Path(folder, "scores.parquet"))
        return time.perf_counter() - began


def cell(cache: Path, count: int, labelled: int, only: int | None = None) -> dict[str, Any]:
    """A copy of the cache without its graph, and the figures of a process that works on it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(cache, folder)
        arguments = [str(copy), str(count), str(labelled), "" if only is None else str(only)]
        command = [sys.executable, "-m", "benchmarks.speed.concepts", "--cell", *arguments]
        figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(json.dumps({"cache": cache.name, "count": count, "labelled": labelled, "only": only, **figures}), flush=True)
    return figures


def main(options: argparse.Namespace) -> str:
    at, rows = Location.of(options), []
    groups = opened(at)
    for group, labelled, counts in CELLS:
        if group not in groups.names:
            continue
        cache = groups.data(group).train.files[0].path  # type: ignore[attr-defined]
        one = cell(cache, 1, labelled)
        for count in counts if not options.quick else counts[:2]:
            many = one if count == 1 else cell(cache, count, labelled)
            names, differences = list(many["AP"]), []
            for number in sorted({count // 2, count - 1} - {0}):
                alone = cell(cache, count, labelled, number)
                differences.append(many["AP"][names[number]] - alone["AP"][names[number]])
            row = [group, labelled, count]
            row += [f"{many[name]:.1f} ({many[name] / one[name]:.1f})" for name in ("seconds", "cpu")]
            row += [f"{many['peak']:,.0f} ({many['peak'] / one['peak']:.2f})"]
            rows.append([*row, ", ".join(f"{difference:+.4f}" for difference in differences)])
    planted = Planted(at.work / "files", ROWS // (10 if options.quick else 1), DIMENSIONS)
    prepare_with_model(planted)
    scoring_seconds(planted, 1)
    pairs = [(scoring_seconds(planted, 1), scoring_seconds(planted, MODELS)) for _ in range(3)]
    one, many = (statistics.median(side) for side in zip(*pairs, strict=True))
    rates = sorted(alone / of_many for alone, of_many in pairs)
    head = ["data", "labels", "concepts", "seconds (of one)", "CPU seconds (of one)", "peak MB (of one)", "AP - alone"]
    parts = [
        "# Many concepts",
        " ".join((__doc__ or "").split("\n\n")[-1].split()),
        table(head, rows),
        f"Scoring {planted.n:,} x {planted.d} rows with 1 model takes {one:.2f} s, with {MODELS} models {many:.2f} s: "
        f"{rates[1]:.2f} ({rates[0]:.2f} to {rates[2]:.2f}, n = 3) of the rate.",
        environment(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cell"]:
        cache, count, labelled, only = sys.argv[2:]
        print(json.dumps(run_cell(Path(cache), int(count), int(labelled), int(only) if only else None)))
        raise SystemExit
    asked = images_parser(__doc__, in_cells=False).parse_args()
    write_page(main(asked), asked.out)
