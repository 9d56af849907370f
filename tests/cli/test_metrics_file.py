"""What is derived from a model or a table has its name, and replaces only what pucache wrote."""

import json
from pathlib import Path

import pytest
from helpers.command_line import run
from PIL import Image

from pucache.storage.file_kinds import MARK

TRAIN = "train-pu {w}/cache.h5 --positives {w}/positives.txt --prior 0.15 --penalty 0.01 --method linear"
SWEEP = "sweep-priors {w}/cache.h5 --positives {w}/positives.txt --priors 0.1 --seeds 1"


@pytest.fixture(autouse=True)
def in_empty_folder(trained, here):
    """The model, and an empty working directory."""


def content(path):
    return json.loads(Path(path).read_text())


def test_two_models_in_one_folder_have_their_own_metrics(world):
    for name, seed in (("a.safetensors", 1), ("b.v2.safetensors", 2), ("c", 3)):
        run(f"{TRAIN} --seed {seed} --out {name}", w=world)
    assert content("a.metrics.json")["written_by"] == MARK
    written = ["a.metrics.json", "a.safetensors", "b.v2.metrics.json", "b.v2.safetensors", "c", "c.metrics.json"]
    assert sorted(path.name for path in Path().iterdir()) == written
    before = content("a.metrics.json")
    assert "wrote a.safetensors and a.metrics.json" in run(TRAIN + " --seed 1 --out a.safetensors", w=world).stdout
    assert content("a.metrics.json") == before


def test_metrics_of_others_that_nobody_named_are_left_and_the_model_is_written(world):
    Path("model.metrics.json").write_text('{"mine": 1}')
    told = run(TRAIN, w=world).stdout
    assert "wrote model.safetensors; model.metrics.json was left as it is, not updated" in told
    assert content("model.metrics.json") == {"mine": 1} and Path("model.safetensors").exists()
    (world / "labels.csv").write_text("key,concept\n" + "".join(f"red/{n:03}.png,red\n" for n in range(8)))
    Path("models").mkdir()
    Path("models/metrics.json").write_text('{\n  "concepts": []\n}')
    command = "train-pu {w}/cache.h5 --labels {w}/labels.csv --penalty 0.01 --method linear"
    told = run(command, w=world).stdout
    assert "wrote 1 model to models; models/metrics.json was left as it is, not updated" in told
    assert content("models/metrics.json") == {"concepts": []}


def test_a_picture_of_others_beside_a_table_is_left_and_the_table_is_written(world):
    Image.new("RGB", (4, 4)).save("sweep.png")
    before = Path("sweep.png").read_bytes()
    assert "wrote sweep.csv; sweep.png is not pucache's, and is left as it is" in run(SWEEP, w=world).stdout
    assert Path("sweep.png").read_bytes() == before and Path("sweep.csv").exists()
    Path("sweep.png").unlink()
    for _ in range(2):  # the second replaces its own
        assert "wrote sweep.csv and sweep.png" in run(SWEEP, w=world).stdout


@pytest.mark.parametrize(
    "command",
    [
        "embed {w}/nowhere made/new.h5",
        "embed {w}/documents made/new.h5",
        "train-pu {w}/cache.h5 --positives none/** --out made/m.safetensors",
        "retrieve-positives {w}/cache.h5 --positives none/** --out made/r.csv --page made/r.html",
        "score {w}/model.safetensors {w}/nowhere --out made/s.csv",
        "labels {w}/cache.h5 none/** --out made/l.csv",
        "report {w}/cache.h5 --positives none/** --out made/r.html",
        "export {w}/nowhere.h5 made/on/the/way/c.parquet",
        "pack {w}/cache.h5 {w}/cache.h5 --out made/c.h5",
        "import-embeddings {w}/nowhere.npy made/c.h5",
        "pretrain {w}/documents made/run",
        "pretrain {w}/documents run --preview made/views.png",
        "sweep-priors {w}/cache.h5 --positives none/** --out made/s.csv",
        "review {w}/cache.h5 --positives {w}/images/notes.docx --session made --no-browser",
    ],
)
def test_a_command_that_fails_leaves_no_folder_that_it_made(world, command):
    (world / "documents").mkdir(exist_ok=True)
    run(command, 1, w=world)
    assert not Path("made").exists() and not list(Path().iterdir())
