import dataclasses
import json
import resource

import numpy as np
import pytest
import safetensors.numpy
from helpers.refusals import one_line
from helpers.sealing import reseal_model

from pucache.errors import EncoderError, RunError
from pucache.storage.tensor_file import FileFormat, read, write

FILE_FORMAT = FileFormat(
    "pucache-thing", version=2, noun="thing", error=EncoderError, expected="a thing", remedy="make it again"
)
OTHER = dataclasses.replace(FILE_FORMAT, format="pucache-other", noun="other thing", error=RunError)
TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 4)), "one": np.array(3, np.int64)}
MAX_BYTES = 1 << 50


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "thing", FILE_FORMAT, TENSORS, {"values": [1, None, "é"]})
    return tmp_path / "thing"


def refusal(path, kind=FILE_FORMAT, max_bytes=MAX_BYTES):
    text = one_line(kind.error, read, path, kind, max_bytes=max_bytes)
    assert str(path) in text and len(text) < 400 + len(str(path))
    return text


def test_tensors_of_any_shape_and_the_state_come_back_to_the_bit(path):
    tensors, state = read(path, FILE_FORMAT, max_bytes=MAX_BYTES)
    assert state == {"values": [1, None, "é"]} and set(tensors) == set(TENSORS)
    for name, values in TENSORS.items():
        assert (tensors[name].dtype, tensors[name].shape) == (values.dtype, values.shape)
        assert tensors[name].tobytes() == values.tobytes()


def test_a_file_speaks_of_its_own_kind(path):
    assert refusal(path, OTHER).endswith("a safetensors file but not a pucache other thing; pass a thing")
    older = dataclasses.replace(FILE_FORMAT, version=1)
    assert "is a thing of format version 2" in refusal(path, older) and "make it again" in refusal(path, older)
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(path).endswith("make it again")


def test_damage_of_any_byte_is_refused(path):
    whole = path.read_bytes()
    for position in range(len(whole)):
        flipped = whole[:position] + bytes([whole[position] ^ 0x20]) + whole[position + 1 :]
        for damaged in (flipped, whole[:position]) if position % 9 == 0 else (flipped,):
            path.write_bytes(damaged)
            refusal(path)


def test_a_header_that_would_fill_the_memory_is_not_parsed(path):
    header = b'{"__metadata__":{' + b'"x":[' + b"[]," * (1 << 23)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "cannot be read as safetensors (no header)" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB more"


@pytest.mark.parametrize("state", ["[1]", "null", "[" * 5000, "{"], ids=lambda text: text[:9])
def test_a_state_that_is_no_mapping_is_refused_under_a_right_seal(path, state):
    entry = {"checksum": "0" * 64, "format": FILE_FORMAT.format, "version": "2", "state": state}
    path.write_bytes(safetensors.numpy.save(TENSORS, {FILE_FORMAT.format: json.dumps(entry)}))
    reseal_model(path)
    assert "make it again" in refusal(path)
