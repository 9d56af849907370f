import contextlib
import math
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass

import filelock
import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from helpers import command_line
from helpers.hangs import HANG_SECONDS
from helpers.slow import slow
from helpers.started import Started, Strike, torchrun_says
from PIL import Image

from pucache.encoders import pretrained_file
from pucache.pretraining import network, trainer

pytestmark = pytest.mark.usefixtures("one_thread")

RED, REST, BATCH, EPOCHS = 10, 23, 8, 4
STEPS = EPOCHS * ((RED + REST) // BATCH)
NETWORK = ("--backbone", "test_resnet", "--size", 16, "--device", "cpu", "--workers", 0)
SMALL = (*NETWORK, "--batch-size", BATCH, "--epochs", EPOCHS, "--precision", "fp32")


def save_images(folder, count, colour, side=16):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        coarse = np.random.default_rng((number, *colour)).normal(colour, 60, (4, 4, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(coarse).resize((side, side), Image.Resampling.NEAREST).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    save_images(folder / "red", RED, (200, 60, 60))
    save_images(folder / "rest", REST, (60, 80, 190))
    return folder


def run(*arguments, code=0):
    """Run one command in this process."""
    return command_line.run(shlex.join(map(str, arguments)), code)


def run_json(*arguments):
    return command_line.run_json(shlex.join(map(str, arguments)))


def refused(*arguments, code=1):
    return command_line.refused(shlex.join(map(str, arguments)), code)


def table(folder):
    """The log, but for how fast it went."""
    rows = command_line.table(folder / "log.csv")
    return [{name: text for name, text in row.items() if name != "images_per_second"} for row in rows]


def outcome(folder):
    """All that a run must come to again: encoder, last checkpoint and log."""
    last = max((folder / "checkpoints").glob("*.safetensors"))
    return (folder / "encoder.safetensors").read_bytes(), last.name, last.read_bytes(), table(folder)


@pytest.fixture(scope="module")
def undisturbed(photos, tmp_path_factory, one_thread):
    """The folder of a whole run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run("pretrain", photos, folder, *SMALL)
    return folder


# --- a run -------------------------------------------------------------------------------------


def test_a_run_leaves_an_encoder_checkpoints_and_a_log_and_once_finished_it_is_left_alone(undisturbed, photos):
    folder, rows = undisturbed, table(undisturbed)
    names = {".lock", "run.json", "finished.json", "log.csv", "encoder.safetensors", "checkpoints"}
    assert {path.name for path in folder.iterdir()} == names
    assert [int(row["step"]) for row in rows] == [0, *range(4, STEPS + 1, 4)]
    assert rows[0]["loss"] == "" and all(float(row["rank"]) > 1 for row in rows)
    assert all(math.isfinite(float(row[name])) for row in rows[1:] for name in row if name != "probe")
    assert pretrained_file.read(folder)[1].steps == STEPS
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name not in (".lock", "run.json")}
    said = run("pretrain", photos, folder, *SMALL)
    assert "it was finished before; nothing was left to do" in said.stdout and f"{STEPS} of {STEPS}" in said.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_a_finished_run_has_lost_is_made_again(photos, tmp_path):
    how = ("pretrain", photos, tmp_path / "run", *SMALL, "--epochs", 1)
    told = run_json(*how)
    before = outcome(tmp_path / "run")
    for lost in ("encoder.safetensors", "finished.json"):
        (tmp_path / "run" / lost).unlink()
        again = run_json(*how)
        assert outcome(tmp_path / "run") == before and not (tmp_path / "run" / "images.u8").exists()
        assert again["loss"] == pytest.approx(told["loss"], abs=1e-4) and again["steps"] == told["steps"]


def test_a_preview_is_drawn_and_nothing_trained(photos, tmp_path):
    said = run("pretrain", photos, tmp_path / "run", *SMALL, "--preview", tmp_path / "views.png")
    assert "drew 8 images" in said.stdout
    with Image.open(tmp_path / "views.png") as sheet:
        assert sheet.format == "PNG" and sheet.size == (7 * 100 + 4, 8 * 100 + 4), "each of 8 images and its 6 views"
        assert len(np.unique(np.asarray(sheet))) > 100
    assert [path.name for path in tmp_path.iterdir()] == ["views.png"]


# --- going on ----------------------------------------------------------------------------------


STEP, SAVE, APPEND = (
    f"pucache.pretraining.{name}"
    for name in ("train_step.Training.step", "run_folder.RunFolder.save", "run_folder.RunFolder.append")
)


def newest(folder):
    """Number of the last checkpoint, 0 without one."""
    return max((int(path.stem) for path in (folder / "checkpoints").glob("*.safetensors")), default=0)


@dataclass(frozen=True)
class Saving:
    """A process that saves every so many seconds, and that a signal may strike."""

    seconds: float
    strike: Strike | None = None

    def prepare(self):
        trainer.SAVE_EVERY = self.seconds
        if self.strike is not None:
            self.strike.prepare()


def run_struck(photos, folder, log, struck, code):
    """Run a command that saves after each step and that one signal strikes; gives it, ended."""
    with Started(["pretrain", photos, folder, *SMALL], log, strike=Saving(0, struck)) as command:
        assert command.wait() == code, command.stderr
    return command


# where it is killed, and the step from which it then has to go on
KILLS = {
    "as the images are decoded": (("os.replace", 1, "images.u8"), 0),
    "in the first step": ((STEP, 1), 0),
    "before the first checkpoint has its name": (("os.replace", 1, "0000000001."), 0),
    "between encoder and checkpoint": ((SAVE, 3), 2),
    "before the encoder has its name": (("os.replace", 3, "encoder."), 4),
    "with a checkpoint just begun": (("pathlib.Path.open", 1, ".0000000006."), 5),
    "with a checkpoint too many": (("os.replace", 1, "0000000008."), 8),
    "with a row of the log too many": ((APPEND, 1), 11),
}


@pytest.mark.slow
def test_a_run_that_is_killed_ends_in_the_same_bytes(photos, undisturbed, tmp_path):
    folder, step = tmp_path / "run", 0
    for number, place in enumerate(KILLS):
        (function, *call), kept = KILLS[place]
        after = place.endswith(("just begun", "too many"))
        struck = Strike(signal.SIGKILL, function, *call, after=after)
        command = run_struck(photos, folder, tmp_path / str(number), struck, -signal.SIGKILL)
        assert command.steps[:1] in ([], [step]) and newest(folder) == kept, place
        step = kept
    assert run_struck(photos, folder, tmp_path / "last", None, 0).steps == list(range(step, STEPS))
    assert outcome(folder) == outcome(undisturbed)
    assert {path.name for path in folder.rglob("*")} == {path.name for path in undisturbed.rglob("*")} | {
        f"{STEPS - 1:010}.safetensors"
    }


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), slow(signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_loses_nothing(number, code, photos, undisturbed, tmp_path, monkeypatch):
    # though nothing is saved between: as images are decoded, in a step, in the last save
    for place, step in [(("os.replace", 1, "images.u8"), 0), ((STEP, 6), 6), ((SAVE, 1), STEPS)]:
        with monkeypatch.context() as patch:
            patch.setattr(place[0], pkgutil.resolve_name(place[0]))  # put back at the end
            patch.setattr(trainer, "SAVE_EVERY", 1e6)
            Strike(number, *place).prepare()
            ended = run("pretrain", photos, tmp_path / "run", *SMALL, code=code)
        assert "it goes on from what is on disk" in ended.stderr and newest(tmp_path / "run") == step
    run("pretrain", photos, tmp_path / "run", *SMALL)
    assert outcome(tmp_path / "run") == outcome(undisturbed)


def sliced(photos, folder, count=1, *how):
    for _ in range(count):
        said = run("pretrain", photos, folder, *SMALL, "--minutes", 1e-9, *how)
    return said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--batch-size", 4), "batch_size 8 (now 4)"),
        (("--seed", 1), "seed 0 (now 1)"),
        (("--size", 80), "size 16 (now 80)"),  # its stem stays that of the run
    ],
)
def test_a_run_of_another_configuration_is_refused(changed, words, photos, undisturbed):
    before = outcome(undisturbed)
    told = refused("pretrain", photos, undisturbed, *SMALL, *changed)
    assert "another configuration" in told and words in told and told.count("(now") == 1
    assert outcome(undisturbed) == before


def test_a_run_of_0_4_with_another_stem_for_its_size_goes_on_with_it(photos, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(network, "SMALL_VIEWS", 0)  # where --stem standard was
        sliced(photos, tmp_path / "run")
    run("pretrain", photos, tmp_path / "run", *SMALL)
    assert pretrained_file.read(tmp_path / "run")[1].stem == "standard" and newest(tmp_path / "run") == STEPS


# --- what goes wrong ---------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_good(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SAVE_EVERY", 0)
    # the penalty on the weights, times such a rate, makes them grow at each step
    how = (*NETWORK, "--batch-size", 32, "--epochs", 40, "--precision", "fp32", "--lr", 5e5)
    told = refused("pretrain", photos, tmp_path / "run", *how)
    kept = int(re.search(r"not finite|is (nan|inf)", told) and re.search(r"after step (\d+) is kept", told)[1])
    assert int(re.search(r"at step (\d+) of 40", told)[1]) > kept > 0 and "lower --lr" in told
    newest = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    assert int(newest.stem) == kept and pretrained_file.read(tmp_path / "run")[1].steps == kept
    tensors = safetensors.torch.load_file(newest)
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert refused("pretrain", photos, tmp_path / "run", *how) == told


def test_a_collapse_is_said(photos, tmp_path):
    nothing = {name: torch.zeros_like(tensor) for name, tensor in timm.create_model("test_resnet").state_dict().items()}
    safetensors.torch.save_file(nothing, tmp_path / "nothing.safetensors")
    how = (*SMALL, "--epochs", 1, "--size", 80, "--weights", tmp_path / "nothing.safetensors")
    said = run("pretrain", photos, tmp_path / "run", *how)
    assert "have collapsed: the network tells no images apart" in said.stdout


WRONG = {
    "a batch of one": (("--batch-size", 1), 2, "at least 2"),
    "fewer images than a batch": (("--batch-size", 64), 2, "33 images are fewer than a batch of 64"),
    "no temperature": (("--temperature", 0), 2, "above 0"),
    "certainty": (("--tau-plus", 1), 2, "below 1"),
    "a decay that is below nothing": (("--weight-decay", -1), 2, "weight decay must not be below 0"),
    "parts that are not equal": (("--accumulate", 3), 2, "3 equal parts"),
    "a rate of nothing": (("--lr", 0), 2, "above 0"),
    "an unknown network": (("--backbone", "resnet999"), 2, "no model called 'resnet999'"),
    "weights that are not there": (("--weights", "missing.safetensors"), 1, "no such weights"),
    "unknown positives": (("--positives", "green/*"), 1, "green"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_done_is_refused_and_leaves_no_run(case, photos, tmp_path):
    changed, code, words = WRONG[case]
    assert words in refused("pretrain", photos, tmp_path / "run", *SMALL, *changed, code=code)
    run_files = {path.name for path in (tmp_path / "run").glob("*")} if (tmp_path / "run").exists() else set()
    assert run_files <= {".lock"}


def test_images_that_cannot_be_used_are_listed_and_left_out(tmp_path):
    save_images(tmp_path / "photos", 10, (90, 90, 90))
    save_images(tmp_path / "photos" / "tiny", 2, (90, 90, 90), side=2)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
    command = ("pretrain", tmp_path / "photos", tmp_path / "run", *SMALL, "--epochs", 1)
    said = run(*command).stdout
    assert "on 10 images" in said and "failed: 'broken.jpg'" in said and "too small for the crop" in said
    told = run_json(*command)  # once more, when all is done
    assert set(told["failures"]) == {"broken.jpg", "tiny/000.png", "tiny/001.png"} and told["images"] == 10


def test_a_disk_that_is_full_when_saving_costs_only_time(photos, undisturbed, tmp_path, small_disk, monkeypatch):
    sliced(photos, tmp_path / "run")
    monkeypatch.setattr(trainer, "SAVE_EVERY", 0)
    with small_disk(1 << 20):
        assert "encoder.safetensors" in refused("pretrain", photos, tmp_path / "run", *SMALL)
    assert [path.stem for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["0000000001"]
    run("pretrain", photos, tmp_path / "run", *SMALL)
    assert outcome(tmp_path / "run") == outcome(undisturbed)


# --- several processes -------------------------------------------------------------------------


@pytest.mark.slow
def test_torchrun_writes_what_one_process_does(photos, undisturbed, tmp_path):
    command = ["-m", "pucache", "pretrain", photos, tmp_path / "run", *SMALL, "--epochs", "2"]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("next: pucache embed") == 1 and ended.stdout.count("8 of 8 steps") == 1
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in undisturbed.iterdir()}
    assert [row["step"] for row in table(tmp_path / "run")] == ["0", "4", "8"]


@contextlib.contextmanager
def start_two(photos, run_dir, log, *how, strike=None, struck=None):
    """Two processes as torchrun starts them, one of which a signal may strike."""
    with torchrun_says(2) as told, contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Started(
                    ["pretrain", photos, run_dir, *SMALL, *how],
                    log / str(rank),
                    strike=strike if rank == struck else None,
                    **environ,
                )
            )
            for rank, environ in enumerate(told)
        ]


def errors(commands):
    return [line for command in commands for line in command.stderr.splitlines() if line.startswith("Error: ")]


@pytest.mark.slow
@pytest.mark.parametrize(("struck", "number", "code"), [(0, signal.SIGINT, 130), (1, signal.SIGTERM, 143)])
def test_two_processes_stop_after_the_same_step_whoever_is_told(struck, number, code, photos, tmp_path):
    how = ("--epochs", 4000)
    told = Strike(number, STEP, 6)
    with start_two(photos, tmp_path / "run", tmp_path, *how, strike=told, struck=struck) as two:
        codes = [command.wait() for command in two]
    # whichever is first to leave says it; of a companion's signal it knows only that there was one
    assert (codes[struck], codes[1 - struck]) in [(code, 1), (1, 130)]
    assert "".join(command.stderr for command in two).count("it goes on from what is on disk") == 1
    assert "Traceback" not in two[0].stderr + two[1].stderr and errors(two) == []
    assert two[0].steps == two[1].steps == list(range(6)) and newest(tmp_path / "run") == 6


def test_a_run_dir_that_cannot_be_used_is_refused_and_left_as_it_was(photos, tmp_path):
    before = sorted(path.name for path in photos.iterdir())
    assert "holds other files ('red', 'rest'); name a new or empty folder" in refused(
        "pretrain", photos, photos, *SMALL
    )
    assert sorted(path.name for path in photos.iterdir()) == before
    with filelock.FileLock(tmp_path / ".lock"):
        assert "by another process" in refused("pretrain", photos, tmp_path, *SMALL)
    (tmp_path / "file").write_bytes(b"")
    assert "is a file; RUN_DIR is a folder" in refused("pretrain", photos, tmp_path / "file", *SMALL)
    assert "cannot write" in refused("pretrain", photos, "/proc/run", *SMALL)
    (tmp_path / "run" / "log.csv").mkdir(parents=True)
    assert "log.csv" in refused("pretrain", photos, tmp_path / "run", *SMALL)
    (tmp_path / "strange").mkdir()
    unknown = b'{"format": "pucache-run", "version": 1, "settings": {}, "recipe": {"unknown": 1}}'
    for told in (b"", b"[]", b'{"format": "pucache-run", "version": 2}', b"[" * 9999, b"\xff\xfe", unknown):
        (tmp_path / "strange" / "run.json").write_bytes(told)
        assert "is not the configuration of a run" in refused("pretrain", photos, tmp_path / "strange", *SMALL)


def test_sources_without_usable_images_are_refused(tmp_path):
    for name, side, code, words in [("one", 16, 2, "one image"), ("tiny", 2, 1, "too small for the crop")]:
        save_images(tmp_path / name, 1 if name == "one" else 9, (9, 9, 9), side=side)
        assert words in refused("pretrain", tmp_path / name, tmp_path / "run", *SMALL, code=code)
    for path in (tmp_path / "tiny").iterdir():
        path.write_bytes(b"no image")
    assert "none of the 9 images" in refused("pretrain", tmp_path / "tiny", tmp_path / "run", *SMALL)


def test_a_numbered_gpu_is_refused_to_several_processes(photos, tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    told = refused("pretrain", photos, tmp_path / "run", *SMALL, "--device", "cuda:3", code=2)
    assert "--device cuda:3" in told and "use cuda" in told and not (tmp_path / "run").exists()
