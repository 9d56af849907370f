import dataclasses
import json

import numpy as np
import pytest
from helpers.learned import network
from helpers.tiny import tiny_encoder

from pucache.encoders.backbones import digest
from pucache.encoders.spec import EncoderSpec, weights_digest

SPEC = tiny_encoder().spec
FIELDS = [field.name for field in dataclasses.fields(EncoderSpec) if field.compare]


def changed(name):
    """Return the spec with one field different, and of the type it had."""
    value = getattr(SPEC, name)
    other = value[1:] if isinstance(value, tuple) else value + ("x" if isinstance(value, str) else 1)
    return dataclasses.replace(SPEC, **{name: other})


@pytest.mark.parametrize("spec", [SPEC, EncoderSpec.imported("clip é", 512)])
def test_json_is_canonical_and_gives_the_spec_back(spec):
    fields = dict(reversed(json.loads(spec.to_json()).items()))
    again = EncoderSpec.from_json(json.dumps(fields, indent=2))
    assert again == spec and again.to_json() == spec.to_json()


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_in_any_field_is_named(name):
    assert SPEC.differences(changed(name)) == [name]
    assert SPEC.differences(changed(name), ignoring=[name]) == []
    assert SPEC.differences(SPEC) == []


def test_an_encoder_described_before_there_was_a_choice_of_runtime_ran_by_torch():
    for spec, runtime in ((SPEC, "torch"), (EncoderSpec.imported("clip", 512), "")):
        fields = json.loads(spec.to_json())
        del fields["runtime"]
        assert EncoderSpec.from_json(json.dumps(fields)) == dataclasses.replace(spec, runtime=runtime)


def test_the_origin_of_imported_rows_tells_no_two_encoders_apart():
    one, other = (dataclasses.replace(EncoderSpec.imported("clip", 8), origin=origin) for origin in ("/a", "/b"))
    assert one == other and not one.differences(other)
    assert one.differences(dataclasses.replace(other, normalization="l2")) == ["normalization"]


def test_the_digest_of_arrays_is_that_of_the_network():
    model = network()
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = digest(model)
    assert weights_digest(arrays) == weights_digest(dict(reversed(arrays.items()))) == expected
    assert weights_digest({**arrays, "bn1.num_batches_tracked": np.array(9)}) == expected
    name = next(iter(arrays))
    assert weights_digest({**arrays, name: arrays[name].astype(np.float64)}) != expected
    assert weights_digest({**arrays, name: arrays[name] + 1}) != expected
