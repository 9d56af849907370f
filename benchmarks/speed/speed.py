"""How long each step takes, beside what one writes without pucache or beside a limit of the machine.

    python -m benchmarks.speed.speed DIR FOLDER [--parts embed train] [--quick] [--out PAGE]

DIR is a folder of CIFAR-10, FOLDER gets the files (8 GB) and keeps them for the next time. Every figure is of a process
of its own; in each round a step and what it is compared with go one after the other, so a ratio is of one moment. What
is timed comes after the imports, but for the commands of the last table.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.planted_cache import Planted, drop, file_blocks, keep, prepare
from benchmarks.common.processes import alone, memory, pucache, spread, timed

ROUNDS, FOUND, POSITIVES = 3, 100, 20
WARM_UP = 64  # images that are embedded first, so that the network is compiled
EPOCHS, HEADS, PRIOR = 100, 32, 0.0741
NEAR = 2e-2  # how near the margins of ONNX Runtime have to be


@dataclass(frozen=True)
class Files:
    """Files of a run, and its sizes."""

    cifar: Path
    folder: Path
    quick: bool

    @property
    def images(self) -> int:
        return 400 if self.quick else 1000

    @property
    def planted(self) -> Planted:
        return Planted(self.folder, *((100_000, 64) if self.quick else (1_000_000, 1280)))


Measure = Callable[[Files], float]  # seconds


@dataclass(frozen=True)
class Comparison:
    """A step, and what it is compared with; `name` says how much work both do."""

    name: str
    ours: Measure
    other_name: str = ""
    other: Measure | None = None


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# --- embedding ---------------------------------------------------------------------------------------


def image_folder(files: Files, kind: str, count: int) -> Path:
    """So many PNG files of CIFAR-10, or JPEG files of 500 x 375."""
    from benchmarks.common.jpegs import write_jpegs

    folder = files.folder / f"{kind}-{count}"
    if not folder.exists() and kind == "jpeg":
        write_jpegs(folder, count)
    elif not folder.exists():
        paths = sorted(files.cifar.rglob("*.png"))
        folder.mkdir(parents=True)
        for number in np.random.default_rng(0).permutation(len(paths))[:count]:
            shutil.copy2(paths[number], folder / f"{number:06}.png")
    return folder


def embed_images(files: Files, kind: str, runtime: str, precision: str) -> float:
    from pucache.embedding.embed import run_embedding
    from pucache.encoders.encoder import load_encoder
    from pucache.images.source import open_source

    cache, warm_up = files.folder / "embed.h5", image_folder(files, kind, WARM_UP)
    encoder = load_encoder(runtime=runtime, precision=precision)
    for source in (warm_up, image_folder(files, kind, files.images)):
        cache.unlink(missing_ok=True)
        report = run_embedding(open_source(source), cache, encoder)
    return 1000 * report.seconds / report.rows


def plain_loop(files: Files, kind: str) -> float:
    """What people write first: a Dataset of PIL images, timm's transform, a DataLoader, the model as it comes."""
    import timm
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    from pucache.encoders.backbones import bundled

    paths, model = sorted(image_folder(files, kind, files.images).iterdir())[:384], bundled().eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))

    class Images(Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            return transform(Image.open(paths[index]).convert("RGB"))

    def run() -> None:
        with torch.no_grad():
            for batch in DataLoader(Images(), batch_size=64):
                model(batch).numpy()

    return 1000 * seconds_of(run) / len(paths)


def score_pixels(files: Files, by_onnx: bool) -> float:
    """Seconds for 1,000 images of the encoder's size; the run ends where ONNX Runtime and pucache disagree."""
    import onnxruntime
    import torch
    from PIL import Image

    from pucache import PULinearClassifier, load_encoder
    from pucache.scoring.onnx_model import export_onnx

    encoder, graph = load_encoder(device="cpu", precision="fp32", runtime="torch"), files.folder / "model.onnx"
    paths = sorted(image_folder(files, "png", files.images).iterdir())[:1000]
    pixels = torch.stack([encoder.preprocess(Image.open(path).convert("RGB")) for path in paths])
    X = encoder.runtime(pixels)
    model = PULinearClassifier(device="cpu").fit(X, X[:, 0] > np.quantile(X[:, 0], 0.7))
    model.encoder_ = encoder.spec
    graph.unlink(missing_ok=True)
    export_onnx(model, graph, images="float32")
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = []

    def run() -> None:
        for batch in pixels.split(64):
            if by_onnx:
                found.append(session.run(["margin"], {"images": batch.numpy() / np.float32(255)})[0])
            else:
                found.append(model.margins(encoder.runtime(batch)))

    seconds = seconds_of(run)
    above, difference = model.margins(X) - model.threshold_, np.concatenate(found) - model.margins(X)
    unlike = (above > 0) != (above + difference > 0)
    if np.abs(difference).max() > NEAR or np.abs(above[unlike]).max(initial=0) > NEAR:
        raise SystemExit(f"margins differ by up to {np.abs(difference).max():.2g}, {unlike.sum()} labels do")
    return 1000 * seconds / len(paths)


# --- training ----------------------------------------------------------------------------------------


def authors_task(files: Files) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and labels of the task of the paper, vehicles among animals at 1:10."""
    from benchmarks.common.cifar import Cifar

    task = Cifar(files.cifar.resolve(), files.folder / "pucache-bench", quick=files.quick).authors()
    return np.asarray(task.X, np.float32), task.s


def train_sgd(files: Files, heads: int) -> float:
    """Seconds a head, of so many that are trained at once as the paper trains one."""
    from pucache.heads.risks import PURisk
    from pucache.heads.solve import fit_heads

    X, s = authors_task(files)
    options = {"prior": PRIOR, "risk": PURisk("imbnnpu"), "solver": "sgd", "seed": np.arange(heads)}
    return seconds_of(lambda: fit_heads(X, s, **options)) / heads


def autograd(files: Files) -> float:
    import torch

    from benchmarks.common.plain_loops import slices_loop

    X, s = authors_task(files)
    return seconds_of(lambda: slices_loop(torch.tensor(X), torch.tensor(s), PRIOR, EPOCHS))


def data_loader(files: Files) -> float:
    import torch

    from benchmarks.common.plain_loops import loader_loop

    X, s = authors_task(files)
    return 10 * seconds_of(lambda: loader_loop(torch.tensor(X), torch.tensor(s), PRIOR, EPOCHS // 10))


def standardised(files: Files) -> tuple[np.ndarray, np.ndarray]:
    X, s = authors_task(files)
    return ((X - X.mean(0, dtype=np.float64)) / (X.std(0, dtype=np.float64) + 1e-6)).astype(np.float32), s


def logistic(files: Files) -> float:
    from pucache.heads.moments import Moments
    from pucache.heads.risks import PURisk
    from pucache.heads.solve import fit_heads

    Z, s = standardised(files)
    penalty = 1 / (1e-3 * len(Z) * Moments.of(Z).spread ** 2)
    return seconds_of(lambda: fit_heads(Z, s, risk=PURisk("weighted_bce"), penalty=penalty))


def sklearn_logistic(files: Files) -> float:
    from sklearn.linear_model import LogisticRegression

    Z, s = standardised(files)
    return seconds_of(lambda: LogisticRegression(C=1e-3, class_weight="balanced", max_iter=1000).fit(Z, s))


def train_default(files: Files) -> float:
    from pucache import PULinearClassifier

    X, s = authors_task(files)
    return seconds_of(lambda: PULinearClassifier().fit(X, s))


# --- a large cache -----------------------------------------------------------------------------------


def rank(files: Files, **options: object) -> float:
    """Seconds of a retrieval by similarity, from the file to the ranking."""
    from pucache import EmbeddingCache, retrieve_positives

    at, few = files.planted, files.folder / "few.txt"
    keep(at.cache)
    few.write_text("\n".join(at.positives.read_text().split()[:POSITIVES]))
    return seconds_of(lambda: retrieve_positives(EmbeddingCache(at.cache), few, k=FOUND, twins=None, **options))


def bare_faiss(files: Files) -> float:
    """The same search as one writes it with faiss: float32, centred, length 1, a flat index."""
    import faiss

    from pucache import EmbeddingCache

    keep(files.planted.cache)
    cache = EmbeddingCache(files.planted.cache)
    positive = cache.keys.rows(files.planted.positives.read_text().split()[:POSITIVES])

    def search() -> None:
        X = cache.X.astype(np.float32)
        X -= X.mean(0, dtype=np.float64).astype(np.float32)
        faiss.normalize_L2(X)
        index = faiss.IndexFlatIP(X.shape[1])
        index.add(X)
        index.search(X[positive], FOUND)

    return seconds_of(search)


def score_parquet(files: Files) -> float:
    import pyarrow.parquet  # noqa: F401 - imports are not timed

    from pucache import EmbeddingCache, PULinearClassifier
    from pucache.scoring.score import score

    at, out = files.planted, files.folder / "scores.parquet"
    drop(at.cache)
    return seconds_of(lambda: score(PULinearClassifier.load(at.model), EmbeddingCache(at.cache), out))


def read_file(files: Files) -> float:
    drop(files.planted.cache)
    return seconds_of(lambda: sum(len(block) for block in file_blocks(files.planted.cache)))


def open_cache(files: Files) -> float:
    from pucache import EmbeddingCache

    keep(files.planted.cache)
    return seconds_of(lambda: EmbeddingCache(files.planted.cache))


def read_cold(files: Files, blocks: Callable[[Planted], object], of: str) -> float:
    drop(getattr(files.planted, of))
    return seconds_of(lambda: [int(block.view(np.uint8).max()) for block in blocks(files.planted)])


def cache_blocks(at: Planted) -> object:
    from pucache import EmbeddingCache

    return (np.ascontiguousarray(X) for _, X in EmbeddingCache(at.cache).blocks())


# --- the review --------------------------------------------------------------------------------------


def decide(files: Files) -> float:
    """Seconds from a decision to the ranking that has seen it: median of ten, in the trainer's process."""
    import threading

    from pucache import EmbeddingCache
    from pucache.reviewing.trainer import Trainer

    X, s = authors_task(files)
    path = files.folder / f"review-{len(s)}.h5"
    if not path.exists():
        from benchmarks.common.row_cache import write_row_cache

        write_row_cache(path, X)
    labels, reviewed = np.zeros(len(s), np.int8), np.zeros(len(s), np.int8)
    labels[np.flatnonzero(s)[:POSITIVES]] = 1
    came, scores, changed = {}, [], threading.Condition()

    def ranked(result, serial: int) -> None:
        with changed:
            came.setdefault(serial, time.perf_counter())
            scores[:] = [result.scores]
            changed.notify_all()

    took = []
    with Trainer([EmbeddingCache(path).files[0].path], [ranked], print) as trainer:
        for serial in range(1, 13):
            began = time.perf_counter()
            trainer.submit(serial, labels, reviewed)
            with changed:
                if not changed.wait_for(lambda: serial in came, 600):  # noqa: B023
                    raise SystemExit("no ranking came")
            took.append(came[serial] - began)
            while trainer.busy():
                time.sleep(0.01)
            unknown = (labels == 0) & (reviewed == 0)
            row = int(np.argmax(np.where(unknown, scores[0], -np.inf)))
            reviewed[row] = 1 if s[row] else -1
    return statistics.median(took[2:])


# --- what is measured --------------------------------------------------------------------------------

IMAGES = {"png": "PNG files of 32 x 32", "jpeg": "JPEG files of 500 x 375"}
RUNS = {"openvino, fp32": ("openvino", "fp32"), "torch, fp32": ("torch", "fp32"), "defaults": ("auto", "auto")}
COMPARISONS: dict[str, list[Comparison]] = {
    "embed": [
        Comparison(
            f"embed 1,000 {title}, {name}",
            partial(embed_images, kind=kind, runtime=runtime, precision=precision),
            "DataLoader and timm's model, fp32",
            partial(plain_loop, kind=kind),
        )
        for kind, title in IMAGES.items()
        for name, (runtime, precision) in RUNS.items()
        if (kind, name) != ("jpeg", "torch, fp32")
    ],
    "onnx": [
        Comparison(
            "score 1,000 images, ONNX Runtime",
            partial(score_pixels, by_onnx=True),
            "pucache, fp32 torch",
            partial(score_pixels, by_onnx=False),
        )
    ],
    "train": [
        Comparison(
            "a head as the paper trains it, 100 epochs", partial(train_sgd, heads=1), "autograd over slices", autograd
        ),
        Comparison(
            f"the same, each of {HEADS} at once",
            partial(train_sgd, heads=HEADS),
            "DataLoader and autograd",
            data_loader,
        ),
        Comparison("balanced logistic regression, C=1e-3", logistic, "scikit-learn", sklearn_logistic),
        Comparison("train-pu at its defaults", train_default),
    ],
    "rank": [
        Comparison("retrieve-positives, --by topk", partial(rank, by="topk"), "bare faiss, flat", bare_faiss),
        Comparison("retrieve-positives, default", rank, "bare faiss, flat", bare_faiss),
    ],
    "score": [
        Comparison("score to Parquet, from the disk", score_parquet, "reading the file", read_file),
    ],
    "open": [
        Comparison("open a cache", open_cache),
        Comparison(
            "read all embeddings from the disk",
            partial(read_cold, blocks=cache_blocks, of="cache"),
            "a plain file of the same bytes",
            partial(read_cold, blocks=lambda at: file_blocks(at.plain), of="plain"),
        ),
    ],
    "review": [Comparison("a decision to the ranking that has seen it", decide)],
}
IMPORT_TORCH = "python -c 'import torch'"
PARTS = (*COMPARISONS, "start")


def commands() -> dict[str, list[str]]:
    """Whole commands, on the demo's images, and the limit that they are compared with."""
    labels = ["--positives", "found.txt"]
    return {
        IMPORT_TORCH: [sys.executable, "-c", "import torch"],
        "pucache --help": pucache("--help"),
        "info": pucache("info", "photos.h5"),
        "embed, nothing changed": pucache("embed", "photos", "photos.h5"),
        "train-pu": pucache("train-pu", "photos.h5", *labels, "--out", "model.safetensors"),
        "retrieve-positives": pucache("retrieve-positives", "photos.h5", *labels, "--out", "ranked.csv"),
        "score": pucache("score", "model.safetensors", "photos.h5", "--out", "scores.csv"),
    }


def start_table(files: Files) -> str:
    """Seconds of whole processes, in turn."""
    from pucache.demonstration import unpack

    folder = files.folder / "demo"
    if not folder.exists():
        folder.mkdir(parents=True)
        unpack(folder)
        timed(pucache("embed", "photos", "photos.h5"), folder)
    turns = [{name: timed(command, folder) for name, command in commands().items()} for _ in range(ROUNDS)]
    return table(
        ["command", "seconds", "times `import torch`"],
        [
            [
                f"`{name}`",
                spread([turn[name] for turn in turns]),
                spread([turn[name] / turn[IMPORT_TORCH] for turn in turns]),
            ]
            for name in commands()
        ],
    )


def run_cell(files: Files, part: str, number: int, which: str) -> tuple[float, float]:
    """Seconds and peak memory of one measurement."""
    from pucache.allocator import keep_freed_memory

    keep_freed_memory()
    seconds = getattr(COMPARISONS[part][number], which)(files)
    print(f"{COMPARISONS[part][number].name:44} {which:6} {seconds:.4g} s", file=sys.stderr, flush=True)
    return seconds, memory()["VmHWM"]


def comparison_row(files: Files, part: str, number: int) -> list[str]:
    one = COMPARISONS[part][number]
    alone(run_cell, files, part, number, "ours")  # warms the file's pages and makes what is not there
    sides = ("ours", "other") if one.other else ("ours",)
    turns = [[alone(run_cell, files, part, number, side) for side in sides] for _ in range(ROUNDS)]
    seconds, peaks = zip(*[turn[0] for turn in turns], strict=True)
    row = [one.name, spread(seconds, 3), f"{statistics.median(peaks):,.0f}", one.other_name]
    if not one.other:
        return [*row, "", ""]
    others = [turn[1][0] for turn in turns]
    return [*row, spread(others, 3), spread([b / a for a, b in zip(seconds, others, strict=True)])]


def page(files: Files, chosen: list[str]) -> str:
    import torch

    from pucache.devices import choose_precision

    files.folder.mkdir(parents=True, exist_ok=True)
    at = files.planted
    if {"rank", "score", "open"} & set(chosen):
        prepare(at)
    rows = [comparison_row(files, part, number) for part in chosen for number in range(len(COMPARISONS.get(part, [])))]
    head = ["step", "seconds", "peak MB", "compared with", "its seconds", "its seconds over ours"]
    parts = [
        "# Speed",
        f"`python -m benchmarks.speed.speed DIR FOLDER`: medians (smallest–largest) of "
        f"{ROUNDS} rounds; every figure is of a process of its own, ours and the other's in turn, ratios "
        f"within a round. Embedding: {files.images:,} files, after {WARM_UP} that are not counted; the defaults are "
        f"OpenVINO and, on this processor, {choose_precision('auto', torch.device('cpu'))}. Training and "
        f"review: the task of the paper, CIFAR-10 at 1:10. ONNX: margins within {NEAR} of pucache's, and the same "
        "labels but so near to the threshold, or the run ends. Ranking, scoring, opening: "
        f"{at.n:,} x {at.d} planted float16 rows, {POSITIVES} positives, {FOUND} wanted. Peak memory includes the "
        "imports.",
        table(head, rows),
    ]
    if "start" in chosen:
        parts += ["## Whole commands", "On the demo's 1,540 images, from start to end.", start_table(files)]
    return "\n\n".join([*parts, environment()]) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("cifar", type=Path, metavar="DIR")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    write_page(page(Files(options.cifar, options.folder, options.quick), options.parts), options.out)
