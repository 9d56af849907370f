import contextlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.browser import needs_chromium, violations
from helpers.command_line import run_json
from helpers.live_pages import DECIDABLE, another, current_row, press, tap, visited, wait_until, wait_until_saved
from helpers.reviews import BusyTrainer, ReviewProcess, pictured_pile, served
from helpers.slow import slow
from playwright.sync_api import expect

import pucache
from pucache.pages.html import read_asset
from pucache.reviewing.app import ASSETS, review_page
from pucache.reviewing.session import read_session
from pucache.training.ranking_result import RankingResult

WORDS = {"a": "positive", "r": "negative", "s": "skip"}
PATTERN = "arasrarr"


@contextlib.contextmanager
def reviewing(browser, folder, n=120, *, broken=(), context=None, **settings):
    """A page of a review on `n` pictures; yields the page and what the server consists of."""
    cache = pictured_pile(folder, n, broken=broken)
    context = {"reduced_motion": "reduce"} | (context or {})
    with (
        served(cache, folder / "session", folder / "found.txt", **settings) as (opened, server),
        visited(browser, server.url, **context) as page,
    ):
        yield page, opened, server


def logged(session):
    """Row and choice of each decision, in the order of the log."""
    return [(entry.row, str(entry.choice)) for entry in session.entries() if not entry.is_draw]


def wanted(shown):
    return [(row, WORDS[key]) for row, key in shown]


def choice_of(session, row):
    decision = session.state.in_force(row)
    return None if decision is None else str(decision.choice)


def choices_of(session, rows):
    return [choice_of(session, row) for row in rows]


def grid_rows(page):
    """Rows of the images of the page of 12."""
    return page.evaluate("pageItems().map((item) => item.row)")


def held_rows(page):
    """Rows that the tab shows or is about to show."""
    return set(page.evaluate("items.filter((item) => !item.decision).map((item) => item.row)"))


def wait_for_grid(page):
    """Until all images of the page of 12 can be decided."""
    wait_until(page, "isPage && pageItems().length && pageItems().every(isReady)")


def badges(page):
    return [text.split(" ")[-1] for text in page.locator("#grid .badge").all_text_contents()]


def focused(page):
    """Number of the card that has the focus."""
    return page.evaluate("Number(document.activeElement.dataset.number)")


def press_on_random(page, session, keys):
    """Press each key on an image that was drawn at random; ranked ones that come before it are rejected."""
    shown = []
    for key in keys:
        page.wait_for_selector(DECIDABLE)
        while current_row(page) not in {draw.row for draw in session.state.waiting()}:
            press(page, "r")
            page.wait_for_selector(DECIDABLE)
        shown += press(page, key)
    return shown


# --- what is served ----------------------------------------------------------------------------


def test_nothing_of_the_page_is_inline_or_from_elsewhere_and_text_is_escaped():
    state = {"session": '"><script>', "panel": "", "examples": [{"row": 1, "key": "<u>"}]}
    html = review_page(state, title="<i>", warnings=["<b>"], overview=False)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)[^>]*>|javascript:", html)
    named = re.findall(r'(?:href|src)="/assets/([^"]+)"', html)
    assert sorted([*named, "concepts.css"]) == sorted(ASSETS), "the overview of concepts has one of its own"
    assert all(
        path.startswith(("/assets/", "#", "/api/image/")) for path in re.findall(r'(?:href|src)="([^"]*)"', html)
    )
    assert (
        "<i>" not in html
        and "<b>" not in html
        and "<u>" not in html
        and '"><script>' not in html
        and "&lt;b&gt;" in html
    )
    text = "".join(map(read_asset, ASSETS)).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


# --- deciding ----------------------------------------------------------------------------------


