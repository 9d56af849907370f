import json
import re
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.hangs import HANG_SECONDS
from helpers.reviews import SilentTrainer, picture_of, pictured_pile, served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pucache import EmbeddingCache
from pucache.pages.html import read_asset
from pucache.reviewing.app import ASSETS, MAX_BODY, MAX_DECISIONS, Application, review_page
from pucache.reviewing.log import Stream
from pucache.training.ranking_result import RankingResult

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get")
READ, WRITTEN = {"GET", "HEAD"}, {"POST"}
TABLE = {  # every route: its methods, an address of it, and a body
    "/": (READ, "/", {}),
    "/assets/{name}": (READ, "/assets/base.css", {}),
    "/api/state": (READ, "/api/state", {}),
    "/api/card/{row}": (READ, "/api/card/7", {}),
    "/api/past/{row}": (READ, "/api/past/7", {}),
    "/api/image/{row}": (READ, "/api/image/7", {}),
    "/api/next": (WRITTEN, "/api/next", {"count": 0}),
    "/api/decide": (WRITTEN, "/api/decide", {"decisions": []}),
    "/api/release": (WRITTEN, "/api/release", {}),
    "/api/closing-audit": (WRITTEN, "/api/closing-audit", {"on": False}),
    "/api/export": (WRITTEN, "/api/export", {}),
}
BROKEN, GONE = 50, 51


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pile")
    cache = pictured_pile(folder, broken=[BROKEN])
    (folder / "images" / f"{GONE:03}.png").unlink()
    return cache, folder / "found.txt"


@pytest.fixture
def cache(pile):
    return EmbeddingCache(pile[0].files[0].path)


@pytest.fixture
def opened(cache, pile, tmp_path):
    """What a review consists of, its server among it."""
    with served(cache, tmp_path / "session", pile[1]) as (opened, opened.server):
        yield opened


@pytest.fixture
def client(opened):
    return opened.server.client()


@pytest.fixture(scope="module")
def unchanged(pile, tmp_path_factory):
    """A server for tests that decide nothing."""
    with served(pile[0], tmp_path_factory.mktemp("unchanged") / "session", pile[1]) as (_, server):
        yield server


@pytest.fixture
def visitor(unchanged):
    return unchanged.client()


def test_what_the_panel_shows_is_of_one_moment(opened, client):
    """The count of hidden positives follows the log: tiles, sentence and buttons are those of its moment."""
    opened.service.take_ranking(RankingResult(np.zeros(len(opened.session.cache), np.float32), None, 0.0), 0)
    panels = []
    for number in range(20):
        (card,) = client.next()
        panels.append(client.decide(card, ("positive", "negative")[number % 2])["state"]["panel"])
        row = np.array([card["row"]])
        if number > 12:
            opened.session.doubt(row)
            panels.append(client.get("/api/state")["panel"])
    last = client.get("/api/state")
    while f"{last['found']} found." not in last["panel"]:
        last = client.get("/api/state")
    for panel in [*panels, last["panel"]]:
        tile = re.search(r'id="found">(\d+)<', panel)[1]
        sentence = re.search(r'id="sentence">(.*?)<', panel)[1]
        doubted = re.search(r'data-only="doubted" data-count="(\d*)"', panel)[1]
        if sentence:
            assert sentence.startswith(f"{tile} found.")
            assert (f"look again at {doubted} doubted" in sentence) == bool(doubted), sentence


# --- every route, every method -----------------------------------------------------------------


def test_nothing_of_the_page_is_inline_or_from_elsewhere_and_text_is_escaped():
    state = {"session": '"><script>', "panel": "", "examples": [{"row": 1, "key": "<u>"}]}
    html = review_page(state, title="<i>", warnings=["<b>"], overview=False)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)[^>]*>|javascript:", html)
    named = re.findall(r'(?:href|src)="([^"]*)"', html)
    assets = [path.removeprefix("/assets/") for path in named if path.startswith("/assets/")]
    assert sorted([*assets, "concepts.css"]) == sorted(ASSETS), "the overview of concepts has one of its own"
    assert all(path.startswith(("/assets/", "#", "/api/image/")) for path in named)
    assert "&lt;b&gt;" in html and not any(text in html for text in ("<i>", "<b>", "<u>", '"><script>'))
    text = "".join(map(read_asset, ASSETS)).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_the_table_of_this_test_names_every_route():
    assert {route.path: set(route.methods) for route in Application([], "token").routes} == {
        path: methods for path, (methods, _, _) in TABLE.items()
    }


