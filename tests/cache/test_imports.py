"""Commands that need no network never import torch, which takes seconds."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.planted import planted, write_cache

from pucache.pu.classifier import PULinearClassifier

HEAVY = ("torch", "torchvision", "timm", "sklearn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cache, and a model with all that its file can hold."""
    folder = tmp_path_factory.mktemp("files")
    write_cache(folder / "cache.h5", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float16))
    X, s, _ = planted(200, d=4, labelled=40)
    PULinearClassifier(draws=2, device="cpu").fit(X, s).save(folder / "model.safetensors")
    return folder


def heavy_imports(statement, folder):
    """Heavy packages that are loaded after a statement has run in a new interpreter."""
    code = f"import sys\n{statement}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "cache.h5"],
        ["verify", "cache.h5", "model.safetensors"],
        ["pack", "cache.h5", "--out", "packed.h5"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_on_caches_and_models_imports_neither_torch_nor_scikit_learn(folder, arguments):
    statement = f"from pucache.cli.main import main; main({arguments!r}, standalone_mode=False)"
    assert heavy_imports(statement, folder) == "[]"


@pytest.mark.parametrize(
    "statement",
    [
        "import pucache; pucache.info('cache.h5'); pucache.verify(['cache.h5', 'model.safetensors'])",
        "import pucache; pucache.pack('cache.h5', 'packed.h5'); pucache.EmbeddingCache('packed.h5').verify()",
        "from pucache.cache import destination, remote, verification",
        "from pucache.cache.interchange import exporting, importing",
    ],
)
def test_the_library_reads_caches_without_torch(folder, statement):
    assert heavy_imports(statement, folder) == "[]"


@pytest.mark.slow
def test_a_heavy_import_would_be_noticed(folder):
    assert heavy_imports("import sklearn", folder) == "['sklearn']"
