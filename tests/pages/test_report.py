import base64
import hashlib
import io
import json
import re
import socketserver
import threading
from dataclasses import asdict
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.browser import needs_chromium, opened, violations
from helpers.command_line import run
from helpers.pictured import ODD, cache_of, folder_of, shaded
from helpers.pictures import encode
from helpers.planted import planted, write_cache
from helpers.slow import slow
from helpers.sources import tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import precision_recall_curve

from pucache import EmbeddingCache, read_labels, report, train_pu
from pucache.estimates.calibration import LEAST, fit_tilt
from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.metrics import from_pu, with_labels
from pucache.estimates.priors import PriorEstimate
from pucache.pages import charts
from pucache.pages import html as page
from pucache.pages import report as module
from pucache.pages.charts import HeldOut
from pucache.pages.embedding_map import choose_rows, embedding_map, shares_of_likely
from pucache.pages.html import visible
from pucache.pages.thumbnails import thumbnails
from pucache.storage import retries

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"sample": 60, "device": "cpu"}


def pictured_cache(folder, n=160):
    """A cache of planted rows, pictures of them, keys that are odd, one copy and one failure; with s and y."""
    X, s, y = planted(n=n, d=6, labelled=30, prior=0.3, apart=0.9)
    X[np.flatnonzero((s == 0) & (y == 1))[0]] = X[np.flatnonzero(s)[0]]
    names = [*ODD[:6], *(f"{row:05}.png" for row in range(6, n))]
    files = {name: encode(shaded(24 + row % 9, 20, 60 + row % 190)) for row, name in enumerate(names)}
    cache = folder_of(folder, files, X=X, failures={"broken\n<b>.png": "cannot be decoded: no image"})
    order = [names.index(key) for key in cache.keys]
    return cache, s[order], y[order]


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

    Its page, its numbers, the file of positives, and keys of the rejected images.
    """
    _, _, cache, s, y = made
    folder = tmp_path_factory.mktemp("reviewed")
    rows = [row for row in range(len(s)) if not set(cache.keys[row]) & set('\n"')]
    listed = {"positives": [row for row in rows if s[row]], "negatives": [row for row in rows if y[row] == 0][:40]}
    for name, of in listed.items():
        (folder / f"{name}.txt").write_text("".join(f"{cache.keys[row]}\n" for row in of))
    labels = read_labels(cache, folder / "positives.txt", negatives=folder / "negatives.txt")
    later = write_cache(folder / "later.h5", planted(n=60, labelled=20, seed=1)[0] + 5)
    named = {"new_images": later, "command": "pucache report ..."}
    numbers = report(cache, labels, folder / "r.html", **named, **FAST)
    return (folder / "r.html").read_text(), numbers, folder / "positives.txt", cache.keys[listed["negatives"]]


def sections(html):
    """Names of the sections, each of which the page begins with a link to."""
    names = re.findall(r'<h2 id="(\w+)"', html)
    assert re.findall(r'<li><a href="#(\w+)"', html) == names
    return names


def shown_in(html, heading):
    part = html[html.index(heading) :]
    return list(map(unescape, re.findall(r'class="key" title="([^"]+)"', part[: part.index("</section>")])))


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


def test_a_model_of_other_labels_is_said_and_ranks_all_the_same_and_new_images_do_not_differ(made, tmp_path):
    _, _, cache, s, y = made
    fewer = s.copy()
    fewer[np.flatnonzero(s)[::2]] = 0
    other = train_pu(cache, fewer, device="cpu", method="linear", penalty=0.05)
    new = write_cache(tmp_path / "new.h5", planted(n=60, labelled=20, seed=1, apart=0.9)[0])
    result = report(cache, s, tmp_path / "r.html", model=other, truth=y, new_images=new, **FAST)
    assert result["model"]["trained_on_other_labels"] and any("other labels" in one for one in result["warnings"])
    margins = np.where(s == 0, other.margins(cache.X), -np.inf)
    html = (tmp_path / "r.html").read_text()
    first = [visible(cache.keys[int(row)]) for row in np.argsort(-margins)[:8]]
    found_already = shown_in(html, "Copies of labelled positives")
    expected = [key for key in first if key not in found_already]
    assert shown_in(html, "The highest-ranked unlabelled images")[:5] == expected[:5]
    assert result["true_by_model"]["n"] == 130 and "true, of the model given" in html
    assert sections(html)[-2] == "new" and "No difference" in html


def test_reviewed_images_are_trained_on_and_not_shown_as_candidates_and_new_images_differ(reviewed):
    html, numbers, _, rejected = reviewed
    assert numbers["reviewed"] == {"confirmed": 0, "negative": 40}
    assert "labels 2: sha256" in numbers["provenance"]["labels"]
    shown = {*shown_in(html, "The highest-ranked"), *shown_in(html, "The most doubtful")}
    assert shown and not shown & set(map(visible, rejected))
    assert "40 images are known negatives" in html
    assert numbers["new_images"]["images"] == 60 and "the new images differ from those" in html


# --- the page ----------------------------------------------------------------------------------


def test_the_page_has_its_sections_in_order_and_names_no_address(made):
    html = made[0].read_text("utf-8")
    names = "summary cache positives hidden margins curve reliability map candidates truth provenance"
    assert sections(html) == names.split() and made[1]["new_images"] is None
    assert not re.search(r"https?://(?!www\.w3\.org)|<link|url\([^#]", html)
    assert html.count("How to read it.") >= 9 and html.count("<summary>The numbers") == 4


def test_charts_take_the_colours_of_the_page_and_refer_to_their_own_ids_alone(made):
    drawings, all_ids = re.findall(r"<svg.*?</svg>", made[0].read_text("utf-8"), re.DOTALL), []
    assert len(drawings) == 4
    for svg in drawings:
        assert ElementTree.fromstring(svg.replace("xlink:href", "href")).tag.endswith("svg")
        assert not re.search("#[0-9a-f]{6}|<style|<script|font-family|DOCTYPE", svg)
        assert "currentColor" in svg and "var(--positive)" in svg and "date" not in svg.lower()
        ids = re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(ids)
        all_ids += ids
    assert len(all_ids) == len(set(all_ids))


def test_priors_by_several_methods_are_drawn_also_without_an_interval():
    estimates = [PriorEstimate("tilt", 0.2, 0.15, 0.25, 0.9, 9), PriorEstimate("audit", 0.3, 0.0, 1.0, 0.9, 0)]
    svg = charts.draw("priors", 1.6, charts.paint_priors, estimates, 0.2, 0.21, True)
    assert ElementTree.fromstring(f"<svg {svg['box']}>{svg['body']}".replace("xlink:href", "href")) is not None


@pytest.mark.slow
def test_equal_input_gives_equal_bytes(made, tmp_path, fixed_time):
    _, _, cache, s, y = made
    for name in ("a.html", "b.html"):
        report(cache, s, tmp_path / name, truth=y, **FAST | {"sample": 12})
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert "2023-11-14T22:13:20Z" in (tmp_path / "a.html").read_text()


def test_provenance_names_files_hashes_parameters_and_versions(made, reviewed):
    html, numbers, positives, _ = reviewed
    (file,), result = made[2].files, numbers["provenance"]
    assert result["labels"]["labels: sha256"] == hashlib.sha256(positives.read_bytes()).hexdigest()
    assert result["cache"][0]["checksum"] == file.checksum and result["cache"][0]["source"]
    assert result["versions"]["numpy"] == np.__version__ and result["report"]["command"] == "pucache report ..."
    for text in (result["labels"]["labels: sha256"], file.checksum, result["versions"]["torch"]):
        assert text in html


@pytest.mark.parametrize("n", [2, slow(3)])
def test_the_command_makes_a_page_of_a_tiny_cache_and_says_that_there_are_no_pictures(tmp_path, n):
    keys = write_cache(tmp_path / "c.h5", np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)).keys
    (tmp_path / "p.txt").write_text(f"{keys[0]}\n")
    told = run("report {f}/c.h5 --positives {f}/p.txt --out {f}/r.html", f=tmp_path).stdout
    assert f"1 labelled positive, {n - 1} unlabelled" in told and "wrote " in told
    assert "note: " in told and "--images SOURCE" in told
    html = (tmp_path / "r.html").read_text()
    assert html.startswith("<!doctype html>") and "no picture: the cache does not say where its images are" in html


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


# --- words -------------------------------------------------------------------------------------


def by_labels(low=0.08, high=0.12):
    return {"tilt": asdict(PriorEstimate("tilt", 0.1, low, high))}


GOOD = {
    "images": 1000,
    "labelled": 100,
    "unlabelled": 900,
    "unlabelled_sample": None,
    "held_out": True,
}  # of a training
GOOD |= {"audit_draws": 0, "labels": 100, "note": "", "twins_found": 0, "model": {"trained_on_other_labels": False}}
GOOD |= {"prior": 0.1, "prior_is_given": False, "prior_estimates": by_labels()}
GOOD |= {"hidden_positives": {"expected": 90.0, "low": 72.0, "high": 110.0}, "scar": {"verdict": "alike", "auc": 0.5}}
GOOD |= {"estimates": {"precision": 0.9, "recall": 0.8, "share_predicted_positive": 0.1, "collapsed": ""}}
GOOD |= {"intervals": {"precision": [0.7, 1.0], "recall": [0.7, 0.9]}, "failures": {"count": 0, "reasons": {}}}
GOOD |= {"duplicates": {"groups": 0, "copies": 0}, "reviewed": {"confirmed": 0, "negative": 5}}
GOOD |= {"pictures": {"asked": 10, "missing": 0, "problems": {}}}
DOUBTS = {  # what the warning says: numbers that are other ones
    "With 12 labelled positives": {"labels": 12, "note": LabelCount(12).sentence},
    "nothing could be held out": {"held_out": False},
    "A review has confirmed 5 positives. These": {"reviewed": {"confirmed": 5, "negative": 1}},
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


def test_each_reason_for_doubt_has_its_warning_and_known_negatives_alone_are_none():
    for expected, changed in DOUBTS.items():
        (warning,) = module.warnings(GOOD | changed)
        assert expected in warning
    assert module.warnings(GOOD) == []


# --- charts ---------------------------------------------------------------------------------------


@pytest.fixture
def held_out():
    """Margins of two normal classes, two apart, of 60 labelled and 900 unlabelled rows."""
    draw = np.random.default_rng(0)
    y = (draw.random(900) < 0.2).astype(np.int8)
    positive = draw.normal(2, 1, 60).astype(np.float32)
    unlabelled = draw.normal(2 * y, 1).astype(np.float32)
    tilt = fit_tilt(np.concatenate([positive, unlabelled]), np.repeat([1, 0], [60, 900]))
    return HeldOut(positive, unlabelled, tilt, 1.25, y)


def test_every_margin_is_in_one_bin_and_the_expected_positives_are_the_posteriors_added_up(held_out):
    bins = charts.margin_histogram(held_out)
    assert sum(bins["labelled"]) == 60 and sum(bins["unlabelled"]) == 900
    assert sum(bins["hidden"]) == held_out.truth.sum()
    inner = [(low, high) for low, high in zip(bins["edges"][1:-2], bins["edges"][2:-1], strict=True)]
    counted = [((held_out.unlabelled >= low) & (held_out.unlabelled < high)).sum() for low, high in inner]
    assert bins["unlabelled"][1:-1] == counted
    assert sum(bins["expected"]) == pytest.approx(held_out.tilt.posterior(held_out.unlabelled).sum())
    assert all(expected <= all_ + 1e-9 for expected, all_ in zip(bins["expected"], bins["unlabelled"], strict=True))


def test_the_expected_curve_is_that_of_the_posteriors(held_out):
    curve = charts.precision_recall(held_out)["expected"]
    posterior = np.sort(held_out.tilt.posterior(held_out.unlabelled))[::-1]
    recall, precision = np.cumsum(posterior) / posterior.sum(), np.cumsum(posterior) / np.arange(1, 901)
    for x, y in zip(curve["recall"], curve["precision"], strict=True):
        at = int(np.argmin(np.abs(recall - x)))
        assert (x, y) == pytest.approx((recall[at], precision[at]))
    called = (held_out.unlabelled > held_out.threshold).sum()
    assert curve["at"] == pytest.approx((recall[called - 1], precision[called - 1]))
    assert curve["recall"][-1] == pytest.approx(1) and 10 < len(curve["recall"]) <= charts.POINTS


def test_the_counted_curve_is_counted_on_the_labelled(held_out):
    curve = charts.precision_recall(held_out)["counted"]
    for x, y in zip(curve["recall"], curve["precision"], strict=True):
        margin = np.sort(held_out.positive)[::-1][round(x * 60) - 1]
        share = (held_out.unlabelled >= margin).mean()
        assert y == pytest.approx(min(1, held_out.tilt.prior * x / share))
    assert min(curve["recall"]) == pytest.approx(10 / 60)
    s, margins = np.repeat([1, 0], [60, 900]), np.concatenate([held_out.positive, held_out.unlabelled])
    figures = from_pu(margins, s, held_out.tilt.prior, held_out.threshold)
    assert curve["at"] == (figures["recall"], figures["precision"])


def test_the_true_curve_and_figures_leave_out_what_is_not_known(held_out):
    held_out.truth[::7] = -1
    known = held_out.truth >= 0
    precision, recall, _ = precision_recall_curve(held_out.truth[known], held_out.unlabelled[known])
    pairs = {(round(x, 9), round(y, 9)) for x, y in zip(recall, precision, strict=True)}
    curve = charts.precision_recall(held_out)["true"]
    assert all((round(x, 9), round(y, 9)) in pairs for x, y in zip(curve["recall"], curve["precision"], strict=True))
    true = held_out.true()
    called = (held_out.unlabelled[known] > held_out.threshold).astype(int)
    assert true == with_labels(held_out.truth[known], held_out.unlabelled[known], called)
    assert curve["at"] == (true["recall"], true["precision"])


def test_reliability_bins_hold_every_row_and_count_as_the_formula_says(held_out):
    bins = charts.reliability(held_out)
    u, p = held_out.tilt.posterior(held_out.unlabelled), held_out.tilt.posterior(held_out.positive)
    assert sum(bins["n"]) == 900 and sum(bins["labelled"]) == 60 and bins["low"][0] == 0 and bins["high"][-1] == 1
    assert min(bins["n"][1:]) >= 10
    for at, (low, high) in enumerate(zip(bins["low"], bins["high"], strict=True)):
        in_u, in_p = (u >= low) & (u < high), (p >= low) & (p < high)
        assert bins["n"][at] == in_u.sum()
        assert bins["posterior"][at] == pytest.approx(u[in_u].mean())
        assert bins["counted"][at] == pytest.approx(held_out.tilt.prior * in_p.mean() / in_u.mean())
        assert bins["true"][at] == pytest.approx(held_out.truth[in_u].mean())
        assert bins["counted_low"][at] <= bins["counted"][at] <= bins["counted_high"][at]


# --- html -----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
HOSTILE = ["</script>", "<!--", "<script>", "]]>", "&lt;", "\u2028\u2029", '"\\', "</SCRIPT ", "\0", "𝒳"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
    | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)  # fmt: skip


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """A folder of assets with a page of its own, which shows its data as its script reads it."""
    script = 'const read = JSON.parse(document.getElementById("data").textContent);\nwindow.read = read;\n'
    body = '{% extends "base.html" %}{% block body %}<p id="said">{{ said }}</p>{% endblock %}'
    files = {"base.html": page.read_asset("base.html"), "base.css": "", "probe.html": body, "probe.js": script}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(page, "ASSETS", tmp_path)
    return tmp_path


def blocks(html):
    """Content of each script element; no data can hold `<`."""
    return re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES)
def test_data_come_through_the_page_whatever_they_hold(assets, data):
    block, script = blocks(page.render("probe", data, title="t", said=""))
    assert json.loads(block) == data and script == (assets / "probe.js").read_text()


def test_text_is_escaped_and_the_policy_allows_this_script_and_no_address(assets):
    html = page.render("probe", 0, title="<i>", said='<img src=x onerror="alert(1)">')
    assert "<title>&lt;i&gt;</title>" in html and "<img" not in html and "&lt;img" in html
    policy = re.search('Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    digest = base64.b64encode(hashlib.sha256(blocks(html)[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy
    assert "http" not in policy and "img-src data:;" in policy
    assert "img-src data: file:;" in page.render("probe", 0, local_images=True, title="t", said="")


# --- numbers and keys as text ------------------------------------------------------------------


def test_figures_claim_no_more_than_is_known_and_what_cannot_be_seen_is_written():
    assert [page.percent(share) for share in (1, 0.99999, 0.9999, 0.9994)] == [
        "100 %",
        "over 99.99 %",
        "99.99 %",
        "99.9 %",
    ]
    assert [page.percent(share) for share in (0, 0.0123, 1e-6)] == ["0 %", "1.23 %", "under 0.01 %"]
    assert (page.probability(0.99995), page.probability(0.0)) == ("over 99.9 %", "under 0.1 %")
    assert (page.about(4173.2), page.about(0.31), page.count_range(2, 130)) == ("4,200", "0", "2 to 130")
    assert page.between(LEAST, 0.12) == "at most 12.0 %"
    assert visible("a\nb\t\u202e\x7f👩‍👧<b>.png") == "a␊b␉⟨U+202E⟩⟨U+007F⟩👩‍👧<b>.png"


# --- thumbnails -----------------------------------------------------------------------------------


def shown(thumbnail):
    """The picture inside a thumbnail."""
    kind, data = thumbnail.uri.split(",")
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_thumbnails_come_in_the_order_of_the_rows_from_the_source_of_each_file(tmp_path):
    folder_of(tmp_path, {"a.png": encode(shaded(40, 20)), "b.png": encode(shaded(41, 20))}, "one")
    folder_of(tmp_path, {"c.png": encode(shaded(640, 320)), "d.png": encode(shaded(100, 400))}, "two")
    cache = EmbeddingCache(tmp_path / "one.h5", tmp_path / "two.h5")
    found = thumbnails(cache, np.array([3, 0, 2, 0]))
    assert [(one.width, one.height) for one in found] == [(100, 400), (40, 20), (640, 320), (40, 20)]
    assert [shown(one).size for one in found[:3]] == [(40, 160), (40, 20), (160, 80)], "in proportion, never larger"
    assert [one.path for one in found][:2] == [str(tmp_path / "two/d.png"), str(tmp_path / "one/a.png")]
    assert {one.problem for one in found} == {""}


def test_an_image_that_cannot_be_decoded_has_the_size_of_its_header_and_holds_up_no_other(tmp_path):
    cache = folder_of(tmp_path, {"cut.png": encode(shaded(400, 400))[:300], "whole.png": encode(shaded(40, 20))})
    cut, whole = thumbnails(cache, np.arange(2))
    assert "cannot be decoded" in cut.problem and "\n" not in cut.problem and (cut.width, cut.uri) == (400, "")
    assert whole.problem == "" and shown(whole).size == (40, 20)


def test_a_host_that_does_not_answer_is_not_asked_again_for_every_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    files = {f"{number:02}.png": encode(shaded(20, 10)) for number in range(60)}
    cache = folder_of(tmp_path, files)
    met = []

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self):
            met.append(self.request)  # and close the connection

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangUp) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        found = thumbnails(cache, np.arange(60), images=f"http://127.0.0.1:{server.server_address[1]}/photos")
        server.shutdown()
    assert all("tried 4 times" in one.problem for one in found)
    assert len(met) <= 4 * 16, "a series of four attempts, of four connections each, for each of the four threads"


def test_images_inside_a_tar_are_shown_and_have_no_path(tmp_path):
    files = {f"{number:02}.png": encode(shaded(20 + number, 10)) for number in range(12)}
    (tmp_path / "all.tar").write_bytes(tar(*files.items()))
    digests = {key: hashlib.sha256(data).digest() for key, data in files.items()}
    cache = cache_of(tmp_path / "c.h5", tmp_path / "all.tar", {**digests, "99.png": None})
    *found, absent = thumbnails(cache, np.arange(13))
    assert [one.width for one in found] == [20 + number for number in range(12)]
    assert {one.path for one in found} == {""} and {one.problem for one in found} == {""}
    assert absent.uri == "" and absent.problem == f"{tmp_path / 'all.tar'} does not hold it"


# --- embedding map --------------------------------------------------------------------------------


def test_a_sample_is_a_third_labelled_a_third_top_and_the_rest_at_random():
    labelled, unlabelled = np.arange(0, 1000, 5), np.setdiff1d(np.arange(1000), np.arange(0, 1000, 5))
    ranked = unlabelled[::-1]
    rows = choose_rows(labelled, unlabelled, ranked, sample=90, seed=0)
    assert len(rows) == 90 and (np.diff(rows) > 0).all()
    assert np.isin(rows, labelled).sum() == 30
    assert np.isin(ranked[:30], rows).all()
    others = np.setdiff1d(rows, np.concatenate([labelled, ranked[:30]]))
    assert len(others) == 30 and others.min() < 300 < others.max()


@pytest.mark.parametrize("n", [60, slow(900)])
def test_principal_components_are_those_of_the_singular_value_decomposition(n):
    X, _, _ = planted(n=n, d=8, apart=3.0)
    rows = np.arange(0, n, 2)
    layout = embedding_map(X, rows)
    centred = X[rows] - X[rows].mean(0)
    U, S, _ = np.linalg.svd(centred, full_matrices=False)
    for axis in range(2):
        expected = U[:, axis] * S[axis]
        assert abs(np.corrcoef(layout.pca[:, axis], expected)[0, 1]) > 0.999
    assert layout.explained == pytest.approx((S[:2] ** 2).sum() / (S**2).sum(), rel=1e-3)
    assert layout.pca.min() == 0 and layout.pca.max() == 1 and np.array_equal(layout.rows, rows)


def test_two_heaps_lie_apart_in_the_neighbour_map():
    X, _, y = planted(n=100, d=10, apart=3.0)
    layout = embedding_map(X, np.arange(100))
    near, everywhere = shares_of_likely(layout.tsne, y == 1, y == 1)
    assert near > 0.99 and everywhere == pytest.approx(y.mean())
