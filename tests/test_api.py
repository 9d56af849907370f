"""The public API: one function per command, resolved on first use."""

import ast
import importlib
import importlib.util
import inspect
import logging
import os
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers.command_line import ENCODER, save_world
from helpers.planted import planted, write_cache
from helpers.refusals import one_line

import pucache
from pucache import Labels, PULabels, devices
from pucache.cli.main import main
from pucache.devices import choose_device, choose_runtime, unusable_cuda
from pucache.seeds import drawn_seed

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_public_name_resolves_and_every_command_is_one():
    assert dir(pucache) == sorted(pucache.__all__)
    assert {name.replace("-", "_") for name in main.commands} - {"labels"} <= set(pucache.__all__)
    assert all(getattr(pucache, name) is not None for name in pucache.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pucache.nothing


def test_importing_pucache_imports_neither_torch_nor_h5py():
    code = "import pucache, sys; print(sorted({'torch', 'h5py', 'numpy', 'sklearn'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


INNER_MODULES = {  # with contracts of their own; everything else is reached by public names, `errors` and the commands
    "cache.checksums", "cache.hdf5", "cli.main", "encoders.spec", "errors", "estimates.calibration", "estimates.priors",
    "heads.objective", "heads.risks", "images.decoding", "reviewing.audit", "reviewing.log", "storage.atomic",
    "storage.tables",
}  # fmt: skip
OTHERS = 650  # names of other modules that tests import; the number may only fall


def test_tests_import_public_names_and_few_others():
    nodes = (
        (path, node)
        for path in Path(__file__).parent.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )
    imports = [(path, node) for path, node in nodes if isinstance(node, ast.ImportFrom)]
    modules = [
        (path, node.module.removeprefix("pucache."), node.names) for path, node in imports if "pucache." in node.module
    ]
    assert sum(len(names) for _, module, names in modules if module not in INNER_MODULES) <= OTHERS


# --- every function, with paths and with opened objects ----------------------------------------

TRAINING = {"prior": 0.2, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_world(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def cache(folder):
    weights = str(folder / "weights.safetensors")
    encoder = {"encoder": f"timm:{ENCODER}", "weights": weights, "device": "cpu", "runtime": "torch"}
    return pucache.embed(str(folder / "images"), str(folder / "cache.h5"), **encoder)


def test_embed_returns_the_opened_cache_and_takes_an_opened_source_and_encoder(folder, cache):
    assert isinstance(cache, pucache.EmbeddingCache) and len(cache) == 60
    weights = folder / "weights.safetensors"
    encoder = pucache.load_encoder(f"timm:{ENCODER}", weights=weights, device="cpu", like=cache.encoder)
    again = pucache.embed(pucache.open_source(folder / "images"), folder / "again.h5", encoder)
    assert list(again.keys) == list(cache.keys) and np.array_equal(again.X, cache.X)


@pytest.mark.parametrize("opened", [False, True])
def test_the_functions_of_a_search_take_paths_and_opened_objects(folder, cache, tmp_path, opened):
    rows, labels = cache if opened else str(folder / "cache.h5"), str(folder / "positives.txt")
    labels = pucache.read_labels(cache, labels) if opened else labels
    model = pucache.train_pu(rows, labels, **TRAINING)
    assert isinstance(model, pucache.PULinearClassifier)
    model.save(tmp_path / "model.safetensors")
    model = model if opened else str(tmp_path / "model.safetensors")
    ranking = pucache.retrieve_positives(rows, labels, model, k=5, device="cpu")
    assert len(ranking.keys) == 5 and all(key.startswith("red/") for key in ranking.keys)
    pucache.write_review_page(rows, ranking, tmp_path / "review.html")
    assert ranking.keys[0] in (tmp_path / "review.html").read_text()
    assert pucache.score(model, rows, str(tmp_path / "scores.csv")).rows == 60
    assert pucache.evaluate(str(tmp_path / "scores.csv"), str(folder / "truth.csv"))["auc"] > 0.9


def test_the_options_of_train_pu_are_those_of_the_classifier_with_its_defaults():
    taken = {name: one.default for name, one in inspect.signature(pucache.train_pu).parameters.items()}
    options = inspect.signature(pucache.PULinearClassifier).parameters
    expected = {("seed" if name == "random_state" else name): one.default for name, one in options.items()}
    del expected["pos_label"]  # labels of a cache are not text
    assert taken.items() >= expected.items() and "parameters" not in taken


@pytest.mark.parametrize("wrong", [None, 3, [None], np.zeros((2, 8, 8, 3))], ids=type)
def test_what_is_no_cache_source_encoder_or_model_is_refused_in_one_line(folder, cache, wrong):
    for takes_a_cache in (pucache.EmbeddingCache, pucache.info, pucache.verify):
        told = one_line(pucache.errors.CacheError, takes_a_cache, wrong)
        assert "expected a cache: a file, a folder, a URL, an opened cache, or a list" in told
    shards = partial(pucache.embed_shards, shards=2)
    for take, *out in ((pucache.embed, "x"), (shards, "x"), (pucache.pretrain, "x"), (pucache.open_source,)):
        told = one_line(ValueError, take, wrong, *out)
        assert re.search("expected a source of images .* write paths of images to a text file", told)
    assert "expected the name of an encoder" in one_line(ValueError, pucache.embed, folder, folder / "x.h5", wrong)
    for no_model in (wrong, cache):
        assert "expected a model" in one_line(pucache.errors.ModelError, pucache.score, no_model, cache)


@pytest.mark.parametrize("wrong", [3, [3], b"cache.h5", object()], ids=type)
def test_what_is_no_path_is_refused_in_one_line(folder, cache, wrong):
    model = pucache.train_pu(cache, "red/**", method="linear", **TRAINING)
    of_cache = [partial(take, cache) for take in (pucache.export, pucache.session_labels)]
    of_labels = [partial(take, cache, "red/**") for take in (pucache.report, pucache.write_labels)]
    others = [partial(pucache.embed, folder), partial(pucache.score, model, cache), partial(pucache.pack, [cache])]
    others += [pucache.audit, pucache.audit_concepts, partial(pucache.import_embeddings, cache.X)]
    for take in (*of_cache, *of_labels, *others, lambda given: pucache.evaluate([given], "truth.csv")):
        assert "expected a path or URL, got " in one_line(ValueError, take, wrong)


# --- Seeds of every function that draws -----------------------------------------------------------

X, S, _ = planted(120, labelled=30)
LINEAR = {"method": "linear", "penalty": 0.01}
CONCEPTS = Labels({"one": PULabels.of(S), "two": PULabels.of(S)})
DRAWERS = {
    "None": lambda: None,
    "RandomState": lambda: np.random.RandomState(3),
    "Generator": lambda: np.random.default_rng(3),
}


@pytest.fixture(scope="module")
def cache_of_seeds(tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp("seeds") / "c.h5", X)


def trained(cache, seed):
    return pucache.train_pu(cache, S, seed=seed, **LINEAR)


FUNCTIONS = {
    "train_pu": trained,
    "concepts": lambda cache, seed: pucache.train_pu(cache, CONCEPTS, seed=seed, **LINEAR)["one"],
    "fit": lambda cache, seed: pucache.PULinearClassifier(random_state=seed, **LINEAR).fit(X, S),
    "estimate_prior": lambda cache, seed: pucache.estimate_prior(cache, S, seed=seed),
    "sweep_priors": lambda cache, seed: pucache.sweep_priors(cache, S, priors=[0.3], seeds=[seed]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_what_draws_seeds_and_the_largest_one(cache_of_seeds, name):
    for seed in (np.random.default_rng(3), 2**64 - 1):
        assert FUNCTIONS[name](cache_of_seeds, seed), seed


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, "1", np.array([1, 2])], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_seeds_are_refused_in_one_line(cache_of_seeds, name, bad):
    assert "from 0 to 2^64 - 1" in one_line(ValueError, FUNCTIONS[name], cache_of_seeds, bad)


@pytest.mark.parametrize("kind", ["None", "RandomState", "Generator"])
def test_the_seed_that_was_drawn_is_in_the_result_and_repeats_it(cache_of_seeds, tmp_path, kind):
    model = trained(cache_of_seeds, DRAWERS[kind]())
    again = trained(cache_of_seeds, model.seed_)
    model.save(tmp_path / "m.safetensors")
    assert (again.coef_ == model.coef_).all() and again.seed_ == model.seed_
    assert pucache.PULinearClassifier.load(tmp_path / "m.safetensors").seed_ == model.seed_
    assert pucache.sweep_priors(cache_of_seeds, S, priors=[0.3], seeds=[DRAWERS[kind]()]).rows[0]["seed"] >= 0


def test_a_report_states_its_seed(cache_of_seeds, tmp_path):
    numbers = pucache.report(cache_of_seeds, S, tmp_path / "r.html", sample=20, seed=np.random.default_rng(3))
    assert numbers["seed"] == drawn_seed(np.random.default_rng(3))


# --- threads --------------------------------------------------------------------------------------


def variables(**given):
    """Environment of a command, as it is when the libraries are loaded."""
    code = (
        "from pucache.threads import set_thread_defaults; set_thread_defaults(); import os, json;"
        "names = ['OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'OPENBLAS_NUM_THREADS'];"
        "print(json.dumps([os.environ[name] for name in names]))"
    )
    unset = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS"}
    environ = {name: value for name, value in os.environ.items() if name not in unset} | given
    return subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True).stdout


def test_defaults_are_set_before_libraries_load_and_do_not_replace_what_is_set():
    assert variables() == f'["{devices.cores()}", "PASSIVE", "1"]\n'
    given = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE", "OPENBLAS_NUM_THREADS": "3"}
    assert variables(**given) == '["7", "ACTIVE", "3"]\n'


@pytest.mark.slow
def test_a_classifier_has_the_same_bits_for_any_number_of_threads():
    code = (
        "import hashlib, numpy as np; from helpers.planted import planted; from pucache import PULinearClassifier;"
        "X, s, _ = planted(2000, d=640, labelled=40);"
        "model = PULinearClassifier(device='cpu').fit(X, s);"
        "print(hashlib.sha256(model.coef_.tobytes() + repr(model.neighbours_).encode()).hexdigest(), model.method_)"
    )

    def digest(count):
        environment = {**os.environ, "OMP_NUM_THREADS": count, "PYTHONPATH": os.path.dirname(__file__)}
        environment.pop("OPENBLAS_NUM_THREADS", None)  # as where Python was started without pucache's commands
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert digest("1") == digest("2") == digest("3")


# --- Devices that are missing, unusable or full: one line each, and whether the CPU goes on -------

OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.81 GiB of which 1.10 GiB is "
    "free. Process 4711 has 120.00 GiB memory in use."
)
GB = 10**9
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_cuda(monkeypatch):
    """Let torch see no GPU, and say why when it is asked to use one."""

    def refuse(error):
        def init():
            raise error

        monkeypatch.setattr(torch.cuda, "init", init)
        warned = "CUDA initialization: " + str(error)  # as torch warns of all but a machine without a driver
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(warnings.warn(warned, stacklevel=2)))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    forget()
    yield refuse
    forget()


def forget():
    unusable_cuda.cache_clear()
    devices._warn_of_unusable_cuda.cache_clear()


def test_with_a_driver_too_old_the_cpu_goes_on_and_one_line_says_so_or_cuda_is_refused(no_cuda, caplog, recwarn):
    no_cuda(RuntimeError(OLD_DRIVER))
    assert [choose_device().type for _ in range(3)] == ["cpu"] * 3
    assert not recwarn.list
    assert caplog.messages == [f"the GPU cannot be used: {TOO_OLD}; going on with the CPU"]
    assert caplog.records[0].levelno == logging.WARNING
    for name in ("cuda", "cuda:1"):
        told = one_line(ValueError, choose_device, name)
        assert told == f"device {name} cannot be used: {TOO_OLD}; update the driver, or use the device cpu"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and a driver"),
        RuntimeError("No CUDA GPUs are available"),
        AssertionError("Torch not compiled with CUDA enabled"),
    ],
)
def test_a_machine_without_a_gpu_is_no_news(no_cuda, caplog, error):
    no_cuda(error)
    assert choose_device().type == "cpu" and not caplog.messages
    with pytest.raises(ValueError, match=r"^device cuda is not there \(0 CUDA devices seen\); use the device cpu$"):
        choose_device("cuda")


