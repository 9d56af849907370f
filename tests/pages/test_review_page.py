import csv
import io
import json
import os
import re
import shlex

import numpy as np
import pytest
from helpers.browser import needs_chromium, opened, violations
from helpers.pictured import cache_of, folder_of, shaded
from helpers.pictures import encode
from helpers.planted import write_cache
from helpers.slow import slow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import OutputError, SourceError
from pucache.labels.label_files import short_digest
from pucache.labels.labels import Labels
from pucache.pages.review_page import ReviewPage, write_review_page
from pucache.retrieval.ranking import Ranking
from pucache.storage.tables import read_table

ODD = [
    "photos/<script>document.title = 'ran'</script>.png",
    'say "cheese", please.png',
    "it's 100 %?&#/plain.png",
    "line\nbreak\r\nand\ttab.png",
    "emoji 🦜 👩‍👩‍👧.png",
    "שלום/\u202egnp.exe.png",
    "separators\u2028and\u2029.png",
    " blanks around ",
    "long/" + "x" * 4087 + ".png",
]
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


def ranked(cache, rows, posterior=True, scorer="similarity (centroid)"):
    """A ranking of these rows, best first."""
    rows = np.asarray(rows, np.int64)
    scores = np.linspace(2, -2, len(rows), dtype=np.float32)
    probability = 1 / (1 + np.exp(-2.0 * scores)) if posterior else None
    return Ranking(rows=rows, keys=cache.keys[rows], scores=scores, posterior=probability, scorer=scorer)


def sheet(
    path,
    cache,
    rows,
    *,
    positives=(),
    confirmed=(),
    negatives=(),
    posterior=True,
    scorer="similarity (centroid)",
    **options,
):
    """Write a review page of these rows; return its path and its counts."""
    s, reviewed = np.zeros((2, len(cache)), np.int8)
    s[list(positives)], reviewed[list(confirmed)], reviewed[list(negatives)] = 1, 1, -1
    ranking = ranked(cache, rows, posterior, options.pop("scorer", "similarity (centroid)"))
    return path, write_review_page(cache, ranking, Labels(s, reviewed), path, **options)


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


def wait_for_original(page):
    """Until the zoom shows the file itself; not by `wait_for_function`, which the page's policy forbids."""
    expect(page.locator("#zoom-picture")).to_have_attribute("src", re.compile("^file:"))


def visible(key):
    """How a key is written on the page."""
    key = re.sub("[\0-\x1f]", lambda found: chr(0x2400 + ord(found[0])), key)
    odd = "[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
    return re.sub(odd, lambda found: f"⟨U+{ord(found[0]):04X}⟩", key)


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    """200 candidates with pictures: a sheet with 3 positives, one confirmed, 2 known negatives; and its cache."""
    folder = tmp_path_factory.mktemp("pile")
    cache = folder_of(folder, {f"{row:03}.png": encode(shaded(24 + row % 7, 20, 55 + row)) for row in range(206)})
    path, _ = sheet(folder / "review.html", cache, range(206)[6:], positives=range(3), confirmed=[3], negatives=[4, 5])
    return path, cache


# --- what is written ---------------------------------------------------------------------------


def test_the_sheet_is_one_file_that_names_no_address(pile):
    html = pile[0].read_text("utf-8")
    assert not re.search(r"https?://|<link|src=\"|url\(", html)
    assert os.listdir(pile[0].parent).count("review.html") == 1


def test_the_counts_are_of_pictures_missing_and_changed(tmp_path):
    cache = folder_of(tmp_path, {f"{row}.png": encode(shaded(20 + row, 20)) for row in range(5)})
    (tmp_path / "images/0.png").unlink()
    (tmp_path / "images/1.png").write_bytes(encode(shaded(30, 30)))
    path, said = sheet(tmp_path / "r.html", cache, range(5)[:4], positives=[4])
    assert said == ReviewPage(shown=4, without_picture=1, changed=1)
    html = path.read_text()
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


