"""Accuracy of each inference backend: cosine of its embeddings to fp32, and the 1:10 task.

    python -m benchmarks.quality.paths DIR WORK [--out docs/results/paths.md]

DIR holds CIFAR-10 as PNG files, see benchmarks/common/cifar.py. A cache of the pile and of the test set is
made by each path that this machine has; the last row is
Pillow's own resampling in place of torch's, by torch in float32.
"""

from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cifar import is_positive, split, write_manifest
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.estimates.metrics import precision_at, with_labels
from pucache.labels.labels import Labels
from pucache.training.train_on_cache import train_pu

PATHS = ("torch fp32", "torch bf16", "openvino fp32", "openvino bf16", "torch fp32, Pillow's resampling")


def caches(folder: Path, work: Path, path: str) -> dict[str, EmbeddingCache]:
    runtime, precision = path.split(",")[0].split()
    encoder = load_encoder(runtime=runtime, precision=precision)
    if "," in path:
        encoder.preprocess.fast = False
    pile, labelled, test = split(folder)
    (work / "positives.txt").write_text("\n".join(labelled) + "\n")
    made = {}
    for name, keys in (("pile", pile), ("test", test)):
        manifest = write_manifest(work / f"{name}.csv", folder, keys)
        cache = work / f"{name}-{path.replace(' ', '-').replace(',', '').lower()}.h5"
        run_embedding(open_source(manifest), cache, encoder, options=EmbedOptions(moved=True))
        made[name] = EmbeddingCache(cache)
    return made


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def main(folder: Path, work: Path, paths: list[str]) -> str:
    work.mkdir(parents=True, exist_ok=True)
    lines = [
        "# What each way of running the encoder costs",
        "",
        "`python -m benchmarks.quality.paths DIR WORK`: bundled encoder, CIFAR-10 1:10 task, no prior given, seed 0; "
        "cosine of the 10,000 test images' embeddings to those by torch in fp32, accuracy and F1 at margin 0.",
        "",
        "| path | cosine, mean | least | accuracy | F1 | AUC | P@2400 | AP |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    exact = None
    for path in paths:
        made = caches(folder, work, path)
        s = Labels.read(made["pile"], work / "positives.txt").s
        model = train_pu(made["pile"], s)
        margins = model.margins(made["test"].X)
        scores = with_labels(is_positive(made["test"].keys), margins, margins > 0)
        hidden, ranked = is_positive(made["pile"].keys)[s == 0], model.margins(made["pile"].X)[s == 0]
        exact = made["test"].X if exact is None else exact
        near = cosines(exact, made["test"].X)
        figures = (
            scores["accuracy"],
            scores["f1"],
            scores["auc"],
            precision_at(hidden, ranked, 2400),
        )
        figures = (*figures, average_precision_score(hidden, ranked))
        row = [path, f"{near.mean():.5f}", f"{near.min():.4f}", *(f"{100 * figure:.2f}" for figure in figures)]
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    return "\n".join([*lines, "", environment()]) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--path", action="append", choices=PATHS)
    arguments = parser.parse_args()
    report = main(arguments.folder, arguments.work, arguments.path or list(PATHS))
    write_page(report, arguments.out)
