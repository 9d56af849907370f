"""Images and labels from tables, and decisions and thumbnails into them, on the command line."""

import io
import json

import numpy as np
import pyarrow
import pytest
from helpers.command_line import SMALL, refused, run, table
from PIL import Image
from pyarrow import parquet

from pucache import EmbeddingCache
from pucache.reviewing.log import Choice
from pucache.reviewing.session import open_session
from pucache.reviewing.state import Proposal


@pytest.fixture(scope="session")
def pile(world, trained):
    """The images of the world as Hugging Face would have them, with a column of keys and one of classes."""
    keys = list(EmbeddingCache(world / "cache.h5").keys)
    images = [{"bytes": (world / "images" / key).read_bytes(), "path": key} for key in keys]
    columns = {"image": images, "id": [f"id {key}" for key in keys], "kind": [key.split("/")[0] for key in keys]}
    parquet.write_table(pyarrow.table(columns), world / "pile.parquet", row_group_size=7)
    return keys


def test_embedding_and_training_from_one_parquet_file(world, pile, here):
    run(f"embed {{w}}/pile.parquet c.h5 {SMALL}", w=world)
    a, b = EmbeddingCache(here / "c.h5"), EmbeddingCache(world / "cache.h5")
    assert list(a.keys) == pile
    np.testing.assert_array_equal(a.X, b.X)
    train = "train-pu {cache} --labels red.csv --prior 0.1 --method linear --penalty 0.01"
    only = "--label-value red --undecided rest --out red.csv"
    beside = "labels c.h5 {w}/pile.parquet --label-column kind "
    assert run(beside + only, w=world).output.startswith("16 positive\n44 without a label")
    assert run(train.format(cache="c.h5")).output.startswith("16 labelled positives, 44 ")
    run(f"embed {{w}}/pile.parquet k.h5 {SMALL} --key-column id", w=world)
    assert list(EmbeddingCache(here / "k.h5").keys) == sorted(f"id {key}" for key in pile)
    run(f"labels k.h5 {{w}}/pile.parquet --key-column id --label-column kind {only}", w=world)
    assert run(train.format(cache="k.h5")).output.startswith("16 labelled positives, 44 ")
    score = "score model.safetensors '{w}/pile.parquet#key=id'"
    run(score + " --cache k.h5 --out scores.csv", w=world)
    assert [row["key"] for row in table(here / "scores.csv")] == sorted(f"id {key}" for key in pile)


def test_a_table_of_decisions_and_thumbnails(world, pile, here):
    with open_session(world / "cache.h5", world / "positives.txt", folder=here / "s") as session:
        session.decide(Proposal("1", pile.index("rest/003.png"), Choice.NEGATIVE))
    command = "export {w}/cache.h5 out.parquet --session s --thumbnails 8"
    assert run(command, w=world).output.strip().endswith(", decision, thumbnail")
    rows = parquet.read_table(here / "out.parquet").to_pylist()
    assert [row["key"] for row in rows] == pile
    positives = set((world / "positives.txt").read_text().split())
    for row in rows:
        expected = 1 if row["key"] in positives else 0 if row["key"] == "rest/003.png" else None
        assert row["decision"] == expected or expected is None, "images that look the same share a decision"
        with Image.open(io.BytesIO(row["thumbnail"]["bytes"])) as image:
            assert (image.format, image.size) == ("JPEG", (8, 8))
    run("import-embeddings out.parquet again.h5")
    assert list(EmbeddingCache(here / "again.h5").keys) == pile


def test_boxes_of_a_detector_become_parts_and_their_categories_a_table(here, world):
    """The JSON of MegaDetector beside no image: two boxes of one, and one of another."""
    found = [
        {"file": "red/000.png", "detections": [
            {"category": "1", "conf": 0.9, "bbox": [0.0, 0.0, 0.5, 0.5]},
            {"category": "2", "conf": 0.3, "bbox": [0.5, 0.5, 0.5, 0.5]},
        ]},
        {"file": "rest/000.png", "detections": [{"category": "1", "conf": 0.05, "bbox": [0.0, 0.0, 1.0, 1.0]}]},
    ]  # fmt: skip
    content = {"info": {}, "detection_categories": {"1": "animal", "2": "person"}, "images": found}
    (here / "found.json").write_text(json.dumps(content))
    detections = f"embed found.json parts.h5 --images {world}/images" + SMALL.format(w=world)
    run(f"{detections}--min-confidence 0.1")
    keys = ["red/000.png#xywh=percent:0,0,50,50", "red/000.png#xywh=percent:50,50,50,50"]
    assert list(EmbeddingCache(here / "parts.h5").keys) == keys
    expected = [{"key": key, "concept": concept} for key, concept in zip(keys, ("animal", "person"), strict=True)]
    assert table(here / "parts.concepts.csv") == expected
    (here / "parts.concepts.csv").write_text("key,concept\nmine,animal\n")
    run(f"{detections}--min-confidence 0.1")
    assert table(here / "parts.concepts.csv") == [{"key": "mine", "concept": "animal"}]  # it may have been edited
    assert "has no category 'dog'; it has animal, person" in refused(f"{detections}--category dog", code=2)


def test_score_reads_a_list_with_the_options_of_embed(here, world, trained):
    """A table whose column of paths has an odd name, beside no image."""
    (here / "odd.csv").write_text("photo,number\nred/000.png,1\nrest/000.png,2\n")
    score = f"score {world}/model.safetensors odd.csv --images {world}/images"
    run(f"{score} --key-column photo")
    assert [row["key"] for row in table(here / "odd.scores.csv")] == ["red/000.png", "rest/000.png"]
    assert "a category is of detections" in refused(f"{score} --key-column photo --category dog", code=2)
    cache = f"score {world}/model.safetensors {world}/cache.h5 --category dog"
    assert "which is for the JSON of COCO or MegaDetector; " in refused(cache, code=2)
