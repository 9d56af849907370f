"""Files built to do harm: read as what they are or refused, without running code, following links or taking memory."""

import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest
from helpers.cache_files import SPEC
from helpers.pictures import chunk, png
from helpers.planted import write_cache

from fuzz.damage import TOKENS, RunsCode, accepted
from fuzz.samples import images, network, npy, saved
from fuzz.test_damaged import array, image, weights
from pucache import PULinearClassifier, score
from pucache.cli.main import main
from pucache.errors import CacheError, EncoderError, ImageError
from pucache.labels.read_labels import open_labels
from pucache.scoring.score_tables import read_scores

# --- keys ----------------------------------------------------------------------------------------


def run(capfd, *arguments):
    """The exit code of a command, whose output holds no control character, no traceback and at most one error."""
    code = 0
    try:
        main([str(argument) for argument in arguments], prog_name="pucache", color=True)  # as on a terminal: unfiltered
    except SystemExit as end:
        code = end.code
    printed = capfd.readouterr()
    for text in printed:
        assert not {character for character in text if ord(character) < 32 or 126 < ord(character) < 160} - {"\n"}
        assert "Traceback" not in text
    assert code in (0, 1) and sum(line.startswith("Error: ") for line in printed.err.splitlines()) == code
    return code


@pytest.fixture
def model(tmp_path):
    """A model that scores these caches."""
    draw, s = np.random.default_rng(0), (np.arange(40) < 10).astype(int)
    trained = PULinearClassifier(prior=0.3, penalty=1.0, n_folds=2).fit(
        draw.normal(size=(40, SPEC.dim)).astype("f4"), s
    )
    trained.encoder_ = SPEC
    trained.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_key_that_means_harm_is_kept_in_tables_and_escaped_on_the_terminal(tmp_path, model, capfd):
    keys = sorted({token.replace("\0", "") for token in TOKENS if 0 < len(token.replace("\0", "")) < 1000})
    keys += ["\x1b[2Ja.png", "a\nb.png", '"a".png', "\x9b31m", "a\x08\x08.png", "'; rm -rf", "%s%n"]
    X = np.random.default_rng(0).normal(size=(len(keys), SPEC.dim)).astype("f2")
    failures = {f"{key}.failed": f"because of {key}" for key in keys}
    made = write_cache(tmp_path / "cache.h5", X, keys, encoder=SPEC, failures=failures)
    score(PULinearClassifier.load(model), made, tmp_path / "scores.csv")
    assert read_scores(tmp_path / "scores.csv")["key"].tolist() == list(made.keys)
    for key in made.keys:
        (tmp_path / "wish.csv").write_text('key\n"' + key.replace('"', '""') + '"\n', newline="")
        assert made.keys[np.flatnonzero(open_labels(made, tmp_path / "wish.csv").only.s)] == [key]
    (tmp_path / "found.txt").write_text("'; rm -rf\n")
    ranking = ("retrieve-positives", tmp_path / "cache.h5", "--positives", tmp_path / "found.txt")
    assert run(capfd, *ranking, "--out", tmp_path / "ranked.csv") == 0
    for options in ((), ("--json",)):
        assert run(capfd, "info", tmp_path / "cache.h5", "--failures", *options) == 0


# --- images and tars ---------------------------------------------------------------------------


