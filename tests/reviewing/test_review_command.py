import csv
import json
import shlex
import signal

import pytest
from click.testing import CliRunner
from helpers.reviews import ReviewProcess, pictured_pile

from pucache.cli.main import main
from pucache.reviewing import serve
from pucache.reviewing.session import open_session


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pictured_pile(tmp_path, 120, positives=12)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


# --- export ------------------------------------------------------------------------------------


def test_export_writes_what_the_page_writes_and_names_the_commands_that_take_it(folder):
    with ReviewProcess(folder, "--positives", "found.txt", "--port", "0") as review:
        client = review.client()
        client.decide({"row": 12, "serial": 0}, "positive"), client.decide({"row": 100, "serial": 0}, "negative")
        ended = run("review", "pile.h5", "--export")
        assert ended.exit_code == 0, ended.output
        path = folder / "pile.h5.review/reviewed.csv"
        assert f"wrote pile.h5.review/{path.name}: 13 positive, 1 negative\npucache train-pu" in ended.stdout
        written = path.read_bytes()
        path.unlink()
        answer = client.post("/api/export")
        assert path.read_bytes() == written
        printed = json.loads(run("review", "pile.h5", "--export", "--json").stdout)
        assert {name: answer[name] for name in printed} == printed
        client.close()
    with path.open(newline="") as stream:
        labels = {row["key"]: (row["label"], row["reviewed"]) for row in csv.DictReader(stream)}
    assert labels["000.png"] == ("1", "0") and labels["012.png"] == ("1", "1") and labels["100.png"] == ("0", "1")


def test_export_without_a_session_is_one_line_and_without_a_label_an_empty_table(folder):
    ended = run("review", "pile.h5", "--export")
    assert ended.exit_code == 1 and ended.stderr.count("\n") == 1 and "no review session" in ended.stderr
    open_session("pile.h5").close()
    assert run("review", "pile.h5", "--export").exit_code == 0
    assert (folder / "pile.h5.review/reviewed.csv").read_text() == "key,label,reviewed,digest\n"


@pytest.mark.parametrize("option", ["--device cpu", "--positives found.txt", "--no-browser", "--port 0"])
def test_export_refuses_what_it_would_ignore(folder, option):
    ended = run("review", "pile.h5", "--export", *option.split())
    assert ended.exit_code == 2 and f"{option.split()[0]} is for the page" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_tells_what_was_found_the_limit_and_the_next_command(folder, number):
    with ReviewProcess(folder, "--positives", "found.txt", "--port", "0") as review:
        client = review.client()
        client.decide({"row": 12, "serial": 0}, "positive")
        client.close()
        assert review.end(number) == 128 + number
        said = review.printed.splitlines()
    assert said[-4].startswith("found 1; how many more is not known before the first random image. After 107 random")
    assert said[-3] == "train on it: pucache train-pu pile.h5 --session pile.h5.review"
    assert "run the same command again to go on" in said[-1]


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
