"""Figures in README.md and docs/ come from docs/results: looked up by docs/claims.toml, and none is left out."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCLUDED = {"docs/changelog.md", "docs/contributing.md"}  # they show CHANGELOG.md and CONTRIBUTING.md
FOLDERS = ("docs", "docs/tasks", "docs/scaling")
PAGES = ["README.md", *(f"{folder}/{path.name}" for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md")))]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


claims = load("claims")


# --- the pages -----------------------------------------------------------------------------------------


def test_every_figure_of_the_texts_is_that_of_its_results_page():
    figures, faults = claims.check()
    moved = [
        f"{figure.page}: {figure.written} is now {figure.measured}   {figure.source}"
        for figure in figures
        if figure.written != figure.measured
    ]
    assert not faults + moved, "python tools/claims.py --write\n" + "\n".join(faults + moved)
    assert len(figures) > 250


@pytest.mark.parametrize("page", [page for page in PAGES if page not in INCLUDED])
def test_every_number_that_looks_measured_has_a_source_or_a_reason(page):
    assert list(claims.unclaimed(page)) == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140


# --- the tool ------------------------------------------------------------------------------------------

RESULTS = """\
# Speed

Ran 3 rounds; a plain loop: 30.

| path | end to end | ratio |
| --- | --- | --- |
| torch fp32 | 1,186 | **0.96** (0.923 to 0.982) |
| torch bf16 | 367.5 ± 2.25 | 0.9 / 0.8 |

| path | MB |
| --- | --- |
| torch fp32 | 2048 |
"""
TEXT = "It embeds 1,186 images a second (bf16: 368 ± 2.3;\nloop: 30), 96 % of the rest, in 2.0 GB.\n"
CLAIMS = """\
[["README.md"]]
text = "It embeds {} images a second (bf16: {}; loop: {}), {} % of the rest, in {} GB."
from = [
    "speed.md > Speed > torch fp32 > end*",
    "speed.md > Speed > torch bf16 > end to end",
    "speed.md > Speed > a plain loop: {}.",
    "max of speed.md > Speed > torch * > ratio * 100",
    "speed.md > Speed > table 2 > torch fp32 > MB / 1000",
]
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a folder with one text, one results page and their claims."""
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "docs/results/speed.md").write_text(RESULTS)
    (tmp_path / "docs/claims.toml").write_text(CLAIMS)
    (tmp_path / "README.md").write_text(TEXT)
    for name in ("check", "rewrite"):
        defaults = getattr(claims, name).__defaults__
        monkeypatch.setattr(getattr(claims, name), "__defaults__", (*defaults[:-1], tmp_path))
    return tmp_path


def test_a_figure_that_has_moved_is_listed_and_written(small, capsys):
    (small / "docs/results/speed.md").write_text(RESULTS.replace("1,186", "1,312.4").replace("2048", "1951"))
    assert claims.main([]) == 1
    printed = capsys.readouterr().out
    assert "1,186 is now 1,312" in printed and "2.0 is now 2.0" not in printed
    assert claims.main(["--write"]) == 0
    assert (small / "README.md").read_text() == TEXT.replace("1,186", "1,312")
    assert claims.main([]) == 0


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("It embeds {}", "It draws {}", "stands there 0 times"),
        ("torch fp32 > end*", "no such row > end*", "0 figures there; expected one"),
        ("torch bf16 > end to end", "torch * > end to end", "2 figures there; expected one"),
        ("> Speed > torch fp32", "> Size > torch fp32", "no heading 'Size'"),
        ('"speed.md > Speed > torch fp32', '"slow.md > Speed > torch fp32', "no such page"),
        ("plain loop: {}.", "plain walk: {}.", "stands there 0 times"),
        ("torch bf16 > end to end", "torch fp32 > end to end", "no spread there"),
        ('"speed.md > Speed > a plain loop: {}.",', "", "has 5 figures, but 4 sources"),
    ],
)
def test_a_claim_that_leads_nowhere_is_named(small, old, new, fault):
    (small / "docs/claims.toml").write_text(CLAIMS.replace(old, new, 1))
    assert fault in " ".join(claims.check(small)[1])


def test_numbers_without_a_source_are_found(small):
    (small / "docs/claims.toml").write_text("")
    (small / "README.md").write_text(
        "# 5 %\n\n`0.5` and [a](b0.5.md), 7 images.\n\n```sh\nsleep 3 s\n```\n\n"
        "It takes 12 s, or 0.7, of 88 to 92 % or 3 MB.\n"
    )
    excerpts = list(claims.unclaimed("README.md", small))
    assert len(excerpts) == 5 and all("It takes" in excerpt for excerpt in excerpts)
