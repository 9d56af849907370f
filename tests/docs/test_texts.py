"""What the pages say of other files: figures, verbs, links, tests; and the notebook, run again."""

import pydoc
import re
from pathlib import Path

import pytest

from pucache.cli.main import main
from tools import claims

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "walkthrough.ipynb"
ROOT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*ROOT_PAGES, *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md"))]


def test_every_figure_of_the_texts_is_that_of_its_results_page():
    figures, faults = claims.check()
    moved = [
        f"{figure.page}: {figure.written} is now {figure.measured}   {figure.source}"
        for figure in figures
        if figure.written != figure.measured
    ]
    assert not faults + moved, "python tools/claims.py --write\n" + "\n".join(faults + moved)
    assert len(figures) > 50


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


def test_every_test_that_durability_names_exists():
    named = set(re.findall(r"`([\w/]+\.py)`", (DOCS / "durability.md").read_text()))
    places = [ROOT / file if file.startswith("docker/") else ROOT / "tests" / file for file in named]
    assert len(named) > 25 and [str(place) for place in places if not place.is_file()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_verbs_that_a_text_names_exist(path):
    assert set(re.findall(r"`pucache ([a-z][\w-]*)", path.read_text())) <= set(main.commands)


def test_the_names_of_the_api_page_exist():
    directive = re.compile(r"^\.\. auto\w+:: ([\w.]+).*(?:\n   :members: (.+))?", re.MULTILINE)
    names = set()
    for name, members in directive.findall((DOCS / "reference/api.md").read_text()):
        names |= {name, *(f"{name}.{member}" for member in members.split(", ") if member)}
    assert len(names) > 150 and [name for name in names if pydoc.locate(name) is None] == []


def slug(heading):
    """The anchor of a heading, as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_pictures_and_headings_that_a_text_links_to_exist(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        file = path.parent / target if target else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}#{anchor}"


# --- the notebook ------------------------------------------------------------------------------


def kinds(cell):
    """What a cell gives, whatever the numbers are; stderr is left out, where libraries greet a new machine."""
    found = [output.get("name") or "/".join(sorted(output.data)) for output in cell.outputs]
    return [kind for kind in dict.fromkeys(found) if kind != "stderr"]


@pytest.mark.slow
def test_the_notebook_runs_and_gives_what_the_one_in_docs_shows(tmp_path, monkeypatch):
    """Run from its first cell to its last in an empty folder by this Python."""
    nbformat = pytest.importorskip("nbformat", reason="no nbformat; pip install -e '.[test]'")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient; pip install -e '.[test]'")
    pytest.importorskip("ipykernel", reason="no ipykernel; pip install -e '.[test]'")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # not a kernel of another Python in the home folder
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shown, ran = (nbformat.read(NOTEBOOK, as_version=4) for _ in range(2))
    ran.metadata.kernelspec.name = "python3"
    nbclient.NotebookClient(ran, timeout=3600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, ran = ([cell for cell in book.cells if cell.cell_type == "code"] for book in (shown, ran))
    assert [cell.source for cell in shown] == [cell.source for cell in ran] and len(shown) > 5
    assert [kinds(cell) for cell in shown] == [kinds(cell) for cell in ran]
    assert {kind for cell in ran for kind in kinds(cell)} == {"stdout", "image/png/text/plain"}
