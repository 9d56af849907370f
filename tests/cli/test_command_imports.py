"""Each command imports only the large packages that it uses."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.neighbours import with_neighbours
from helpers.planted import planted, write_cache

from pucache import PULinearClassifier
from pucache.cli.main import main
from pucache.neighbours.graph import cached_graph

LARGE = {"torch", "torchvision", "timm", "sklearn", "matplotlib", "faiss", "h5py", "ray", "openvino"}
RUN = f"""
import shlex, sys
from pucache.cli.main import main
for command in sys.argv[1:]:
    main(shlex.split(command), standalone_mode=False)
    print("imported:", *sorted({LARGE!r} & set(sys.modules)))
"""
REFUSE = f"""
import shlex, sys
from pucache.cli.main import main
for command in sys.argv[1:]:
    try:
        main(shlex.split(command), standalone_mode=False)
    except Exception as error:
        print("refused:", str(error).partition(";")[0])
    print("imported:", *sorted({LARGE!r} & set(sys.modules)))
"""
LABELS = "--positives positives.txt"
ALLOWED = {  # what a command may import, beside what those before it may
    "--help": set(),
    "cache-dir": set(),
    "evaluate scores.csv --truth truth.csv": set(),
    "info cache.h5": {"h5py"},
    "verify cache.h5 model.safetensors": {"h5py"},
    "pack cache.h5 --out packed.h5": {"h5py"},
    "import-embeddings X.npy imported.h5": {"h5py"},
    "export cache.h5 cache.parquet": {"h5py"},
    "labels cache.h5 truth.csv": {"h5py"},
    "score model.safetensors cache.h5 --out new.csv": {"h5py"},
    f"retrieve-positives cache.h5 {LABELS}": {"h5py"},
    f"retrieve-positives cache.h5 {LABELS} --model model.safetensors": {"h5py"},
    f"retrieve-positives cache.h5 {LABELS} --model with_neighbours.safetensors": {"h5py"},  # the graph is kept
    "score with_neighbours.safetensors cache.h5 --neighbours cache.h5 --out fused.csv": {"h5py"},
    **{f"{verb} --help": {"h5py"} for verb in sorted(main.commands)},
    f"train-pu cache.h5 {LABELS} --prior 0.3": {"h5py", "torch"},
    f"sweep-priors cache.h5 {LABELS} --priors 0.2 --seeds 1": {"h5py", "torch", "matplotlib"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imports")
    X, s, y = planted(120, labelled=20)
    cache = write_cache(folder / "cache.h5", X)
    np.save(folder / "X.npy", X)
    model = PULinearClassifier(prior=0.3, penalty=0.01, method="linear", device="cpu").fit(X, s)
    model.save(folder / "model.safetensors")
    with_neighbours(model, 2.0).save(folder / "with_neighbours.safetensors")
    cached_graph(cache, device="cpu")
    (folder / "positives.txt").write_text("".join(f"{key}\n" for key in cache.keys[np.flatnonzero(s)]))
    truth = [f"{key},{label}" for key, label in zip(cache.keys, y, strict=True)]
    (folder / "truth.csv").write_text("\n".join(["key,label", *truth]) + "\n")
    scores = [f"{key},{margin},0.5,1" for key, margin in zip(cache.keys, X[:, 0], strict=True)]
    (folder / "scores.csv").write_text("\n".join(["key,margin,posterior,label", *scores]) + "\n")
    return folder


def test_a_command_imports_only_what_it_uses(folder):
    process = [sys.executable, "-c", RUN, *ALLOWED]
    ended = subprocess.run(process, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    printed = [line for line in ended.stdout.splitlines() if line.startswith("imported:")]
    for command, line in zip(ALLOWED, printed, strict=True):
        assert set(line.split()[1:]) <= ALLOWED[command], command


TAKE_POSITIVES = [
    verb
    for verb, command in sorted(main.commands.items())
    if {"cache", "positives"} <= {parameter.name for parameter in command.params}
]
REFUSED = [f"{verb} cache.h5 --positives none.txt" for verb in TAKE_POSITIVES]


def test_a_list_that_is_no_file_is_refused_before_anything_large_is_imported(folder):
    process = [sys.executable, "-c", REFUSE, *REFUSED]
    ended = subprocess.run(process, cwd=folder, capture_output=True, text=True)
    assert ended.stdout.splitlines() == len(REFUSED) * ["refused: no such file: none.txt", "imported: h5py"], ended
