import hashlib
import json

import pytest
from helpers.cache_files import refusal
from helpers.sealing import unseal
from helpers.slow import slow

from pucache import EmbeddingCache
from pucache.cache import hdf5
from pucache.cache.reader import CacheFile


def test_a_file_truncated_anywhere_is_refused_on_opening(path):
    whole = path.read_bytes()
    for length in [*range(1, len(whole) - 64, 41), *range(len(whole) - 64, len(whole))]:
        path.write_bytes(whole[:length])
        text = refusal(CacheFile, path)
        assert length < 8 or "it is truncated, or an HDF5 file from elsewhere; restore it from a copy" in text


@pytest.mark.parametrize(("mask", "step"), [slow(0x01, 1), (0x20, 31)])
def test_every_flipped_bit_is_seen_by_verify_and_outside_of_columns_on_opening(path, mask, step):
    whole = path.read_bytes()
    columns = [range(c.offset, c.offset + c.size) for c in CacheFile(path).header.checksums.columns.values()]
    for position in range(0, len(whole), step):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        if any(position in column for column in columns):
            assert "not as they were written" in refusal(EmbeddingCache(path).verify)
        else:
            refusal(CacheFile, path)


def test_damage_that_hdf5_would_loop_over_or_die_of_is_found_before_it_sees_the_file(path, monkeypatch):
    monkeypatch.setattr(hdf5, "read", lambda *_: pytest.fail("HDF5 was given a damaged file"))
    whole = path.read_bytes()
    for position in (8, 40, 100, 600, len(whole) - 400, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        refusal(CacheFile, path)


SENSIBLE = {"offset": 0, "size": 1, "block": 1, "sha256": [""]}
SENSELESS = [
    *("{", "[]", "{}", "[" * 100_000, '{"columns":{"keys":7},"rest":"","size":1}'),
    '{"columns":{},"rest":"","size":Infinity}',
    *(
        json.dumps({"columns": {"keys": {**SENSIBLE, **odd}}, "rest": "", "size": 9})
        for odd in ({"offset": -1}, {"size": -1}, {"block": 0}, {"size": 1 << 70, "block": 1 << 70}, {"sha256": []})
    ),
]


@pytest.mark.parametrize("text", SENSELESS, ids=range(len(SENSELESS)))
def test_a_seal_without_sense_is_refused(path, text):
    unseal(path)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with path.open("a") as stream:
        stream.write(f"{text}\npucache-seal {len(text):012d} {digest}\n")
    assert "its table of checksums makes no sense" in refusal(CacheFile, path)