@pytest.mark.parametrize("path", TABLE)
def test_each_route_answers_its_methods_alone_and_only_who_may(visitor, path):
    methods, address, body = TABLE[path]
    text = json.dumps({"session": visitor.session, "tab": visitor.tab, **body})
    cookie, own = {"Cookie": visitor.cookie}, {"Origin": visitor.origin, "Content-Type": "application/json"}
    for method in METHODS:
        content = None if method in READ else text
        assert visitor.ask(method, address, content, bare=True, **own)[0] == 403, "without the cookie"
        without = visitor.ask(method, address, content, bare=True, **cookie)[0]
        assert method in READ or without == 403, "without an Origin"
        status, headers, _ = visitor.ask(method, address, content, **own)
        assert status == (200 if method in methods else 405), (method, path, status)
        assert headers["content-security-policy"].startswith("default-src 'self'")


NOWHERE = (
    "/x /api /api/ /api/state/ /favicon.ico /assets/ /assets/../app.py /assets/base.html /assets/report.js "
    "/assets/review.css/ /assets/REVIEW.CSS"
).split()
RAW = [b"http://evil.example/api/state", b"//evil.example/api/state", b"*", b"/api/state%00"]


def raw(server, text):
    """The answer to bytes that no client library would send."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(text)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer


def test_what_is_no_route_is_nothing_and_no_redirect(unchanged, visitor):
    for path in NOWHERE:
        status, headers, _ = visitor.ask("GET", path)
        assert status == 404 and "location" not in headers, path
    lines = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: " + visitor.cookie.encode() + b"\r\n\r\n"
    for target in RAW:
        assert raw(unchanged, b"GET " + target + lines).startswith(b"HTTP/1.1 404"), target
    assert raw(unchanged, b"GET /api/state" + lines).startswith(b"HTTP/1.1 200")


# --- images ------------------------------------------------------------------------------------


def test_an_image_is_decoded_and_encoded_again(visitor, pile):
    status, headers, content = visitor.ask("GET", "/api/image/7")
    assert status == 200 and headers["content-type"] == "image/png"
    original = pile[0].files[0].path.parent / "images" / "007.png"
    assert picture_of(content).size == (47, 30) and content != original.read_bytes()
    for size in ("card", "original"):
        assert visitor.ask("GET", f"/api/image/7?size={size}")[0] == 200
    part = visitor.ask("GET", "/api/image/7", Range="bytes=0-10")
    assert part[0] == 200 and part[2] == content and "accept-ranges" not in part[1]
    assert headers["cache-control"] == visitor.ask("GET", "/api/image/7?v=other")[1]["cache-control"] == "no-store"
    assert "private" in visitor.ask("GET", f"/api/image/7?v={visitor.session}")[1]["cache-control"]


NO_IMAGES = (
    "../app.py ../../etc/passwd %2e%2e %2e%2e%2fetc%2fpasswd ..%2f -1 -0 +1 1e9 60 61 999999999999 "
    "9999999999999999999999 %D9%A3 0x1 01 00 1.0 1_0 7.png 7/ %207 7%00 7;v=1 NaN 7%0a"
).split()


def test_whatever_is_no_image_answers_alike(unchanged, visitor):
    broken, _, body = visitor.ask("GET", f"/api/image/{BROKEN}")
    assert (broken, json.loads(body)) == (404, {"error": "there is nothing at this address"})
    answers = [visitor.ask("GET", f"/api/image/{name}") for name in (BROKEN, GONE, *NO_IMAGES)]
    answers += [visitor.ask("GET", f"/api/image/7?size={size}") for size in ("huge", "", "../card", "1e9")]
    assert {(status, content) for status, _, content in answers} == {(404, body)}
    names = [{name: value for name, value in headers.items() if name != "date"} for _, headers, _ in answers]
    assert all(one == names[0] for one in names)
    line = "GET /api/image/٣ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: " + visitor.cookie + "\r\n\r\n"
    assert raw(unchanged, line.encode())[9:12] in (b"400", b"404")


# --- cards -------------------------------------------------------------------------------------


def test_a_card_says_neither_score_nor_stream_nor_earlier_decision(cache, tmp_path):
    labels = tmp_path / "found.txt"
    labels.write_text("".join(f"{row:03}.png\n" for row in range(15, 25)))
    with served(cache, tmp_path / "session", labels, audit_share=0.5, recheck_share=0.5) as (opened, server):
        client = server.client()
        for _ in range(40):
            for card in client.next(2):
                assert set(card) == {"row", "key", "part", "problem", "note", "serial"}
                assert card["key"] == f"{card['row']:03}.png"
                assert card["serial"] == 0, "also where it was decided before, and is shown to see whether it is seen"
                client.decide(card, "positive" if card["row"] < 25 else "negative")
        streams = {entry.stream for entry in opened.session.entries()}
        assert Stream.AUDIT in streams and Stream.RECHECK in streams


def test_an_image_that_cannot_be_shown_says_why_on_its_card(visitor, monkeypatch):
    monkeypatch.setattr("pucache.reviewing.service.PICTURE_SECONDS", HANG_SECONDS)
    cards = []
    while BROKEN not in {card["row"] for card in cards}:
        cards += visitor.next(20, [card["row"] for card in cards])
    problems = {card["row"]: card["problem"] for card in cards}
    problems.pop(GONE, None)
    assert "not an image" in problems.pop(BROKEN) and set(problems.values()) == {""}
    assert "No such file" in visitor.get(f"/api/card/{GONE}")["problem"]
    assert "not an image" in visitor.get(f"/api/card/{BROKEN}")["problem"]
    assert visitor.ask("GET", "/api/card/60")[0] == visitor.ask("GET", "/api/card/x")[0] == 404


# --- decisions ---------------------------------------------------------------------------------


def test_what_another_tab_decided_meanwhile_is_said_and_not_overwritten(opened, client):
    other, cards = opened.server.client(), client.next(3)
    (stands,) = other.decide(cards[1], "negative")["accepted"]
    decisions = [
        {"request": f"r{number}", "row": cards[number]["row"], "choice": "skip", "replaces": 0} for number in range(3)
    ]
    answer = client.post("/api/decide", decisions=decisions)
    assert [item["request"] for item in answer["accepted"]] == ["r0", "r2"], "the rest of a request is taken"
    assert answer["stale"] == [{**stands, "request": "r1"}] and answer["state"]["negatives"] == 1
    (changed,) = client.decide({**cards[1], "serial": stands["serial"]}, "positive")["accepted"]
    assert changed["choice"] == "positive" and client.get("/api/state")["found"] == 1


def test_a_page_of_another_session_decides_nothing_here(visitor):
    for session in ("", "x", None, 3, [visitor.session]):
        decision = {"request": "r", "row": 40, "choice": "positive", "replaces": 0}
        refusal = visitor.post("/api/decide", 409, session=session, decisions=[decision])
        assert refusal == json.loads(visitor.ask("GET", "/api/state?session=gone")[2])
    status, headers, _ = visitor.ask("GET", "/?session=gone")
    assert (status, headers["location"], visitor.get("/api/state")["decided"]) == (307, "/", 0), "a reload begins anew"


def test_what_could_not_be_written_is_not_acknowledged_and_can_be_sent_again(opened, client):
    """Here because the folder of the session was moved away."""
    (card,) = client.next(1)
    decision = {"request": "r1", "row": card["row"], "choice": "positive", "replaces": 0}
    folder = opened.session.folder
    shutil.move(folder, folder.with_name("elsewhere"))
    error = client.post("/api/decide", 507, decisions=[decision])["error"]
    assert "decisions.sqlite was moved, deleted or replaced" in error and "\n" not in error
    assert client.get("/api/state")["decided"] == 0
    shutil.move(folder.with_name("elsewhere"), folder)
    assert len(client.post("/api/decide", decisions=[decision])["accepted"]) == 1


def test_a_decision_waits_for_no_picture(opened, client, monkeypatch):
    stop = threading.Event()
    monkeypatch.setattr(opened.pictures, "_encoded", lambda *_: stop.wait(HANG_SECONDS) and None)
    with ThreadPoolExecutor(6) as threads:
        for row in range(20, 26):
            threads.submit(client.ask, "GET", f"/api/image/{row}")
        try:
            assert len(client.decide({"row": 40, "serial": 0}, "negative")["accepted"]) == 1
        finally:
            stop.set()


# --- what a request may be ---------------------------------------------------------------------

GOOD = {"request": "r", "row": 40, "choice": "skip", "replaces": 0}
ODD = [
    {"decisions": 1},
    {"decisions": {}},
    {"decisions": [1]},
    {"decisions": [{}]},
    *({"decisions": [{**GOOD, "request": value}]} for value in (None, 1, "", "a b", "x" * 65, "ä", ["r"])),
    *({"decisions": [{**GOOD, "row": value}]} for value in (None, -1, 60, 1.0, "40", True, [], 10**400)),
    *({"decisions": [{**GOOD, "choice": value}]} for value in (None, "", "maybe", 1, ["skip"], {})),
    *({"decisions": [{**GOOD, "replaces": value}]} for value in (None, -1, 0.5, "0", False, 1 << 60)),
    *({"decisions": [{**GOOD, "shown_version": value}]} for value in (None, -1, "x")),
    *({"decisions": [GOOD], "tab": value} for value in (None, "", 5, "a/b", "x" * 65)),
]
NO_COUNTS = [{}, {"count": -1}, {"count": 10**9}, {"count": 1, "keep": [60]}, {"count": True}]
NO_AUDITS = [{}, {"on": 1}, {"on": "true"}, {"on": True, "zone": "some"}, {"on": True, "zone": "likeliest"}]


def test_an_odd_request_is_one_line_and_changes_nothing(visitor):
    for path, bodies in (("decide", ODD), ("next", NO_COUNTS), ("closing-audit", NO_AUDITS)):
        for body in bodies:
            error = visitor.post(f"/api/{path}", 400, **body)["error"]
            assert error and "\n" not in error and visitor.get("/api/state")["decided"] == 0, body


def test_what_is_no_json_object_is_refused(visitor):
    for text in ("", "x", "[]", "1", "null", '"a"', "{", "[" * 100_000, '{"a":' * 50_000, "\x00", "1" * 6000):
        status, _, content = visitor.ask("POST", "/api/decide", text)
        assert status == 400 and "JSON" in json.loads(content)["error"]


def test_bodies_are_bounded_by_what_they_say_and_by_what_they_are(unchanged, visitor):
    status, _, content = visitor.ask("POST", "/api/decide", " " * (MAX_BODY + 1))
    assert status == 413 and "at most" in json.loads(content)["error"]
    head = f"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1:{unchanged.port}\r\nOrigin: {visitor.origin}\r\n"
    head += f"Cookie: {visitor.cookie}\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = raw(unchanged, head.encode() + piece * (MAX_BODY // 0x10000 + 1) + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    decisions = [{**GOOD, "request": f"r{number}"} for number in range(MAX_DECISIONS + 1)]
    assert visitor.post("/api/decide", 413, decisions=decisions)["error"]
    assert visitor.get("/api/state")["decided"] == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["tab", "count", "keep", "decisions", "on", "row", "request", "choice", "replaces"])
BODIES = st.dictionaries(FIELDS, JSON | st.lists(st.dictionaries(FIELDS, JSON)), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(path=st.sampled_from([path for path, (methods, _, _) in TABLE.items() if methods == WRITTEN]), body=BODIES)
def test_no_body_is_an_error_of_the_server(client, path, body):
    status, _, content = client.ask("POST", path, json.dumps({"session": client.session} | body))
    assert status in (200, 400, 413) and isinstance(json.loads(content), dict), (status, content)


# --- rankings ----------------------------------------------------------------------------------


def test_the_first_images_wait_for_the_first_ranking(cache, pile, tmp_path, monkeypatch):
    monkeypatch.setattr("pucache.reviewing.service.RANKING_SECONDS", HANG_SECONDS)
    with served(cache, tmp_path / "session", pile[1], trainer=SilentTrainer(), audit_share=0.0) as (opened, server):
        client, got = server.client(), []
        thread = threading.Thread(target=lambda: got.extend(client.next(2)))
        thread.start()
        thread.join(0.2)
        assert not got
        opened.service.take_ranking(RankingResult(np.arange(60, dtype=np.float32), None, 0.1), 0)
        thread.join(HANG_SECONDS)
        assert [card["row"] for card in got] == [59, 58]
    with served(cache, tmp_path / "another", pile[1], trainer=SilentTrainer()) as (opened, server):
        opened.service.report("training cannot start")
        assert len(server.client().next(2)) == 2, "nobody waits for a ranking that does not come"


def test_an_error_of_ours_is_one_line_and_the_server_goes_on(opened, client, monkeypatch, caplog):
    monkeypatch.setattr(opened.queue, "release", lambda tab: 1 / 0)
    error = client.post("/api/release", 500)["error"]
    assert "ZeroDivision" not in error and "\n" not in error
    monkeypatch.undo()
    assert client.post("/api/release")["state"]


def test_the_pages_of_a_session_that_has_closed_say_so(opened, client):
    opened.session.failure = "the review in S has closed: its log could neither be written nor read back"
    for path in ("/", "/api/state", "/api/past/0", "/api/card/7"):
        status, _, content = client.ask("GET", path)
        assert status == 507 and b"has closed" in content, path
    assert "has closed" in client.post("/api/decide", 507, decisions=[])["error"]
    assert "has closed" in client.post("/api/next", 507, count=1)["error"]
