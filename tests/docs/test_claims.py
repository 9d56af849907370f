"""Figures in README.md and docs/ come from docs/results: looked up by docs/claims.toml, and none is left out."""

from pathlib import Path

import pytest

from tools import claims

ROOT = Path(__file__).parents[2]
INCLUDED = {"docs/changelog.md", "docs/contributing.md"}  # they show CHANGELOG.md and CONTRIBUTING.md
VERSIONS = {"docs/upgrading.md"}  # its numbers are those of versions
FOLDERS = ("docs", "docs/tasks", "docs/scaling")
PAGES = ["README.md", *(f"{folder}/{path.name}" for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md")))]


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


@pytest.mark.parametrize("page", [page for page in PAGES if page not in INCLUDED | VERSIONS])
def test_every_number_that_looks_measured_has_a_source_or_a_reason(page):
    assert list(claims.unclaimed(page)) == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140
