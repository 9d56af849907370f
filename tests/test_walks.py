import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "pucache"
WALKS = ["training.train_pu", "scoring.score", "retrieval.retrieve", "labels.read_labels"]


@pytest.mark.parametrize("module", WALKS)
def test_the_steps_that_a_front_module_names_are_there_in_this_order(module):
    front = importlib.import_module(f"pucache.{module}")
    steps = re.findall(r"^\d\. (.*(?:\n   .*)*)", front.__doc__, re.MULTILINE)
    assert len(steps) >= 4
    for name in re.findall(r"`([\w.]+)`", " ".join(steps)):
        assert has(name), f"{module} names {name}, which nothing of pucache is called"


def has(name):
    """Whether a function, class or method of this name is defined in pucache."""
    *owner, last = name.split(".")
    pattern = rf"(def|class) {last}\b|^{last}\b.*="
    files = [path for path in ROOT.rglob("*.py") if re.search(pattern, path.read_text(), re.MULTILINE)]
    return any(not owner or re.search(rf"class {owner[-1]}\b", path.read_text()) for path in files)
