import hashlib
import json
import re
from dataclasses import asdict
from html import unescape

import numpy as np
import pytest
from helpers.browser import needs_chromium, opened, violations
from helpers.cache_files import write_rows
from helpers.command_line import run
from helpers.pictured import ODD, shaded
from helpers.pictures import encode
from helpers.planted import planted, write_cache
from helpers.slow import slow

from pucache import read_labels, train_pu
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows
from pucache.encoders.spec import EncoderSpec
from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.priors import PriorEstimate
from pucache.pages import report as module
from pucache.pages.html import visible
from pucache.pages.report import report

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"sample": 60, "device": "cpu"}


def pictured_cache(folder, n=160, *, seed=0, **how):
    """A cache of planted rows, pictures of them, keys that are odd, one copy and one failure; with s and y."""
    X, s, y = planted(n=n, d=6, seed=seed, **{"labelled": 30, "prior": 0.3, "apart": 0.9, **how})
    hidden, labelled = int(np.flatnonzero((s == 0) & (y == 1))[0]), int(np.flatnonzero(s)[0])
    X[hidden] = X[labelled]
    names = [*ODD[:6], *(f"{row:05}.png" for row in range(6, n))]
    data = [encode(shaded(24 + row % 9, 20, 60 + row % 190)) for row in range(n)]
    images = folder / "images"
    for name, picture in zip(names, data, strict=True):
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (images / name).write_bytes(picture)
    keys = encode_keys(names)
    order = np.argsort(keys)
    digests = np.array([list(hashlib.sha256(picture).digest()) for picture in data], np.uint8)
    rows = Rows(keys[order], X[order], digests[order], np.full((n, 2), -1))
    told = {"source": str(images), "failures": {"broken\n<b>.png": "cannot be decoded: no image"}}
    path = write_rows(folder / "cache.h5", rows, spec=EncoderSpec.imported("planted", 6), **told)
    return EmbeddingCache(path), s[order], y[order]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report with truth on a pictured cache: its page, its numbers, the cache, s and y."""
    folder = tmp_path_factory.mktemp("report")
    cache, s, y = pictured_cache(folder)
    numbers = report(cache, s, folder / "report.html", truth=y, **FAST)
    return folder / "report.html", numbers, cache, s, y


@pytest.fixture(scope="module")
def reviewed(made, tmp_path_factory):
    """A report by files of positives and of rejected images, with new images of another kind.

    Its page, its numbers, the files, and keys of the rejected images.
    """
    _, _, cache, s, y = made
    folder = tmp_path_factory.mktemp("reviewed")
    rows = [row for row in range(len(s)) if not set(cache.keys[row]) & set('\n"')]
    listed = {"positives": [row for row in rows if s[row]], "negatives": [row for row in rows if y[row] == 0][:40]}
    files = {name: folder / f"{name}.txt" for name in listed}
    for name, path in files.items():
        path.write_text("".join(f"{cache.keys[row]}\n" for row in listed[name]))
    later = write_cache(folder / "later.h5", planted(n=60, labelled=20, seed=1)[0] + 5)
    named = {"new_images": later, "command": "pucache report ..."}
    labels = read_labels(cache, files["positives"], negatives=files["negatives"])
    numbers = report(cache, labels, folder / "r.html", **named, **FAST)
    return (folder / "r.html").read_text(), numbers, files, [cache.keys[row] for row in listed["negatives"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Page and lines of the command, on a pile without pictures, with truth and with new images of its kind."""
    folder = tmp_path_factory.mktemp("plain")
    X, s, y = planted(n=90, labelled=20)
    keys = write_cache(folder / "cache.h5", X).keys
    write_cache(folder / "new.h5", planted(n=60, labelled=20, seed=1)[0])
    for name, rows in (("positives.txt", s), ("truth.txt", y)):
        (folder / name).write_text("".join(f"{keys[int(row)]}\n" for row in np.flatnonzero(rows)))
    command = "report {f}/cache.h5 --positives {f}/positives.txt --truth {f}/truth.txt --new-images {f}/new.h5"
    ended = run(command + " --out {f}/r.html", f=folder)
    return (folder / "r.html").read_text(), ended.stdout


def sections(html):
    return re.findall(r'<h2 id="(\w+)"', html)


# --- the numbers -------------------------------------------------------------------------------


def test_the_estimates_are_those_of_training_at_the_defaults(made):
    _, numbers, cache, s, _ = made
    model = train_pu(cache, s, device="cpu")
    assert numbers["estimates"] == pytest.approx(model.estimates_, nan_ok=True)
    assert numbers["prior"] == model.prior_ == numbers["prior_estimates"]["tilt"]["prior"]
    tilt = numbers["prior_estimates"]["tilt"]
    assert (tilt["low"], tilt["high"]) == pytest.approx((model.prior_estimate_.low, model.prior_estimate_.high))
    assert numbers["hidden_positives"]["expected"] == pytest.approx(model.prior_ * 130)
    assert set(numbers["prior_estimates"]) == {"tilt"}


