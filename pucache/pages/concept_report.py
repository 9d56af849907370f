"""The reports of many concepts: a page for each, and an overview with a row a concept and what two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, files_read, open_cache
from ..errors import OutputError
from ..estimates.figures import Figures
from ..labels.labels import TWIN_COSINE, Labels
from ..progress import Progress
from ..seeds import Seed, drawn_seed
from ..storage.file_kinds import PAGE
from ..storage.outputs import check_output
from ..storage.rows import evenly_spaced
from ..training.concept_models import ConceptModels
from ..training.training_set import TrainingRows, TrainingSet
from .html import between, number, render, visible, write
from .report import write_report
from .report_numbers import train
from .thumbnails import thumbnails

_PAIRS, _SHOWN, _SIDE = 20, 8, 72  # pairs of concepts, images of each, and their pixels


def report_concepts(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    labels: Labels,
    path: str | Path,
    *,
    models: ConceptModels | str | Path | None = None,
    images: str | Path | None = None,
    sample: int = 1500,
    seed: Seed = 0,
    device: str = "auto",
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write an overview of many concepts, and `pucache.report` of each beside it, in the folder of its name.

    Returns ``concepts``: the numbers of each page by concept, with ``called`` (rows above the threshold); ``shared``:
    pairs of concepts and the number of images that both call positive; ``failures``. Raises as `pucache.report`, for
    what concerns all concepts.
    """
    opened, path, seed = open_cache(cache), Path(path), drawn_seed(seed)
    if sample < 3:
        raise ValueError(f"sample must be at least 3, got {sample}")
    trained = None if models is None else ConceptModels.open(models)
    pages = {name: path.with_suffix("") / f"{name}.html" for name in labels.columns}
    inputs = list(dict.fromkeys(files_read(opened, models, images, *labels.sources)))
    if not path.suffix:
        raise OutputError(f"{path} would be a page, and the folder of those of the concepts; end it in .html")
    for file in [path, *pages.values()]:
        check_output(file, PAGE, inputs=inputs)
    settings = {"sample": sample, "seed": seed, "device": device, "twins": twins, "images": images}
    settings |= {"all_rows": all_rows or None, "command": command}
    called: dict[str, np.ndarray] = {}  # rows of the cache
    figures: dict[str, Figures] = {}

    def write_page(name: str, data: TrainingSet) -> dict[str, Any]:
        classifier = None if trained is None else trained.of(name)
        if classifier is not None:
            classifier.check_fits(opened)
        content = train(data, classifier, truth=None, seed=seed, device=device, progress=progress)
        of_page = write_report(content, pages[name], labels.sources, settings, progress)
        rows = np.flatnonzero(content.margins > np.float32(content.ranker.threshold_))
        called[name] = data.cache_rows(rows)
        figures[name] = content.trained.figures_
        return of_page | {"called": len(rows)}

    rows = TrainingRows.of_cache(opened, labels, twins=twins, all_rows=all_rows, seed=seed, device=device)
    numbers = rows.map(labels, write_page)
    shared = _shared(called)
    page = render(
        "concept_report",
        None,
        title="Concepts",
        cache=opened.name,
        rows=[_row(name, numbers[name], figures[name], pages[name].parent.name) for name in numbers],
        pairs=[_pair(opened, pair, rows, images, progress) for pair, rows in shared[:_PAIRS]],
        left_out=max(0, len(shared) - _PAIRS),
        failures=numbers.failures,
    )
    write(path, page)
    pairs = [{"concepts": list(pair), "images": len(rows)} for pair, rows in shared]
    return {"concepts": dict(numbers), "shared": pairs, "failures": numbers.failures}


def _shared(called: dict[str, np.ndarray]) -> list[tuple[tuple[str, str], np.ndarray]]:
    """Pairs of concepts and the rows that both call positive, most first; those of none are left out."""
    pairs = [(pair, np.intersect1d(called[pair[0]], called[pair[1]])) for pair in combinations(called, 2)]
    return sorted((one for one in pairs if len(one[1])), key=lambda one: -len(one[1]))


def _row(name: str, numbers: dict[str, Any], figures: Figures, folder: str) -> dict[str, str]:
    """Cells of a concept; "" for what its labels are too few for."""
    prior, shown = figures.prior, not figures.are_uninformative
    return {
        "name": name,
        "page": f"{quote(folder)}/{quote(name)}.html",
        "labelled": number(numbers["labelled"]),
        "prior": between(prior.low, prior.high) if prior is not None and prior.has_interval else "",
        **{one: str(figures[one]) if shown and figures[one].interval else "" for one in ("precision", "recall")},
        "called": number(numbers["called"]),
    }


def _pair(
    cache: EmbeddingCache,
    pair: tuple[str, str],
    rows: np.ndarray,
    images: str | Path | None,
    progress: Progress | None,
) -> dict[str, Any]:
    shown = rows[evenly_spaced(len(rows), _SHOWN)]
    pictures = thumbnails(cache, shown, images=images, side=_SIDE, progress=progress)
    keys = [visible(key) for key in cache.keys[shown]]
    return {"names": pair, "count": number(len(rows)), "cards": list(zip(keys, pictures, strict=True))}
