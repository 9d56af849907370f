import csv
import io
import json
import re
import shlex

import numpy as np
import pytest
from helpers.browser import needs_chromium, opened, violations
from helpers.pictured import ODD, folder_of, shaded
from helpers.pictures import encode
from helpers.planted import write_cache
from helpers.slow import slow
from playwright.sync_api import expect

from pucache.labels.label_files import short_digest
from pucache.labels.labels import Labels
from pucache.pages.html import visible
from pucache.pages.review_page import ReviewPage, write_review_page
from pucache.retrieval.ranking import Ranking
from pucache.storage.tables import read_table


def sheet(path, cache, rows, *, positives=(), confirmed=(), negatives=()):
    """Write a review page of these rows, best first; return its path and its counts."""
    s, reviewed = np.zeros((2, len(cache)), np.int8)
    s[list(positives)], reviewed[list(confirmed)], reviewed[list(negatives)] = 1, 1, -1
    rows = np.asarray(rows, np.int64)
    scores = np.linspace(2, -2, len(rows), dtype=np.float32)
    posterior = 1 / (1 + np.exp(-2.0 * scores))
    named = {"keys": cache.keys[rows], "posterior": posterior, "scorer": "similarity (topk)"}
    return path, write_review_page(cache, Ranking(rows=rows, scores=scores, **named), Labels(s, reviewed), path)


def bare(folder, n, keys=None):
    """A cache without pictures."""
    return write_cache(folder / "bare.h5", np.ones((n, 2), np.float32), keys)


def data_of(path):
    return json.loads(re.search('id="data">(.*?)</script>', path.read_text("utf-8"))[1])


def exported(page):
    with page.expect_download() as download:
        page.click("#export")
    assert download.value.suggested_filename == "reviewed.csv"
    with open(download.value.path(), "rb") as stream:
        return stream.read()


def table(data):
    return list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))


def press(page, keys):
    for key in keys:
        page.keyboard.press(key)


def badges(page):
    """The decision on each card of the page."""
    return [text.split(" ")[-1] for text in page.locator("#grid .badge").all_text_contents()]


def in_turn(page):
    """Rank of the candidate that has the focus."""
    return int(page.evaluate("document.activeElement.querySelector('.rank').textContent"))


def tally(page):
    return page.text_content("#tally")


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    """200 candidates with pictures: a sheet with 3 positives, one confirmed, 2 known negatives; and its cache."""
    folder = tmp_path_factory.mktemp("pile")
    cache = folder_of(folder, {f"{row:03}.png": encode(shaded(24 + row % 7, 20, 55 + row)) for row in range(206)})
    path, _ = sheet(folder / "review.html", cache, range(206)[6:], positives=range(3), confirmed=[3], negatives=[4, 5])
    return path, cache


# --- what is written ---------------------------------------------------------------------------


def test_the_counts_are_of_pictures_missing_and_changed(tmp_path):
    cache = folder_of(tmp_path, {f"{row}.png": encode(shaded(20 + row, 20)) for row in range(5)})
    (tmp_path / "images/0.png").unlink()
    (tmp_path / "images/1.png").write_bytes(encode(shaded(30, 30)))
    path, said = sheet(tmp_path / "r.html", cache, range(5)[:4], positives=[4])
    assert said == ReviewPage(shown=4, without_picture=1, changed=1)
    html = path.read_text()
    assert not re.search(r"https?://|<link|src=\"|url\(", html)
    assert "1 of 4 have no picture: cannot be read: No such file or directory (1)." in html
    assert "--images SOURCE" in html and "1 of 4 files have changed since they were embedded" in html


def test_data_tell_digest_address_and_what_was_labelled_before(pile):
    path, cache = pile
    data = data_of(path)
    assert len(data["candidates"]) == 200 and data["candidates"][0]["key"] == "006.png"
    assert data["candidates"][0]["digest"] == short_digest(cache.digests[6])
    assert data["base"] + data["candidates"][0]["file"] == (path.parent / "images/006.png").as_uri()
    assert [(one["key"], one["label"], one["reviewed"]) for one in data["labelled"]] == [
        *((f"{row:03}.png", 1, 0) for row in range(3)),
        ("003.png", 1, 1),
        ("004.png", 0, 1),
        ("005.png", 0, 1),
    ]


