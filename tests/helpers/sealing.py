"""Cache files and models as a stranger could write them: changed, and sealed anew."""

import hashlib
import re
from contextlib import contextmanager

import h5py

from pucache.cache import checksums


def unseal(path):
    """Cut the seal off, which leaves the HDF5 file."""
    data = path.read_bytes()
    found = re.search(rb"\npucache-seal (\d{12}) [0-9a-f]{64}\n\Z", data)
    path.write_bytes(data[: found.start() - int(found[1])] if found else data)


def reseal(path):
    """Seal what is there, as far as h5py can make sense of it."""
    unseal(path)
    columns = {}

    def describe(name, dataset):
        if isinstance(dataset, h5py.Dataset):
            n = dataset.shape[0] if dataset.shape else 1
            rows = n if name.startswith("failures") else checksums.rows_per_hash(n)
            offset = dataset.id.get_offset() or 0
            hasher = checksums.ColumnHasher(rows * dataset.nbytes // max(1, n))
            hasher.update(
                memoryview(path.read_bytes())[offset : offset + dataset.nbytes] if offset else memoryview(b"")
            )
            columns[name] = hasher.checksums(offset)

    with h5py.File(path) as file:
        file.visititems(describe)
    checksums.append_table(path, columns)


@contextmanager
def edited(path):
    """Yield the file for h5py to change, and seal it anew."""
    unseal(path)
    with h5py.File(path, "r+") as file:
        yield file
    reseal(path)


def reseal_model(path):
    """Write the checksum that the other bytes of a model need; its place must be there."""
    blank = re.sub(rb'(\\"checksum\\": \\")[0-9a-f]{64}', rb"\g<1>" + b"0" * 64, path.read_bytes(), count=1)
    path.write_bytes(blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1))