@pytest.mark.parametrize(("named", "expected"), [("cpu", "cpu"), ("auto", "cuda"), ("", "cuda")])
def test_auto_is_what_the_environment_says(monkeypatch, named, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("PUCACHE_DEVICE", named)
    assert choose_device().type == expected
    assert choose_device("cuda").type == "cuda" and choose_device(CPU) == CPU


@pytest.mark.parametrize(
    ("named", "said"),
    [("tpu", "unknown device 'tpu'; use auto, cpu, cuda or cuda:N"), ("cuda:7", "device cuda:7 is not there")],
)
def test_a_device_of_the_environment_that_is_not_there_is_one_line_that_names_it(monkeypatch, named, said):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("PUCACHE_DEVICE", named)
    with pytest.raises(ValueError, match=r"^PUCACHE_DEVICE: ") as raised:
        choose_device()
    assert said in str(raised.value) and choose_device("cpu") == CPU


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "device"),
    [
        (torch.OutOfMemoryError(FULL), "cuda:1, 2.00 GiB wanted"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), "cuda:0"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cuda:0"),
        (RuntimeError("Error in StandardGpuResources.cpp:530: alloc fail type TemporaryMemory"), "cuda:0"),
    ],
)
def test_a_command_on_a_full_device_ends_with_one_line(monkeypatch, error, device):
    @click.command("fail")
    def fail():
        raise error

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GB, 150 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * GB)
    monkeypatch.setitem(main.commands, "fail", fail)
    ended = CliRunner().invoke(main, ["fail"], prog_name="pucache")
    assert ended.exit_code == 1 and ended.stdout == "" and ended.stderr.count("\n") == 1
    told = f"Error: out of memory on {device}: 1.0 of 150.0 GB free, other processes hold 139.0 GB; "
    assert ended.stderr.startswith(told)


