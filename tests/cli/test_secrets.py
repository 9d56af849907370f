"""Secrets in URLs that are given to any command: never in a line, a log, a table, or the name of a file."""

import itertools
import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pucache.cli.main import SENTENCES, main
from pucache.storage import retries

pytestmark = pytest.mark.usefixtures("one_thread")
KEY, SECRET = "AKIAUSER0", "hunter2"
URLS = {  # an URL with a secret, as people write them
    "login": f"s3://{KEY}:{SECRET}@bucket/a.h5",
    "login, slashes and signs": f"s3://{KEY}:x/{SECRET}+y/z@bucket/a.h5",
    "login, encoded": f"s3://{KEY}:x%2F{SECRET}%40@bucket/a.csv",
    "login of HTTP": f"http://{SECRET}@127.0.0.1:9/a.h5",
    "signature": f"http://127.0.0.1:9/a.h5?X-Amz-Signature={SECRET}&X-Amz-Expires=9",
    "token": f"http://127.0.0.1:9/a.parquet?sv=1&token={SECRET}",
    "shared access": f"az://container/a.npy?sig={SECRET}",
    "chained": f"simplecache::s3://{KEY}:{SECRET}@bucket/a.h5",
    "archive": f"zip://a.png::s3://{KEY}:{SECRET}@bucket/a.zip",
    "unknown": f"gopher://{KEY}:{SECRET}@host/a.txt",
}
ARGUMENTS = {  # of each command, so that all but one argument are right
    "embed": "source={w}/images cache=new.h5 --device=cpu",
    "import-embeddings": "source={w}/X.npy cache=new.h5",
    "pretrain": "source={w}/images run_dir=run --device=cpu --epochs=1 --backbone=test_resnet",
    "train-pu": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "labels": "cache={w}/cache.h5 table={w}/positives.txt",
    "sweep-priors": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "estimate-prior": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "retrieve-positives": "cache={w}/cache.h5 --positives={w}/positives.txt",
    "review": "cache={w}/none.h5 --positives={w}/positives.txt",  # would serve for ever
    "score": "model={w}/model.safetensors what={w}/cache.h5",
    "evaluate": "scores={w}/truth.csv --truth={w}/truth.csv",
    "report": "cache={w}/cache.h5 --positives={w}/positives.txt --model={w}/model.safetensors",
    "audit": "session={w}/cache.h5.review",
    "info": "cache={w}/cache.h5",
    "verify": "files={w}/cache.h5",
    "pack": "cache={w}/cache.h5 --out=packed.h5",
    "export": "what={w}/cache.h5 out=new.parquet",
    "demo": "folder=demo",
}
# Text that is no path, and would only be computed with; names of columns are echoed as they are.
NO_PATHS = {"device", "address", "host", "prior", "penalty", "threshold", "shard", "k", "deploy_prior", "priors"}
PATHS = [
    (name, parameter.name)
    for name in ARGUMENTS
    for parameter in main.commands[name].params
    if parameter.type.name == "text" and not getattr(parameter, "is_flag", False) and parameter.name not in NO_PATHS
]


def command_line(command, replaced, url, world):
    """The arguments of a command of which one is a URL."""
    given = dict(part.partition("=")[::2] for part in shlex.split(ARGUMENTS[command].format(w=world)))
    for parameter in main.commands[command].params:
        if parameter.name == replaced:
            given[parameter.opts[0]] = url
    values = (
        [value] if not name.startswith("-") else [name, *([value] if value else [])] for name, value in given.items()
    )
    return [command, *itertools.chain.from_iterable(values)]


def told_and_written(folder):
    """Names and contents of all files below a folder."""
    for root, folders, files in os.walk(folder):
        yield from (os.path.join(root, name).encode() for name in (*folders, *files))
        yield from (Path(root, name).read_bytes() for name in files)


def test_every_command_with_arguments_is_tried():
    assert {*ARGUMENTS, "cache-dir"} == set(SENTENCES)


@pytest.fixture
def no_network(monkeypatch, here):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PUCACHE_WORK", str(here / "work"))
    return here


@pytest.mark.parametrize(("command", "argument"), PATHS)
def test_no_secret_of_a_url_is_told_or_written(world, trained, no_network, monkeypatch, caplog, command, argument):
    """Every other kind of URL for each argument, and the others for the next."""
    for kind in list(URLS)[PATHS.index((command, argument)) % 2 :: 2]:
        url = URLS[kind]
        arguments = command_line(command, argument, url, world)
        monkeypatch.setattr("sys.argv", ["pucache", *arguments])
        ended = CliRunner().invoke(main, arguments, prog_name="pucache")
        texts = [ended.stdout, ended.stderr, caplog.text]
        if not isinstance(ended.exception, SystemExit | None):
            texts.append(repr(ended.exception))
            raise AssertionError(f"{kind}: {arguments} raised") from ended.exception
        assert not [text for text in texts if SECRET in text], (kind, arguments)
        assert not [content for content in told_and_written(no_network) if SECRET.encode() in content], (
            kind,
            arguments,
        )


def test_click_repeats_no_secret():
    ended = CliRunner().invoke(main, ["info", "--none", URLS["login"]])
    assert ended.exit_code == 2 and SECRET not in ended.output
    ended = CliRunner().invoke(main, [URLS["login"]])
    assert ended.exit_code == 2 and SECRET not in ended.output
