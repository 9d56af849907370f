"""Each command imports only the large packages that it uses; refusals have imported at most scipy and h5py."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import run

from pucache import EmbeddingCache
from pucache.cli.main import main
from pucache.neighbours.graph import cached_graph

LARGE = {"torch", "torchvision", "timm", "sklearn", "matplotlib", "faiss", "h5py", "ray", "openvino", "scipy"}
RUN = f"""
import shlex, sys
from pucache.cli.main import main
for command in sys.argv[1:]:
    try:
        main(shlex.split(command), standalone_mode=False)
    except Exception as error:
        print("refused:", command.split()[0], str(error).partition(";")[0])
    print("imported:", *sorted({LARGE!r} & set(sys.modules)))
"""
LABELS = "--positives positives.txt"
TAKE_POSITIVES = [
    verb
    for verb, command in sorted(main.commands.items())
    if {"cache", "positives"} <= {parameter.name for parameter in command.params}
]
SMALL = {"h5py", "scipy"}  # what a model takes
ALLOWED = {  # what a command may import, beside what those before it may
    "--help": set(),
    "cache-dir": set(),
    "evaluate scores.csv --truth truth.csv": set(),
    "info cache.h5": {"h5py"},
    "pack cache.h5 --out packed.h5": {"h5py"},
    "import-embeddings X.npy imported.h5": {"h5py"},
    "export cache.h5 cache.parquet": {"h5py"},
    "labels cache.h5 truth.csv": {"h5py"},
    f"retrieve-positives cache.h5 {LABELS}": {"h5py"},
    "verify cache.h5 model.safetensors": SMALL,
    "score model.safetensors cache.h5 --out new.csv": SMALL,
    f"retrieve-positives cache.h5 {LABELS} --model model.safetensors": SMALL,
    f"retrieve-positives cache.h5 {LABELS} --model with_neighbours.safetensors": SMALL,  # the graph is kept
    "score with_neighbours.safetensors cache.h5 --neighbours cache.h5 --out fused.csv": SMALL,
    **{f"{verb} --help": SMALL for verb in sorted(main.commands)},
    **{f"{verb} cache.h5 --positives none.txt": SMALL for verb in TAKE_POSITIVES},
    "pretrain nowhere run": SMALL,
    "pretrain nowhere run --preview views.png": SMALL,
    f"train-pu cache.h5 {LABELS} --prior 0.3": {*SMALL, "torch"},
    f"sweep-priors cache.h5 {LABELS} --priors 0.2 --seeds 1": {*SMALL, "torch", "matplotlib"},
}


@pytest.fixture
def folder(indexed):
    cache = EmbeddingCache(indexed / "cache.h5")
    cached_graph(cache, device="cpu")
    np.save(indexed / "X.npy", cache.matrix[:])
    run("score {f}/model.safetensors {f}/cache.h5 --out {f}/scores.csv", f=indexed)
    return indexed


def test_a_command_imports_only_what_it_uses(folder):
    process = [sys.executable, "-c", RUN, *ALLOWED]
    ended = subprocess.run(process, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    refused = [line.removeprefix("refused: ") for line in told if line.startswith("refused:")]
    missing = ["pretrain no such source: nowhere"] * 2
    assert refused == [*(f"{verb} no such file: none.txt" for verb in TAKE_POSITIVES), *missing]
    for command, line in zip(ALLOWED, (line for line in told if line.startswith("imported:")), strict=True):
        assert set(line.split()[1:]) <= ALLOWED[command], command


@pytest.mark.parametrize("verb", ["embed", "pretrain"])
def test_commands_on_images_begin_without_what_trains(verb):
    code = f"import pucache.cli.{verb}, sys; print('pucache.training' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
