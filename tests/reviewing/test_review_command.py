import csv
import json
import shlex

import pytest
from click.testing import CliRunner
from helpers.reviews import ReviewProcess, pictured_pile
from helpers.sessions import decide

from pucache.cli.main import main
from pucache.reviewing import serve
from pucache.reviewing.log import Choice
from pucache.reviewing.session import open_session
from pucache.training.sklearn_classifier import PULinearClassifier


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pictured_pile(tmp_path, 120, positives=12)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


# --- export ------------------------------------------------------------------------------------


def test_export_writes_labels_and_model_into_the_session(folder):
    with open_session("pile.h5", "found.txt") as session:
        for row in range(12, 40):
            decide(session, row, Choice.POSITIVE if row < 30 else Choice.NEGATIVE)
    ended = run("review", "pile.h5", "--export", "--device", "cpu")
    assert ended.exit_code == 0, ended.output
    out = folder / "pile.h5.review"
    assert f"wrote {out.name}/reviewed.csv: 30 positive, 10 negative" in ended.stdout
    with (out / "reviewed.csv").open(newline="") as stream:
        labels = {row["key"]: (row["label"], row["reviewed"]) for row in csv.DictReader(stream)}
    assert labels["000.png"] == ("1", "0") and labels["012.png"] == ("1", "1") and labels["030.png"] == ("0", "1")
    assert len(labels) == 40
    assert len(PULinearClassifier.load(out / "model.safetensors").coef_.ravel()) == 6
    assert json.loads((out / "metrics.json").read_text())["known_negatives"] == 10


def test_export_works_while_the_page_is_open(folder):
    with ReviewProcess(folder, "--positives", "found.txt", "--port", "0") as review:
        client = review.client()
        client.decide({"row": 100, "serial": 0}, "negative")
        ended = run("review", "pile.h5", "--export", "--device", "cpu", "--json")
        assert ended.exit_code == 0 and json.loads(ended.stdout)["known_negatives"] == 1
        client.decide({"row": 101, "serial": 0}, "negative")
        assert client.get("/api/state")["rejected"] == 2
        client.close()


def test_export_without_a_session_or_without_a_positive_is_one_line(folder):
    ended = run("review", "pile.h5", "--export")
    assert ended.exit_code == 1 and ended.stderr.count("\n") == 1 and "no review session" in ended.stderr
    open_session("pile.h5").close()
    ended = run("review", "pile.h5", "--export")
    assert ended.exit_code == 1 and ended.stderr.count("\n") == 1 and "a model needs one" in ended.stderr
    assert (folder / "pile.h5.review/reviewed.csv").read_text() == "key,label,reviewed,digest\n"


# --- demo --------------------------------------------------------------------------------------


@pytest.fixture
def demo_done(monkeypatch):
    monkeypatch.setattr("pucache.demonstration.demo", lambda folder, **_: {})
    monkeypatch.setattr("pucache.cli.demo._lines", lambda result, folder: ["done"])


def test_the_demo_ends_with_the_command_that_opens_its_pile(folder, demo_done):
    ended = run("demo", "my demo")
    assert ended.exit_code == 0
    command = shlex.split(ended.stdout.splitlines()[-1])
    assert command == ["pucache", "review", "my demo/pile.h5", "--positives", "my demo/positives.txt"]
    context = main.commands["review"].make_context("review", command[2:])
    assert context.params["positives"] == "my demo/positives.txt"
    assert run("demo", "x", "--json").stdout == "{}\n"


def test_the_demo_opens_its_pile_where_asked_to(folder, demo_done, monkeypatch):
    served = []
    monkeypatch.setattr(serve, "review", lambda *arguments, **settings: served.append(arguments))
    assert run("demo", "d", "--review").exit_code == 0
    assert served == [("d/pile.h5", "d/positives.txt")]
    ended = run("demo", "d", "--review", "--json")
    assert ended.exit_code == 2 and "leave out one of --review and --json" in ended.stderr


# --- command -----------------------------------------------------------------------------------


def test_every_option_reaches_the_function(folder, monkeypatch):
    given = {}
    monkeypatch.setattr(serve, "review", lambda *arguments, **settings: given.update(settings, arguments=arguments))
    options = "--session s --images i --reviewer Ann --twins 2 --port 5 --host ::1 --no-browser --device cpu"
    ended = run("review", "pile.h5", "--positives", "p.txt", "--negatives", "n.txt", *options.split())
    assert ended.exit_code == 0, ended.output
    del given["announce"]
    assert given == {
        "arguments": (["pile.h5"], "p.txt"),
        "negatives": "n.txt",
        "session": "s",
        "images": "i",
        "reviewer": "Ann",
        "twins": None,
        "port": 5,
        "host": "::1",
        "open_browser": False,
        "device": "cpu",
    }