@pytest.mark.parametrize("name", ["", "tpu", "mps", "xpu", "meta", "cuda:-1", "cuda:x", "cpu,cuda"])
def test_an_unknown_device_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=f"^unknown device '{name}'; use auto, cpu, cuda or cuda:N$"):
        choose_device(name)


@pytest.mark.parametrize("installed", [False, True])
def test_auto_runtime_is_openvino_where_it_is_installed_and_the_cpu_is_used(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    chosen = [choose_runtime("auto", device) for device in (CPU, CUDA)]
    assert chosen == ["openvino" if installed else "torch", "torch"]
    with pytest.raises(ValueError, match=r"^openvino runs on the CPU here, not on cuda; "):
        choose_runtime("openvino", CUDA)
    with pytest.raises(ValueError, match=r"^unknown runtime 'tensorrt'; use auto, torch, openvino$"):
        choose_runtime("tensorrt", CPU)
    if not installed:
        with pytest.raises(ValueError, match=r"pip install .*\[openvino\]', or use --runtime torch$"):
            choose_runtime("openvino", CPU)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, 6),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "900000 100000"}, 6),
        ({}, 6),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)
def test_cores_are_those_the_process_is_bound_to_within_the_quota_of_its_container(monkeypatch, files, expected):
    def read(path):
        try:
            return files[str(path.relative_to("/sys/fs/cgroup"))] + "\n"
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr(Path, "read_text", read)
    assert devices.cores() == expected
