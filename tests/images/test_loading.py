import itertools

import numpy as np
import pytest
import torch
from helpers.embedding_runs import MemorySource, picture
from helpers.pictures import encode
from helpers.tiny import SIDE, tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pucache.images import loading
from pucache.images.decoding import decode
from pucache.images.listing import UNKNOWN
from pucache.images.loading import STAGES, ChunkLoader
from pucache.images.regions import grid_regions, part_key
from pucache.images.source import image_digest

PREPROCESS = tiny_encoder().preprocess


KINDS = {  # kind: bytes, size when listed, outcome
    "good": (picture(0), None, None),
    "unknown size": (picture(1), UNKNOWN, None),
    "known": (picture(2), None, None),
    "jpeg": (encode(Image.linear_gradient("L").resize((12, 9)).convert("RGB"), "JPEG"), None, None),
    "broken": (b"no image", None, "not an image in a known format"),
    "narrow": (encode(Image.new("RGB", (600, 1))), None, "600 x 1 pixels; one side is more than 500 times the other"),
    "vanished": (None, 5, "cannot be read: No such file or directory"),
    "changed": (picture(5), 7, "changed while it was read: 7 bytes when listed, "),
}


def prepared(kinds, rows):
    """Prepare one image of each of these kinds."""
    keys = [f"{number:03}-{kind}" for number, kind in enumerate(kinds)]
    files = {key: KINDS[kind][0] for key, kind in zip(keys, kinds, strict=True)}
    source = MemorySource(files, gone=[key for key in keys if key.endswith("vanished")])
    sizes = [len(KINDS[kind][0]) if KINDS[kind][1] is None else KINDS[kind][1] for kind in kinds]
    known = np.array(sorted(KNOWN), "S32")
    return ChunkLoader(source, PREPROCESS, keys, sizes, chunk_size=rows, embedded_digests=known)


KNOWN = [image_digest(KINDS["known"][0]), image_digest(b"something else")]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=20), st.integers(1, 8))
def test_every_image_has_its_outcome_in_order_and_costs_the_others_nothing(kinds, rows):
    loader = prepared(kinds, rows)
    chunks = [loader(number) for number in range(len(loader))]
    assert [chunk.first for chunk in chunks] == list(range(0, len(kinds), rows))
    outcomes = [outcome for chunk in chunks for outcome in chunk.outcomes]
    assert len(outcomes) == len(kinds)
    for kind, outcome in zip(kinds, outcomes, strict=True):
        data, _, reason = KINDS[kind]
        assert outcome == image_digest(data) if reason is None else outcome.startswith(reason)
    embedded = [position for position, kind in enumerate(kinds) if kind in ("good", "unknown size", "jpeg")]
    assert [position for chunk in chunks for position in chunk.to_embed] == embedded
    for chunk in chunks:
        assert chunk.pixels.shape == (len(chunk.to_embed), SIDE, SIDE, 3) and chunk.pixels.dtype == torch.uint8
        for position, pixels in zip(chunk.to_embed, chunk.pixels, strict=True):
            assert torch.equal(pixels, PREPROCESS(decode(KINDS[kinds[position]][0], PREPROCESS.sufficient_side)))
        assert len(chunk.seconds) == len(STAGES) == 4 and min(chunk.seconds) >= 0


def test_a_known_digest_is_known_whatever_its_bytes():
    odd = next(data for data in map(picture, itertools.count()) if not image_digest(data)[-1])  # one in 256
    near = image_digest(odd)[:-1] + b"\1"
    for known, to_embed in ([image_digest(odd)], []), ([near], [0]), ([], [0]):
        options = {"chunk_size": 1, "embedded_digests": np.array(known, "S32")}
        chunk = ChunkLoader(MemorySource({"a": odd}), PREPROCESS, ["a"], [len(odd)], **options)(0)
        assert (chunk.outcomes, chunk.to_embed) == ([image_digest(odd)], to_embed)


class Counting(MemorySource):
    """Counts how often each image is read."""

    def read(self, key):
        self.reads.append(key)
        return super().read(key)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["good", "known", "broken"])), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 6),
    st.booleans(),
)
def test_parts_of_an_image_are_split_by_their_bytes_and_read_once(images, rows, most, forget):
    """Whatever the number of parts of each image, of images in a chunk and of parts that a chunk may hold."""
    content, keys, sizes = {}, [], []
    for number, (side, kind) in enumerate(images):
        content[name := f"{number}.png"] = KINDS[kind][0]
        keys += sorted(part_key(name, region) for region in grid_regions(f"{side}x{side}"))
        sizes += [len(content[name])] * side**2
    files = Counting(content)

    def loaded(limit):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "PIXEL_BYTES", limit * SIDE * SIDE * 3)
            loader = ChunkLoader(files, PREPROCESS, keys, sizes, chunk_size=rows, tiles="2x2")
        assert limit >= 100 or loader.shape[0] <= limit
        files.reads, chunks = [], []
        for number in range(len(loader)):
            if forget:
                loader.forget(number)
            chunks.append(loader(number))
        assert files.reads == [f"{number}.png" for number in range(len(images))]
        assert [chunk.first for chunk in chunks] == np.cumsum([0, *(len(each.outcomes) for each in chunks)])[
            :-1
        ].tolist()
        return (
            [outcome for chunk in chunks for outcome in chunk.outcomes],
            [position for chunk in chunks for position in chunk.to_embed],
            torch.cat([chunk.pixels for chunk in chunks]),
        )

    small, whole = loaded(most), loaded(100)
    assert small[:2] == whole[:2] and len(small[0]) == len(keys)
    assert torch.equal(small[2], whole[2])
