"""Every argument of every command: what is no file is not waited for, and secrets in URLs are never told or written."""

import itertools
import os
import shlex
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from pucache.cli.main import SENTENCES, main
from pucache.storage import retries

ARGUMENTS = {  # of each command, so that all but one argument are right; names without a folder are made by `desk`
    "embed": "source={w}/images cache=new.h5 --device=cpu",
    "import-embeddings": "source=X.npy cache=new.h5",
    "pretrain": "source={w}/images run_dir=run --device=cpu --epochs=1 --backbone=test_resnet",
    "train-pu": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "labels": "cache={w}/cache.h5 table={w}/positives.txt",
    "sweep-priors": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "estimate-prior": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "retrieve-positives": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "review": "cache=pile.h5 --positives={w}/positives.txt",  # where the cache is missing it does not serve for ever
    "score": "model={w}/model.safetensors what={w}/cache.h5",
    "evaluate": "scores=scores.csv --truth={w}/truth.csv",
    "report": "cache={w}/cache.h5 --positives={w}/positives.txt --model={w}/model.safetensors",
    "audit": "session=pile.h5.review",
    "info": "cache={w}/cache.h5",
    "verify": "files={w}/cache.h5",
    "pack": "cache={w}/cache.h5 --out=packed.h5",
    "export": "what={w}/cache.h5 out=new.parquet",
    "demo": "folder=demo",
}
# Text that is no path, and would only be computed with; names of columns are echoed as they are.
NO_PATHS = {"device", "address", "host", "prior", "penalty", "threshold", "shard", "k", "deploy_prior", "priors"}
PARAMETERS = {(command, one.name): one for command in ARGUMENTS for one in main.commands[command].params}
PATHS = [
    place
    for place, parameter in PARAMETERS.items()
    if parameter.type.name == "text" and not getattr(parameter, "is_flag", False) and place[1] not in NO_PATHS
]


def command_line(command, replaced, value, world):
    """The arguments of a command of which one is another."""
    given = dict(part.partition("=")[::2] for part in shlex.split(ARGUMENTS[command].format(w=world)))
    given[PARAMETERS[command, replaced].opts[0]] = str(value)
    if replaced in ("like", "labels"):  # in place of a list of positives
        given.pop("--positives", None)
    values = ([value] if not name.startswith("-") else [name, *filter(None, [value])] for name, value in given.items())
    return [command, *itertools.chain.from_iterable(values)]


def run(arguments):
    """Run a command, which ends by itself."""
    ended = CliRunner().invoke(main, arguments, prog_name="pucache")
    if not isinstance(ended.exception, SystemExit | None):
        raise AssertionError(f"{arguments} raised") from ended.exception
    return ended


def test_every_command_with_arguments_is_tried():
    assert {*ARGUMENTS, "cache-dir"} == set(SENTENCES)


# --- what is no file -------------------------------------------------------------------------------

WRITTEN = {("embed", "cache"), ("import-embeddings", "cache"), ("score", "cache"), ("pretrain", "run_dir")}
WRITTEN |= {("demo", "folder"), ("pretrain", "preview")}
FILES = ("FILE", "TABLE", "SOURCE", "CACHE", "PATH", "FOLDER", "MODEL", "REVIEW", "RUN_DIR")
ENDINGS = {"encoder": ".onnx", "source": ".csv", "images": ".zip", "like": ".npy", "table": ".parquet"}


def is_read(place):
    """Whether a file is expected there."""
    if place in WRITTEN or place[1] in ("out", "page"):
        return False
    parameter = PARAMETERS[place]
    return isinstance(parameter, click.Argument) or any(kind in str(parameter.metavar) for kind in FILES)


NO_FILES = [
    (*place, kind)
    for place in filter(is_read, PATHS)
    for kind in ("pipe", "device", "folder")
    if kind != "folder" or place[1] not in ("session", "images")  # a new review, and a source without images
]


@pytest.fixture
def desk(here, world):
    """A working directory with what stands in the arguments of commands."""
    np.save("X.npy", np.eye(4, dtype=np.float32))
    Path("scores.csv").write_text("key,margin,posterior,label\nred/000.png,1,0.5,1\n")
    Path("pile.h5").symlink_to(world / "cache.h5")


@pytest.mark.usefixtures("trained", "desk", "endings")
@pytest.mark.parametrize(("command", "name", "kind"), NO_FILES)
def test_no_argument_waits_for_what_is_no_file(world, command, name, kind):
    """Nobody ever writes to the pipe."""
    path = "/dev/zero" if kind == "device" else f"nothing{ENDINGS.get(name, '')}"
    if kind != "device":
        os.mkfifo(path) if kind == "pipe" else os.mkdir(path)
    arguments = command_line(command, name, path, world)
    ended = run([*arguments, "--words", "a dress"] if name == "text_encoder" else arguments)
    assert ended.exit_code in (1, 2) or kind == "folder" or name in ("weights", "images"), ended.output


# --- secrets ---------------------------------------------------------------------------------------

KEY, SECRET = "AKIAUSER0", "hunter2"
URLS = [  # URLs with a secret, as people write them
    f"s3://{KEY}:{SECRET}@bucket/a.h5",
    f"s3://{KEY}:x/{SECRET}+y/z@bucket/a.h5",
    f"s3://{KEY}:x%2F{SECRET}%40@bucket/a.csv",
    f"http://{SECRET}@127.0.0.1:9/a.h5",
    f"http://127.0.0.1:9/a.h5?X-Amz-Signature={SECRET}&X-Amz-Expires=9",
    f"http://127.0.0.1:9/a.parquet?sv=1&token={SECRET}",
    f"az://container/a.npy?sig={SECRET}",
    f"simplecache::s3://{KEY}:{SECRET}@bucket/a.h5",
    f"zip://a.png::s3://{KEY}:{SECRET}@bucket/a.zip",
    f"gopher://{KEY}:{SECRET}@host/a.txt",
]


def written(folder):
    """Names and contents of all files below a folder."""
    for root, folders, files in os.walk(folder):
        yield from (os.path.join(root, name).encode() for name in (*folders, *files))
        yield from (Path(root, name).read_bytes() for name in files)


@pytest.fixture
def no_network(monkeypatch, here):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PUCACHE_WORK", str(here / "work"))
    return here


@pytest.mark.usefixtures("small_maps")
@pytest.mark.parametrize(("command", "argument"), PATHS)
def test_no_secret_of_a_url_is_told_or_written(world, trained, no_network, monkeypatch, caplog, command, argument):
    """Every other URL for each argument, and the others for the next."""
    for url in URLS[PATHS.index((command, argument)) % 2 :: 2]:
        arguments = command_line(command, argument, url, world)
        monkeypatch.setattr("sys.argv", ["pucache", *arguments])
        ended = run(arguments)
        assert not [text for text in (ended.stdout, ended.stderr, caplog.text) if SECRET in text], arguments
        assert not [content for content in written(no_network) if SECRET.encode() in content], arguments


@pytest.mark.parametrize("arguments", [["info", "--none"], []])
def test_click_repeats_no_secret(arguments):
    ended = run([*arguments, URLS[0]])
    assert ended.exit_code == 2 and SECRET not in ended.output
