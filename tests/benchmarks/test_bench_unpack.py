"""The original CIFAR files: refused by name where they are others."""

import pytest

from benchmarks.common.unpack import unpacked
from pucache.errors import SourceError


def test_batches_that_are_not_the_original_ones_are_refused_before_they_are_read(tmp_path):
    with pytest.raises(SourceError, match="cifar-10-batches-py or cifar-100-python"):
        unpacked(tmp_path, tmp_path / "work")
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"something else")
    with pytest.raises(SourceError, match="not the original, whole"):
        unpacked(folder, tmp_path / "work")
    assert not (tmp_path / "work").exists()
