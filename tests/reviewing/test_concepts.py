"""Reviews of several concepts by one server: sessions, overview, one trainer."""

import json
import os
import re
import resource
import time
from contextlib import ExitStack

import numpy as np
import pytest
from helpers.browser import needs_chromium, violations
from helpers.live_pages import DECIDABLE, press, wait_until, wait_until_saved, watch
from helpers.reviews import TOKEN, ReviewProcess, Served, pictured_pile
from playwright.sync_api import expect

from pucache.errors import LabelError, SessionError
from pucache.reviewing.app import Application
from pucache.reviewing.pictures import Pictures
from pucache.reviewing.queue import NextImages
from pucache.reviewing.serve import identifier, open_concept_sessions, review
from pucache.reviewing.service import ReviewService
from pucache.reviewing.session import open_session, read_session

NAMES = ("blue", "green", "red & round")


def labelled_pile(folder, names=NAMES, n=60):
    """A cache of `n` pictures, and positives of each concept."""
    cache = pictured_pile(folder, n)
    keys = list(cache.keys)
    lines = [f"{keys[3 * number + row]},{name}\n" for number, name in enumerate(names) for row in range(3)]
    (folder / "labels.csv").write_text("key,concept\n" + "".join(lines))
    return cache


def test_identifiers_of_sessions_of_one_cache_differ(tmp_path):
    cache = pictured_pile(tmp_path, 12)
    with open_session(cache, folder=tmp_path / "a") as session:
        made = {identifier(session, TOKEN, name) for name in ("", "a", "b")}
        assert len(made) == 3 and identifier(session, TOKEN, "a") in made


@pytest.mark.parametrize(
    ("labels", "error", "text"),
    [
        ("key,concept\n000.png,../up\n", LabelError, "plain file name"),
        ("key,concept\nx,a\n", LabelError, "none of the"),
    ],
)
def test_what_cannot_be_reviewed_is_refused_before_a_page_opens(tmp_path, labels, error, text):
    cache = pictured_pile(tmp_path, 12)
    (tmp_path / "labels.csv").write_text(labels)
    with pytest.raises(error, match=text):
        review(cache, concepts=tmp_path / "labels.csv", open_browser=False, port=0)
    assert not (tmp_path / "pile.h5.review").exists()


def test_the_folder_of_a_single_review_is_left_alone(tmp_path):
    cache = labelled_pile(tmp_path)
    open_session(cache, tmp_path / "found.txt").close()
    with pytest.raises(SessionError, match="session of a single review"):
        review(cache, concepts=tmp_path / "labels.csv", open_browser=False, port=0)


def test_sessions_may_hold_more_files_open_than_a_process_has_by_default(tmp_path):
    cache = pictured_pile(tmp_path, 60)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
    try:
        with ExitStack() as stack:
            concepts = {f"{number:02}": [cache.keys[number]] for number in range(50)}
            sessions, failures = open_concept_sessions(cache, concepts, tmp_path / "reviews", None, stack)
            assert len(sessions) == 50 and not failures
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
def test_the_overview_of_200_concepts_and_a_switch_are_quick(tmp_path):
    cache = pictured_pile(tmp_path, 400)
    concepts = {f"{number:03}": [cache.keys[number]] for number in range(200)}
    with ExitStack() as stack:
        sessions, _ = open_concept_sessions(cache, concepts, tmp_path / "reviews", None, stack)
        pictures = Pictures(cache)
        stack.callback(pictures.close)
        services = []
        for name, session in sessions.items():
            queue, own = NextImages(session, np.random.default_rng(0)), identifier(session, TOKEN, name)
            services.append(ReviewService(session, queue, pictures, identifier=own, reviewer="tester"))
            stack.callback(services[-1].close)
            services[-1].begin(None)
        server = Served(Application(services, TOKEN, concepts=list(sessions)))
        stack.callback(server.close)
        client = server.client()
        stack.callback(client.close)
        began = time.perf_counter()
        status, _, page = client.ask("GET", "/")
        took = time.perf_counter() - began
        assert status == 200 and page.count(b'scope="row"') == 200 and took < 1, took
        for service in services[50:60]:
            client.session, began = service.identifier, time.perf_counter()
            card = client.next()[0]
            status, _, picture = client.ask("GET", f"/api/image/{card['row']}?session={service.identifier}")
            took = time.perf_counter() - began
            assert status == 200 and picture and took < 0.3, took


@needs_chromium
def test_a_person_reviews_three_concepts_on_one_server(tmp_path, browser):
    cache = labelled_pile(tmp_path)
    with open(tmp_path / "labels.csv", "a") as stream:
        stream.write("gone.png,lost\n")
    with (
        ReviewProcess(tmp_path, "--concepts", "labels.csv", "--port", "0") as process,
        browser.new_context(viewport={"width": 1280, "height": 800}) as context,
    ):
        page, shown = context.new_page(), {}
        wrong = watch(page, process.url)
        page.goto(process.url)
        expect(page.locator("tbody th a")).to_have_text(list(NAMES))
        expect(page.locator(".warning")).to_contain_text("lost is left out")
        assert not violations(page)
        for name, keys in zip(NAMES, ("ar", "rra", "a"), strict=True):
            page.click(f"text={name}")
            page.wait_for_selector(DECIDABLE)
            expect(page.locator("h1")).to_have_text(name)
            shown[name] = press(page, keys)
            wait_until_saved(page)
            wait_until(page, "[...document.images].every((image) => image.complete)")
            page.click("text=All concepts")
        decided = page.locator("tbody tr td:nth-child(4)")
        expect(decided).to_have_text(["2", "3", "1"])
        expect(page.locator("tbody tr td:nth-child(3)")).to_have_text(["1", "1", "1"])
        expect(page.locator("tbody tr td:last-child").first).to_have_text(re.compile(r"\d{4}-\d\d-\d\d"))
        assert not wrong and process.end() == 130
    words = {"a": "positive", "r": "negative"}
    for name in NAMES:
        with read_session(cache, tmp_path / "pile.h5.review" / name) as session:
            logged = [(entry.row, str(entry.choice)) for entry in session.entries() if not entry.is_draw]
            assert logged == [(row, words[key]) for row, key in shown[name]]
    assert json.loads((tmp_path / "pile.h5.review/server.json").read_text())["port"]
