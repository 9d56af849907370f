"""Choices on the way from bytes to pixels: sealed with the encoder, recorded with the rows, applied by models."""

import dataclasses

import numpy as np
import pytest
from helpers.command_line import run
from helpers.learned import write_run
from helpers.pictures import encode
from helpers.tiny import tiny_encoder
from PIL import Image

import pucache
from pucache import Decoding, EmbeddingCache, embed, open_source
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.encoders import pretrained_file
from pucache.encoders.deferred import EncoderOptions
from pucache.errors import CacheError
from pucache.pages.thumbnails import RowImages
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.dataset import open_images, squash_for
from pucache.pretraining.network import NetworkConfig, build_network
from pucache.progress import Silent


def tiny(**choices):
    """The tiny encoder, sealed with these choices."""
    encoder = tiny_encoder()
    encoder.spec = dataclasses.replace(encoder.spec, decoder=Decoding(**choices).decoder)
    return encoder


@pytest.fixture
def scans(tmp_path):
    """Twelve grey images that use 12 of 16 bits."""
    random = np.random.default_rng(0)
    (tmp_path / "scans").mkdir()
    for number in range(12):
        values = random.integers(0, 4096, (40, 40), dtype=np.uint16)
        values[0, 0] = 4095
        Image.fromarray(values).save(tmp_path / "scans" / f"{number:02}.png")
    return tmp_path / "scans"


@pytest.fixture
def photos(tmp_path):
    """Four JPEG files, of which one is cut off."""
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(4):
        data = encode(Image.fromarray(random.integers(0, 256, (60, 80, 3), np.uint8)), "JPEG")
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(data[:-500] if number == 2 else data)
    return tmp_path / "photos"


def is_of_the_cut_one(partial):
    (reason,) = partial.values()
    return list(partial) == ["2.jpg"] and reason.startswith("read in part: cut off, image file is truncated")


# --- a white level -----------------------------------------------------------------------------


def test_a_level_makes_other_embeddings_that_never_mix(scans, out):
    dark = embed(scans, out, tiny())
    bright = embed(scans, out.with_name("bright.h5"), tiny(white_level=4095))
    assert np.abs(dark.X[:] - bright.X[:]).max() > 0.01
    assert 110 < np.asarray(RowImages(bright).read(0, 64).pixels).mean() < 145, "thumbnails are as bright"
    assert str(bright.encoder).endswith(", fp32 torch, white-level=4095)")
    with pytest.raises(CacheError, match=r"white-level=4095\) \(they differ in decoder\)"):
        embed(scans, out, tiny(white_level=4095))
    with pytest.raises(CacheError, match="decoder"):
        run_embedding(scans, out, tiny(), options=EmbedOptions(reuse=[bright.files[0].path]))
    with pytest.raises(CacheError):
        pucache.pack([dark, bright], out.with_name("both.h5"))
    report = run_embedding(scans, bright.files[0].path, tiny(white_level=4095))
    assert report.kept == 12 and report.range_note == ""