def test_the_command_of_the_next_round_quotes_the_cache(tmp_path):
    (tmp_path / "my images").mkdir()
    cache = bare(tmp_path / "my images", 3)
    command = data_of(sheet(tmp_path / "r.html", cache, [1])[0])["command"]
    train, retrieve = map(shlex.split, command.splitlines())
    labels = ["--positives", "reviewed.csv", "--negatives", "reviewed.csv"]
    assert train == ["pucache", "train-pu", str(tmp_path / "my images/bare.h5"), *labels]
    assert retrieve[:7] == ["pucache", "retrieve-positives", str(tmp_path / "my images/bare.h5"), *labels]
    assert retrieve[7:] == ["--model", "model.safetensors", "--review", "review.html"]


# --- reviewing ---------------------------------------------------------------------------------


@needs_chromium
def test_candidates_are_reviewed_by_keyboard_and_exported(pile, tmp_path, browser):
    path, cache = pile
    wanted = [{0: "r", 1: "s"}.get(number % 7, "a") for number in range(100)]
    with opened(browser, path) as page:
        press(page, ["Tab", "Enter", "Tab"])
        assert in_turn(page) == 1, "the skip link leads to the candidates"
        press(page, wanted)
        assert in_turn(page) == 101 and page.text_content("#announcement").startswith("skipped, rank 100, ")
        accepted, rejected = wanted.count("a"), wanted.count("r")
        share = f"accepted {accepted} of {accepted + rejected}, {100 * accepted / (accepted + rejected):.0f} %"
        told = f"{accepted + rejected} of 200 decided, {wanted.count('s')} skipped · {share}"
        assert tally(page) == told
        page.reload()
        assert tally(page) == told, "decisions survive a reload"
        data = exported(page)
        assert page.text_content("#command").startswith("pucache train-pu ") and page.is_visible("#command")
    (tmp_path / "reviewed.csv").write_bytes(data)
    header, *rows = table(data)
    assert header == ["key", "label", "reviewed", "digest"] and data.endswith(b"\n") and b"\r" not in data
    before = [[f"{row:03}.png", "1" if row < 4 else "0", "1" if row > 2 else "0"] for row in range(6)]
    labels = {"a": "1", "r": "0"}
    now = [[f"{row + 6:03}.png", labels[key], "1"] for row, key in enumerate(wanted) if key in labels]
    assert [row[:3] for row in rows] == before + now
    assert all(short_digest(cache.digests[cache.keys.rows([key])[0]]) == row[2] for key, *row in rows)
    read = Labels.read(cache, tmp_path / "reviewed.csv", tmp_path / "reviewed.csv")
    assert np.flatnonzero(read.s).tolist() == [0, 1, 2], "what figures rest on stays what it was"
    assert read.reviewed[3:106].tolist() == [1, -1, -1, *({"a": 1, "r": -1}.get(key, 0) for key in wanted)]