def test_digests_that_are_not_known_are_empty(tmp_path):
    path, _ = sheet(tmp_path / "r.html", bare(tmp_path, 3), [1, 2], positives=[0])
    assert {one["digest"] for name in ("candidates", "labelled") for one in data_of(path)[name]} == {""}


def test_digests_and_pictures_are_of_the_file_that_a_row_stands_in(tmp_path):
    for name in ("one", "two"):
        folder_of(tmp_path, {f"{name}/{row}.png": encode(shaded(30 + row, len(name) + 20)) for row in range(3)}, name)
    cache = EmbeddingCache(tmp_path / "one.h5", tmp_path / "two.h5")
    data = data_of(sheet(tmp_path / "r.html", cache, [4, 1], positives=[5])[0])
    assert [one["key"] for one in data["candidates"]] == ["two/1.png", "one/1.png"]
    digests = [short_digest(cache.digests[row]) for row in (4, 1, 5)]
    assert [one["digest"] for one in data["candidates"] + data["labelled"]] == digests
    assert data["base"] + data["candidates"][0]["file"] == (tmp_path / "two/two/1.png").as_uri()
    assert shlex.split(data["command"])[2:4] == [str(tmp_path / "one.h5"), str(tmp_path / "two.h5")]


def test_the_identity_is_of_cache_and_candidates_and_nothing_else(tmp_path):
    cache = bare(tmp_path, 5)
    (tmp_path / "other").mkdir()
    other = write_cache(tmp_path / "other/bare.h5", np.zeros((5, 2), np.float32))
    ids = [
        data_of(sheet(tmp_path / "r.html", of, rows, scorer=scorer)[0])["id"]
        for of, rows, scorer in [(cache, [1, 2], "a"), (cache, [1, 2], "b"), (cache, [1, 3], "a"), (other, [1, 2], "a")]
    ]
    assert ids[0] == ids[1] and len(set(ids)) == 3


def test_the_command_of_the_next_round_quotes_the_cache(tmp_path):
    (tmp_path / "my images").mkdir()
    cache = bare(tmp_path / "my images", 3)
    command = data_of(sheet(tmp_path / "r.html", cache, [1])[0])["command"]
    train, retrieve = map(shlex.split, command.splitlines())
    labels = ["--positives", "reviewed.csv", "--negatives", "reviewed.csv"]
    assert train == ["pucache", "train-pu", str(tmp_path / "my images/bare.h5"), *labels]
    assert retrieve[:7] == ["pucache", "retrieve-positives", str(tmp_path / "my images/bare.h5"), *labels]
    assert retrieve[7:] == ["--model", "model.safetensors", "--review", "review.html"]


def test_labels_of_another_length_are_refused(tmp_path):
    cache = bare(tmp_path, 3)
    with pytest.raises(ValueError, match=r"there are 2 labels, but .* has 3 rows"):
        write_review_page(cache, ranked(cache, [1]), Labels.of(np.zeros(2)), tmp_path / "r.html")


def test_a_source_or_a_folder_that_will_not_do_leaves_the_earlier_sheet_as_it_was(tmp_path):
    cache = bare(tmp_path, 3)
    (tmp_path / "r.html").write_text("earlier")
    with pytest.raises(SourceError):
        sheet(tmp_path / "r.html", cache, [1], images=tmp_path / "nowhere")
    assert (tmp_path / "r.html").read_text() == "earlier"
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        sheet(tmp_path / "file/r.html", cache, [1])


