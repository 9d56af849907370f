"""The cache: one or several immutable files of one encoder, read as one; merging and importing.

docs/cache-format.md specifies the files, `pucache.cache_file` reads and writes one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from .cache_file import DTYPES, CacheFile, rows_per_block
from .cache_writer import Rows, write_file
from .durable import check_writable
from .encoder_spec import EncoderSpec
from .errors import CacheError
from .hdf5 import begins_as_hdf5
from .keys import Keys, duplicated, encode_keys, find


class EmbeddingCache:
    """One or more cache files of one encoder, read as one, and as they were when they were opened.

    Parameters
    ----------
    *paths : str or path
        Cache files, or folders of them (``*.h5``).

    Attributes
    ----------
    files : list of CacheFile
    encoder : EncoderSpec
    keys : Keys
        In row order; sorted within a file.

    Raises
    ------
    CacheError
        As `CacheFile`; also when encoders differ or a key stands in two files.
    """

    def __init__(self, *paths: str | Path):
        self.files = [CacheFile(path, hold=True) for path in expand(paths)]
        first = self.files[0]
        for other in self.files[1:]:
            check_same_encoder(first, other)
        self.encoder = first.encoder
        self.keys = Keys([file.raw_keys for file in self.files])
        self._check_disjoint()

    def _check_disjoint(self) -> None:
        twice = duplicated([file.raw_keys for file in self.files]) if len(self.files) > 1 else None
        if twice is not None:
            here = [str(file.path) for file in self.files if find(file.raw_keys, np.array([twice]))[0] >= 0]
            raise CacheError(
                f"the key {twice.decode()!r} stands both in {here[0]} and in {here[1]}; open one of the two, or embed "
                "with --shard I/N"
            )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """What to call this cache in a message."""
        return str(self.files[0].path) + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @property
    def X(self) -> np.ndarray:
        """Embeddings (n, d), float16 or float32: mapped for one file, gathered in memory for several."""
        if len(self.files) == 1:
            return self.files[0].X
        return np.concatenate([file.X for file in self.files])

    @property
    def digests(self) -> np.ndarray:
        """sha256 of each image's bytes, (n, 32) uint8."""
        if len(self.files) == 1:
            return self.files[0].digests
        return np.concatenate([file.digests for file in self.files])

    @property
    def failures(self) -> dict[str, str]:
        """Key to reason of every image that could not be read."""
        return {key: reason for file in self.files for key, reason in file.failures.items()}

    def blocks(self, *, check: bool = False) -> Iterator[tuple[slice, np.ndarray]]:
        """Go through the embeddings in row order, in bounded memory: (row slice, (b, d)), each valid until the next.

        With `check`, what is read is held against the seal; damage raises `CacheError`.
        """
        offset = 0
        for file in self.files:
            for rows, block in file.blocks(check=check):
                yield slice(offset + rows.start, offset + rows.stop), block
            offset += len(file)

    def not_finite(self, rows: np.ndarray) -> CacheError:
        """What to raise where some rows are NaN or infinite, which pucache itself never writes."""
        starts = np.cumsum([0, *map(len, self.files)])
        number = int(np.searchsorted(starts, rows[0], "right")) - 1
        return self.files[number].not_finite(rows[rows < starts[number + 1]] - starts[number])

    def check(self, *names: str) -> None:
        """Hold some columns of every file (such as "keys") against its seal; damage raises `CacheError`."""
        for file in self.files:
            file.check(*names)

    def verify(self) -> None:
        """Hold every byte of every file against its seal; damage raises `CacheError`."""
        for file in self.files:
            file.verify()


