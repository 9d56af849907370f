import os
import signal
import stat

import pytest
from helpers.command_line import refused, run, table
from helpers.hangs import eventually
from helpers.review_client import ReviewClient
from helpers.reviews import ReviewProcess, pictured_pile, served

from pucache import EmbeddingCache
from pucache.errors import OutputError
from pucache.reviewing.access import (
    ADDRESS,
    ServerAddress,
    keep_address,
    kept_address,
    listening_socket,
    printed_url,
)

FOUND = ("--positives", "found.txt", "--port", "0")
GROUPED = "10 groups: of the likely positives one image of each comes first"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pictured_pile(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the command -------------------------------------------------------------------------------


def test_a_review_opens_in_a_browser_ends_by_a_signal_and_goes_on_where_it_was(folder):
    script, told = folder / "browser", folder / "told"
    script.write_text('#!/bin/sh\necho "$1" > "$(dirname "$0")/told"\n')
    script.chmod(0o755)
    with ReviewProcess(folder, *FOUND, "--reviewer", "Ann", browser=True, BROWSER=f"{script} %s") as first:
        client = first.client()
        assert f"http://127.0.0.1:{client.port}/?token={client.token}\n" in first.printed
        assert "4 labelled positive" in first.printed and "56 to search" in first.printed
        eventually(lambda: told.exists() and told.read_text())
        opened = told.read_text().strip()
        assert opened.startswith(first.url.partition("=")[0]) and opened != first.url
        again = ReviewClient(opened).enter()
        assert ReviewClient(opened).ask("GET", f"/?token={again.token}")[0] == 403, "it works once"
        client.decide({"row": 12, "serial": 0}, "positive")
        assert client.get("/api/state")["reviewer"] == "Ann"
        assert first.end() == 130
        said = first.printed.splitlines()
        assert said[-4].startswith("1 found. How many more is not known before the first random image among all.")
        assert said[-3] == "train on it: pucache train-pu pile.h5 --labels pile.h5.review"
        assert said[-1] == "interrupted: run the same command again; it goes on from what is on disk"
        assert "Traceback" not in first.printed
    with ReviewProcess(folder, "--positives", "found.txt", browser=True, BROWSER="/no/such/browser %s") as second:
        again = second.client()
        assert (again.port, again.token, again.session) == (client.port, client.token, client.session)
        assert client.get("/api/state")["found"] == 1, "the open page goes on with its cookie"
        assert "goes on with 1 decided, 1 of them positive" in second.printed
        eventually(lambda: "no browser could be started here" in second.printed)
        for row in range(60):
            client.decide({"row": row, "serial": 0}, "negative")
        assert second.end(signal.SIGTERM) == 143
        assert "train on it" not in second.printed, "nothing is unlabelled"


@pytest.mark.slow
def test_images_that_have_moved_and_a_port_in_use_are_said_at_the_start(folder):
    (folder / "images").rename(folder / "moved")
    with ReviewProcess(folder, *FOUND) as review:
        client = review.client()
        assert "the images cannot be shown (no such source" in review.printed and "--images SOURCE" in review.printed
        assert b"the images cannot be shown" in client.ask("GET", "/")[2]
        assert "no such source" in client.next(1)[0]["problem"]
        assert review.end() == 130
    run(r"labels pile.h5 found.txt --groups '(\d)\.' --out grouped.csv")
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with ReviewProcess(folder, "--labels", "grouped.csv", "--port", port, "--images", "moved") as review:
            client = review.client()
            assert client.port > port and f"port {port} is in use; {client.port} is served instead" in review.printed
            assert GROUPED in review.printed
            assert "cannot be shown" not in review.printed and client.ask("GET", "/api/image/7")[0] == 200
    with ReviewProcess(folder, "--images", "moved") as review:
        assert review.url and GROUPED in review.printed, "they are kept"


def test_an_address_that_is_none_is_one_line(folder):
    for where in ("--port 65536", "--port -1", "--host 203.0.113.7", "--host no/host"):
        assert where.split()[0] in refused(f"review pile.h5 --positives found.txt {where}", 2)
        assert not (folder / "pile.h5.review").exists(), "nothing was begun"


# --- export ------------------------------------------------------------------------------------


def test_the_labels_of_a_review_are_those_that_its_page_exports(folder):
    with served(EmbeddingCache("pile.h5"), None, "found.txt") as (_, server):
        client = server.client()
        client.decide({"row": 12, "serial": 0}, "positive"), client.decide({"row": 20, "serial": 0}, "negative")
        answer = client.post("/api/export")
    path = folder / "pile.h5.review/reviewed.csv"
    assert answer["files"] == [str(path.relative_to(folder))]
    run("labels pile.h5 pile.h5.review")
    for written in (path, folder / "labels.csv"):
        labels = {row["key"]: (row["label"], row["reviewed"]) for row in table(written)}
        assert labels["000.png"] == ("1", "0") and labels["012.png"] == ("1", "1") and labels["020.png"] == ("0", "1")


# --- address --------------------------------------------------------------------------------------


DAMAGED = ["", "{", "[]", "{}", '{"port": 1}', '{"port": 0, "token": "%s"}', '{"port": "1", "token": "%s"}', "\xff"]
DAMAGED += ['{"port": 70000, "token": "%s"}', '{"port": 1, "token": ""}', '{"port": 1, "token": 5}']


def test_the_address_is_kept_for_its_owner_alone_and_a_damaged_one_is_replaced(tmp_path):
    address, path = ServerAddress(8321, "x" * 43), tmp_path / ADDRESS
    keep_address(tmp_path, address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept_address(tmp_path) == address and os.listdir(tmp_path) == [ADDRESS]
    for text in DAMAGED:
        path.write_bytes(text.replace("%s", "x" * 43).encode("latin-1"))
        assert kept_address(tmp_path) is None, text
    keep_address(tmp_path, address)
    path.chmod(0o640)
    assert kept_address(tmp_path) is None, "others may have read it"


def test_every_port_in_use_is_one_line_and_printed_addresses_can_be_opened(monkeypatch):
    monkeypatch.setattr("pucache.reviewing.access.PORTS", 1)
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(OutputError, match="all in use; name a free one"):
        listening_socket("127.0.0.1", taken.getsockname()[1])
    for host, named in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("0.0.0.0", "127.0.0.1")):
        assert printed_url(host, 1, "t") == f"http://{named}:1/?token=t"
