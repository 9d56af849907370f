"""Demonstration: the whole pipeline on real images and weights that come with the package, without a network.

The images are 2,040 of Zalando's Fashion-MNIST (MIT licence). The images to search are 40 labelled
dresses and 1,500 unlabelled images, of which 150 are dresses; 500 further images are scored.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_predict

from .cache.destination import encoder_of_existing
from .cache.embedding_cache import EmbeddingCache
from .embedding.embed import embed
from .encoders.encoder import load_encoder
from .encoders.sentence_encoder import is_at_hand
from .errors import OutputError
from .estimates.metrics import with_labels
from .images.decoding import decode
from .labels.read_labels import open_labels
from .labels.row_values import read_truth
from .pages.report import report
from .pages.review_page import write_review_page
from .progress import Progress
from .retrieval.ranking import Ranking
from .retrieval.retrieve import retrieve_positives
from .scoring.evaluate import evaluate
from .scoring.score import score
from .storage.atomic import make_folder, replacing
from .storage.file_kinds import MARK
from .training.train_pu import train_pu

POSITIVE_CLASS, WORDS = "dress", "a dress"
LABELLED_OF_EACH = 20  # images of each kind in kinds.csv
CONTACT_SHEET_IMAGES, REVIEW_PAGE_IMAGES, WORDS_IMAGES = 60, 200, 20
IMAGE_FOLDERS = ("photos", "new-photos")
TILE_SIDE = 28  # pixels of an image on the packaged sheet
DATA = Path(__file__).parent / "data"
_PENALTIES = (1e-3, 1e-2, 1e-1)  # C of the supervised logistic regression


def demo(
    folder: str | Path = "pucache-demo", *, device: str = "auto", progress: Progress | None = None
) -> dict[str, Any]:
    """Embed, train, retrieve, score and evaluate the images of the package.

    Parameters
    ----------
    folder : path or str
        Folder for all outputs: a new or empty one, or that of an earlier demo.
    device : str
        auto, cpu, cuda or cuda:N.
    progress : Progress, optional

    Returns
    -------
    dict
        Counts, the prior and its interval, metrics of pucache and of a supervised classifier, and the
        time in seconds, ready for JSON; where a text encoder is installed, also what words find, else None.
        Estimates are None where the labels are too few for them (`pucache.estimates.label_requirements`).

    Raises
    ------
    OutputError
        `folder` cannot be written, or holds other files.
    """
    began = time.monotonic()
    folder = Path(folder)
    unpack(folder)
    encoder = load_encoder(device=device, like=encoder_of_existing(folder / "photos.h5"))
    pile, new = (embed(folder / name, folder / f"{name}.h5", encoder, progress=progress) for name in IMAGE_FOLDERS)
    y = read_truth(folder / "truth.csv", pile.keys)
    by_words = None
    if is_at_hand():
        first = retrieve_positives(pile, words=WORDS, k=WORDS_IMAGES, device=device, progress=progress)
        by_words = {"words": WORDS, "images": len(first.rows), "positives": int(y[first.rows].sum())}
    labels = open_labels(pile, folder / "found.txt").only
    model = train_pu(pile, labels, device=device)
    model.save(folder / "model.safetensors")
    estimate = model.prior_estimate_
    ranking = retrieve_positives(pile, labels, model, k=None, device=device)
    ranking.save(folder / "ranked.csv")
    y_ranked = y[ranking.rows]
    contact_sheet(folder / "retrieved.png", folder / "photos", ranking, y_ranked)
    write_review_page(pile, ranking.first(REVIEW_PAGE_IMAGES), folder / "review.html", progress=progress)
    page = folder / "report.html"
    report(pile, folder / "found.txt", page, model=model, truth=y, device=device, progress=progress)
    score(model, new, folder / "scores.csv")
    metrics = evaluate(folder / "scores.csv", folder / "truth.csv")
    metrics["average_precision_hidden"] = float(average_precision_score(y_ranked, ranking.scores))
    return {
        "found_by_words": by_words,
        "labelled_positives": int(labels.s.sum()),
        "unlabelled": int((labels.s == 0).sum()),
        "prior": model.prior_,
        "prior_interval": [estimate.low, estimate.high] if estimate is not None and estimate.has_interval else None,
        "true_prior": float(y_ranked.mean()),
        "pucache": metrics,
        "supervised": _supervised_metrics(pile, new, y, read_truth(folder / "truth.csv", new.keys), labels.s == 0),
        "estimates": model.estimates_,
        "note": model.figures_.note,
        "seconds": round(time.monotonic() - began, 1),
    }


# --- images ------------------------------------------------------------------------------------


def unpack(folder: str | Path) -> None:
    """Write the packaged images into the folders ``photos`` and ``new-photos``, and three tables beside them.

    The tables are ``found.txt``, ``truth.csv`` and ``kinds.csv``. Images that exist already are left as they are.
    Raises `OutputError` where `folder` cannot be written, or holds other files.
    """
    folder = Path(folder)
    with (DATA / "fashion-mnist.csv").open(newline="") as stream:  # in the order of the tiles on the sheet
        table = list(csv.DictReader(stream))
    truth = [f"{row['key']},{int(row['class'] == POSITIVE_CLASS)}" for row in table]
    positives = [row["key"] for row in table if row["folder"] == "labelled"]
    labels = {
        "truth.csv": "\n".join(["key,label", *truth]) + "\n",  # marks the folder of a demo
        "found.txt": "\n".join(positives) + "\n",
        "kinds.csv": "".join(["key,concept\n", *_kinds(table)]),
    }
    try:
        _claim(folder, labels)
        _write_images(folder, table)
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {error.strerror or error}; name another folder") from error


def _kinds(table: list[dict[str, str]]) -> Iterator[str]:
    """Lines of a table of labels: the first images of each kind."""
    taken: Counter[str] = Counter()
    for row in table:
        if row["folder"] != "new" and taken[row["class"]] < LABELLED_OF_EACH:
            taken[row["class"]] += 1
            yield f"{row['key']},{row['class']}\n"


def _write_images(folder: Path, table: list[dict[str, str]]) -> None:
    with Image.open(DATA / "fashion-mnist.png") as sheet:
        sheet.load()
    columns = sheet.width // TILE_SIDE
    for name in IMAGE_FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    for number, row in enumerate(table):
        top, left = (TILE_SIDE * index for index in divmod(number, columns))
        path = folder / ("new-photos" if row["folder"] == "new" else "photos") / row["key"]
        if not path.exists():
            sheet.crop((left, top, left + TILE_SIDE, top + TILE_SIDE)).save(path)


def _claim(folder: Path, labels: dict[str, str]) -> None:
    """Write the labels, of which the first mark the folder of a demo; refuse a folder with other files or labels."""
    mark = folder / next(iter(labels))
    make_folder(folder)
    if any(folder.iterdir()) and not mark.is_file():
        raise OutputError(f"{folder} holds files that are not the demo's; name a new or an empty folder")
    for name, text in labels.items():
        path = folder / name
        if path.exists() and path.read_bytes() != text.encode():
            raise OutputError(f"{path} has other labels than the demo's, which it keeps; name a new or an empty folder")
    for name, text in labels.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text)


def contact_sheet(path: Path, images: Path, ranking: Ranking, y: np.ndarray) -> None:
    """Draw the first retrieved images in the order of the ranking, framed green where `y` (k,) is 1, else red."""
    side, gap, columns = 84, 6, 10
    rows = -(-CONTACT_SHEET_IMAGES // columns)
    sheet = Image.new("RGB", (columns * (side + gap) + gap, rows * (side + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for rank, (key, positive) in enumerate(zip(ranking.keys[:CONTACT_SHEET_IMAGES], y, strict=False)):
        row, column = divmod(rank, columns)
        left, top = column * (side + gap) + gap, row * (side + gap) + gap
        draw.rectangle((left - 3, top - 3, left + side + 2, top + side + 2), fill="#2a9d4e" if positive else "#d1382c")
        image = decode((images / key).read_bytes())
        sheet.paste(image.resize((side, side), Image.Resampling.BICUBIC), (left, top))
    mark = PngInfo()
    mark.add_text("Software", MARK)
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG", pnginfo=mark)


# --- comparison with a supervised classifier ---------------------------------------------------


def _supervised_metrics(
    pile: EmbeddingCache, new: EmbeddingCache, y: np.ndarray, y_new: np.ndarray, unlabelled: np.ndarray
) -> dict[str, float]:
    """Metrics of logistic regression trained with all true labels of the pile; C by cross-validation."""
    X = np.asarray(pile.X, np.float32)
    models = {C: LogisticRegression(C=C, max_iter=200) for C in _PENALTIES}
    held_out = {C: cross_val_predict(model, X, y, cv=5, method="decision_function") for C, model in models.items()}
    best = max(models, key=lambda C: average_precision_score(y, held_out[C]))
    margins = models[best].fit(X, y).decision_function(np.asarray(new.X, np.float32))
    metrics = with_labels(y_new, margins, (margins > 0).astype(int))
    metrics["average_precision_hidden"] = float(average_precision_score(y[unlabelled], held_out[best][unlabelled]))
    return metrics