# --- reviewing ---------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.slow
def test_two_hundred_candidates_are_reviewed_by_keyboard_exported_and_imported_again(pile, tmp_path, browser):
    path, cache = pile
    wanted = [{0: "r", 1: "s"}.get(number % 7, "a") for number in range(200)]
    with opened(browser, path) as page:
        for number, key in enumerate(wanted):
            page.keyboard.press(key)
            if number < 199:
                assert in_turn(page) == number + 2
        accepted, rejected = wanted.count("a"), wanted.count("r")
        assert tally(page).startswith(f"{accepted + rejected} of 200 decided, {wanted.count('s')} skipped")
        assert f"accepted {accepted} of {accepted + rejected}, {100 * accepted / (accepted + rejected):.0f} %" in tally(
            page
        )
        assert page.evaluate("document.getElementById('progress').value") == 200
        data = exported(page)
        assert page.text_content("#command").startswith("pucache train-pu ")
        assert page.is_visible("#command")
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
    assert read.reviewed[3:].tolist() == [1, -1, -1, *({"a": 1, "r": -1}.get(key, 0) for key in wanted)]
    with opened(browser, path) as page:
        page.set_input_files("#import", tmp_path / "reviewed.csv")
        expect(page.locator("#notice")).not_to_be_empty()
        told = page.text_content("#notice")
        assert f"took {len(now)} decisions; labelled before: 6, not on this page: 0." in told
        assert exported(page) == data
        page.keyboard.press("u")
        assert tally(page) == "0 of 200 decided", "one undo takes the import back"


@needs_chromium
def test_the_focus_goes_to_the_next_undecided_and_over_the_end_of_the_page(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["a", "ArrowRight", "r"])
        assert in_turn(page) == 4 and badges(page)[:4] == ["accepted", "", "rejected", ""]
        press(page, ["Home", "s"])
        assert in_turn(page) == 2, "a decision changed leads to the first that is undecided"
        press(page, ["End", "a"])
        assert in_turn(page) == 61 and page.locator("#grid .cell").count() == 60
        assert page.text_content("nav .where") == "page 2 of 4"
        press(page, ["p"])
        assert in_turn(page) == 1
        press(page, ["n", "n", "n", "n"])
        assert in_turn(page) == 181 and page.locator("#grid .cell").count() == 20


@needs_chromium
@pytest.mark.slow
def test_arrows_go_through_the_grid_as_it_is_laid_out(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["Home"])
        across = page.evaluate("columns()")
        assert across > 2
        press(page, ["ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"])
        assert in_turn(page) == across + 2
        press(page, ["ArrowUp", "ArrowUp"])
        assert in_turn(page) == 2, "above the first row there is nothing"
        press(page, ["End", "ArrowDown"])
        assert in_turn(page) == 60
        press(page, ["ArrowRight"])
        assert in_turn(page) == 61


@needs_chromium
def test_undo_goes_back_to_the_beginning_and_a_group_is_one_step(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["a", "r", "Shift+A"])
        assert tally(page).startswith("60 of 200 decided · accepted 59 of 60") and in_turn(page) == 61
        press(page, ["Shift+R"])
        assert badges(page) == [""] * 60 and tally(page).startswith("120 of 200 decided")
        press(page, ["u"])
        assert tally(page).startswith("60 of 200")
        press(page, ["Control+z"])
        assert tally(page).startswith("2 of 200") and badges(page)[:3] == ["accepted", "rejected", ""]
        press(page, ["u"])
        assert in_turn(page) == 2 and badges(page)[1] == ""
        press(page, ["u", "u", "u"])
        assert tally(page) == "0 of 200 decided" and page.text_content("#announcement") == "nothing to undo"


@needs_chromium
@pytest.mark.slow
def test_every_decision_is_announced(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["a"])
        assert page.text_content("#announcement") == "accepted, rank 1, 1 of 200 decided"
        press(page, ["s"])
        assert page.text_content("#announcement") == "skipped, rank 2, 1 of 200 decided"
        press(page, ["z", "r"])
        assert page.text_content("#zoom-announcement") == "rejected, rank 3, 2 of 200 decided"
        label = page.locator("#grid .cell").nth(2).get_attribute("aria-label")
        assert label == "rank 3, rejected, score 1.960, probability 98 %, 008.png"


