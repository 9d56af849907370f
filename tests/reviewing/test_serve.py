import os
import signal
import stat
import time

import pytest
from click.testing import CliRunner
from helpers.hangs import HANG_SECONDS
from helpers.review_client import ReviewClient
from helpers.reviews import ReviewProcess, pictured_pile
from helpers.slow import slow

from pucache.cli.main import main
from pucache.errors import OutputError
from pucache.reviewing.serve import ADDRESS, ServerAddress, keep_address, kept_address, listening_socket, printed_url

FOUND = ("--positives", "found.txt", "--port", "0")


@pytest.fixture
def folder(tmp_path):
    pictured_pile(tmp_path)
    return tmp_path


# --- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), slow(signal.SIGTERM, 143)])
def test_a_review_is_served_until_a_signal_and_goes_on_where_it_was(folder, number, code):
    with ReviewProcess(folder, *FOUND, "--reviewer", "Ann") as first:
        client = first.client()
        assert f"http://127.0.0.1:{client.port}/?token={client.token}\n" in first.printed
        assert "4 labelled positive" in first.printed and "56 to search" in first.printed
        (card,) = client.next(1)
        client.decide(card, "positive")
        assert client.get("/api/state")["reviewer"] == "Ann"
        assert first.end(number) == code
        assert first.printed.endswith("interrupted; nothing is lost: run the same command again to go on\n")
        assert "Traceback" not in first.printed
    with ReviewProcess(folder, "--positives", "found.txt") as second:
        again = second.client()
        assert (again.port, again.token, again.session) == (client.port, client.token, client.session)
        client.close()
        assert client.get("/api/state")["found"] == 1, "the open page goes on with its cookie"
        assert "goes on with 1 decided, 1 of them positive" in second.printed
        client.close()
        again.close()


@pytest.mark.slow
def test_a_port_in_use_is_said_and_the_next_free_one_taken(folder):
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with ReviewProcess(folder, "--positives", "found.txt", "--port", port) as review:
            client = review.client()
            assert client.port > port and f"port {port} is in use; {client.port} is served instead" in review.printed
            client.close()


def wait_for(condition):
    until = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_images_that_have_moved_are_said_at_the_start_and_can_be_named(folder):
    (folder / "images").rename(folder / "moved")
    with ReviewProcess(folder, *FOUND) as review:
        client = review.client()
        assert "the images cannot be shown (no such source" in review.printed and "--images SOURCE" in review.printed
        assert b"the images cannot be shown" in client.ask("GET", "/")[2]
        assert "no such source" in client.next(1)[0]["problem"]
        client.close()
        assert review.end() == 130
    with ReviewProcess(folder, *FOUND, "--images", "moved") as review:
        client = review.client()
        assert "cannot be shown" not in review.printed and client.ask("GET", "/api/image/7")[0] == 200
        client.close()


BAD = {
    "none.h5 --positives found.txt": (1, "none.h5"),
    "pile.h5 --positives none.txt": (1, "none.txt"),
    "pile.h5 --positives found.txt --port 65536": (2, "--port"),
    "pile.h5 --positives found.txt --port -1": (2, "--port"),
    "pile.h5 --positives found.txt --host 203.0.113.7": (2, "--host 203.0.113.7 is no address of this machine"),
    "pile.h5 --positives found.txt --host no/host": (2, "--host no/host"),
    "pile.h5 --positives found.txt --images nowhere": (1, "no such source: nowhere"),
    "pile.h5 --positives found.txt --session found.txt": (2, "--session takes the folder of a review"),
    "pile.h5 --positives found.txt --json": (2, "--json is for --export"),
}


@pytest.mark.parametrize("command", BAD)
def test_what_cannot_be_is_one_line_with_its_exit_code(folder, monkeypatch, command):
    monkeypatch.chdir(folder)
    ended = CliRunner().invoke(main, ["review", *command.split(), "--no-browser"])
    code, text = BAD[command]
    assert ended.exit_code == code and text in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr


# --- the browser -------------------------------------------------------------------------------


def test_the_browser_gets_an_address_that_works_once(folder):
    script = folder / "browser"
    script.write_text('#!/bin/sh\necho "$1" > "$(dirname "$0")/opened"\n')
    script.chmod(0o755)
    with ReviewProcess(folder, *FOUND, browser=True, BROWSER=f"{script} %s") as review:
        printed = review.url
        wait_for(lambda: (folder / "opened").exists() and (folder / "opened").read_text())
        opened = (folder / "opened").read_text().strip()
        assert opened.startswith(printed.partition("=")[0]) and opened != printed
        ReviewClient(opened).enter().close()
        again = ReviewClient(opened)
        assert again.ask("GET", f"/?token={again.token}")[0] == 403
        again.close()
        ReviewClient(printed).enter().close()


@pytest.mark.parametrize(
    "environ", [{"BROWSER": "/no/such/browser %s"}, slow({"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""})]
)
def test_without_a_browser_the_address_is_there_all_the_same(folder, environ):
    with ReviewProcess(folder, *FOUND, browser=True, **environ) as review:
        client = review.client()
        wait_for(lambda: "no browser could be started here" in review.printed)
        assert client.get("/api/state")["decided"] == 0
        client.close()


# --- port and token ----------------------------------------------------------------------------


def test_the_address_is_kept_for_its_owner_alone(tmp_path):
    address = ServerAddress(8321, "x" * 43)
    keep_address(tmp_path, address)
    assert stat.S_IMODE((tmp_path / ADDRESS).stat().st_mode) == 0o600
    assert kept_address(tmp_path) == address and os.listdir(tmp_path) == [ADDRESS]
    (tmp_path / ADDRESS).chmod(0o640)
    assert kept_address(tmp_path) is None, "others may have read it"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"port": 1}', '{"port": 0, "token": "%s"}', '{"port": "1", "token": "%s"}',
             '{"port": 70000, "token": "%s"}', '{"port": 1, "token": ""}', '{"port": 1, "token": 5}', "\xff"]
)  # fmt: skip
def test_a_damaged_address_is_replaced(tmp_path, text):
    path = tmp_path / ADDRESS
    path.write_bytes((text.replace("%s", "x" * 43)).encode("latin-1"))
    path.chmod(0o600)
    assert kept_address(tmp_path) is None


def test_every_port_in_use_is_one_line(monkeypatch):
    monkeypatch.setattr("pucache.reviewing.serve.PORTS", 1)
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(OutputError, match="all in use; name a free one"):
        listening_socket("127.0.0.1", taken.getsockname()[1])


def test_printed_addresses_can_be_opened():
    assert printed_url("127.0.0.1", 1, "t") == "http://127.0.0.1:1/?token=t"
    assert printed_url("::1", 1, "t") == "http://[::1]:1/?token=t"
    assert printed_url("0.0.0.0", 1, "t") == "http://127.0.0.1:1/?token=t"
