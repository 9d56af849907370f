"""The embedded default: all of pucache on real images and real weights, with no network.

The images are 2,040 of Zalando's Fashion-MNIST (MIT licence): 40 labelled dresses and 1,500
unlabelled images, of which 150 are dresses too, make the pile; 500 more come later.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_predict

from .cache.destination import encoder_of_existing
from .cache.embedding_cache import EmbeddingCache
from .embedding.embed import embed
from .encoders.encoder import load_encoder
from .errors import OutputError
from .images.decoding import decode
from .images.source import open_source
from .pages.report_page import report
from .pages.review_page import review
from .progress import Progress
from .pu.classifier import PULinearClassifier
from .pu.evaluate import evaluate
from .pu.label_files import read_truth
from .pu.labels import Labels, label_vector
from .pu.metrics import with_labels
from .pu.score import score
from .pu.train import train_pu
from .retrieval.model_scorers import Fused
from .retrieval.ranking import Ranking
from .retrieval.retrieve import retrieve
from .storage.atomic import replacing

POSITIVE = "dress"
SHOWN, REVIEWED = 60, 200
_TILE, _DATA = 28, Path(__file__).parent / "data"


def demo(
    folder: str | Path, *, device: str = "auto", progress: Progress | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Embed, train, retrieve, score and evaluate; every output goes into `folder`.

    Returns
    -------
    result : dict
        The figures, ready for JSON.
    lines : list of str
        A short table of them, and where the files lie.
    """
    began = time.monotonic()
    folder = Path(folder)
    unpack(folder)
    encoder = load_encoder(device=device, like=encoder_of_existing(folder / "pile.h5"))
    for name in ("pile", "new"):
        embed(open_source(folder / name), folder / f"{name}.h5", encoder, moved=True, progress=progress)
    pile, new = EmbeddingCache(folder / "pile.h5"), EmbeddingCache(folder / "new.h5")
    s = label_vector(pile.keys, folder / "positives.txt")
    model = train_pu(pile, s, device=device)
    model.save(folder / "model.safetensors")
    ranking = retrieve(pile, s, k=None, by=Fused(model, device))
    ranking.save(folder / "ranked.csv")
    hidden = read_truth(folder / "truth.csv", ranking.keys)
    contact_sheet(folder / "retrieved.png", folder / "pile", ranking, hidden)
    _write_pages(folder, pile, ranking, model, device, progress)
    score(model, new, folder / "scores.csv")
    ours = evaluate(folder / "scores.csv", folder / "truth.csv")
    ours["average_precision_hidden"] = float(average_precision_score(hidden, ranking.scores))
    result = {
        "labelled_positives": int(s.sum()),
        "unlabelled": int((s == 0).sum()),
        "prior": model.prior_,
        "prior_interval": _interval(model),
        "true_prior": float(hidden.mean()),
        "pucache": ours,
        "supervised": _ceiling(pile, new, s, folder / "truth.csv"),
        "estimates": model.estimates_,
        "seconds": round(time.monotonic() - began, 1),
    }
    return result, list(_lines(result, folder))


def _write_pages(
    folder: Path,
    pile: EmbeddingCache,
    ranking: Ranking,
    model: PULinearClassifier,
    device: str,
    progress: Progress | None,
) -> None:
    positives = folder / "positives.txt"
    labels = Labels.read(pile, positives)
    review(folder / "review.html", pile, ranking.first(REVIEWED), labels, by=Fused(model).name, progress=progress)
    truth = read_truth(folder / "truth.csv", list(pile.keys))
    report(pile, positives, folder / "report.html", model=model, truth=truth, device=device, progress=progress)


def _interval(model: PULinearClassifier) -> list[float] | None:
    estimate = model.prior_estimate_
    return None if estimate is None else [estimate.low, estimate.high]


