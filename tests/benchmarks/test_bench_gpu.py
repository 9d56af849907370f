"""The suite for a GPU: tried on the CPU, on the emulated device, and with slices that fail."""

import dataclasses
import json
import math
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda

from benchmarks.common import jpegs
from benchmarks.gpu import counts, embedding, heads, pretraining, results, retrieval, runner, suite
from benchmarks.gpu.page import page
from benchmarks.gpu.slices import QUICK, Bench, Figure, LeftOut, Slice, Unfinished

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
ROOT = Path(__file__).parents[2]
TINY = dataclasses.replace(QUICK, rows=300, dim=8, labelled=20, heads=2, epochs=2, queries=8)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def bench(tmp_path, device="cpu", **fields):
    return Bench(torch.device(device), TINY, tmp_path, **fields)


def check(figures):
    assert figures and all(math.isfinite(value) for figure in figures for value in figure.values), figures
    assert json.loads(json.dumps([dataclasses.asdict(figure) for figure in figures], default=float))


# --- slices ------------------------------------------------------------------------------------

SEARCHES = [one for one in retrieval.SLICES if one.name != "index of cells"]


@pytest.mark.parametrize("one", [*heads.SLICES, *SEARCHES], ids=lambda one: one.name)
def test_a_slice_is_measured_on_the_cpu(tmp_path, one):
    found = one.measure(bench(tmp_path))
    check(found)
    agreement = {figure.name: figure.values[0] for figure in found if "difference from the CPU" in figure.name}
    assert all(difference < 1e-5 for difference in agreement.values()), agreement


ON_DEVICE = (
    "limits",
    "sgd, one",
    "sgd, priors",
    "batch, one",
    "agreement: sgd, one",
    "agreement: batch",
    "plain",
    "exact",
)


@no_gpu
@pytest.mark.parametrize(
    "one", [one for one in (*heads.SLICES, *SEARCHES) if one.name.startswith(ON_DEVICE)], ids=lambda one: one.name
)
def test_a_slice_is_measured_on_the_emulated_device(tmp_path, one, monkeypatch):
    monkeypatch.setattr(heads, "PENALTY", 1e-2)  # converges soon
    with emulated_cuda(as_cpu=one.name.startswith("plain")):
        found = one.measure(bench(tmp_path, "cuda"))
    check(found)
    for figure in found:
        assert "difference from the CPU" not in figure.name or figure.values[0] < 0.02, figure


@pytest.mark.parametrize("one", embedding.SLICES, ids=lambda one: one.name)
def test_embedding_is_measured_on_the_cpu(tmp_path, one, monkeypatch):
    if "compile" in one.name:
        pytest.skip("compiling takes longer than all the others")
    monkeypatch.setattr(embedding, "forward_alone", lambda loaded: 100.0)
    at = bench(tmp_path)
    if "on the device" in one.name:
        with pytest.raises(LeftOut, match="needs a GPU"):
            one.measure(at)
        return
    check(one.measure(at))


def test_steps_of_pretraining_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.quality.pretrain.timed", lambda call, device, least=0: call() is None or 0.5)
    check(pretraining.step(bench(tmp_path), number=0, compiled=False))


ROW = {"minutes": 9.5, "heads": {head: {"accuracy": 0.95, "f1": 0.94, "auc": 0.99} for head in ("imbnnpu", "nnpu")}}


def test_the_authors_task_goes_on_until_it_is_finished(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(pretraining, "Task", lambda folder, work, small: work)
    monkeypatch.setattr(
        pretraining, "authors_row", lambda *task, **how: tried.append(how) or ((len(tried) > 1 and ROW) or None)
    )
    at = bench(tmp_path, data=tmp_path, until=time.monotonic() + 60)
    with pytest.raises(Unfinished, match="goes on in the next run"):
        pretraining.authors(at, number=0, loss="debiased")
    found = pretraining.authors(at, number=0, loss="debiased")
    assert {figure.name: figure.values[0] for figure in found}["test_resnet, debiased, nnpu: f1"] == pytest.approx(94)
    assert all(0.9 < how["minutes"] <= 1 for how in tried)
    with pytest.raises(LeftOut, match="--data DIR"):
        pretraining.authors(bench(tmp_path), number=0, loss="debiased")


def test_images_in_tar_files_are_unpacked_once_outside_the_data(tmp_path):
    data, work = tmp_path / "data", tmp_path / "work"
    for folder in (data, work, tmp_path / "train" / "cat"):
        folder.mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"image")
    with tarfile.open(data / "cifar-1.tar", "w") as tar:
        tar.add(tmp_path / "train", "train")
    for _ in range(2):
        found = pretraining.unpacked(data, work)
        assert (found / "train/cat/1.png").read_bytes() == b"image" and found.parent == work
    assert pretraining.unpacked(tmp_path, work) == tmp_path