@needs_chromium
def test_keys_do_nothing_while_somebody_types_or_with_other_modifiers(pile, browser):
    with opened(browser, pile[0]) as page:
        page.focus("#search")
        press(page, ["a", "r", "s", "u", "?"])
        assert tally(page) == "0 of 200 decided" and page.input_value("#search") == "arsu?"
        assert page.is_visible("#nothing") and not page.is_visible("#help")
        page.fill("#search", "")
        press(page, ["Enter"])
        assert in_turn(page) == 1, "Enter leads from the search to the list"
        press(page, ["Alt+a", "Meta+a", "Control+a", "Control+s", "Shift+s"])
        assert tally(page) == "0 of 200 decided"


@needs_chromium
@pytest.mark.slow
def test_a_key_held_down_decides_once(pile, browser):
    with opened(browser, pile[0]) as page:
        for _ in range(5):
            page.keyboard.down("a")
        page.keyboard.up("a")
        assert tally(page).startswith("1 of 200 decided")


@needs_chromium
def test_mouse_accepts_takes_back_and_looks_at_pictures(pile, browser):
    with opened(browser, pile[0]) as page:
        accept = page.locator("#grid [data-decision=accepted]").nth(3)
        accept.click()
        assert accept.get_attribute("aria-pressed") == "true" and badges(page)[3] == "accepted"
        accept.click()
        assert accept.get_attribute("aria-pressed") == "false" and badges(page)[3] == ""
        page.locator("#grid .frame").nth(2).click()
        assert page.text_content("#zoom-title") == "Rank 3"
        page.click("[data-zoom=rejected]")
        assert page.text_content("#zoom-title") == "Rank 4" and badges(page)[2] == "rejected"
        page.click("[data-zoom=previous]")
        assert page.get_attribute("[data-zoom=rejected]", "aria-pressed") == "true"
        page.click("[data-zoom=close]")
        assert in_turn(page) == 3 and not page.is_visible("#zoom")


@needs_chromium
@pytest.mark.slow
def test_the_original_is_shown_large_and_the_focus_comes_back(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["ArrowRight", "ArrowRight", "Enter"])
        wait_for_original(page)
        assert page.evaluate("document.getElementById('zoom-picture').naturalWidth") == 24 + 8 % 7
        assert "25 × 20 pixels" in page.text_content("#zoom-facts")
        assert page.evaluate("document.activeElement.id") == "zoom-title"
        press(page, ["a", "ArrowRight", "Escape"])
        expect(page.locator("#zoom")).not_to_have_attribute("open", "")
        expect(page.locator(".cell:focus")).to_have_count(1)  # the dialog tells that it is closed a little later
        assert in_turn(page) == 5 and badges(page)[2] == "accepted"


@needs_chromium
@pytest.mark.slow
def test_the_thumbnail_stays_where_the_original_is_gone_by_now(tmp_path, browser):
    cache = folder_of(tmp_path, {f"{row}.png": encode(shaded(20, 20)) for row in range(3)})
    path, _ = sheet(tmp_path / "r.html", cache, [1, 2], positives=[0])
    (tmp_path / "images/1.png").unlink()
    with pytest.raises(AssertionError, match="ERR_FILE_NOT_FOUND"), opened(browser, path) as page:
        with page.expect_console_message(lambda message: "ERR_FILE_NOT_FOUND" in message.text):
            press(page, ["Home", "Enter"])
        page.wait_for_timeout(200)
        assert page.get_attribute("#zoom-picture", "src").startswith("data:image/webp")


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


@needs_chromium
@pytest.mark.slow
def test_search_is_for_a_part_of_the_key_in_any_case(tmp_path, browser):
    cache = bare(tmp_path, 4, ["cats/One.png", "cats/two.png", "dogs/one.png", "x"])
    path, _ = sheet(tmp_path / "r.html", cache, [0, 1, 2], positives=[3])
    with opened(browser, path) as page:
        page.fill("#search", "oNE")
        assert ranks(page) == [1, 3]
        page.fill("#search", "nowhere")
        assert ranks(page) == [] and page.is_visible("#nothing")
        press(page, ["Tab", "Tab", "End", "n", "Shift+A"])
        page.fill("#search", "")
        assert ranks(page) == [1, 2, 3] and tally(page) == "0 of 3 decided"