def test_counts_tell_failures_copies_and_what_is_found_already(made):
    _, numbers, _, s, y = made
    assert (numbers["images"], numbers["labelled"], numbers["unlabelled"]) == (160, 30, 130)
    assert numbers["failures"] == {"count": 1, "reasons": {"cannot be decoded: no image": 1}}
    assert numbers["duplicates"] == {"groups": 1, "copies": 1} and numbers["twins_found"] == 1
    assert numbers["true_prior"] == pytest.approx((y[s == 0]).mean())
    assert numbers["pictures"]["missing"] == 0
    assert numbers["true"]["n"] == 130 and 0.5 < numbers["true"]["f1"] <= 1


def test_a_model_of_other_labels_is_said_and_ranks_all_the_same(made, tmp_path):
    _, _, cache, s, y = made
    fewer = s.copy()
    fewer[np.flatnonzero(s)[::2]] = 0
    other = train_pu(cache, fewer, device="cpu", method="linear", penalty=0.05)
    result = report(cache, s, tmp_path / "r.html", model=other, truth=y, **FAST)
    assert result["model"]["trained_on_other_labels"] and any("other labels" in one for one in result["warnings"])
    margins = np.where(s == 0, other.margins(cache.X), -np.inf)
    html = (tmp_path / "r.html").read_text()
    first = [visible(cache.keys[int(row)]) for row in np.argsort(-margins)[:8]]
    found_already = shown_in(html, "Copies of labelled positives")
    expected = [key for key in first if key not in found_already]
    assert shown_in(html, "The highest-ranked unlabelled images")[:5] == expected[:5]
    assert result["true_by_model"]["n"] == 130 and "true, of the model given" in html


def shown_in(html, heading):
    part = html[html.index(heading) :]
    return list(map(unescape, re.findall(r'class="key" title="([^"]+)"', part[: part.index("</section>")])))


def test_reviewed_images_are_trained_on_and_not_shown_as_candidates(reviewed):
    html, numbers, _, rejected = reviewed
    assert numbers["reviewed"] == {"confirmed": 0, "negative": 40}
    assert "labels 2: sha256" in numbers["provenance"]["labels"]
    shown = {*shown_in(html, "The highest-ranked"), *shown_in(html, "The most doubtful")}
    assert shown and not shown & set(map(visible, rejected))
    assert "rejected\n  40 images" in html


# --- the page ----------------------------------------------------------------------------------


def test_the_page_has_its_sections_in_order_and_names_no_address(made):
    html = made[0].read_text("utf-8")
    names = "summary cache positives hidden margins curve reliability map candidates truth provenance"
    assert sections(html) == names.split()
    assert re.findall(r'<li><a href="#(\w+)"', html) == names.split()
    assert not re.search(r"https?://(?!www\.w3\.org)|<link|url\([^#]", html)
    assert html.count("How to read it.") >= 9 and html.count("<summary>The numbers") == 4


@pytest.mark.slow
def test_equal_input_gives_equal_bytes(made, tmp_path, fixed_time):
    _, _, cache, s, y = made
    for name in ("a.html", "b.html"):
        report(cache, s, tmp_path / name, truth=y, **FAST | {"sample": 12})
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert "2023-11-14T22:13:20Z" in (tmp_path / "a.html").read_text()


def test_provenance_names_files_hashes_parameters_and_versions(made, reviewed):
    html, numbers, files, _ = reviewed
    (file,), result = made[2].files, numbers["provenance"]
    assert result["labels"]["labels: sha256"] == hashlib.sha256(files["positives"].read_bytes()).hexdigest()
    assert result["cache"][0]["checksum"] == file.checksum and result["cache"][0]["source"]
    assert result["versions"]["numpy"] == np.__version__ and result["report"]["command"] == "pucache report ..."
    for text in (result["labels"]["labels: sha256"], file.checksum, result["versions"]["torch"]):
        assert text in html


@pytest.mark.parametrize("n", [2, slow(3)])
def test_a_tiny_cache_makes_a_page(tmp_path, n):
    X = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    s = np.zeros(n, np.int8)
    s[0] = 1
    numbers = report(write_cache(tmp_path / "c.h5", X), s, tmp_path / "r.html", device="cpu")
    assert numbers["map"]["shown"] == n


def test_the_command_writes_the_page_and_says_that_there_are_no_pictures(plain):
    html, printed = plain
    assert html.startswith("<!doctype html>") and "truth" in sections(html)
    assert "20 labelled positives, 70 unlabelled" in printed and "wrote " in printed
    assert "note: " in printed and "--images SOURCE" in printed
    assert "no picture: the cache does not say where its images are" in html


