"""Many concepts on one cache: processor seconds and peak memory of K concepts over those of one.

    python -m benchmarks.speed.concepts CIFAR --fashion SOURCE --work FOLDER [--counts 1 20 100] [--labels 20 100]
                                        [--quick] [--out docs/results/concepts.md]

Concepts are the ten classes of each image set, in as many draws of labels as make K. Each cell is a process of its own
that opens the cache, without a graph of neighbours beside it, and trains; what is measured is processor time, which a
busy machine changes less than the clock. AP is that of the hidden positives by the model of each concept, beside that
of its training alone. Scoring is timed with 1 and with 100 models, to Parquet.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command_line import page_parser, write_page


def labels_of(keys: list[str], count: int, labelled: int) -> dict[str, list[str]]:
    """Positives of `count` concepts: the classes in turn, each time with another draw."""
    kinds = np.array([key.split("/")[-2] for key in keys])
    classes, concepts = sorted(set(kinds)), {}
    for number in range(count):
        kind = classes[number % len(classes)]
        rows = np.random.default_rng(number).permutation(np.flatnonzero(kinds == kind))[:labelled]
        concepts[f"{number:03} {kind}"] = [keys[row] for row in rows]
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
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    models = pucache.train_pu(opened, concepts=concepts, device="cpu")
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    precision = {}
    for name, model in models.items():
        unlabelled = ~np.isin(keys, concepts[name])
        hidden = np.array([key.split("/")[-2] == name[4:] for key in keys])
        precision[name] = average_precision_score(hidden[unlabelled], model.margins(opened.matrix)[unlabelled])
    scoring = {}
    for number in (1, 100):
        copies = {f"m{copy}": list(models.values())[copy % len(models)] for copy in range(number)}
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            pucache.score(type(models)(copies), opened, Path(folder, "scores.parquet"))
            scoring[str(number)] = time.process_time() - start
    return {"seconds": seconds, "peak": peak / 1024, "more": (peak - before) / 1024, "AP": precision, "score": scoring}


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
    from benchmarks.common.environment import environment
    from benchmarks.common.tasks import CIFAR, FASHION, TaskGroups

    groups = TaskGroups(options.cifar, options.work, fashion_source=options.fashion, quick=options.quick)
    lines = ["# Many concepts", "", " ".join((__doc__ or "").split("\n\n")[-1].split()), ""]
    lines += [
        "| data | labels | concepts | CPU s | of one | peak memory | of one | scoring: CPU s with 100 / with 1 "
        "| AP - alone |"
    ]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for group in (CIFAR, FASHION) if options.fashion else (CIFAR,):
        cache = groups.data(group).train.files[0].path  # type: ignore[attr-defined]
        for labelled in options.labels:
            one = cell(cache, 1, labelled)
            for count in options.counts:
                many = one if count == 1 else cell(cache, count, labelled)
                name = list(many["AP"])[-1]
                alone = one if count == 1 else cell(cache, count, labelled, count - 1)
                cells = [f"{many['seconds']:.1f}", f"{many['seconds'] / one['seconds']:.1f}"]
                cells += [f"{many['peak']:,.0f} MB", f"{many['peak'] / one['peak']:.2f}"]
                cells += [f"{many['score']['100'] / many['score']['1']:.1f}"]
                cells += [f"{many['AP'][name] - alone['AP'][name]:+.4f}"]
                lines.append(f"| {group} | {labelled} | {count} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", environment()]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cell"]:
        cache, count, labelled, only = sys.argv[2:]
        print(json.dumps(run_cell(Path(cache), int(count), int(labelled), int(only) if only else None)))
        raise SystemExit
    parser = page_parser(__doc__)
    parser.add_argument("cifar", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--labels", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--quick", action="store_true", help="a quarter of the images")
    asked = parser.parse_args()
    write_page(main(asked), asked.out)