def test_jpeg_files_are_the_same_whatever_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(jpegs, "CHUNK", 2)
    monkeypatch.setattr(jpegs, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(count))
    for name, processes in (("one", 1), ("two", 2)):
        jpegs.write_jpegs(tmp_path / name, 3, processes=processes)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two and len(set(one.values())) == 3


@no_gpu
def test_counts_have_the_budgets_of_the_tests():
    found = counts.embedding("fp32")
    assert found[0].values[0] <= found[0].target, found
    assert f"| {found[0].name} | " in counts.page(found)


# --- the command line --------------------------------------------------------------------------


def fails(at):
    raise ArithmeticError("no figure")


def lacks(at):
    try:
        import a_package_that_nobody_has  # noqa: F401
    except ModuleNotFoundError as error:
        raise RuntimeError("wrapped") from error


def goes_on(at):
    raise Unfinished("it goes on in the next run")


def succeeds(at):
    return [Figure("answer", (40.0, 42.0, 44.0), target=50.0, limit=21.0, note="noted")]


SLICES = {"fails": fails, "lacks": lacks, "goes on": goes_on, "succeeds": succeeds}


@pytest.fixture
def fake(monkeypatch):
    """Let the suite have one group with these slices."""

    def make(*names):
        module = SimpleNamespace(SLICES=tuple(Slice(name, SLICES[name]) for name in names))
        monkeypatch.setitem(runner.GROUPS, "heads", "fake")
        monkeypatch.setitem(sys.modules, "fake", module)
        return module

    return make


def run(tmp_path, *words, one_process=True):
    folders = [str(tmp_path / "out"), "--work", str(tmp_path / "work"), *["--one-process"] * one_process]
    return suite.main([*folders, "--device", "cpu", "--quick", "--groups", "heads", *words])


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / results.NAME).read_text().splitlines()]


def test_a_slice_that_fails_prints_its_traceback_and_the_others_go_on(tmp_path, fake, capsys):
    fake("fails", "lacks", "goes on", "succeeds")
    assert run(tmp_path) == 1
    printed = capsys.readouterr()
    assert "ArithmeticError: no figure" in printed.err and "in fails" in printed.err
    assert "heads, lacks: left out, no a_package_that_nobody_has\n" in printed.out
    (row,) = lines(tmp_path)
    assert row["slice"] == "succeeds" and row["commit"] == results.state() and row["versions"]["torch"]
    assert row["seeds"] == [0] and row["hardware"]["cores"] >= 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gpu.md", "results.jsonl"]
    text = (tmp_path / "out" / "gpu.md").read_text()
    assert "| answer | 42 s (40 to 44, 3) | at most 50 s | 21 s | 50% | noted |" in text
    assert "- heads, fails: failed, ArithmeticError" in text and "- heads, goes on: it goes on" in text


def test_slices_that_are_missing_fail_nothing(tmp_path, fake):
    fake("lacks", "goes on", "succeeds")
    assert run(tmp_path) == 0


def test_what_was_measured_of_a_commit_is_not_measured_again(tmp_path, fake, monkeypatch):
    fake("succeeds")
    assert [run(tmp_path), run(tmp_path)] == [0, 0] and len(lines(tmp_path)) == 1
    assert run(tmp_path, "--rows", "700") == 0 and len(lines(tmp_path)) == 2
    monkeypatch.setattr(results, "state", lambda: "another commit")
    assert run(tmp_path) == 0 and [row["commit"] for row in lines(tmp_path)][2] == "another commit"
    assert (tmp_path / "out" / "gpu.md").read_text().count("| answer |") == 1


def test_no_slice_is_begun_without_the_time_for_it(tmp_path, fake, capsys):
    fake("succeeds")
    assert run(tmp_path, "--minutes", "0.5") == 0
    assert "heads, succeeds: no time left for it\n" in capsys.readouterr().out
    assert not (tmp_path / "out" / results.NAME).exists()


def test_slices_are_chosen_by_a_word(tmp_path, fake):
    fake("fails", "succeeds")
    assert run(tmp_path, "--only", "succ") == 0


def test_a_group_that_cannot_be_imported_is_left_out_or_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(runner.GROUPS, "heads", "a_package_that_nobody_has")
    monkeypatch.setitem(runner.GROUPS, "tests", "benchmarks.gpu.nowhere")
    assert run(tmp_path, "--groups", "heads", "tests") == 1
    printed = capsys.readouterr().out
    assert (
        "heads: left out, no a_package_that_nobody_has\n" in printed
        and "tests: failed, ModuleNotFoundError\n" in printed
    )