@needs_chromium
@pytest.mark.slow
def test_the_list_is_sorted_by_doubt_and_by_key(tmp_path, browser):
    cache = bare(tmp_path, 16)
    path, _ = sheet(tmp_path / "r.html", cache, [5, 1, 3, 2, 4], positives=[0, *range(7, 16)])
    with opened(browser, path) as page:
        page.select_option("#sort", "doubt")
        assert ranks(page) == [3, 2, 4, 1, 5]
        page.select_option("#sort", "key")
        assert ranks(page) == [2, 4, 3, 5, 1]
        page.select_option("#sort", "rank")
        assert ranks(page) == [1, 2, 3, 4, 5]


@needs_chromium
@pytest.mark.slow
def test_without_a_posterior_there_is_no_doubt_to_sort_by(tmp_path, browser):
    path, _ = sheet(tmp_path / "r.html", bare(tmp_path, 3), [1, 2], positives=[0], posterior=False)
    with opened(browser, path) as page:
        assert page.locator("#sort option").all_text_contents() == ["by rank", "by key"]
        assert page.locator(".probability").first.text_content() == ""


@needs_chromium
@pytest.mark.slow
def test_the_size_of_a_page_is_chosen_and_only_that_page_is_in_the_document(pile, browser):
    with opened(browser, pile[0]) as page:
        for size, pages in ((30, 7), (120, 2), (240, 1)):
            page.select_option("#size", str(size))
            assert page.locator("#grid .cell").count() == min(size, 200)
            assert page.text_content("nav .where") == f"page 1 of {pages}"


# --- what is kept ------------------------------------------------------------------------------


@needs_chromium
def test_decisions_survive_a_reload_and_are_of_this_page_alone(pile, tmp_path, browser):
    other, _ = sheet(tmp_path / "other.html", pile[1], range(7, 100), positives=range(4))
    with opened(browser, pile[0]) as page:
        press(page, ["a", "r", "s"])
        page.reload()
        assert badges(page)[:4] == ["accepted", "rejected", "skipped", ""]
        page.goto(other.as_uri())
        assert set(badges(page)) == {""}
        page.goto(pile[0].as_uri())
        assert tally(page).startswith("2 of 200 decided, 1 skipped")


@needs_chromium
@pytest.mark.slow
def test_reset_asks_first_and_can_be_undone(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["a", "r"])
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.click("#reset")
        assert tally(page).startswith("2 of 200")
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("#reset")
        assert tally(page) == "0 of 200 decided"
        page.click("#undo")
        assert tally(page).startswith("2 of 200")


REFUSED = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"
FULL = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };"


@needs_chromium
@pytest.mark.parametrize("init", [REFUSED, FULL], ids=["refused", "full"])
@pytest.mark.slow
def test_a_browser_that_keeps_nothing_is_told_of_and_guards_what_is_not_exported(pile, browser, init):
    asked = []

    def answer(dialog):
        asked.append(dialog.type)
        dialog.dismiss()

    with opened(browser, pile[0], init=init) as page:
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


# --- files that come in ------------------------------------------------------------------------


