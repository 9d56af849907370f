"""The review sheet: what it says and shows of each candidate, without script and without the network."""

import re

import numpy as np
import pytest
from helpers.browser import needs_chromium, opened, violations
from helpers.pictured import ODD, folder_of, shaded
from helpers.pictures import encode
from helpers.planted import write_cache
from helpers.slow import slow

from pucache import write_review_page
from pucache.pages.html import visible
from pucache.pages.review_page import ReviewPage
from pucache.retrieval.ranking import Ranking


def sheet(path, cache, rows, **options):
    """Write a review sheet of these rows, best first; return its path and its counts."""
    rows = np.asarray(rows, np.int64)
    scores = np.linspace(2, -2, len(rows), dtype=np.float32)
    posterior = 1 / (1 + np.exp(-2.0 * scores))
    named = {"keys": cache.keys[rows], "posterior": posterior, "scorer": "similarity (topk)"}
    return path, write_review_page(cache, Ranking(rows=rows, scores=scores, **named), path, **options)


def test_a_sheet_has_pictures_keys_scores_and_links_and_no_script(tmp_path):
    cache = folder_of(tmp_path, {f"{row}.png": encode(shaded(20 + row, 20)) for row in range(5)})
    (tmp_path / "images/0.png").unlink()
    (tmp_path / "images/1.png").write_bytes(encode(shaded(30, 30)))
    path, said = sheet(tmp_path / "r.html", cache, range(4))
    assert said == ReviewPage(shown=4, without_picture=1, changed=1)
    html = path.read_text()
    assert (
        "<script" not in html and "script-src &#39;none&#39;" in html and not re.search(r"https?://|<link|url\(", html)
    )
    assert "1 of 4 have no picture: cannot be read: No such file or directory (1)." in html
    assert "--images SOURCE" in html and "1 of 4 files have changed since they were embedded" in html
    links = re.findall(r'<a href="([^"]+)">', html)
    assert links[-2:] == [(tmp_path / f"images/{row}.png").as_uri() for row in (2, 3)]
    assert "<b>1</b> 2.000 <b>98.2 %</b>" in html and "<b>4</b> -2.000 <b>1.8 %</b>" in html


def test_an_empty_ranking_says_what_to_do_and_more_candidates_than_a_page_can_hold_are_one_line(tmp_path, monkeypatch):
    cache = write_cache(tmp_path / "bare.h5", np.ones((4, 2), np.float32))
    path, said = sheet(tmp_path / "empty.html", cache, [])
    assert said == ReviewPage(shown=0, without_picture=0, changed=0) and "pucache embed" in path.read_text()
    monkeypatch.setattr("pucache.pages.review_page.MAX_CANDIDATES", 2)
    with pytest.raises(ValueError, match="at most 2 candidates, got 3; retrieve fewer with -k"):
        sheet(tmp_path / "r.html", cache, [1, 2, 3])


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", slow("dark")])
def test_odd_keys_and_pictures_are_shown_to_everybody_on_a_narrow_screen_too(tmp_path, browser, scheme):
    cache = write_cache(tmp_path / "bare.h5", np.ones((len(ODD) + 1, 2), np.float32), [*ODD, "zzz"])
    path, _ = sheet(tmp_path / "r.html", cache, cache.keys.rows(ODD))
    with opened(browser, path, viewport={"width": 320, "height": 500}, color_scheme=scheme) as page:
        assert page.locator("figcaption").all_text_contents() == list(map(visible, ODD))
        assert page.title() == "9 candidates" and violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        pictured = folder_of(tmp_path, {f"{row}.png": encode(shaded(20 + row, 20)) for row in range(5)})
        page.goto(sheet(tmp_path / "pictured.html", pictured, range(5))[0].as_uri())
        page.wait_for_function("[...document.images].every((image) => image.naturalWidth)")  # they are decoded later
        assert page.evaluate("[...document.images].map((image) => image.naturalWidth)") == [20, 21, 22, 23, 24]
        assert violations(page) == []