def breaks(at):
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_a_device_that_takes_no_more_work_ends_the_process(tmp_path, fake, monkeypatch):
    monkeypatch.setitem(SLICES, "breaks", breaks)
    fake("breaks", "succeeds")
    with pytest.raises(SystemExit) as ended:
        run(tmp_path)
    assert ended.value.code == runner.BROKEN
    assert run(tmp_path, "--skip", "breaks") == 0 and len(lines(tmp_path)) == 1


@pytest.mark.parametrize("code, problem", [(-11, "failed, its process ended with -11"), (runner.BROKEN, None)])
def test_a_process_that_dies_is_followed_by_one_that_goes_on_behind(tmp_path, monkeypatch, code, problem):
    commands = []

    def die(command, **options):
        commands.append(command)
        assert "benchmarks/gpu/start" in options["env"]["PYTHONPATH"]
        if len(commands) < 3:
            (tmp_path / "work" / "begun.txt").write_text(f"slice {len(commands)}")
        return SimpleNamespace(returncode=code if len(commands) < 3 else 0)

    monkeypatch.setattr(suite, "subprocess", SimpleNamespace(run=die))
    assert run(tmp_path, one_process=False) == (problem is not None)
    assert [command[command.index("--skip") + 1 :] for command in commands] == [[], ["slice 1"], ["slice 1", "slice 2"]]
    text = (tmp_path / "out" / "gpu.md").read_text()
    assert problem is None or f"- heads, slice 2: {problem}" in text


def test_a_process_that_dies_before_its_first_slice_is_not_tried_for_ever(tmp_path, monkeypatch):
    died = SimpleNamespace(run=lambda command, **options: SimpleNamespace(returncode=-9))
    monkeypatch.setattr(suite, "subprocess", died)
    assert run(tmp_path, one_process=False) == 1


def test_targets_are_judged_at_the_full_size_on_a_gpu():
    figure = dataclasses.asdict(Figure("sgd", (0.6,), target=0.5))
    row = {"group": "heads", "figures": [figure], "hardware": {"driver": "580"}, "where": "Here.", "commit": "c"}
    size = dataclasses.asdict(Bench(torch.device("cpu"), QUICK, Path()).size)
    quick = page([row | {"device": "cuda", "size": size}], command="c")
    full = page([row | {"device": "cuda", "size": size | {"rows": 33_000, "dim": 2048}}], command="c")
    assert "at most 0.5 s |" in quick and "not those of the targets" in quick
    assert "at most 0.5 s: **missed** |" in full and "Here. Driver 580." in full


# --- a bare checkout ---------------------------------------------------------------------------

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("faiss", "timm", "h5py", "click"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Missing())
from benchmarks.gpu import suite
print("exit", suite.main(sys.argv[1:]))
import pucache
print("pucache", pucache.__file__)
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout of its own, of which nothing is installed."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("pucache", "cli", "benchmarks", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.slow
def test_in_a_bare_checkout_slices_of_missing_packages_are_left_out(checkout, tmp_path):
    out = tmp_path / "out"
    words = f"{out} --one-process --device cpu --quick --epochs 2 --work {tmp_path / 'work'} --only agreement:"
    command = [sys.executable, "-c", WITHOUT, *words.split(), "--groups", "heads", "retrieval", "embedding"]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    printed = ended.stdout.splitlines()
    assert "exit 0" in printed and f"pucache {checkout}/pucache/__init__.py" in printed, ended.stderr
    assert "heads, agreement: train_pu: left out, no h5py" in printed and "embedding: left out, no timm" in printed
    measured = {json.loads(line)["slice"] for line in (out / "results.jsonl").read_text().splitlines()}
    assert "agreement: sgd, one head" in measured and "agreement: batch, many heads" in measured


def test_the_command_line_of_a_bare_checkout_is_its_own(checkout):
    code = "from benchmarks.gpu import checkout; print(checkout.environment()['PYTHONPATH'])"
    path = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True).stdout.strip()
    code = "import pucache.cli.options as options; print(options.__file__)"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd="/", env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.stdout.strip() == f"{checkout}/cli/options.py", ended.stderr


def test_without_git_the_sources_name_the_state(monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "")
    assert results.state().startswith("sources-") and results.state() == results.state()


def test_a_repository_around_a_checkout_does_not_name_its_state(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "checkout").mkdir()
    monkeypatch.setattr("benchmarks.common.environment.HERE", tmp_path / "checkout")
    assert results.commit() == "" and results.state().startswith("sources-")


def test_planted_rows_can_be_told_apart():
    at = Bench(torch.device("cpu"), TINY, Path())
    assert at.X.shape == (300, 8) and at.X.dtype == np.float16 and at.s.sum() == min(20, at.y.sum() // 2)
    assert heads.area(at.X[:, 0].astype(float), at.y) > 0.5