@needs_chromium
def test_a_review_by_keyboard_in_which_keys_held_down_or_behind_a_dialog_do_nothing(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, _):
        session = opened.session
        pictures = page.locator("#examples img")
        expect(pictures).to_have_count(4)
        keys = session.cache.keys[session.state.examples]
        assert [picture.get_attribute("alt") for picture in pictures.all()] == list(keys)
        wait_until(page, "[...document.querySelectorAll('#examples img')].every((image) => image.naturalWidth)")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the images"
        page.keyboard.press("Enter")
        first = press(page, "aars")
        expect(page.locator("#announcement")).to_have_text(re.compile(r"^skipped\. Next: \d{3}\.png$"))
        shown = {"#found": "2", "#decided": "3", "#skipped": "1", "#rate": "67 %", "#rate-of": "Found in last 3"}
        for place, text in shown.items():
            expect(page.locator(place)).to_have_text(text)
        expect(page.locator("#sentence")).not_to_be_empty()
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        expect(page.locator("#stage-badge")).to_have_text("✓ accepted")
        tap(page, "r")
        assert page.evaluate("!items[current].decision"), "goes on where the review was"
        tap(page, "u")
        assert current_row(page) == first[0][0]
        wait_until_saved(page)
        assert choices_of(session, [row for row, _ in first]) == ["positive", "positive", "negative", "skip"]
        for row, _ in reversed(first):
            tap(page, "u")
            assert current_row(page) == row
        page.keyboard.press("Control+z")
        assert page.text_content("#announcement") == "nothing to undo"
        again = press(page, "rrrr")
        assert {row for row, _ in again} == {row for row, _ in first}
        wait_until_saved(page)
        assert choices_of(session, [row for row, _ in again]) == ["negative"] * 4
        before = len(logged(session))
        page.wait_for_selector(DECIDABLE)
        for _ in range(5):
            page.keyboard.down("a")
        page.keyboard.up("a")
        wait_until_saved(page)
        for key in ("Alt+a", "Meta+r", "Control+a", "Control+s", "Shift+s", "Shift+R", "?", "a", "r", "u", "g"):
            page.keyboard.press(key)
        assert page.is_visible("#help") and not page.evaluate("isPage")
        page.get_by_text("Letters are keys").click()
        page.keyboard.press("Escape")
        press(page, "aru")
        page.click("[data-decide=rejected]")
        wait_until_saved(page)
        assert [choice for _, choice in logged(session)[before:]] == ["positive", "negative"]


