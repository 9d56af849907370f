import http.client
import json
import os
import resource
import signal
import stat
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.hangs import HANG_SECONDS
from helpers.review_client import ReviewClient
from helpers.reviews import ReviewProcess, pictured_pile
from helpers.slow import slow

from pucache.cli.main import main
from pucache.errors import OutputError
from pucache.reviewing.serve import ADDRESS, ServerAddress, keep_address, kept_address, listening_socket, printed_url
from pucache.reviewing.session import read_session

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
def test_a_second_server_on_the_session_is_refused_in_one_line(folder):
    with ReviewProcess(folder, *FOUND) as first:
        _ = first.url
        with ReviewProcess(folder, *FOUND) as second:
            assert second.process.wait(HANG_SECONDS) == 1
            assert second.printed.count("\n") == 1 and "in use by another pucache review" in second.printed
        assert first.process.poll() is None


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


# --- killed ------------------------------------------------------------------------------------


class Page:
    """Decides until told to stop, as the page does: what got no answer is sent again until it does."""

    def __init__(self, client):
        self.client, self.acknowledged, self.failures = client, {}, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            cards = self._until_answered(lambda: self.client.next(1))
            if not cards:
                return
            request, choice = uuid.uuid4().hex, "positive" if cards[0]["row"] < 15 else "negative"
            answer = self._until_answered(lambda: self.client.decide(cards[0], choice, request))  # noqa: B023
            for accepted in answer["accepted"] if answer else ():
                self.acknowledged[accepted["request"]] = (accepted["row"], accepted["serial"], accepted["choice"])

    def _until_answered(self, work):
        while not self._stop.is_set():
            try:
                return work()
            except (OSError, http.client.HTTPException):
                self.failures += 1
                time.sleep(0.02)
        return None

    def goes_on(self):
        """Wait for further acknowledgements."""
        before = len(self.acknowledged)
        wait_for(lambda: len(self.acknowledged) > before + 2 or not self._thread.is_alive())

    def stop(self):
        self._stop.set()
        self._thread.join(HANG_SECONDS)


def check_log(folder, page):
    """Every acknowledged decision is in the log, once, as it was acknowledged."""
    with read_session(folder / "pile.h5") as session:
        logged = {entry.request: entry for entry in session.entries() if entry.request}
        serials = [entry.serial for entry in session.entries()]
    assert serials == sorted(set(serials))
    for request, (row, serial, choice) in page.acknowledged.items():
        entry = logged[request]
        assert (entry.row, entry.serial, str(entry.choice)) == (row, serial, choice)
    return logged


@pytest.mark.parametrize("kills", [3, slow(30)])
@pytest.mark.slow
def test_a_killed_server_loses_no_acknowledged_decision_and_the_page_goes_on(tmp_path, kills):
    pictured_pile(tmp_path, 60 + 60 * kills)
    draw, page = np.random.default_rng(kills), None
    for number in range(kills):
        with ReviewProcess(tmp_path, "--positives", "found.txt", *(["--port", "0"] if page is None else [])) as review:
            page = page or Page(review.client())
            assert review.url
            page.goes_on()
            if number % 2:
                kill_trainer(review)
                page.goes_on()
            time.sleep(draw.random() * 0.3)
            os.killpg(review.process.pid, signal.SIGKILL)
            review.process.wait()
        check_log(tmp_path, page)
    page.stop()
    assert len(page.acknowledged) >= 3 * kills
    page.client.close()


def kill_trainer(review):
    """Kill the process that trains; the server starts another one."""
    threads = Path(f"/proc/{review.process.pid}/task").iterdir()
    children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    assert len(children) == 1
    os.kill(children[0], signal.SIGKILL)


def test_on_a_full_disk_nothing_is_acknowledged_that_is_not_written(tmp_path):
    pictured_pile(tmp_path, 300)
    with ReviewProcess(tmp_path, *FOUND) as review:
        client = review.client()
        written = tmp_path / "pile.h5.review/decisions.sqlite-wal"
        cards, acknowledged, errors = client.next(200), [], []
        no_limit = resource.prlimit(review.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(review.process.pid, resource.RLIMIT_FSIZE, (written.stat().st_size + 40_000, no_limit[1]))
        for number, card in enumerate(cards):
            decision = {"request": f"r{number}", "row": card["row"], "choice": "negative", "replaces": 0}
            status, _, content = client.ask(
                "POST",
                "/api/decide",
                json.dumps({"session": client.session, "tab": client.tab, "decisions": [decision]}),
            )
            answer = json.loads(content)
            if status == 200:
                acknowledged.append(decision["request"])
                continue
            assert status == 507 and "cannot write" in answer["error"] and "\n" not in answer["error"]
            errors.append(decision)
            if len(errors) == 3:
                break
        assert acknowledged and len(errors) == 3
        assert client.get("/api/state")["decided"] == len(acknowledged)
        with read_session(tmp_path / "pile.h5") as session:
            assert [entry.request for entry in session.entries() if entry.request] == acknowledged
        resource.prlimit(review.process.pid, resource.RLIMIT_FSIZE, no_limit)
        assert len(client.post("/api/decide", decisions=errors)["accepted"]) == 3
        client.close()
