import numpy as np
import pytest
from helpers.embedding_runs import MemorySource, picture, pictures, run
from helpers.files import visible
from helpers.tiny import tiny_encoder

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import EncoderError
from pucache.images.decoding import decode

pytestmark = pytest.mark.usefixtures("one_thread", "small_blocks")
N = 130


def odd_encoder(numbers, value):
    """An encoder that gives some of the pictures an embedding of our choice."""
    encoder = tiny_encoder()
    forward, odd = encoder.runtime.compute, [encoder.preprocess(decode(picture(number))) for number in numbers]

    def embed(pixels):
        X = forward(pixels)
        X[[any(bool((image == other).all()) for other in odd) for image in pixels], -1] = value
        return X

    encoder.runtime.compute = embed
    return encoder


@pytest.mark.parametrize(("odd", "value"), [([0, 7, 31, 32], np.nan), ([129], np.inf)])
def test_an_image_that_the_encoder_cannot_take_is_a_failure_and_costs_no_other(out, odd, value):
    run(MemorySource(pictures(N)), out.with_name("good.h5"))
    good, keys = EmbeddingCache(out.with_name("good.h5")), [f"{number:04}.ppm" for number in odd]
    report = run(MemorySource(pictures(N)), out, odd_encoder(odd, value))
    assert report.failures == dict.fromkeys(keys, "the encoder gave NaN or infinite values")
    left = EmbeddingCache(out)
    assert list(left.keys) == [key for key in good.keys if key not in keys]
    np.testing.assert_array_equal(left.X, np.delete(good.X, odd, axis=0))


def test_embeddings_beyond_float16_are_an_error_that_names_float32(out):
    encoder = odd_encoder([3], 1e6)
    reason = r"'0003.ppm' overflows float16; remove its .parts and use --dtype float32"
    with pytest.raises(EncoderError, match=reason):
        run(MemorySource(pictures(5)), out, encoder)
    assert visible(out.parent) == []
    run(MemorySource(pictures(5)), out, encoder, dtype="float32")
    assert EmbeddingCache(out).X[3, -1] == 1e6