@needs_chromium
def test_the_focus_goes_to_the_next_undecided_and_undo_goes_back(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["a", "ArrowRight", "r"])
        assert in_turn(page) == 4 and badges(page)[:4] == ["accepted", "", "rejected", ""]
        press(page, ["Home", "s"])
        assert in_turn(page) == 2, "a decision changed leads to the first that is undecided"
        press(page, ["Shift+A"])
        assert tally(page).startswith("59 of 200 decided, 1 skipped · accepted 58") and in_turn(page) == 61
        press(page, ["p"])
        assert in_turn(page) == 1
        press(page, ["n", "n", "n", "n"])
        assert in_turn(page) == 181 and page.locator("#grid .cell").count() == 20
        assert page.text_content("nav .where") == "page 4 of 4"
        press(page, ["u"])
        assert tally(page).startswith("1 of 200 decided, 1 skipped"), "a group is one step"
        press(page, ["Control+z", "u"])
        assert badges(page)[:3] == ["accepted", "", ""]
        press(page, ["u", "u"])
        assert tally(page) == "0 of 200 decided" and page.text_content("#announcement") == "nothing to undo"
        press(page, ["Home", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"])
        assert in_turn(page) == 2 and page.evaluate("columns()") > 2


@needs_chromium
def test_keys_do_nothing_while_somebody_types(pile, browser):
    with opened(browser, pile[0]) as page:
        page.focus("#search")
        press(page, ["a", "r", "s", "u", "?"])
        assert tally(page) == "0 of 200 decided" and page.input_value("#search") == "arsu?"
        assert page.is_visible("#nothing") and not page.is_visible("#help")
        page.fill("#search", "01.PNG")
        assert ranks(page) == [96, 196], "a part of the key in any case"
        page.fill("#search", "")
        press(page, ["Enter"])
        assert in_turn(page) == 96, "Enter leads from the search to the list"


@needs_chromium
def test_mouse_accepts_takes_back_and_enlarges(pile, browser):
    with opened(browser, pile[0]) as page:
        accept = page.locator("#grid [data-decision=accepted]").nth(3)
        accept.click()
        assert accept.get_attribute("aria-pressed") == "true" and badges(page)[3] == "accepted"
        accept.click()
        assert accept.get_attribute("aria-pressed") == "false" and badges(page)[3] == ""
        page.locator("#grid .frame").nth(2).click()
        expect(page.locator("#zoom-picture")).to_have_attribute("src", re.compile("^file:"))
        assert page.evaluate("document.getElementById('zoom-picture').naturalWidth") == 24 + 8 % 7
        assert page.text_content("#zoom-title") == "Rank 3" and "25 × 20 pixels" in page.text_content("#zoom-facts")
        assert page.evaluate("document.activeElement.id") == "zoom-title"
        page.click("[data-zoom=rejected]")
        assert page.text_content("#zoom-title") == "Rank 4" and badges(page)[2] == "rejected"
        page.click("[data-zoom=previous]")
        assert page.get_attribute("[data-zoom=rejected]", "aria-pressed") == "true"
        page.click("[data-zoom=close]")
        expect(page.locator(".cell:focus")).to_have_count(1)  # the dialog tells that it is closed a little later
        assert in_turn(page) == 3 and not page.is_visible("#zoom")
        press(page, ["Tab", "Tab", "Space"])
        assert badges(page)[2] == "", "the tab key passes a candidate and its buttons"


# --- the list ----------------------------------------------------------------------------------


def ranks(page):
    return [int(text) for text in page.locator("#grid .rank").all_text_contents()]


@needs_chromium
@pytest.mark.slow
def test_filters_show_the_decided_and_the_list_does_not_run_away(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["a", "r", "s", "a"])
        for name, expected in {"accepted": [1, 4], "rejected": [2], "skipped": [3]}.items():
            page.locator(f"input[value={name}]").check()
            assert ranks(page) == expected
            assert page.text_content(f"[data-count={name}]") == str(len(expected))
        page.locator("input[name=filter][value='']").check()
        assert ranks(page) == list(range(5, 65))
        press(page, ["a"])
        assert ranks(page) == list(range(5, 65)) and in_turn(page) == 6, "a letter works after a filter is chosen"
        assert "1 of this list no longer fits the filter" in page.text_content("#outdated")
        page.click("#update")
        assert ranks(page) == list(range(6, 66)) and not page.is_visible("#outdated")


# --- what is kept ------------------------------------------------------------------------------


REFUSED = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"


@needs_chromium
def test_a_browser_that_keeps_nothing_is_told_of_and_guards_what_is_not_exported(pile, browser):
    asked = []

    def answer(dialog):
        asked.append(dialog.type)
        dialog.dismiss()

    with opened(browser, pile[0], init=REFUSED) as page:
        page.on("dialog", answer)
        page.click("h1")
        press(page, ["a"])
        assert page.is_visible("#not-saved") and badges(page)[0] == "accepted"
        with page.expect_event("dialog"):
            page.close(run_before_unload=True)
        assert asked == ["beforeunload"]
        exported(page)
        with page.expect_event("close"):
            page.close(run_before_unload=True)
        assert asked == ["beforeunload"], "nothing asks when all is exported"


# --- odd keys, pictures that are not there, many, none -----------------------------------------


@needs_chromium
@pytest.mark.slow
def test_odd_keys_are_shown_and_exported_intact(tmp_path, browser):
    cache = bare(tmp_path, len(ODD) + 1, [*ODD, "zzz"])
    rows = cache.keys.rows(ODD)
    path, _ = sheet(tmp_path / "r.html", cache, rows, positives=cache.keys.rows(["zzz"]))
    with opened(browser, path) as page:
        assert page.locator("#grid .key").all_text_contents() == list(map(visible, ODD))
        assert "line␊break␍␊and␉tab.png" in page.locator("#grid .key").all_text_contents()
        assert page.title() == "Review of 9 candidates"
        press(page, ["Shift+A", "z"])
        assert page.text_content("#zoom-key") == visible(ODD[0])
        press(page, ["Escape"])
        data = exported(page)
        (tmp_path / "reviewed.csv").write_bytes(data)
    assert table(data)[1:] == [["zzz", "1", "0", ""], *([key, "1", "1", ""] for key in ODD)]
    assert [row["key"] for row in read_table(tmp_path / "reviewed.csv")] == ["zzz", *ODD]


@needs_chromium
def test_an_empty_ranking_says_so_and_what_to_do(tmp_path, browser):
    path, said = sheet(tmp_path / "r.html", bare(tmp_path, 2), [], positives=[0, 1])
    assert said == ReviewPage(shown=0, without_picture=0, changed=0)
    with opened(browser, path) as page:
        assert "There is nothing to review" in page.text_content("main")
        assert "pucache embed" in page.text_content("main")
        press(page, ["a", "?", "u", "End"])
        assert violations(page) == []


# --- for everybody -----------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", slow("dark")])
def test_no_serious_barrier_in_grid_dialog_and_help(pile, browser, scheme):
    with opened(browser, pile[0], color_scheme=scheme, reduced_motion="reduce") as page:
        press(page, ["a", "r", "s"])
        page.mouse.move(0, 0)
        assert violations(page) == []
        press(page, ["ArrowLeft", "z"])
        assert violations(page, "#zoom") == []
        press(page, ["Escape", "?"])
        assert page.is_visible("#help") and violations(page, "#help") == []
        press(page, ["a", "Escape"])
        assert tally(page).startswith("2 of 200"), "keys do nothing behind the help"
        exported(page)
        assert violations(page, "#done") == []


@needs_chromium
def test_a_narrow_screen_needs_no_scrolling_sideways(tmp_path, browser):
    cache = bare(tmp_path, len(ODD) + 1, [*ODD, "zzz"])
    path, _ = sheet(tmp_path / "r.html", cache, cache.keys.rows(ODD))
    with opened(browser, path, viewport={"width": 320, "height": 500}, has_touch=True) as page:
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) == 0
        press(page, ["a"])
        exported(page)
        assert page.evaluate(overflow) == 0
        for key in ("z", "?"):
            press(page, [key])
            dialog = page.locator("dialog[open]")
            assert dialog.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
            press(page, ["Escape"])
        page.locator("#grid [data-decision=rejected]").nth(4).tap()
        assert badges(page)[4] == "rejected"


def test_more_candidates_than_a_page_can_hold_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("pucache.pages.review_page.MAX_CANDIDATES", 2)
    with pytest.raises(ValueError, match="at most 2 candidates, got 3; retrieve fewer with -k"):
        sheet(tmp_path / "r.html", bare(tmp_path, 4), [1, 2, 3])