def test_the_command_seals_a_level_and_a_model_applies_it(scans, tmp_path, monkeypatch):
    monkeypatch.setenv("PUCACHE_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("PUCACHE_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    command = "embed scans --encoder run --device cpu --runtime torch"
    told = run(f"{command} dark.h5").output
    assert "warning: 12 of 12 16-bit images use less than a sixteenth of the range" in told
    assert "white-level=4095" in run(f"{command} c.h5 --white-level 4095").output
    assert "they differ in decoder" in run(f"{command} c.h5", code=1).output
    (tmp_path / "found.txt").write_text("".join(f"{number:02}.png\n" for number in range(5)))
    run("train-pu c.h5 --positives found.txt --out m.safetensors")
    run("score m.safetensors scans --out s.csv")
    assert EmbeddingCache("s.h5").encoder == EmbeddingCache("c.h5").encoder
    assert (EmbeddingCache("s.h5").X[:] == EmbeddingCache("c.h5").X[:]).all()


def test_an_encoder_that_was_trained_with_a_level_keeps_it(scans, tmp_path):
    write_run(tmp_path / "run", decoder=Decoding(4095).decoder)
    bright = embed(scans, tmp_path / "b.h5", tmp_path / "run", device="cpu", runtime="torch")
    assert Decoding.of(bright.encoder.decoder) == Decoding(4095)
    again = run_embedding(scans, tmp_path / "b.h5", EncoderOptions(name=tmp_path / "run", runtime="torch"))
    assert (again.kept, again.written) == (12, False)
    dark = embed(scans, tmp_path / "d.h5", tmp_path / "run", device="cpu", runtime="torch", decoding=Decoding())
    assert dark.encoder.differences(bright.encoder) == ["decoder"]
    write_run(tmp_path / "usual")
    assert b"decoder" not in (tmp_path / "usual/encoder.safetensors").read_bytes()[:4000]


def test_pretraining_decodes_with_the_level_and_writes_it(scans, tmp_path):
    network = build_network(NetworkConfig("test_resnet", size=24, decoding=Decoding(4095)), norm=True, seed=0)
    source = open_source(scans)
    squash = squash_for(network.description, VIEWS["natural"])
    images = open_images(source, source.scan(), tmp_path, squash, workers=0, progress=Silent())
    (batch,) = images.batches([np.arange(12)])
    assert 110 < batch.float().mean() < 145
    pretrained_file.write(tmp_path / "e.safetensors", network.backbone, network.description)
    assert pretrained_file.read(tmp_path / "e.safetensors")[1].decoder == Decoding(4095).decoder


# --- images that are cut off -------------------------------------------------------------------


def test_a_cut_image_is_refused_by_name_of_the_option_or_embedded_and_recorded_while_it_is_cut(photos, out):
    assert list(run_embedding(photos, out, tiny()).failures) == ["2.jpg"]
    accepted = out.with_name("accepted.h5")
    report = run_embedding(photos, accepted, tiny(accept_truncated=True))
    assert (report.rows, report.failures) == (4, {}) and is_of_the_cut_one(report.partial)
    assert report.partial == EmbeddingCache(accepted).partial
    content = pucache.info(accepted)
    assert (content.failures, content.partial) == ({}, report.partial)
    (photos / "2.jpg").write_bytes((photos / "1.jpg").read_bytes())
    assert run_embedding(photos, accepted, tiny(accept_truncated=True)).partial == {}
    assert EmbeddingCache(accepted).partial == {}


def test_the_record_outlives_updates_packing_reuse_and_a_table(photos, out, tmp_path, small_blocks):
    encoder = tiny(accept_truncated=True)
    run_embedding(photos, out, encoder)
    (photos / "new.jpg").write_bytes((photos / "0.jpg").read_bytes() + b"more")
    assert is_of_the_cut_one(run_embedding(photos, out, encoder).partial)
    pucache.pack([out], tmp_path / "packed.h5")
    reused = run_embedding(photos, tmp_path / "reused.h5", encoder, options=EmbedOptions(reuse=[out]))
    pucache.export(out, tmp_path / "x.parquet")
    pucache.import_embeddings(tmp_path / "x.parquet", tmp_path / "imported.h5")
    assert reused.reused == 5
    for name in ("packed", "reused", "imported"):
        cache = EmbeddingCache(tmp_path / f"{name}.h5")
        assert is_of_the_cut_one(cache.partial) and cache.failures == {}


# --- what is told and refused ------------------------------------------------------------------


def test_a_batch_beyond_all_memory_is_refused_before_it_is_compiled():
    with pytest.raises(
        ValueError, match=r"batch size 99,999,999,999 is too large: the pixels alone take 60,211,200 GB"
    ):
        pucache.load_encoder(batch_size=99_999_999_999, device="cpu")


def test_endings_beyond_the_first_are_counted(scans, tmp_path):
    for number, ending in enumerate("abcdefg"):
        (scans / f"x.{ending}").write_text("")
        (scans / f"{number}.docx").write_text("")
    said = run(f"embed {scans} {tmp_path}/c.h5 --runtime torch").output
    assert "left out by their ending: 7 .docx, " in said and said.rstrip().endswith(", and 4 with other endings")
