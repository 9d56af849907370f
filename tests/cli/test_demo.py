import csv
import json

import pytest
from click.testing import CliRunner
from helpers.command_line import refused, table
from helpers.demo_images import demo_images
from helpers.texts import save_text_encoder
from PIL import Image

from pucache import EmbeddingCache, PULinearClassifier, demonstration, report
from pucache.cli.demo import _lines
from pucache.cli.main import main

SHARES = {("labelled", True): 15, ("pile", True): 12, ("pile", False): 103, ("new", True): 12, ("new", False): 48}
FILES = (
    "retrieved.png ranked.csv model.safetensors scores.csv photos.h5 new-photos.h5 found.txt truth.csv review.html "
    "report.html"
).split()


@pytest.fixture(scope="module")
def few_images(tmp_path_factory):
    """A tenth of the packaged images, packed in the same way."""
    folder, size, columns = tmp_path_factory.mktemp("data"), demonstration.TILE_SIDE, 20
    kept = list(demo_images(SHARES))
    assert len(kept) == sum(SHARES.values())
    sheet = Image.new(kept[0][1].mode, (columns * size, -(-len(kept) // columns) * size))
    for number, (_, tile) in enumerate(kept):
        sheet.paste(tile, (number % columns * size, number // columns * size))
    sheet.save(folder / "fashion-mnist.png")
    with (folder / "fashion-mnist.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, kept[0][0])
        writer.writeheader()
        writer.writerows(row for row, _ in kept)
    return folder


@pytest.fixture(scope="module")
def done(few_images, tmp_path_factory, one_thread):
    """The folder of a demo, and its result."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "DATA", few_images)
        patch.setitem(report.__kwdefaults__, "sample", 60)
        return folder, demonstration.demo(folder, device="cpu")


def test_the_demo_beats_chance_clearly_and_says_by_how_much(done):
    folder, result = done
    lines = list(_lines(result, str(folder)))
    assert result["found_by_words"] is None and lines[0] == "15 labelled dresses, 115 unlabelled images"
    assert (result["labelled_positives"], result["unlabelled"], result["pucache"]["n"]) == (15, 115, 60)
    assert result["pucache"]["auc"] > 0.9 and result["supervised"]["auc"] > 0.9
    assert result["pucache"]["average_precision_hidden"] > 0.5
    low, high = result["prior_interval"]
    assert result["prior"] is None and 0 < low < high < 1 and "With 15 labelled" in result["note"]
    assert result["true_prior"] == pytest.approx(12 / 115)
    json.dumps(result, allow_nan=False)
    assert f"{result['pucache']['auc']:11.3f}" in next(line for line in lines if line.startswith("pucache"))
    nearly = result | {"prior": 0.0004, "pucache": result["pucache"] | {"f1": 0.9996}}
    shown = "\n".join(_lines(nearly, str(folder)))
    assert "0.9996" in shown and "estimated 0.0004 (" in shown and "1.000 " not in shown


@pytest.mark.slow
def test_where_a_text_encoder_is_at_hand_the_demo_begins_with_words(few_images, tmp_path, monkeypatch, one_thread):
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(demonstration, "DATA", few_images)
    monkeypatch.setenv("PUCACHE_TEXT_ENCODER", str(save_text_encoder(tmp_path / "texts")))
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))
    for page in ("report", "write_review_page"):  # as without words
        monkeypatch.setattr(demonstration, page, lambda *_, **__: None)
    done = CliRunner().invoke(main, ["demo", str(tmp_path / "demo")], catch_exceptions=False)
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("by the words 'a dress' alone, without an example, ")
    assert first.endswith(" of the first 20 images are dresses") and last.endswith("photos.h5 --words 'a dress'")


def test_every_file_that_the_demo_names_is_there_and_whole(done):
    folder, result = done
    named = "\n".join(_lines(result, str(folder)))
    ranked, truth = table(folder / "ranked.csv"), table(folder / "truth.csv")
    dresses = {row["key"] for row in truth if row["label"] == "1"}
    for name in FILES:
        assert (folder / name).is_file() and name in named
    sheet = Image.open(folder / "retrieved.png")
    sheet.load()
    green = [sheet.convert("RGB").getpixel((6 + 90 * column - 2, 46))[1] > 100 for column in range(10)]
    assert green == [row["key"] in dresses for row in ranked[:10]], "dresses are framed green, others red"
    assert sheet.format == "PNG" and sheet.size == (10 * 90 + 6, -(-demonstration.CONTACT_SHEET_IMAGES // 10) * 90 + 6)
    for name, rows in (("photos", 130), ("new-photos", 60)):
        cache = EmbeddingCache(folder / f"{name}.h5")
        cache.verify()
        assert len(cache) == rows and not cache.failures and cache.encoder.name == "bundled"
    assert PULinearClassifier.load(folder / "model.safetensors").prior is None
    assert all("</html>" in (folder / name).read_text()[-50:] for name in FILES if name.endswith(".html"))


@pytest.mark.parametrize("place", ["file", "file/folder", "/proc/pucache", "others"])
def test_a_folder_that_is_not_for_the_demo_is_one_line_and_left_alone(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "found.txt").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    told = refused(f"demo {place}")
    assert place in told and "name a" in told
    assert sorted(tmp_path.rglob("*")) == before
    assert {path.read_text() for path in before if path.is_file()} == {"precious"}