def unpack(folder: Path) -> None:
    """Write the packaged images as PNG files: ``pile/``, ``new/``, ``positives.txt``, ``truth.csv``."""
    with Image.open(_DATA / "fashion-mnist.png") as sheet:
        sheet.load()
    columns = sheet.width // _TILE
    with (_DATA / "fashion-mnist.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    truth = "\n".join(["key,label", *(f"{row['key']},{int(row['class'] == POSITIVE)}" for row in table)]) + "\n"
    try:
        _claim(folder, truth)
        for name in ("pile", "new"):
            (folder / name).mkdir(exist_ok=True)
        for position, row in enumerate(table):
            top, left = (_TILE * part for part in divmod(position, columns))
            path = folder / ("new" if row["folder"] == "new" else "pile") / row["key"]
            if not path.exists():
                sheet.crop((left, top, left + _TILE, top + _TILE)).save(path)
        positives = [row["key"] for row in table if row["folder"] == "labelled"]
        (folder / "positives.txt").write_text("\n".join(positives) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {error.strerror or error}; name another folder") from error


def _claim(folder: Path, truth: str) -> None:
    """Make `folder` the demo's by writing ``truth.csv``; refuse one with other files, whose names might be ours."""
    mark = folder / "truth.csv"
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (mark.is_file() and mark.read_bytes() == truth.encode()):
        raise OutputError(f"{folder} holds files that are not the demo's; name a new or an empty folder")
    mark.write_text(truth)


def contact_sheet(path: Path, images: Path, ranking: Ranking, y: np.ndarray) -> None:
    """Draw the first `SHOWN` retrieved images, best first; green is truly positive, red is not."""
    size, gap, columns = 84, 6, 10
    rows = -(-SHOWN // columns)
    sheet = Image.new("RGB", (columns * (size + gap) + gap, rows * (size + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for rank, (key, positive) in enumerate(zip(ranking.keys[:SHOWN], y, strict=False)):
        row, column = divmod(rank, columns)
        left, top = column * (size + gap) + gap, row * (size + gap) + gap
        draw.rectangle((left - 3, top - 3, left + size + 2, top + size + 2), fill="#2a9d4e" if positive else "#d1382c")
        image = decode((images / key).read_bytes())
        sheet.paste(image.resize((size, size), Image.Resampling.BICUBIC), (left, top))
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG")


def _ceiling(pile: EmbeddingCache, new: EmbeddingCache, s: np.ndarray, truth: Path) -> dict[str, float]:
    """The same figures with every true label of the pile known: logistic regression, penalty by cross-validation."""
    X, y = np.asarray(pile.X, np.float32), read_truth(truth, list(pile.keys))
    choices = {C: LogisticRegression(C=C, max_iter=200) for C in (1e-3, 1e-2, 1e-1)}
    held_out = {C: cross_val_predict(choice, X, y, cv=5, method="decision_function") for C, choice in choices.items()}
    best = max(choices, key=lambda C: average_precision_score(y, held_out[C]))
    margins = choices[best].fit(X, y).decision_function(np.asarray(new.X, np.float32))
    figures = with_labels(read_truth(truth, list(new.keys)), margins, (margins > 0).astype(int))
    figures["average_precision_hidden"] = float(average_precision_score(y[s == 0], held_out[best][s == 0]))
    return figures


def _lines(result: dict[str, Any], folder: Path) -> Iterator[str]:
    names = {"accuracy": "accuracy", "f1": "F1", "auc": "AUC", "average_precision_hidden": "AP hidden"}
    counts = f"{result['labelled_positives']} labelled dresses, {result['unlabelled']:,} unlabelled images"
    low, high = result["prior_interval"]
    yield counts
    estimated = f"estimated {result['prior']:.3f} ({low:.3f} to {high:.3f})"
    yield f"share of dresses among the unlabelled: {estimated}, truly {result['true_prior']:.3f}"
    yield ""
    yield f"{'':34s}" + "".join(f"{title:>11s}" for title in names.values())
    rows = {"pucache, no negative label": "pucache", "supervised, every label known": "supervised"}
    for title, name in rows.items():
        yield f"{title:34s}" + "".join(f"{result[name][metric]:11.3f}" for metric in names)
    yield ""
    yield "accuracy, F1, AUC: 500 new images. AP hidden: finding the 150 dresses hidden in the pile."
    yield f"{result['seconds']} s. Files in {folder}/:"
    for name, what in (
        ("retrieved.png", f"the first {SHOWN} images retrieved from the pile (green: a dress, red: not)"),
        ("ranked.csv", "all unlabelled images of the pile, likely dresses first"),
        ("model.safetensors", "the classifier"),
        ("scores.csv", "the new images, scored"),
        ("pile.h5, new.h5", "the caches of embeddings; pucache info tells about them"),
        ("positives.txt, truth.csv", "what was labelled, and the hidden truth"),
        ("report.html", "open in a browser: what the labels tell, how good the classifier is, a map of the images"),
        ("review.html", f"open in a browser: the first {REVIEWED} candidates, to accept or reject"),
    ):
        yield f"  {name:26s}{what}"
