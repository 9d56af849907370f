"""The page of a review in a browser: one walk through each of its states."""

import contextlib
import json
import re

import numpy as np
import pytest
from helpers.browser import needs_chromium, violations
from helpers.live_pages import DECIDABLE, another, current_row, press, tap, visited, wait_until, wait_until_saved
from helpers.reviews import SilentTrainer, pictured_pile, served
from helpers.sessions import proposal
from helpers.slow import slow
from playwright.sync_api import expect

import pucache
from pucache.estimates.limit_sentences import sentences
from pucache.training.ranking_result import RankingResult

pytestmark = needs_chromium
KEYS = {"positive": "a", "negative": "r", "skip": "s"}


@contextlib.contextmanager
def reviewing(browser, folder, n=120, *, broken=(), ranking=None, context=None, **settings):
    """A page of a review on `n` pictures; yields the page and what the server consists of."""
    cache, trainer = pictured_pile(folder, n, broken=broken), None if ranking is None else SilentTrainer()
    context = {"reduced_motion": "reduce"} | (context or {})
    with served(cache, folder / "session", folder / "found.txt", trainer=trainer, **settings) as (opened, server):
        if ranking is not None:
            opened.service.take_ranking(ranking, 0)
        with visited(browser, server.url, **context) as page:
            yield page, opened, server


def logged(session):
    """Row and key of each decision, in the order of the log."""
    return [(entry.row, KEYS.get(entry.choice, "u")) for entry in session.entries() if not entry.is_draw]


def standing(session, rows):
    """Keys of the decisions on rows that are in force."""
    decisions = [session.state.in_force(row) for row in rows]
    return "".join(KEYS[one.choice] if one else "-" for one in decisions)


def grid_rows(page):
    """Rows of the images of the page of 12, once all can be decided."""
    wait_until(page, "isPage && pageItems().length && pageItems().every(isReady)")
    return page.evaluate("pageItems().map((item) => item.row)")


def held_rows(page):
    """Rows that the tab shows or is about to show."""
    return set(page.evaluate("items.filter((item) => !item.decision).map((item) => item.row)"))


def badges(page):
    return [text.split(" ")[-1] for text in page.locator("#grid .badge").all_text_contents()]


def focused(page):
    """Number of the card that has the focus."""
    return page.evaluate("Number(document.activeElement.dataset.number)")


def hold_requests(page, address):
    """Answer nothing that is asked at an address; returns what lets it go on."""
    held, open_again = [], []
    page.route(address, lambda route: route.continue_() if open_again else held.append(route))

    def go_on():
        open_again.append(True)
        for route in held:
            route.continue_()

    return go_on


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


# --- deciding ----------------------------------------------------------------------------------


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
        rows = [row for row, _ in first]
        expect(page.locator("#announcement")).to_have_text(re.compile(r"^skipped\. Next: \d{3}\.png$"))
        shown = {"#found": "2", "#decided": "3", "#skipped": "1", "#rate": "67 %", "#rate-of": "Found in last 3"}
        for place, text in shown.items():
            expect(page.locator(place)).to_have_text(text)
        for _ in rows:
            page.keyboard.press("ArrowLeft")
        expect(page.locator("#stage-badge")).to_have_text("✓ accepted")
        tap(page, "r")
        assert page.evaluate("!items[current].decision"), "goes on where the review was"
        tap(page, "u")
        assert current_row(page) == rows[0] and standing(session, rows) == "aars"
        for row in reversed(rows):
            tap(page, "u")
            assert current_row(page) == row
        page.keyboard.press("Control+z")
        assert page.text_content("#announcement") == "nothing to undo" and standing(session, rows) == "----"
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
        assert [key for _, key in logged(session)[before:]] == ["a", "r"]


