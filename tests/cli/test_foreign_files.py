"""Every option that takes a file, and every kind of thing that is none; closed streams, and other locales."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import click
import numpy as np
import pytest
from click.testing import CliRunner
from fuzz.damage import resident
from helpers.command_line import SMALL
from helpers.hangs import HANG_SECONDS
from helpers.limits import limited

from pucache import EmbeddingCache
from pucache.cli.main import SENTENCES, main

pytestmark = pytest.mark.usefixtures("one_thread")
_WRITTEN = {"cache", "out", "run_dir", "folder", "labels_to", "preview", "metrics", "review", "scores_out"}
_FILES = ("FILE", "TABLE", "SOURCE", "CACHE", "PATH", "FOLDER", "MODEL", "REVIEW", "RUN_DIR")
_ENDINGS = {"encoder": ".onnx", "source": ".csv", "images": ".zip", "like": ".npy", "tables": ".parquet"}
_READ_ARGUMENTS = {
    "embed": ["source"], "import-embeddings": ["source"], "pretrain": ["source"], "score": ["model", "what"],
    "evaluate": ["scores"], "export": ["what"], "audit": ["session"], "verify": ["files"], "labels": ["tables"],
}  # fmt: skip
_READS_CACHE = ("train-pu", "sweep-priors", "estimate-prior", "retrieve-positives", "review", "report", "info", "pack")


def taken(command):
    """Arguments before the option or argument that takes a file, and what stands there otherwise."""
    for parameter in main.commands[command].params:
        name, metavar = parameter.name, str(parameter.metavar or "")
        if isinstance(parameter, click.Argument):
            if name in _READ_ARGUMENTS.get(command, []) or (name == "cache" and command in _READS_CACHE):
                yield name, None
        elif name not in _WRITTEN and not parameter.is_flag and any(kind in metavar for kind in _FILES):
            yield name, parameter.opts[-1]


PLACES = [(command, *place) for command in SENTENCES if command in main.commands for place in taken(command)]


def arguments(command, name, option, where, world, here):
    """A command in which one file is replaced."""
    usual = {
        "embed": [world / "images", here / "new.h5"],
        "import-embeddings": [here / "x.npy", here / "new.h5"],
        "pretrain": [world / "images", here / "run"],
        "score": [world / "model.safetensors", world / "cache.h5"],
        "evaluate": [here / "scores.csv", "--truth", world / "truth.csv"],
        "export": [world / "cache.h5", here / "out.parquet"],
        "audit": [here / "session"],
        "verify": [world / "cache.h5"],
        "labels": [world / "cache.h5", "red/**"],
    }.get(command, [world / "cache.h5"])
    positional = [one.name for one in main.commands[command].params if isinstance(one, click.Argument)]
    if option is None:
        usual[positional.index(name)] = where
    else:
        usual = [*usual, option, where]
    needs = {"train-pu", "sweep-priors", "estimate-prior", "retrieve-positives", "review", "report"}
    if command in needs and name not in ("positives", "concepts", "like", "words"):
        usual += ["--positives", "red/**"]
    if name == "text_encoder":
        usual += ["--words", "a dress"]
    return [command, *map(str, usual)]


@pytest.fixture(params=["pipe", "device", "folder"])
def no_file(request, tmp_path):
    """Something that is no file; nobody ever writes to the pipe."""
    if request.param == "device":
        return "/dev/zero"
    path = tmp_path / f"nothing{_ENDINGS.get(request.getfixturevalue('name'), '')}"
    os.mkfifo(path) if request.param == "pipe" else path.mkdir()
    return path


@contextmanager
def no_waiting():
    """Raise TimeoutError in what waits for ever."""

    def stop(number, frame):
        raise TimeoutError("waits for ever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("command", "name", "option"), PLACES)
def test_no_option_waits_for_what_is_no_file(world, embedded, trained, here, no_file, command, name, option):
    if command == "review" and name in ("session", "images") and os.path.isdir(no_file):
        pytest.skip("a new session, and a source without images, are what a review takes")
    np.save(here / "x.npy", np.eye(4, dtype=np.float32))
    (here / "scores.csv").write_text("key,margin,posterior,label\nred/000.png,1,0.5,1\n")
    with no_waiting(), limited("AS", resident("VmSize") + (4 << 30)):
        ended = CliRunner().invoke(main, arguments(command, name, option, no_file, world, here), prog_name="pucache")
    assert isinstance(ended.exception, SystemExit | None), ended.exception
    assert ended.exit_code in (1, 2) or os.path.isdir(no_file) or name in ("weights", "images"), ended.output


def test_work_is_done_where_streams_are_closed(world, embedded, here):
    command = f"embed {world}/images {here}/new.h5{SMALL.format(w=world)}2>&- <&-"
    assert shell(f"{sys.executable} -m pucache {command}").returncode == 0
    assert len(EmbeddingCache(here / "new.h5")) == len(EmbeddingCache(world / "cache.h5"))


def shell(line, **environment):
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, timeout=HANG_SECONDS, env={**os.environ, **environment}
    )


def test_names_in_utf_8_are_read_in_a_locale_of_ascii(world, embedded, here):
    (here / "Bäume").mkdir()
    for number, name in enumerate(["Käfer.png", "犬.png"]):
        first = sorted((world / "images" / "red").iterdir())[number]
        (here / "Bäume" / name).write_bytes(first.read_bytes())
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell(
        f"{sys.executable} -m pucache embed {here}/Bäume {here}/new.h5 --json{SMALL.format(w=world)}", **settings
    )
    assert done.returncode == 0 and b'"rows": 2' in done.stdout, done.stderr