@needs_chromium
@pytest.mark.slow
def test_files_that_are_no_review_of_this_cache_are_refused_and_change_nothing(pile, tmp_path, browser):
    digest = short_digest(pile[1].digests[6])
    files = {
        "is of another cache": f"key,label,digest\n007.png,1,\n006.png,1,{digest[::-1]}\n".encode(),
        "no columns key and label": b"rank,key,score\n1,006.png,0.5\n",
        "the label of 006.png is maybe": b"key,label\n006.png,maybe\n",
        "it is not CSV": b'key,label\n"006.png,1\n',
        "not UTF-8": b"key,label\n006\xff.png,1\n",
    }
    with opened(browser, pile[0]) as page:
        for reason, data in files.items():
            page.set_input_files("#import", {"name": "in.csv", "mimeType": "text/csv", "buffer": data})
            expect(page.locator("#notice")).to_contain_text(reason)
            assert page.text_content("#notice").startswith("in.csv was refused: ")
        assert tally(page) == "0 of 200 decided"


@needs_chromium
def test_an_import_says_what_it_took_and_overrules_what_was_decided(pile, browser):
    data = b"\xef\xbb\xbflabel,key\r\n1,006.png\r\n0,007.png\r\n1,000.png\r\n0,elsewhere.png\r\n"
    with opened(browser, pile[0]) as page:
        press(page, ["r"])
        page.set_input_files("#import", {"name": "in.csv", "mimeType": "text/csv", "buffer": data})
        expect(page.locator("#notice")).not_to_be_empty()
        assert page.text_content("#notice") == ("in.csv: took 2 decisions; labelled before: 1, not on this page: 1.")
        assert badges(page)[:3] == ["accepted", "rejected", ""]


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


@pytest.mark.slow
@needs_chromium
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(keys=st.lists(KEYS, min_size=30, max_size=60, unique=True))
def test_any_keys_go_out_and_come_back(tmp_path_factory, browser, keys):
    folder = tmp_path_factory.mktemp("keys")
    cache = bare(folder, len(keys), keys)
    path, _ = sheet(folder / "r.html", cache, cache.keys.rows(keys))
    with opened(browser, path) as page:
        assert page.locator("#grid .key").all_text_contents() == list(map(visible, keys))
        press(page, ["Shift+R"])
        data = exported(page)
    (folder / "reviewed.csv").write_bytes(data)
    assert [row["key"] for row in read_table(folder / "reviewed.csv")] == keys
    with opened(browser, path) as page:
        page.set_input_files("#import", folder / "reviewed.csv")
        expect(page.locator("#notice")).not_to_be_empty()
        assert badges(page) == ["rejected"] * len(keys)
        assert exported(page) == data


@needs_chromium
@pytest.mark.slow
def test_originals_with_odd_names_are_found(tmp_path, browser):
    keys = [key for key in ODD if len(key) < 100 and "/" not in key]
    cache = folder_of(tmp_path, {key: encode(shaded(300 + at, 200)) for at, key in enumerate(keys)}, "odd #1? %41")
    path, said = sheet(tmp_path / "r.html", cache, cache.keys.rows(keys))
    assert said.without_picture == 0
    with opened(browser, path) as page:
        press(page, ["Home", "z"])
        for at in range(len(keys)):
            wait_for_original(page)
            assert page.evaluate("document.getElementById('zoom-picture').naturalWidth") == 300 + at
            press(page, ["ArrowRight"])


@needs_chromium
@pytest.mark.slow
def test_images_without_a_picture_say_why_and_can_be_decided(tmp_path, browser):
    cache = cache_of(tmp_path / "c.h5", tmp_path / "gone", {f"{row}.png": None for row in range(4)})
    path, said = sheet(tmp_path / "r.html", cache, [1, 2, 3], positives=[0])
    assert said.without_picture == 3
    with opened(browser, path) as page:
        assert "3 of 3 have no picture: no such source" in page.text_content("header .warning")
        assert "No picture: no such source" in page.locator("#grid .absent").first.text_content()
        press(page, ["z"])
        assert "no such source" in page.text_content("#zoom-absent") and not page.is_visible("#zoom-picture")
        assert violations(page) == []
        press(page, ["a", "Escape"])
        assert tally(page).startswith("1 of 3 decided")


