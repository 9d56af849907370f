import base64
import hashlib
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pucache.estimates.calibration import LEAST
from pucache.pages import html as page

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
    (tmp_path / "base.html").write_text((page.ASSETS / "base.html").read_text())
    (tmp_path / "base.css").write_text("body { margin: 0 }")
    (tmp_path / "probe.css").write_text("p { color: red }")
    (tmp_path / "probe.html").write_text(
        '{% extends "base.html" %}{% block body %}<p id="said">{{ said }}</p>{% endblock %}'
    )
    script = 'const read = JSON.parse(document.getElementById("data").textContent);\nwindow.read = read;\n'
    (tmp_path / "probe.js").write_text(script)
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


def test_text_of_the_template_is_escaped(assets):
    html = page.render("probe", 0, title="<i>", said='<img src=x onerror="alert(1)">')
    assert "<title>&lt;i&gt;</title>" in html and "<img" not in html and "&lt;img" in html


def test_the_policy_allows_this_script_and_no_address(assets):
    html = page.render("probe", 0, title="t", said="")
    policy = re.search('Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    digest = base64.b64encode(hashlib.sha256(blocks(html)[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy
    assert "http" not in policy and "img-src data:;" in policy
    assert "img-src data: file:;" in page.render("probe", 0, local_images=True, title="t", said="")


# --- numbers and keys as text ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (page.percent(0.9999), "100 %"),
        (page.percent(0.0123), "1.23 %"),
        (page.percent(1e-6), "under 0.01 %"),
        (page.probability(0.99995), "over 99.9 %"),
        (page.probability(0.0), "under 0.1 %"),
        (page.about(4173.2), "4,200"),
        (page.about(0.31), "0"),
        (page.between(LEAST, 0.12), "at most 12.0 %"),
        (page.count_range(2, 130), "2 to 130"),
        (page.visible("a\nb\t\u202e\x7f👩‍👧<b>.png"), "a␊b␉⟨U+202E⟩⟨U+007F⟩👩‍👧<b>.png"),
    ],
)
def test_figures_claim_no_more_than_is_known_and_what_cannot_be_seen_is_written(text, expected):
    assert text == expected
