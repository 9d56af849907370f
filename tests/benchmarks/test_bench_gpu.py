"""The script for a GPU, tried on the CPU: each check gives figures."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import gpu
from benchmarks.common.cifar import VEHICLES
from benchmarks.quality import pretrain_recipes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_every_check_gives_figures_on_the_cpu(tmp_path):
    # the tests run anyway; compiling takes minutes here
    names = [name for name in gpu.CHECKS if name != "tests" and "compiled" not in name and "graphs" not in name]
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick", "--checks", *names]) == 0
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["check"] for line in found] == names
    assert all(len(line) > 3 for line in found)
    differences = [line["difference, sd"] for line in found if "difference, sd" in line]
    assert differences and max(differences) < 1e-5
    assert not [line for line in found if "error" in line]
    page = (tmp_path / "gpu.md").read_text()
    assert found[0]["environment"] in page and all(f"| {name} |" in page for name in names[1:])


def test_a_group_that_takes_too_long_is_an_error_and_the_next_one_runs(tmp_path, monkeypatch):
    machine, libraries = ({name: gpu.CHECKS[name]} for name in ("machine", "faiss beside torch"))
    monkeypatch.setattr(gpu, "GROUPS", [(0.01, machine), (120, libraries)])
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick"]) == 1
    first, second = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert first["error"] == "RuntimeError: not finished within 0.01 s, ended with -9"
    assert second["check"] == "faiss beside torch" and "error" not in second


# --- Ranking recipes and the long run, tried small on the CPU; ranking leaves the test set shut ---


@pytest.fixture
def cifar(tmp_path):
    draw = np.random.default_rng(0)
    for name in (*sorted(VEHICLES)[:2], "cat", "dog"):
        for part, count in (("train", 150), ("test", 12)):
            folder = tmp_path / "cifar" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (32, 32, 3), np.uint8) // (1 + (name in VEHICLES))
                Image.fromarray(pixels).save(folder / f"{number:04}.png")
    return tmp_path / "cifar"


@pytest.fixture
def all_labelled_late(monkeypatch):
    """CIFAR-10 has hundreds of hidden and labelled images of each class; these folders have fewer."""
    monkeypatch.setattr("benchmarks.common.cifar.HIDDEN", 100)
    monkeypatch.setattr("benchmarks.common.cifar.LABELLED", 50)


def test_candidates_are_ranked_without_the_test_set_and_only_once(cifar, tmp_path, capsys, all_labelled_late):
    for path in (cifar / "test").rglob("*.png"):
        path.write_bytes(b"no image")
    words = ["rank", str(cifar), str(tmp_path / "work"), "--quick", "--device", "cpu"]
    ranked = ["modern", "strong colours", "published, 0.06, four views of half the batch"]
    for _ in range(2):
        pretrain_recipes.main([*words, "--only", *ranked])
        shown = capsys.readouterr().out
        assert all(f"| {name} |" in shown for name in ranked) and "left" not in shown
    [results] = (tmp_path / "work").glob("recipes-*.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["candidate"] for row in rows] == ranked
    assert all(0 <= row["held-out AUC"] <= 1 for row in rows)


def test_a_published_rate_is_the_greatest_that_its_recipe_reaches():
    for name, rate in (("published, 0.12", 0.12), ("published, 0.06, four views of half the batch", 0.06)):
        settings = pretrain_recipes.CANDIDATES[name] | {"views": "natural"}
        recipe = dataclasses.replace(pretrain_recipes.BASE, **settings)
        assert max(recipe.learning_rate(step, 1000) for step in range(1000)) == pytest.approx(rate)


def test_the_long_run_stops_and_goes_on(cifar, tmp_path, capsys, all_labelled_late):
    words = ["run", str(cifar), str(tmp_path / "work"), "--quick", "--device", "cpu", "--candidate", "lr 0.12"]
    pretrain_recipes.main([*words, "--minutes", "1e-9"])
    assert "Not finished: step 1 of" in capsys.readouterr().out
    pretrain_recipes.main(words)
    assert "| imbnnpu |" in capsys.readouterr().out
