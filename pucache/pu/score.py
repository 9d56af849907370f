"""Scores every image of a cache with a model, block by block."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.destination import delivering, place_of
from ..cache.embedding_cache import EmbeddingCache
from ..encoders.spec import ROUNDING
from ..errors import LabelError, MissingExtraError, ModelError, OutputError, one_line
from ..images.source import Source
from ..progress import Progress
from ..storage.atomic import check_writable
from ..storage.tables import table_writer
from ..storage.urls import is_url, without_secrets
from .classifier import PULinearClassifier

if TYPE_CHECKING:
    from ..embedding.engine import Engine

_NEEDS_QUOTES = re.compile('[,"\r\n]')
_ROW_GROUP = 1 << 16  # rows, at least, of a Parquet file
COLUMNS = ("key", "margin", "posterior", "label")
Write = Callable[[dict[str, Any]], None]  # takes a block of rows, as columns


def score(cache: EmbeddingCache, model: PULinearClassifier, out: str | Path) -> dict[str, int]:
    """Write key, margin, posterior and label of every row, in cache order.

    Parameters
    ----------
    cache : EmbeddingCache
    model : PULinearClassifier
    out : path or URL
        ``.csv``, or ``.parquet`` (needs the extra ``parquet``).

    Returns
    -------
    dict
        Counts: rows, positives (label 1), failures (images of the cache that have no score).

    Raises
    ------
    ModelError
        The model is of another encoder.
    CacheError
        The cache is damaged, or holds embeddings that are not finite.
    OutputError, MissingExtraError
        The output cannot be written.
    """
    check_output(out)
    cache.check("keys")
    positives, failures = 0, len(cache.failures)  # what is damaged is found before anything is written
    with delivering(out) as temporary, _TABLES[_ending(out)](temporary) as write:
        for rows, margins in _ahead(model.margins_of(cache)):
            labels = (margins > np.float32(model.threshold_)).astype(np.int8)
            positives += int(labels.sum())
            values = (cache.keys[rows], margins, model.posterior(margins), labels)
            write(dict(zip(COLUMNS, values, strict=True)))
    return {"rows": len(cache), "positives": positives, "failures": failures}


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield what is in `items`, the next of which is made while the caller works on one."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, items, None)
            yield item


def embed_for(
    model: PULinearClassifier,
    source: Source,
    cache: str | Path,
    *,
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    decode: str = "auto",
    batch_size: int | None = None,
    engine: Engine | None = None,
    shard: tuple[int, int] = (1, 1),
    progress: Progress | None = None,
) -> EmbeddingCache:
    """Embed images with the encoder that a model was trained on, into a cache that can be scored.

    `cache` may be a URL. Parameters are those of `pucache.encoders.encoder.load_encoder` and `pucache.embedding.embed.embed`.

    Raises
    ------
    ModelError
        The model does not say which encoder it needs, or the one at hand differs.
    """
    from ..cache.destination import encoder_of_existing
    from ..embedding.embed import embed
    from ..embedding.local_engine import Local
    from ..encoders.encoder import load_encoder

    engine = engine or Local()
    wanted = model.encoder_
    if wanted is None or wanted.name.startswith("imported:"):
        raise ModelError(
            f"the model was trained on {wanted or 'bare arrays'}, which pucache cannot make; score a cache"
        )
    encoder = load_encoder(
        wanted.name,
        weights=weights,
        device=engine.device(device),
        precision=precision,
        runtime=runtime,
        decode=decode,
        batch_size=batch_size,
        like=encoder_of_existing(cache) or wanted,
    )
    differing = wanted.differences(encoder.spec, ignoring=ROUNDING)
    if differing:
        raise ModelError(
            f"the model expects {wanted}; the encoder at hand is {encoder.spec} (they differ in "
            f"{', '.join(differing)}): pass the weights it was trained with as --weights FILE"
        )
    report = embed(source, cache, encoder, engine=engine, shard=shard, progress=progress)
    return EmbeddingCache(report.cache)


def check_output(out: str | Path, *, inputs: Iterable[str | Path] = ()) -> None:
    """Make sure, before any work, that scores can be written to `out`, which must not be one of `inputs`.

    Raises
    ------
    ValueError
        Neither .csv nor .parquet.
    OutputError, MissingExtraError
        It cannot be written.
    """
    if is_url(out):
        if os.fspath(out) in map(str, inputs):
            raise OutputError(f"{without_secrets(os.fspath(out))} is also an input; name another file to write")
        place_of(out).check_writable()
    else:
        check_writable(out, inputs=inputs)
    if _ending(out) not in _TABLES:
        raise ValueError(f"{without_secrets(os.fspath(out))} must end in {' or '.join(_TABLES)}")
    if _ending(out) == ".parquet":
        _pyarrow()


def _ending(out: str | Path) -> str:
    return os.path.splitext(out)[1].lower()


def read_scores(path: str | Path) -> dict[str, np.ndarray]:
    """Read scores back: key (object), margin and posterior (float64), label (int64), each (n,).

    Parameters
    ----------
    path : path or str
        CSV, or Parquet where it ends in ``.parquet``.

    Returns
    -------
    dict of str to ndarray

    Raises
    ------
    LabelError
        Missing, or not a table with those columns.
    """
    path = Path(path)
    if not path.is_file():
        raise LabelError(f"no such scores: {path}; expected the CSV or Parquet that score writes")
    try:
        table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
        numbers = {name: np.array(table[name], float) for name in COLUMNS[1:]}
        if None in table["key"] or not all(np.isfinite(column).all() for column in numbers.values()):
            raise ValueError("a cell is empty or not a number")
        if not np.isin(numbers["label"], (0, 1)).all():
            raise ValueError("a label is neither 0 nor 1")
        return {"key": np.array(table["key"], object), **numbers, "label": numbers["label"].astype(int)}
    except (KeyError, ValueError, TypeError, OSError, csv.Error) as error:
        raise LabelError(
            f"{path} is not a table of scores ({one_line(error)}); expected columns {', '.join(COLUMNS)}"
        ) from error


# --- the two kinds of table --------------------------------------------------------------------


@contextmanager
def _csv_table(path: Path) -> Iterator[Write]:
    with path.open("w", newline="", encoding="utf-8") as stream:
        write_row = table_writer(stream)
        write_row(COLUMNS)

        def write(columns: dict[str, Any]) -> None:
            keys, *numbers = columns.values()
            rows = zip(keys, *(column.tolist() for column in numbers), strict=True)
            if _NEEDS_QUOTES.search("".join(keys)):
                for key, margin, posterior, label in rows:
                    write_row([key, f"{margin:.6g}", f"{posterior:.6g}", label])
            else:  # the same text, three times as fast
                stream.writelines(
                    [f"{key},{margin:.6g},{posterior:.6g},{label}\n" for key, margin, posterior, label in rows]
                )

        yield write


@contextmanager
def _parquet_table(path: Path) -> Iterator[Write]:
    arrow, parquet = _pyarrow()
    types = (arrow.string(), arrow.float32(), arrow.float64(), arrow.int8())
    schema = arrow.schema(list(zip(COLUMNS, types, strict=True)))
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            writer.write_table(arrow.concat_tables(waiting))
            waiting.clear()

    def write(columns: dict[str, Any]) -> None:
        waiting.append(arrow.table(columns, schema=schema))
        if sum(map(len, waiting)) >= _ROW_GROUP:
            flush()

    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:  # no two keys are equal
        yield write
        flush()


_TABLES = {".csv": _csv_table, ".parquet": _parquet_table}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow; pip install 'pucache[parquet]', or write .csv") from error
    return pyarrow, pyarrow.parquet


def _read_csv(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        table = csv.DictReader(stream, strict=True)
        rows = list(table)
    if not set(COLUMNS) <= set(table.fieldnames or []):
        raise ValueError(f"its columns are {', '.join(table.fieldnames or ['(none)'])}")
    return {name: [row[name] for row in rows] for name in COLUMNS}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    arrow, parquet = _pyarrow()
    try:
        return parquet.read_table(path).to_pydict()
    except arrow.ArrowInvalid as error:
        raise ValueError(str(error)) from error
