"""Parts of an unfinished cache: kept, set aside where damaged, and refused where they are of another encoder."""

import logging

import numpy as np
import pytest
from helpers.cache_files import SPEC, rows_of

from pucache.cache.parts import Parts
from pucache.cache.paths import part_files
from pucache.encoders.spec import EncoderSpec
from pucache.errors import CacheError

DTYPE = np.dtype("<f2")


@pytest.fixture
def cache(tmp_path):
    """A cache with two parts."""
    parts = Parts(tmp_path / "c.h5", SPEC, DTYPE)
    parts.add(rows_of(["a", "b"]), {}, "photos", name="first")
    parts.add(rows_of(["c"]), {"d": "not an image"}, "photos")
    return tmp_path / "c.h5"


def test_parts_are_opened_again(cache, caplog):
    parts = Parts(cache, SPEC, DTYPE)
    assert [file.raw_keys.tolist() for file in parts.files] == [[b"c"], [b"a", b"b"]]
    assert parts.files[0].failures == {"d": "not an image"}
    assert "going on from 3 images in" in caplog.text


def test_a_part_without_a_name_is_called_by_its_content(cache):
    assert part_files(cache)[-1].name == "part-first.h5"
    Parts(cache, SPEC, DTYPE).add(rows_of(["c"]), {"d": "not an image"}, "photos")
    assert len(part_files(cache)) == 2


def test_a_damaged_part_is_set_aside(cache, caplog):
    part_files(cache)[-1].write_bytes(b"damaged")
    assert [len(file) for file in Parts(cache, SPEC, DTYPE).files] == [1]
    assert "part-first.h5 is not a pucache cache" in caplog.text and caplog.records[0].levelno == logging.WARNING
    assert (cache.with_name("c.h5.parts") / "part-first.damaged").read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("encoder", "dtype", "differing"),
    [(EncoderSpec.imported("other", 8), "f2", "name, .*"), (SPEC, "f4", "dtype")],
)
def test_parts_of_another_encoder_or_dtype_are_refused(cache, encoder, dtype, differing):
    with pytest.raises(CacheError, match=rf"c.h5.parts holds unfinished work of .*\(they differ in {differing}\)"):
        Parts(cache, encoder, np.dtype(dtype))


def test_removed_parts_leave_nothing(cache):
    Parts(cache, SPEC, DTYPE).remove()
    assert not cache.with_name("c.h5.parts").exists()
