"""The script for a GPU, tried on the CPU: each check gives figures."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import gpu
from benchmarks.common.cifar import VEHICLES
from benchmarks.quality import pretrain_recipes
from benchmarks.quality.pretrain_recipes import VIEWS, trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_every_check_gives_figures_on_the_cpu(tmp_path):
    names = [name for name in gpu.CHECKS if "graphs" not in name]  # compiling takes minutes here
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick", "--checks", *names]) == 0
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["check"] for line in found] == names
    assert all(len(line) > 3 for line in found)
    assert min(line["correlation"] for line in found if "correlation" in line) > 0.999
    assert not [line for line in found if "error" in line]
    page = (tmp_path / "gpu.md").read_text()
    assert found[0]["environment"] in page and all(f"| {name} |" in page for name in names[1:])


def test_a_group_that_takes_too_long_is_an_error_and_the_next_one_runs(tmp_path, monkeypatch):
    machine, ranking = ({name: gpu.CHECKS[name]} for name in ("machine", "ranking, a million rows"))
    monkeypatch.setattr(gpu, "GROUPS", [(0.01, machine), (120, ranking)])
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick"]) == 1
    first, second = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert first["error"] == "RuntimeError: not finished within 0.01 s, ended with -9"
    assert second["check"] == "ranking, a million rows" and "error" not in second


# --- Ranking recipes and the long run, tried small on the CPU ---


@pytest.fixture(autouse=True)
def settings_of_the_script(monkeypatch):
    """What `pretrain_recipes.main` sets for its process is of no other test."""
    monkeypatch.setattr(trainer, "COMPILING_REPAYS", trainer.COMPILING_REPAYS)
    monkeypatch.setitem(VIEWS, "plain", ())


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


def test_a_second_slice_goes_on_without_the_test_set_and_the_long_run_of_the_best_goes_on(
    cifar, tmp_path, capsys, all_labelled_late
):
    work, first, second = tmp_path / "work", "modern", "published, 0.06, four views of half the batch"

    def shown(what, *words):
        pretrain_recipes.main([what, str(cifar), str(work), "--quick", "--device", "cpu", *words])
        return capsys.readouterr().out

    assert shown("rank", "--only", first).startswith("Yardstick, 400 images, 48 test images: kNN top-1 ")
    opened = {path: path.read_bytes() for path in (cifar / "test").rglob("*.png")}
    for path in opened:
        path.write_bytes(b"no image")
    text = shown("rank", "--only", first, second)
    assert text.startswith("Yardstick") and "0 of 2 candidates are left" in text
    [results] = work.glob("recipes-*.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["candidate"] for row in rows] == [first, second]
    assert all(0 <= row["held-out AUC"] <= 1 for row in rows)
    for path, content in opened.items():
        path.write_bytes(content)
    assert "Not finished: step 1 of" in shown("run", "--minutes", "1e-9")
    assert "| imbnnpu |" in shown("run")


def test_a_long_run_of_a_candidate_that_is_not_ranked_is_refused(cifar, tmp_path, capsys):
    with pytest.raises(SystemExit):
        pretrain_recipes.main(["run", str(cifar), str(tmp_path), "--quick", "--candidate", "modern"])
    assert "the candidate is not ranked yet; run `rank`" in capsys.readouterr().err


def test_weighted_neighbours_vote_as_one_by_one():
    draw = np.random.default_rng(0)
    X, y, test = draw.standard_normal((300, 5)), draw.integers(0, 4, 300), draw.standard_normal((80, 5))
    votes = []
    for row in test:
        cosine = X @ row / np.linalg.norm(X, axis=1) / np.linalg.norm(row)
        nearest = np.argsort(-cosine)[:10]
        votes.append(np.bincount(y[nearest], np.exp(cosine[nearest] / 0.1), minlength=4).argmax())
    assert pretrain_recipes.knn_accuracy(X, y, test, np.array(votes)) == 1.0
    assert 0.1 < pretrain_recipes.knn_accuracy(X, y, test, draw.integers(0, 4, 80)) < 0.5


def test_a_published_rate_is_the_greatest_that_its_recipe_reaches():
    for name, rate in (("published, 0.12", 0.12), ("published, 0.06, four views of half the batch", 0.06)):
        settings = pretrain_recipes.CANDIDATES[name] | {"views": "natural"}
        recipe = dataclasses.replace(pretrain_recipes.BASE, **settings)
        assert max(recipe.learning_rate(step, 1000) for step in range(1000)) == pytest.approx(rate)