def expand(paths: Iterable[str | Path]) -> list[Path]:
    """Replace folders by the cache files in them, in name order."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(child for child in path.glob("*.h5") if not child.name.startswith("."))
            if not inside:
                raise CacheError(f"no cache in folder {path}; expected *.h5 files")
            found += inside
        else:
            found.append(path)
    if not found:
        raise CacheError("no cache given")
    return found


def is_cache(path: str | Path) -> bool:
    """Whether `path` is meant as a cache rather than as images: an HDF5 or ``.h5`` file, or a folder of these."""
    path = Path(path)
    return path.suffix == ".h5" or begins_as_hdf5(path) or (path.is_dir() and any(path.glob("*.h5")))


def check_same_encoder(expected: CacheFile, got: CacheFile) -> None:
    """Raise `CacheError` unless two files hold embeddings of one encoder in one type."""
    differing = expected.encoder.differences(got.encoder)
    if differing:
        raise CacheError(
            f"{expected.path} holds embeddings of {expected.encoder}; {got.path} of {got.encoder} "
            f"(they differ in {', '.join(differing)}): caches of different encoders cannot be mixed"
        )
    if expected.dtype != got.dtype:
        raise CacheError(f"{expected.path} holds {expected.dtype}, {got.path} {got.dtype}: pack one of them anew")


# --- merging -----------------------------------------------------------------------------------


def merge(
    out: str | Path,
    picks: list[tuple[CacheFile, np.ndarray]],
    *,
    encoder: EncoderSpec,
    dtype: np.dtype,
    source: str,
    failures: dict[str, str],
) -> int:
    """Write the picked rows of several files, sorted by key, as one file; in bounded memory.

    Parameters
    ----------
    picks : list of (CacheFile, ndarray of int)
        Row numbers to take from each file; no key may be picked twice.

    Returns
    -------
    int
        Rows written.
    """
    keys = [file.take("keys", rows) for file, rows in picks]
    width = max((part.dtype.itemsize for part in keys), default=1)
    keys_all = np.concatenate([part.astype(f"S{width}") for part in keys]) if keys else np.empty(0, "S1")
    piece = np.repeat(np.arange(len(picks)), [len(rows) for _, rows in picks])
    row = np.concatenate([rows for _, rows in picks]) if picks else np.empty(0, np.int64)
    order = np.argsort(keys_all, kind="stable")
    keys_all = keys_all[order]
    twice = np.flatnonzero(keys_all[1:] == keys_all[:-1])
    if len(twice):
        raise CacheError(f"{len(twice)} keys stand in more than one of the files ({keys_all[twice[0]].decode()!r})")
    longest = int(np.char.str_len(keys_all).max()) if len(keys_all) else 1

    def blocks() -> Iterator[Rows]:
        step = rows_per_block(np.empty((0, encoder.dim), dtype))
        for start in range(0, len(order), step):
            part = order[start : start + step]
            yield _gather(picks, piece[part], row[part], keys_all[start : start + step], encoder.dim, dtype)

    shape = (len(order), longest, dtype)
    write_file(out, encoder, source, blocks(), shape=shape, failures=dict(sorted(failures.items())))
    return len(order)


def _gather(
    picks: list[tuple[CacheFile, np.ndarray]],
    piece: np.ndarray,
    row: np.ndarray,
    keys: np.ndarray,
    dim: int,
    dtype: np.dtype,
) -> Rows:
    n = len(keys)
    rows = Rows(keys, np.empty((n, dim), dtype), np.empty((n, 32), np.uint8), np.empty((n, 2), np.int64))
    for number in np.unique(piece):
        here = np.flatnonzero(piece == number)
        file, at = picks[number][0], row[here]
        rows.X[here], rows.digests[here] = file.take("embeddings", at), file.take("digests", at)
        rows.size_mtime[here] = file.take("size_mtime", at)
    return rows


def pack(paths: Iterable[str | Path], out: str | Path) -> int:
    """Merge cache files of one encoder into one; returns the number of rows.

    Raises
    ------
    CacheError
        A file is unusable, encoders differ, or a key stands in two files.
    """
    out = check_writable(out)
    files = [CacheFile(path) for path in expand(paths)]
    for other in files[1:]:
        check_same_encoder(files[0], other)
    failures: dict[str, str] = {}
    for file in files:
        file.verify()
        failures.update(file.failures)
        file.release()
    for file in files:
        rows = find(file.raw_keys, encode_keys(list(failures)))
        failures = {key: reason for (key, reason), row in zip(failures.items(), rows, strict=True) if row < 0}
        file.release()
    picks = [(file, np.arange(len(file))) for file in files]
    sources = sorted({file.source for file in files})
    source = sources[0] if len(sources) == 1 else ""
    return merge(out, picks, encoder=files[0].encoder, dtype=files[0].dtype, source=source, failures=failures)


def import_embeddings(
    embeddings: str | Path,
    keys: Sequence[str],
    out: str | Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
) -> int:
    """Write embeddings that were made elsewhere, of any modality, as a cache file.

    Parameters
    ----------
    embeddings : path
        A NumPy ``.npy`` file of floats, (n, d); read through a map, never unpickled.
    keys : sequence of str
        One per row, unique; any order.
    out : path
    name : str, optional
        What to call the encoder; the file's stem by default.
    dtype : {"float16", "float32"}, optional
        Of the stored rows; by default float16 where the file is, else float32.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    CacheError
        The array cannot be read, has the wrong shape or type, or holds NaN or infinity.
    """
    out, source = check_writable(out), Path(embeddings)
    X = _open_npy(source)
    if len(keys) != len(X):
        raise CacheError(f"{source} has {len(X)} rows, but {len(keys)} keys were given; one key per row is needed")
    encoded = encode_keys(keys)
    order = np.argsort(encoded, kind="stable")
    twice = np.flatnonzero(encoded[order][1:] == encoded[order][:-1])
    if len(twice):
        raise CacheError(f"the key {encoded[order][twice[0]].decode()!r} is given twice; keys must be unique")
    stored = DTYPES[dtype or ("float16" if X.dtype == np.float16 else "float32")]
    encoder = EncoderSpec.imported(name or source.stem, X.shape[1])

    def blocks() -> Iterator[Rows]:
        step = rows_per_block(X)
        for start in range(0, len(X), step):
            rows = order[start : start + step]
            with np.errstate(over="ignore"):
                block = X[rows].astype(stored)
            bad = np.flatnonzero(~np.isfinite(block).all(1))
            if len(bad):
                raise CacheError(
                    f"row {rows[bad[0]]} of {source} ({keys[rows[bad[0]]]!r}) is NaN, infinite or overflows {stored}; "
                    "correct it, or pass --dtype float32"
                )
            empty = np.zeros((len(rows), 32), np.uint8), np.full((len(rows), 2), -1, np.int64)
            yield Rows(encoded[rows], block, *empty)

    shape = (len(X), encoded.itemsize, stored)
    write_file(out, encoder, "", blocks(), shape=shape, failures={})
    return len(X)


def _open_npy(path: Path) -> np.ndarray:
    try:
        X = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise CacheError(f"no such file: {path}") from error
    except Exception as error:  # numpy parses the header as Python, and damage raises almost anything
        raise CacheError(f"{path} is not a .npy array of numbers; save one with numpy.save") from error
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind != "f" or 0 in X.shape:
        got = f"{X.dtype} {X.shape}" if isinstance(X, np.ndarray) else "an archive of arrays"
        raise CacheError(f"{path} holds {got}; expected one array of floats with rows and columns")
    return X