def test_new_images_have_a_section_that_says_whether_they_differ(made, plain, reviewed):
    assert made[1]["new_images"] is None and reviewed[1]["new_images"]["images"] == 60
    for html, said in ((plain[0], "No difference"), (reviewed[0], "the new images differ from those")):
        assert sections(html)[-2] == "new" and said in html
        assert re.findall(r'<li><a href="#(\w+)"', html) == sections(html)


# --- in a browser ------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", slow("dark")])
def test_the_page_works_and_is_accessible(made, browser, scheme):
    with opened(browser, made[0], color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.focus("#map-plot")
        assert violations(page) == [] and page.title() == "pucache report"
        data, first = json.loads(page.text_content("#data")), page.text_content("#map-card bdi")
        likeliest = max((p, -at) for at, p in enumerate(data["posterior"]) if not data["labelled"][at])
        assert first == data["key"][-likeliest[1]] and len(set(data["key"])) == 60
        page.keyboard.press("ArrowLeft")
        assert page.text_content("#map-card bdi") != first
        page.keyboard.press("Home")
        assert page.text_content("#map-card bdi") == first
        page.locator(".dot.labelled").last.hover()
        assert page.evaluate("document.querySelector('#map-card img').naturalWidth") > 0
        assert "labelled positive" in page.text_content("#map-card")
        shown = set(page.locator(".key").all_text_contents())
        assert shown & {visible(key) for key in ODD} and all("\n" not in text for text in shown)
        before = page.locator(".dot").first.get_attribute("cx")
        page.focus("input[value=tsne]")
        page.keyboard.press("ArrowRight")
        assert page.is_checked("input[value=pca]") and page.locator(".dot").first.get_attribute("cx") != before
        named = re.search(r"Section\s+(\d+) shows", page.text_content("#main"))[1]
        assert page.locator("nav li").nth(int(named) - 1).text_content().strip() == "Candidates"
        page.set_viewport_size({"width": 320, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        columns = "getComputedStyle(document.querySelector('.gallery')).gridTemplateColumns.split(' ').length"
        assert page.evaluate(columns) >= 3, "a column of single pictures makes a phone scroll without end"


# --- refusals ----------------------------------------------------------------------------------


# --- words -------------------------------------------------------------------------------------


def by_labels(low=0.08, high=0.12):
    return {"tilt": asdict(PriorEstimate("tilt", 0.1, low, high))}


GOOD = {  # numbers of a good training
    "images": 1000,
    "labelled": 100,
    "unlabelled": 900,
    "unlabelled_sample": None,
    "held_out": True,
    "audit_draws": 0,
    "labels": 100,
    "note": "",
    "prior": 0.1,
    "prior_is_given": False,
    "prior_estimates": by_labels(),
    "hidden_positives": {"expected": 90.0, "low": 72.0, "high": 110.0},
    "estimates": {"precision": 0.9, "recall": 0.8, "share_predicted_positive": 0.1, "collapsed": ""},
    "intervals": {"precision": [0.7, 1.0], "recall": [0.7, 0.9]},
    "model": {"trained_on_other_labels": False},
    "failures": {"count": 0, "reasons": {}},
    "duplicates": {"groups": 0, "copies": 0},
    "reviewed": {"confirmed": 0, "negative": 0},
    "twins_found": 0,
    "scar": {"verdict": "alike", "auc": 0.5},
    "pictures": {"asked": 10, "missing": 0, "problems": {}},
}
DOUBTS = {  # what the warning says: numbers that are other ones
    "With 12 labelled positives": {"labels": 12, "note": LabelCount(12).sentence},
    "nothing could be held out": {"held_out": False},
    "5 positives and rejected 1 image. These": {"reviewed": {"confirmed": 5, "negative": 1}},
    "Hardly any unlabelled image": {"scar": {"verdict": "none found", "auc": None}},
    "AUC 0.70): they are no fair sample": {"scar": {"verdict": "differ", "auc": 0.7}},
    "3 unlabelled images show the same picture": {"twins_found": 3},
    "uncertain: 2.00 % to 40.0 %": {"prior_estimates": by_labels(0.02, 0.4)},
    "was trained with a prior of 30.0 %": {"prior": 0.3, "prior_is_given": True},
    "1 image could not be read": {"failures": {"count": 1, "reasons": {}}},
    "20.0 % of the images are copies": {"duplicates": {"groups": 9, "copies": 200}},
    "4 pictures of 9": {"pictures": {"asked": 9, "missing": 4, "problems": {"gone": 4}}},
    "trained on other labels": {"model": {"trained_on_other_labels": True}},
    "all-negative": {"estimates": {"precision": 0.9, "recall": 0.8, "collapsed": "all-negative"}},
}


@pytest.mark.parametrize("expected", DOUBTS)
def test_each_reason_for_doubt_has_its_warning(expected):
    (warning,) = module.warnings(GOOD | DOUBTS[expected])
    assert expected in warning