@needs_chromium
@pytest.mark.slow
def test_an_image_too_large_for_us_is_shown_by_the_browser(tmp_path, monkeypatch, browser):
    monkeypatch.setattr("pucache.images.decoding.MAX_PIXELS", 999)
    cache = folder_of(tmp_path, {"a.png": encode(shaded(9, 9)), "huge.png": encode(shaded(50, 40))})
    path, _ = sheet(tmp_path / "r.html", cache, [1], positives=[0])
    with opened(browser, path) as page:
        assert "No picture: 50 x 40 pixels; at most 999" in page.locator("#grid .absent").text_content()
        press(page, ["z"])
        wait_for_original(page)
        assert page.evaluate("document.getElementById('zoom-picture').naturalWidth") == 50
        assert "50 × 40 pixels" in page.text_content("#zoom-facts")


@pytest.mark.slow
@needs_chromium
def test_five_thousand_candidates_load_and_are_reviewed(tmp_path, browser):
    cache = bare(tmp_path, 5001)
    path, _ = sheet(tmp_path / "r.html", cache, range(1, 5001), positives=[0])
    with opened(browser, path) as page:
        assert page.locator("#grid .cell").count() == 60
        assert page.text_content("nav .where") == "page 1 of 84"
        press(page, ["a", "Shift+R", "a"])
        assert tally(page) == "61 of 5000 decided · accepted 2 of 61, 3 %"
        page.fill("#search", "04999")
        assert ranks(page) == [4999]
        assert exported(page).count(b"\n") == 1 + 1 + 61


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", slow("dark")])
@pytest.mark.slow
def test_an_empty_ranking_says_so_and_what_to_do(tmp_path, browser, scheme):
    path, said = sheet(tmp_path / "r.html", bare(tmp_path, 2), [], positives=[0, 1])
    assert said == ReviewPage(shown=0, without_picture=0, changed=0)
    with opened(browser, path, color_scheme=scheme) as page:
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
        assert violations(page) == []
        press(page, ["Escape", "?"])
        assert page.is_visible("#help") and violations(page) == []
        press(page, ["a", "Escape"])
        assert tally(page).startswith("2 of 200"), "keys do nothing behind the help"
        exported(page)
        assert violations(page) == []


@needs_chromium
@pytest.mark.parametrize("width", [320, 640])
@pytest.mark.slow
def test_a_narrow_screen_needs_no_scrolling_sideways(tmp_path, browser, width):
    cache = bare(tmp_path, len(ODD) + 1, [*ODD, "zzz"])
    path, _ = sheet(tmp_path / "r.html", cache, cache.keys.rows(ODD))
    with opened(browser, path, viewport={"width": width, "height": 500}, has_touch=True) as page:
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


@needs_chromium
@pytest.mark.slow
def test_the_tab_key_passes_the_grid_with_one_candidate_and_its_buttons(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["ArrowRight", "ArrowRight"])
        reached = []
        for _ in range(3):
            press(page, ["Tab"])
            reached.append(page.evaluate("document.activeElement.textContent"))
        assert reached[:2] == ["✓ Accept", "✗ Reject"] and "Previous page" in reached[2]
        press(page, ["Shift+Tab", "Space"])
        assert badges(page)[2] == "rejected"
        page.keyboard.press("u")
        assert in_turn(page) == 3
        press(page, ["Tab", "z"])
        assert page.text_content("#zoom-title") == "Rank 3", "keys work from the buttons of a card too"


@needs_chromium
@pytest.mark.slow
def test_the_skip_link_is_the_first_stop_and_leads_to_the_candidates(pile, browser):
    with opened(browser, pile[0]) as page:
        press(page, ["Tab", "Enter", "Tab"])
        assert in_turn(page) == 1


def test_more_candidates_than_a_page_can_hold_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("pucache.pages.review_page.MAX_CANDIDATES", 2)
    with pytest.raises(ValueError, match="at most 2 candidates, got 3; retrieve fewer with -k"):
        sheet(tmp_path / "r.html", bare(tmp_path, 4), [1, 2, 3])