def test_a_page_of_twelve_by_keys_and_by_mouse_with_images_that_come_late(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, _):
        session = opened.session
        page.keyboard.press("g")
        rows = grid_rows(page)
        tap(page, "a", "s", "Shift+R")
        assert standing(session, rows) == "as" + "r" * 10
        assert not set(grid_rows(page)) & set(rows) and focused(page) == 12
        tap(page, "Shift+A", "u", "u")
        assert badges(page) == ["accepted", "skipped", *[""] * 10] and grid_rows(page) == rows
        assert standing(session, rows) == "as" + "-" * 10, "the rest was one step"
        page.locator("#grid .name").nth(5).click()
        assert focused(page) == 5 and page.evaluate("columns()") > 2
        for key in ("Home", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"):
            page.keyboard.press(key)
        assert focused(page) == 1
        accept = page.locator("#grid [data-decision=accepted]").nth(3)
        for pressed, badge in (("true", "accepted"), ("false", "")):
            accept.click()
            wait_until_saved(page)
            assert accept.get_attribute("aria-pressed") == pressed and badges(page)[3] == badge
        page.click("[data-rest=rejected]")
        wait_until_saved(page)
        assert standing(session, rows[2:]) == "r" * 10
        page.click("[data-turn='-1']")
        assert grid_rows(page) == rows and page.locator("#grid [tabindex='0']").count() == 3, "a card and its buttons"
        go_on = hold_requests(page, "**/api/next")
        while page.locator("#end").is_hidden():
            tap(page, "Shift+R")
        wait_until(page, "document.activeElement === document.body")
        go_on()
        wait_until(page, "Number(document.activeElement.dataset.number) === current")


def test_buttons_and_the_enlarged_image_decide_as_keys_do_and_the_focus_stays(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, _):
        row = current_row(page)
        page.click("[data-decide=accepted]")
        wait_until_saved(page)
        second = current_row(page)
        for button in ("[data-decide=skipped]", "#one [data-undo]", "[data-step='-1']"):
            page.click(button)
            wait_until_saved(page)
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
        page.keyboard.press("z")
        assert not page.is_visible("#zoom")
        wait_until_saved(page)
        assert standing(opened.session, [row, second]) == "ar"
        page.focus("[data-decide=accepted]")
        tap(page, "Space", "r")
        assert page.evaluate("document.activeElement.dataset.decide") == "accepted"
        page.keyboard.press("g")
        grid_rows(page)
        for key in ("Home", "z", "ArrowRight", "Escape"):
            page.keyboard.press(key)
        expect(page.locator(".cell:focus")).to_have_count(1)  # the dialog tells that it is closed a little later
        assert focused(page) == 1


REFUSED = """for (const name of ["localStorage", "sessionStorage"])
Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""


def test_the_pile_ends_and_skipped_images_come_again_in_a_browser_that_stores_nothing(tmp_path, browser):
    """The review begins without positives."""
    cache = pictured_pile(tmp_path, 12, positives=0)
    with served(cache, tmp_path / "session") as (opened, server), visited(browser, server.url) as first:
        page = another(first.context, server.url, init=REFUSED)
        expect(page.locator("#end-title")).to_have_text("No image is free")
        first.goto("about:blank")  # its images are shown here now
        shown = press(page, "srs" + "r" * 9)
        assert len({row for row, _ in shown}) == 12
        expect(page.locator("#end-title")).to_have_text("Every image is decided or skipped")
        expect(page.locator("#skipped-again")).to_have_text("Show the 2 skipped again")
        page.click("#skipped-again")
        again = [row for row, _ in press(page, "aa")]
        assert set(again) == {shown[0][0], shown[2][0]}
        expect(page.locator("#end-title")).to_have_text("Every image is decided")
        assert violations(page) == [] and not page.is_visible("#one")
        page.keyboard.press("a")
        tap(page, "u")
        assert current_row(page) == again[-1] and page.is_visible("#one")
        press(page, "r")
        wait_until_saved(page)
        assert standing(opened.session, again) == "ar"
        page.reload()
        expect(page.locator("#end-title")).to_have_text("Every image is decided")


def test_images_that_cannot_be_shown_say_why_and_are_skipped(tmp_path, browser):
    with reviewing(browser, tmp_path, 40, broken=range(40), context={"lost": True}) as (page, opened, _):
        expect(page.locator("#stage-absent")).to_contain_text("cannot be shown: ")
        assert "S skips it" in page.text_content("#stage-absent") and violations(page) == []
        shown = press(page, "s")
        page.keyboard.press("g")
        grid_rows(page)
        tap(page, "Shift+A")
        assert logged(opened.session) == shown, "nobody has seen the rest of the page"
        page.keyboard.press("z")
        assert page.is_visible("#zoom-absent") and not page.is_visible("#zoom-picture")


# --- several tabs, a server that ends, requests that fail ----------------------------------------


def test_tabs_show_different_images_and_none_loses_or_overwrites_a_decision(tmp_path, browser):
    with reviewing(browser, tmp_path) as (page, opened, server):
        session, other = opened.session, another(page.context, server.url)
        shown = []
        for number, key in enumerate("arasrarr"):
            shown += press((page, other)[number % 2], key)
        for tab in (page, other):
            wait_until_saved(tab)
            expect(tab.locator("#decided")).to_have_text("7")
        assert len({row for row, _ in shown}) == 8 and sorted(logged(session)) == sorted(shown)
        page.wait_for_selector(DECIDABLE)
        row = current_row(page)
        other.evaluate(f"save([{{ row: {row}, choice: 'negative', replaces: 0, shown_version: 0 }}])")
        wait_until_saved(other)
        press(page, "a")
        stands = "was decided elsewhere before: rejected. That decision stands"
        expect(page.locator("#overruled")).to_contain_text(stands)
        assert standing(session, [row]) == "r"
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#stage-badge")).to_have_text("✗ rejected")
        tap(page, "a")
        assert standing(session, [row]) == "a"
        go_on = hold_requests(page, "**/api/image/**")
        page.reload(wait_until="domcontentloaded")
        expect(page.locator("#stage")).to_have_attribute("data-status", "loading")
        page.keyboard.press("a")
        assert page.text_content("#announcement") == "the image is still loading"
        go_on()
        wait_until(page, "items[current] && isReady(items[current])")
        page.keyboard.press("u")
        expect(page.locator("#past-dialog")).to_be_visible()
        page.keyboard.press("Escape")
        ahead = held_rows(page)
        assert not ahead & {row for row, _ in logged(session)} and not ahead & held_rows(other)
        page.goto("about:blank")
        other.evaluate("exchange()")
        wait_until(other, "!asking")
        assert ahead & held_rows(another(page.context, server.url)), "what the closed page held is free"
        assert len(logged(session)) == 10


def test_the_page_waits_for_a_server_that_has_ended_and_goes_on_when_it_is_started_again(tmp_path, browser):
    place = pictured_pile(tmp_path, 120), tmp_path / "session", tmp_path / "found.txt"
    with contextlib.ExitStack() as stack:
        with served(*place) as (_, first):
            page = stack.enter_context(visited(browser, first.url, lost=True))
            shown = press(page, "ars")
            wait_until(page, "!asking && items.length > 11 && items.every(isReady)")
            wait_until_saved(page)
        shown += press(page, "a")
        expect(page.locator("#trouble")).to_contain_text("This decision is not saved yet; the server does not answer")
        page.keyboard.press("r")
        assert current_row(page) == shown[-1][0], "it stays, and takes no further decision"
        with served(*place, port=first.port) as (opened, second):
            wait_until_saved(page)
            other = another(page.context, second.url)
            assert not held_rows(page) & held_rows(other), "the new server knows what this tab shows"
            other.close()
            shown += press(page, "ra")
            wait_until_saved(page)
            assert logged(opened.session) == shown


def test_what_is_not_saved_is_said_and_sent_again_until_it_is_decided_once(tmp_path, browser):
    with reviewing(browser, tmp_path, context={"lost": True}) as (page, opened, server):
        session, trouble = opened.session, page.locator("#trouble")
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
        assert lost and logged(session) == shown
        page.evaluate("change([[{ row: 10 ** 9, serial: 0 }, 'accepted']], () => {})")
        expect(page.locator("#overruled")).to_contain_text("A decision was not taken: ")
        wait_until_saved(page)
        page.context.clear_cookies()
        shown += press(page, "a")
        expect(trouble).to_contain_text("open the address again that pucache review printed")
        another(page.context, server.url).close()
        wait_until_saved(page)
        assert logged(session) == shown
        wait_until(page, "!asking && items.slice(current).every(isReady)")
        go_on = hold_requests(page, "**/api/decide")
        shown += press(page, "s")
        for key in "ra":
            page.keyboard.press(key)
        assert current_row(page) == shown[-1][0], "the page goes on when it is on disk"
        wait_until(page, "saving")
        go_on()
        wait_until(page, f"!saving && items.filter((item) => item.decision).length === {len(shown) + 1}")
        assert [key for _, key in logged(session)[-2:]] == ["s", "a"], "one key is remembered meanwhile"
        own = page.evaluate("session")
        page.route("**/decide", lambda route: route.continue_(post_data=route.request.post_data.replace(own, "gone")))
        press(page, "a")
        expect(trouble).to_contain_text("reload")
        assert len(logged(session)) == len(shown) + 1


def test_a_new_ranking_exchanges_images_that_are_not_shown_yet(tmp_path, browser):
    scores = np.arange(120, dtype=np.float32)
    ranking = RankingResult(-scores, None, 0.1)
    with reviewing(browser, tmp_path, ranking=ranking, audit_share=0.0) as (page, opened, _):
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


# --- closing audit, a second look, files -----------------------------------------------------------


def test_a_closing_audit_shows_random_images_and_finish_those_without_a_label(tmp_path, browser):
    """Also those that a tab has held that died."""
    with reviewing(browser, tmp_path, 300, audit_share=0.0, recheck_share=0.0) as (page, opened, _):
        session, title = opened.session, page.locator("#end-title")
        expect(page.locator("#hidden-high")).to_have_text("after the first random image among all")
        expect(page.locator("#sentence")).to_contain_text("To narrow this, decide 200 random images: at most about ")
        assert not page.is_visible("#finish")
        opened.queue.closing_audit = True
        held = opened.queue.next("dead", 3)
        opened.queue.closing_audit = False
        page.click("#closing-audit")
        expect(page.locator("#closing-audit")).to_have_attribute("aria-pressed", "true")
        assert violations(page) == []
        skipped = [row for row, key in press_on_random(page, session, "rsrs") if key == "s"]
        expect(page.locator("#finish")).to_have_text("Finish: decide 2 random images")
        expect(page.locator("#statements")).to_contain_text("(7 random images; 5 of them skipped or left out")
        audited = pucache.audit(session.folder)
        expect(page.locator("#sentence, #statements li")).to_have_text(sentences(audited))
        for place, number in (("#perhaps", audited.perhaps), ("#hidden-high", audited.hidden_high)):
            expect(page.locator(place)).to_have_text(str(number))
        page.click("#closing-audit")
        expect(page.locator("#closing-audit")).to_have_attribute("aria-pressed", "false")
        assert not opened.queue.closing_audit
        page.click("#finish")
        wait_until(page, "!asking && exhausted")
        while current_row(page) not in skipped:  # what is on the screen stays there
            press(page, "r")
            page.wait_for_selector(DECIDABLE)
        assert [row for row, _ in press(page, "rs")] == skipped
        expect(title).to_have_text("1 random image has no decision")
        tap(page, "u")
        press(page, "r")
        wait_until_saved(page)
        expect(title).to_have_text("Every random image is decided")
        assert set(session.state.random_undecided()) == set(held)
        opened.queue.release("dead")
        assert [row for row, _ in press(page, "rrr")] == held, "they come without a reload"
        wait_until_saved(page)
        expect(title).to_have_text("Every random image is decided")
        page.click("#back")
        page.wait_for_selector(DECIDABLE)
        assert current_row(page) not in skipped
        expect(page.locator("#finish")).to_be_hidden()


def test_doubted_decisions_are_looked_at_again_without_their_answers(tmp_path, browser):
    with reviewing(browser, tmp_path, 300, audit_share=0.0, recheck_share=0.0) as (page, opened, _):
        session, service = opened.session, opened.service
        shown = [row for row, _ in press(page, "arr")]
        wait_until_saved(page)
        ahead = held_rows(page)
        others = [row for row in range(4, 300) if row not in ahead and row not in shown][:47]
        service.decide("another", [proposal(row, "negative") for row in others])
        expect(page.locator("#again")).to_be_hidden()
        ranking_of = session.state.label_serial
        for doubted in (shown, shown[:1]):
            service.take_ranking(RankingResult(np.zeros(300, np.float32), None, 0.0, np.array(doubted)), ranking_of)
        expect(page.locator("#again")).to_have_text("Look again at 3 decisions")  # what was offered stays so
        assert "look again at 3 doubted decisions" in pucache.audit(session.folder).sentence
        page.click("#again")
        wait_until(page, "!asking && exhausted")
        press(page, "r")  # what is on the screen stays there
        page.wait_for_selector(DECIDABLE)
        assert page.text_content("#stage-badge") == "" and violations(page) == []
        assert [row for row, _ in press(page, "rra")] == shown
        wait_until_saved(page)
        assert standing(session, shown) == "rra"
        expect(page.locator("#end-title")).to_have_text("You have looked again at every doubted decision")
        tap(page, "u")
        assert standing(session, shown[-1:]) == "r", "the answer of before stands again"
        press(page, "r")
        wait_until_saved(page)
        expect(page.locator("#back")).to_be_visible()
        page.click("#closing-zone")  # goes on with the review, as #back does
        expect(page.locator("#again")).to_be_hidden()
        press_on_random(page, session, "r")
        expect(page.locator("#statements")).to_contain_text("(1 random image among the likeliest)")
        zone = pucache.audit(opened.session.folder).zone
        expect(page.locator("#likeliest-high")).to_have_text(str(zone.hidden_high))
        expect(page.locator("#panel")).to_contain_text(f"At most, among the {zone.rows} likeliest")
        assert np.flatnonzero(session.state.zone).size == pucache.audit(session.folder).zone.rows
        page.click("#others summary")
        assert page.is_visible("#statements")


def test_a_page_that_was_opened_later_corrects_past_decisions_takes_that_back_and_exports_labels(tmp_path, browser):
    with reviewing(browser, tmp_path, context={"lost": True}) as (page, opened, _):
        undo, earlier = page.locator("#one [data-undo]"), page.locator("#past-list button")
        expect(undo).to_have_attribute("aria-disabled", "true")
        shown = press(page, "aarr")
        rows = [row for row, _ in shown]
        wait_until_saved(page)
        expect(undo).to_have_attribute("title", "")
        page.reload()
        page.wait_for_selector(DECIDABLE)
        expect(undo).to_have_attribute("title", re.compile("shows past decisions"))
        tap(page, "u")
        expect(page.locator("#past-list .badge")).to_have_text(["rejected", "rejected", "accepted", "accepted"])
        assert violations(page, "#past-dialog") == []
        earlier.first.click()
        page.wait_for_selector(DECIDABLE)
        assert [row for row, _ in press(page, "a")] == rows[3:]
        wait_until_saved(page)
        assert standing(opened.session, rows) == "aara"
        tap(page, "u")
        assert standing(opened.session, rows) == "aarr", "the correction is taken back here"
        page.click("#past")
        earlier.nth(1).click()
        page.wait_for_selector(DECIDABLE)
        corrected = press(page, "a")
        wait_until_saved(page)
        page.click("#export")
        expect(page.locator("#notice")).to_contain_text("reviewed.csv")
        assert page.is_visible("#commands") and violations(page) == []
        text = (tmp_path / "session/reviewed.csv").read_text()
        assert all(f"{row:03}.png,{int(key == 'a')},1" in text for row, key in (dict(shown) | dict(corrected)).items())


# --- for everybody -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(320, 640, "light"), slow(640, 400, "light"), slow(1280, 800, "dark")]
)
def test_no_state_has_a_serious_barrier_or_scrolls_sideways_on_any_screen(tmp_path, browser, width, height, scheme):
    screen = {"viewport": {"width": width, "height": height}, "has_touch": True, "color_scheme": scheme, "lost": True}
    with reviewing(browser, tmp_path, broken=(50, 60), context=screen) as (page, opened, _):

        def check(within=None):
            place = page.locator(within or "html")
            assert violations(page, within) == []
            assert place.evaluate("one => one.scrollWidth - one.clientWidth") <= 0

        check()
        for part in ("#stage", "[data-decide=accepted]", "[data-decide=skipped]"):
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= height and box["height"] >= 40
        row = current_row(page)
        page.locator("[data-decide=rejected]").tap()
        wait_until_saved(page)
        assert standing(opened.session, [row]) == "r"
        press(page, "as")
        page.keyboard.press("ArrowLeft")
        check()
        long = "'a folder of parts/' + 'x'.repeat(50) + '.png#xywh=100,200,300,400'"
        page.evaluate(f"items[current].key = {long}; draw()")
        for keys, shown in (("zf", "#zoom-title"), ("?", "#help th kbd >> nth=0")):
            for key in keys:
                page.keyboard.press(key)
            assert page.is_visible(shown)
            check("dialog[open]")
            page.keyboard.press("Escape")
        assert page.locator(".caption .name").evaluate("one => one.scrollHeight - one.clientHeight") <= 0 or width > 700
        check()
        page.locator("input[value=page]").tap()
        grid_rows(page)
        tap(page, *"ars")
        check()
        page.locator("#grid [data-decision=accepted]").nth(4).tap()
        wait_until_saved(page)
        assert badges(page)[4] == "accepted"
        page.route("**/api/**", lambda route: route.abort())
        page.keyboard.press("r")
        expect(page.locator("#trouble")).to_contain_text("not saved yet")
        check()