def bombs():
    """Few bytes that ask for much memory, or for long work."""
    zeros, pixel = zlib.compress(bytes(1 << 26), 9), chunk(b"IDAT", zlib.compress(b"\0\0"))
    tags = {256: 13_000, 257: 13_000, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 13_000, 279: 4 << 30}
    return {
        "huge.png": png(60_000, 60_000, pixel, colour=0),
        "empty-but-large.png": png(9_000, 9_000, pixel, colour=2),
        "zeros.png": png(6_000, 6_000, chunk(b"IDAT", zlib.compress(bytes(6_000 * 751), 9)), depth=1, colour=0),
        "too-many-zeros.png": png(4, 4, chunk(b"IDAT", zeros), colour=0),
        "zeros-in-text.png": png(1, 1, chunk(b"zTXt", b"k\0\0" + zeros), pixel, colour=0),
        "zeros-in-itxt.png": png(1, 1, chunk(b"iTXt", b"k\0\1\0\0\0" + zeros), pixel, colour=0),
        "zeros-in-profile.png": png(1, 1, chunk(b"iCCP", b"k\0\0" + zeros), pixel, colour=0),
        "huge.jpg": patched("rgb.jpg", b"\xff\xc0\x00\x11\x08", 0, struct.pack(">HH", 65_500, 65_500)),
        "huge.gif": patched("still.gif", b"GIF", 3, struct.pack("<HH", 65_535, 65_535)),
        "huge.bmp": patched("rgb.bmp", b"BM", 16, struct.pack("<ii", 2_000_000, -2_000_000)),
        "huge.webp": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff" * 6 + b"VP8L",
        "huge.tif": struct.pack("<4sIH", b"II*\0", 8, len(tags))
        + b"".join(struct.pack("<HHII", tag, 4, 1, value % (1 << 32)) for tag, value in tags.items()),
        "huge.ppm": b"P6\n99999999 99999999\n255\n",
        "long-number.ppm": b"P6\n" + b"9" * 100_000 + b" 1\n255\n",
    }


def patched(name, after, skip, patch):
    data = images()[name]
    at = data.index(after) + len(after) + skip
    return data[:at] + patch + data[at + len(patch) :]


def test_an_image_that_asks_for_much_memory_gets_what_its_pixels_need(tmp_path):
    for name, data in bombs().items():
        (tmp_path / name).write_bytes(data)
    read = [name for name in bombs() if accepted(ImageError, image, tmp_path / name)]
    assert len(read) <= 4, read


# --- arrays and weights ------------------------------------------------------------------------


def headed(header):
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + bytes(48)


def hostile_arrays(marker):
    """Arrays that must be refused: pickles above all."""
    stream = io.BytesIO()
    np.savez(stream, a=np.zeros((4, 3)))
    shapes = [(1 << 50, 3), (1 << 62, 1 << 62), (-4, 3), (True, True)]
    headers = [f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}" for shape in shapes]
    headers += [
        f"__import__('os').mkdir('{marker}')",
        "[" * 5_000,
        "{'descr': '''",
        " " * 60_000,
        "{'descr': (",
        " a\n  b",
    ]
    wrong = [
        np.zeros((4, 3), complex),
        np.zeros((4, 3), [("a", "f4")]),
        np.zeros(4),
        np.zeros((0, 3)),
        np.full((4, 3), np.inf),
    ]
    code = [npy(np.array([[RunsCode(marker)]], object)), pickle.dumps(RunsCode(marker))]
    return [*code, stream.getvalue(), *map(headed, headers), *map(npy, wrong), b""]


def test_an_array_that_is_not_plain_numbers_is_refused_and_never_unpickled(tmp_path, marker):
    for data in hostile_arrays(marker):
        (tmp_path / "rows.npy").write_bytes(data)
        assert accepted(CacheError, array, tmp_path / "rows.npy") is None


def hostile_weights(marker):
    """Weights that must be refused: pickles that run code, headers that claim what is not there."""
    state, code = network().state_dict(), RunsCode(marker)
    name = next(iter(state))

    def header(told):
        text = json.dumps(told).encode()
        return struct.pack("<Q", len(text)) + text

    return {
        "code.pth": saved({"state_dict": state, "extra": code}),
        "code-alone.pth": saved(code),
        "code-old.pth": saved({**state, "x": code}, _use_new_zipfile_serialization=False),
        "pickle.pth": pickle.dumps(code),
        "pickle.safetensors": pickle.dumps(code),
        "list.pth": saved(list(state.values())),
        "nothing.pth": b"",
        "nothing.safetensors": b"",
        "long-header.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
        "claim.safetensors": header({name: {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        "deep.safetensors": struct.pack("<Q", 100_000) + b"[" * 100_000,
        "not-tensors.pth": saved(dict.fromkeys(state, 1)),
        "sparse.pth": saved(state | {name: state[name].to_sparse()}),
    }


def test_weights_that_would_run_code_are_refused_and_not_run(tmp_path, marker):
    for name, data in hostile_weights(marker).items():
        (tmp_path / name).write_bytes(data)
        assert accepted(EncoderError, weights, tmp_path / name) is None, name
