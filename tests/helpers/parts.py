"""Folders of embeddings as clip-retrieval and others write them."""

import numpy as np
import pyarrow
import pyarrow.parquet


def write_parquet(path, **columns):
    """Write columns as a Parquet file; two-dimensional arrays become lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {name: list(values) if np.ndim(values) == 2 else values for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return path


def write_clip_folder(folder, X, keys, sizes, *, column="image_path", **more):
    """Write `X` as parts of these sizes with metadata beside them; `more` holds further columns, whole."""
    start = 0
    (folder / "img_emb").mkdir(parents=True)
    for number, size in enumerate(sizes):
        rows = slice(start, start + size)
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", X[rows])
        columns = {column: keys[rows], **{name: values[rows] for name, values in more.items()}}
        write_parquet(folder / "metadata" / f"metadata_{number}.parquet", **columns)
        start += size
    assert start == len(X) == len(keys)
    return folder
