"""Reviews of several concepts by one server: sessions, overview, one trainer."""

import json
import os
import re
from contextlib import ExitStack

import numpy as np
import pytest
from helpers.browser import needs_chromium, violations
from helpers.limits import limited
from helpers.live_pages import DECIDABLE, press, visited, wait_until, wait_until_saved
from helpers.reviews import ReviewProcess, pictured_pile, served
from helpers.sessions import proposal
from playwright.sync_api import expect

from pucache import read_labels, review
from pucache.errors import LabelError, SessionError
from pucache.reviewing.log import Stream
from pucache.reviewing.serve import open_concept_sessions
from pucache.reviewing.session import open_session, read_session

NAMES = ("blue", "green", "red & " + "round" * 18)


@pytest.fixture
def cache(tmp_path):
    """A cache of pictures, beside labels.csv with positives of each concept."""
    cache = pictured_pile(tmp_path)
    lines = [f"{cache.keys[3 * number + row]},{name}\n" for number, name in enumerate(NAMES) for row in range(3)]
    (tmp_path / "labels.csv").write_text("key,concept\n" + "".join(lines))
    return cache


def test_a_name_that_is_no_folder_and_the_folder_of_a_single_review_are_refused_before_a_page_opens(cache, tmp_path):
    (tmp_path / "up.csv").write_text("key,concept\n000.png,../up\n")
    with pytest.raises(LabelError, match="plain file name"):
        review(cache, read_labels(cache, tmp_path / "up.csv"), open_browser=False, port=0)
    assert not (tmp_path / "pile.h5.review").exists()
    open_session(cache, tmp_path / "found.txt").close()
    with pytest.raises(SessionError, match="session of a single review"):
        review(cache, read_labels(cache, tmp_path / "labels.csv"), open_browser=False, port=0)


def test_sessions_may_hold_more_files_open_than_a_process_has_by_default(cache, tmp_path):
    labels = read_labels(cache, {f"{number:02}": [cache.keys[number]] for number in range(25)})
    with limited("NOFILE", len(os.listdir("/proc/self/fd")) + 40), ExitStack() as stack:
        sessions, failures = open_concept_sessions(cache, labels, tmp_path / "reviews", None, stack)
        assert len(sessions) == 25 and not failures


def test_one_command_serves_all_concepts_that_can_be_opened(cache, tmp_path):
    with open(tmp_path / "labels.csv", "a") as stream:
        stream.write("gone.png,lost\n")
    with ReviewProcess(tmp_path, "--labels", "labels.csv", "--port", "0") as process:
        client = process.client()
        page = client.ask("GET", "/")[2].decode()
        sessions = re.findall(r"/\?session=(\w+)", page)
        assert len(sessions) == len(set(sessions)) == 3 and "lost is left out" in page
        for row, client.session in enumerate(sessions, 20):
            client.decide({"row": row, "serial": 0}, "positive")
        assert process.end() == 130
        assert all(f"{name}: 1 found. " in process.printed for name in NAMES)
    for row, name in enumerate(NAMES, 20):
        with read_session(cache, tmp_path / "pile.h5.review" / name) as session:
            assert [entry.row for entry in session.entries()] == [row]
    assert json.loads((tmp_path / "pile.h5.review/server.json").read_text())["port"]


@needs_chromium
def test_a_person_reviews_three_concepts_on_one_server_and_the_overview_fits_a_phone(cache, tmp_path, browser):
    folder = tmp_path / "reviews"
    with (
        served(cache, folder, tmp_path / "labels.csv", concepts=True) as (reviews, server),
        visited(browser, server.url) as page,
    ):
        shown = []
        expect(page.locator("tbody th a")).to_have_text(list(NAMES))
        assert not violations(page) and page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.set_viewport_size({"width": 320, "height": 844})
        for name, keys in zip(NAMES, ("ar", "rra", "a"), strict=True):
            page.click(f"text={name}")
            page.wait_for_selector(DECIDABLE)
            expect(page.locator("h1")).to_have_text(name)
            shown.append(press(page, keys))
            wait_until_saved(page)
            wait_until(page, "[...document.images].every((image) => image.complete)")
            assert page.evaluate("document.documentElement.scrollWidth") <= 320
            page.click("text=All concepts")
        expect(page.locator("tbody tr td:nth-child(4)")).to_have_text(["2", "3", "1"])
        expect(page.locator("tbody tr td:nth-child(3)")).to_have_text(["1", "1", "1"])
        expect(page.locator("tbody tr td:last-child").first).to_have_text(re.compile(r"\d{4}-\d\d-\d\d"))
        words = {"a": "positive", "r": "negative"}
        for review_of, pressed in zip(reviews, shown, strict=True):
            session, service = review_of.session, review_of.service
            logged = [(entry.row, str(entry.choice)) for entry in session.entries() if not entry.is_draw]
            assert logged == [(row, words[key]) for row, key in pressed]
            for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, 3):
                service.decide("t", [proposal(draw.row)])
            rows = np.flatnonzero(session.state.untaken)[:30].tolist()
            service.decide("t", [proposal(row, "negative") for row in rows])
        page.reload()
        expect(page.locator("tbody th a")).to_have_text(list(NAMES))
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert page.evaluate("getComputedStyle(document.querySelector('td')).fontSize") >= "12px"
        assert not violations(page)