@needs_chromium
def test_a_page_of_twelve_by_keys_and_by_mouse_with_images_that_come_late(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, _):
        session = opened.session
        page.keyboard.press("g")
        wait_for_grid(page)
        rows = grid_rows(page)
        tap(page, "a", "s", "Shift+R")
        assert choices_of(session, rows) == ["positive", "skip", *["negative"] * 10]
        wait_for_grid(page)
        assert not set(grid_rows(page)) & set(rows) and focused(page) == 12
        tap(page, "Shift+A", "u", "u")
        assert badges(page) == ["accepted", "skipped", *[""] * 10] and grid_rows(page) == rows
        assert choices_of(session, rows) == ["positive", "skip", *[None] * 10], "the rest was one step"
        page.locator("#grid .name").nth(5).click()
        assert focused(page) == 5 and page.evaluate("columns()") > 2
        for key in ("Home", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"):
            page.keyboard.press(key)
        assert focused(page) == 1
        accept = page.locator("#grid [data-decision=accepted]").nth(3)
        accept.click()
        wait_until_saved(page)
        assert accept.get_attribute("aria-pressed") == "true" and badges(page)[3] == "accepted"
        accept.click()
        wait_until_saved(page)
        assert badges(page)[3] == ""
        page.click("[data-rest=rejected]")
        wait_until_saved(page)
        assert choices_of(session, rows[2:]) == ["negative"] * 10
        page.click("[data-turn='-1']")
        assert grid_rows(page) == rows and page.locator("#grid [tabindex='0']").count() == 3, "a card and its buttons"
        held = []
        page.route("**/api/next", lambda route: held.append(route))
        while page.locator("#end").is_hidden():
            tap(page, "Shift+R")
        wait_until(page, "document.activeElement === document.body")
        for route in held:
            route.continue_()
        page.unroute("**/api/next")
        wait_until(page, "Number(document.activeElement.dataset.number) === current")


@needs_chromium
def test_buttons_and_the_enlarged_image_decide_as_keys_do_and_the_focus_stays(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, _):
        row = current_row(page)
        page.click("[data-decide=accepted]")
        wait_until_saved(page)
        second = current_row(page)
        page.click("[data-decide=skipped]")
        wait_until_saved(page)
        page.click("#one [data-undo]")
        wait_until_saved(page)
        page.click("[data-step='-1']")
        assert current_row(page) == row and page.get_attribute("[data-decide=accepted]", "aria-pressed") == "true"
        page.click("[data-step='1']")
        page.keyboard.press("z")
        picture = page.locator("#zoom-picture")
        expect(picture).to_have_attribute("src", re.compile(f"/api/image/{second}.*size=original"))
        page.keyboard.press("f")
        assert picture.evaluate("one => one.clientWidth") == 40 + second, "one pixel is one pixel"
        tap(page, "a")
        assert current_row(page) != second and page.is_visible("#zoom")
        assert re.match("accepted. Next: ", page.text_content("#zoom-announcement"))
        tap(page, "u")
        page.click("[data-zoom=rejected]")
        wait_until_saved(page)
        page.keyboard.press("z")
        assert not page.is_visible("#zoom")
        wait_until_saved(page)
        assert choices_of(opened.session, [row, second]) == ["positive", "negative"]
        page.focus("[data-decide=accepted]")
        tap(page, "Space", "r")
        assert page.evaluate("document.activeElement.dataset.decide") == "accepted"
        page.keyboard.press("g")
        wait_for_grid(page)
        for key in ("Home", "z", "ArrowRight", "Escape"):
            page.keyboard.press(key)
        expect(page.locator(".cell:focus")).to_have_count(1)  # the dialog tells that it is closed a little later
        assert focused(page) == 1


REFUSED = """for (const name of ["localStorage", "sessionStorage"])
Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""


def ask_soon(route):
    """Let a page ask for images that other tabs hold more often than every five seconds."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace("FREE_SECONDS = 5;", "FREE_SECONDS = 0.3;"))


@needs_chromium
def test_the_pile_ends_and_skipped_images_come_again_in_a_browser_that_stores_nothing(tmp_path, browser):
    """The review begins without positives."""
    cache = pictured_pile(tmp_path, 12, positives=0)
    with (
        served(cache, tmp_path / "session") as (opened, server),
        visited(browser, server.url) as first,
    ):
        first.context.route("**/assets/review.js", ask_soon)
        page, wrong = another(first.context, server.url, init=REFUSED)
        expect(page.locator("#end-title")).to_have_text("No image is free")
        first.goto("about:blank")  # its images are shown here now
        shown = press(page, "srs" + "r" * 9)
        assert len({row for row, _ in shown}) == 12
        expect(page.locator("#end-title")).to_have_text("Every image is decided or skipped")
        expect(page.locator("#skipped-again")).to_have_text("Show the 2 skipped again")
        page.click("#skipped-again")
        again = press(page, "aa")
        assert {row for row, _ in again} == {shown[0][0], shown[2][0]}
        expect(page.locator("#end-title")).to_have_text("Every image is decided")
        assert violations(page) == [] and not page.is_visible("#one")
        page.keyboard.press("a")
        tap(page, "u")
        assert current_row(page) == again[-1][0] and page.is_visible("#one")
        press(page, "r")
        wait_until_saved(page)
        assert choices_of(opened.session, [row for row, _ in again]) == ["positive", "negative"]
        page.reload()
        expect(page.locator("#end-title")).to_have_text("Every image is decided")
        assert not wrong


@needs_chromium
def test_images_that_cannot_be_shown_say_why_and_are_skipped(tmp_path, browser):
    cache = pictured_pile(tmp_path, 40)
    for path in (tmp_path / "images").iterdir():
        path.unlink()
    with (
        served(cache, tmp_path / "session", tmp_path / "found.txt") as (opened, server),
        visited(browser, server.url, lost=True) as page,
    ):
        expect(page.locator("#stage-absent")).to_contain_text("cannot be shown: ")
        assert "S skips it" in page.text_content("#stage-absent") and violations(page) == []
        (row, _), *_ = press(page, "s")
        page.keyboard.press("g")
        wait_for_grid(page)
        page.keyboard.press("Shift+A")
        wait_until_saved(page)
        assert logged(opened.session) == [(row, "skip")], "nobody has seen the rest of the page"
        page.keyboard.press("z")
        assert page.is_visible("#zoom-absent") and not page.is_visible("#zoom-picture")


# --- two tabs, a server that ends ---------------------------------------------------------------


@needs_chromium
def test_two_tabs_show_different_images_and_neither_loses_or_overwrites_a_decision(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, server):
        other, wrong = another(page.context, server.url)
        shown = []
        for number, key in enumerate(PATTERN):
            shown += press((page, other)[number % 2], key)
        for tab in (page, other):
            wait_until_saved(tab)
            expect(tab.locator("#decided")).to_have_text("7")
        assert len({row for row, _ in shown}) == len(logged(opened.session)) == 8
        assert dict(logged(opened.session)) == dict(wanted(shown))
        page.wait_for_selector(DECIDABLE)
        row = current_row(page)
        other.evaluate(f"save([{{ row: {row}, choice: 'negative', replaces: 0, shown_version: 0 }}])")
        wait_until_saved(other)
        press(page, "a")
        stands = "was decided elsewhere before: rejected. That decision stands"
        expect(page.locator("#overruled")).to_contain_text(stands)
        assert choice_of(opened.session, row) == "negative"
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#stage-badge")).to_have_text("✗ rejected")
        page.keyboard.press("a")
        wait_until_saved(page)
        assert choice_of(opened.session, row) == "positive" and not wrong


@needs_chromium
def test_a_reload_waits_for_images_and_what_a_closed_page_held_is_free(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, server):
        shown = press(page, "ars")
        wait_until_saved(page)
        held, closed = [], [True]
        page.route("**/api/image/**", lambda route: held.append(route) if closed else route.continue_())
        page.reload(wait_until="domcontentloaded")
        expect(page.locator("#stage")).to_have_attribute("data-status", "loading")
        page.keyboard.press("a")
        assert page.text_content("#announcement") == "the image is still loading"
        closed.clear()
        for route in held:
            route.continue_()
        wait_until(page, "items[current] && isReady(items[current])")
        assert current_row(page) not in [row for row, _ in shown]
        page.keyboard.press("u")
        assert page.text_content("#announcement") == "nothing to undo", "past decisions are corrected in their list"
        ahead = held_rows(page)
        other, wrong = another(page.context, server.url)
        assert not ahead & held_rows(other)
        page.goto("about:blank")
        other.evaluate("exchange()")
        wait_until(other, "!asking")
        third, wrong_there = another(page.context, server.url)
        assert ahead & held_rows(third) and not wrong + wrong_there
        assert len(logged(opened.session)) == 3


@needs_chromium
def test_the_page_waits_for_a_server_that_has_ended_and_goes_on_when_it_is_started_again(tmp_path, browser):
    place = pictured_pile(tmp_path, 120), tmp_path / "session", tmp_path / "found.txt"
    with contextlib.ExitStack() as stack:
        with served(*place) as (_, first):
            page = stack.enter_context(visited(browser, first.url, lost=True))
            shown = press(page, PATTERN)
            wait_until(page, "!asking && items.length > 14 && items.every(isReady)")
            wait_until_saved(page)
        shown += press(page, "a")
        expect(page.locator("#trouble")).to_contain_text("This decision is not saved yet; the server does not answer")
        page.keyboard.press("r")
        assert current_row(page) == shown[-1][0], "it stays, and takes no further decision"
        with served(*place, port=first.port) as (opened, second):
            wait_until_saved(page)
            other, wrong = another(page.context, second.url)
            assert not held_rows(page) & held_rows(other), "the new server knows what this tab shows"
            other.close()
            shown += press(page, "ra")
            wait_until_saved(page)
            assert not wrong and logged(opened.session) == wanted(shown)


@needs_chromium
def test_a_new_ranking_exchanges_images_that_are_not_shown_yet(tmp_path, browser):
    cache = pictured_pile(tmp_path, 120)
    scores = np.arange(120, dtype=np.float32)
    with served(cache, tmp_path / "session", tmp_path / "found.txt", begin=False, audit_share=0.0) as (opened, server):
        opened.service.begin(BusyTrainer())
        opened.service.take_ranking(RankingResult(-scores, None, 0.1), 0)
        with visited(browser, server.url) as page:
            learning = page.locator("#learning")
            expect(learning).to_have_text("Reviewer: tester. Ranking the images by the labels given at the start …")
            wait_until(page, "!asking && !wanted()")
            rows = page.evaluate("items.map((item) => item.row)")
            opened.service.take_ranking(RankingResult(scores, None, 0.1), 1)
            wait_until(page, f"!asking && items.at(-1).row !== {rows[-1]}")
            now = page.evaluate("items.map((item) => item.row)")
            assert now[:3] == rows[:3], "one is shown, two are ready"
            best = [row for row in reversed(range(120)) if row not in rows[:3]]
            assert now[3:] == best[: len(now) - 3]
            assert [row for row, _ in press(page, "arra")] == [*rows[:3], best[0]]
            expect(learning).to_have_text("Reviewer: tester. Learning from your decisions …")


# --- when something fails ----------------------------------------------------------------------


@needs_chromium
def test_what_is_not_saved_is_said_and_sent_again_until_it_is_decided_once(tmp_path, browser):
    with reviewing(browser, tmp_path, context={"lost": True}) as (page, opened, server):
        trouble = page.locator("#trouble")
        answer = {"status": 507, "content_type": "application/json", "body": json.dumps({"error": "the disk is full"})}
        page.route("**/api/decide", lambda route: route.fulfill(**answer))
        shown = press(page, "a")
        expect(trouble).to_have_text("This decision is not saved yet; the disk is full: trying again.")
        page.unroute("**/api/decide")
        wait_until_saved(page)
        expect(trouble).to_contain_text("every decision is saved")
        lost = []

        def lose(route):
            route.fetch()
            lost.append(1)
            route.abort()

        page.route("**/api/decide", lose, times=2)
        shown += press(page, "ar")
        wait_until_saved(page)
        assert lost and logged(opened.session) == wanted(shown)
        page.evaluate("change([[{ row: 10 ** 9, serial: 0 }, 'accepted']], () => {})")
        expect(page.locator("#overruled")).to_contain_text("A decision was not taken: ")
        wait_until_saved(page)
        page.context.clear_cookies()
        shown += press(page, "a")
        expect(trouble).to_contain_text("open the address again that pucache review printed")
        another(page.context, server.url)[0].close()
        wait_until_saved(page)
        assert logged(opened.session) == wanted(shown)
        own = page.evaluate("session")
        page.route("**/decide", lambda route: route.continue_(post_data=route.request.post_data.replace(own, "gone")))
        press(page, "a")
        expect(page.locator("#trouble")).to_contain_text("reload")
        assert len(logged(opened.session)) == len(shown)


@needs_chromium
def test_one_key_that_is_pressed_while_a_decision_is_saved_is_remembered(tmp_path, browser):
    with reviewing(browser, tmp_path, 30, audit_share=0.0) as (page, opened, _):
        held = []
        page.route("**/api/decide", lambda route: held.append(route))
        ((row, _),) = press(page, "s")
        for key in "ra":
            page.keyboard.press(key)
        assert current_row(page) == row, "the page goes on when it is on disk"
        wait_until(page, "saving")
        (first,) = held
        page.route("**/api/decide", lambda route: route.continue_())
        first.continue_()
        wait_until_saved(page)
        wait_until(page, "items.filter((item) => item.decision).length === 2")
        assert [choice for _, choice in logged(opened.session)] == ["skip", "positive"]


# --- closing audit, files ----------------------------------------------------------------------


@needs_chromium
def test_a_closing_audit_shows_random_images_and_finish_those_without_a_label(tmp_path, browser):
    with reviewing(browser, tmp_path, 300, audit_share=0.0) as (page, opened, _):
        session = opened.session
        expect(page.locator("#hidden-high")).to_have_text("after the first random image among all")
        expect(page.locator("#sentence")).to_contain_text("is not known before the first random image")
        expect(page.locator("#sentence")).to_contain_text("To narrow this, decide 200 random images: at most about ")
        assert not page.is_visible("#finish")
        page.click("#closing-audit")
        expect(page.locator("#closing-audit")).to_have_attribute("aria-pressed", "true")
        assert violations(page) == []
        skipped = [row for row, key in press_on_random(page, session, "rsrs") if key == "s"]
        expect(page.locator("#finish")).to_have_text("Finish: decide 2 random images")
        expect(page.locator("#statements")).to_contain_text("(4 random images; 2 of them skipped or left out")
        page.click("#closing-audit")
        expect(page.locator("#closing-audit")).to_have_attribute("aria-pressed", "false")
        assert not opened.queue.closing_audit
        page.click("#finish")
        wait_until(page, "!asking && exhausted")
        while current_row(page) not in skipped:  # what is on the screen stays there
            press(page, "r")
            page.wait_for_selector(DECIDABLE)
        assert [row for row, _ in press(page, "rs")] == skipped
        expect(page.locator("#end-title")).to_have_text("1 random image has no decision")
        tap(page, "u")
        press(page, "r")
        wait_until_saved(page)
        expect(page.locator("#end-title")).to_have_text("Every random image is decided")
        assert session.state.random_undecided() == []
        page.click("#back")
        page.wait_for_selector(DECIDABLE)
        assert current_row(page) not in skipped
        expect(page.locator("#finish")).to_be_hidden()


@needs_chromium
def test_finish_goes_on_with_random_images_that_a_tab_that_died_had_held(tmp_path, browser):
    with reviewing(browser, tmp_path, 300, audit_share=0.0, recheck_share=0.0) as (page, opened, _):
        opened.queue.closing_audit = True
        held = opened.queue.next("dead", 9)
        opened.queue.closing_audit = False
        page.click("#closing-audit")
        press_on_random(page, opened.session, "rrs")
        wait_until_saved(page)
        page.click("#finish")
        wait_until(page, "!asking && exhausted")
        while page.evaluate("Boolean(items[current])"):
            press(page, "r")
            wait_until_saved(page)
        expect(page.locator("#end-title")).to_have_text("Every random image is decided")
        assert set(held) <= set(opened.session.state.random_undecided())
        opened.queue.release("dead")
        assert [row for row, _ in press(page, "r" * 9)] == held, "they come without a reload"
        wait_until_saved(page)
        expect(page.locator("#end-title")).to_have_text("Every random image is decided")


@needs_chromium
def test_doubted_decisions_are_looked_at_again_without_their_answers(tmp_path, browser):
    with reviewing(browser, tmp_path, 300, audit_share=0.0, recheck_share=0.0) as (page, opened, _):
        shown = press(page, "a" * 30 + "r" * 30)
        wait_until_saved(page)
        expect(page.locator("#again")).to_be_hidden()
        doubted = [shown[at][0] for at in (3, 40, 50)]
        ranking = RankingResult(np.zeros(300, np.float32), None, 0.0, np.array(doubted))
        ranking_of = opened.session.state.label_serial
        opened.service.take_ranking(ranking, ranking_of)
        opened.service.take_ranking(replace(ranking, doubted=np.array(doubted[:1])), ranking_of)
        expect(page.locator("#again")).to_have_text("Look again at 3 decisions")  # what was offered stays so
        assert "look again at 3 doubted decisions" in pucache.audit(opened.session.folder).sentence
        page.click("#again")
        wait_until(page, "!asking && exhausted")
        press(page, "r")  # what is on the screen stays there
        page.wait_for_selector(DECIDABLE)
        assert page.text_content("#stage-badge") == "" and violations(page) == []
        assert [row for row, _ in press(page, "rra")] == doubted
        wait_until_saved(page)
        assert choices_of(opened.session, doubted) == ["negative", "negative", "positive"]
        expect(page.locator("#end-title")).to_have_text("You have looked again at every doubted decision")
        tap(page, "u")
        assert choice_of(opened.session, doubted[-1]) == "negative", "the answer of before stands again"
        press(page, "r")
        wait_until_saved(page)
        expect(page.locator("#back")).to_be_visible()
        page.click("#closing-audit")  # goes on with the review, as #back does
        expect(page.locator("#again")).to_be_hidden()
        press_on_random(page, opened.session, "r")


_RANKINGS = 5  # at most that change what is said, while it is compared


def hold_against_the_truth(page, cache, folder, hidden, decided):
    """Hold the numbers on the page against the truth, and against `pucache audit`; returns the zone, and what is told.

    `hidden` are the positives of the pile before the review, `decided` says which key was pressed on a row.
    """
    for attempt in range(_RANKINGS):  # a ranking that comes meanwhile may doubt other decisions
        told = run_json("audit {session}", session=folder)
        with contextlib.suppress(AssertionError if attempt < _RANKINGS - 1 else ()):
            expect(page.locator("#sentence, #statements li")).to_have_text(told["statements"], timeout=20_000)
            break
    with read_session(cache, folder) as session:
        zone = set(np.flatnonzero(session.state.zone).tolist())
    left = hidden - {row for row, key in decided.items() if key == "a"}
    shown = [page.text_content(f"#{name}") for name in ("found", "decided")]
    assert shown == [str(len(hidden) - len(left)), str(len(decided))] and told["found"] == len(hidden) - len(left)
    if told["draws"]:
        limits = [page.text_content(f"#{name}") for name in ("perhaps", "hidden-high")]
        assert limits == [str(told["perhaps"]), str(told["hidden_high"])]
    assert told["hidden_low"] <= len(left) <= told["hidden_high"]  # some look like negatives: no limit by chance
    if zone:
        assert len(left & zone) <= told["zone"]["hidden_high"] and len(left - zone) <= told["rest_high"]
    return zone, told


@pytest.mark.slow
@needs_chromium
def test_a_review_to_the_sentence_that_one_may_stop_says_what_is_true(tmp_path, browser):
    cache, folder = pictured_pile(tmp_path, 500), tmp_path / "session"
    hidden = {*range(4, 125), 200, 300, 390}  # the last three look like negatives
    decided = {}

    def decide(page, count):
        for _ in range(count):
            page.wait_for_selector(DECIDABLE)
            decided.update(press(page, "a" if current_row(page) in hidden else "r"))
        wait_until_saved(page)

    with (
        ReviewProcess(tmp_path, "--positives", "found.txt", "--session", "session", "--port", "0") as server,
        visited(browser, server.url) as page,
    ):
        while list(decided.values())[-20:] != ["r"] * 20:
            decide(page, 1)
        hold_against_the_truth(page, cache, folder, hidden, decided)
        page.click("#closing-zone")
        advice = ""
        while not advice.startswith("You may stop"):
            assert len(decided) < 496, advice
            decide(page, 5)
            zone, told = hold_against_the_truth(page, cache, folder, hidden, decided)
            advice = page.text_content("#advice")
        others, stated = re.search(r"(?:if (\d+) images .*)?with 95 % confidence at least ([\d.]+) %", advice).groups()
        among = set(range(500)) if others is None else zone
        found, missed = told["found"], len(among & hidden - {row for row, key in decided.items() if key == "a"})
        assert others is None or int(others) == 496 - len(zone)
        assert 95 <= float(stated) <= 100 * found / (found + missed)
        said = f"among the {len(zone)} likeliest images at most {told['zone']['hidden_high']} more"
        assert said in page.text_content("#statements")
        assert f"at most {told['hidden_high']}, with" in page.text_content("#sentence"), "the figure of the tile"
        page.click("#others summary")
        assert page.is_visible("#statements")


@needs_chromium
def test_past_decisions_are_corrected_and_labels_exported(tmp_path, browser):
    with reviewing(browser, tmp_path, context={"lost": True}) as (page, _, _):
        shown = press(page, "aarr")
        wait_until_saved(page)
        page.click("#past")
        expect(page.locator("#past-list .badge")).to_have_text(["rejected", "rejected", "accepted", "accepted"])
        assert violations(page, "#past-dialog") == []
        page.locator("#past-list button").first.click()
        page.wait_for_selector(DECIDABLE)
        assert current_row(page) == shown[3][0]
        shown[3:] = press(page, "a")
        wait_until_saved(page)
        page.click("#export")
        expect(page.locator("#notice")).to_contain_text("reviewed.csv")
        assert page.is_visible("#commands") and violations(page) == []
        text = (tmp_path / "session/reviewed.csv").read_text()
        assert all(f"{row:03}.png,{int(key == 'a')},1" in text for row, key in shown)


# --- for everybody -----------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", slow("dark")])
def test_no_serious_barrier_in_any_state(tmp_path, browser, scheme):
    context = {"color_scheme": scheme, "lost": True}
    with reviewing(browser, tmp_path, broken=(50, 60), context=context) as (page, _, _):
        assert violations(page) == []
        press(page, "ars")
        page.keyboard.press("ArrowLeft")
        assert violations(page) == [], "an image that is decided"
        for key in "zf":
            page.keyboard.press(key)
        assert violations(page, "#zoom") == []
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        assert page.is_visible("#help") and violations(page, "#help") == []
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        wait_for_grid(page)
        tap(page, *"ars")
        assert violations(page) == []
        page.route("**/api/**", lambda route: route.abort())
        page.keyboard.press("a")
        expect(page.locator("#trouble")).to_contain_text("not saved yet")
        assert violations(page) == []


@needs_chromium
@pytest.mark.parametrize(("width", "height"), [(320, 640), slow(640, 400), slow(768, 1024)])
def test_small_screens_show_image_and_buttons_without_scrolling_sideways(tmp_path, browser, width, height):
    touch = {"viewport": {"width": width, "height": height}, "has_touch": True}
    with reviewing(browser, tmp_path, context=touch) as (page, opened, _):
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) == 0
        for part in ("#stage", "[data-decide=accepted]", "[data-decide=skipped]"):
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= height and box["height"] >= 40
        page.evaluate(
            "items[current].key = 'a folder of parts/' + 'x'.repeat(50) + '.png#xywh=100,200,300,400'; draw()"
        )
        name = page.locator(".caption .name")
        assert page.evaluate(overflow) == 0 and (
            width > 700 or name.evaluate("one => one.scrollHeight - one.clientHeight") <= 0
        )
        row = current_row(page)
        page.locator("[data-decide=rejected]").tap()
        wait_until_saved(page)
        assert choice_of(opened.session, row) == "negative"
        for key in ("z", "?"):
            page.keyboard.press(key)
            assert page.locator("dialog[open]").evaluate("one => one.scrollWidth - one.clientWidth") <= 0
            page.keyboard.press("Escape")
        page.locator("input[value=page]").tap()
        wait_for_grid(page)
        assert page.evaluate(overflow) == 0
        page.locator("#grid [data-decision=accepted]").nth(4).tap()
        wait_until_saved(page)
        assert badges(page)[4] == "accepted"
